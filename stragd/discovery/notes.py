"""Remarks for a person: each once, and not more than a screen of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

MAX_NOTES = 64
MAX_LENGTH = 200
KEEP_SECONDS = 3600.0


class Notes:
    """A bounded, ordered set of lines; what was not said for an hour is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[str, float] = {}  # line -> when it was last said, oldest first

    def add(self, line: str) -> None:
        """Remember a line; said again, it is the newest. When full, the oldest gives way."""
        line = "".join(c if c.isprintable() else "?" for c in line[:MAX_LENGTH])
        self._lines.pop(line, None)
        if len(self._lines) >= MAX_NOTES:
            del self._lines[next(iter(self._lines))]
        self._lines[line] = self._clock()

    def extend(self, lines: Iterable[str]) -> None:
        """Remember several."""
        for line in lines:
            self.add(line)

    def lines(self) -> list[str]:
        """All lines, oldest first."""
        oldest = self._clock() - KEEP_SECONDS
        self._lines = {line: said for line, said in self._lines.items() if said >= oldest}
        return list(self._lines)
