"""The Alibaba layout: CSV of each worker's own mini-batch time, normalised.

Columns (cluster-trace-gpu-v2020, mini-batch-time): ``worker``, ``gpu`` (share of a GPU that was
asked for, percent), ``time`` (iteration), ``batch_time_norm`` (time of the mini-batch, without a
unit). The mini-batch time is the worker's own work: waiting begins after it.
"""

from __future__ import annotations

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np

from stragd.replay.recording import (
    MAX_LINES,
    MAX_RANK,
    RecordedJob,
    Recording,
    RecordingError,
    key_of,
)
from stragd.replay.steps import RankSteps, cut

FORMAT = "alibaba-csv"
COLUMNS = ("worker", "gpu", "time", "batch_time_norm")
TICK_NS = 1e6
"""What one unit of the normalised time is taken for; no finding tells it."""


def matches(header: list[str]) -> bool:
    """Whether a CSV file with this header is of this layout."""
    return set(COLUMNS) <= set(header)


def read(path: Path, per_window: int | None = None) -> Recording:
    """Raises RecordingError."""
    own, shares, doubled = _load(path)
    workers = sorted(shares)
    place = np.array(list(own), dtype=np.int64)  # (worker, iteration)
    times = np.array(list(own.values())) * TICK_NS
    iterations, line = np.unique(place[:, 1], return_inverse=True)
    # Everybody waits for the slowest: its mini-batch is the step.
    wall = np.zeros(len(iterations))
    np.maximum.at(wall, line, times)
    end = np.cumsum(wall)
    job, world_size = key_of(path.name), workers[-1] + 1
    ranks = []
    order = np.lexsort((line, place[:, 0]))
    bounds = np.searchsorted(place[order, 0], [*workers, workers[-1] + 1])
    for worker, (begin, until) in zip(workers, pairwise(bounds), strict=True):
        mine = order[begin:until]
        at = line[mine]
        busy = wall[at] - times[mine]
        signature, class_id = key_of("mini-batch"), shares[worker]
        ranks.append(
            RankSteps(worker, signature, iterations[at], end[at], wall[at], busy, class_id)
        )
    windows, per_window = cut(ranks, job, world_size, per_window, has_unit=False)
    about = RecordedJob(
        path.stem,
        world_size,
        labels={worker: f"worker {worker}" for worker in workers},
        classes={share: f"{share} % of a GPU" for share in set(shares.values())},
        ranks=set(workers),
    )
    notes = ["times are normalised: costs are shares, without milliseconds"]
    if doubled:
        notes.append(f"{doubled} lines repeat a worker's iteration: the first one counts")
    steps = len(iterations)
    return Recording(FORMAT, {job: about}, windows, steps, per_window, has_unit=False, notes=notes)


def _load(path: Path) -> tuple[dict[tuple[int, int], float], dict[int, int], int]:
    """(worker, iteration) -> time, each worker's share of a GPU, and repeated lines."""
    own: dict[tuple[int, int], float] = {}
    shares: dict[int, int] = {}
    doubled = 0
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                if number > MAX_LINES:
                    raise RecordingError(f"more than {MAX_LINES} lines")
                worker, share, iteration = (_whole(row, name, number) for name in COLUMNS[:3])
                value = _number(row, COLUMNS[3], number)
                if (worker, iteration) in own:
                    doubled += 1
                    continue
                own[worker, iteration] = value
                shares[worker] = share
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordingError(f"not a readable CSV file: {error}") from None
    if not own:
        raise RecordingError("it has a header and no rows")
    return own, shares, doubled


def _whole(row: dict[str, str], name: str, line: int) -> int:
    limit = MAX_RANK if name == "worker" else 2**31 if name == "gpu" else 2**62
    try:
        value = int(row[name])
    except (TypeError, ValueError):
        value = -1
    if not 0 <= value <= limit:
        raise RecordingError(f"line {line}: {name} is {row[name]!r}, not a whole number")
    return value


def _number(row: dict[str, str], name: str, line: int) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = -1.0
    if not 0.0 < value < 1e9:
        raise RecordingError(f"line {line}: {name} is {row[name]!r}, not a time above 0")
    return value
