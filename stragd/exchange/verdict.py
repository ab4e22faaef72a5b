"""The verdict about one window of a job: what its scorer tells every node of the job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from stragd.exchange.message import VERDICT, is_node, pack, unpack_header
from stragd.finding import Cause, Cost, Finding, Kind, State, Subject, Where
from stragd.jobs import clean

MAX_FINDINGS = 200
MAX_LISTED = 256
"""Ranks that are listed where there can be a whole cluster of them."""
KINDS: frozenset[str] = frozenset(get_args(Kind))
STATES: frozenset[str] = frozenset(get_args(State))
PLACES: frozenset[str] = frozenset(get_args(Where))


@dataclass(frozen=True)
class Verdict:
    """All that is open of a job after one window, and who was there."""

    job: int
    epoch: int  # of the scorer's lease: a later scorer has a higher one
    node: str  # of the scorer
    window: int  # last one that was scored, -1 before the first
    name: str
    launcher: str
    world_size: int
    ranks: int  # that reported in that window
    nodes: int
    absent: tuple[int, ...]  # ranks that did not, at most MAX_LISTED
    step_ms: float | None
    findings: tuple[tuple[int, Finding], ...]  # with the scorer's own ids
    abstentions: tuple[tuple[str, tuple[int, ...]], ...]  # reason, ranks

    def states(self) -> frozenset[tuple[int, str]]:
        """The findings and their states."""
        return frozenset((number, finding["state"]) for number, finding in self.findings)


def encode(verdict: Verdict) -> bytes:
    """As a message. Raises MessageError if too long."""
    return pack(
        VERDICT,
        {
            "job": f"{verdict.job:016x}",
            "epoch": verdict.epoch,
            "node": verdict.node,
            "window": verdict.window,
            "name": verdict.name,
            "launcher": verdict.launcher,
            "world_size": verdict.world_size,
            "ranks": verdict.ranks,
            "nodes": verdict.nodes,
            "absent": verdict.absent[:MAX_LISTED],
            "step_ms": verdict.step_ms,
            "findings": verdict.findings[:MAX_FINDINGS],
            "abstentions": [(why, who[:MAX_LISTED]) for why, who in verdict.abstentions[:16]],
        },
    )


def decode(data: bytes) -> Verdict:
    """Check and take apart. Raises MessageError."""
    return unpack_header(data, VERDICT, "a verdict", _verdict)


def _verdict(header: Mapping[str, Any]) -> Verdict:
    if not is_node(header["node"]):
        raise ValueError("it names no node")
    findings = header["findings"][:MAX_FINDINGS]
    name, key = clean(header["name"]), int(header["job"], 16)
    return Verdict(
        job=key,
        epoch=whole_number(header["epoch"]),
        node=header["node"],
        window=max(-1, int(header["window"])),
        name=name,
        launcher=clean(header["launcher"], 20),
        world_size=whole_number(header["world_size"]),
        ranks=whole_number(header["ranks"]),
        nodes=whole_number(header["nodes"]),
        absent=tuple(whole_number(rank) for rank in header["absent"][:MAX_LISTED]),
        step_ms=finite(header["step_ms"]),
        findings=tuple(
            (whole_number(number), checked(finding, key)) for number, finding in findings
        ),
        abstentions=tuple(
            (clean(why), tuple(whole_number(rank) for rank in who[:MAX_LISTED]))
            for why, who in header["abstentions"][:16]
        ),
    )


def checked(raw: Mapping[str, Any], job: int) -> Finding:
    """Another node's finding, every part of it bounded. Raises ValueError, TypeError, KeyError."""
    if raw["kind"] not in KINDS or raw["state"] not in STATES or raw["where"] not in PLACES:
        raise ValueError("a finding of an unknown kind, state or place")
    finding: Finding = {
        "id": clean(raw["id"]),
        "job": {
            "key": f"{job:016x}",
            "name": clean(raw["job"]["name"]),
            "world_size": whole_number(raw["job"]["world_size"]),
        },
        "kind": raw["kind"],
        "state": raw["state"],
        "subject": _subject(raw["subject"]),
        "since": {
            "window": whole_number(raw["since"]["window"]),
            "time": clean(raw["since"]["time"]),
        },
        "slowdown": finite(raw["slowdown"]),
        "cost_ms_per_step": _cost(raw["cost_ms_per_step"]),
        "cost_percent": finite(raw["cost_percent"]) or 0.0,
        "confidence": min(max(finite(raw["confidence"]) or 0.0, 0.0), 1.0),
        "where": raw["where"],
        "cause": _cause(raw["cause"]),
        "evidence": [clean(line, 300) for line in raw["evidence"][:20]],
    }
    if "speeds" in raw:
        speeds = list(raw["speeds"].items())[:16]
        finding["speeds"] = {clean(name): finite(speed) or 0.0 for name, speed in speeds}
    return finding


def _subject(raw: Mapping[str, Any]) -> Subject:
    subject: dict[str, Any] = {}
    for name in ("rank", "stage"):
        if name in raw:
            subject[name] = whole_number(raw[name])
    for name in ("host", "class", "signature", "nic", "label"):
        if name in raw:
            subject[name] = clean(raw[name])
    return cast("Subject", subject)


def _cost(raw: Mapping[str, Any] | None) -> Cost | None:
    if raw is None:
        return None
    value, low, high = (finite(raw[name]) or 0.0 for name in ("value", "low", "high"))
    return {"value": value, "low": low, "high": high}


def _cause(raw: Mapping[str, Any]) -> Cause:
    return {
        "name": clean(raw["name"], 60),
        "confidence": min(max(finite(raw["confidence"]) or 0.0, 0.0), 1.0),
        "evidence": [clean(line, 300) for line in raw["evidence"][:8]],
        "advice": clean(raw["advice"], 300),
    }


def whole_number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("a number that is no count")
    return value


def finite(value: object) -> float | None:
    if value is None:
        return None
    if type(value) not in (int, float) or not math.isfinite(cast("float", value)):
        raise ValueError("a number that is none")
    return float(cast("float", value))
