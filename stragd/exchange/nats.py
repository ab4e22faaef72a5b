"""The exchange over NATS: subjects per cluster and job, the scorer role as a lease in JetStream.

``stragd.CLUSTER.windows.JOB.NODE``, and ``verdicts`` and ``jobs`` in the same way, JOB in 16
hexadecimal digits. Leases and what a scorer hands over lie in JetStream: ``nats_lease.py``. All
runs in one thread of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from stragd.config import Exchange as Settings
from stragd.exchange.background import CLOSE_SECONDS, Background
from stragd.exchange.interface import Event
from stragd.exchange.message import MAX_BYTES, MessageError, is_node
from stragd.exchange.nats_lease import Roles
from stragd.exchange.nats_scores import MAX_STATE
from stragd.exchange.verdict import decode

MAX_OUTBOX = 1024
CONNECT_SECONDS = 10.0
_ERRORS = (nats.errors.Error, asyncio.TimeoutError, OSError)


class Nats(Background):
    """One connection to the cluster's servers."""

    errors = _ERRORS
    max_state = MAX_STATE

    def __init__(self, settings: Settings, node: str) -> None:
        """Raises ValueError where the settings cannot be used."""
        super().__init__()
        self.node = node
        self._settings = settings
        self._prefix = f"stragd.{settings.cluster}"
        self._options = _options(settings)
        self._outbox: deque[tuple[str, bytes]] = deque()
        self._problem = "not connected yet"
        self._refused = False  # the problem is that we were
        self._wake = asyncio.Event()
        self._client: Client | None = None
        self._roles = Roles(self, node, settings, self._windows, self._inbox.put)
        self._jobs: dict[int, Any] = {}  # subscription to the verdicts
        self._summaries: Any = None  # subscription to those of the cluster

    # The main loop's side.

    def join(self, job: int) -> None:
        self._do(self._join(job))

    def leave(self, job: int) -> None:
        self._do(self._leave(job))

    def publish(self, job: int, data: bytes) -> None:
        self._send(f"{self._prefix}.windows.{job:016x}.{self.node}", data)

    def announce(self, job: int, epoch: int, data: bytes) -> None:
        self._send(f"{self._prefix}.verdicts.{job:016x}.{self.node}", data)

    def contend(self, job: int, before: int = 0) -> None:
        self._do(self._roles.contend(job, before))

    def resign(self, job: int) -> None:
        self._do(self._roles.resign(job))

    def keep(self, job: int, state: bytes, number: int) -> None:
        self._do(self._roles.keep(job, state, number))

    def report(self, job: int, data: bytes) -> None:
        self._send(f"{self._prefix}.jobs.{job:016x}.{self.node}", data)

    def problem(self) -> str:
        return self._ended or self._problem

    def _send(self, subject: str, data: bytes) -> None:
        if self._problem:
            self._counters["dropped.away"] += 1  # the last windows are sent again on return
            return
        self._outbox.append((subject, data))
        while len(self._outbox) > MAX_OUTBOX:
            self._outbox.popleft()
            self._counters["dropped.outbox_full"] += 1
        if len(self._outbox) == 1:  # with more, the sender has not ended its round
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake.set)

    # The thread.

    async def _main(self) -> None:
        self._loop.create_task(self._sender())
        while not self._stop.is_set():
            await self._connection()
            await self._pause(self._jittered(self._settings.retry_seconds))

    async def _connection(self) -> None:
        """One client from its first connection to its end; it reconnects by itself meanwhile."""
        closed = asyncio.Event()

        async def on_closed() -> None:
            closed.set()

        connecting = self._loop.create_task(
            nats.connect(
                **self._options,
                name=f"stragd {self.node}",
                error_cb=self._failed,
                disconnected_cb=self._on_disconnected,
                reconnected_cb=self._on_connected,
                closed_cb=on_closed,
                max_reconnect_attempts=-1,
                reconnect_time_wait=self._jittered(self._settings.retry_seconds),
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
            await self._failed(error)
        finally:
            connecting.cancel()
            client, self._client = self._client, None
            if client is not None:
                await self._end(client)

    async def _first(self, connecting: asyncio.Task[Client]) -> bool:
        """Wait for the connection; False where the stop or the time came first.

        nats-py tries for ever, but hangs after a certificate that does not hold.
        """
        stop = self._loop.create_task(self._stop.wait())
        await asyncio.wait(
            {connecting, stop}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
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
                await asyncio.wait_for(self._roles.resign_all(), CLOSE_SECONDS / 2)
        self._roles.end()
        self._jobs, self._summaries = dict.fromkeys(self._jobs), None
        with contextlib.suppress(*_ERRORS):
            await asyncio.wait_for(client.close(), CLOSE_SECONDS / 2)

    async def _failed(self, error: Exception) -> None:
        if isinstance(error, nats.errors.SlowConsumerError):
            self._counters["dropped.slow_consumer"] += 1
            return
        refused = ""
        if isinstance(error, ssl.SSLError):
            refused = "certificate"
        elif "authorization" in str(error).lower():
            refused = "credentials"
        if refused:
            self._counters[f"refused.{refused}"] += 1
        # Who is refused may next see a broken pipe: that is no news.
        if refused or not self._refused:
            self._refused = bool(refused)
            if self._client is None or not self._client.is_connected:
                self._problem = _away(self._settings.servers, error)

    async def _on_disconnected(self) -> None:
        self._problem = _away(self._settings.servers, None)
        self._outbox.clear()

    async def _on_connected(self) -> None:
        """Connected, or again: buckets first, then what was subscribed, then the word of it."""
        if self._client is None:
            return
        while not self._roles.ready and self._client.is_connected:
            try:
                await self._roles.open(self._client)
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
        if not self._summaries:
            await self._guard(self._listen())
        self._problem, self._refused = "", False
        self._roles.returned()
        self._inbox.put(Event("back"))

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
                    await self._failed(error)

    async def _join(self, job: int) -> None:
        if self._jobs.get(job) is not None:
            return
        self._jobs[job] = None
        if self._client is not None and self._client.is_connected:
            subject = f"{self._prefix}.verdicts.{job:016x}.*"
            self._jobs[job] = await self._client.subscribe(subject, cb=self._taker("verdict", job))

    async def _listen(self) -> None:
        """To what is said of every job of the cluster."""
        if self._client is not None:
            subject = f"{self._prefix}.jobs.*.*"
            self._summaries = await self._client.subscribe(subject, cb=self._take_summary)

    async def _take_summary(self, message: Msg) -> None:
        _, job, node = message.subject.rsplit(".", 2)
        with contextlib.suppress(ValueError):
            event = Event("summary", int(job, 16), node, message.data, at=time.monotonic())
            self._inbox.put(event)

    async def _leave(self, job: int) -> None:
        await self._roles.resign(job)
        subscription = self._jobs.pop(job, None)
        if subscription is not None:
            await subscription.unsubscribe()

    async def _windows(self, job: int) -> Any:
        if self._client is None:
            raise nats.errors.ConnectionClosedError
        subject = f"{self._prefix}.windows.{job:016x}.*"
        return await self._client.subscribe(subject, cb=self._taker("windows", job))

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
        """Whether a verdict is of the node that the lease names."""
        try:
            epoch = decode(data).epoch
        except MessageError:
            return True  # refused, counted and said where all messages are
        return await self._roles.confirms(job, node, epoch)


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
