"""The raw look at one rank -> named series: milliseconds of each second, slice by slice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from stragd.jobs import clean
from stragd.why.waits import in_page_fault, waits_for

RUNNING = "on a CPU"
RUNNABLE = "runnable but not running"
WAITING = "waiting: "
MAX_STACKS = 200
LEAST_TAKEN = 20
UNINTERRUPTIBLE = 2


@dataclass
class Series:
    """One kind of time of a rank's process tree, summed over its threads."""

    slices: list[float]  # ms per second, one value per slice
    longest_ms: float = 0.0  # of one uninterrupted wait
    count: int = 0
    thread: str = ""  # the one that has most of it
    stack: tuple[str, ...] = ()  # kernel functions there, innermost first

    @property
    def mean(self) -> float:
        """Milliseconds per second over the whole look; slices are of about equal length."""
        return sum(self.slices) / len(self.slices) if self.slices else 0.0


@dataclass
class Measures:
    """What was seen of one rank. Rates are per second, times in milliseconds."""

    pid: int
    seconds: float
    series: dict[str, Series]
    voluntary: float = 0.0
    involuntary: float = 0.0
    minor_faults: float = 0.0
    major_faults: float = 0.0
    fault_waits: int = 0
    fault_wait_ms: float | None = None  # mean of the page faults that had to wait
    fault_longest_ms: float = 0.0
    io_requests: float = 0.0
    io_ms: float | None = None  # mean latency of a block request
    io_longest_ms: float = 0.0
    io_bytes: float = 0.0
    gave_way_to: list[dict[str, Any]] = field(default_factory=list)
    processes: list[dict[str, int]] = field(default_factory=list)
    threads: list[dict[str, Any]] = field(default_factory=list)
    stacks: list[dict[str, Any]] = field(default_factory=list)  # the longest waits one by one


def measures(raw: Mapping[str, Any], times: Sequence[int]) -> Measures:
    """Digest one rank of `look`'s answer; ``times`` are the ends of its slices in ns.

    Threads that never ran are left out of the sums: idle pools would bury what differs. A main
    thread or an uninterruptible wait is never idle.
    """
    spans = [max(1, b - a) / 1e9 for a, b in pairwise(times)]
    seconds = sum(spans)
    threads = {row["tid"]: row for row in raw["threads"]}
    series = _scheduler(raw["totals"], spans)
    found = Measures(raw["pid"], seconds, series)
    most: dict[str, int] = {}
    fault_ns = 0
    for wait in raw["waits"]:
        frames = tuple(clean(name, 80) for name in wait["kernel"])
        words = waits_for(frames)
        row = threads.get(wait["tid"])
        name = clean(row["name"], 40) if row else ""
        if len(found.stacks) < MAX_STACKS:
            found.stacks.append(_stack(wait, words, name, frames, seconds))
        if in_page_fault(frames):
            fault_ns += wait["ns"]
            found.fault_waits += wait["count"]
            found.fault_longest_ms = max(found.fault_longest_ms, wait["longest_ns"] / 1e6)
        idle = row is not None and not row["switches"] and wait["tid"] != raw["pid"]
        if idle and wait["state"] != UNINTERRUPTIBLE:
            continue
        kind = series.setdefault(WAITING + words, Series([0.0] * len(spans)))
        shares = [ns / 1e6 / span for ns, span in zip(wait["slices"], spans, strict=True)]
        kind.slices = [a + b for a, b in zip(kind.slices, shares, strict=True)]
        kind.count += wait["count"]
        kind.longest_ms = max(kind.longest_ms, wait["longest_ns"] / 1e6)
        if wait["ns"] > most.get(words, 0):
            most[words] = wait["ns"]
            kind.thread, kind.stack = name, frames
    if found.fault_waits:
        found.fault_wait_ms = fault_ns / 1e6 / found.fault_waits
    _rates(found, raw, seconds)
    found.gave_way_to = _takers(raw["takers"])
    found.threads = [
        {
            "tid": row["tid"], "pid": row["pid"], "name": clean(row["name"], 40),
            "running_ms_per_s": round(row["ran_ns"] / 1e6 / seconds, 3),
            "runnable_ms_per_s": round(row["waited_ns"] / 1e6 / seconds, 3),
            "switches": row["switches"],
        }
        for row in raw["threads"]
    ]  # fmt: skip
    return found


def _scheduler(totals: Sequence[Sequence[int]], spans: Sequence[float]) -> dict[str, Series]:
    """Running and runnable, from the cumulated (ran, waited, waits, longest, ...) of each slice."""
    ran, waited = (
        [
            max(0, after[i] - before[i]) / 1e6 / span
            for (before, after), span in zip(pairwise(totals), spans, strict=True)
        ]
        for i in (0, 1)
    )
    last = totals[-1]
    return {
        RUNNING: Series(ran),
        RUNNABLE: Series(waited, longest_ms=last[3] / 1e6, count=last[2]),
    }


def _takers(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Who got the CPU when the rank had to leave it, by name: share of the times."""
    total = sum(row["count"] for row in rows)
    if total < LEAST_TAKEN:
        return []
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        name = "its own threads" if row["own"] else clean(row["name"], 40)
        taker = found.setdefault(name, {"name": name, "tids": [], "share": 0.0})
        taker["tids"].append(row["tid"])
        taker["share"] += row["count"] / total
    return sorted(found.values(), key=lambda taker: -taker["share"])


def _rates(found: Measures, raw: Mapping[str, Any], seconds: float) -> None:
    last, io = raw["totals"][-1], raw["io"]
    found.voluntary, found.involuntary = last[4] / seconds, last[5] / seconds
    found.processes = raw["processes"]
    found.minor_faults = sum(row["minor_faults"] for row in raw["processes"]) / seconds
    found.major_faults = sum(row["major_faults"] for row in raw["processes"]) / seconds
    found.io_requests, found.io_bytes = io["count"] / seconds, io["bytes"] / seconds
    found.io_longest_ms = io["longest_ns"] / 1e6
    if io["count"]:
        found.io_ms = io["ns"] / 1e6 / io["count"]


def _stack(
    wait: Mapping[str, Any], words: str, name: str, frames: Sequence[str], seconds: float
) -> dict[str, Any]:
    return {
        "tid": wait["tid"], "pid": wait["pid"], "thread": name, "waits_for": words,
        "ms_per_s": round(wait["ns"] / 1e6 / seconds, 3), "count": wait["count"],
        "longest_ms": round(wait["longest_ns"] / 1e6, 3),
        "uninterruptible": wait["state"] == UNINTERRUPTIBLE,
        "kernel": list(frames), "user": [clean(place, 100) for place in wait["user"]],
    }  # fmt: skip
