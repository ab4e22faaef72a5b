"""The dashboard as one HTML page, from ``grafana/stragd.json`` and Prometheus' answers.

For a picture where there is no Grafana to photograph: layout, titles, queries, legends, units,
colours and columns are the file's. What this cannot draw (a type of panel, a unit, an override) is
a ValueError with the panel's title, so that nothing is left out in silence.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from dashboard_charts import LETTER, Frame, Line, Point, bands, clock, curves, diverging, trace
from dashboard_units import formatted

Panel = Mapping[str, Any]
Series = Sequence[Mapping[str, Any]]
Answers = Mapping[tuple[int, str], Series]
"""Series of Prometheus by id of the panel and refId of the query."""

WIDTH = 1240
COLUMN, ROW, GAP, TITLE, LEGEND = 51, 38, 8, 30, 18
COLOURS = {
    "green": "#73bf69", "orange": "#ff9830", "red": "#f2495c", "text": "#ccccdc",
}  # fmt: skip
PALETTE = (
    "#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#705da0",
    "#37872d", "#fade2a", "#447ebc", "#c15c17",
)  # fmt: skip
STYLE = """
body{margin:0;width:1240px;background:#111217;color:#ccccdc;
  font:13px/1.4 "DejaVu Sans Condensed","DejaVu Sans",sans-serif}
header{display:flex;gap:10px;align-items:center;padding:12px 12px 4px}
h1{font-size:17px;font-weight:500;margin:0 auto 0 0}
header span{border:1px solid #34363d;background:#181b1f;padding:3px 9px;border-radius:2px}
header b{color:#6e9fff;font-weight:500;margin-right:7px}
main{position:relative;margin:6px 12px 12px}
section,h2{position:absolute;box-sizing:border-box;overflow:hidden}
section{background:#181b1f;border:1px solid #25272d;border-radius:2px;padding:0 8px}
h2{font-size:15px;font-weight:500;margin:0;padding-top:5px}
h3{font-size:13px;font-weight:500;margin:0;line-height:30px;white-space:nowrap}
svg{display:block} text{fill:#a7a9b3;font-size:11.5px}
.grid{stroke:#2a2d34}.line{fill:none;stroke-width:1.4;stroke-linejoin:round}.under{fill:#181b1f}
.region{fill:#f2495c;fill-opacity:.09}.edge{stroke:#f2495c;stroke-dasharray:4 3}
.legend{display:flex;flex-wrap:wrap;gap:0 14px;overflow:hidden;line-height:18px;font-size:11.5px}
.legend i{display:inline-block;width:14px;height:4px;border-radius:2px;margin:0 6px 2px 0}
.none{color:#8e8e9a;text-align:center}.big{text-align:center;white-space:nowrap}
.scale{display:flex;gap:8px;align-items:center;font-size:11.5px;line-height:18px}
.scale i{width:220px;height:9px}
table{table-layout:fixed;width:100%;border-collapse:collapse}
th{color:#6e9fff;font-weight:500;text-align:left}
th,td{padding:6px 6px;border-bottom:1px solid #25272d;overflow:hidden;text-overflow:ellipsis;
  white-space:nowrap;vertical-align:top}
td.wrapped{white-space:normal}
"""


def value_of(sample: Sequence[Any]) -> float:
    return float(sample[1])


def named(template: str, labels: Mapping[str, str]) -> str:
    """A legend, or an annotation's text."""
    return re.sub(r"{{\s*(\w+)\s*}}", lambda found: labels.get(found[1], ""), template)


def answered(panel: Panel, answers: Answers) -> Iterator[tuple[Mapping[str, Any], Any]]:
    for target in panel["targets"]:
        for one in answers[panel["id"], target["refId"]]:
            yield target, one


def overrides(panel: Panel, name: str) -> dict[str, Any]:
    """What the file says about one series or column, by property."""
    known = ("custom.width", "custom.cellOptions", "custom.lineStyle", "color")
    found: dict[str, Any] = {}
    for override in panel["fieldConfig"]["overrides"]:
        matcher = override["matcher"]
        if matcher["id"] == "byName":
            matches = matcher["options"] == name
        elif matcher["id"] == "byRegexp":
            matches = re.search(matcher["options"].strip("/"), name) is not None
        else:
            raise ValueError(f"an override by {matcher['id']!r}")
        for change in override["properties"]:
            if change["id"] not in known:
                raise ValueError(f"an override of {change['id']!r}")
            if matches:
                found[change["id"]] = change["value"]
    return found


def ranged(panel: Panel, answers: Answers) -> list[Line]:
    """The series of a panel over time with their colours."""
    made = []
    for number, (target, one) in enumerate(answered(panel, answers)):
        points = [(float(t), float(v)) for t, v in one["values"] if math.isfinite(float(v))]
        name = named(target["legendFormat"], one["metric"])
        changed = overrides(panel, name)
        fixed = changed.get("color", {}).get("fixedColor")
        colour = COLOURS[fixed] if fixed else PALETTE[number % len(PALETTE)]
        dashed = changed.get("custom.lineStyle", {}).get("fill") == "dash"
        made.append(Line(name, points, colour, dashed))
    return [line for line in made if line.points]


def legend(shown: Sequence[tuple[str, str]], frame: Frame) -> tuple[str, float]:
    """Names with their colours, and the height; no more than Grafana's 35 % of the panel."""
    rows, right = 1, 0.0
    for name, _ in shown:
        wide = len(name) * LETTER + 34
        if right and right + wide > frame.width:
            rows, right = rows + 1, 0.0
        right += wide
    high = min(rows, int(0.35 * frame.height / LEGEND)) * LEGEND
    items = "".join(
        f'<span><i style="background:{colour}"></i>{html.escape(name)}</span>'
        for name, colour in shown
    )
    return f'<div class="legend" style="height:{high}px">{items}</div>', high


def threshold(panel: Panel, value: float) -> str:
    """The colour of a value by the panel's steps."""
    steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
    reached = [s["color"] for s in steps if s["value"] is None or value >= s["value"]]
    return COLOURS[reached[-1]]


def stat(panel: Panel, answers: Answers, frame: Frame) -> str:
    if panel["options"]["reduceOptions"]["calcs"] != ["lastNotNull"]:
        raise ValueError("a stat of something else than its last value")
    values = [value_of(one["value"]) for _, one in answered(panel, answers)]
    if not values:
        return none(frame)
    shown = formatted(values[0], panel["fieldConfig"]["defaults"]["unit"])
    colour = threshold(panel, values[0])
    size = min(44, 1.7 * frame.width / len(shown))
    place = f"color:{colour};font-size:{size:.0f}px;line-height:{frame.height - 20}px"
    return f'<div class="big" style="{place}">{html.escape(shown)}</div>'


def none(frame: Frame) -> str:
    return f'<div class="none" style="line-height:{frame.height}px">No data</div>'


def timeseries(panel: Panel, answers: Answers, frame: Frame) -> str:
    if not (series := ranged(panel, answers)):
        return none(frame)
    config = panel["fieldConfig"]["defaults"]
    below, high = "", 0.0
    if panel["options"]["legend"]["showLegend"]:
        below, high = legend([(line.name, line.colour) for line in series], frame)
    frame = frame._replace(height=frame.height - high)
    stack = config["custom"].get("stacking", {}).get("mode") == "normal"
    return (
        curves(frame, series, config["unit"], stack, config["custom"]["fillOpacity"] / 100) + below
    )


def heatmap(panel: Panel, answers: Answers, frame: Frame) -> str:
    if not (series := ranged(panel, answers)):
        return none(frame)
    colour, unit = panel["options"]["color"], panel["options"]["cellValues"]["unit"]
    if (colour["mode"], colour["scheme"]) != ("scheme", "RdYlGn"):
        raise ValueError("a heat map with another scheme than RdYlGn")
    low, high, hidden = colour["min"], colour["max"], panel["options"]["filterValues"]["le"]
    if all(line.name.isdecimal() for line in series):
        series.sort(key=lambda line: -int(line.name))  # Grafana's rows begin at the bottom
    series = [line._replace(points=[p for p in line.points if p[1] > hidden]) for line in series]

    def paint(value: float) -> str:
        return diverging((value - low) / (high - low), colour["steps"], colour["reverse"])

    shades = ",".join(paint(low + (high - low) * i / 10) for i in range(11))
    ends = [html.escape(formatted(end, unit)) for end in (low, high)]
    bar = f'<i style="background:linear-gradient(90deg,{shades})"></i>'
    below = f'<div class="scale">{ends[0]}{bar}{ends[1]}</div>'
    frame = frame._replace(height=frame.height - LEGEND)
    room = max(len(line.name) for line in series) * LETTER + 14
    return bands(frame, series, paint, 0.0, room) + below


def states(panel: Panel, answers: Answers, frame: Frame) -> str:
    if not (series := ranged(panel, answers)):
        return none(frame)
    (mapping,) = panel["fieldConfig"]["defaults"]["mappings"]
    if mapping["type"] != "value" or panel["options"]["showValue"] != "never":
        raise ValueError("states with another mapping than of values, or with their values shown")
    names = {float(value): shown for value, shown in mapping["options"].items()}

    def paint(value: float) -> str:
        return COLOURS[names[value]["color"]] if value in names else threshold(panel, value)

    seen = {value for line in series for _, value in line.points}
    shown = [(of["text"], COLOURS[of["color"]]) for value, of in names.items() if value in seen]
    below, high = legend(shown, frame)
    frame = frame._replace(height=frame.height - high)
    room = max(len(line.name) for line in series) * LETTER + 8
    return bands(frame, series, paint, 1 - panel["options"]["rowHeight"], room) + below


def table(panel: Panel, answers: Answers, frame: Frame) -> str:
    (transformation,) = panel["transformations"]
    if transformation["id"] != "organize":
        raise ValueError(f"the transformation {transformation['id']!r}")
    options = transformation["options"]
    rows = [
        dict(one["metric"], Value=value_of(one["value"])) for _, one in answered(panel, answers)
    ]
    labels = {label for row in rows for label in row} - options["excludeByName"].keys()
    order = options["indexByName"]
    columns = sorted(labels, key=lambda label: (order.get(label, len(order)), label))
    titles = {label: options["renameByName"].get(label, label) for label in columns}
    (by,) = panel["options"]["sortBy"]
    (key,) = [label for label in columns if titles[label] == by["displayName"]] or [""]
    rows.sort(key=lambda row: row.get(key, 0.0), reverse=by["desc"])
    unit = panel["fieldConfig"]["defaults"]["unit"]
    changed = {label: overrides(panel, titles[label]) for label in columns}
    head, cells = "", ""
    for label in columns:
        width = changed[label].get("custom.width")
        place = f' style="width:{width - 12}px"' if width else ""
        head += f"<th{place}>{html.escape(titles[label])}</th>"
    for row in rows:
        cells += "<tr>"
        for label in columns:
            value = row.get(label, "")
            shown = formatted(value, unit) if isinstance(value, float) else value
            wrapped = changed[label].get("custom.cellOptions", {}).get("wrapText")
            name = ' class="wrapped"' if wrapped else ""
            cells += f"<td{name}>{html.escape(shown)}</td>"
        cells += "</tr>"
    return f"<table><tr>{head}</tr>{cells}</table>" if rows else none(frame)


_KINDS: dict[str, Callable[[Panel, Answers, Frame], str]] = {
    "stat": stat, "timeseries": timeseries, "heatmap": heatmap, "state-timeline": states,
    "table": table,
}  # fmt: skip


def drawn(panel: Panel, answers: Answers, frame: Frame, first_row: int) -> str:
    """One panel or the title of a row in its place. Raises ValueError with the panel's title."""
    place = panel["gridPos"]
    left, top = place["x"] * COLUMN, (place["y"] - first_row) * ROW
    width, height = place["w"] * COLUMN - GAP, place["h"] * ROW - GAP
    style = f'style="left:{left}px;top:{top}px;width:{width}px;height:{height}px"'
    title = html.escape(panel["title"])
    if panel["type"] == "row":
        return f"<h2 {style}>⌄ {title}</h2>"
    try:
        if panel["type"] not in _KINDS:
            raise ValueError(f"a panel of type {panel['type']!r}")
        if panel["type"] != "table" and panel["transformations"]:
            raise ValueError("a transformation")
        formatted(0.0, panel["fieldConfig"]["defaults"]["unit"])  # known, even without an answer
        inside = frame._replace(width=width - 18, height=height - TITLE - 8)
        body = _KINDS[panel["type"]](panel, answers, inside)
    except (ValueError, KeyError) as error:
        raise ValueError(f"panel {panel['title']!r} cannot be drawn: {error}") from error
    return f"<section {style}><h3>{title}</h3>{body}</section>"


def spans(annotations: Series, step: float) -> list[Point]:
    """Begin and end of every finding; what is said about it may change, and then another begins."""
    made = []
    for one in annotations:
        line = Line("", [(float(t), float(v)) for t, v in one["values"]])
        made += [(part[0][0], part[-1][0]) for part in trace(line, step, lambda point: point)]
    return made


def page(
    dashboard: Mapping[str, Any],
    answers: Answers,
    annotations: Series,
    frame: Frame,
    rows: Collection[str] = (),
    chosen: Mapping[str, str] | None = None,
) -> str:
    """The page; ``rows`` are titles of rows (all where empty), ``chosen`` values of variables.

    Of ``frame`` only the times count.
    """
    shown, inside = [], False
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            inside = not rows or panel["title"] in rows
        if inside:
            shown.append(panel)
    if not shown:
        raise ValueError(f"no row of the dashboard is one of {', '.join(rows)}")
    frame = frame._replace(regions=spans(annotations, frame.step))
    first = min(panel["gridPos"]["y"] for panel in shown)
    last = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in shown)
    variables = ""
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            value = (chosen or {}).get(variable["name"], variable["current"]["text"])
            label, value = html.escape(variable["label"]), html.escape(value)
            variables += f"<span><b>{label}</b>{value}</span>"
    span = f"{clock(frame.start, True)} to {clock(frame.end, True)} UTC"
    body = "".join(drawn(panel, answers, frame, first) for panel in shown)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>stragd</title>'
        f"<style>{STYLE}</style></head><body><header><h1>{html.escape(dashboard['title'])}</h1>"
        f"{variables}<span>{span}</span></header>"
        f'<main style="height:{(last - first) * ROW}px">{body}</main></body></html>'
    )
