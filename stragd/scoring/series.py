"""One series of logarithms: its past, its noise, and the scan for a run that is slow."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from stragd.scoring.estimate import RUN, student_limit
from stragd.scoring.model import CALM, STRONG, WEAK

NOISE_PRIOR, PRIOR_WEIGHT = 0.02, 2.0
"""Noise of a window before anything was learnt (ln), and how many differences that is worth."""
NOISE_KEEP = 0.995
"""Memory of the noise: 200 windows."""
DIFFERENCES = 1.5
"""Differences of neighbours that tell as much of a variance as one value does."""
ALIKE, ALIKE_RANKS = 60.0, 8.0
"""Degrees of freedom that machines of a kind share before anything was learnt of how alike their
noise is, and how many ranks that is worth."""
LEAST_PAST = 3
"""Windows before a run, at least."""
REST = 0.6
"""Share of the limit that a run must reach without its largest window."""
SUSPECT_SHARE = 0.7


@dataclass(frozen=True)
class Noise:
    """What the members of a group say about the noise of one window (ln)."""

    differences: float
    """Half the mean squared difference of neighbouring windows."""
    variance: float
    correlation: float
    """Of a window with the next one, as it is believed: a little above the estimate."""
    alike: float
    """Degrees of freedom of a member that the group lends it."""
    degrees: float


@dataclass
class Series:
    """State of one series. ``values`` are relative to ``anchor``, the newest first."""

    anchor: float = 0.0
    base: float = 0.0
    known: int = 0
    values: array[float] = field(default_factory=lambda: array("f", bytes(4 * RUN)))
    length: int = 0
    near: float = 0.0
    near_weight: float = 0.0
    far: float = 0.0
    far_weight: float = 0.0

    def count(self) -> int:
        """Windows that it remembers."""
        return self.known + self.length

    def center(self) -> float:
        """Mean of all that it remembers, relative to the anchor."""
        total = 0.0
        for place in range(self.length):
            total += self.values[place]
        return (float(self.known) * self.base + total) / float(self.count())

    def push(self, value: float, deviation: float, noise: Noise, history: int) -> None:
        """Takes the value of one window; the oldest of the newest becomes past."""
        if self.length > 0:
            self._learn_noise(value, noise)
        if self.length == RUN:
            step = self.values[RUN - 1] - self.base
            if self.known > 4:
                step = min(max(step, -3.0 * deviation), 3.0 * deviation)
            self.base += max(1.0 / float(self.known + 1), 1.0 / float(history)) * step
            self.known = min(self.known + 1, history)
        self.values[1:] = self.values[: RUN - 1]
        self.values[0] = value
        self.length = min(self.length + 1, RUN)

    def _learn_noise(self, value: float, noise: Noise) -> None:
        """From differences, which a lasting shift enters once and a baseline never."""
        own = self.near / self.near_weight if self.near_weight > 0.0 else noise.differences
        most = 18.0 * max(noise.differences, own)
        error = value - self.values[0]
        self.near = self.near * NOISE_KEEP + min(error * error, most) / 2.0
        self.near_weight = self.near_weight * NOISE_KEEP + 1.0
        if self.length > 1:
            error = value - self.values[1]
            self.far = self.far * NOISE_KEEP + min(error * error, most) / 2.0
            self.far_weight = self.far_weight * NOISE_KEEP + 1.0

    def ratio(self, noise: Noise) -> float:
        """Its own noise over the group's."""
        if self.near_weight > 0.0:
            return min(self.near / self.near_weight / noise.differences, 9.0)
        return 1.0

    def deviation(self, noise: Noise, stated: float) -> tuple[float, float]:
        """Standard deviation of one window, and the degrees of freedom behind it.

        The group's variance is a prior (scaled inverse chi-square) of ``noise.alike`` degrees.
        """
        own = self.near_weight / DIFFERENCES
        share = (noise.alike + own * self.ratio(noise)) / (noise.alike + own)
        variance = max(noise.variance * share, stated * stated)
        return math.sqrt(variance), min(noise.alike + own, noise.degrees)

    def forget_run(self, before: float, windows: int, history: int) -> None:
        """A run is proven slow: only what was before it stays."""
        self.base += before
        self.known = min(self.count() - windows, history)
        self.length = 0


def pool(members: Sequence[Series], floor: float) -> Noise:
    """Noise of a group, from its members in the order of their ranks."""
    near, near_weight = PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR, PRIOR_WEIGHT
    far, far_weight = 0.0, 0.0
    for series in members:
        near += series.near
        near_weight += series.near_weight
        far += series.far
        far_weight += series.far_weight
    differences = max(near / near_weight, 1e-12)
    # An AR(1) has lag-1 differences of (1 - rho) and lag-2 ones of (1 - rho^2) variances.
    correlation = 0.0
    if far_weight > 0.0:
        correlation = min(max(far / far_weight / differences - 1.0, 0.0), 0.9)
    variance = max(differences / (1.0 - correlation), floor * floor)
    degrees = near_weight / DIFFERENCES
    believed = min(correlation + 0.5 / math.sqrt(degrees), 0.9)
    noise = Noise(differences, variance, believed, 0.0, degrees)
    return Noise(differences, variance, believed, likeness(members, noise), degrees)


def likeness(members: Sequence[Series], noise: Noise) -> float:
    """How alike the members' noise is, in degrees of freedom: what their variances differ beyond
    what the estimates themselves do (2 / degrees each)."""
    count = float(len(members))
    total, weight = 0.0, 0.0
    for series in members:
        total += series.ratio(noise)
        weight += series.near_weight
    mean = total / count
    squares = 0.0
    for series in members:
        error = series.ratio(noise) - mean
        squares += error * error
    extra = max(squares / count - 2.0 * DIFFERENCES / max(weight / count, 1.0), 0.0)
    between = (ALIKE_RANKS * (2.0 / ALIKE) + count * extra) / (ALIKE_RANKS + count)
    return min(max(2.0 / between, 8.0), 1000.0)


@dataclass(frozen=True)
class Change:
    """What the scan of one series says. ``deviate`` is in standard deviations."""

    evidence: int
    windows: int = 0
    before: float = 0.0
    shift: float = 0.0
    deviate: float = 0.0


def scan(
    series: Series,
    deviation: float,
    degrees: float,
    correlation: float,
    limit: float,
    least: float,
    shortest: int,
) -> Change:
    """The run of newest windows that differs most from all before it.

    A run of m windows after n others has the deviate (mean of m - mean of n) over
    sqrt(1 / m + 1 / n) standard deviations; neighbours that resemble each other count as fewer.
    ``shortest`` is the least run that proves anything.
    """
    count = series.count()
    long_run = deviation * math.sqrt((1.0 + correlation) / (1.0 - correlation))
    total = 0.0
    for place in range(series.length):
        total += series.values[place] - series.base
    mean = total / float(count)
    run, best, best_windows, best_run = 0.0, 0.0, 0, 0.0
    proof, proof_windows, proof_run = 0.0, 0, 0.0
    for windows in range(1, series.length + 1):
        past = count - windows
        if past < LEAST_PAST:
            break
        run += series.values[windows - 1] - series.base
        m = float(windows)
        deviate = (run - m * mean) * (1.0 / math.sqrt(m * float(past) / float(count)))
        if deviate > best:
            best, best_windows, best_run = deviate, windows, run
        if windows >= shortest and deviate > proof:
            proof, proof_windows, proof_run = deviate, windows, run
    if best < SUSPECT_SHARE * limit * long_run:
        return Change(CALM)
    limit = student_limit(limit, degrees) * long_run
    if proof >= limit:
        change = _proven(series, total, proof_run, proof_windows, limit, least)
        if change is not None:
            return Change(STRONG, *change, proof / long_run)
    if best >= SUSPECT_SHARE * limit:
        before = (total - best_run) / float(count - best_windows)
        shift = best_run / float(best_windows) - before
        newest = series.values[0] - series.base
        if shift >= least and newest >= before + shift / 2.0:
            return Change(WEAK, best_windows, before, shift, best / long_run)
    return Change(CALM)


def _proven(
    series: Series, total: float, run: float, windows: int, limit: float, least: float
) -> tuple[int, float, float] | None:
    """Whether the run is slow throughout: no single window makes a case, and most are slow."""
    m = float(windows)
    before = (total - run) / float(series.count() - windows)
    shift = run / m - before
    largest, slow = series.values[0] - series.base, 0
    for place in range(windows):
        value = series.values[place] - series.base
        largest = max(largest, value)
        slow += value - before > shift / 2.0
    rest = (run - largest - (m - 1.0) * before) / math.sqrt(m - 1.0)
    if shift >= least and rest >= REST * limit and 2 * slow > windows:
        return windows, before, shift
    return None
