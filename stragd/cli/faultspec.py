"""Faults as a person types them for `stragctl simulate`: ``slow=5,ranks=25%,class=H200``."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stragd.cli.ranges import number
from stragd.replay.simulate import Fault, Scenario, Transfers, class_of, stage_of

HEALTHY = 200
"""Windows before a fault: what the scorer knows of a job that runs for a while."""
AFTER = 64
"""Windows that a fault is looked at which does not end."""
RECOVERED = 16
"""Windows that are looked at after the end of one that does."""
FOREVER = 1 << 30
MOST_WINDOWS = 10_000

EXAMPLES = "slow=5 or slow=3,ranks=25%,class=H200 or drift=0.1 or network=50"
KINDS: dict[str, tuple[float, float]] = {
    "slow": (0.1, 1000.0), "drift": (0.001, 100.0), "network": (1.0, 10_000.0),
}  # fmt: skip
"""Kinds of faults and the range of their size, percent."""


class FaultError(Exception):
    """A fault that does not fit the job: the thing, the reason and the way out in one line."""


@dataclass(frozen=True)
class FaultSpec:
    """One fault as it was typed."""

    text: str
    kind: Literal["slow", "drift", "network"]
    size: float
    """A ratio: 0.05 is 5 %."""
    count: int = 1
    share: float = 0.0
    """Of the ranks among whom they are; instead of a count where it is not 0."""
    machine: str = ""
    stage: int = -1
    begin: int = HEALTHY
    windows: int = FOREVER
    every: int = 1
    missing: float = 0.0
    replaced: bool = False


@dataclass(frozen=True)
class Case:
    """A fault in a job, and what should be said about it."""

    fault: FaultSpec
    scenario: Scenario
    expected: str
    """Kind of the finding."""
    span: int
    """Windows that are looked at, from the first slow one on."""


def fault(text: str) -> FaultSpec:
    """Reads one fault. Raises argparse.ArgumentTypeError."""
    first, *rest = text.split(",")
    kind, _, size = first.partition("=")
    if kind not in KINDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} begins with none of {', '.join(f'{name}=PERCENT' for name in KINDS)}, as in "
            f"{EXAMPLES}"
        )
    low, high = KINDS[kind]
    spec = FaultSpec(text, kind, _number(kind, size, low, high) / 100)  # type: ignore[arg-type]
    seen = set()
    for item in rest:
        key, _, value = item.partition("=")
        if key in seen:
            raise argparse.ArgumentTypeError(f"{text!r}: {key} stands twice")
        seen.add(key)
        spec = _with(spec, key, value)
    if kind == "network" and seen - {"begin", "windows"}:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the network is one for all ranks; it takes begin and windows only"
        )
    if spec.replaced and spec.windows == FOREVER:
        raise argparse.ArgumentTypeError(
            f"{text!r}: replaced says how the fault ends, so it needs windows=N too"
        )
    return spec


def _with(spec: FaultSpec, key: str, value: str) -> FaultSpec:
    if key == "ranks":
        if value.endswith("%"):
            return replace(spec, share=_number(key, value[:-1], 0.001, 100) / 100)
        return replace(spec, count=_whole(key, value, 1, 1 << 20))
    if key == "class" and value:
        return replace(spec, machine=value)
    if key == "stage":
        return replace(spec, stage=_whole(key, value, 0, 1 << 16))
    if key == "begin":
        return replace(spec, begin=_whole(key, value, 0, MOST_WINDOWS))
    if key == "windows":
        return replace(spec, windows=_whole(key, value, 1, MOST_WINDOWS))
    if key == "every":
        return replace(spec, every=_whole(key, value, 2, 100))
    if key == "missing":
        return replace(spec, missing=_number(key, value, 0, 100) / 100)
    if key == "replaced" and not value:
        return replace(spec, replaced=True)
    raise argparse.ArgumentTypeError(
        f"{spec.text!r}: {key!r} is none of ranks=N or ranks=N%, class=NAME, stage=N, "
        "begin=WINDOW, windows=N, every=N, missing=PERCENT, replaced"
    )


def _number(key: str, text: str, low: float, high: float) -> float:
    try:
        return number(low, high)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{key}={text}: not between {low:g} and {high:g}"
        ) from None


def _whole(key: str, text: str, low: int, high: int) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else -1
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{key}={text}: not a number from {low} to {high}")
    return value


def case(spec: FaultSpec, base: Scenario, names: Sequence[str]) -> Case:
    """The fault in the job ``base``, whose classes have the ``names``. Raises FaultError."""
    end = min(spec.begin + spec.windows, FOREVER)
    span = AFTER if spec.windows == FOREVER else spec.windows + RECOVERED
    job = replace(base, windows=spec.begin + span)
    if spec.kind == "network":
        event = Transfers(spec.size, spec.begin, end)
        return Case(spec, replace(job, network=(event,)), "network", span)
    candidates = _candidates(spec, base, names)
    count = math.ceil(spec.share * len(candidates)) if spec.share else spec.count
    if count > len(candidates):
        raise FaultError(
            f"--fault {spec.text}: {count} slow ranks, and there are {len(candidates)} such ranks"
        )
    ranks = tuple(candidates[len(candidates) - count :])
    expected = _expected(spec, base, ranks)
    slow = Fault(
        ranks, 0.0 if spec.kind == "drift" else spec.size, spec.begin, end, spec.every,
        spec.size if spec.kind == "drift" else 0.0, spec.missing, spec.replaced,
    )  # fmt: skip
    ordinary = ranks if expected in ("straggler", "intermittent") else ()
    return Case(spec, replace(job, faults=(slow,), ordinary=ordinary), expected, span)


def _candidates(spec: FaultSpec, base: Scenario, names: Sequence[str]) -> list[int]:
    """Ranks of the class and stage that a fault names."""
    there = np.ones(base.ranks, bool)
    if spec.machine:
        if spec.machine not in names:
            known = f"the classes are {', '.join(names)}" if names else "no --class was given"
            raise FaultError(f"--fault {spec.text}: there is no class {spec.machine}; {known}")
        there &= class_of(base) == names.index(spec.machine)
    if spec.stage >= 0:
        if spec.stage >= len(base.stages):
            raise FaultError(
                f"--fault {spec.text}: there is no stage {spec.stage}; there are "
                f"{len(base.stages)}, counted from 0 (--pattern pipeline --stages N)"
            )
        there &= stage_of(base) == spec.stage
    ranks: list[int] = np.flatnonzero(there).tolist()
    if not ranks:
        raise FaultError(
            f"--fault {spec.text}: class {spec.machine} has no rank in stage {spec.stage}"
        )
    return ranks


def _expected(spec: FaultSpec, base: Scenario, ranks: Sequence[int]) -> str:
    """Kind of the finding that a fault should give."""
    if spec.every > 1:
        return "intermittent"
    if len(ranks) == base.ranks:
        return "job-wide"
    places: Mapping[str, np.ndarray] = {"imbalance": class_of(base), "uneven-work": stage_of(base)}
    for kind, place in places.items():
        mine = set(place[list(ranks)])
        if len(mine) == 1 and int((place == mine.pop()).sum()) == len(ranks):
            return kind
    return "straggler"
