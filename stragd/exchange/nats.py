"""The exchange over NATS: subjects per cluster and job, the scorer role as a lease in JetStream.

``stragd.CLUSTER.windows.JOB.NODE`` and ``stragd.CLUSTER.verdicts.JOB.NODE``, JOB in 16 hexadecimal
digits; the bucket ``stragd-CLUSTER-roles`` holds the leases (its TTL is theirs) and the object
store ``stragd-CLUSTER-scores`` what a scorer hands over. All runs in one thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import KeyValueConfig, ObjectStoreConfig
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from stragd.config import Exchange as Settings
from stragd.exchange.interface import Event, Inbox
from stragd.exchange.message import MAX_BYTES, MessageError, is_node
from stragd.exchange.verdict import decode

MAX_OUTBOX = 1024
MAX_STATE = 64 << 20
STATE_SECONDS = 86400.0
"""How long what a scorer left is kept."""
REQUEST_SECONDS = 2.0
CLOSE_SECONDS = 3.0
_ERRORS = (nats.errors.Error, asyncio.TimeoutError, OSError)


class _Role:
    """A lease that this node holds."""

    def __init__(self, epoch: int, revision: int, renewed: float) -> None:
        self.epoch, self.revision, self.renewed = epoch, revision, renewed
        self.windows: Any = None  # the subscription
        self.state: bytes | None = None  # to be kept
        self.task: asyncio.Task[None] | None = None  # renews it


class Nats:
    """One connection to the cluster's servers."""

    def __init__(self, settings: Settings, node: str) -> None:
        """Raises ValueError where the settings cannot be used."""
        self.node = node
        self._settings = settings
        self._prefix = f"stragd.{settings.cluster}"
        self._options = _options(settings)
        self._counters: Counter[str] = Counter()
        self._inbox = Inbox(self._counters)
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._problem = "not connected yet"
        self._thread: threading.Thread | None = None
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._wake = asyncio.Event()
        self._client: Client | None = None
        self._roles_bucket: KeyValue | None = None
        self._states: ObjectStore | None = None
        self._jobs: dict[int, Any] = {}  # subscription to the verdicts
        self._roles: dict[int, _Role] = {}
        self._asking: set[int] = set()
        self._scorers: dict[int, tuple[str, int]] = {}  # node and epoch that the lease confirms
        self._random = random.Random()
        self._asked = 0.0  # when the main loop was here last: a role is not held for one that hangs

    # The main loop's side.

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="stragd-exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        if self._thread is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(CLOSE_SECONDS + 1)

    def join(self, job: int) -> None:
        self._do(self._join(job))

    def leave(self, job: int) -> None:
        self._do(self._leave(job))

    def publish(self, job: int, data: bytes) -> None:
        self._send(f"{self._prefix}.windows.{job:016x}.{self.node}", data)

    def announce(self, job: int, epoch: int, data: bytes) -> None:
        self._send(f"{self._prefix}.verdicts.{job:016x}.{self.node}", data)

    def contend(self, job: int) -> None:
        self._do(self._contend(job))

    def resign(self, job: int) -> None:
        self._do(self._resign(job))

    def keep(self, job: int, state: bytes) -> None:
        self._do(self._keep(job, state))

    def receive(self) -> list[Event]:
        self._asked = time.monotonic()
        return self._inbox.take()

    def counters(self) -> dict[str, int]:
        return dict(self._counters)

    def problem(self) -> str:
        return self._problem

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            self._loop.call_soon_threadsafe(lambda: self._loop.create_task(self._guard(work)))
        except RuntimeError:  # the loop has ended
            work.close()

    def _send(self, subject: str, data: bytes) -> None:
        if self._problem:
            self._counters["dropped.away"] += 1  # the last windows are sent again on return
            return
        self._outbox.append((subject, data))
        while len(self._outbox) > MAX_OUTBOX:
            self._outbox.popleft()
            self._counters["dropped.outbox_full"] += 1
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)

    # The thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except Exception as error:
            self._problem = f"the exchange has ended: {type(error).__name__}: {error}"
        finally:
            self._loop.close()

    async def _main(self) -> None:
        sender = self._loop.create_task(self._sender())
        try:
            while not self._stop.is_set():
                await self._connection()
                await self._pause(self._random.uniform(0.5, 1.5) * self._settings.retry_seconds)
        finally:
            sender.cancel()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _connection(self) -> None:
        """One client from its first connection to its end; it reconnects by itself meanwhile."""
        closed = asyncio.Event()
        wait = self._random.uniform(0.5, 1.5) * self._settings.retry_seconds

        async def on_closed() -> None:
            closed.set()

        connecting = self._loop.create_task(
            nats.connect(
                **self._options,
                name=f"stragd {self.node}",
                error_cb=self._on_error,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_connected,
                closed_cb=on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=wait,
                connect_timeout=5,
                ping_interval=max(1, int(self._settings.lease_seconds)),
                max_outstanding_pings=2,
                pending_size=MAX_BYTES,
            )
        )
        try:
            if not await self._first(connecting):
                return
            self._client = connecting.result()
            await self._on_connected()
            await self._either(closed.wait())
        except _ERRORS as error:
            await self._on_error(error)
        finally:
            connecting.cancel()
            client, self._client = self._client, None
            if client is not None:
                await self._end(client)

    async def _first(self, connecting: asyncio.Task[Client]) -> bool:
        """Wait for the connection; False where the stop came first."""
        stop = self._loop.create_task(self._stop.wait())
        await asyncio.wait({connecting, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return connecting.done() and not connecting.cancelled() and not self._stop.is_set()

    async def _either(self, work: Awaitable[Any]) -> None:
        """Until the work is done or the stop comes."""
        tasks = {asyncio.ensure_future(work), asyncio.ensure_future(self._stop.wait())}
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    async def _end(self, client: Client) -> None:
        """Give the roles back and close, within bounds."""
        with contextlib.suppress(*_ERRORS):
            if self._stop.is_set() and client.is_connected:
                roles = [self._guard(self._resign(job)) for job in list(self._roles)]
                await asyncio.wait_for(asyncio.gather(*roles), CLOSE_SECONDS / 2)
        for job in list(self._roles):
            self._lose(job)
        self._jobs = dict.fromkeys(self._jobs)
        self._roles_bucket = self._states = None
        with contextlib.suppress(*_ERRORS):
            await asyncio.wait_for(client.close(), CLOSE_SECONDS / 2)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    async def _guard(self, work: Coroutine[Any, Any, None]) -> None:
        """A piece of work whose failure costs no more than itself."""
        try:
            await work
        except _ERRORS as error:
            self._counters["dropped.error"] += 1
            await self._on_error(error)

    async def _on_error(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self._counters["dropped.slow_consumer"] += 1
            return
        if self._client is None or not self._client.is_connected:
            self._problem = _away(self._settings.servers, error)

    async def _on_disconnected(self) -> None:
        self._problem = _away(self._settings.servers, None)
        self._outbox.clear()

    async def _on_connected(self) -> None:
        """Connected, or again: buckets first, then what was subscribed, then the word of it."""
        if self._client is None:
            return
        while self._roles_bucket is None and self._client.is_connected:
            try:
                await self._open_buckets(self._client)
            except _ERRORS as error:
                self._problem = (
                    f"NATS keeps no leases: {type(error).__name__} {error}; "
                    "is JetStream on (docs/cluster.md)?"
                )
                if self._stop.is_set():
                    return
                await self._pause(self._settings.retry_seconds)
        for job, subscription in list(self._jobs.items()):
            if subscription is None:
                await self._guard(self._join(job))
        self._problem = ""
        self._scorers.clear()
        self._inbox.put(Event("back"))

    async def _open_buckets(self, client: Client) -> None:
        settings = self._settings
        context = client.jetstream(
            timeout=REQUEST_SECONDS,
            **({"domain": settings.domain} if settings.domain else {}),
        )
        roles = f"stragd-{settings.cluster}-roles"
        try:
            bucket = await context.key_value(roles)
        except nats.js.errors.NotFoundError:
            config = KeyValueConfig(
                bucket=roles, ttl=settings.lease_seconds, replicas=settings.replicas
            )
            bucket = await context.create_key_value(config)
        scores = f"stragd-{settings.cluster}-scores"
        try:
            self._states = await context.object_store(scores)
        except nats.js.errors.NotFoundError:
            store = ObjectStoreConfig(ttl=STATE_SECONDS, replicas=settings.replicas)
            self._states = await context.create_object_store(scores, store)
        self._roles_bucket = bucket

    async def _sender(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._outbox:
                subject, data = self._outbox.popleft()
                if self._client is None or not self._client.is_connected:
                    self._counters["dropped.away"] += 1
                    continue
                try:
                    await self._client.publish(subject, data)
                    self._counters["sent"] += 1
                except _ERRORS as error:
                    self._counters["dropped.error"] += 1
                    await self._on_error(error)

    async def _join(self, job: int) -> None:
        if self._jobs.get(job) is not None:
            return
        self._jobs[job] = None
        if self._client is not None and self._client.is_connected:
            subject = f"{self._prefix}.verdicts.{job:016x}.*"
            self._jobs[job] = await self._client.subscribe(subject, cb=self._taker("verdict", job))

    async def _leave(self, job: int) -> None:
        await self._resign(job)
        subscription = self._jobs.pop(job, None)
        self._scorers.pop(job, None)
        if subscription is not None:
            await subscription.unsubscribe()

    def _taker(self, kind: str, job: int) -> Callable[[Msg], Awaitable[None]]:
        """What takes the messages of one subscription."""

        async def take(message: Msg) -> None:
            node = message.subject.rpartition(".")[2]
            if len(message.data) > MAX_BYTES or not is_node(node):
                self._counters["refused.oversized"] += 1
                return
            self._counters["received"] += 1
            now = time.monotonic()
            if kind == "windows":
                self._inbox.put(Event("windows", job, node, message.data, at=now))
            elif await self._holds(job, node, message.data):
                self._inbox.put(Event("verdict", job, node, message.data, at=now))
            else:
                self._counters["refused.no_scorer"] += 1

        return take

    async def _holds(self, job: int, node: str, data: bytes) -> bool:
        """Whether a verdict is of the node that the lease names; asked once for each scorer."""
        try:
            who = (node, decode(data).epoch)
        except MessageError:
            return True  # refused, counted and said where all messages are
        if self._scorers.get(job) == who:
            return True
        if self._roles_bucket is None:
            return False
        try:
            entry = await self._roles_bucket.get(f"{job:016x}")
            value = json.loads(entry.value or b"{}")
        except (*_ERRORS, ValueError):
            return False
        if (value.get("node"), value.get("epoch")) != who:
            return False
        self._scorers[job] = who
        return True

    # The scorer role.

    async def _contend(self, job: int) -> None:
        bucket, states = self._roles_bucket, self._states
        if bucket is None or states is None or job in self._roles or job in self._asking:
            return
        self._asking.add(job)
        try:
            begun = self._loop.time()
            epoch = await bucket.create(f"{job:016x}", self._value(0))
            revision = await bucket.update(f"{job:016x}", self._value(epoch), last=epoch)
            role = _Role(epoch, revision, begun)
            state = await self._state(states, job)
            if self._client is None:
                return
            subject = f"{self._prefix}.windows.{job:016x}.*"
            self._roles[job] = role
            role.windows = await self._client.subscribe(subject, cb=self._taker("windows", job))
            self._inbox.put(Event("held", job, self.node, state, epoch, time.monotonic()))
            role.task = self._loop.create_task(self._renew(bucket, states, job, role))
        except nats.js.errors.KeyWrongLastSequenceError:
            pass  # somebody holds it
        finally:
            self._asking.discard(job)

    async def _state(self, states: ObjectStore, job: int) -> bytes:
        try:
            info = await states.get_info(f"{job:016x}")
            if (info.size or 0) > MAX_STATE:
                return b""
            return (await states.get(f"{job:016x}")).data or b""
        except nats.js.errors.NotFoundError:
            return b""

    async def _renew(self, bucket: KeyValue, states: ObjectStore, job: int, role: _Role) -> None:
        """Hold a lease until it is lost; keep what is to be handed over in between."""
        lease = self._settings.lease_seconds
        while self._roles.get(job) is role:
            await asyncio.sleep(lease / 6)
            with contextlib.suppress(*_ERRORS):
                await asyncio.wait_for(self._store(states, job, role), lease)
            if time.monotonic() - self._asked > lease:
                self._lose(job)
            if self._loop.time() - role.renewed < lease / 4 or self._roles.get(job) is not role:
                continue
            begun = self._loop.time()
            try:
                update = bucket.update(f"{job:016x}", self._value(role.epoch), last=role.revision)
                role.revision = await asyncio.wait_for(update, lease / 3)
                role.renewed = begun
            except nats.js.errors.KeyWrongLastSequenceError:
                if not await self._still(bucket, job, role):
                    self._lose(job)
            except _ERRORS:
                pass
            if self._loop.time() - role.renewed > 0.8 * lease:
                self._lose(job)

    async def _still(self, bucket: KeyValue, job: int, role: _Role) -> bool:
        """Whether the lease is this role's: an answer to a renewal may have been lost."""
        with contextlib.suppress(*_ERRORS, ValueError):
            entry = await bucket.get(f"{job:016x}")
            if entry.value == self._value(role.epoch) and entry.revision is not None:
                role.revision, role.renewed = entry.revision, self._loop.time()
                return True
        return False

    def _lose(self, job: int) -> None:
        role = self._roles.pop(job, None)
        if role is None:
            return
        if role.windows is not None and self._client is not None:
            self._loop.create_task(self._guard(role.windows.unsubscribe()))
        self._inbox.put(Event("lost", job, self.node, epoch=role.epoch))

    async def _resign(self, job: int) -> None:
        role = self._roles.pop(job, None)
        if role is None:
            return
        if self._states is not None:
            await self._store(self._states, job, role)
        if role.windows is not None:
            await role.windows.unsubscribe()
        if self._roles_bucket is not None and await self._still(self._roles_bucket, job, role):
            await self._roles_bucket.delete(f"{job:016x}", last=role.revision)

    async def _keep(self, job: int, state: bytes) -> None:
        role = self._roles.get(job)
        if role is not None:
            role.state = state

    async def _store(self, states: ObjectStore, job: int, role: _Role) -> None:
        state, role.state = role.state, None
        if state is not None:
            await states.put(f"{job:016x}", state)
            self._counters["kept"] += 1

    def _value(self, epoch: int) -> bytes:
        return json.dumps({"node": self.node, "epoch": epoch}).encode()


def _away(servers: str, error: Exception | None) -> str:
    why = f": {type(error).__name__} {error}".rstrip() if error is not None else ""
    return f"no NATS server of {servers} is there{why}; verdicts are this node's own meanwhile"


def _options(settings: Settings) -> dict[str, Any]:
    """Servers, TLS and credentials for ``nats.connect``. Raises ValueError with the reason."""
    servers = [server.strip() for server in settings.servers.split(",") if server.strip()]
    if not servers:
        raise ValueError("exchange.servers is empty: name the NATS servers, as nats://host:4222")
    options: dict[str, Any] = {"servers": servers}
    try:
        if settings.tls_ca or settings.tls_certificate:
            context = ssl.create_default_context(cafile=settings.tls_ca or None)
            if settings.tls_certificate:
                context.load_cert_chain(settings.tls_certificate, settings.tls_key or None)
            options["tls"] = context
        for path in (settings.credentials_file, settings.password_file):
            if path:
                Path(path).read_bytes()
        if settings.credentials_file:
            options["user_credentials"] = settings.credentials_file
        if settings.user:
            options["user"] = settings.user
        if settings.password_file:
            options["password"] = Path(settings.password_file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:  # TLS errors are OSErrors
        raise ValueError(f"exchange: TLS or credentials cannot be read: {error}") from None
    return options
