"""What a report tells, bounded whatever the size of the job and the length of its history."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from stragd.cli.reasons import moment
from stragd.finding import Finding, Subject
from stragd.jobs import OWN_UNKNOWN, STEPS_NOT_INFERRED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stragd.outputs.snapshot import Abstention, Event

COLUMNS = 120
"""Cells of a row of the heat map: windows are joined until they fit."""
ROWS = 48
"""Rows of the heat map: neighbouring ranks share one in larger jobs, by their slowest."""
BARS = 24
"""Ranks whose own, wait and comm are drawn."""


@dataclass(frozen=True)
class Share:
    """One rank's mean times over the recorded windows, milliseconds per step."""

    rank: int
    own: float
    wait: float
    comm: float


@dataclass(frozen=True)
class Row:
    """One row of the heat map: own over the peers' median minus one, NaN where not known."""

    ranks: tuple[int, int]  # first, last
    cells: NDArray[np.float64]


@dataclass
class Picture:
    """The windows of one job, joined to at most COLUMNS cells."""

    windows: int
    steps: bool  # times are per step, not per window
    times: list[float]  # seconds since the epoch at the end of each cell
    rows: list[Row]
    shares: list[Share]  # of every rank, by rank
    rank: int | None  # the one that is blamed first, where its windows are there
    own: NDArray[np.float64]  # its own work per cell, ms
    peers: NDArray[np.float64]  # the median of its peers', ms


@dataclass
class Incident:
    """Everything that the page shows."""

    job: str
    key: str
    world_size: int
    source: str  # where it comes from
    now: str  # ISO 8601: of the answer, or of the recording's last window
    dated: bool  # times are times of day
    findings: list[Finding]
    abstentions: list[Abstention]
    events: list[Event] = field(default_factory=list)
    hosts: Mapping[int, str] = field(default_factory=dict)
    picture: Picture | None = None
    notes: list[str] = field(default_factory=list)


def blamed(findings: Iterable[Finding]) -> list[int]:
    """Ranks that findings name, the first one first, none twice."""
    return list(dict.fromkeys(f["subject"]["rank"] for f in findings if "rank" in f["subject"]))


def weigh(findings: Sequence[Finding]) -> list[Finding]:
    """Those that are or were certain, confirmed ones first, then by cost."""
    order = {"confirmed": 0, "recovering": 1, "cleared": 2}
    sure = [finding for finding in findings if finding["state"] in order]
    return sorted(sure, key=lambda f: (order[f["state"]], -f["cost_percent"], f["id"]))


def picture(windows: Sequence[NDArray[np.void]], named: Sequence[int]) -> Picture | None:
    """Join the rows of one job's windows; ``named`` ranks get rows of their own, on top."""
    windows = [rows for rows in windows if len(rows)]
    if not windows:
        return None
    ranks = np.unique(np.concatenate([rows["rank"] for rows in windows]))
    width = min(len(windows), COLUMNS)
    sums = np.zeros((3, len(ranks)))
    counts = np.zeros((3, len(ranks)))
    excess, seen = np.zeros((len(ranks), width)), np.zeros((len(ranks), width))
    own_sum, own_seen = np.zeros((len(ranks), width)), np.zeros((len(ranks), width))
    times = [0.0] * width
    for number, rows in enumerate(windows):
        cell = number * width // len(windows)
        places = np.searchsorted(ranks, rows["rank"])
        times[cell] = max(times[cell], float(rows["time_ns"].max()) / 1e9)
        for part, name in enumerate(("own", "wait", "comm")):
            values = rows[name].astype(np.float64) / 1e6
            good = np.isfinite(values) & (values >= 0)
            if name == "own":
                good &= (rows["flags"] & OWN_UNKNOWN) == 0
                own_sum[places[good], cell] += values[good]
                own_seen[places[good], cell] += 1
                ratio = _beside_peers(rows, np.where(good, values, np.nan))
                known = np.isfinite(ratio)
                excess[places[known], cell] += ratio[known]
                seen[places[known], cell] += 1
            sums[part][places[good]] += values[good]
            counts[part][places[good]] += 1
    cells = _mean(excess, seen)
    own = _mean(own_sum, own_seen)
    means = _mean(sums, counts)
    place_of = {int(rank): place for place, rank in enumerate(ranks)}
    there = [rank for rank in named if rank in place_of]
    first = place_of[there[0]] if there else 0
    return Picture(
        windows=len(windows),
        steps=not any((rows["flags"] & STEPS_NOT_INFERRED).any() for rows in windows[-8:]),
        times=times,
        rows=_rows(ranks, cells, there[: ROWS // 4]),
        shares=[
            Share(int(rank), *(float(value) for value in means[:, place]))
            for place, rank in enumerate(ranks)
        ],
        rank=there[0] if there else None,
        own=own[first],
        peers=own[first] / (1 + cells[first]),
    )


def _beside_peers(rows: NDArray[np.void], own: NDArray[np.float64]) -> NDArray[np.float64]:
    """Own over the median of the ranks with the same class and collective sequence, minus one."""
    ratio = np.full(len(rows), np.nan)
    _, kinds = np.unique(rows[["class_id", "signature"]], return_inverse=True)
    for kind in range(int(kinds.max()) + 1):
        mine = (kinds == kind) & np.isfinite(own)
        if mine.sum() > 1:
            middle = float(np.median(own[mine]))
            if middle > 0:
                ratio[mine] = own[mine] / middle - 1
    return ratio


def _mean(total: NDArray[np.float64], count: NDArray[np.float64]) -> NDArray[np.float64]:
    mean = np.full(total.shape, np.nan)
    np.divide(total, count, out=mean, where=count > 0)
    return mean


def _rows(ranks: NDArray[np.uint32], cells: NDArray[np.float64], named: Sequence[int]) -> list[Row]:
    """The named ranks, then all in their order, as many together as it takes."""
    each = math.ceil(len(ranks) / ROWS)
    alone = [np.flatnonzero(ranks == rank) for rank in named] if each > 1 else []
    groups = [np.arange(begin, min(begin + each, len(ranks)))
              for begin in range(0, len(ranks), each)]  # fmt: skip
    rows = []
    for group in (*alone, *groups):
        part = np.where(np.isfinite(cells[group]), cells[group], -np.inf)
        slowest = part.max(axis=0)
        slowest[np.isneginf(slowest)] = np.nan
        rows.append(Row((int(ranks[group[0]]), int(ranks[group[-1]])), slowest))
    return rows


def lost_hours(incident: Incident) -> float | None:
    """GPU-hours: the costliest share at each moment, times the ranks; None without clock times.

    Costs do not add up: without one fault the next slowest rank bounds the step.
    """
    if not incident.dated:
        return None
    spans = []
    for finding in weigh(incident.findings):
        begin, end = moment(finding["since"]["time"]), ended(incident, finding)
        if begin is not None and end is not None and end > begin:
            spans.append((begin, end, max(0.0, finding["cost_percent"] / 100)))
    edges = sorted({edge for begin, end, _ in spans for edge in (begin, end)})
    total = timedelta()
    for left, right in pairwise(edges):
        share = max((s for begin, end, s in spans if begin <= left < end), default=0.0)
        total += share * (right - left)
    return total.total_seconds() / 3600 * incident.world_size


def ended(incident: Incident, finding: Finding) -> datetime | None:
    """When a finding was over, or now; None where it is over and the event has been forgotten."""
    if "until" in finding:
        return moment(finding["until"]["time"])
    if finding["state"] not in ("recovering", "cleared"):
        return moment(incident.now)
    mine = [event for event in incident.events if event["finding"] == finding["id"]]
    # Who recovers has been healthy already; a job that ended was slow to the end.
    for what in ("recovering", "cleared"):
        times = [event["time"] for event in mine if event["what"] == what]
        if times:
            return moment(times[-1])
    return None


def events_of(findings: Iterable[Finding]) -> list[Event]:
    """The timeline of a recording: where each finding begins and ends."""
    events: list[Event] = []
    for finding in findings:
        begin, end = finding["since"], finding.get("until")
        events.append(_event(finding, begin["time"], "begins", _place(begin)))
        if end is not None:
            events.append(
                _event(finding, end["time"], finding["state"], "slow until " + _place(end))
            )
    return sorted(events, key=lambda event: event["time"])


def _event(finding: Finding, time: str, what: str, text: str) -> Event:
    subject: Subject = finding["subject"]
    return {
        "time": time, "job": finding["job"]["key"], "finding": finding["id"],
        "kind": finding["kind"], "subject": subject, "what": what, "text": text,
    }  # fmt: skip


def _place(point: Mapping[str, Any]) -> str:
    return f"step {point['step']}" if "step" in point else f"window {point['window']}"


def stamp(seconds: float) -> str:
    """Seconds since the epoch -> HH:MM:SS, UTC."""
    return datetime.fromtimestamp(max(0.0, seconds), timezone.utc).strftime("%H:%M:%S")
