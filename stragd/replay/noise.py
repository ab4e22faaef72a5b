"""Noise of simulated windows: models of single steps, condensed as the windows condense them.

A window of steps is a 10 % trimmed mean and its standard error (``rscore/src/window``). Windows of
independent steps are drawn from a library of such windows, made once from single steps; an AR(1) is
carried from window to window.
"""

from __future__ import annotations

import functools
import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Noise = Literal["gaussian", "student3", "lognormal", "ar1", "ar1-windows", "outliers"]
NOISES: tuple[Noise, ...] = (
    "gaussian", "student3", "lognormal", "ar1", "ar1-windows", "outliers",
)  # fmt: skip
LIBRARY = 400_000
"""Windows in the library of a noise model."""
PART = 20_000
"""Of them at a time."""
CORRELATION = 0.7
"""Of a step with the next (ar1), of a window with the next (ar1-windows)."""
OUTLIER_SHARE, OUTLIER_FACTOR = 0.05, 2.0
SHAPE = 1.0
"""Of the log-normal: its skewness is 6."""
TRIM = 0.1
TENTHS = 10
"""Tenths of a window."""


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
    for _ in range(LIBRARY // PART):
        parts.append(condense(draw_steps(noise, jitter, (PART, steps), rng)))
    return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


class WindowNoise:
    """Condensed windows of ``count`` ranks, one window after another."""

    def __init__(
        self, noise: Noise, jitter: float, steps: int, count: int, rng: np.random.Generator
    ) -> None:
        """``jitter`` is the standard deviation of a step over its mean, ``steps`` those of a
        window."""
        self._noise: Noise = noise
        self._jitter, self._steps, self._count, self._rng = jitter, steps, count, rng
        self._state: Floats = rng.standard_normal(count)

    def draw(self) -> tuple[Floats, Floats]:
        """(mean, standard error) of the next window of every rank."""
        if self._noise in ("ar1", "ar1-windows"):
            return self._correlated()
        means, errors = library(self._noise, self._jitter, self._steps)
        places = self._rng.integers(0, len(means), self._count)
        return means[places], errors[places]

    def draw_tenth(self, means: Floats) -> tuple[Floats, Floats]:
        """The same of a tenth of the window that has the ``means``."""
        steps = self._steps // TENTHS
        if self._noise == "ar1":
            # Of so few steps that resemble each other, the mean is nearly as wide as one of them.
            wide = self._jitter * math.sqrt(sum(_ar1_variance(CORRELATION, steps)))
            return 1.0 + wide * self._rng.standard_normal(self._count), np.full(self._count, wide)
        if self._noise == "ar1-windows":
            error = self._jitter / math.sqrt(steps)
            return means + error * self._rng.standard_normal(self._count), np.full(
                self._count, error
            )
        few, errors = library(self._noise, self._jitter, steps)
        places = self._rng.integers(0, len(few), self._count)
        return few[places], errors[places]

    def _correlated(self) -> tuple[Floats, Floats]:
        rho, rng = CORRELATION, self._rng
        error = self._jitter / math.sqrt(self._steps)
        if self._noise == "ar1-windows":
            fresh = rng.standard_normal(self._count) * math.sqrt(1 - rho * rho)
            self._state = rho * self._state + fresh
            return 1.0 + error * self._state, np.full(self._count, error)
        from_state, last, mean, both = _ar1_window(rho, self._steps)
        first = rng.standard_normal(self._count)
        deviates = from_state * self._state + math.sqrt(mean) * first
        rest = math.sqrt(max(last - both * both / mean, 0.0))
        self._state = (
            rho**self._steps * self._state
            + both / math.sqrt(mean) * first
            + rest * rng.standard_normal(self._count)
        )
        return 1.0 + self._jitter * deviates, np.full(self._count, error)


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
