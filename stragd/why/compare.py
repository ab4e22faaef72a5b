"""What differs between two ranks that were looked at together: pure functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from stragd.why.measures import Measures, Series

LEAST_MS = 20.0
"""Milliseconds of each second: less is 2 % of the time, and nobody's reason."""
LEAST_SHARE = 0.2
"""Of the larger of the two."""
STANDARD_ERRORS = 3.0
LONG_WAIT_MS, LONG_WAIT_RATIO = 250.0, 4.0
"""A single wait that is a difference by itself, however quiet the other slices are."""

LEAST_FAULTS, LEAST_MAJOR, LEAST_SWITCHES, LEAST_REQUESTS = 2000.0, 5.0, 100.0, 2.0  # per second
RATIO = 2.0
LEAST_LATENCY_MS = 1.0


@dataclass(frozen=True)
class Difference:
    """One kind of time, both numbers in milliseconds per second."""

    what: str
    rank: float
    peer: float
    longest_ms: float  # of the rank with more of it
    peer_longest_ms: float
    thread: str
    stack: tuple[str, ...]

    @property
    def more(self) -> float:
        """What the rank has more than its peer; negative: less."""
        return self.rank - self.peer


@dataclass(frozen=True)
class Contrast:
    """A rate or a latency that differs; it does not add up with the times."""

    what: str
    rank: float | None
    peer: float | None
    unit: str


def differences(rank: Measures, peer: Measures) -> list[Difference]:
    """What the rank has more of, the most first; then what it has less of."""
    empty = Series([])
    found = []
    for what in {**rank.series, **peer.series}:
        mine, others = rank.series.get(what, empty), peer.series.get(what, empty)
        if differs(mine, others):
            side = mine if mine.mean >= others.mean else others
            found.append(
                Difference(
                    what, mine.mean, others.mean, mine.longest_ms, others.longest_ms,
                    side.thread, side.stack,
                )
            )  # fmt: skip
    return sorted(found, key=lambda d: (d.more < 0, -abs(d.more)))


def differs(mine: Series, others: Series) -> bool:
    """Whether two series differ by an amount that matters and that is no chance of the slices."""
    low, high = sorted((mine.mean, others.mean))
    if high - low < max(LEAST_MS, LEAST_SHARE * high):
        return False
    short, long = sorted((mine.longest_ms, others.longest_ms))
    larger_has_it = (mine.mean > others.mean) == (mine.longest_ms > others.longest_ms)
    if larger_has_it and long >= max(LONG_WAIT_MS, LONG_WAIT_RATIO * short):
        return True
    return abs(mine.mean - others.mean) >= STANDARD_ERRORS * _error(mine.slices, others.slices)


def _error(mine: Sequence[float], others: Sequence[float]) -> float:
    """Standard error of the mean difference, slices taken in pairs; infinite of fewer than 3."""
    count = max(len(mine), len(others))
    if count < 3:
        return math.inf
    a, b = list(mine) or [0.0] * count, list(others) or [0.0] * count
    return statistics.stdev(x - y for x, y in zip(a, b, strict=True)) / math.sqrt(count)


def contrasts(rank: Measures, peer: Measures) -> list[Contrast]:
    """Rates and latencies of which one rank has a multiple of the other's."""
    rates = (
        ("major page faults", rank.major_faults, peer.major_faults, LEAST_MAJOR),
        ("minor page faults", rank.minor_faults, peer.minor_faults, LEAST_FAULTS),
        ("block requests", rank.io_requests, peer.io_requests, LEAST_REQUESTS),
        ("involuntary context switches", rank.involuntary, peer.involuntary, LEAST_SWITCHES),
        ("voluntary context switches", rank.voluntary, peer.voluntary, LEAST_SWITCHES),
    )
    found = [
        Contrast(what, mine, others, "per s")
        for what, mine, others, least in rates
        if _multiple(mine, others, least)
    ]
    latencies = (
        ("mean latency of a block request", rank.io_ms, peer.io_ms),
        ("mean wait of a page fault that waits", rank.fault_wait_ms, peer.fault_wait_ms),
    )
    found += [
        Contrast(what, mine, others, "ms")
        for what, mine, others in latencies
        if _multiple(mine or 0.0, others or 0.0, LEAST_LATENCY_MS)
    ]
    return found


def _multiple(mine: float, others: float, least: float) -> bool:
    low, high = sorted((mine, others))
    return high >= least and high >= RATIO * low
