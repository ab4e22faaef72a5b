"""The finding: the one object that every output renders (schema: data/finding.schema.json)."""

from __future__ import annotations

import datetime
import json
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

Kind = Literal[
    "straggler", "intermittent", "imbalance", "uneven-work", "job-wide", "network", "hang"
]
State = Literal["suspect", "confirmed", "recovering", "cleared"]
Where = Literal["machine", "job", "network", "unknown"]


class FindingJob(TypedDict):
    key: str  # 16 hexadecimal digits
    name: str
    world_size: int


# "class" is a keyword of Python and a word of the contract, hence the functional form.
Subject = TypedDict(
    "Subject",
    {
        "rank": int,
        "host": str,
        "class": str,
        "signature": str,
        "stage": int,
        "nic": str,
        "label": str,  # a recording's own name: "dp0/stage0", "worker 6"
    },
    total=False,
)


class Moment(TypedDict):
    window: int
    time: str  # ISO 8601, UTC


class Since(Moment, total=False):
    step: int  # of a recording


class Cost(TypedDict):
    value: float
    low: float
    high: float


class Cause(TypedDict):
    name: str  # "unknown" when it is
    confidence: float
    evidence: list[str]
    advice: str


class _Optional(TypedDict, total=False):
    until: Since  # last slow window of a finding that had passed when the recording ended
    speeds: dict[str, float]  # of an imbalance: each class's speed over the fastest's


class Finding(_Optional):
    """One finding; the kind says which parts of `subject` are there."""

    id: str
    job: FindingJob
    kind: Kind
    state: State
    subject: Subject
    since: Since
    slowdown: float | None  # own over the peers' median, minus one
    cost_ms_per_step: Cost | None  # None where steps are not inferred
    cost_percent: float  # share of the step's (or window's) wall time
    confidence: float
    where: Where
    cause: Cause
    evidence: list[str]


def _number(value: object) -> float | None:
    """The scorer's NaN and infinity mean "not known" here; JSON has no word for them."""
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    return None


def iso_time(time_ns: int) -> str:
    """CLOCK_REALTIME in nanoseconds -> ISO 8601, UTC, seconds."""
    seconds = min(max(time_ns // 1_000_000_000, 0), 253_402_300_799)  # year 9999
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def job_key(job: int) -> str:
    """A job's number as every output writes it."""
    return f"{job:016x}"


def build(
    raw: Mapping[str, Any],
    job: FindingJob,
    subject: Subject,
    steps: bool,
    speeds: Mapping[str, float] | None = None,
) -> Finding:
    """Make the finding of one of the scorer's (``_rscore.Finding``).

    ``subject`` is who it is about, from identities. ``steps`` is False where the job's steps are
    not inferred: its times are per window then, and the cost is a share only. ``speeds`` are those
    of the job's classes (``class_speeds``), for an imbalance.
    """
    unit = "step" if steps else "window"
    cost = _cost(raw) if steps else None
    kind: Kind = raw["kind"]
    moves = _moves_with_work(raw)
    evidence = _evidence(raw, subject, cost, unit)
    if kind == "imbalance" and speeds and len(speeds) > 1:
        each = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
        evidence.append(f"speed of each class, of the fastest: {each}")
    finding: Finding = {
        "id": _identifier(raw, job, subject),
        "job": job,
        "kind": kind,
        "state": raw["state"],
        "subject": subject,
        "since": {"window": int(raw["since_window"]), "time": iso_time(raw["since_time_ns"])},
        "slowdown": _number(raw["slowdown"]),
        "cost_ms_per_step": cost,
        "cost_percent": round(100 * (_number(raw["cost_fraction"]) or 0.0), 3),
        "confidence": _number(raw["confidence"]) or 0.0,
        "where": "job" if moves else _WHERE.get(kind, "unknown"),
        "cause": {"name": "unknown", "confidence": 0.0, "evidence": [], "advice": ""},
        "evidence": evidence + moves,
    }
    if kind == "imbalance" and speeds:
        finding["speeds"] = dict(speeds)
    return finding


MOVED = 3
"""Ranks that were slow in turn within 64 windows: machines do not take turns."""


def _moves_with_work(raw: Mapping[str, Any]) -> list[str]:
    """Why the job is slow and not the machine, when it is: one line each."""
    if raw["kind"] not in ("straggler", "intermittent"):
        return []
    work, slowdown = _number(raw.get("work")), _number(raw["slowdown"])
    lines = []
    if work is not None and slowdown is not None and work > max(slowdown, 0.01) / 2:
        lines.append(
            f"it moves {work:.1%} more bytes per step than its peers: the job, not the machine"
        )
    moved = int(raw.get("moved", 0))
    if moved >= MOVED:
        lines.append(
            f"{moved} other ranks were slow within the last 64 windows and are well again: "
            "the job, not the machine"
        )
    return lines


def class_speeds(own_ns: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Speed of each class over the fastest's, fastest first, from (class, own time) of ranks."""
    times: dict[str, list[float]] = {}
    for name, own in own_ns:
        if math.isfinite(own) and own > 0:
            times.setdefault(name, []).append(own)
    medians = sorted((statistics.median(own), name) for name, own in times.items())
    return {name: round(medians[0][0] / own, 4) for own, name in medians}


# What the kind alone says about the place; a straggler's needs telemetry to tell.
_WHERE: dict[Kind, Where] = {"imbalance": "machine", "uneven-work": "job", "network": "network"}


def _identifier(raw: Mapping[str, Any], job: FindingJob, subject: Subject) -> str:
    """Stable and unique over restarts of the daemon, whose window numbers begin anew."""
    since = iso_time(raw["since_time_ns"]).translate({ord("-"): None, ord(":"): None})
    about = "job"
    if "rank" in subject:
        about = f"r{subject['rank']}"
    elif "class" in subject:
        about = f"c{raw['class_id'] or 0:08x}"
    elif "signature" in subject:
        about = f"s{subject['signature']}"
    return f"{job['key']}-{raw['kind']}-{about}-{since}"


def _cost(raw: Mapping[str, Any]) -> Cost | None:
    value = _number(raw["cost_ns"])
    if value is None:
        return None
    low, high = _number(raw["cost_low_ns"]), _number(raw["cost_high_ns"])
    return {
        "value": round(value / 1e6, 4),
        "low": round((value if low is None else low) / 1e6, 4),
        "high": round((value if high is None else high) / 1e6, 4),
    }


def subject_name(subject: Subject) -> str:
    """ "rank 2 on node7", "class nvidia/H200", "the whole job"."""
    if "rank" in subject:
        host, label = subject.get("host", ""), subject.get("label", "")
        name = f"rank {subject['rank']}" + (f" ({label})" if label else "")
        return name + (f" on {host}" if host else "")
    if "class" in subject:
        return f"class {subject['class']}"
    if "stage" in subject:
        return f"stage {subject['stage']}"
    if "signature" in subject:
        return f"the ranks with collective sequence {subject['signature']}"
    if "nic" in subject:
        return f"network interface {subject['nic']}"
    return "the whole job"


def _evidence(raw: Mapping[str, Any], subject: Subject, cost: Cost | None, unit: str) -> list[str]:
    who = subject_name(subject)
    own, peers_own = _number(raw["own_ns"]), _number(raw["peers_own_ns"])
    peers = int(raw["peers"])
    lines = []
    if raw["kind"] == "network":
        if own is not None and peers_own is not None:
            lines.append(
                f"transfers take {own / 1e6:.2f} ms per {unit}, {peers_own / 1e6:.2f} before"
            )
    elif own is not None:
        lines.append(f"{who} works {own / 1e6:.2f} ms of its own per {unit}")
    if peers_own is not None and peers > 0:
        lines.append(
            f"the median of its {peers} peers (same class, same collective sequence) "
            f"is {peers_own / 1e6:.2f} ms"
        )
    slowdown = _number(raw["slowdown"])
    if slowdown is not None:
        than = "its peers" if raw["basis"] == "peers" else "before"
        lines.append(f"{abs(slowdown):.1%} {'slower' if slowdown >= 0 else 'faster'} than {than}")
    if raw["kind"] == "intermittent":
        lines.append("slow in some windows and as usual in the others; the cost is the mean of all")
    elif raw["kind"] == "straggler" and raw["basis"] == "history":
        lines.append(f"judged against its own past only: {peers} peers are too few to compare")
    lines.append(f"since window {raw['since_window']}, last scored in window {raw['window']}")
    if cost is not None:
        lines.append(
            f"every rank would gain {cost['value']:.2f} ms per step "
            f"({cost['low']:.2f} to {cost['high']:.2f})"
        )
    elif unit == "window":
        lines.append("no repeating step was found: the cost is a share of time")
    return lines


def describe(finding: Finding) -> str:
    """One line for logs and screens."""
    parts = [f"{finding['kind']} {finding['state']}: job {finding['job']['name']}"]
    parts.append(subject_name(finding["subject"]))
    if finding["slowdown"] is not None:
        parts.append(f"slowdown {finding['slowdown']:.1%}")
    cost = finding["cost_ms_per_step"]
    if cost is not None:
        low, high = cost["low"], cost["high"]
        parts.append(f"costs {cost['value']:.2f} ms per step ({low:.2f} to {high:.2f})")
    else:
        parts.append(f"costs {finding['cost_percent']:.1f} % of the time")
    since = finding["since"]
    parts.append(f"since window {since['window']} ({since['time']})")
    return ", ".join(parts)


def schema() -> dict[str, Any]:
    """The JSON schema of a finding."""
    path = Path(__file__).parent / "data" / "finding.schema.json"
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
