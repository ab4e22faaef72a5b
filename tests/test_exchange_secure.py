"""The shipped NATS configurations, with TLS and passwords, on real servers: three and a leaf."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stragd.config import Exchange as Settings
from stragd.exchange.cluster import Cluster
from stragd.exchange.interface import Event
from stragd.exchange.message import Sender
from stragd.exchange.nats import Nats
from tests.certificates import Authority
from tests.exchange_jobs import hello
from tests.harness import ROOT, free_port, wait_for
from tests.nats_server import Server

JOB = 0xABC
LEASE = 5.0


@dataclass
class Site:
    """Three servers, a leaf, and what a daemon needs to be let in."""

    servers: list[Server]
    leaf: Server
    authority: Authority
    certificate: Path
    key: Path
    password: Path

    def settings(self, name: str, *at: Server, **more: object) -> Settings:
        values: dict[str, object] = {
            "kind": "nats",
            "node": name,
            "servers": ",".join(f"tls://{one.address}" for one in at or self.servers),
            "tls_ca": str(self.authority.certificate),
            "tls_certificate": str(self.certificate),
            "tls_key": str(self.key),
            "user": "stragd",
            "password_file": str(self.password),
            "replicas": 3,
            "domain": "stragd",
            "lease_seconds": LEASE,
            "retry_seconds": 0.3,
        }
        return Settings(**{**values, **more})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The very files of packaging/nats, with only ports, paths and passwords put in."""
    directory = tmp_path_factory.mktemp("nats")
    authority = Authority(directory / "tls")
    certificate, key = authority.sign("server")
    ports = {(n, kind): free_port() for n in (1, 2, 3) for kind in ("4222", "6222", "7422")}

    def configured(name: str, number: int, address: str) -> str:
        text = (ROOT / "packaging" / "nats" / name).read_text()
        for kind in ("6222", "7422"):
            text = text.replace(f"0.0.0.0:{kind}", f"127.0.0.1:{ports.get((number, kind))}")
            for other in (1, 2, 3):
                text = text.replace(f"nats{other}:{kind}", f"127.0.0.1:{ports[other, kind]}")
        text = text.replace("0.0.0.0:4222", address).replace(
            "/etc/nats/tls", str(directory / "tls")
        )
        text = text.replace("/var/lib/nats", str(directory / f"store{number}"))
        text = text.replace("$NATS_NAME", f"nats{number}").replace("$STRAGD_PASSWORD", "secret")
        return text.replace("CHANGE-ME", "leaf-secret")

    made = []
    for number, name in ((1, "server"), (2, "server"), (3, "server"), (4, "leaf")):
        own = directory / f"nats{number}"
        own.mkdir()
        address = f"127.0.0.1:{ports.get((number, '4222')) or free_port()}"
        made.append(Server(own, address=address, whole=configured(f"{name}.conf", number, address)))
    for one in made:
        one.launch()
    for one in made:
        one.wait()
    password = directory / "password"
    password.write_text("secret\n")
    yield Site(made[:3], made[3], authority, *authority.sign("daemon"), password)
    for one in made:
        one.stop(signal.SIGKILL)


def next_event(one: Nats, kind: str, again: object = None) -> Event:
    """Wait for an event, and ask for it again meanwhile."""

    def there() -> Event | None:
        if callable(again):
            again()
        return next((event for event in one.receive() if event.kind == kind), None)

    return wait_for(f"{kind} at {one.node}", there, 120)


def test_across_servers_and_a_leaf_and_on_without_one_of_three(site: Site) -> None:
    a, b = Nats(site.settings("a"), "a"), Nats(site.settings("b", site.leaf), "b")
    try:
        for one in (a, b):
            one.start()
            next_event(one, "back")
            one.join(JOB)
        # b holds the role through the leaf: its lease lies at the servers.
        held = next_event(b, "held", lambda: b.contend(JOB))
        assert next_event(b, "windows", lambda: a.publish(JOB, b"window")).node == "a"
        message = hello(JOB, held.epoch, "b")
        assert next_event(a, "verdict", lambda: b.announce(JOB, held.epoch, message)).node == "b"
        b.keep(JOB, b"scores", 1)
        wait_for("the scores to be kept", lambda: (b.receive(), b.counters().get("kept"))[1], 120)
        site.servers[0].stop(signal.SIGKILL)

        def taken() -> Event | None:
            """b may have lost the role while the servers elected anew."""
            for one in (a, b):
                one.contend(JOB)
                for event in one.receive():
                    if event.kind == "held":
                        return event
            return None

        b.resign(JOB)
        again = wait_for("the role, with two servers of three", taken, 120)
        assert again.data == b"scores", "what was acknowledged is there"
        holder, other = (a, b) if again.node == "a" else (b, a)
        assert next_event(holder, "windows", lambda: other.publish(JOB, b"more")).data == b"more"
    finally:
        for one in (a, b):
            one.close()


@pytest.mark.parametrize(
    ("what", "cause", "reason"),
    [
        ("password", "credentials", "uthorization"),
        ("authority", "certificate", "CERTIFICATE_VERIFY_FAILED|certificate verify failed"),
        ("certificate", "certificate", "certificate|SSL|handshake"),
    ],
)
def test_strangers_are_refused_counted_and_said_once(
    site: Site, tmp_path: Path, what: str, cause: str, reason: str
) -> None:
    wrong, other = tmp_path / "wrong", Authority(tmp_path / "other")
    wrong.write_text("guess\n")
    stranger, stranger_key = other.sign("stranger")
    changes: dict[str, dict[str, object]] = {
        "password": {"password_file": str(wrong)},
        "authority": {"tls_ca": str(other.certificate)},
        "certificate": {"tls_certificate": str(stranger), "tls_key": str(stranger_key)},
    }
    said: list[str] = []
    outside = Nats(site.settings("outside", *site.servers[1:], **changes[what]), "outside")
    cluster = Cluster(outside, Sender("outside", "outside", 1), {}, 2.0, LEASE, said.append)
    cluster.start()
    try:

        def refused() -> bool:
            cluster.turn(time.monotonic())
            cluster.tick(time.monotonic())
            counted = cluster.counters().get(f"refused.{cause}", 0) >= 1
            return bool(said) and counted and bool(re.search(reason, cluster.problem()))

        # The first thing that is seen of a refusal may be a broken pipe.
        wait_for("the refusals", refused, 120)
        assert len(said) == 1, "once a minute"
        assert said[0].startswith("exchange: no NATS server of tls://")
    finally:
        cluster.close()
