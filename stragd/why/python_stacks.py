"""Python stacks of a process by py-spy, sampled without stopping it, and their comparison."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stragd.jobs import clean

RATE = 20
"""Samples per second."""
MAX_TEXT = 8 << 20
MAX_SHOWN = 50
LEAST_POINTS = 0.2
CALLERS = 3

_THREAD = re.compile(r"thread \((?:0x[0-9A-Fa-f]+|(\d+))\)(?:: (.*))?")

_LINE = re.compile(r":\d+\)$")


@dataclass(frozen=True)
class Stack:
    """One Python stack of one thread and how often it was met."""

    tid: int
    thread: str
    frames: tuple[str, ...]  # "function (file:line)", innermost first
    samples: int


def parse(text: str) -> list[Stack]:
    """py-spy's raw format, one "thread (TID): name;outermost;...;innermost COUNT" a line.

    Names are the job's to choose: a line that is none is left out.
    """
    found = []
    for line in text.splitlines():
        path, _, count = line.rpartition(" ")
        frames = path.split(";")
        thread = _THREAD.fullmatch(frames[0])
        if thread and len(frames) > 1 and count.isascii() and count.isdigit() and len(count) < 9:
            names = tuple(clean(frame, 160) for frame in frames[:0:-1])
            tid = int((thread[1] or "0")[:9])
            found.append(Stack(tid, clean(thread[2] or "", 60), names[:100], int(count)))
    return found


def shares(stacks: Iterable[Stack], tid: int) -> tuple[dict[str, float], dict[str, Sequence[str]]]:
    """Of one thread: innermost function -> share of its samples, and its most frequent stack."""
    counts: Counter[str] = Counter()
    paths: dict[str, tuple[int, Sequence[str]]] = {}
    for stack in stacks:
        if stack.tid == tid:
            leaf = _LINE.sub(")", stack.frames[0])
            counts[leaf] += stack.samples
            if stack.samples > paths.get(leaf, (0, ()))[0]:
                paths[leaf] = stack.samples, stack.frames[: 1 + CALLERS]
    total = counts.total()
    return (
        {leaf: count / total for leaf, count in counts.most_common()},
        {leaf: path for leaf, (_, path) in paths.items()},
    )


@dataclass(frozen=True)
class Place:
    """Where a main thread was in Python."""

    stack: Sequence[str]  # the function's most frequent, innermost first
    rank: float  # share of samples
    peer: float | None


def places(rank: Sequence[Stack], pid: int, peer: Sequence[Stack], peer_pid: int) -> list[Place]:
    """Functions of which the main threads' shares differ by 20 points, the rank's own first.

    With few samples by more: by three standard errors of a share.
    """
    count = min(_samples(rank, pid), _samples(peer, peer_pid))
    mine, stacks = shares(rank, pid)
    others, their_stacks = shares(peer, peer_pid)
    if not mine or not others:
        return []
    stacks = {**their_stacks, **stacks}
    least = max(LEAST_POINTS, 3 * math.sqrt(0.5 / count))
    found = [
        Place(stacks[leaf], mine.get(leaf, 0.0), others.get(leaf, 0.0))
        for leaf in {**mine, **others}
        if abs(mine.get(leaf, 0.0) - others.get(leaf, 0.0)) >= least
    ]
    return sorted(found, key=lambda p: (p.rank - (p.peer or 0)), reverse=True)


def _samples(stacks: Iterable[Stack], tid: int) -> int:
    return sum(stack.samples for stack in stacks if stack.tid == tid)


def usual(stacks: Sequence[Stack], pid: int, least: float = 0.1) -> list[Place]:
    """Where the main thread mostly is, without a comparison."""
    mine, paths = shares(stacks, pid)
    return [Place(paths[leaf], share, None) for leaf, share in mine.items() if share >= least]


def as_json(stacks: Sequence[Stack]) -> list[Mapping[str, Any]]:
    """The stacks that were met most."""
    ordered = sorted(stacks, key=lambda s: -s.samples)[:MAX_SHOWN]
    return [
        {"tid": s.tid, "thread": s.thread, "samples": s.samples, "frames": list(s.frames)}
        for s in ordered
    ]
