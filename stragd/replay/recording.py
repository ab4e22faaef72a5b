"""A recording as the scorer takes it, and the one error of every reader."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from stragd._rscore import RANK_WINDOW_BYTES, RANK_WINDOW_LAYOUT

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_BYTES = 2 << 30
"""Largest recording that is read, bytes, after decompression."""
MAX_ROWS = 50_000_000
"""Most rows or events of one recording."""
MAX_LINES = 5_000_000
"""Most lines of a text recording."""
MAX_RANKS = 1 << 17
MAX_RANK = (1 << 20) - 1
"""Largest rank that the scorer accepts."""

ROW = np.dtype(
    {
        "names": [name for name, _, _ in RANK_WINDOW_LAYOUT],
        "formats": [kind for _, kind, _ in RANK_WINDOW_LAYOUT],
        "offsets": [offset for _, _, offset in RANK_WINDOW_LAYOUT],
        "itemsize": RANK_WINDOW_BYTES,
    }
)
"""One RankWindow (`rscore/src/window/mod.rs`)."""


class RecordingError(Exception):
    """A file that cannot be replayed: the thing, the reason and the way out in one line."""


@dataclass
class RecordedJob:
    """One job of a recording and the recording's own names."""

    name: str
    world_size: int
    labels: dict[int, str] = field(default_factory=dict)  # rank -> "dp0/stage0"
    hosts: dict[int, str] = field(default_factory=dict)  # rank -> host
    classes: dict[int, str] = field(default_factory=dict)  # class id -> "nvidia/H200"
    stages: dict[int, int] = field(default_factory=dict)  # signature -> pipeline stage
    ranks: set[int] = field(default_factory=set)


@dataclass
class Recording:
    """Everything that a reader has to say about one file."""

    format: str
    jobs: dict[int, RecordedJob]
    windows: list[NDArray[np.void]]  # RankWindow rows of one job and window each, in order
    steps: int  # steps of the longest job
    steps_per_window: int | None = None  # None where the recording was cut already
    has_clock: bool = False  # the times of the rows are times of day
    has_unit: bool = True  # False where times are normalised: no milliseconds can be told
    notes: list[str] = field(default_factory=list)
    findings: list[dict[str, Any]] = field(default_factory=list)
    """In the scorer's terms; of a recording without windows only (`totals`)."""


def key_of(text: str) -> int:
    """A number for a job or a signature that is the same in every run, never 0."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") or 1
