"""Remarks for a person: each once, and not more than a screen of them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NOTES = 64
MAX_LENGTH = 200


class Notes:
    """A bounded, ordered set of lines; the one that was said longest ago gives way to a new one."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}

    def add(self, line: str) -> None:
        """Remember a line; said again, it is the newest."""
        line = "".join(c if c.isprintable() else "?" for c in line[:MAX_LENGTH])
        self._lines.pop(line, None)
        if len(self._lines) >= MAX_NOTES:
            del self._lines[next(iter(self._lines))]
        self._lines[line] = None

    def extend(self, lines: Iterable[str]) -> None:
        """Remember several."""
        for line in lines:
            self.add(line)

    def lines(self) -> list[str]:
        """All lines, oldest first."""
        return list(self._lines)
