"""What the scorer says about simulated jobs: false alarms on healthy ones, delays on slow ones."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from stragd._rscore import Scorer
from stragd.replay.simulate import Scenario, simulate


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
            scored += len(rows)
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

    delays: np.ndarray
    others: int
    flaps: int = 0
    clear: np.ndarray | None = None


def power(scenario: Scenario, begin: int, kind: str = "straggler") -> Seen:
    """Windows until each faulty rank of each job is confirmed."""
    faulty = sorted({rank for fault in scenario.faults for rank in fault.ranks})
    end = min(fault.end for fault in scenario.faults)
    scorer, named, wrong = Scorer({}), {}, set()
    cleared: dict[tuple[int, int], int] = {}
    times: Counter[tuple[int, int]] = Counter()
    for rows in simulate(scenario):
        window = int(rows["window"][0])
        for finding in scorer.update(rows)["findings"]:
            if finding["kind"] != kind or finding["rank"] is None:
                continue
            key = (finding["job"], finding["rank"])
            if finding["state"] == "confirmed":
                if finding["rank"] not in faulty:
                    wrong.add(key)
                elif key not in named:
                    named[key] = window - begin + 1
            elif finding["state"] == "cleared" and key in named:
                times[key] += 1
                if window >= end:
                    cleared.setdefault(key, window - end + 1)
    every = [(job, rank) for job in range(1, scenario.jobs + 1) for rank in faulty]
    delays = np.array([named.get(key, math.inf) for key in every])
    clear = np.array([cleared.get(key, math.inf) for key in every])
    return Seen(delays, len(wrong), sum(count > 1 for count in times.values()), clear)
