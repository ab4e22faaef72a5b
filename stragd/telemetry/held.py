"""Kernel files that are read every window: opened once, read from their start each time.

A descriptor of /proc/PID stays with the process it was opened for, so that a pid used again can
never answer for another; and a read costs a fifth of open, read and close.
"""

from __future__ import annotations

import os

FIRST_LIMIT = 4096


class HeldFile:
    """One file. Reading it never raises."""

    __slots__ = ("_descriptor", "_limit", "path")

    def __init__(self, path: str, limit: int = FIRST_LIMIT) -> None:
        self.path, self._limit = path, limit
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            self._descriptor = -1

    @property
    def open(self) -> bool:
        """Whether it could be opened."""
        return self._descriptor >= 0

    def read(self) -> bytes | None:
        """What it holds now, at most the limit; None where it is gone or does not answer."""
        if self._descriptor < 0:
            return None
        try:
            return os.pread(self._descriptor, self._limit, 0)
        except OSError:
            return None

    def close(self) -> None:
        """Let go of it."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close
