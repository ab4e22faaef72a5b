"""Does a job keep its step time while the exchange breaks?

Method: a real gloo job of four ranks on two nodes (namespaces; each rank uses 2 ms of CPU in a step
of 40 ms), a real daemon on each and a real nats-server between them, lease 2 s. Rank 0 writes down
its every step. In each round every fault comes once, in an order drawn by the seed (STRAGD_SEED),
for SPAN seconds after a rest as long, in which all is well; it must have struck: what it is for is
checked each time. No round begins after STRAGD_BENCH_SECONDS. The steps of each rest and fault are
compared in pairs: the ratio of medians, and the ratio of means, in which a job that stood still
once would show; both as the geometric mean over the pairs, with the 95 % interval of 2,000
bootstrap draws of pairs. A pair of two rests shows what the machine alone makes of it. CPU only;
the machine's other load is part of it, and is printed.
"""

from __future__ import annotations

import math
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from stragd.exchange.nats import Nats
from tests.harness import wait_for
from tests.nats_server import Server
from tests.network import inside
from tests.nodes import Net, NodeDaemon, SpanningJob, cluster, spanning_job, whole

EACH, LEASE = 2, 2.0
SPAN = 8.0
SECONDS = float(os.environ.get("STRAGD_BENCH_SECONDS", "1200"))
DRAWS = 2000
FLOOD = 50
JOB = ["--step-ms", "40", "--cpu-ms", "2", "--steps", "1000000", "--record-steps"]
LIMITS = 'max_pending: 1MB\nwrite_deadline: "1s"\n'
Span = tuple[float, float]  # CLOCK_MONOTONIC, s


@dataclass
class Scene:
    """The job, its nodes and their server."""

    net: Net
    daemons: list[NodeDaemon]
    training: SpanningJob
    server: Server

    def scorer(self) -> NodeDaemon:
        """The daemon that scores the job, once both nodes have verdicts of the same one."""

        def found() -> NodeDaemon | None:
            told = [whole(one, self.training) for one in self.daemons]
            names = {said.get("scorer") for said in told if said.get("counts")}
            if len(names) != 1 or not all(said.get("counts") for said in told):
                return None
            return next((one for one in self.daemons if one.node.name in names), None)

        return wait_for("verdicts on both nodes", found, 120)

    def other(self, one: NodeDaemon) -> NodeDaemon:
        """The daemon of the other node."""
        return next(daemon for daemon in self.daemons if daemon is not one)

    def problem(self, one: NodeDaemon) -> bool:
        """Whether the exchange of a node says that it has one."""
        return any("exchange:" in line for line in one.ask("status")["health"]["degraded"])


# What breaks; each is a generator that stops three times: once it has what it needs, once it has
# begun, and once it has done what it is for and is over.


def strikes(check: Callable[[], object]) -> None:
    """Wait until a fault has done what it is for."""
    wait_for("the fault to strike", check, 120)


def nothing(scene: Scene) -> Iterator[None]:
    yield
    yield
    yield


def kill_scorer(scene: Scene) -> Iterator[None]:
    scorer = scene.scorer()
    yield
    scorer.stop(signal.SIGKILL)
    yield
    other = scene.other(scorer)
    strikes(lambda: whole(other, scene.training).get("scorer") == other.node.name)
    scorer.start()
    yield


def start_scorer(scene: Scene) -> Iterator[None]:
    """Of a crash, the way back: a daemon starts, finds the job and attaches its probes."""
    scorer = scene.scorer()
    scorer.stop(signal.SIGKILL)
    time.sleep(SPAN / 2)
    yield
    scorer.start()
    yield
    strikes(lambda: scorer.ranks(scene.training))
    yield


def restart_server(scene: Scene) -> Iterator[None]:
    yield
    scene.server.stop(signal.SIGKILL)
    yield
    strikes(lambda: all(scene.problem(one) for one in scene.daemons))
    scene.server.start()
    yield


def cut_node(scene: Scene) -> Iterator[None]:
    """Of one node, all packets to and from the server; those of the job pass."""
    node = scene.other(scene.scorer())
    yield
    node.node.lose(1.0)
    yield
    strikes(lambda: scene.problem(node))
    node.node.lose_nothing()
    yield


def slow_consumer(scene: Scene) -> Iterator[None]:
    """The scorer's daemon stands still, while somebody sends it more than its server keeps."""
    scorer = scene.scorer()
    assert scorer.process is not None
    (job,) = {rank["job"] for rank in scorer.ranks(scene.training)}
    before = scene.server.log.read_bytes().count(b"Slow Consumer")
    with inside(scene.net.hub):
        flood = Nats(scene.server.settings(node="flood"), "flood")
        flood.start()
    wait_for("the connection of the flood", lambda: not flood.problem())
    yield
    scorer.process.send_signal(signal.SIGSTOP)
    try:
        for _ in range(FLOOD):
            flood.publish(int(job, 16), b"x" * 200_000)
        yield
        strikes(lambda: scene.server.log.read_bytes().count(b"Slow Consumer") > before)
    finally:
        scorer.process.send_signal(signal.SIGCONT)
        flood.close()
    yield


FAULTS: dict[str, Callable[[Scene], Iterator[None]]] = {
    "none": nothing,
    "the scorer killed": kill_scorer,
    "its daemon started again": start_scorer,
    "nats-server killed": restart_server,
    "a node cut off from it": cut_node,
    "the scorer stopped, a slow consumer": slow_consumer,
}


def pair(scene: Scene, fault: str) -> tuple[Span, Span]:
    """A rest and a fault."""
    scene.scorer()
    breaking = FAULTS[fault](scene)
    begin = time.monotonic()
    time.sleep(SPAN)
    rest = begin, time.monotonic()
    next(breaking)
    begin = time.monotonic()
    next(breaking)
    time.sleep(max(0.0, begin + SPAN - time.monotonic()))
    broken = begin, time.monotonic()
    next(breaking)
    return rest, broken


def interval(ratios: list[float]) -> str:
    """Geometric mean with its 95 % interval."""
    draw, logs = random.Random(1), [math.log(ratio) for ratio in ratios]
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(DRAWS))
    low, high = means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS)]
    return f"{math.exp(statistics.fmean(logs)):.4f} ({math.exp(low):.4f} to {math.exp(high):.4f})"


def row(fault: str, spans: list[tuple[Span, Span]], steps: list[Span]) -> str:
    """Of the table."""

    def times(span: Span) -> list[float]:
        return [1e3 * (end - begin) for begin, end in steps if span[0] <= begin < span[1]]

    pairs = [(times(rest), times(broken)) for rest, broken in spans]
    medians = interval([statistics.median(b) / statistics.median(r) for r, b in pairs])
    means = interval([statistics.fmean(b) / statistics.fmean(r) for r, b in pairs])
    worst = [max(ms for pair in pairs for ms in pair[which]) for which in (0, 1)]
    number = sum(len(broken) for _, broken in pairs)
    return f"| {fault} | {number} | {medians} | {means} | {worst[0]:.0f}, {worst[1]:.0f} |"


def main(repeats: int = 6) -> None:
    seed = int(os.environ.get("STRAGD_SEED", time.time_ns() % 1_000_000))
    draw, end = random.Random(seed), time.monotonic() + SECONDS
    spans: dict[str, list[tuple[Span, Span]]] = {fault: [] for fault in FAULTS}
    load = os.getloadavg()[0]
    with (
        cluster(2, "nats", "[windows]\nsteps = 25\n", LEASE, limits=LIMITS) as (net, daemons),
        spanning_job(net.nodes, "ddp.py", EACH, *JOB) as training,
    ):
        assert net.server is not None
        scene = Scene(net, daemons, training, net.server)
        while len(spans["none"]) < repeats and time.monotonic() < end:
            for fault in draw.sample(list(FAULTS), len(FAULTS)):
                spans[fault].append(pair(scene, fault))
        assert training.process.poll() is None, training.log.read_text()
        steps = [(r["begin"], r["end"]) for r in training.records() if r["event"] == "step"]
    after, pairs_of_each = os.getloadavg()[0], len(spans["none"])
    print(f"{pairs_of_each} pairs of each, seed {seed} (STRAGD_SEED)", end=", ")
    print(f"load {load:.1f} to {after:.1f}\n")
    print(
        "| fault | steps during it | ratio of medians (95 %) | ratio of means (95 %) "
        "| longest step in rests and faults, ms |\n|---|---|---|---|---|"
    )
    for fault, pairs in spans.items():
        print(row(fault, pairs, steps))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
