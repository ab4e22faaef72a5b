"""What was usual: a bounded history of every rank's telemetry, kept by the daemon."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from stragd.diagnosis.readings import place, readings, samples
from stragd.diagnosis.signals import HISTORY_WINDOWS
from stragd.peers import median
from stragd.telemetry.sample import RankTelemetry

LEVEL = 8
LEVELS = 9
"""A level keeps eight windows and hands every second one on: 72 windows that reach back
8 x (1 + 2 + ... + 256) = 4,088, some 34 hours at 30 s."""
RECENT = 8
"""Windows kept whole, for faults that come and go."""
MAX_COLUMNS = 1024
"""Values remembered of a rank; more than eight NICs have."""
MAX_RANKS = 128
"""Ranks remembered, the first that come; those beyond are compared with peers only."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A value in the windows before a finding."""

    median: float
    mad: float
    """Median absolute deviation, in the value's unit."""
    windows: int


def spread(values: list[float], middle: float) -> float:
    """Median absolute deviation."""
    return median([abs(value - middle) for value in values]) or 0.0


@dataclass(frozen=True, slots=True)
class _Row:
    time_ns: int
    values: array[float]


@dataclass(slots=True)
class _Rank:
    hardware: tuple[str, str, str]
    newest_ns: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    levels: list[deque[_Row]] = field(default_factory=lambda: [deque() for _ in range(LEVELS)])
    recent: deque[tuple[int, RankTelemetry]] = field(default_factory=lambda: deque(maxlen=RECENT))

    def add(self, row: _Row) -> None:
        for level in self.levels:
            level.append(row)
            if len(level) <= LEVEL:
                return
            level.popleft()
            row = level.popleft()

    def rows(self) -> Iterator[_Row]:
        """Oldest first."""
        for level in reversed(self.levels):
            yield from level


class Past:
    """Telemetry of one job's ranks, window after window; memory is constant for each value.

    A rank that moves to another GPU or host begins anew.
    """

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}

    def add(self, telemetry: RankTelemetry, time_ns: int) -> None:
        """Take a window that ended at ``time_ns`` (CLOCK_REALTIME, as a finding's ``since``)."""
        known = self._ranks.get(telemetry.rank)
        gpu = telemetry.gpu
        hardware = (telemetry.host, gpu.subject if gpu else "", gpu.model if gpu else "")
        if known is not None and (gpu is None or gpu.silent):  # silence is no other GPU
            hardware = (telemetry.host, *known.hardware[1:])
        if known is None or known.hardware != hardware:
            if known is None and len(self._ranks) >= MAX_RANKS:
                return
            known = self._ranks[telemetry.rank] = _Rank(hardware)
        # A clock that is set back must not make later windows earlier ones.
        known.newest_ns = time_ns = max(time_ns, known.newest_ns)
        values = _values(telemetry)
        for key in values:
            if key not in known.columns and len(known.columns) < MAX_COLUMNS:
                known.columns[key] = len(known.columns)
        row = array("f", [math.nan]) * len(known.columns)
        for key, value in values.items():
            column = known.columns.get(key)
            if column is not None:
                row[column] = value
        known.add(_Row(time_ns, row))
        known.recent.append((time_ns, telemetry))

    def forget(self, rank: int) -> None:
        """The rank is gone."""
        self._ranks.pop(rank, None)

    def baseline(self, rank: int, key: str, before_ns: int) -> Baseline | None:
        """Median and spread of ``key`` ("gpu.sm_clock_mhz", "nic[mlx5_0/1].rate_gbps") before.

        None where there are too few.
        """
        known = self._ranks.get(rank)
        column = known.columns.get(key) if known else None
        if known is None or column is None:
            return None
        values = []
        for row in known.rows():
            if row.time_ns > before_ns:
                break
            # Rows older than the first appearance of a value are shorter.
            if column < len(row.values) and not math.isnan(row.values[column]):
                values.append(row.values[column])
        middle = median(values)
        if middle is None or len(values) < HISTORY_WINDOWS:
            return None
        return Baseline(middle, spread(values, middle), len(values))

    def recent(self, rank: int, after_ns: int) -> list[RankTelemetry]:
        """The last whole windows that ended after ``after_ns``, newest first; at most RECENT."""
        known = self._ranks.get(rank)
        if known is None:
            return []
        return [telemetry for time_ns, telemetry in reversed(known.recent) if time_ns > after_ns]


def _values(telemetry: RankTelemetry) -> dict[str, float]:
    return {
        f"{place(sample)}.{quantity}": value
        for sample in samples(telemetry)
        for quantity, value in readings(sample)
    }
