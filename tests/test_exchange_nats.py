"""The exchange over a real nats-server: roles, failover, returns, and who is not let in."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import nats
import pytest

from stragd.config import Config
from stragd.config import Exchange as Settings
from stragd.exchange.cluster import Cluster
from stragd.exchange.interface import Event
from stragd.exchange.message import Sender
from stragd.exchange.nats import Nats
from stragd.jobs import JobTable
from stragd.spanning import make_cluster
from tests.exchange_jobs import Member, give, hello, job, run
from tests.harness import wait_for
from tests.nats_server import Server

CONFIG = Config()
JOB = 0xABC
LEASE = 2.0
LARGE = b"scores" * 200_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    one = Server(tmp_path)
    one.start()
    yield one
    one.stop()


def test_a_refusal_is_not_talked_over_by_the_broken_pipe_after_it() -> None:
    one = Nats(Settings(kind="nats", servers="nats://127.0.0.1:1"), "a")
    try:
        asyncio.run(one._failed(BrokenPipeError("Broken pipe")))
        assert "BrokenPipe" in one.problem()
        asyncio.run(one._failed(nats.errors.Error("nats: 'Authorization Violation'")))
        asyncio.run(one._failed(BrokenPipeError("Broken pipe")))
        assert "Authorization Violation" in one.problem()
        assert one.counters() == {"refused.credentials": 1}
    finally:
        one.close()


@contextlib.contextmanager
def transports(*them: Nats) -> Iterator[None]:
    for one in them:
        one.start()
    try:
        yield
    finally:
        for one in them:
            one.close()


def events(one: Nats, kind: str, limit: float = 60.0) -> Event:
    """Wait for the next event of a kind."""

    def next_one() -> Event | None:
        return next((event for event in one.receive() if event.kind == kind), None)

    return wait_for(f"{kind} at {one.node}", next_one, limit)


def test_one_holds_the_role_and_the_next_one_gets_what_it_kept(server: Server) -> None:
    a, b = Nats(server.settings(), "a"), Nats(server.settings(), "b")
    with transports(a, b):
        for one in (a, b):
            events(one, "back")
            one.join(JOB)
        a.contend(JOB)
        held = events(a, "held")
        b.contend(JOB)
        b.publish(JOB, b"window")
        window = events(a, "windows")
        assert (window.node, window.data, window.job) == ("b", b"window", JOB)
        a.announce(JOB, held.epoch, hello(JOB, held.epoch, "a"))
        assert events(b, "verdict").node == "a"
        a.keep(JOB, LARGE, 1)
        wait_for("the state to be kept", lambda: a.counters().get("kept"))
        end = time.monotonic() + 1.5 * LEASE  # it is renewed meanwhile
        while time.monotonic() < end:
            assert not [event for event in a.receive() if event.kind == "lost"]
            time.sleep(0.05)
        a.close()  # hands the role back

        def again() -> Event | None:
            b.contend(JOB)
            return next((event for event in b.receive() if event.kind == "held"), None)

        taken = wait_for("b to hold the role", again)
        assert taken.data == LARGE
        assert taken.epoch > held.epoch


def test_the_last_scores_count_however_large(server: Server) -> None:
    a = Nats(server.settings(), "a")
    with transports(a):
        events(a, "back")
        a.join(JOB)

        def held() -> Event | None:
            a.contend(JOB)
            return next((event for event in a.receive() if event.kind == "held"), None)

        left = b""
        for number, state in enumerate((b"few", LARGE, b"few again", LARGE[1:])):
            assert wait_for("the role", held).data == left
            a.keep(JOB, state, number)
            a.resign(JOB)
            left = state
        assert wait_for("the role", held).data == left


async def _lose_parts(server: Server) -> None:
    """Remove the content of all scores, not their heads."""
    client = await nats.connect(f"nats://{server.address}")
    store = "stragd-default-scores"
    await client.jetstream().purge_stream(f"OBJ_{store}", subject=f"$O.{store}.C.>")
    await client.close()


def test_scores_whose_parts_do_not_come_are_done_without(server: Server) -> None:
    a, b = Nats(server.settings(), "a"), Nats(server.settings(), "b")
    with transports(a, b):
        for one in (a, b):
            events(one, "back")
            one.join(JOB)
        a.contend(JOB)
        events(a, "held")
        a.keep(JOB, LARGE, 7)
        assert events(a, "kept").number == 7
        a.resign(JOB)
        asyncio.run(_lose_parts(server))

        def held() -> Event | None:
            b.contend(JOB)
            return next((event for event in b.receive() if event.kind == "held"), None)

        assert wait_for("b to hold the role", held).data == b""


def test_a_verdict_of_somebody_without_the_role_is_refused(server: Server) -> None:
    a, b = Nats(server.settings(), "a"), Nats(server.settings(), "b")
    with transports(a, b):
        for one in (a, b):
            events(one, "back")
            one.join(JOB)
        a.contend(JOB)
        epoch = events(a, "held").epoch
        b.announce(JOB, epoch + 1, hello(JOB, epoch + 1, "b"))
        wait_for("the refusal", lambda: a.counters().get("refused.no_scorer"))
        a.announce(JOB, epoch, hello(JOB, epoch, "a"))
        assert events(b, "verdict").node == "a"
        assert not [event for event in a.receive() if event.node == "b"]


def members(server: Server) -> list[Member]:
    made = []
    for number in range(4):
        settings = server.settings(node=f"node{number}")
        said: list[str] = []
        transport = Nats(settings, settings.node)
        sender = Sender(settings.node, f"{settings.node}.example", number + 1)
        cluster = Cluster(transport, sender, {}, 2.0, LEASE, said.append)
        cluster.start()
        ranks = range(2 * number, 2 * number + 2)
        made.append(Member(settings.node, cluster, transport, ranks, said=said))
    return made


def test_server_restart_and_a_hung_scorer_cost_no_verdict_for_good(server: Server) -> None:
    them, windows = members(server), job(12)
    everybody = list(them)
    try:
        for member in them:
            wait_for("the connection", lambda m=member: not m.cluster.problem())
        give(them, windows[0])
        give(them, windows[1])
        key = int(windows[0]["job"][0])
        server.stop(signal.SIGKILL)
        for member in them:
            wait_for("the loss to be seen", lambda m=member: run(them) or m.cluster.problem())
        for member in them:
            member.boot_ns = 0
            member.offer(windows[2], time.monotonic())  # kept, and sent on return
        server.start()
        for member in them:
            wait_for("the return", lambda m=member: run(them) or not m.cluster.problem())
        give(them, windows[3])
        assert them[0].verdicts[-1].ranks == 8
        # The scorer's main loop hangs, without a word.
        hung = next(member for member in them if key in member.cluster.held())
        them.remove(hung)
        epoch = them[0].verdicts[-1].epoch
        give(them, windows[4])
        assert them[0].verdicts[-1].epoch > epoch
        assert them[0].verdicts[-1].node != hung.name
        said = [line for member in them for line in member.said]
        assert not [line for line in said if "no NATS server" not in line]
    finally:
        for member in everybody:
            member.cluster.close()


def test_wrong_credentials_and_no_server_are_said(tmp_path: Path) -> None:
    users = '{user: stragd, password: right, permissions: {publish: ">", subscribe: ">"}}'
    one = Server(tmp_path, f"authorization {{ users: [{users}] }}\n")
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("right\n")
    wrong.write_text("wrong\n")
    away = Nats(one.settings(), "away")
    with transports(away):
        wait_for("a reason", lambda: "no NATS server of" in away.problem())
        away.publish(JOB, b"lost")
        assert away.counters()["dropped.away"] == 1
    one.start()
    try:
        inside = Nats(one.settings(user="stragd", password_file=str(right)), "a")
        outside = Nats(one.settings(user="stragd", password_file=str(wrong)), "b")
        with transports(inside, outside):
            events(inside, "back")
            wait_for("the refusal", lambda: "uthorization" in outside.problem())
            assert inside.problem() == ""
    finally:
        one.stop()


def test_without_jetstream_it_is_said_what_is_missing(tmp_path: Path) -> None:
    one = Server(tmp_path, jetstream=False)
    one.start()
    try:
        client = Nats(one.settings(), "a")
        with transports(client):
            wait_for("the reason", lambda: "is JetStream on" in client.problem())
    finally:
        one.stop()


def test_a_stranger_on_the_subjects_ends_nobody(server: Server) -> None:
    """Garbage, oversized and foreign messages on the real subjects are refused and counted."""
    them, windows = members(server), job(4)
    key = int(windows[0]["job"][0])

    async def shout() -> None:
        client = await nats.connect(f"nats://{server.address}")
        for data in (b"", b"x" * 100, os.urandom(900_000)):
            for word in ("windows", "verdicts"):
                await client.publish(f"stragd.default.{word}.{key:016x}.evil", data)
        await client.flush()
        await client.close()

    try:
        for member in them:
            wait_for("the connection", lambda m=member: not m.cluster.problem())
        give(them, windows[0])
        asyncio.run(shout())
        scorer = next(member for member in them if key in member.cluster.held())

        def counted() -> bool:
            run(them)
            counters = scorer.cluster.counters()
            return counters.get("refused.malformed", 0) >= 4 and "refused.oversized" in counters

        wait_for("the refusals", counted)
        give(them, windows[1])
        assert them[2].verdicts[-1].ranks == 8
        assert len(scorer.said) == 1
    finally:
        for member in them:
            member.cluster.close()


def test_settings_that_cannot_be_used_name_the_way_out() -> None:
    for settings, reason in (
        (Settings(kind="nats"), "exchange.servers is empty"),
        (Settings(kind="nats", servers="nats://a:1", tls_ca="/nowhere"), "cannot be read"),
        (Settings(kind="nats", servers="nats://a:1", password_file="/nowhere"), "cannot be read"),
    ):
        with pytest.raises(ValueError, match=reason):
            make_cluster(dataclasses.replace(CONFIG, exchange=settings), JobTable(), print)
