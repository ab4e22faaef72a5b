"""Differences of counters that only ever grow, and what they do instead."""

from __future__ import annotations

from collections.abc import Hashable


class Counters:
    """The last value of each counter of one subject."""

    def __init__(self) -> None:
        self.last: dict[Hashable, int] = {}

    def delta(self, key: Hashable, value: int, bits: int = 64) -> int | None:
        """Growth since the last call; None for a new counter, or one that was reset.

        A counter of ``bits`` below 64 that went down has wrapped if the growth is less than half
        its range, else it was reset: the value is a new baseline, and this window has no growth.
        """
        last = self.last.get(key)
        self.last[key] = value
        if last is None:
            return None
        if value >= last:
            return value - last
        if bits < 64:
            grown = value - last + (1 << bits)
            if 0 <= grown < 1 << (bits - 1):
                return grown
        return None

    def forget(self) -> None:
        """Every counter starts anew: the driver or the firmware behind them was restarted."""
        self.last.clear()
