"""One job's store as a member of it sees it: windows and verdicts under a prefix of our own.

``stragd/CLUSTER/JOB/`` and then: ``slot/N`` the node with that place, ``head/N`` how far it has
come, ``window/N/K`` its last windows, ``role`` the scorer's lease, ``verdict`` and ``state`` what
the scorer says and hands over, ``joined`` and ``sent`` counters that say whether to look again.
A turn looks at a few small keys; nobody deletes a key and nobody waits for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, cast

from stragd.config import Exchange as Settings
from stragd.exchange.interface import Event
from stragd.exchange.lease import Role, hold, holder, lease
from stragd.exchange.message import MessageError, is_node
from stragd.exchange.store_address import StoreAddress
from stragd.exchange.tcpstore import (
    ABSENT,
    MAX_REPLIES,
    MAX_VALUE,
    Request,
    StoreError,
    TCPStoreClient,
    add,
    put,
    read,
    swap,
)
from stragd.exchange.verdict import decode

if TYPE_CHECKING:
    from stragd.exchange.store import Store

MAX_NODES = 256
KEPT = 8
"""Windows of a node that lie in the store."""
MAX_STATE = 8 << 20
ANSWER_SECONDS = 5.0
GONE_SECONDS = 60.0
"""A store that is gone so long while its job goes on is worth a line; most go with their job."""
FULL_SECONDS = 60.0
_MARK = struct.Struct("<QQ")  # instance, number: before a window
_HEAD = struct.Struct(f"<QQ{KEPT}I")  # and the sizes of the last ones
_PART = struct.Struct("<QII")  # generation, bytes, CRC-32 of something in parts


class StoreFull(StoreError):
    """Every place is taken."""


class StoreJob:
    """The exchange's thread only."""

    def __init__(
        self, store: Store, job: int, instance: int, address: StoreAddress, settings: Settings
    ) -> None:
        self.problem = ""
        self.task: asyncio.Task[None] | None = None
        self._store, self._job, self._instance = store, job, instance
        self._address, self._settings = address, settings
        self._prefix = f"stragd/{settings.cluster}/{job:016x}/"
        self._every = min(max(settings.lease_seconds / 5, 0.1), 1.0)
        self._client: TCPStoreClient | None = None
        self._outbox: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._slot = 0
        self._sent = 0
        self._sizes = [0] * KEPT
        self._lease: tuple[bytes, float] = (ABSENT, 0.0)  # last value, since when it is that
        self._wanted_until = 0.0
        self._role: Role | None = None
        self._value = b""  # of our lease
        self._verdict = b""  # head of the last one that was read
        self._looked = (-1, -1)  # counters at the last look for windows
        self._nodes: dict[int, str] = {}  # by slot
        self._read: dict[int, tuple[int, int]] = {}  # slot -> instance and number of its last

    # What the transport is asked for.

    async def publish(self, data: bytes) -> None:
        if len(data) + _MARK.size > MAX_VALUE:
            self._store._counters["refused.oversized"] += 1
            return
        self._outbox.append(data)
        while len(self._outbox) > KEPT:
            self._outbox.popleft()
            self._store._counters["dropped.away"] += 1
        self._wake.set()

    async def announce(self, epoch: int, data: bytes) -> None:
        role, client = self._role, self._client
        if role is None or client is None or role.epoch != epoch:
            self._store._counters["refused.epoch"] += 1
            return
        await self._write(client, "verdict", data)
        self._store._counters["sent"] += 1
        self._wake.set()

    async def contend(self) -> None:
        self._wanted_until = asyncio.get_running_loop().time() + self._settings.lease_seconds
        self._wake.set()

    async def keep(self, state: bytes, number: int) -> None:
        if self._role is not None:
            self._role.put_state(number, state)

    async def resign(self) -> None:
        self._wanted_until = 0.0
        role, client = self._role, self._client
        self._role = None
        if role is None or client is None:
            return
        await self._keep(client, role)
        await client.ask([swap(self._key("role"), self._value, lease("", role.epoch))],
                         ANSWER_SECONDS)  # fmt: skip

    async def leave(self) -> None:
        """Give the role and the place back, and end."""
        client = self._client
        try:
            await self.resign()
            if client is not None:
                place = self._key(f"slot/{self._slot}")
                await client.ask([swap(place, self._store.node.encode(), b"")], ANSWER_SECONDS)
        finally:
            if self.task is not None:
                self.task.cancel()

    # The connection.

    async def follow(self) -> None:
        """Take part for as long as the job is here; the store may come and go."""
        pause, alone = 0.0, time.monotonic()
        while True:
            try:
                await self._connection()
            except StoreFull as error:
                self.problem, pause = str(error), FULL_SECONDS
            except (OSError, asyncio.TimeoutError, ValueError) as error:
                if self._client is not None:  # it was there until now
                    alone, pause = time.monotonic(), 0.0
                pause = min(max(2 * pause, self._settings.retry_seconds), 30.0)
                if time.monotonic() - alone > GONE_SECONDS:
                    self.problem = (
                        f"the store of job {self._job:016x} at {self._address} is not there: "
                        f"{error}; verdicts are this node's own meanwhile"
                    )
            finally:
                self._drop()
            await asyncio.sleep(self._store._jittered(pause))

    async def _connection(self) -> None:
        address = self._address
        client = await TCPStoreClient.connect(
            address.host, address.port, address.dialect, ANSWER_SECONDS
        )
        try:
            await self._enter(client)
            self._client, self.problem = client, ""
            self._store._inbox.put(Event("back", self._job))
            while True:
                self._wake.clear()
                await self._turn(client)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), self._every)
        finally:
            client.close()

    def _drop(self) -> None:
        """The connection has ended, and with it the role."""
        self._client = None
        self._lease, self._looked, self._verdict = (ABSENT, 0.0), (-1, -1), b""
        role, self._role = self._role, None
        if role is not None:
            if role.task is not None:
                role.task.cancel()
            self._lost(role)

    def _lost(self, role: Role) -> None:
        self._store._inbox.put(Event("lost", self._job, self._store.node, epoch=role.epoch))

    def _key(self, name: str) -> str:
        return self._prefix + name

    async def _enter(self, client: TCPStoreClient) -> None:
        """Take the first place, from one by its name on, that is free or was this node's."""
        name = self._store.node.encode()
        first = zlib.crc32(name)
        for place in ((first + n) % MAX_NODES for n in range(MAX_NODES)):
            (there,) = await client.ask([swap(self._key(f"slot/{place}"), b"", name)],
                                        ANSWER_SECONDS)  # fmt: skip
            if there == name:
                self._slot = place
                await client.ask([add(self._key("joined"), 1)], ANSWER_SECONDS)
                return
        raise StoreFull(
            f"{MAX_NODES} nodes take part in job {self._job:016x} over its store already, and it "
            "is made for no more: verdicts are this node's own; larger jobs need exchange.kind nats"
        )

    async def _read_all(self, client: TCPStoreClient, names: Iterable[str]) -> list[bytes]:
        """Small values, by name."""
        requests = [read(self._key(name)) for name in names]
        return cast("list[bytes]", await client.ask(requests, ANSWER_SECONDS))

    # A turn.

    async def _turn(self, client: TCPStoreClient) -> None:
        loop = asyncio.get_running_loop()
        requests = self._flushed()
        holds = self._role is not None
        requests += [read(self._key("role")), read(self._key("verdict"))]
        if holds:
            requests += [add(self._key("joined"), 0), add(self._key("sent"), 0)]
        answers = await client.ask(requests, ANSWER_SECONDS)
        counters = tuple(cast("list[int]", answers[-2:])) if holds else (-1, -1)
        value, head = cast("list[bytes]", answers[-4:-2] if holds else answers[-2:])
        if value != self._lease[0] or not self._lease[1]:
            self._lease = (value, loop.time())
        if head not in (ABSENT, self._verdict):
            await self._take_verdict(client, head)
        if self._role is None and loop.time() < self._wanted_until:
            await self._contend(client)
        elif holds and counters != self._looked:
            await self._collect(client, counters)

    def _flushed(self) -> list[Request]:
        """What brings the windows into the store, and says that they are there."""
        requests: list[Request] = []
        while self._outbox:
            data = self._outbox.popleft()
            self._sent += 1
            place = self._sent % KEPT
            self._sizes[place] = len(data) + _MARK.size
            mark = _MARK.pack(self._instance, self._sent)
            requests.append(put(self._key(f"window/{self._slot}/{place}"), mark + data))
            self._store._counters["sent"] += 1
        if requests:
            head = _HEAD.pack(self._instance, self._sent, *self._sizes)
            requests.append(put(self._key(f"head/{self._slot}"), head))
            requests.append(add(self._key("sent"), 1))
        return requests

    async def _take_verdict(self, client: TCPStoreClient, head: bytes) -> None:
        data = await self._fetch(client, "verdict", head)
        if data is None:
            return  # it is just being written: next time
        self._verdict = head
        self._store._counters["received"] += 1
        node, epoch = holder(self._lease[0])
        with contextlib.suppress(MessageError):  # refused, counted and said by who takes it
            verdict = decode(data)
            if (verdict.node, verdict.epoch) != (node, epoch):
                self._store._counters["refused.no_scorer"] += 1
                return
        self._store._inbox.put(Event("verdict", self._job, node, data, at=time.monotonic()))

    async def _collect(self, client: TCPStoreClient, counters: tuple[int, ...]) -> None:
        """The windows that came since the last look, for the scorer."""
        heads = await self._heads(client, counters[0])
        wanted: list[tuple[int, int, int, int]] = []  # slot, instance, number, size
        for slot, (instance, number, *sizes) in heads.items():
            before, last = self._read.get(slot, (instance, 0))
            first = max(last if before == instance else 0, number - KEPT)
            if before == instance and first > last > 0:
                self._store._counters["dropped.overwritten"] += first - last
            wanted += [(slot, instance, n, sizes[n % KEPT]) for n in range(first + 1, number + 1)]
            self._read[slot] = (instance, number)
        for part in _batches(wanted):
            names = (f"window/{slot}/{number % KEPT}" for slot, _, number, _ in part)
            now = time.monotonic()
            values = await self._read_all(client, names)
            for (slot, instance, number, _), value in zip(part, values, strict=True):
                if value[: _MARK.size] != _MARK.pack(instance, number):
                    self._store._counters["dropped.overwritten"] += 1
                    continue
                self._store._counters["received"] += 1
                node, data = self._nodes[slot], value[_MARK.size :]
                self._store._inbox.put(Event("windows", self._job, node, data, at=now))
        self._looked = cast("tuple[int, int]", counters)

    async def _heads(self, client: TCPStoreClient, joined: int) -> dict[int, tuple[int, ...]]:
        """How far each node has come, by its slot."""
        if joined != self._looked[0]:
            places = await self._read_all(client, (f"slot/{n}" for n in range(MAX_NODES)))
            texts = {slot: name.decode("ascii", "replace") for slot, name in enumerate(places)}
            self._nodes = {slot: name for slot, name in texts.items() if is_node(name)}
        slots = list(self._nodes)
        values = await self._read_all(client, (f"head/{slot}" for slot in slots))
        heads: dict[int, tuple[int, ...]] = {}
        for slot, value in zip(slots, values, strict=True):
            if len(value) == _HEAD.size:
                heads[slot] = _HEAD.unpack(value)
        return heads

    # The scorer role.

    async def _contend(self, client: TCPStoreClient) -> None:
        loop = asyncio.get_running_loop()
        value, since = self._lease
        node, epoch = holder(None if value == ABSENT else value)
        if node and loop.time() - since <= self._settings.lease_seconds:
            return  # somebody holds it, or may hold it still
        mine, begun = lease(self._store.node, epoch + 1, self._beat(0)), loop.time()
        request = swap(self._key("role"), b"" if value == ABSENT else value, mine)
        (there,) = await client.ask([request], ANSWER_SECONDS)
        if there != mine:
            return
        self._wanted_until = 0.0
        # What lies there is old, and is sent again to a new scorer.
        heads = await self._heads(client, -2)
        self._read = {slot: (head[0], head[1]) for slot, head in heads.items()}
        (head,) = await self._read_all(client, ["state"])
        state = await self._fetch(client, "state", head) or b""
        role = self._role = Role(epoch + 1, begun)
        self._value = mine
        event = Event("held", self._job, self._store.node, state, role.epoch, time.monotonic())
        self._store._inbox.put(event)
        role.task = asyncio.create_task(self._hold(client, role))

    def _beat(self, number: int) -> str:
        return f"{self._instance:x}.{number}"

    async def _hold(self, client: TCPStoreClient, role: Role) -> None:
        beats = 0

        async def renew() -> bool:
            nonlocal beats
            beats += 1
            mine = lease(self._store.node, role.epoch, self._beat(beats))
            (there,) = await client.ask([swap(self._key("role"), self._value, mine)],
                                        ANSWER_SECONDS)  # fmt: skip
            self._value = mine
            return there == mine

        await hold(
            self._store,
            role,
            self._settings.lease_seconds,
            lambda: self._role is role,
            lambda: self._keep(client, role),
            renew,
        )
        if self._role is role:
            self._role = None
            self._lost(role)

    async def _keep(self, client: TCPStoreClient, role: Role) -> None:
        async with role.taken_state() as taken:
            if taken is None or len(taken[1]) > MAX_STATE:
                return
            number, state = taken
            await self._write(client, "state", state)
        self._store._counters["kept"] += 1
        event = Event("kept", self._job, self._store.node, epoch=role.epoch, number=number)
        self._store._inbox.put(event)

    # What is longer than a value.

    async def _write(self, client: TCPStoreClient, name: str, data: bytes) -> None:
        """In parts, the new ones beside the old ones; the head is the last that is written."""
        (head,) = await self._read_all(client, [name])
        generation = (_PART.unpack(head)[0] + 1) % (1 << 63) if len(head) == _PART.size else 1
        for number, begin in enumerate(range(0, len(data), MAX_VALUE)):
            key = self._key(f"{name}/{generation % 2}/{number}")
            await client.ask([put(key, data[begin : begin + MAX_VALUE])], ANSWER_SECONDS)
        head = _PART.pack(generation, len(data), zlib.crc32(data))
        await client.ask([put(self._key(name), head)], ANSWER_SECONDS)

    async def _fetch(self, client: TCPStoreClient, name: str, head: bytes) -> bytes | None:
        """What a head stands for; None where it is not whole."""
        if len(head) != _PART.size:
            return None
        generation, size, checksum = _PART.unpack(head)
        if size > MAX_STATE:
            return None
        parts: list[bytes] = []
        for number in range(-(-size // MAX_VALUE)):
            parts += await self._read_all(client, [f"{name}/{generation % 2}/{number}"])
        data = b"".join(parts)
        return data if (len(data), zlib.crc32(data)) == (size, checksum) else None


def _batches(
    wanted: list[tuple[int, int, int, int]],
) -> Iterator[list[tuple[int, int, int, int]]]:
    """So many windows at once that their answers fit a socket's buffer."""
    part: list[tuple[int, int, int, int]] = []
    room = MAX_REPLIES
    for one in wanted:
        if part and one[3] > room:
            yield part
            part, room = [], MAX_REPLIES
        part.append(one)
        room -= one[3]
    if part:
        yield part
