"""Steps of a recording's ranks -> RankWindow rows, with the estimates of the live engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from stragd.replay.recording import ROW, RecordingError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

LIVE_STEPS = 100
LIVE_NS = 30e9
"""A live window ends after so many steps or so many nanoseconds, whichever comes first."""
WINDOWS = 64
"""Least windows of a recording, where it has so many steps: an episode of a twentieth of it then
fills three windows, which is what the scorer needs to confirm and to date it."""
TRIM = 0.1
MAX_TIME_NS = 1 << 62
MAX_CELLS = 50_000_000
"""Most rows of a recording, and most steps of all its signatures together."""
SOURCE_DEVICE, SOURCE_GLOO = 1, 3


@dataclass
class RankSteps:
    """Steps of one rank, oldest first; times in nanoseconds."""

    rank: int
    signature: int
    number: NDArray[np.int64]  # the recording's own step numbers, increasing
    end: Floats  # time at the step's end
    wall: Floats
    busy: Floats  # time with at least one collective in flight
    class_id: int = 0
    collectives: float = 0.0  # per step
    source: int = SOURCE_DEVICE
    zero_ns: int = 0  # what ``end`` counts from, ns since the epoch


def busy_time(start: Floats, end: Floats) -> float:
    """Length of the union of the intervals [start, end), in their unit."""
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    begin, until = start[order], np.maximum.accumulate(end[order])
    covered = np.maximum(begin[1:], until[:-1])
    return float(until[0] - begin[0] + np.maximum(until[1:] - covered, 0.0).sum())


def trimmed(values: Floats) -> tuple[float, float]:
    """10 % trimmed mean and its standard error (NaN below three values).

    The error comes from the winsorised variance (Tukey and McLaughlin 1963), as in
    ``rscore/src/window/mean.rs``.
    """
    n = len(values)
    if n == 0:
        return math.nan, math.nan
    ordered = np.sort(values)
    cut = int(n * TRIM)
    kept = ordered[cut : n - cut]
    h = len(kept)
    mean = float(kept.mean())
    if n < 3:
        return mean, math.nan
    clipped = np.clip(ordered, kept[0], kept[-1])
    squares = float(((clipped - clipped.mean()) ** 2).sum())
    return mean, math.sqrt(squares / (h * (h - 1)))


def steps_per_window(steps: int, wall_ns: float, stride: float = 1.0) -> int:
    """How many recorded steps make a window.

    What a live window holds, and fewer where the recording would not fill `WINDOWS` of them.
    ``wall_ns`` is a step's usual time (NaN where the recording has no unit), ``stride`` how many
    steps of the job pass from one recorded step to the next.
    """
    live = LIVE_STEPS / max(stride, 1.0)
    if wall_ns > 0:
        live = min(live, LIVE_NS / (wall_ns * max(stride, 1.0)))
    return max(1, int(min(live, steps / WINDOWS)))


def cut(
    ranks: Sequence[RankSteps],
    job: int,
    world_size: int,
    per_window: int | None = None,
    has_unit: bool = True,
) -> tuple[list[NDArray[np.void]], int]:
    """Rows of all windows, and the steps per window that were chosen.

    Every window covers the same step numbers of all ranks. ``comm``, the transfer time, is the
    shortest busy time among the ranks of one signature, step by step: whoever is waited for has
    hardly any wait in it.
    """
    numbers = np.unique(np.concatenate([rank.number for rank in ranks]))
    if len({rank.signature for rank in ranks}) * len(numbers) > MAX_CELLS:
        raise RecordingError(f"its stages have more than {MAX_CELLS} steps in all: cut it")
    if per_window is None:
        walls = np.concatenate([rank.wall for rank in ranks])
        usual = float(np.median(walls)) if has_unit else math.nan
        # Sampled recordings leave steps out; a window is to span as much of the job as live.
        gaps = np.diff(numbers)
        stride = float(np.median(gaps)) if len(gaps) else 1.0
        per_window = steps_per_window(len(numbers), usual, stride)
    if len(ranks) * len(numbers) // per_window > MAX_CELLS:
        raise RecordingError(f"more than {MAX_CELLS} rows: take longer windows (--window-steps)")
    comm = _transfer(ranks, numbers)
    windows = []
    bounds = [np.searchsorted(rank.number, numbers[::per_window]) for rank in ranks]
    starts = range(0, len(numbers), per_window)
    for window, first in enumerate(starts):
        # The rest at the end is a window of its own only where it is half a window.
        if window and len(numbers) - first < per_window / 2:
            break
        rows = np.zeros(len(ranks), dtype=ROW)
        filled = 0
        for rank, bound in zip(ranks, bounds, strict=True):
            begin = int(bound[window])
            end = int(bound[window + 1]) if window + 1 < len(bound) else len(rank.number)
            if begin < end:
                row = rows[filled]
                _fill(row, rank, begin, end, comm[rank.signature][first : first + per_window])
                row["job"], row["world_size"], row["window"] = job, world_size, window
                filled += 1
        if filled:
            windows.append(rows[:filled])
    if not windows:
        raise RecordingError("it holds no whole step: record for longer")
    return windows, per_window


def _fill(row: np.void, rank: RankSteps, begin: int, end: int, comm: Floats) -> None:
    wall, busy = rank.wall[begin:end], rank.busy[begin:end]
    row["rank"], row["signature"], row["class_id"] = rank.rank, rank.signature, rank.class_id
    row["first_step"], row["last_step"] = rank.number[begin], rank.number[end - 1]
    row["steps"], row["source"] = end - begin, rank.source
    row["start_ns"] = _clock(rank, rank.end[begin] - wall[0])
    row["end_ns"] = row["time_ns"] = _clock(rank, rank.end[end - 1])
    row["wall"] = trimmed(wall)[0]
    row["own"], row["own_se"] = trimmed(wall - busy)
    total = trimmed(busy)[0]
    row["comm"] = min(trimmed(comm[np.isfinite(comm)])[0], total)
    row["wait"] = total - row["comm"]
    row["collectives"] = rank.collectives


def _clock(rank: RankSteps, time: float) -> int:
    """Time of day of a step's time, ns; a file can claim any."""
    return min(max(rank.zero_ns + int(time), 0), MAX_TIME_NS)


def _transfer(ranks: Sequence[RankSteps], numbers: NDArray[np.int64]) -> dict[int, Floats]:
    """Shortest busy time of every step among the ranks of each signature."""
    shortest: dict[int, Floats] = {}
    for rank in ranks:
        least = shortest.setdefault(rank.signature, np.full(len(numbers), np.inf))
        place = np.searchsorted(numbers, rank.number)
        least[place] = np.minimum(least[place], rank.busy)
    return shortest
