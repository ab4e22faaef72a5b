"""Ranks against the median of their peers on this node, for the screen; the scorer has its own."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence

Kind = tuple[int, int]
"""(class id, signature): ranks of one kind are peers."""


def median(values: Sequence[float]) -> float | None:
    """Median; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Peers:
    """Own times of a job's ranks by kind, sorted once: a job can have thousands of ranks."""

    def __init__(self, ranks: Iterable[tuple[Kind | None, float | None]]) -> None:
        self._own: dict[Kind, list[float]] = {}
        for kind, own in ranks:
            if kind is not None and own is not None:
                self._own.setdefault(kind, []).append(own)
        for values in self._own.values():
            values.sort()

    def slowdown(self, kind: Kind | None, own: float | None) -> float | None:
        """Own time of one of them over the median of the others, minus one; None without any."""
        if kind is None or own is None:
            return None
        values = self._own[kind]
        count = len(values) - 1
        if not count:
            return None
        place = bisect.bisect_left(values, own)  # of itself, or of an equal

        def other(index: int) -> float:
            return values[index if index < place else index + 1]

        middle = count // 2
        usual = other(middle) if count % 2 else (other(middle - 1) + other(middle)) / 2
        return round(own / usual - 1, 5) if usual else None
