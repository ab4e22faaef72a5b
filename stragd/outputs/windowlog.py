"""The last windows of all jobs, for `stragctl record`; bounded, and read by other threads."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_BYTES = 8 << 20
"""Rows that are kept; a node of 8 ranks fills this in days."""
REPLY_BYTES = 4 << 20
"""Rows of one answer, of which there is always at least a window."""


@dataclass(frozen=True)
class Entry:
    """One window of one job."""

    number: int  # counts the windows of all jobs since the daemon's start, from 1
    job: int
    rows: bytes


@dataclass(frozen=True)
class Part:
    """Windows after a number that the reader had."""

    entries: list[Entry]
    after: int  # to ask with next
    missed: int  # windows that were dropped before they were read


class WindowLog:
    """Written by the main loop, read by the control threads."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._entries: deque[Entry] = deque()
        self._bytes = 0
        self._number = 0
        self._lock = threading.Lock()

    def add(self, job: int, rows: NDArray[np.void]) -> None:
        """Keep a window; the oldest ones go when there is no room."""
        data = rows.tobytes()
        with self._lock:
            self._number += 1
            self._entries.append(Entry(self._number, job, data))
            self._bytes += len(data)
            while self._bytes > self._kept_bytes and len(self._entries) > 1:
                self._bytes -= len(self._entries.popleft().rows)

    def since(self, after: int | None, job: int | None = None) -> Part:
        """Windows after number ``after`` (None: of now on), perhaps of one job only.

        Of windows that were dropped it is not known whose they were: ``missed`` counts them all.
        """
        with self._lock:
            newest = self._number
            entries = list(self._entries)
        # A number from another life of the daemon: begin anew with what there is.
        if after is None or after > newest:
            return Part([], newest, 0)
        oldest = entries[0].number if entries else newest + 1
        missed = max(0, oldest - after - 1)
        part: list[Entry] = []
        size = 0
        for entry in entries:
            if entry.number <= after or job not in (None, entry.job):
                continue
            size += len(entry.rows)
            if part and size > REPLY_BYTES:
                return Part(part, part[-1].number, missed)
            part.append(entry)
        return Part(part, newest, missed)
