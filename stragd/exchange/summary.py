"""A job in short, for the whole cluster: what its scorer, or the one node that it is on, says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stragd.exchange.message import SUMMARY, MessageError, is_node, pack, unpack_header
from stragd.exchange.verdict import Verdict, checked, finite, whole_number
from stragd.finding import Finding
from stragd.jobs import clean

MAX_BYTES = 8 << 10
MAX_EVIDENCE = 3


@dataclass(frozen=True)
class Summary:
    """One job; ``worst`` is its most expensive open finding."""

    job: int
    epoch: int  # of the scorer's lease, 0 where all ranks are on one node
    node: str  # that says it
    name: str
    launcher: str
    world_size: int
    ranks: int  # that reported last
    nodes: int
    step_ms: float | None
    findings: int  # open ones
    worst: Finding | None
    ended: bool = False

    def state(self) -> tuple[object, ...]:
        """What is worth telling at once when it changes."""
        worst = self.worst
        return (self.findings, worst and (worst["id"], worst["state"]), self.nodes, self.ended)


def worst_of(findings: Iterable[Finding]) -> tuple[int, Finding | None]:
    """How many are open, and the one that costs most, with the first lines of its evidence."""
    open_ones = [finding for finding in findings if finding["state"] != "cleared"]
    if not open_ones:
        return 0, None
    worst = max(open_ones, key=lambda finding: finding["cost_percent"])
    cause = {**worst["cause"], "evidence": worst["cause"]["evidence"][:MAX_EVIDENCE]}
    short = {**worst, "evidence": worst["evidence"][:MAX_EVIDENCE], "cause": cause}
    return len(open_ones), short  # type: ignore[return-value]


def of_verdict(verdict: Verdict) -> Summary:
    """What the scorer of a job says of it."""
    number, worst = worst_of(finding for _, finding in verdict.findings)
    return Summary(
        job=verdict.job,
        epoch=verdict.epoch,
        node=verdict.node,
        name=verdict.name,
        launcher=verdict.launcher,
        world_size=verdict.world_size,
        ranks=verdict.ranks,
        nodes=verdict.nodes,
        step_ms=verdict.step_ms,
        findings=number,
        worst=worst,
    )


def encode(summary: Summary) -> bytes:
    """As a message. Raises MessageError if too long."""
    data = pack(SUMMARY, {**vars(summary), "job": f"{summary.job:016x}"})
    if len(data) > MAX_BYTES:
        raise MessageError("oversized", f"a summary of {len(data)} bytes")
    return data


def decode(data: bytes) -> Summary:
    """Check and take apart. Raises MessageError."""
    return unpack_header(data, SUMMARY, "a summary", _summary, MAX_BYTES)


def _summary(header: Mapping[str, Any]) -> Summary:
    if not is_node(header["node"]):
        raise ValueError("it names no node")
    job = int(header["job"], 16)
    if not 0 < job < 1 << 64:
        raise ValueError("it names no job")
    worst = header["worst"]
    return Summary(
        job=job,
        epoch=whole_number(header["epoch"]),
        node=header["node"],
        name=clean(header["name"]),
        launcher=clean(header["launcher"], 20),
        world_size=whole_number(header["world_size"]),
        ranks=whole_number(header["ranks"]),
        nodes=whole_number(header["nodes"]),
        step_ms=finite(header["step_ms"]),
        findings=whole_number(header["findings"]),
        worst=None if worst is None else checked(worst, job),
        ended=header["ended"] is True,
    )
