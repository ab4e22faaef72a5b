"""A report as one HTML page: no script, nothing loaded from anywhere, every name escaped.

Names of jobs, hosts and classes are written by jobs: all text passes ``say``.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable
from pathlib import Path

from stragd import __version__
from stragd.cli import report_charts as charts
from stragd.cli.numbers import UNKNOWN, age, ms, percent
from stragd.cli.reasons import abstention_lines, clock, moment, rank_list, subject
from stragd.cli.report_data import (
    BARS,
    Incident,
    Picture,
    blamed,
    ended,
    lost_hours,
    stamp,
    weigh,
)
from stragd.cli.text import clean, plain
from stragd.finding import Finding

MAX_FINDINGS = 50
MAX_EVENTS = 200
MAX_LINES = 40
_KINDS = {
    "straggler": "is slow, and everybody waits for it",
    "intermittent": "is slow now and then, and everybody waits for it",
    "imbalance": "is slower than the job's other hardware",
    "uneven-work": "has more work than the other stages",
    "job-wide": "has become slower on all ranks",
    "network": "waits for the network",
    "hang": "stands still",
}
_WHERE: dict[str, str] = {
    "machine": "the machine", "job": "the job itself", "network": "the network",
}  # fmt: skip
_STYLE = Path(__file__).resolve().parent.parent / "data" / "report.css"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def say(text: object, limit: int = 400) -> str:
    """Harmless text: one line, no control or format characters, HTML's own signs escaped."""
    return html.escape(clean(text, limit), quote=True)


def page(incident: Incident) -> str:
    """The whole page."""
    found = weigh(incident.findings)
    worst = found[0] if found else None
    parts = [_head(incident, worst)]
    if worst is not None:
        parts += [_figures(incident, worst), _cause(worst)]
    picture = incident.picture
    if picture is None:
        parts.append(_section("Ranks over time", _paragraph("No windows of this job are held.")))
    else:
        parts += [_map(incident, picture), _own(picture), _bars(incident, picture)]
    parts += [_findings(incident, found), _timeline(incident), _silence(incident)]
    title = f"stragd report: {say(incident.job, 120)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{title}</title><style>{_STYLE.read_text(encoding='utf-8')}</style></head>\n<body>"
        + "\n".join(part for part in parts if part)
        + _foot(incident)
        + "</body></html>\n"
    )


def _section(title: str, *body: str) -> str:
    return f"<section><h2>{title}</h2>{''.join(body)}</section>"


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{text}</p>' if kind else f"<p>{text}</p>"


def _items(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{say(line)}</li>" for line in lines) + "</ul>"


def _head(incident: Incident, worst: Finding | None) -> str:
    ranks = f"{incident.world_size} ranks" if incident.world_size > 1 else "1 rank"
    about = f"Job {say(incident.job, 120)} ({say(incident.key, 16)}), {ranks}"
    if worst is None:
        title = "Nobody is blamed"
    else:
        who = subject(worst)
        title = say(who[0].upper() + who[1:]) + " " + _KINDS.get(worst["kind"], "is slow")
    state = "" if worst is None else _state(worst["state"]) + ". "
    return f"<header>{_paragraph(about, 'soft')}<h1>{title}</h1>{_paragraph(state)}</header>"


def _state(state: str) -> str:
    return f'<span class="state {say(state, 20)}">{say(state, 20)}</span>'


def _figures(incident: Incident, worst: Finding) -> str:
    cost, slowdown = worst["cost_ms_per_step"], worst["slowdown"]
    share = percent(worst["cost_percent"] / 100)
    if cost is not None:
        between = f"per step on every rank, {ms(cost['low'])} to {ms(cost['high'])}; {share}"
        price = (ms(cost["value"], unit=True), between)
    else:
        price = (share, "of the time, on every rank")
    cards = [_since(incident, worst), price]
    hours = lost_hours(incident)
    if hours is not None:
        cards.append((_hours(hours), f"GPU-hours lost by {incident.world_size} ranks"))
    if slowdown is not None:
        cards.append((percent(slowdown, sign=True), "own work beside its peers"))
    cause = worst["cause"]
    if cause["name"] == "unknown":
        looked = "nothing deviates that was read" if cause["evidence"] else "no telemetry of it"
        cards.append(("unknown", f"cause: {looked}"))
    else:
        place = _WHERE.get(worst["where"], "not known")
        sure = percent(cause["confidence"])
        cards.append((say(cause["name"], 40), f"cause, {sure} sure; where: {place}"))
    return '<div class="cards">' + "".join(
        f'<div class="card"><b>{big}</b><span>{small}</span></div>' for big, small in cards
    ) + "</div>"  # fmt: skip


def _since(incident: Incident, finding: Finding) -> tuple[str, str]:
    since = finding["since"]
    if "step" in since and not incident.dated:
        last = finding.get("until", {}).get("step")
        return f"step {since['step']}", "slow since" if last is None else f"slow until step {last}"
    if not incident.dated:
        return f"window {since['window']}", "slow since"
    begin, end = moment(since["time"]), ended(incident, finding)
    lasted = ""
    if begin is not None and end is not None:
        lasted = f", for {age((end - begin).total_seconds())}"
    text = clock(since["time"], incident.now)
    return say(text), f"slow since{lasted} (window {int(since['window'])})"


def _hours(hours: float) -> str:
    digits = 4 if hours < 0.1 else 2 if hours < 10 else 0
    return f"{hours:,.{digits}f}"


def _cause(worst: Finding) -> str:
    cause = worst["cause"]
    place = f" It is {_WHERE[worst['where']]}." if worst["where"] in _WHERE else ""
    if cause["name"] == "unknown":
        text = "The cause is not known." + place
    else:
        sure = percent(cause["confidence"])
        text = f"<b>{say(cause['name'], 40)}</b>, {sure} sure.{place}"
    parts = [
        _paragraph(text),
        _items((*cause["evidence"][:MAX_LINES], *worst["evidence"][:MAX_LINES])),
    ]
    if cause["advice"]:
        parts.append(f'<p class="advice"><b>To do:</b> {say(cause["advice"])}</p>')
    return _section("Why", *parts)


def _map(incident: Incident, picture: Picture) -> str:
    named = set(blamed(weigh(incident.findings)))
    lines = []
    for row in picture.rows:
        first, last = row.ranks
        marked = " blamed" if first == last and first in named else ""
        name = f'<span class="who{marked}">{_ranks(first, last)}</span>'
        lines.append(name + charts.heat_row(row))
    begins = []
    for finding in weigh(incident.findings)[:MAX_FINDINGS]:
        place = _cell(picture, finding["since"]["time"])
        if place is not None:
            begins.append(place)
    width = len(picture.times)
    above = f'<span class="who">slow since</span>{charts.marks(begins, width)}' if begins else ""
    middle = picture.times[width // 2]
    ends = [picture.times[0], middle, picture.times[-1]]
    names = [stamp(t) + " UTC" for t in ends] if incident.dated else [
        "first window", "", f"window {picture.windows}"]  # fmt: skip
    axis = '<div class="axis">' + "".join(f"<span>{name}</span>" for name in names) + "</div>"
    few = " few" if len(lines) <= 16 else ""
    joined = (
        "" if len(picture.rows) >= len(picture.shares)
        else " Neighbouring ranks share a row, which shows the slowest of them."
    )  # fmt: skip
    return _section(
        "Ranks over time",
        _paragraph(
            f"Own work beside the median of the peers (same hardware, same collectives), "
            f"{picture.windows} windows from left to right.{joined}", "soft",
        ),
        f'<div class="map{few}">{above}{"".join(lines)}<span></span>{axis}</div>',
        f'<div class="legend">{charts.legend()}</div>',
    )  # fmt: skip


def _ranks(first: int, last: int) -> str:
    return f"rank {first}" if first == last else f"{first}–{last}"


def _cell(picture: Picture, time: str) -> int | None:
    """The cell in which something begins, None where that was before the first one.

    Times of findings are cut to seconds: the next cell may have begun in the same second.
    """
    begin = moment(time)
    if begin is None:
        return None
    seconds = begin.timestamp() + 1
    width = (picture.times[-1] - picture.times[0]) / max(1, len(picture.times) - 1)
    if seconds + width < picture.times[0]:
        return None
    return next((place for place, end in enumerate(picture.times) if end >= seconds), None)


def _own(picture: Picture) -> str:
    if picture.rank is None or not any(math.isfinite(value) for value in picture.own):
        return ""
    drawn, low, high = charts.lines(picture)
    per = "step" if picture.steps else "window"
    return _section(
        f"Own work of rank {picture.rank}",
        _paragraph(f"Milliseconds per {per}, from {ms(low)} to {ms(high)}.", "soft"),
        drawn,
        '<div class="legend"><span><i class="blamed"></i>'
        f'rank {picture.rank}</span><span><i class="peers"></i>median of its peers</span></div>',
    )


def _bars(incident: Incident, picture: Picture) -> str:
    named = blamed(weigh(incident.findings))
    shares = {share.rank: share for share in picture.shares}
    known = [s for s in picture.shares if math.isfinite(s.own + s.wait + s.comm)]
    if not known:
        return ""
    whole = max(s.own + s.wait + s.comm for s in known)
    first = [rank for rank in named if rank in shares][: BARS // 2]
    others = sorted((s for s in picture.shares if s.rank not in first),
                    key=lambda s: (math.isnan(s.own), -s.own, s.rank))  # fmt: skip
    chosen = [shares[rank] for rank in first] + others[: BARS - len(first)]
    rows = []
    for share in chosen:
        name = f'<span class="state confirmed">{share.rank}</span>' if share.rank in named else (
            str(share.rank))  # fmt: skip
        host = say(incident.hosts.get(share.rank) or UNKNOWN, 60)
        rows.append(
            f'<tr><td class="num">{name}</td><td class="host">{host}</td>'
            + "".join(f'<td class="num">{ms(v)}</td>' for v in (share.own, share.wait, share.comm))
            + f'<td class="wide">{charts.bar(share, whole)}</td></tr>'
        )
    left = len(picture.shares) - len(chosen)
    more = _paragraph(f"and {left} more ranks", "soft") if left else ""
    per = "step" if picture.steps else "window"
    return _section(
        "Own, wait, comm",
        _paragraph(
            f"Mean milliseconds per {per}. Who works longest waits least: that is the rank that "
            "everybody waits for.", "soft",
        ),
        '<table><tr><th class="num">rank</th><th class="host">host</th><th class="num">own</th>'
        '<th class="num">wait</th><th class="num">comm</th><th class="wide"></th></tr>',
        "".join(rows), "</table>", more,
        '<div class="legend">',
        "".join(f'<span><i class="{n}"></i>{n}</span>' for n in ("own", "wait", "comm")),
        "</div>",
    )  # fmt: skip


def _findings(incident: Incident, found: list[Finding]) -> str:
    """The findings after the first."""
    rows = []
    for finding in found[1:MAX_FINDINGS]:
        cost = finding["cost_ms_per_step"]
        price = percent(finding["cost_percent"] / 100)
        price = f"{ms(cost['value'])} ms ({price})" if cost else price
        rows.append(
            f"<tr><td>{say(finding['kind'], 20)}: {say(subject(finding))}</td>"
            f"<td>{_state(finding['state'])}</td><td>{_since(incident, finding)[0]}</td>"
            f'<td>{say(finding["cause"]["name"], 40)}</td><td class="num">{price}</td></tr>'
        )
    if not rows:
        return ""
    left = len(found) - MAX_FINDINGS
    return _section(
        "Other findings",
        "<table><tr><th>what</th><th>state</th><th>since</th><th>cause</th>"
        '<th class="num">cost per step</th></tr>', "".join(rows), "</table>",
        _paragraph(f"and {left} more", "soft") if left > 0 else "",
    )  # fmt: skip


def _timeline(incident: Incident) -> str:
    events = incident.events[-MAX_EVENTS:]
    if not events:
        return ""
    rows = []
    for event in events:
        when = clock(event["time"], incident.now) if incident.dated else ""
        text = f"{say(event['kind'], 20)}, {say(subject(event))}"
        more = f": {say(event['text'])}" if event["text"] else ""
        rows.append(
            f'<tr><td class="time">{say(when)}</td><td class="what">{_state(event["what"])}</td>'
            f"<td>{text}{more}</td></tr>"
        )
    return _section("Timeline", "<table>", "".join(rows), "</table>")


def _silence(incident: Incident) -> str:
    lines = [plain(line) for line in abstention_lines(incident.abstentions, 1000)]
    lines += incident.notes
    if not lines:
        return ""
    return _section("No verdict, and notes", _items(lines[:MAX_LINES]))


def _foot(incident: Incident) -> str:
    here = ""
    picture = incident.picture
    if picture is not None and len(picture.shares) < incident.world_size:
        ranks = rank_list([share.rank for share in picture.shares])
        here = f" It holds windows of {say(ranks)} of {incident.world_size}."
    return (
        f'<footer class="soft">Made by stragctl {__version__} from {say(incident.source)}, '
        f"{say(incident.now) if incident.dated else 'without clock times'}.{here} "
        "Own is a rank's own work in a step, wait is waiting for others inside collectives, comm "
        "the transfer once everybody is there. GPU-hours are the costliest finding's share of the "
        "time, over all ranks; what a cause means and what to do is in docs/causes.md.</footer>"
    )
