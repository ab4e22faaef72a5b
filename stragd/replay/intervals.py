"""How sure a simulated figure is: 95 % intervals of a share, a rate and a mean."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

NORMAL = 1.959964
"""Of a standard normal, 97.5 % lie below."""


def share(part: float, of: int) -> tuple[float, float]:
    """Wilson's interval (1927) of a probability, ``part`` of ``of`` independent draws."""
    p, square = part / of, NORMAL * NORMAL / of
    middle = (p + square / 2) / (1 + square)
    half = NORMAL * math.sqrt(p * (1 - p) / of + square / (4 * of)) / (1 + square)
    low = 0.0 if part == 0 else max(middle - half, 0.0)
    return low, 1.0 if part == of else min(middle + half, 1.0)


def count(seen: int) -> tuple[float, float]:
    """Garwood's exact interval (1936) of the mean of a Poisson count."""
    low = 0.0 if seen == 0 else _root(lambda mean: 0.025 - (1 - _at_most(seen - 1, mean)), seen)
    return low, _root(lambda mean: _at_most(seen, mean) - 0.025, seen)


def _at_most(seen: int, mean: float) -> float:
    """Chance of at most ``seen`` where ``mean`` are expected."""
    terms = (k * math.log(mean) - mean - math.lgamma(k + 1) for k in range(seen + 1))
    return math.fsum(math.exp(term) for term in terms)


def _root(falling: Callable[[float], float], seen: int) -> float:
    """Where a falling function of a mean crosses zero, for a count that was seen."""
    low, high = 1e-9, seen + 10.0 * math.sqrt(seen + 1.0) + 10.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return high


def mean(jobs: NDArray[np.float64]) -> tuple[float, float]:
    """Of the mean of independent jobs' figures; as wide as can be where there is only one."""
    if len(jobs) < 2:
        return 0.0, math.inf
    half = NORMAL * float(jobs.std(ddof=1)) / math.sqrt(len(jobs))
    return float(jobs.mean()) - half, float(jobs.mean()) + half
