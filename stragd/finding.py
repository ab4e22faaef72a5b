"""The finding: the one object that every output renders (schema: data/finding.schema.json)."""

from __future__ import annotations

from typing import Literal, TypedDict

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
    {"rank": int, "host": str, "class": str, "signature": str, "stage": int, "nic": str},
    total=False,
)


class Since(TypedDict):
    window: int
    time: str  # ISO 8601, UTC


class Cost(TypedDict):
    value: float
    low: float
    high: float


class Cause(TypedDict):
    name: str  # "unknown" when it is
    confidence: float
    evidence: list[str]
    advice: str


class Finding(TypedDict):
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
