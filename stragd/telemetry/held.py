"""Kernel files that are read every window: opened once, read from their start each time.

A descriptor of /proc/PID stays with the process it was opened for, so that a pid used again can
never answer for another; and a read costs a fifth of open, read and close.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

FIRST_LIMIT = 4096


class HeldFile:
    """One file. Reading it never raises."""

    __slots__ = ("_limit", "descriptor", "path")

    def __init__(self, path: str, limit: int = FIRST_LIMIT) -> None:
        self.path, self._limit = path, limit
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (OSError, ValueError):
            self.descriptor = -1

    @property
    def open(self) -> bool:
        """Whether it could be opened."""
        return self.descriptor >= 0

    def read(self) -> bytes | None:
        """What it holds now, at most the limit; None where it is gone or does not answer."""
        if self.descriptor < 0:
            return None
        try:
            return os.pread(self.descriptor, self._limit, 0)
        except OSError:
            return None

    def close(self) -> None:
        """Let go of it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    __del__ = close


class HeldFiles:
    """Files that are read together, at less cost than one by one."""

    def __init__(self, paths: Iterable[str], limit: int = FIRST_LIMIT) -> None:
        self._files = [HeldFile(path, limit) for path in paths]
        self._limit = limit
        self._descriptors = [file.descriptor for file in self._files]

    def read(self) -> list[bytes | None]:
        """What each holds now, as ``HeldFile.read``."""
        if self._descriptors:
            try:
                return [os.pread(each, self._limit, 0) for each in self._descriptors]
            except OSError:  # one does not answer, and may never do
                self._descriptors = []
        return [file.read() for file in self._files]

    def close(self) -> None:
        """Let go of them."""
        self._descriptors = []
        for file in self._files:
            file.close()
