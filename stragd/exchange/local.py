"""The exchange in process: members of one hub see each other, without any network.

A daemon on its own has no use for it: every window of its jobs is scored where it is made.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable

from stragd.exchange.interface import Event, Inbox


class Hub:
    """What the members share: who follows which job, who holds which role, what was kept."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.lock = threading.RLock()
        self.members: list[Local] = []
        self.holders: dict[int, Local] = {}
        self.epochs: dict[int, int] = {}
        self.states: dict[int, bytes] = {}


class Local:
    """One member of a hub."""

    max_state = 64 << 20

    def __init__(self, hub: Hub, node: str) -> None:
        self.node = node
        self._hub = hub
        self._counters: Counter[str] = Counter()
        self._inbox = Inbox(self._counters)
        self._jobs: set[int] = set()

    def start(self) -> None:
        with self._hub.lock:
            self._hub.members.append(self)

    def close(self) -> None:
        for job in list(self._jobs):
            self.leave(job)
        self.vanish()

    def vanish(self) -> None:
        """Be gone without a word; its roles are free, as after the end of a lease."""
        with self._hub.lock:
            self._hub.members = [member for member in self._hub.members if member is not self]
            for job in [j for j, holder in self._hub.holders.items() if holder is self]:
                del self._hub.holders[job]

    def join(self, job: int) -> None:
        self._jobs.add(job)

    def leave(self, job: int) -> None:
        self.resign(job)
        self._jobs.discard(job)

    def publish(self, job: int, data: bytes) -> None:
        with self._hub.lock:
            holder = self._hub.holders.get(job)
        if holder is None:
            self._counters["dropped.nobody"] += 1
            return
        self._counters["sent"] += 1
        holder.deliver(Event("windows", job, self.node, data, at=self._hub.clock()))

    def announce(self, job: int, epoch: int, data: bytes) -> None:
        with self._hub.lock:
            if self._hub.holders.get(job) is not self or self._hub.epochs[job] != epoch:
                self._counters["refused.epoch"] += 1
                return
            members = [member for member in self._hub.members if job in member._jobs]
        for member in members:
            member.deliver(Event("verdict", job, self.node, data, at=self._hub.clock()))

    def contend(self, job: int, before: int = 0) -> None:
        with self._hub.lock:
            if job in self._hub.holders:
                return
            self._hub.holders[job] = self
            epoch = self._hub.epochs[job] = self._hub.epochs.get(job, 0) + 1
            state = self._hub.states.get(job) or self._hub.states.get(before, b"")
        self._inbox.put(Event("held", job, self.node, state, epoch, self._hub.clock()))

    def resign(self, job: int) -> None:
        with self._hub.lock:
            if self._hub.holders.get(job) is self:
                del self._hub.holders[job]

    def keep(self, job: int, state: bytes, number: int) -> None:
        with self._hub.lock:
            if self._hub.holders.get(job) is not self:
                return
            self._hub.states[job] = state
            epoch = self._hub.epochs[job]
        self._inbox.put(Event("kept", job, self.node, epoch=epoch, number=number))

    def report(self, job: int, data: bytes) -> None:
        with self._hub.lock:
            members = list(self._hub.members)
        for member in members:
            member.deliver(Event("summary", job, self.node, data, at=self._hub.clock()))

    def deliver(self, event: Event) -> None:
        """An event from another member."""
        self._counters["received"] += 1
        self._inbox.put(event)

    def receive(self) -> list[Event]:
        return self._inbox.take()

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def problem(self) -> str:
        return ""
