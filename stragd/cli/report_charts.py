"""The pictures of a report as inline SVG: heat map, bars, two lines. No script, no resource."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stragd.cli.numbers import ms
from stragd.cli.report_data import Picture, Row, Share

EDGES = (-0.1, -0.03, 0.03, 0.06, 0.12, 0.25, 0.5)
"""Ends of the colour classes: own work over the peers' median, minus one."""
NAMES = (
    "under -10 %", "-10 to -3 %", "as the peers", "3 to 6 %", "6 to 12 %", "12 to 25 %",
    "25 to 50 %", "over 50 %",
)  # fmt: skip


def colour(value: float) -> int | None:
    """The class of a cell, 0 (much faster) to 7 (half as slow again); None where not known."""
    if not math.isfinite(value):
        return None
    return sum(value >= edge for edge in EDGES)


def heat_row(row: Row) -> str:
    """One row of the heat map, as many units wide as it has cells."""
    paths: dict[int, list[str]] = {}
    kinds = [colour(float(value)) for value in row.cells]
    begin = 0
    for place in range(1, len(kinds) + 1):
        if place < len(kinds) and kinds[place] == kinds[begin]:
            continue
        kind = kinds[begin]
        if kind is not None:
            paths.setdefault(kind, []).append(f"M{begin} 0h{place - begin}v1h-{place - begin}z")
        begin = place
    drawn = "".join(f'<path class="h{kind}" d="{"".join(d)}"/>' for kind, d in paths.items())
    return svg(len(kinds), 1, drawn, "heat")


def svg(width: float, height: float, body: str, name: str, label: str = "") -> str:
    """A picture that fills its box; ``label`` is for who cannot see it."""
    about = f' role="img" aria-label="{label}"' if label else ' aria-hidden="true"'
    return (
        f'<svg class="{name}" viewBox="0 0 {width:g} {height:g}" preserveAspectRatio="none"'
        f"{about}>{body}</svg>"
    )


def bar(share: Share, whole: float) -> str:
    """own, wait and comm side by side; ``whole`` ms fill the box."""
    parts, place = [], 0.0
    for name, value in (("own", share.own), ("wait", share.wait), ("comm", share.comm)):
        wide = 100 * value / whole if math.isfinite(value) and whole > 0 else 0.0
        parts.append(f'<rect class="{name}" x="{place:.2f}" y="0" width="{wide:.2f}" height="1"/>')
        place += wide
    return svg(100, 1, "".join(parts), "bar")


def lines(picture: Picture) -> tuple[str, float, float]:
    """Own work of the blamed rank and its peers' over the windows; the picture, floor and top."""
    series = {
        "peers": [float(value) for value in picture.peers],
        "blamed": [float(value) for value in picture.own],
    }
    known = [v for values in series.values() for v in values if math.isfinite(v)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = (high - low) * 0.1 or 1.0
    low, high = max(0.0, low - room), high + room
    width = max(1, len(picture.times) - 1)
    body = "".join(
        f'<path class="{name}" d="{_trace(values, low, high)}"/>' for name, values in series.items()
    )
    label = f"own work of rank {picture.rank} and its peers, {ms(low)} to {ms(high)} ms"
    return svg(width, 100, body, "lines", label), low, high


def _trace(values: Sequence[float], low: float, high: float) -> str:
    """A path through what is known; a gap where nothing is."""
    parts, down = [], False
    for place, value in enumerate(values):
        if not math.isfinite(value):
            down = False
            continue
        parts.append(f"{'L' if down else 'M'}{place} {100 * (high - value) / (high - low):.1f}")
        down = True
    return "".join(parts)


def marks(places: Iterable[float], width: int) -> str:
    """Where findings begin, above the heat map."""
    body = "".join(f'<path class="mark" d="M{place:g} 0v1"/>' for place in places)
    return svg(width, 1, body, "marks")


def legend() -> str:
    """The colour classes."""
    return "".join(f'<span><i class="h{kind}"></i>{name}</span>' for kind, name in enumerate(NAMES))
