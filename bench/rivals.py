"""Published decision rules on the jobs that the scorer is measured on.

- **NVRx** (nvidia-resiliency-ext, straggler detection, its documents): a rank's relative score is
  the fastest rank's time over its own, its individual score its best time ever over the present
  one; a rank whose score falls below 0.75 is a straggler.
- **Greyhound** (Wu and others, USENIX ATC 2025): Bayesian online change-point detection (Adams and
  MacKay 2007) on the iteration time, and a change counts when the means before and after it
  differ by more than 10 %. Here every rank's own time is watched, which is more than it sees.

Written from those descriptions; every rule sees the same windows. A delay counts windows from the
first slow one, all jobs were healthy for 100 windows before. A false alarm is a healthy rank that
was named once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.power import STAGES
from stragd import _rscore
from stragd.replay.simulate import Fault, Scenario, simulate

BEGIN, WINDOWS = 100, 140
Named = NDArray[np.bool_]


class Rule(Protocol):
    """Which ranks are named, window by window; rows are those of jobs of equal size in order."""

    def window(self, rows: NDArray[np.void]) -> Named: ...


class Stragd:
    """The scorer with its defaults."""

    def __init__(self, ranks: int, jobs: int) -> None:
        self._scorer, self._ranks, self._count = _rscore.Scorer({}), ranks, ranks * jobs

    def window(self, rows: NDArray[np.void]) -> Named:
        named = np.zeros(self._count, bool)
        for one in self._scorer.update(rows)["findings"]:
            if one["state"] == "confirmed" and one["rank"] is not None:
                named[(one["job"] - 1) * self._ranks + one["rank"]] = True
        return named


class Nvrx:
    """Scores below 0.75 of the fastest rank, or of the rank's own best."""

    def __init__(self, ranks: int, jobs: int) -> None:
        self._shape = (jobs, ranks)
        self._best = np.full(ranks * jobs, math.inf)

    def window(self, rows: NDArray[np.void]) -> Named:
        own = rows["own"]
        fastest = np.repeat(own.reshape(self._shape).min(axis=1), self._shape[1])
        self._best = np.minimum(self._best, own)
        return np.asarray((fastest / own < 0.75) | (self._best / own < 0.75))


class Greyhound:
    """Change points of every rank's own time, with more than 10 % between before and after."""

    LONGEST, HAZARD, CHECK = 40, 1 / 250, 0.10

    def __init__(self, ranks: int, jobs: int) -> None:
        count = ranks * jobs
        self._weights = np.zeros((count, self.LONGEST))  # of run lengths
        self._weights[:, 0] = 1.0
        # Normal-inverse-gamma of each run length, on times over the first one.
        self._mean = np.ones((count, self.LONGEST))
        self._kappa = np.full(self.LONGEST, 0.1)
        self._alpha = np.full(self.LONGEST, 1.0)
        self._beta = np.full((count, self.LONGEST), 1e-3)
        self._scale: NDArray[np.float64] | None = None
        self._past: list[NDArray[np.float64]] = []

    def window(self, rows: NDArray[np.void]) -> Named:
        if self._scale is None:
            self._scale = rows["own"].copy()
        value = rows["own"] / self._scale
        self._past.append(value)
        wide = self._beta * (self._kappa + 1) / (self._alpha * self._kappa)
        degrees = 2 * self._alpha
        norm = np.array([math.lgamma((v + 1) / 2) - math.lgamma(v / 2) for v in degrees])
        error = (value[:, None] - self._mean) ** 2 / wide
        chance = np.exp(
            norm - 0.5 * np.log(np.pi * degrees * wide)
            - (degrees + 1) / 2 * np.log1p(error / degrees)
        )  # fmt: skip
        grown = self._weights * chance * (1 - self.HAZARD)
        fresh = (self._weights * chance * self.HAZARD).sum(axis=1)
        weights = np.empty_like(grown)
        weights[:, 1:] = grown[:, :-1]
        weights[:, -1] += grown[:, -1]  # longer runs are one
        weights[:, 0] = fresh
        self._weights = weights / weights.sum(axis=1, keepdims=True)
        self._learn(value)
        return self._changed()

    def _learn(self, value: NDArray[np.float64]) -> None:
        new_mean = (self._kappa * self._mean + value[:, None]) / (self._kappa + 1)
        new_beta = self._beta + self._kappa * (value[:, None] - self._mean) ** 2 / (
            2 * (self._kappa + 1)
        )
        self._mean[:, 1:], self._beta[:, 1:] = new_mean[:, :-1].copy(), new_beta[:, :-1].copy()
        self._mean[:, 0], self._beta[:, 0] = 1.0, 1e-3
        self._kappa = np.concatenate([[0.1], self._kappa[:-1] + 1])
        self._alpha = np.concatenate([[1.0], self._alpha[:-1] + 0.5])

    def _changed(self) -> Named:
        past = np.array(self._past)
        now = len(past)
        length = self._weights.argmax(axis=1)
        named = np.zeros(past.shape[1], bool)
        for run in range(1, min(self.LONGEST - 1, now - 3)):
            those = length == run
            if those.any():
                before = past[max(0, now - run - 20) : now - run, those].mean(axis=0)
                after = past[now - run :, those].mean(axis=0)
                named[those] = after / before > 1 + self.CHECK
        return named


RULES = {"stragd": Stragd, "NVRx": Nvrx, "Greyhound": Greyhound}


def verdicts(rule: Rule, scenario: Scenario) -> Iterator[tuple[int, Named]]:
    """(Window, named) of a run."""
    for rows in simulate(scenario):
        yield int(rows["window"][0]), rule.window(rows)


def delay(name: str, scenario: Scenario, rank: int) -> str:
    """How many slow ranks a rule finds, how soon, and how many healthy ranks it names."""
    first: dict[int, int] = {}
    culprit = np.tile(np.arange(scenario.ranks) == rank, scenario.jobs)
    wrong = np.zeros(len(culprit), bool)
    for window, named in verdicts(RULES[name](scenario.ranks, scenario.jobs), scenario):
        wrong |= named & ~culprit
        if window >= BEGIN:
            for place in np.flatnonzero(named & culprit):
                first.setdefault(int(place), window - BEGIN + 1)
    found = f"{len(first) / scenario.jobs:.0%}"
    if first:
        found += f" in {sum(first.values()) / len(first):.1f}"
    return f"{found}, {int(wrong.sum())} wrong"


def main() -> None:
    base = Scenario(ranks=64, jobs=60, windows=WINDOWS, ordinary=(3,), seed=5)
    scenarios = [
        (f"{slowdown:.0%} slow", replace(base, faults=(Fault((3,), slowdown, BEGIN),)))
        for slowdown in (0.01, 0.02, 0.05, 0.1, 0.15, 0.25, 0.4)
    ]
    scenarios += [
        ("healthy", base),
        ("healthy, Student-t", replace(base, noise="student3")),
        ("healthy, bursts and drift", replace(base, bursts=0.1, drift=0.003)),
        ("healthy, vendors 20 % apart", replace(base, machines=STAGES)),
        ("healthy, vendors 60 % apart",
         replace(base, machines=(STAGES[0], replace(STAGES[1], factor=1.6)))),
    ]  # fmt: skip
    count = base.ranks * base.jobs * WINDOWS
    print(
        f"{base.jobs} jobs of {base.ranks} ranks, {WINDOWS} windows: {count:,} rank-windows a row;"
        " slow ranks found, in how many windows, and healthy ranks named\n"
    )
    print("| job | " + " | ".join(RULES) + " |\n|" + "---|" * (len(RULES) + 1))
    for name, scenario in scenarios:
        cells = [delay(rule, scenario, 3 if scenario.faults else -1) for rule in RULES]
        if not scenario.faults:
            cells = [cell.partition(", ")[2] for cell in cells]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
