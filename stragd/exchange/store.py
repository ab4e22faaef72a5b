"""The exchange over a job's own store: for who can start a process on each node, but no server.

Every job has its store, so a connection and a place in it for each: ``store_job.py``. All runs in
one thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from stragd.config import Exchange as Settings
from stragd.exchange.background import CLOSE_SECONDS, Background
from stragd.exchange.store_address import StoreAddress
from stragd.exchange.store_job import MAX_STATE, StoreJob


class Store(Background):
    """The stores of this node's jobs.

    ``find`` says where the one of a job is, or raises ValueError with the reason why that is not
    known; it is called by the main loop's thread.
    """

    max_state = MAX_STATE

    def __init__(self, settings: Settings, node: str, find: Callable[[int], StoreAddress]) -> None:
        super().__init__()
        self.node = node
        self._settings = settings
        self._find = find
        self._instance = secrets.randbits(62)
        self._nowhere: dict[int, str] = {}  # jobs whose store is not known, and why
        self._jobs: dict[int, StoreJob] = {}

    # The main loop's side.

    def join(self, job: int) -> None:
        try:
            address = self._find(job)
        except ValueError as error:
            self._nowhere[job] = str(error)
            return
        self._nowhere.pop(job, None)
        self._do(self._join(job, address))

    def leave(self, job: int) -> None:
        self._nowhere.pop(job, None)
        self._do(self._leave(job))

    def publish(self, job: int, data: bytes) -> None:
        if job in self._nowhere:
            self._counters["dropped.away"] += 1
            self.join(job)
            return
        self._of(job, lambda one: one.publish(data))

    def announce(self, job: int, epoch: int, data: bytes) -> None:
        self._of(job, lambda one: one.announce(epoch, data))

    def contend(self, job: int, before: int = 0) -> None:
        # What was kept of another job lay in that one's store.
        self._of(job, StoreJob.contend)

    def resign(self, job: int) -> None:
        self._of(job, StoreJob.resign)

    def keep(self, job: int, state: bytes, number: int) -> None:
        self._of(job, lambda one: one.keep(state, number))

    def report(self, job: int, data: bytes) -> None:
        """To nobody: a job's store knows no other job."""

    def problem(self) -> str:
        jobs = (one.problem for one in list(self._jobs.values()))
        problems = (self._ended, *self._nowhere.values(), *jobs)
        return next((text for text in problems if text), "")

    def _of(self, job: int, work: Callable[[StoreJob], Coroutine[Any, Any, None]]) -> None:
        async def there() -> None:
            one = self._jobs.get(job)
            if one is not None:
                await work(one)

        self._do(there())

    # The thread.

    async def _failed(self, error: Exception) -> None:
        """It is counted; each job's store says its own problem."""

    async def _main(self) -> None:
        await self._stop.wait()
        with contextlib.suppress(*self.errors):
            leaving = [self._guard(self._leave(job)) for job in list(self._jobs)]
            await asyncio.wait_for(asyncio.gather(*leaving), CLOSE_SECONDS / 2)

    async def _join(self, job: int, address: StoreAddress) -> None:
        if job not in self._jobs:
            one = StoreJob(self, job, self._instance, address, self._settings)
            self._jobs[job] = one
            one.task = asyncio.create_task(one.follow())

    async def _leave(self, job: int) -> None:
        one = self._jobs.pop(job, None)
        if one is not None:
            await one.leave()
