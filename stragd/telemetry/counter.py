"""Differences of the kernel's and the drivers' counters: what counts, what wraps, what sticks.

A source is read once a window; what is reported is the difference to its last reading, over the
time between the two readings by CLOCK_MONOTONIC (a stepped wall clock changes nothing).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import NamedTuple


def number(raw: bytes | None) -> int | None:
    """A counter's text; None for "N/A (no PMA)", nothing, a sign or anything else."""
    if raw is None:
        return None
    raw = raw.strip()
    # 20 digits hold 64 bits; longer is not a counter.
    return int(raw) if raw.isdigit() and len(raw) <= 20 else None


def difference(now: int, before: int, bits: int = 64) -> int | None:
    """Events between two readings; None where the counter was set back in between.

    A counter of fewer than 64 bits that goes back by more than half of its range has wrapped: less
    would be more events in one window than half of the range. Anything else that goes back began
    anew (driver reload, reset).
    """
    if now >= before:
        return now - before
    wrap = 1 << bits
    if bits < 64 and before < wrap and before - now > wrap // 2:
        return now + wrap - before
    return None


class Change(NamedTuple):
    """What happened between the last two readings of a source."""

    seconds: float  # 0 where there is no earlier reading
    by: dict[str, int]  # counters that have a difference
    back: tuple[str, ...] = ()  # counters that began anew

    def per_s(self, name: str) -> float | None:
        """Events per second."""
        return self.by[name] / self.seconds if name in self.by else None

    def share(self, name: str, unit_ns: float) -> float | None:
        """Time counted in units of ``unit_ns``, as a share of the elapsed time, at most 1."""
        if name not in self.by:
            return None
        return min(1.0, self.by[name] * unit_ns / (self.seconds * 1e9))


NO_CHANGE = Change(0.0, {})


class Counters:
    """The last reading of one source."""

    __slots__ = ("_at_ns", "_before")

    def __init__(self) -> None:
        self._before: Mapping[str, int] = {}
        self._at_ns = 0

    def advance(
        self, now_ns: int, reading: Mapping[str, int], bits: Mapping[str, int] | None = None
    ) -> Change:
        """Take the differences to the last reading and keep this one; ``bits`` where not 64."""
        before, seconds = self._before, (now_ns - self._at_ns) / 1e9
        self._before, self._at_ns = reading, now_ns
        if not before or seconds <= 0:
            return NO_CHANGE
        if reading.keys() == before.keys():  # nearly always, and cheaper
            by = {name: now - before[name] for name, now in reading.items()}
            if min(by.values()) >= 0:
                return Change(seconds, by)
        by = {}
        back: list[str] = []
        for name, now in reading.items():
            if name in before:
                then = before[name]
                if now >= then:
                    by[name] = now - then
                    continue
                delta = difference(now, then, bits.get(name, 64) if bits else 64)
                if delta is None:
                    back.append(name)
                else:
                    by[name] = delta
        return Change(seconds, by, tuple(back))


class Baselines:
    """The last value of each counter of a source that is not read at once."""

    def __init__(self) -> None:
        self.last: dict[Hashable, int] = {}

    def delta(self, key: Hashable, value: int, bits: int = 64) -> int | None:
        """Growth since the last call; None for a new counter, or one that was set back."""
        last = self.last.get(key)
        self.last[key] = value
        return None if last is None else difference(value, last, bits)

    def forget(self) -> None:
        """Every counter starts anew: the driver or the firmware behind them was restarted."""
        self.last.clear()


def put(values: dict[str, float], name: str, value: float | None) -> None:
    """Enter a value that may not be known."""
    if value is not None:
        values[name] = value
