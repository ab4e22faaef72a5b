"""Remarks for a person: each once, and not more than a screen of them."""

from __future__ import annotations

from collections.abc import Iterable

MAX_NOTES = 64
MAX_LENGTH = 200


class Notes:
    """A bounded, ordered set of lines; the newest give way when it is full."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._more = 0

    def add(self, line: str) -> None:
        """Remember a line unless it is known."""
        line = "".join(c if c.isprintable() else "?" for c in line[:MAX_LENGTH])
        if line in self._lines:
            return
        if len(self._lines) < MAX_NOTES:
            self._lines[line] = None
        else:
            self._more += 1

    def extend(self, lines: Iterable[str]) -> None:
        """Remember several."""
        for line in lines:
            self.add(line)

    def lines(self) -> list[str]:
        """All lines, oldest first."""
        more = [f"and {self._more} more remarks"] if self._more else []
        return [*self._lines, *more]
