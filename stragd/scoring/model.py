"""What goes in and what comes out of the scorer. docs/scoring.md has the derivations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# RankWindow.source and RankWindow.flags (rscore/src/window/mod.rs).
GLOO = 3
EVENTS_LOST, STEPS_NOT_INFERRED, PARTIAL, OWN_UNKNOWN, TENTH = 1, 2, 4, 8, 128

# Kinds and states, by the number that a saved state holds.
KINDS = ("straggler", "intermittent", "imbalance", "uneven-work", "job-wide", "network")
STRAGGLER, INTERMITTENT, IMBALANCE, UNEVEN_WORK, JOB_WIDE, NETWORK = range(6)
STATES = ("suspect", "confirmed", "recovering", "cleared")
SUSPECT, CONFIRMED, RECOVERING, CLEARED = range(4)
BASES = ("peers", "history")
PEERS, HISTORY = range(2)

# Evidence of one window, weakest first.
CALM, OPEN, WEAK, STRONG = range(4)

# Reasons of an abstention.
HOST_PROBES = "host probes only: no device time"
LEARNING = "learning"
LOST = "events lost in this window"
ALONE = "no other rank to compare with"
STEPS_DISAGREE = "steps of the ranks disagree"

MAX_WORLD = 1 << 20
"""Most ranks of one job."""
MAX_WINDOW = 1 << 63
LEAST_SHARE, LONGEST = 1e-12, 1e200
"""Least own time over wall, and longest wall, whose logarithms can be computed with."""


class Row(NamedTuple):
    """A RankWindow as the scorer reads it; times in ns per step."""

    job: int
    signature: int
    window: int
    first_step: int
    last_step: int
    start_ns: int
    end_ns: int
    time_ns: int
    wall: float
    own: float
    wait: float
    comm: float
    own_se: float
    collectives: float
    bytes: float
    rank: int
    world_size: int
    class_id: int
    steps: int
    source: int
    flags: int


@dataclass(frozen=True)
class Config:
    """How sure a score must be."""

    false_alarms_per_million: float = 0.01
    min_slowdown: float = 0.005
    confirm_windows: int = 2
    clear_windows: int = 3
    history_windows: int = 200


@dataclass
class Finding:
    """One finding; the fields of ``Finding`` in ``stragd/_rscore.pyi``."""

    id: int
    job: int
    kind: int
    state: int
    rank: int | None
    class_id: int | None
    signature: int | None
    since_window: int
    since_time_ns: int
    window: int
    slowdown: float
    cost_ns: float | None
    cost_low_ns: float | None
    cost_high_ns: float | None
    cost_fraction: float
    confidence: float
    basis: int
    own_ns: float
    peers_own_ns: float
    peers: int
    work: float = math.nan
    """Bytes per step over the peers' median, minus one: what the job itself gives a rank to do."""
    moved: int = 0
    """Ranks of the group that were named within the last 64 windows and are healthy again."""


class Abstention(NamedTuple):
    """A rank that was not judged, and why."""

    job: int
    rank: int
    window: int
    reason: str


@dataclass
class Update:
    """What one window brought."""

    findings: list[Finding]
    abstentions: list[Abstention]
    refused_rows: int


def start_time_ns(row: Row) -> int:
    """CLOCK_REALTIME at the begin of the window, ns."""
    return max(row.time_ns - max(row.end_ns - row.start_ns, 0), 0)


def plausible(row: Row) -> bool:
    """Whether a row can be true; one that cannot is refused alone."""

    def positive(value: float) -> bool:
        return math.isfinite(value) and value > 0.0

    def not_negative(value: float) -> bool:
        return math.isfinite(value) and value >= 0.0

    times = bool(row.flags & OWN_UNKNOWN) or (
        positive(row.own)
        and row.wall * LEAST_SHARE <= row.own <= row.wall * 1.001
        and not_negative(row.wait)
        and not_negative(row.comm)
        and (math.isnan(row.own_se) or not_negative(row.own_se))
    )
    steps = bool(row.flags & STEPS_NOT_INFERRED) or row.steps > 0
    return (
        times
        and steps
        and row.rank < row.world_size <= MAX_WORLD
        and positive(row.wall)
        and row.wall <= LONGEST
        and not_negative(row.bytes)
        and row.window < MAX_WINDOW
    )


def accept(rows: list[Row], last: int | None, last_tenth: int | None) -> list[Row]:
    """Rows of the window that most of them name, one of each rank, by rank.

    ``last`` and ``last_tenth`` are the job's last scored window and tenth of one; nothing up to
    them is accepted again.
    """

    def of(row: Row) -> tuple[int, int]:
        return row.flags & TENTH, row.window

    done = {0: last, TENTH: last_tenth}
    good = []
    for row in rows:
        before = done[row.flags & TENTH]
        if plausible(row) and (before is None or row.window > before):
            good.append(row)
    if not good:
        return []
    counts: dict[tuple[int, int], int] = {}
    for row in good:
        counts[of(row)] = counts.get(of(row), 0) + 1
    most = min(counts, key=lambda one: (-counts[one], one))
    accepted: dict[int, Row] = {}
    for row in good:
        if of(row) == most:
            accepted.setdefault(row.rank, row)
    return [accepted[rank] for rank in sorted(accepted)]
