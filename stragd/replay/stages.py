"""The ByteDance layout: a parquet table of the operations of pipeline-parallel workers.

Columns (StragglerAnalysis, "What-if", OSDI 2025): ``dp_rank``, ``stage``, ``rank``, ``step``,
``optype``, ``start_ts`` (s from the step's start), ``duration`` (s). Steps are sampled, so each
is measured from its own start. Only communication is read: compute rows are dropped unseen.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stragd.replay.recording import (
    MAX_RANK,
    MAX_RANKS,
    MAX_ROWS,
    RecordedJob,
    Recording,
    RecordingError,
    key_of,
)
from stragd.replay.steps import RankSteps, busy_time, cut

if TYPE_CHECKING:
    from numpy.typing import NDArray

FORMAT = "bytedance-parquet"
MAGIC = b"PAR1"
COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration")
COMMUNICATION = (
    "send", "recv", "all-reduce", "reduce-scatter", "all-gather", "all-to-all", "broadcast",
    "barrier",
)  # fmt: skip

MAX_SECONDS = 1e6
"""Longest step that is believed."""


def read(path: Path, per_window: int | None = None) -> Recording:
    """Raises RecordingError."""
    table = _load(path)
    if not len(table["rank"]):
        raise RecordingError("it has no communication events, and compute events are not used")
    ranks, labels, stages = _ranks(table)
    numbers = sorted(labels)
    # Ranks of one tensor-parallel group are folded into the first of them.
    folded = math.gcd(*(b - a for a, b in pairwise(numbers)), 0) or 1
    job = key_of(path.name)
    world_size = numbers[-1] + folded
    windows, per_window = cut(ranks, job, world_size, per_window)
    about = RecordedJob(path.stem, world_size, labels, stages=stages, ranks=set(numbers))
    steps = len(np.unique(table["step"]))
    return Recording(FORMAT, {job: about}, windows, steps, per_window)


def _load(path: Path) -> dict[str, NDArray[Any]]:
    """Communication rows, sorted by rank, step and start."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError as error:
        raise RecordingError(
            f"parquet needs pyarrow, which does not load ({error}): pip install 'stragd[parquet]'"
        ) from None
    try:
        file = pyarrow.parquet.ParquetFile(path)
        missing = [name for name in COLUMNS if name not in file.schema_arrow.names]
        if missing:
            raise RecordingError(f"column {missing[0]} is missing (needed: {', '.join(COLUMNS)})")
        if file.metadata.num_rows > MAX_ROWS:
            raise RecordingError(f"{file.metadata.num_rows} rows, at most {MAX_ROWS} are read")
        table = file.read(columns=list(COLUMNS))
        kinds = table["optype"].cast("string")
        wanted = [k for k in kinds.unique().to_pylist() if k and k.endswith(COMMUNICATION)]
        chosen = pyarrow.compute.is_in(kinds, value_set=pyarrow.array(wanted, "string"))
        table = table.filter(chosen)
        columns = {}
        for name in COLUMNS:
            if name != "optype":
                kind = "float64" if name in ("start_ts", "duration") else "int64"
                columns[name] = table[name].cast(kind).to_numpy()
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RecordingError(f"not a readable parquet file: {reason}") from None
    return _checked(columns)


def _checked(table: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    rank, step, start, length = (table[k] for k in ("rank", "step", "start_ts", "duration"))
    for name in ("rank", "step", "dp_rank", "stage"):
        values = table[name]
        if values.dtype.kind != "i" or (values < 0).any():
            raise RecordingError(f"column {name} has values that are empty or below 0")
    # A comparison with NaN is false, so what is empty is not good either.
    good = (start >= 0) & (start < MAX_SECONDS) & (length >= 0) & (length < MAX_SECONDS)
    if not good.all():
        raise RecordingError(
            f"{int((~good).sum())} rows have a start_ts or duration that is no time within a step"
        )
    if len(rank) and (rank.max() > MAX_RANK or len(np.unique(rank)) > MAX_RANKS):
        raise RecordingError(f"ranks beyond {MAX_RANK}, or more than {MAX_RANKS} of them")
    order = np.lexsort((start, step, rank))
    return {name: values[order] for name, values in table.items()}


def _ranks(
    table: dict[str, NDArray[Any]],
) -> tuple[list[RankSteps], dict[int, str], dict[int, int]]:
    rank, step, start = table["rank"], table["step"], table["start_ts"]
    new = np.flatnonzero((np.diff(rank) != 0) | (np.diff(step) != 0)) + 1
    bounds = [0, *new.tolist(), len(rank)]
    collected: dict[int, list[tuple[int, float, float, int]]] = {}
    labels: dict[int, str] = {}
    signatures: dict[int, int] = {}
    stages: dict[int, int] = {}
    for begin, end in pairwise(bounds):
        number = int(rank[begin])
        stage = int(table["stage"][begin])
        since = start[begin:end].astype(np.float64) * 1e9
        until = since + table["duration"][begin:end].astype(np.float64) * 1e9
        wall = float(until.max())
        collected.setdefault(number, []).append(
            (int(step[begin]), wall, busy_time(since, until), end - begin)
        )
        labels[number] = f"dp{int(table['dp_rank'][begin])}/stage{stage}"
        signatures[number] = key_of(f"stage {stage}")  # one stage issues one sequence
        stages[signatures[number]] = stage
    # The steps that were sampled are put one behind the other: the file has no clock.
    longest: dict[int, float] = {}
    for steps in collected.values():
        for number, wall, _, _ in steps:
            longest[number] = max(longest.get(number, 0.0), wall)
    begins = dict(zip(sorted(longest), _begins(longest), strict=True))
    ranks = []
    for number, steps in collected.items():
        columns = np.array(steps, dtype=np.float64).T
        whole = columns[1] > columns[2]  # a step that is nothing but communication has no own time
        numbers = columns[0][whole].astype(np.int64)
        wall = columns[1][whole]
        end = np.array([begins[int(n)] for n in numbers]) + wall
        if len(numbers):
            busy, count = columns[2][whole], float(columns[3][whole].mean())
            ranks.append(
                RankSteps(number, signatures[number], numbers, end, wall, busy, collectives=count)
            )
    if not ranks:
        raise RecordingError("no step has time outside of its communication")
    return ranks, labels, stages


def _begins(longest: dict[int, float]) -> list[float]:
    walls = [longest[number] for number in sorted(longest)]
    return [float(value) for value in np.cumsum([0.0, *walls[:-1]])]
