"""A sick rank and its healthy twin, watched by the daemon's own `Causes` over real readers.

The node's eight ranks are two jobs of four. A few healthy windows, then both have a straggler: in
one the condition is injected, in the other its twin.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from stragd.causes import Causes
from stragd.config import Telemetry
from stragd.finding import Finding
from stragd.findings import FindingStore
from stragd.jobs import JobTable
from tests.device_condition import Change, Condition
from tests.made_up_node import WINDOW_S, Node, Passes, Rank
from tests.pictures import raw_finding
from tests.test_jobs import identity

OF_A_JOB = 4
HEALTHY, LEAST, MOST = 4, 3, 16
"""Windows before the condition, and with it: some are read from the NIC every twelfth."""
SICK, TWIN = 1, 2  # jobs


@dataclass(frozen=True)
class Seen:
    """What was said of both."""

    sick: Finding
    """At the end."""
    windows: int
    """With the condition, until its rank had a cause for as long as was looked."""
    of_twin: tuple[str, ...]
    """Causes that were named at any moment."""

    def verdict(self, condition: Condition) -> str:
        """The cause that was named; with what is wrong about it, if it is the expected one."""
        cause = self.sick["cause"]
        name = cause["name"]
        if name != condition.cause:
            return name
        if self.sick["where"] != condition.where:
            return f"{name} of {self.sick['where']}"
        return name if condition.words in cause["evidence"][0] else f"{name} for another reason"


class _Watched:
    def __init__(self, node: Node, collector: Passes, draw: random.Random) -> None:
        self._node, self._collector, self._draw = node, collector, draw
        order = list(node.ranks)
        first, second = order[:OF_A_JOB], order[OF_A_JOB:]
        self._jobs = {SICK: first, TWIN: second}
        if draw.random() < 0.5:
            self._jobs = {SICK: second, TWIN: first}
        self._slow = {job: draw.randrange(OF_A_JOB) for job in self._jobs}
        self._table = _table(node, self._jobs)
        self._store = FindingStore()
        config = Telemetry(seconds=1)
        self._causes = Causes(config, "node7", lambda *_: None, lambda *_: collector)
        self._now = 0.0
        self._since_ns = 0

    def window(self, changes: dict[int, Change], first: bool = False) -> None:
        """One window of both jobs, read by all readers."""

        def change() -> None:
            for job, ranks in self._jobs.items():
                for number, rank in enumerate(ranks):
                    rank.first = first
                    if changes and number != self._slow[job]:
                        rank.gpu.waits()
            for job, made in changes.items():
                ranks = self._jobs[job]
                made(ranks[self._slow[job]], ranks)

        self._node.write(self._draw, change)
        self._now += WINDOW_S
        before, limit = self._collector.time_ns, time.monotonic() + 60
        self._causes.window(self._table, self._now)
        while self._collector.time_ns == before:
            self._causes.tick(self._table, self._store, self._now)
            assert time.monotonic() < limit, "waited 60 s in vain for a pass"
            time.sleep(0.005)

    def healthy(self) -> None:
        """Windows of health."""
        for _ in range(HEALTHY):
            self.window({})
        self._since_ns = self._collector.time_ns - 1_000_000_000  # its second ends with the last

    def finding(self, job: int, windows: int) -> Finding:
        """What is said of a job's straggler."""
        state = "suspect" if windows == 1 else "confirmed"
        raw = raw_finding(
            job=job,
            rank=self._slow[job],
            slowdown=0.3,
            state=state,
            since_time_ns=self._since_ns,
        )
        scored = [(raw["id"], self._table.finding(self._table.jobs[job], raw))]
        self._store.apply(job, self._causes.explain(self._table.jobs[job], scored))
        return next(f for f in self._store.open() if f["job"]["key"] == f"{job:016x}")


def observed(node: Node, collector: Passes, condition: Condition, draw: random.Random) -> Seen:
    """What the daemon says of a rank with this condition, and of its twin."""
    watched = _Watched(node, collector, draw)
    watched.healthy()
    changes = {SICK: condition.inject, TWIN: condition.twin}
    of_twin: set[str] = set()
    for windows in range(1, MOST + 1):
        watched.window(changes, first=windows == 1)
        sick, twin = (watched.finding(job, windows) for job in (SICK, TWIN))
        of_twin.add(twin["cause"]["name"])
        if windows >= LEAST and sick["cause"]["name"] != "unknown":
            break
    return Seen(sick, windows, tuple(sorted(of_twin - {"unknown"})))


def _table(node: Node, jobs: dict[int, list[Rank]]) -> JobTable:
    table = JobTable()
    for job, ranks in jobs.items():
        for number, rank in enumerate(ranks):
            process = node.processes[rank.number]
            table.seen(process)
            table.add(process, identity(job, number))
        for one in table.jobs[job].ranks.values():
            status: dict[str, object] = {"signature": 1, "last_event_ns": 1, "steps": 1}
            status |= {"collectives": 1, "in_flight": 0, "coverage": None, "missed": []}
            one.own, one.status = 10.0, status  # type: ignore[assignment]
    return table
