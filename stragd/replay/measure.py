"""What the scorer says about simulated jobs: false alarms on healthy ones, delays on slow ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stragd._rscore import Scorer
from stragd.replay.simulate import TENTH, Scenario, class_of, simulate, stage_of

Floats = NDArray[np.float64]
WINDOWS_A_CALL = 16_384
"""Rank-windows of one call of the scorer, over jobs side by side."""


@dataclass
class Told:
    """What was said in a run of healthy jobs."""

    rank_windows: int = 0
    jobs: int = 0
    stragglers: int = 0
    others: Counter[str] = field(default_factory=Counter)
    """Jobs in which a finding of each other kind was confirmed."""


def silence(scenario: Scenario, wanted: int) -> Told:
    """Healthy jobs until ``wanted`` rank-windows are scored."""
    told, named = Told(), set[tuple[int, int, int | None]]()
    others = set[tuple[str, int, int]]()
    seed = scenario.seed
    while told.rank_windows < wanted:
        scorer = Scorer({})
        for rows in simulate(replace(scenario, seed=seed)):
            update = scorer.update(rows)
            told.rank_windows += 0 if rows["flags"][0] & TENTH else len(rows)
            for finding in update["findings"]:
                if finding["state"] != "confirmed":
                    continue
                if finding["kind"] == "straggler":
                    named.add((seed, finding["job"], finding["rank"]))
                else:
                    others.add((finding["kind"], seed, finding["job"]))
        told.jobs += scenario.jobs
        seed += 1
    told.stragglers, told.others = len(named), Counter(kind for kind, _, _ in others)
    return told


@dataclass
class Seen:
    """What was said about faults. Arrays have a row per job and a column per faulty subject."""

    delays: Floats
    """Windows from the first slow one to the one that confirmed, infinite where none did."""
    clear: Floats
    """Windows from the end of the fault to the end of the finding."""
    others: int
    """Healthy ranks that were named as stragglers, each once."""
    flaps: int
    """Subjects whose finding ended more than once."""
    kinds: Counter[str]
    """Jobs in which a finding of each other kind was confirmed."""


def power(scenario: Scenario, begin: int, kind: str = "straggler") -> Seen:
    """Windows until each faulty subject of each job is confirmed: the faulty ranks, their class
    (imbalance) or stage (uneven-work), or the job as a whole (job-wide, network). ``begin`` is the
    first slow window."""
    ends = [one.end for one in scenario.faults] + [one.end for one in scenario.network]
    end, subjects = min(ends), _subjects(scenario, kind)
    faulty = _slow_ranks(scenario)
    scorer, named = Scorer({}), dict[tuple[int, int | None], float]()
    wrong, others = set[tuple[int, int | None]](), set[tuple[str, int]]()
    open_now, cleared = set[tuple[int, int | None]](), dict[tuple[int, int | None], float]()
    before = set[tuple[int, int | None]]()  # what was said already when the fault began
    times = Counter[tuple[int, int | None]]()
    window_ns = scenario.steps * scenario.step_ns
    for rows in simulate(scenario):
        now = float(rows["end_ns"].max()) / window_ns
        for finding in scorer.update(rows)["findings"]:
            key = (finding["job"], _subject(finding))
            confirmed = finding["state"] == "confirmed"
            if finding["kind"] != kind or key[1] not in subjects:
                if not confirmed:
                    continue
                if finding["kind"] != "straggler":
                    others.add((finding["kind"], finding["job"]))
                elif kind not in ("straggler", "intermittent") or key[1] not in faulty:
                    wrong.add(key)
            elif confirmed:
                open_now.add(key)
                if now <= begin:
                    before.add(key)
                elif key not in before:
                    named.setdefault(key, now - begin)
            elif finding["state"] == "cleared" and key in open_now:
                open_now.discard(key)
                before.discard(key)
                times[key] += 1
                if now > end:
                    cleared.setdefault(key, now - end)
    every = [
        (job, subject)
        for job in range(scenario.first_job, scenario.first_job + scenario.jobs)
        for subject in subjects
    ]

    def table(values: Mapping[tuple[int, int | None], float]) -> Floats:
        found = np.array([values.get(key, math.inf) for key in every])
        return found.reshape(scenario.jobs, -1)

    flaps = sum(count > 1 for count in times.values())
    kinds = Counter(one for one, _ in others)
    return Seen(table(named), table(cleared), len(wrong), flaps, kinds)


def _subject(finding: Mapping[str, Any]) -> int | None:
    """Whom a finding of the scorer is about."""
    name = {"imbalance": "class_id", "uneven-work": "signature"}.get(finding["kind"], "rank")
    subject: int | None = finding[name]
    return subject


def _slow_ranks(scenario: Scenario) -> set[int]:
    return {rank for fault in scenario.faults if fault.slows for rank in fault.ranks}


def _subjects(scenario: Scenario, kind: str) -> list[int | None]:
    """Whom a finding of the kind should be about."""
    ranks = sorted(_slow_ranks(scenario))
    if kind in ("straggler", "intermittent"):
        return list(ranks)
    if kind == "imbalance":
        return sorted({scenario.machines[place].class_id for place in class_of(scenario)[ranks]})
    if kind == "uneven-work":
        return [int(stage) + 1 for stage in sorted(set(stage_of(scenario)[ranks]))]
    return [None]


def fast_power(scenario: Scenario, begin: int) -> Seen:
    """The same with tenths of windows, in steps."""
    seen = power(replace(scenario, tenths=True), begin)
    return replace(seen, delays=np.round(seen.delays * scenario.steps))
