"""Time series, heat map and states of the dashboard's picture, as inline SVG."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dashboard_units import instants, ticks

LETTER = 6.1
"""Width of a letter of a chart's text, pixels, rather too wide."""
BELOW = 20
"""Height of the axis of time, pixels."""
Point = tuple[float, float]
_RED_TO_GREEN = (
    "a50026", "d73027", "f46d43", "fdae61", "fee08b", "ffffbf",
    "d9ef8b", "a6d96a", "66bd63", "1a9850", "006837",
)  # fmt: skip


class Line(NamedTuple):
    """A series: UNIX seconds and values."""

    name: str
    points: Sequence[Point]
    colour: str = ""
    dashed: bool = False


class Frame(NamedTuple):
    """Where and when a chart is drawn; ``regions`` are times of findings."""

    width: float
    height: float
    start: float
    end: float
    step: float
    regions: Sequence[Point] = ()

    def x(self, instant: float, left: float) -> float:
        return left + (self.width - left) * (instant - self.start) / (self.end - self.start)


def text(x: float, y: float, what: str, anchor: str = "end") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(what)}</text>'


def picture(frame: Frame, body: Iterable[str]) -> str:
    size = f'width="{frame.width:g}" height="{frame.height:g}"'
    return f"<svg {size}>{''.join(body)}</svg>"


def clock(instant: float, seconds: bool) -> str:
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.gmtime(instant))


def times(frame: Frame, left: float) -> str:
    """The axis of time with its grid."""
    shown = instants(frame.start, frame.end, int((frame.width - left) / 75))
    bottom = frame.height - BELOW
    parts = []
    for instant in shown:
        x = frame.x(instant, left)
        parts.append(f'<path class="grid" d="M{x:.1f} 0V{bottom}"/>')
        if x + 25 <= frame.width:
            label = clock(instant, seconds=any(i % 60 for i in shown))
            parts.append(text(x, frame.height - 5, label, "middle"))
    return "".join(parts)


def findings(frame: Frame, left: float) -> str:
    """The times of findings: shaded, with a dashed edge."""
    parts, bottom = [], frame.height - BELOW
    for begin, end in frame.regions:
        x, width = frame.x(begin, left), frame.x(end, left) - frame.x(begin, left)
        parts.append(f'<rect class="region" x="{x:.1f}" width="{width:.1f}" height="{bottom}"/>')
        parts.append(f'<path class="edge" d="M{x:.1f} 0V{bottom}"/>')
    return "".join(parts)


def stacked(series: Sequence[Line]) -> list[Line]:
    """Each on top of those before it."""
    below: dict[float, float] = {}
    made = []
    for line in series:
        for instant, value in line.points:
            below[instant] = below.get(instant, 0.0) + value
        made.append(line._replace(points=[(t, below[t]) for t, _ in line.points]))
    return made


def trace(line: Line, step: float, place: Callable[[Point], Point]) -> list[list[Point]]:
    """The parts of a line between its gaps, in pixels."""
    parts: list[list[Point]] = []
    before = float("-inf")
    for point in line.points:
        if point[0] - before > 1.5 * step:
            parts.append([])
        parts[-1].append(place(point))
        before = point[0]
    return parts


def curves(frame: Frame, series: Sequence[Line], unit: str, stack: bool, opacity: float) -> str:
    """Lines over time from 0 or below; ``opacity`` of what is under them, 0 to 1."""
    if stack:
        series = stacked(series)
    values = [value for line in series for _, value in line.points]
    low, high = min(0.0, *values), max(values)
    high += (high - low) * 0.08 or 1.0
    bottom = frame.height - BELOW
    marks = ticks(low, high, unit, max(2, int(bottom / 42)))
    left = max(len(label) for _, label in marks) * LETTER + 14

    def y(value: float) -> float:
        return bottom * (high - value) / (high - low)

    def place(point: Point) -> Point:
        return frame.x(point[0], left), y(point[1])

    parts = [times(frame, left)]
    for value, label in marks:
        parts.append(f'<path class="grid" d="M{left:.1f} {y(value):.1f}H{frame.width}"/>')
        parts.append(text(left - 6, max(9.0, y(value) + 4), label))
    for line in reversed(series):
        for part in trace(line, frame.step, place):
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in part)
            area = f"{path}L{part[-1][0]:.1f} {y(0):.1f}L{part[0][0]:.1f} {y(0):.1f}Z"
            if stack:  # what is further down lies on top of it
                parts.append(f'<path class="under" d="{area}"/>')
            if opacity:
                fill = f'fill="{line.colour}" fill-opacity="{opacity:g}"'
                parts.append(f'<path {fill} d="{area}"/>')
            dashes = ' stroke-dasharray="8 6"' if line.dashed else ""
            parts.append(f'<path class="line" stroke="{line.colour}"{dashes} d="{path}"/>')
    return picture(frame, [*parts, findings(frame, left)])


def bands(
    frame: Frame, series: Sequence[Line], colour: Callable[[float], str], gap: float, labels: float
) -> str:
    """A row per series from the top, coloured by value; ``labels`` is the room for their names."""
    bottom = frame.height - BELOW
    high = bottom / len(series)
    parts = [times(frame, labels)]
    for row, line in enumerate(series):
        top = row * high + high * gap / 2
        parts.append(text(labels - 6, top + high * (1 - gap) / 2 + 4, line.name))
        for begin, end, fill in runs(line, frame.step, colour):
            x, width = frame.x(begin, labels), frame.x(end, labels) - frame.x(begin, labels)
            parts.append(
                f'<rect x="{x:.2f}" y="{top:.2f}" width="{width + 0.3:.2f}" '
                f'height="{high * (1 - gap):.2f}" fill="{fill}"/>'
            )
    return picture(frame, parts)


def runs(
    line: Line, step: float, colour: Callable[[float], str]
) -> Iterable[tuple[float, float, str]]:
    """Begin, end and colour of values of the same colour; no run across a gap."""
    made: list[tuple[float, float, str]] = []
    for instant, value in line.points:
        fill = colour(value)
        if made and made[-1][2] == fill and instant - made[-1][1] < 1.5 * step:
            made[-1] = (made[-1][0], instant, fill)
            continue
        if made and instant - made[-1][1] < 1.5 * step:
            made[-1] = (made[-1][0], instant, made[-1][2])
        made.append((instant, instant, fill))
    return made


def diverging(share: float, steps: int, turned: bool) -> str:
    """Colour of ``share``, 0 to 1, of Grafana's RdYlGn, which runs from green to red."""
    share = min(1.0, max(0.0, share))
    share = round(share * (steps - 1)) / (steps - 1)
    place = (share if turned else 1 - share) * (len(_RED_TO_GREEN) - 1)
    before = min(int(place), len(_RED_TO_GREEN) - 2)
    ends = [bytes.fromhex(_RED_TO_GREEN[i]) for i in (before, before + 1)]
    mixed = [round(a + (b - a) * (place - before)) for a, b in zip(*ends, strict=True)]
    return "#" + bytes(mixed).hex()
