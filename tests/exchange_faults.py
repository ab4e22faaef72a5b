"""One job over a real nats-server while something breaks: what every node says of it.

Four nodes of two ranks in this process, each with its own connection through a link that can be
cut; the server is in a network namespace of its own, behind a cable that can lose packets. The
job's windows are simulated and half a second long. The scorer is handed 30 windows of the
healthy job, then rank 5 becomes slow.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stragd.config import Exchange as Settings
from stragd.exchange.cluster import Cluster
from stragd.exchange.jobscore import JobScore
from stragd.exchange.message import Sender, decode_windows, encode_windows
from stragd.exchange.nats import Nats
from stragd.findings import FindingStore, Transition
from stragd.replay.simulate import Fault, Scenario, simulate
from tests.exchange_jobs import Member
from tests.harness import wait_for
from tests.link import Link
from tests.nats_server import Server
from tests.network import inside
from tests.nodes import HUB, NATS_PORT, Net
from tests.nodes import Node as NetworkNode

NODES, EACH, SLOW = 4, 2, 5
LEARNT, SLOW_FROM = 30, 34
WINDOW, LEASE, DEADLINE = 0.5, 1.0, 0.3
BROKEN_WINDOWS = 5
LIMIT_SECONDS = 120.0
DISK_BYTES = 4 << 20
LOST, LOSSY_WINDOWS = 0.3, 20


@dataclass
class Node:
    """A member, its link, and what its daemon would have open."""

    member: Member
    link: Link
    transport: Disturbed
    store: FindingStore = field(default_factory=FindingStore)
    changes: list[Transition] = field(default_factory=list)
    windows: list[tuple[int, int]] = field(default_factory=list)  # epoch, window of verdicts
    heard: float = field(default_factory=time.monotonic)
    silent: float = 0.0  # longest time without a verdict, s
    alive: bool = True

    def take(self) -> None:
        """What its main loop does."""
        now, before = time.monotonic(), len(self.member.verdicts)
        self.member.turn(now)
        self.member.cluster.tick(now)
        self.silent = max(self.silent, now - self.heard)
        for verdict in self.member.verdicts[before:]:
            self.heard = now
            self.windows.append((verdict.epoch, verdict.window))
            self.changes += self.store.apply(verdict.job, list(verdict.findings), takeover=True)

    def confirmed(self) -> list[tuple[str, int | None]]:
        """(id, rank) of what is open and confirmed here."""
        return [
            (f["id"], f["subject"].get("rank"))
            for f in self.store.open()
            if f["state"] == "confirmed"
        ]


class Disturbed(Nats):
    """Sends windows twice and out of order while it is told to."""

    draw: random.Random | None = None

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self._held_back: list[tuple[int, bytes]] = []

    def publish(self, job: int, data: bytes) -> None:
        if self.draw is None:
            super().publish(job, data)
            return
        self._held_back.append((job, data))
        if len(self._held_back) < 2 and self.draw.random() < 0.6:
            return
        messages, self._held_back = self._held_back, []
        messages += self.draw.sample(messages, self.draw.randint(0, len(messages)))
        self.draw.shuffle(messages)
        for message in messages:
            super().publish(*message)


@dataclass
class Place:
    """A server, and the node on whose network those are who use it."""

    server: Server
    node: NetworkNode


class Scene:
    """The job and its nodes."""

    def __init__(self, place: Place, name: str, seed: int) -> None:
        self.place, self.server = place, place.server
        self.name, self.draw = name, random.Random(seed)
        slow = Fault((SLOW,), 0.3, SLOW_FROM)
        scenario = Scenario(NODES * EACH, windows=1000, faults=(slow,), seed=seed)
        self._windows = simulate(scenario)
        state = self._learn()
        self.nodes = [self._node(number) for number in range(NODES)]
        self._hand_over(state)
        self._next = time.monotonic()
        self.number = LEARNT
        self.struck = False  # whether the fault did what it is for

    def _learn(self) -> bytes:
        """What a scorer knows after the healthy windows."""
        score = JobScore(0, "before", 1, {}, DEADLINE)
        for number, window in enumerate(itertools.islice(self._windows, LEARNT)):
            if number == 0:
                self.job = int(window["job"][0])
                score = JobScore(self.job, "before", 1, {}, DEADLINE)
            for node in range(NODES):
                rows = window[node * EACH : (node + 1) * EACH].copy()
                rows["end_ns"], rows["start_ns"] = 10**15, 10**15 - int(WINDOW * 1e9)
                sender = Sender(f"node{node}", f"node{node}.example", node + 1)
                data = encode_windows(sender, rows, "job", "torchrun", {}, {}, 0.0)
                score.take(decode_windows(data), WINDOW * number)
            score.due(WINDOW * number)
        return score.save()

    def _settings(self, node: str, address: str = "") -> Settings:
        servers = f"nats://{address or self.server.address}"
        return self.server.settings(
            node=node, servers=servers, cluster=self.name, lease_seconds=LEASE
        )

    def _node(self, number: int) -> Node:
        host, _, port = self.server.address.rpartition(":")
        link = Link(int(port), host)
        name, said = f"node{number}", list[str]()
        transport = Disturbed(self._settings(name, f"127.0.0.1:{link.port}"), name)
        sender = Sender(name, f"{name}.example", number + 1)
        cluster = Cluster(transport, sender, {}, DEADLINE, LEASE, said.append)
        ranks = range(number * EACH, (number + 1) * EACH)
        member = Member(name, cluster, transport, ranks, 0, 0, said=said, window_seconds=WINDOW)
        cluster.start()
        return Node(member, link, transport)

    def _hand_over(self, state: bytes) -> None:
        """As a scorer that ran before would have."""
        before = Nats(self._settings("before"), "before")
        before.start()

        def kept() -> bool:
            for event in before.receive():
                if event.kind == "back":
                    before.join(self.job)
                    before.contend(self.job)
                elif event.kind == "held":
                    before.keep(self.job, state, 1)
            return before.counters().get("kept", 0) > 0

        wait_for("the scores of before to be kept", kept)
        before.close()
        for node in self.nodes:
            wait_for("the connection", lambda n=node: not n.member.cluster.problem())

    def window(self, between: Callable[[], None] | None = None) -> None:
        """One window of all nodes, ``between`` the first half of them and the others."""
        window = next(self._windows)
        self._next = max(self._next + WINDOW, time.monotonic())
        while time.monotonic() < self._next:
            for node in self.living():
                node.take()
            time.sleep(0.01)
        for number, node in enumerate(self.living()):
            if number == NODES // 2 and between is not None:
                between()
            node.member.offer(window, time.monotonic())
        self.number += 1

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    def scorer(self) -> Node:
        """Who holds the role, once somebody does."""

        def found() -> Node | None:
            for node in self.living():
                node.take()
            return next((n for n in self.living() if n.member.cluster.held()), None)

        return wait_for("a scorer", found)

    def named(self) -> set[tuple[str, int | None]]:
        """What all living nodes have confirmed, where that is the same."""
        lists = [node.confirmed() for node in self.living()]
        return set(lists[0]) if all(one == lists[0] for one in lists) else set()

    def close(self) -> None:
        for node in self.nodes:
            if node.alive:
                node.link.mend()
            node.member.cluster.close()
            if node.alive:
                node.link.close()


# What breaks, and how long; each is a generator: begin, then (after the yield) the end of it.


def kill_scorer(scene: Scene) -> Iterator[None]:
    scorer = scene.scorer()

    def crash() -> None:
        """Its connection is gone, and nothing of it acts any more: nobody gives the role back."""
        scorer.link.close()
        scorer.alive = False

    scene.window(crash)
    yield
    scene.struck = scene.scorer() is not scorer


def restart_server(scene: Scene) -> Iterator[None]:
    scene.server.stop(signal.SIGKILL)
    yield
    scene.struck = all(node.member.cluster.problem() for node in scene.nodes)
    scene.server.start()


def partition_node(scene: Scene) -> Iterator[None]:
    node = scene.draw.choice(scene.nodes)
    node.link.cut()
    yield
    verdicts = [verdict for other in scene.nodes for verdict in other.member.verdicts]
    absent = tuple(node.member.ranks) in [verdict.absent for verdict in verdicts]
    scene.struck = absent or len({verdict.epoch for verdict in verdicts}) > 1
    node.link.mend()


def duplicate_and_reorder(scene: Scene) -> Iterator[None]:
    for node in scene.nodes:
        node.transport.draw = scene.draw
    yield
    for node in scene.nodes:
        node.transport.draw = None
    counters = scene.scorer().member.cluster.counters()
    scene.struck = counters["refused.duplicate_rows"] + counters["refused.late_rows"] > 0


def slow_consumer(scene: Scene) -> Iterator[None]:
    """The scorer stops reading, while somebody sends it more than its server keeps."""
    scorer = scene.scorer()
    scorer.link.cut(down_only=True)
    flood = Nats(scene._settings("flood"), "flood")
    flood.start()
    wait_for("the connection of the flood", lambda: not flood.problem())
    for _ in range(400):
        flood.publish(scene.job, b"x" * 200_000)
    yield
    for _ in range(100):
        scene.struck = b"Slow Consumer" in scene.server.log.read_bytes()
        if scene.struck:
            break
        scene.window()
    scorer.link.mend()
    flood.close()


def lose_packets(scene: Scene) -> Iterator[None]:
    """For four times as long as the others last: TCP waits a second and more to send again."""
    scene.place.node.lose(LOST)
    before = retransmitted()
    for _ in range(LOSSY_WINDOWS - BROKEN_WINDOWS):
        scene.window()
    yield
    scene.struck = retransmitted() > before
    scene.place.node.lose_nothing()


def retransmitted() -> int:
    """TCP segments that this thread's network namespace has sent again."""
    names, values = (
        line.split()
        for line in Path("/proc/thread-self/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def step_clock(scene: Scene) -> Iterator[None]:
    node = scene.draw.choice(scene.nodes)
    node.member.clock_error_ns = scene.draw.choice((-1, 1)) * 3600 * 10**9
    yield
    scene.struck = True


def fill_disk(scene: Scene) -> Iterator[None]:
    filler = scene.server.directory / "jetstream" / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    scene.struck = os.statvfs(filler.parent).f_bavail == 0
    yield
    filler.unlink()
    # JetStream may have turned itself off, and nats-server does not even end when it is asked to.
    scene.server.stop(signal.SIGKILL)
    scene.server.start()


FAULTS: dict[str, Callable[[Scene], Iterator[None]]] = {
    "scorer killed in mid-window": kill_scorer,
    "nats-server killed and restarted": restart_server,
    "a node cut off": partition_node,
    "30 % of packets lost": lose_packets,
    "messages doubled and reordered": duplicate_and_reorder,
    "the scorer a slow consumer": slow_consumer,
    "a clock an hour off": step_clock,
    "JetStream's disk full": fill_disk,
}


@dataclass
class Outcome:
    """What came of one run."""

    struck: bool  # the fault did what it is for
    unnamed: bool  # the slow rank is not named on every node
    wrong: list[int | None]  # others that were confirmed
    duplicate: int  # confirmations beyond one for each node
    forgotten: bool  # a finding that was told before the fault has another id, or is gone
    ids: int  # of the finding, on all nodes together
    again: int  # windows that a node was told about twice by one scorer, or in the wrong order
    late: int  # windows from the rank's slowdown until all nodes had it
    silent: float  # seconds of the longest time without any verdict

    def good(self) -> bool:
        bad = self.unnamed or self.wrong or self.duplicate or self.forgotten or self.again
        return self.struck and not bad and self.ids == 1


def play(place: Place, name: str, fault: str, seed: int) -> Outcome:
    """One run; the fault begins before or after the slow rank is known, by the seed."""
    scene = Scene(place, name, seed)
    try:
        begin = scene.draw.randint(SLOW_FROM - 2, SLOW_FROM + 6)
        while scene.number < begin:
            scene.window()
        told = scene.named()
        breaking = FAULTS[fault](scene)
        next(breaking)
        for _ in range(BROKEN_WINDOWS):
            scene.window()
        next(breaking, None)
        late, deadline = 0, time.monotonic() + LIMIT_SECONDS
        after = 0
        while after < BROKEN_WINDOWS and time.monotonic() < deadline:
            scene.window()
            if all([rank for _, rank in node.confirmed()] == [SLOW] for node in scene.living()):
                late = late or scene.number - SLOW_FROM
                after += 1
        return _outcome(scene, told, late)
    finally:
        scene.close()


def _outcome(scene: Scene, told: set[tuple[str, int | None]], late: int) -> Outcome:
    confirmed = {
        node.member.name: [
            change.finding["subject"].get("rank")
            for change in node.changes
            if change.finding["state"] == "confirmed"
        ]
        for node in scene.nodes
    }
    every = [rank for ranks in confirmed.values() for rank in ranks]
    again = sum(
        later <= earlier
        for node in scene.nodes
        for (epoch, earlier), (next_epoch, later) in itertools.pairwise(node.windows)
        if next_epoch == epoch
    )
    return Outcome(
        struck=scene.struck,
        unnamed=late == 0,
        wrong=[rank for rank in every if rank != SLOW],
        duplicate=sum(max(0, ranks.count(SLOW) - 1) for ranks in confirmed.values()),
        forgotten=any(not told <= set(node.confirmed()) for node in scene.living()),
        ids=len({name for node in scene.living() for name, _ in node.confirmed()}),
        again=again,
        late=late,
        silent=max(node.silent for node in scene.living()),
    )


@contextlib.contextmanager
def small_server() -> Iterator[Place]:
    """A nats-server that cuts off who does not read, on a disk of its own that is soon full."""
    with tempfile.TemporaryDirectory(prefix="stragd-faults-") as text, Net(1) as net:
        store = Path(text) / "jetstream"
        store.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "stragd", str(store)]
        subprocess.run(mount, check=True)
        limits = 'max_pending: 1MB\nwrite_deadline: "1s"\nmax_payload: 1MB\n'
        wrapper = ("ip", "netns", "exec", net.hub)
        server = Server(Path(text), limits, f"{HUB}:{NATS_PORT}", wrapper)
        try:
            server.start()
            with inside(net.nodes[0].namespace):
                yield Place(server, net.nodes[0])
        finally:
            server.stop(signal.SIGKILL)
            subprocess.run(["umount", str(store)], check=True)
