"""Text for a terminal: harmless, measured in cells, and styled by name.

Every string that reaches a screen may have been written by a job (its name, its host, its
library paths), so it passes `clean` first: no escape sequence of a job reaches the terminal
of the person who reads about it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}

_SGR = {
    "title": "1",
    "dim": "2",
    "selected": "7",
    "good": "32",
    "warn": "33",
    "bad": "1;31",
}
_SGR_NO_COLOUR = {"title": "1", "dim": "", "selected": "7", "good": "", "warn": "", "bad": "1"}


class Span(NamedTuple):
    """A piece of a line in one style: "", title, dim, selected, good, warn or bad."""

    text: str
    style: str = ""


Line = list[Span]


def clean(value: object, limit: int = 400) -> str:
    """``value`` as one line without control, format or unassigned characters."""
    text = str(value)
    if len(text) > limit:
        text = text[:limit]
    if text.isascii() and text.isprintable():
        return text
    return "".join("?" if unicodedata.category(c) in _UNSAFE else c for c in text)


def to_ascii(value: Any) -> Any:
    """An answer with "?" for what is not ASCII, before anything is measured in columns."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("ascii", "replace").decode()
    if isinstance(value, list):
        return [to_ascii(item) for item in value]
    if isinstance(value, dict):
        return {key: to_ascii(item) for key, item in value.items()}
    return value


def cells(text: str) -> int:
    """Columns that ``text`` takes on a terminal."""
    if text.isascii():
        return len(text)
    width = 0
    for char in text:
        if unicodedata.combining(char):
            continue
        width += 2 if unicodedata.east_asian_width(char) in "WF" else 1
    return width


def cut(text: str, width: int, mark: str = "~") -> str:
    """``text`` in at most ``width`` columns; ``mark`` at the end says that something is missing."""
    if width <= 0:
        return ""
    if cells(text) <= width:
        return text
    room = width - cells(mark)
    if room < 0:
        return mark[:width]
    kept: list[str] = []
    for char in text:
        room -= cells(char)
        if room < 0:
            break
        kept.append(char)
    return "".join(kept) + mark


def fit(text: str, width: int, align: str = "<", mark: str = "~") -> str:
    """``text`` in exactly ``width`` columns."""
    text = cut(text, width, mark)
    space = " " * (width - cells(text))
    return space + text if align == ">" else text + space


def wrap(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` broken at spaces; lines after the first begin with ``indent``."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if not line:
            line = word
        elif cells(line) + 1 + cells(word) <= width:
            line += " " + word
        else:
            lines.append(cut(line, width))
            line = indent + word
    if line:
        lines.append(cut(line, width))
    return lines


def cut_line(line: Iterable[Span], width: int) -> Line:
    """``line`` in at most ``width`` columns."""
    kept: Line = []
    for span in line:
        room = width - sum(cells(s.text) for s in kept)
        if room <= 0:
            break
        kept.append(Span(cut(span.text, room), span.style))
    return kept


def plain(line: Iterable[Span]) -> str:
    """The text of a line, without styles and trailing space."""
    return "".join(span.text for span in line).rstrip()


def paint(line: Iterable[Span], colour: bool) -> str:
    """The line with ANSI styles; without colour only bold and reverse remain."""
    table = _SGR if colour else _SGR_NO_COLOUR
    parts: list[str] = []
    for text, style in line:
        code = table.get(style, "")
        parts.append(f"\x1b[{code}m{text}\x1b[0m" if code else text)
    return "".join(parts)


def table(
    header: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()
) -> list[str]:
    """Rows under a header, each column as wide as its widest cell; ``right`` is aligned right."""
    aligned = set(right)
    widths = [cells(name) for name in header]
    for row in rows:
        for i, cell in enumerate(row):
            widths[i] = max(widths[i], cells(cell))
    lines = []
    for row in [header, *rows]:
        line = "  ".join(
            fit(cell, widths[i], ">" if i in aligned else "<") for i, cell in enumerate(row)
        )
        lines.append(line.rstrip())
    return lines
