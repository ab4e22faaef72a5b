"""The scorer roles that a node holds over NATS: leases in a JetStream bucket, scores in another.

The bucket's TTL is the lease's: what is not renewed is gone, by the server's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.kv import KeyValue

from stragd.config import Exchange as Settings
from stragd.exchange.background import Background
from stragd.exchange.interface import Event
from stragd.exchange.lease import Role, hold, holder, lease
from stragd.exchange.nats_scores import REQUEST_SECONDS, Scores, context, key_value

READINGS = 6
"""Of what the last scorer left that may fail, one after the other, until it is done without."""


class _Held(Role):
    def __init__(self, epoch: int, revision: int, renewed: float) -> None:
        super().__init__(epoch, renewed)
        self.revision = revision
        self.windows: Any = None  # the subscription


class Roles:
    """The thread of the transport only. ``subscribe`` gets the windows of a job."""

    def __init__(
        self,
        transport: Background,
        node: str,
        settings: Settings,
        subscribe: Callable[[int], Awaitable[Any]],
        tell: Callable[[Event], None],
    ) -> None:
        self._transport, self._node, self._settings = transport, node, settings
        self._subscribe, self._tell = subscribe, tell
        self._bucket: KeyValue | None = None
        self._scores: Scores | None = None
        self._held: dict[int, _Held] = {}
        self._asking: set[int] = set()
        self._confirmed: dict[int, tuple[str, int]] = {}  # who the lease of a job names
        self._unread: Counter[int] = Counter()

    @property
    def ready(self) -> bool:
        """Whether the buckets are open."""
        return self._bucket is not None

    async def open(self, client: Client) -> None:
        """Open the buckets, or make them. Raises what NATS does."""
        settings = self._settings
        stream, name = context(client, settings), f"stragd-{settings.cluster}-roles"
        bucket = await key_value(stream, name, settings.lease_seconds, settings)
        self._scores = await Scores.open(stream, settings)
        self._bucket = bucket

    def returned(self) -> None:
        """Connected again: what was confirmed before may not hold any more."""
        self._confirmed.clear()

    def end(self) -> None:
        """The connection has ended, and every role with it."""
        for job in list(self._held):
            self._lose(job)
        self._bucket = self._scores = None

    async def resign_all(self) -> None:
        """Give every role back."""
        guard = self._transport._guard
        await asyncio.gather(*(guard(self.resign(job)) for job in list(self._held)))

    async def confirms(self, job: int, node: str, epoch: int) -> bool:
        """Whether the lease of a job names this node and epoch; asked once for each scorer."""
        if self._confirmed.get(job) == (node, epoch):
            return True
        if self._bucket is None:
            return False
        try:
            entry = await self._bucket.get(f"{job:016x}")
        except self._transport.errors:
            return False
        if holder(entry.value) != (node, epoch):
            return False
        self._confirmed[job] = (node, epoch)
        return True

    async def contend(self, job: int, before: int) -> None:
        """Take the role where nobody has it."""
        bucket, scores = self._bucket, self._scores
        if bucket is None or scores is None or job in self._held or job in self._asking:
            return
        self._asking.add(job)
        try:
            begun = asyncio.get_running_loop().time()
            epoch = await bucket.create(f"{job:016x}", lease(self._node, 0))
            value = lease(self._node, epoch)
            revision = await bucket.update(f"{job:016x}", value, last=epoch)
            role = _Held(epoch, revision, begun)
            state = await self._state(scores, job, before)
            self._held[job] = role
            role.windows = await self._subscribe(job)
            self._tell(Event("held", job, self._node, state, epoch, time.monotonic()))
            role.task = asyncio.create_task(self._hold(bucket, scores, job, role))
        except nats.js.errors.KeyWrongLastSequenceError:
            pass  # somebody holds it
        finally:
            self._asking.discard(job)

    async def resign(self, job: int) -> None:
        """Give the role back, and what is to be handed over with it."""
        self._confirmed.pop(job, None)
        self._unread.pop(job, None)
        role = self._held.pop(job, None)
        if role is None:
            return
        if self._scores is not None:
            await self._store(self._scores, job, role)
        if role.windows is not None:
            await role.windows.unsubscribe()
        if self._bucket is not None and await self._still(self._bucket, job, role):
            await self._bucket.delete(f"{job:016x}", last=role.revision)

    async def keep(self, job: int, state: bytes, number: int) -> None:
        """State for whoever comes next; the last one counts."""
        role = self._held.get(job)
        if role is not None:
            role.put_state(number, state)

    async def _hold(self, bucket: KeyValue, scores: Scores, job: int, role: _Held) -> None:
        async def renew() -> bool:
            value = lease(self._node, role.epoch)
            try:
                role.revision = await bucket.update(f"{job:016x}", value, last=role.revision)
            except nats.js.errors.KeyWrongLastSequenceError:
                return await self._still(bucket, job, role)
            return True

        await hold(
            self._transport,
            role,
            self._settings.lease_seconds,
            lambda: self._held.get(job) is role,
            lambda: self._store(scores, job, role),
            renew,
        )
        if self._held.get(job) is role:
            self._lose(job)

    async def _still(self, bucket: KeyValue, job: int, role: _Held) -> bool:
        """Whether the lease is this role's: an answer to a renewal may have been lost."""
        with contextlib.suppress(*self._transport.errors):
            entry = await bucket.get(f"{job:016x}")
            if entry.value == lease(self._node, role.epoch) and entry.revision is not None:
                role.revision = entry.revision
                return True
        return False

    def _lose(self, job: int) -> None:
        role = self._held.pop(job)
        if role.windows is not None:
            asyncio.create_task(self._transport._guard(role.windows.unsubscribe()))  # noqa: RUF006
        self._tell(Event("lost", job, self._node, epoch=role.epoch))

    async def _state(self, scores: Scores, job: int, before: int) -> bytes:
        """What the last scorer left of the job, or of that before it.

        nats-py would wait for ever for parts that do not come.
        """
        if self._unread[job] >= READINGS:
            del self._unread[job]
            return b""
        self._unread[job] += 1
        patience = max(self._settings.lease_seconds, REQUEST_SECONDS)
        state = await asyncio.wait_for(scores.get(job), patience)
        if not state and before:
            state = await asyncio.wait_for(scores.get(before), patience)
        del self._unread[job]
        return state

    async def _store(self, scores: Scores, job: int, role: _Held) -> None:
        async with role.taken_state() as taken:
            if taken is not None:
                number, state = taken
                await scores.put(job, state)
                self._transport._counters["kept"] += 1
                self._tell(Event("kept", job, self._node, epoch=role.epoch, number=number))
