"""Simulated jobs: healthy or with known faults, as the RankWindow rows that a node would give.

What a step takes is drawn from a noise model, and a window of steps is condensed as
``rscore/src/window`` does it: a 10 % trimmed mean and its standard error. Windows of independent
steps are drawn from a library of such windows, made once from single steps; an AR(1) is carried
from window to window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stragd import _rscore

Floats = NDArray[np.float64]
Noise = Literal["gaussian", "student3", "lognormal", "ar1", "ar1-windows", "outliers"]
NOISES: tuple[Noise, ...] = (
    "gaussian", "student3", "lognormal", "ar1", "ar1-windows", "outliers",
)  # fmt: skip
LIBRARY = 400_000
"""Windows in the library of a noise model."""
CORRELATION = 0.7
"""Of a step with the next (ar1), of a window with the next (ar1-windows)."""
OUTLIER_SHARE, OUTLIER_FACTOR = 0.05, 2.0
SHAPE = 1.0
"""Of the log-normal: its skewness is 6."""
TRIM = 0.1
STEP_NS = 1e8
EPOCH_NS = 1_700_000_000_000_000_000
TENTHS, TENTH = 10, 128
"""Tenths of a window, and the flag of their rows."""

DTYPE = np.dtype(
    {
        "names": [name for name, _, _ in _rscore.RANK_WINDOW_LAYOUT],
        "formats": [form for _, form, _ in _rscore.RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in _rscore.RANK_WINDOW_LAYOUT],
        "itemsize": _rscore.RANK_WINDOW_BYTES,
    }
)


@dataclass(frozen=True)
class Fault:
    """What is wrong with the ranks ``ranks`` of every job, from one window to another."""

    ranks: tuple[int, ...]
    slowdown: float
    begin: int = 0
    end: int = 1 << 30
    every: int = 1
    """Slow in one window of so many."""
    drift: float = 0.0
    """Slower by so much more with every window."""

    def factor(self, window: int) -> float:
        """Of own time in one window."""
        if not self.begin <= window < self.end or (window - self.begin) % self.every:
            return 1.0
        return 1.0 + self.slowdown + self.drift * (window - self.begin)


@dataclass(frozen=True)
class Machine:
    """A hardware class: its share of the ranks and its time over the fastest class's."""

    class_id: int
    share: float
    factor: float


@dataclass(frozen=True)
class Scenario:
    """A job as it is simulated, ``jobs`` times side by side."""

    ranks: int
    jobs: int = 1
    windows: int = 100
    steps: int = 100
    jitter: float = 0.05
    """Standard deviation of one step over its mean."""
    noise: Noise = "gaussian"
    natural: float = 0.015
    """Permanent spread of machines of a class (standard deviation of ln)."""
    machines: tuple[Machine, ...] = (Machine(1, 1.0, 1.0),)
    bursts: float = 0.0
    """Share of windows in which everybody is 30 % slower."""
    drift: float = 0.0
    """The whole job's random walk, per window."""
    evaluation: int = 0
    """Every so many windows everybody takes half as long again."""
    missing: float = 0.0
    """Share of rows that are lost on the way."""
    tenths: bool = False
    """Whether the ten tenths of a window come before it, as a node sends them."""
    faults: tuple[Fault, ...] = ()
    ordinary: tuple[int, ...] = ()
    """Ranks whose machine is exactly as fast as the median of its class."""
    seed: int = 1
    first_job: int = field(default=1)


def condense(steps: Floats) -> tuple[Floats, Floats]:
    """Trimmed mean and its standard error of every row (rscore/src/window/mean.rs)."""
    steps.sort(axis=1)
    count = steps.shape[1]
    cut = int(count * TRIM)
    kept = steps[:, cut : count - cut]
    mean = kept.mean(axis=1)
    wide = np.clip(steps, kept[:, :1], kept[:, -1:])
    squares = ((wide - wide.mean(axis=1, keepdims=True)) ** 2).sum(axis=1)
    left = kept.shape[1]
    return mean, np.sqrt(squares / (left * (left - 1)))


def draw_steps(
    noise: Noise, jitter: float, shape: tuple[int, int], rng: np.random.Generator
) -> Floats:
    """Single steps with mean 1 and the standard deviation ``jitter`` (without its outliers)."""
    if noise == "student3":
        deviates = rng.standard_t(3, shape) / math.sqrt(3.0)
    elif noise == "lognormal":
        mean, spread = math.exp(SHAPE**2 / 2), math.sqrt(math.expm1(SHAPE**2))
        deviates = (rng.lognormal(0.0, SHAPE, shape) / mean - 1.0) / spread
    else:
        deviates = rng.standard_normal(shape)
    steps: Floats = np.maximum(1.0 + jitter * deviates, 0.2)
    if noise == "outliers":
        steps *= np.where(rng.random(shape) < OUTLIER_SHARE, OUTLIER_FACTOR, 1.0)
    return steps


@functools.cache
def library(noise: Noise, jitter: float, steps: int) -> tuple[Floats, Floats]:
    """Condensed windows of one model, the same in every run: mean about 1, standard error."""
    rng = np.random.default_rng(20_000 + NOISES.index(noise))
    parts = []
    for _ in range(LIBRARY // 20_000):
        parts.append(condense(draw_steps(noise, jitter, (20_000, steps), rng)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


class WindowNoise:
    """Condensed windows of ``count`` ranks, one window after another."""

    def __init__(self, scenario: Scenario, count: int, rng: np.random.Generator) -> None:
        self._scenario, self._count, self._rng = scenario, count, rng
        self._state: Floats = rng.standard_normal(count)

    def draw(self) -> tuple[Floats, Floats]:
        """(mean, standard error) of the next window of every rank."""
        one = self._scenario
        if one.noise in ("ar1", "ar1-windows"):
            return self._correlated()
        means, errors = library(one.noise, one.jitter, one.steps)
        places = self._rng.integers(0, len(means), self._count)
        return means[places], errors[places]

    def draw_tenth(self, means: Floats) -> tuple[Floats, Floats]:
        """The same of a tenth of the window that has the ``means``."""
        one, steps = self._scenario, self._scenario.steps // TENTHS
        if one.noise == "ar1":
            # Of so few steps that resemble each other, the mean is nearly as wide as one of them.
            wide = one.jitter * math.sqrt(sum(_ar1_variance(CORRELATION, steps)))
            return 1.0 + wide * self._rng.standard_normal(self._count), np.full(self._count, wide)
        if one.noise == "ar1-windows":
            error = one.jitter / math.sqrt(steps)
            return means + error * self._rng.standard_normal(self._count), np.full(
                self._count, error
            )
        few, errors = library(one.noise, one.jitter, steps)
        places = self._rng.integers(0, len(few), self._count)
        return few[places], errors[places]

    def _correlated(self) -> tuple[Floats, Floats]:
        one, rho, rng = self._scenario, CORRELATION, self._rng
        error = one.jitter / math.sqrt(one.steps)
        if one.noise == "ar1-windows":
            fresh = rng.standard_normal(self._count) * math.sqrt(1 - rho * rho)
            self._state = rho * self._state + fresh
            return 1.0 + error * self._state, np.full(self._count, error)
        from_state, last, mean, both = _ar1_window(rho, one.steps)
        first = rng.standard_normal(self._count)
        deviates = from_state * self._state + math.sqrt(mean) * first
        rest = math.sqrt(max(last - both * both / mean, 0.0))
        self._state = (
            rho**one.steps * self._state
            + both / math.sqrt(mean) * first
            + rest * rng.standard_normal(self._count)
        )
        return 1.0 + one.jitter * deviates, np.full(self._count, error)


def _ar1_variance(rho: float, steps: int) -> tuple[float, float]:
    """Variance of the mean of so many steps of a stationary AR(1): of the state before, and of
    what came new."""
    from_state, _, mean, _ = _ar1_window(rho, steps)
    return from_state * from_state, mean


@functools.cache
def _ar1_window(rho: float, steps: int) -> tuple[float, float, float, float]:
    """Of a stationary AR(1) of unit variance over one window: what the mean has of the state
    before it, and beyond that the variances of the last state and of the mean, and their
    covariance."""
    # Weight of the innovation of step k in the mean of the window, and in its last state.
    left = np.arange(steps, 0, -1)
    in_mean = (1 - rho**left) / (1 - rho) / steps
    in_last = rho ** (left - 1)
    fresh = 1 - rho * rho
    from_state = float((rho ** np.arange(1, steps + 1)).sum() / steps)
    return (
        from_state,
        float(fresh * (in_last**2).sum()),
        float(fresh * (in_mean**2).sum()),
        float(fresh * (in_mean * in_last).sum()),
    )


def simulate(scenario: Scenario) -> Iterator[NDArray[np.void]]:
    """One array per window: the rows of every job, one job after another."""
    one, rng = scenario, np.random.default_rng(scenario.seed)
    ranks = np.tile(np.arange(one.ranks), one.jobs)
    jobs = np.repeat(np.arange(one.first_job, one.first_job + one.jobs), one.ranks)
    classes, factors = _machines(one, rng)
    noise = WindowNoise(one, len(ranks), rng)
    walk = np.zeros(one.jobs)
    rows = np.zeros(len(ranks), DTYPE)
    rows["job"], rows["rank"], rows["world_size"] = jobs, ranks, one.ranks
    rows["signature"], rows["class_id"], rows["steps"] = 1, classes, one.steps
    rows["source"], rows["collectives"], rows["bytes"] = 1, 4.0, 1e8
    for window in range(one.windows):
        means, errors = noise.draw()
        walk += one.drift * rng.standard_normal(one.jobs)
        everybody = np.exp(walk) * np.where(rng.random(one.jobs) < one.bursts, 1.3, 1.0)
        if one.evaluation and window % one.evaluation == one.evaluation - 1:
            everybody *= 1.5
        scale = STEP_NS * factors * np.repeat(everybody, one.ranks)
        for fault in one.faults:
            slow = np.isin(ranks, fault.ranks)
            scale = np.where(slow, scale * fault.factor(window), scale)
        own = means * scale
        slowest = np.repeat(own.reshape(one.jobs, one.ranks).max(axis=1), one.ranks)
        rows["window"], rows["first_step"] = window, window * one.steps
        rows["last_step"] = (window + 1) * one.steps - 1
        rows["start_ns"] = window * one.steps * int(STEP_NS)
        rows["end_ns"] = (window + 1) * one.steps * int(STEP_NS)
        rows["time_ns"] = EPOCH_NS + rows["end_ns"]
        rows["own"], rows["own_se"] = own, errors * scale
        rows["comm"] = 0.05 * STEP_NS
        rows["wall"] = slowest + rows["comm"]
        rows["wait"] = slowest - own
        if one.tenths:
            yield from _tenths(rows, noise, means, scale, window)
        if one.missing:
            yield rows[rng.random(len(rows)) >= one.missing]
        else:
            yield rows.copy()


def _tenths(
    window: NDArray[np.void], noise: WindowNoise, means: Floats, scale: Floats, number: int
) -> Iterator[NDArray[np.void]]:
    """The ten tenths of a window, whose own times are of steps of their own."""
    steps = int(window["steps"][0]) // TENTHS
    for place in range(TENTHS):
        rows = window.copy()
        few, errors = noise.draw_tenth(means)
        rows["window"], rows["flags"], rows["steps"] = number * TENTHS + place, TENTH, steps
        rows["first_step"] += np.uint64(place * steps)
        rows["last_step"] = rows["first_step"] + np.uint64(steps - 1)
        rows["start_ns"] += np.uint64(place * steps * int(STEP_NS))
        rows["end_ns"] = rows["start_ns"] + np.uint64(steps * int(STEP_NS))
        rows["time_ns"] = np.uint64(EPOCH_NS) + rows["end_ns"]
        rows["own"], rows["own_se"] = few * scale, errors * scale
        rows["wall"] = np.maximum(rows["wall"], rows["own"])
        yield rows


def _machines(one: Scenario, rng: np.random.Generator) -> tuple[NDArray[np.uint32], Floats]:
    """Class and speed of every rank of every job; classes stand in blocks."""
    shares = np.array([machine.share for machine in one.machines])
    edges = np.cumsum(shares / shares.sum() * one.ranks)
    kinds = np.searchsorted(edges - 1e-9, np.arange(one.ranks), side="right")
    kinds = np.minimum(kinds, len(one.machines) - 1)
    classes = np.array([m.class_id for m in one.machines], np.uint32)[kinds]
    factors = np.array([m.factor for m in one.machines])[kinds]
    natural = np.exp(one.natural * rng.standard_normal((one.jobs, one.ranks)))
    natural[:, list(one.ordinary)] = 1.0
    return np.tile(classes, one.jobs), (factors * natural).ravel()
