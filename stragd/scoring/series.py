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
STATED = 3.0
"""Noise of a window over the standard error that it states: steps resemble each other."""
LENT = 24.0
"""Differences that the rest of the job is worth to a group, at most."""
NOISE_KEEP = 0.995
"""Memory of the noise: 200 windows."""
DIFFERENCES = 1.5
"""Differences of neighbours that tell as much of a variance as one value does."""
ALIKE, ALIKE_RANKS = 60.0, 4.0
"""Degrees of freedom that machines of a kind share before anything was learnt of how alike their
noise is, and how many ranks that is worth."""
MOST, JUMP = 18.0, 40.0
"""Twice the squared standard deviations that a difference counts at most (3), and from which it
may be no noise (4.5)."""
LIKE_PEERS = 8.0
"""Differences that the group is worth in what is usual for one of its members."""
UNCORRELATED = 10.0
"""Differences that speak for no correlation before anything was learnt."""
MARGIN, RELATIVE = 0.5, 1.1
"""Standard errors, and the factor, by which a correlation is believed to be larger than its
estimate: it is the group's, and one rank's may be above it."""
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
    total: float = 0.0
    """Sum of ``values``."""
    spread: Spread = field(default_factory=lambda: Spread())

    def count(self) -> int:
        """Windows that it remembers."""
        return self.known + self.length

    def center(self) -> float:
        """Mean of all that it remembers, relative to the anchor."""
        return (float(self.known) * self.base + self.total) / float(self.count())

    def push(self, value: float, deviation: float, noise: Noise, history: int) -> None:
        """Takes the value of one window; the oldest of the newest becomes past."""
        if self.length > 0:
            second = self.values[1] if self.length > 1 else None
            self.spread.learn(value, self.values[0], second, noise)
        if self.length == RUN:
            oldest = self.values[RUN - 1]
            self.total -= oldest
            step = oldest - self.base
            if self.known > 4:
                step = min(max(step, -3.0 * deviation), 3.0 * deviation)
            self.base += max(1.0 / float(self.known + 1), 1.0 / float(history)) * step
            self.known = min(self.known + 1, history)
        self.values[1:] = self.values[: RUN - 1]
        self.values[0] = value
        self.total += self.values[0]
        self.length = min(self.length + 1, RUN)

    def forget_run(self, before: float, windows: int, history: int) -> None:
        """A run is proven slow: only what was ``before`` it stays."""
        self.base = before
        self.known = min(self.count() - windows, history)
        self.length, self.total = 0, 0.0


@dataclass
class Spread:
    """What the differences of a series say about its noise."""

    near: float = 0.0
    near_weight: float = 0.0
    far: float = 0.0
    far_weight: float = 0.0

    def learn(self, value: float, last: float, second: float | None, noise: Noise) -> None:
        """Noise comes and goes: a jump is learnt when the next window takes it back, and never
        when it lasts."""
        usual = self.near + LIKE_PEERS * noise.differences
        usual = max(noise.differences, usual / (self.near_weight + LIKE_PEERS))
        jump, error = JUMP * usual, value - last
        before = both = 0.0
        if second is not None:
            before, both = last - second, value - second
            if before * before >= jump and both * before < before * before / 2.0:
                self._add(before * before, usual)
        if error * error < jump:
            self._add(error * error, usual)
        # A jump is in two of these and in one of the others, and would look like correlation.
        largest = max(error * error, before * before, both * both / 2.0)
        if second is not None and largest < jump:
            self.far = self.far * NOISE_KEEP + both * both / 2.0
            self.far_weight = self.far_weight * NOISE_KEEP + 1.0

    def _add(self, squared: float, usual: float) -> None:
        self.near = self.near * NOISE_KEEP + min(squared, MOST * usual) / 2.0
        self.near_weight = self.near_weight * NOISE_KEEP + 1.0

    def ratio(self, noise: Noise) -> float:
        """Its own noise over the group's."""
        if self.near_weight > 0.0:
            return min(self.near / self.near_weight / noise.differences, 9.0)
        return 1.0

    def deviation(self, noise: Noise) -> tuple[float, float]:
        """Standard deviation of one window, and the degrees of freedom behind it.

        The group's variance is a prior (scaled inverse chi-square) of ``noise.alike`` degrees.
        """
        own = self.near_weight / DIFFERENCES
        share = (noise.alike + own * self.ratio(noise)) / (noise.alike + own)
        return math.sqrt(noise.variance * share), min(noise.alike + own, noise.degrees)


@dataclass(frozen=True)
class Prior:
    """What is believed of a group's noise before it is looked at, and what its job has seen."""

    near: float = PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR
    weight: float = PRIOR_WEIGHT
    inside: bool = False
    """Whether the group is among those that it was made of."""

    def rest(self, near: float, near_weight: float) -> tuple[float, float]:
        """(sum, weight) without a group that has these."""
        if not self.inside:
            return self.near, self.weight
        return max(self.near - near, 0.0), max(self.weight - near_weight, PRIOR_WEIGHT)


def lend(everybody: Sequence[Spread], stated: float) -> Prior:
    """What a whole job says about the noise of its groups. ``stated`` is the median of the
    standard errors that its windows state (ln), 0 where none does."""
    start = min(STATED * stated, NOISE_PRIOR) if stated > 0.0 else NOISE_PRIOR
    near, weight = PRIOR_WEIGHT * start * start, PRIOR_WEIGHT
    for one in everybody:
        near += one.near
        weight += one.near_weight
    return Prior(near, weight, True)


def pool(members: Sequence[Spread], floor: float, prior: Prior) -> Noise:
    """Noise of a group, from its members in the order of their ranks."""
    near, near_weight, far, far_weight = 0.0, 0.0, 0.0, 0.0
    for one in members:
        near += one.near
        near_weight += one.near_weight
        far += one.far
        far_weight += one.far_weight
    # An AR(1) has lag-1 differences of (1 - rho) and lag-2 ones of (1 - rho^2) variances.
    correlation = 0.0
    if far_weight > 0.0 and near > 0.0:
        correlation = min(max(far / far_weight / (near / near_weight) - 1.0, 0.0), 0.9)
        correlation *= far_weight / (far_weight + UNCORRELATED)
    rest, rest_weight = prior.rest(near, near_weight)
    lent = min(rest_weight, LENT)
    near += lent * (rest / rest_weight)
    near_weight += lent
    differences = max(near / near_weight, 1e-12)
    variance = max(differences / (1.0 - correlation), floor * floor)
    degrees = near_weight / DIFFERENCES
    believed = min(RELATIVE * correlation + MARGIN / math.sqrt(degrees), 0.9)
    noise = Noise(differences, variance, believed, 0.0, degrees)
    return Noise(differences, variance, believed, likeness(members, noise), degrees)


def likeness(members: Sequence[Spread], noise: Noise) -> float:
    """How alike the members' noise is, in degrees of freedom: what their variances differ beyond
    what the estimates themselves do (2 / degrees each)."""
    count = float(len(members))
    total, squares, weight = 0.0, 0.0, 0.0
    for one in members:
        ratio = one.ratio(noise)
        total += ratio
        squares += ratio * ratio
        weight += one.near_weight
    mean = total / count
    differ = squares / count - mean * mean
    extra = max(differ - 2.0 * DIFFERENCES / max(weight / count, 1.0), 0.0)
    between = (ALIKE_RANKS * (2.0 / ALIKE) + count * extra) / (ALIKE_RANKS + count)
    return min(max(2.0 / between, 8.0), 1000.0)


@dataclass(frozen=True)
class Change:
    """What the scan of one series says: the newest ``windows`` are slower by ``shift`` (ln) than
    ``before`` (the mean of all others, relative to the anchor); ``deviate`` in standard
    deviations."""

    evidence: int
    windows: int = 0
    before: float = 0.0
    shift: float = 0.0
    deviate: float = 0.0


def prefix_sums(series: Series, longest: int) -> list[float]:
    """Sums of the newest 1, 2, ... values; eight by eight, as the native side adds them."""
    sums, block = [], 0.0
    for place in range(0, longest, 8):
        part = 0.0
        for value in series.values[place : min(place + 8, longest)]:
            part += value
            sums.append(block + part)
        block = sums[-1]
    return sums


def scan(
    series: Series,
    deviation: float,
    degrees: float,
    correlation: float,
    limit: float,
    least: float,
    shortest: int,
    share: float,
) -> Change:
    """The run of newest windows that differs most from all before it.

    A run of m windows after n others has the deviate (mean of m - mean of n) over
    sqrt(1 / m + 1 / n) standard deviations, which is (sum of m - m mean of all) over
    sqrt(m n / (m + n)); neighbours that resemble each other count as fewer. ``shortest`` is the
    least run that proves anything, ``share`` of whose windows are slow at least; the newest window
    alone may be a suspicion.
    """
    count, center = series.count(), series.center()
    long_run = deviation * math.sqrt((1.0 + correlation) / (1.0 - correlation))
    sums = prefix_sums(series, min(series.length, max(count - LEAST_PAST, 0)))
    deviates = []
    for place, total in enumerate(sums):
        m, past = float(place + 1), float(count - place - 1)
        deviates.append((total - m * center) * (1.0 / math.sqrt(m * past / float(count))))
    newest = deviates[0] if deviates else 0.0
    proof = max(deviates[shortest - 1 :], default=0.0)
    if max(newest, proof) < SUSPECT_SHARE * limit * long_run:
        return Change(CALM)
    limit = student_limit(limit, degrees) * long_run
    if proof >= limit:
        windows = deviates.index(proof, shortest - 1) + 1
        before, shift = _sizes(sums[windows - 1], windows, count, center)
        rest, slow = _slow_throughout(series, sums, windows, before, shift)
        if shift >= least and rest >= REST * limit and slow >= share:
            return Change(STRONG, windows, before, shift, proof / long_run)
    best = max(newest, proof)
    if best < SUSPECT_SHARE * limit:
        return Change(CALM)
    windows = 1 if newest > proof else deviates.index(proof, shortest - 1) + 1
    before, shift = _sizes(sums[windows - 1], windows, count, center)
    if shift < least or series.values[0] < before + shift / 2.0:
        return Change(CALM)
    return Change(WEAK, windows, before, shift, best / long_run)


def _sizes(run: float, windows: int, count: int, center: float) -> tuple[float, float]:
    """(mean before a run, its mean over that)."""
    before = (float(count) * center - run) / float(count - windows)
    return before, run / float(windows) - before


def _slow_throughout(
    series: Series, sums: list[float], windows: int, before: float, shift: float
) -> tuple[float, float]:
    """(deviate of a run without its largest window: no single one makes a case; share of its
    windows above half of the shift)."""
    others = float(windows) - 1.0
    largest, slow = series.values[0], 0
    for value in series.values[:windows]:
        largest = max(largest, value)
        slow += value - before > shift / 2.0
    rest = (sums[windows - 1] - largest - others * before) / math.sqrt(others)
    return rest, float(slow) / float(windows)
