"""A rank's own time per step, from the exact planned times of a dump (dump.c).

``wall`` is from the end of a step's last collective to the end of the next step's, ``busy`` the
length of the union of the intervals in which a collective or message of the rank was in flight,
``own`` = wall − busy.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from pathlib import Path

Interval = tuple[int, int]


def steps(path: Path) -> list[list[Interval]]:
    """Start and end, planned ns, of everything in flight; by step. What comes first is dropped."""
    found: list[list[Interval]] = [[]]
    for line in path.read_text().splitlines():
        kind, *values = line.split()
        if kind == "task":
            found[-1].append((int(values[3]), int(values[4])))
        else:
            found.append([])
    return found[:-1]


def union(intervals: Iterable[Interval]) -> int:
    """Length of the union."""
    length, reached = 0, 0
    for start, end in sorted(intervals):
        length += max(0, end - max(start, reached))
        reached = max(reached, end)
    return length


def own(path: Path, first: int = 1) -> list[float]:
    """Own time in ms of the steps from ``first`` on (at least 1: a step begins with one before)."""
    found = steps(path)
    ends = [max(end for _, end in step) for step in found]
    return [
        (ends[i] - ends[i - 1] - union(found[i])) / 1e6 for i in range(max(1, first), len(found))
    ]


def mean_own(dump: str, ranks: int, first: int = 1) -> list[float]:
    """Mean own time in ms, by rank."""
    return [statistics.fmean(own(Path(f"{dump}.{rank}"), first)) for rank in range(ranks)]
