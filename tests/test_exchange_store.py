"""The exchange over a job's own store: a real TCPStore of an old torch and of a new one."""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd.config import Exchange as Settings
from stragd.discovery.process import MemoryReader
from stragd.exchange.cluster import Cluster
from stragd.exchange.interface import Event
from stragd.exchange.message import Sender
from stragd.exchange.store import Store
from stragd.exchange.store_address import StoreAddress, store_address
from stragd.exchange.store_job import MAX_NODES
from stragd.exchange.tcpstore import (
    ABSENT,
    Dialect,
    StoreError,
    TCPStoreClient,
    add,
    put,
    read,
    swap,
)
from tests.exchange_jobs import Member, give, hello, job, until
from tests.harness import wait_for
from tests.needs import lacking
from tests.store_server import StoreServer, torch_python

JOB = 0xABC
LEASE = 2.0


_numbers = itertools.count()


@pytest.fixture(scope="module", params=["old", "new"])
def torch_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    python = torch_python(request.param)
    if not python:
        lacking("no second torch: tests/fetch_libraries.sh fetches it")
    one = StoreServer(python)
    one.start()
    yield one
    one.stop()


@pytest.fixture
def server(torch_server: StoreServer) -> StoreServer:
    """With a cluster of its own for each test."""
    torch_server.cluster = f"test{next(_numbers)}"
    return torch_server


def settings(server: StoreServer) -> Settings:
    return Settings(kind="store", cluster=server.cluster, lease_seconds=LEASE, retry_seconds=0.2)


def member(server: StoreServer, number: int) -> Member:
    """A node with two ranks of the job."""
    name, said = f"node{number}", list[str]()
    transport = Store(settings(server), name, lambda _: server.address())
    sender = Sender(name, f"{name}.example", number + 1)
    cluster = Cluster(transport, sender, {}, 2.0, LEASE, said.append)
    cluster.start()
    return Member(name, cluster, transport, range(2 * number, 2 * number + 2), said=said)


async def connect(server: StoreServer) -> TCPStoreClient:
    address = server.address()
    return await TCPStoreClient.connect(address.host, address.port, address.dialect, 10.0)


def test_requests_do_what_torch_does_and_leave_the_jobs_keys_alone(server: StoreServer) -> None:
    async def requests() -> list[bytes | int]:
        client = await connect(server)
        assert client.dialect is (Dialect.NEW if server.new else Dialect.OLD)
        answers = await client.ask(
            [
                read("mine/a"),
                put("mine/a", b"1" * 40_000),
                read("mine/a"),
                swap("mine/b", b"", b"first"),
                swap("mine/b", b"", b"second"),
                swap("mine/b", b"first", b"third"),
                add("mine/n", 5),
                add("mine/n", 0),
                read("job"),
            ],
            10.0,
        )
        client.close()
        return answers

    assert asyncio.run(requests()) == [
        ABSENT, b"1" * 40_000, b"first", b"first", b"third", 5, 5, b"of the job",
    ]  # fmt: skip
    assert server.ask("job") == "of the job"
    assert server.ask("mine/b") == "third", "torch's client sees the same keys"


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"", "which protocol"), (struct.pack("<Q", 1 << 40), "more than")]
)
def test_what_is_no_store_is_an_error_and_not_a_wait(answer: bytes, reason: str) -> None:
    async def talk(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await writer.drain()

    async def refused() -> None:
        stranger = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = stranger.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match=reason):
            await TCPStoreClient.connect("127.0.0.1", port, None, 1.0)
        stranger.close()
        with pytest.raises(StoreError, match="Refused"):
            await TCPStoreClient.connect("127.0.0.1", port, None, 1.0)

    asyncio.run(refused())


def test_one_holds_the_role_and_the_next_one_gets_what_it_kept(server: StoreServer) -> None:
    a, b = (Store(settings(server), name, lambda _: server.address()) for name in "ab")
    state = bytes(range(256)) * 1000  # several parts

    def event(one: Store, kind: str) -> Event:
        def next_one() -> Event | None:
            one.contend(JOB) if kind == "held" else None
            return next((event for event in one.receive() if event.kind == kind), None)

        return wait_for(f"{kind} at {one.node}", next_one)

    try:
        for one in (a, b):
            one.start()
            one.join(JOB)
            event(one, "back")
        held = event(a, "held")
        b.publish(JOB, b"window")
        window = event(a, "windows")
        assert (window.node, window.data, window.job) == ("b", b"window", JOB)
        b.announce(JOB, held.epoch, hello(JOB, held.epoch, "b"))
        wait_for("the refusal", lambda: b.counters().get("refused.epoch"))
        a.announce(JOB, held.epoch, hello(JOB, held.epoch, "a"))
        assert event(b, "verdict").node == "a"
        a.keep(JOB, state, 1)
        wait_for("the state to be kept", lambda: a.counters().get("kept"))
        end = time.monotonic() + 1.5 * LEASE  # it is renewed meanwhile
        while time.monotonic() < end:
            b.contend(JOB)
            assert not [e for e in (*a.receive(), *b.receive()) if e.kind in ("lost", "held")]
            time.sleep(0.05)
        a.close()  # hands the role back
        taken = event(b, "held")
        assert taken.data == state
        assert taken.epoch > held.epoch
    finally:
        for one in (a, b):
            one.close()


def test_a_scorer_that_hangs_is_replaced_and_the_stores_end_is_survived(
    server: StoreServer,
) -> None:
    them, windows = [member(server, number) for number in range(4)], job(5)
    everybody, key = list(them), int(windows[0]["job"][0])
    try:
        give(them, windows[0])
        give(them, windows[1])
        assert [one.verdicts[-1].ranks for one in them] == [8] * 4
        hung = next(one for one in them if key in one.cluster.held())
        them.remove(hung)
        epoch = them[0].verdicts[-1].epoch
        give(them, windows[2])
        assert them[0].verdicts[-1].epoch > epoch
        assert them[0].verdicts[-1].node != hung.name
        server.stop()
        for one in them:
            one.offer(windows[3], time.monotonic())
        until(them, "the loss of the role", lambda: not any(one.cluster.held() for one in them))
        server.start()  # empty: as after a restart of the job's launcher
        give(them, windows[4])  # every node hears a verdict again
        assert not [line for one in them for line in one.said]
    finally:
        for one in everybody:
            one.cluster.close()


def test_a_node_beyond_the_last_place_says_why(server: StoreServer) -> None:
    async def fill() -> None:
        client = await connect(server)
        names = [f"stragd/{server.cluster}/{JOB:016x}/slot/{n}" for n in range(MAX_NODES)]
        await client.ask([put(name, f"other{n}".encode()) for n, name in enumerate(names)], 10.0)
        client.close()

    asyncio.run(fill())
    one = Store(settings(server), "late", lambda _: server.address())
    one.start()
    try:
        one.join(JOB)
        wait_for("the reason", lambda: "256 nodes take part" in one.problem())
        assert "need exchange.kind nats" in one.problem()
        one.publish(JOB, b"x" * 20)
        one.leave(JOB)
        wait_for("its end", lambda: not one.problem())
    finally:
        one.close()


def test_garbage_in_the_store_ends_nobody(server: StoreServer) -> None:
    them, windows = [member(server, number) for number in range(2)], job(4, ranks=4)
    key = int(windows[0]["job"][0])

    async def scribble() -> None:
        client = await connect(server)
        prefix = f"stragd/{server.cluster}/{key:016x}/"
        for value in (b"", b"\xff" * 40, os.urandom(48)):
            names = ["verdict", "state", *(f"head/{n}" for n in range(0, MAX_NODES, 7))]
            await client.ask([put(prefix + name, value) for name in names], 10.0)
            await client.ask([put(f"{prefix}slot/{n}", value) for n in range(3)], 10.0)
            await client.ask([add(prefix + "sent", 1), add(prefix + "joined", 1)], 10.0)
            await asyncio.sleep(0.5)
        client.close()

    try:
        give(them, windows[0])
        asyncio.run(scribble())
        give(them, windows[1])
        give(them, windows[2])
        assert them[1].verdicts[-1].ranks == 4
    finally:
        for one in them:
            one.cluster.close()


def test_the_address_is_that_of_the_jobs_own_environment() -> None:
    def rank(**environment: str) -> subprocess.Popen[bytes]:
        code = "import time; print('', flush=True); time.sleep(600)"
        one = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE
        )
        assert one.stdout is not None
        one.stdout.read(1)  # it has begun: the environment is its own
        return one

    reader, here = MemoryReader(), {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
    told, silent, wrong = rank(**here), rank(), rank(**{**here, "MASTER_PORT": "99999"})
    try:
        assert store_address(told.pid, "", reader) == StoreAddress("node0", 29500, None)
        assert store_address(silent.pid, "[::1]:7", reader) == StoreAddress("::1", 7, None)
        for process, reason in ((silent, "set exchange.store"), (wrong, "which is no port")):
            with pytest.raises(ValueError, match=reason):
                store_address(process.pid, "", reader)
        with pytest.raises(ValueError, match="run stragd as the job's user"):
            store_address(told.pid, "", reader, "/nowhere")
    finally:
        for one in (told, silent, wrong):
            one.kill()
            one.communicate()


@pytest.mark.parametrize(
    ("library", "version", "dialect"),
    [
        ("site-packages/torch/lib/libtorch_cpu.so", "__version__ = '2.15.0+cu132'", Dialect.NEW),
        ("site-packages/torch/lib/libtorch_cpu.so", "__version__ = '2.3.1'", None),
        ("x86_64-linux-gnu/libtorch_cpu.so.2.6.0", "", Dialect.NEW),
        ("x86_64-linux-gnu/libtorch_cpu.so.1.13", "", None),
        ("site-packages/torch/lib/libtorch_cpu.so", "nothing", None),
    ],
)
def test_the_dialect_is_that_of_the_jobs_torch(
    tmp_path: Path, library: str, version: str, dialect: Dialect | None
) -> None:
    process = tmp_path / "7"
    folder = process / "root/usr" / Path(library).parent.parent
    folder.mkdir(parents=True)
    (folder / "version.py").write_text(f"from typing import Optional\n{version}\n")
    (process / "maps").write_text(
        f"7f00-7f01 r-xp 00000000 08:01 99 /usr/lib/other.so\n7f00 r-xp 0 08:01 1 /usr/{library}\n"
    )
    found = store_address(7, "host:1", MemoryReader(), str(tmp_path))
    assert found == StoreAddress("host", 1, dialect)
