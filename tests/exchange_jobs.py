"""Members of an exchange in one process, fed with simulated windows under a clock of the test's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stragd.exchange.cluster import Cluster
from stragd.exchange.interface import Exchange
from stragd.exchange.local import Hub, Local
from stragd.exchange.message import Sender
from stragd.exchange.verdict import Verdict, encode
from stragd.lineage import Before
from stragd.replay.simulate import Scenario, simulate
from tests.harness import wait_for

WINDOW_SECONDS = 10.0
"""Of simulated windows: 100 steps of 0.1 s."""


@dataclass
class Member:
    """One node: its part in the cluster and the verdicts that came to it."""

    name: str
    cluster: Cluster
    transport: Exchange
    ranks: range
    offset: int = 0  # its own step number of the job's step 0
    boot_ns: int = 10**15  # what its monotonic clock is ahead of the test's
    clock_error_ns: int = 0  # of its wall clock
    window_seconds: float = WINDOW_SECONDS
    before: Before = field(default_factory=Before)
    verdicts: list[Verdict] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def offer(self, window: np.ndarray, now: float) -> None:
        """The part of a window that this node sees, in its own numbers and clocks."""
        rows = window[np.isin(window["rank"], list(self.ranks))].copy()
        rows["comm"] += rows["wait"].min()  # transfers are what the least of its own ranks waits
        rows["first_step"] += np.uint64(self.offset)
        rows["last_step"] += np.uint64(self.offset)
        end = int(now * 1e9) + self.boot_ns
        rows["end_ns"], rows["start_ns"] = end, end - int(self.window_seconds * 1e9)
        rows["time_ns"] = rows["time_ns"].astype(np.int64) + self.clock_error_ns
        classes = {int(number): f"cpu/{number}" for number in set(rows["class_id"].tolist())}
        self.cluster.offer(rows, "pretrain", "torchrun", classes, {}, now, end, self.before)

    def turn(self, now: float) -> None:
        self.verdicts += self.cluster.turn(now)

    def named(self) -> list[tuple[str, str, int | None, str]]:
        """(id, state, rank, host) of each finding of the last verdict."""
        if not self.verdicts:
            return []
        return [
            (f["id"], f["state"], f["subject"].get("rank"), f["subject"].get("host", ""))
            for _, f in self.verdicts[-1].findings
        ]


class Cast:
    """Nodes of one job on a hub."""

    def __init__(self, nodes: int = 4, each: int = 2, **arguments: Any) -> None:
        self.now = 1000.0
        self.hub = Hub(lambda: self.now)
        self.members = [
            self.member(f"node{n}", range(n * each, (n + 1) * each), **arguments)
            for n in range(nodes)
        ]

    def member(self, name: str, ranks: range, deadline: float = 2.0, lease: float = 5.0) -> Member:
        """One more, not yet among the members."""
        transport = Local(self.hub, name)
        said: list[str] = []
        sender = Sender(name, f"{name}.example", abs(hash((name, self.now))) % (1 << 60))
        cluster = Cluster(transport, sender, {}, deadline, lease, said.append, seed=1)
        cluster.start()
        return Member(name, cluster, transport, ranks, said=said)

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, a second at a time, and everybody act."""
        self.now += min(seconds, 0.01)
        for second in range(int(seconds) + 1):
            self.now += 1.0 if second else 0.0
            for member in self.members:
                member.turn(self.now)
                member.cluster.tick(self.now)

    def window(self, window: np.ndarray) -> None:
        """One window of all members, at once, and the time until it is scored."""
        for member in self.members:
            member.offer(window, self.now)
        self.turn(WINDOW_SECONDS)


def job(windows: int, ranks: int = 8, **more: Any) -> list[np.ndarray]:
    """Windows of a whole job."""
    return list(simulate(Scenario(ranks=ranks, windows=windows, tenths=False, **more)))


# Members whose transports have threads of their own, under the real clock.


def run(them: list[Member], seconds: float = 0.0) -> None:
    """What their daemons' main loops do, for so long."""
    end = time.monotonic() + seconds
    while True:
        for member in them:
            member.turn(time.monotonic())
            member.cluster.tick(time.monotonic())
        if time.monotonic() >= end:
            return
        time.sleep(0.02)


def give(them: list[Member], window: np.ndarray) -> None:
    """A window of all, and the time until each has the verdict about it."""
    number = int(window["window"][0])
    for member in them:
        member.boot_ns = 0
        member.offer(window, time.monotonic())

    def all_have_it() -> bool:
        return all(member.verdicts and member.verdicts[-1].window >= number for member in them)

    until(them, "the verdict on every node", all_have_it)


def until(them: list[Member], what: str, check: Callable[[], object]) -> None:
    """Let their main loops run until something holds."""
    wait_for(what, lambda: run(them) or check())


def hello(job: int, epoch: int, node: str) -> bytes:
    """A scorer's verdict about nothing."""
    return encode(Verdict(job, epoch, node, 0, "j", "t", 8, 8, 1, (), None, (), ()))
