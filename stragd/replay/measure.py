"""What the scorer says about simulated jobs: false alarms on healthy ones, delays on slow ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stragd._rscore import Scorer
from stragd.replay.simulate import TENTH, TENTHS, Scenario, simulate


@dataclass
class Told:
    """What was said in a run of healthy jobs."""

    rank_windows: int
    stragglers: int
    others: Counter[str]


def silence(scenario: Scenario, wanted: int) -> Told:
    """Healthy jobs until ``wanted`` rank-windows are scored."""
    scored, named, others = 0, set(), Counter[str]()
    seed = scenario.seed
    while scored < wanted:
        scorer = Scorer({})
        for rows in simulate(replace(scenario, seed=seed)):
            update = scorer.update(rows)
            scored += 0 if rows["flags"][0] & TENTH else len(rows)
            for finding in update["findings"]:
                if finding["state"] != "confirmed":
                    continue
                if finding["kind"] == "straggler":
                    named.add((seed, finding["job"], finding["rank"]))
                elif finding["window"] == finding["since_window"] + 1:
                    others[finding["kind"]] += 1
        seed += 1
    return Told(scored, len(named), others)


@dataclass
class Seen:
    """Delays of the slow ranks (infinite where never named) and who else was named."""

    delays: NDArray[np.float64]
    others: int
    flaps: int = 0
    clear: NDArray[np.float64] | None = None


def power(scenario: Scenario, begin: int, kind: str = "straggler") -> Seen:
    """Windows until each faulty rank of each job is confirmed."""
    faulty = sorted({rank for fault in scenario.faults for rank in fault.ranks})
    end = min(fault.end for fault in scenario.faults)
    scorer, named, wrong, open_now = Scorer({}), {}, set(), set()
    cleared: dict[tuple[int, int], int] = {}
    times: Counter[tuple[int, int]] = Counter()
    for rows in simulate(scenario):
        tenth = bool(rows["flags"][0] & TENTH)
        window = int(rows["window"][0]) // (TENTHS if tenth else 1)
        for finding in scorer.update(rows)["findings"]:
            if finding["kind"] != kind or finding["rank"] is None:
                continue
            key = (finding["job"], finding["rank"])
            if finding["state"] == "confirmed":
                if finding["rank"] not in faulty:
                    wrong.add(key)
                elif key not in named:
                    named[key] = window - begin + 1
                open_now.add(key)
            elif finding["state"] == "cleared" and key in open_now:
                open_now.discard(key)
                times[key] += 1
                if window >= end:
                    cleared.setdefault(key, window - end + 1)
    every = [(job, rank) for job in range(1, scenario.jobs + 1) for rank in faulty]
    delays = np.array([named.get(key, math.inf) for key in every])
    clear = np.array([cleared.get(key, math.inf) for key in every])
    return Seen(delays, len(wrong), sum(count > 1 for count in times.values()), clear)


def fast_power(scenario: Scenario, begin: int) -> Seen:
    """Steps, in tenths of a window, until each faulty rank of each job is confirmed."""
    faulty = sorted({rank for fault in scenario.faults for rank in fault.ranks})
    scorer = Scorer({})
    named: dict[tuple[int, int | None], int] = {}
    wrong: set[tuple[int, int | None]] = set()
    for rows in simulate(replace(scenario, tenths=True)):
        now = int(rows["last_step"][0]) + 1
        for finding in scorer.update(rows)["findings"]:
            if finding["kind"] == "straggler" and finding["state"] == "confirmed":
                key = (finding["job"], finding["rank"])
                if finding["rank"] in faulty:
                    named.setdefault(key, now - begin * scenario.steps)
                else:
                    wrong.add(key)
    every = [(job, rank) for job in range(1, scenario.jobs + 1) for rank in faulty]
    delays = np.array([float(named.get(key, math.inf)) for key in every])
    return Seen(delays, len(wrong))
