"""TraceLens' summary of collectives: totals per rank, without times of single steps.

Columns (``nccl_summary_long``): ``rank``, ``Process Group Name``, ``Collective name``, ``dtype``,
``In msg nelems``, ``Group size``, ``dur_sum``, ``dur_std`` (µs), ``operation_count``.

Such a file has no steps and no wall time, so there is no own time to score. What it does say is
who waits least: a collective ends for all its ranks together, so a rank that is in it for a
shorter time than all others came last, and everybody waited for it. That rank is named where, in
one kind of collective,

- the gap to the next rank is no accident of the measured scatter: it exceeds z standard errors,
  z from the scorer's false-alarm rate, corrected for the number of ranks;
- it is worth a finding: at least a tenth of the longest time in those collectives, which is what
  the scorer takes for more than a natural difference;

and it is confirmed where two kinds, which share no operation, name the same rank.
"""

from __future__ import annotations

import csv
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stragd.config import Config
from stragd.replay.recording import (
    MAX_LINES,
    MAX_RANK,
    RecordedJob,
    Recording,
    RecordingError,
    key_of,
)

FORMAT = "tracelens-totals"
COLUMNS = ("rank", "Collective name", "operation_count", "dur_sum", "dur_std")
KIND = ("Process Group Name", "Collective name", "dtype", "In msg nelems", "Group size")
NATURAL = 0.1
MIN_OPERATIONS = 30
"""Least operations of a kind: a standard error of fewer is none."""
US = 1e3


@dataclass
class _Kind:
    """One kind of collective: times of all ranks, µs."""

    total: dict[int, float] = field(default_factory=dict)
    error: dict[int, float] = field(default_factory=dict)  # standard error of the total
    operations: int = 0


def matches(header: list[str]) -> bool:
    """Whether a CSV file with this header is of this layout."""
    return set(COLUMNS) <= set(header)


def read(path: Path, per_window: int | None = None) -> Recording:
    """Raises RecordingError. ``per_window`` has no meaning here: there are no steps to cut."""
    kinds, ranks = _load(path)
    job = key_of(path.name)
    world_size = max(ranks) + 1
    labels = {rank: f"rank {rank}" for rank in ranks}
    about = RecordedJob(path.stem, world_size, labels, ranks=ranks)
    notes = ["totals only: without steps, costs are shares of the longest time in collectives"]
    recording = Recording(FORMAT, {job: about}, [], 0, notes=notes)
    named = [name for kind in kinds.values() if (name := _waited_for(kind, ranks)) is not None]
    for rank in sorted(set(named)):
        state = "confirmed" if named.count(rank) >= 2 else "suspect"
        recording.findings.append(_finding(job, rank, state, kinds, ranks))
    return recording


def _waited_for(kind: _Kind, ranks: set[int]) -> int | None:
    """The rank that everybody waits for in these collectives."""
    if set(kind.total) != ranks or len(ranks) < 3 or kind.operations < MIN_OPERATIONS:
        return None
    last, second = sorted(ranks, key=lambda rank: kind.total[rank])[:2]
    gap = kind.total[second] - kind.total[last]
    chance = Config().scoring.false_alarms_per_million / 1e6 / len(ranks)
    limit = -statistics.NormalDist().inv_cdf(chance)
    error = math.hypot(kind.error[last], kind.error[second])
    if gap > limit * error and gap >= NATURAL * max(kind.total.values()):
        return last
    return None


def _finding(
    job: int, rank: int, state: str, kinds: dict[tuple[str, ...], _Kind], ranks: set[int]
) -> dict[str, Any]:
    """In the terms of the scorer's findings; the cost is bounded by the next to be waited for."""
    everywhere = [kind for kind in kinds.values() if set(kind.total) == ranks]
    total = {r: sum(kind.total[r] for kind in everywhere) for r in ranks}
    others = sorted(value for r, value in total.items() if r != rank)
    gain = max(others[0] - total[rank], 0.0)
    error = math.sqrt(sum(kind.error[rank] ** 2 for kind in everywhere))
    longest = max(total.values())
    spread = statistics.NormalDist().cdf(-gain / error) if error else 0.0
    confidence = min(max(1.0 - len(ranks) * spread, 0.5), 0.9999)
    operations = sum(kind.operations for kind in everywhere)
    return {
        "id": 0, "job": job, "kind": "straggler", "state": state, "rank": rank,
        "class_id": None, "signature": None, "since_window": 0, "since_time_ns": 0, "window": 0,
        "slowdown": math.nan,  # own time is not in the file
        "cost_ns": None, "cost_low_ns": None, "cost_high_ns": None,
        "cost_fraction": gain / longest, "confidence": confidence,
        "basis": "peers", "own_ns": math.nan, "peers_own_ns": math.nan, "peers": len(others),
        "evidence": [
            f"is in collectives for {total[rank] / US:.0f} ms in all, the median of its "
            f"{len(others)} peers for {statistics.median(others) / US:.0f} ms: it comes last, "
            "and the others wait for it",
            f"over {operations} collectives, every other rank waits at least "
            f"{gain / US:.0f} ms longer (± {1.96 * error / US:.0f} ms)",
        ],
    }  # fmt: skip


def _load(path: Path) -> tuple[dict[tuple[str, ...], _Kind], set[int]]:
    kinds: dict[tuple[str, ...], _Kind] = {}
    ranks: set[int] = set()
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file), 2):
                if line > MAX_LINES:
                    raise RecordingError(f"more than {MAX_LINES} lines")
                rank = int(_number(row, "rank", line))
                count = int(_number(row, "operation_count", line))
                if rank > MAX_RANK:
                    raise RecordingError(f"line {line}: rank {rank} is beyond {MAX_RANK}")
                ranks.add(rank)
                kind = kinds.setdefault(tuple(row.get(name) or "" for name in KIND), _Kind())
                # The scatter of a single operation is not known, and not written.
                scatter = _number(row, "dur_std", line) if row["dur_std"] else 0.0
                kind.total[rank] = kind.total.get(rank, 0.0) + _number(row, "dur_sum", line)
                kind.error[rank] = math.hypot(kind.error.get(rank, 0.0), scatter * math.sqrt(count))
                kind.operations = max(kind.operations, count)
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordingError(f"not a readable CSV file: {error}") from None
    if not ranks:
        raise RecordingError("it has a header and no rows")
    return kinds, ranks


def _number(row: dict[str, str], name: str, line: int) -> float:
    try:
        value = float(row[name])
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 <= value < 1e15:
        raise RecordingError(f"line {line}: {name} is {row[name]!r}, not a number of 0 or more")
    return value
