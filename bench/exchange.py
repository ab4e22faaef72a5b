"""A cluster's messages through a real nats-server into one scorer.

Method: a nats-server on loopback, one process that publishes what the daemons of all nodes would
(messages of 8 ranks, all of a job's window in one burst, since a synchronous job's windows end
together; the windows of many jobs end one job after the other), and one that is the node of rank 0
of every job and holds all scorer roles: transport, checks, alignment, scoring and verdict are the
daemon's own code. All jobs run from the begin on; the other nodes join when all roles are held, and
what is measured begins there. CPU and memory are the scorer process's, without the publisher and
the server. The latency is from the last publish of a window to its verdict as it came back over
NATS; the first three windows after that are left out. Headroom is how many times as many messages
a whole core would take.
STRAGD_BENCH_SECONDS shortens the two minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import nats
import numpy as np

from stragd.exchange.cluster import Cluster
from stragd.exchange.message import Sender, encode_windows
from stragd.exchange.nats import Nats
from stragd.health import rss_bytes
from stragd.replay.simulate import Scenario, simulate
from tests.nats_server import Server

EACH = 8
WINDOW_SECONDS = 5.0
NEVER = (0.0, 0)
SECONDS = float(os.environ.get("STRAGD_BENCH_SECONDS", "120"))


@dataclass(frozen=True)
class Load:
    """What comes: so many windows of so many jobs on so many nodes each."""

    jobs: int
    nodes: int
    windows: int

    def schedule(self, first: int = 0) -> Iterator[tuple[float, int, int]]:
        """When each window ends (s from the begin), its number and job, in order."""
        for number in count(first):
            for job in range(self.jobs):
                yield (number + job / self.jobs) * WINDOW_SECONDS, number, job


class Drawn:
    """Windows of a job, to be had under any number and for any job."""

    def __init__(self, nodes: int) -> None:
        self._windows = list(simulate(Scenario(nodes * EACH, windows=8, tenths=False)))
        self._first = int(self._windows[0]["job"][0])

    def job(self, job: int) -> int:
        """Its key; never 0."""
        return self._first + job

    def rows(self, number: int, job: int, ranks: int | None = None) -> np.ndarray:
        """One window, or that of the first ranks."""
        rows = self._windows[number % len(self._windows)][:ranks].copy()
        rows["window"], rows["first_step"], rows["job"] = number, 100 * number, self.job(job)
        rows["last_step"] = 100 * number + 99
        rows["end_ns"], rows["start_ns"] = 10**15, 10**15 - int(WINDOW_SECONDS * 1e9)
        return rows


async def publish(server: str, load: Load, sent: Path) -> None:
    """What all nodes but the first would send; one line for each window: when its last one left."""
    drawn = Drawn(load.nodes)
    client = await nats.connect(server, pending_size=64 << 20)
    print("ready", flush=True)
    first, begin = json.loads(sys.stdin.readline())
    with sent.open("w") as file:
        for after, number, job in load.schedule(first):
            if number == first + load.windows:
                break
            rows, key = drawn.rows(number, job), drawn.job(job)
            await asyncio.sleep(max(0.0, begin + after - time.monotonic()))
            for node in range(1, load.nodes):
                name = f"node{node}"
                data = encode_windows(
                    Sender(name, name, node),
                    rows[node * EACH : (node + 1) * EACH],
                    "bench",
                    "torchrun",
                    {},
                    {},
                    time.monotonic() - begin - after,
                )
                await client.publish(f"stragd.default.windows.{key:016x}.{name}", data)
                if node % 64 == 0:
                    await asyncio.sleep(0)
            await client.flush(30)
            file.write(json.dumps([number, key, len(data), time.monotonic()]) + "\n")
    await client.close()


def score(load: Load, server: Server, directory: Path) -> None:
    """Hold the roles of all jobs; prints a row of the table."""
    drawn, said, file = Drawn(load.nodes), list[str](), directory / "sent"
    transport = Nats(server.settings(node="node0", lease_seconds=10.0), "node0")
    cluster = Cluster(transport, Sender("node0", "node0", 1), {}, 2.0, 10.0, said.append)
    cluster.start()
    verdicts: dict[tuple[int, int], tuple[float, int]] = {}
    ticked = 0.0

    def offer(number: int, job: int) -> None:
        own = drawn.rows(number, job, EACH)
        cluster.offer(own, "bench", "torchrun", {}, {}, time.monotonic(), 10**15)

    def turn() -> None:
        nonlocal ticked
        now = time.monotonic()
        for verdict in cluster.turn(now):
            verdicts[verdict.window, verdict.job] = (time.monotonic(), verdict.ranks)
        if now - ticked >= 1.0:
            ticked = now
            cluster.tick(now)
        time.sleep(0.05)

    command = [sys.executable, "-m", "bench.exchange", server.address, str(file)]
    command += map(str, (load.jobs, load.nodes, load.windows))
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as all_:
        assert all_.stdin is not None
        assert all_.stdout is not None
        all_.stdout.readline()
        while cluster.problem():
            time.sleep(0.1)
        begin, first, cpu, wall = time.monotonic(), 0, 0.0, 0.0
        for after, number, job in load.schedule():
            while time.monotonic() < begin + after:
                turn()
            offer(number, job)
            if not first and job == load.jobs - 1 and len(cluster.held()) == load.jobs:
                first = number + 1
                all_.stdin.write(json.dumps([first, begin]) + "\n")
                all_.stdin.flush()
                cpu, wall = time.process_time(), time.monotonic()
            if (number, job) == (first + load.windows, 0):
                cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            if (number, job) == (first + load.windows, load.jobs - 1):
                break
    if not first:
        sys.exit(f"of {load.jobs} roles {len(cluster.held())} are held after {number} windows")
    sent = [json.loads(line) for line in file.read_text().splitlines()]
    late = sorted(
        verdicts[number, key][0] - at
        for number, key, _, at in sent
        if number >= first + 3 and (number, key) in verdicts
    )
    whole = sum(
        verdicts.get((number, key), NEVER)[1] == load.nodes * EACH for number, key, *_ in sent
    )
    rate = (load.nodes - 1) * len(sent) / wall
    worst = late[min(len(late) - 1, int(len(late) * 0.99))]
    print(
        f"| {load.jobs:,} of {load.nodes * EACH:,} ranks on {load.nodes:,} nodes "
        f"| {rate:,.0f}/s, {rate * sent[-1][2] / 1e6:.2f} MB/s "
        f"| {100 * cpu / wall:.0f} %, {wall / cpu:.1f} | {rss_bytes() >> 20} MiB "
        f"| {late[len(late) // 2]:.2f} s, {worst:.2f} s "
        f"| {whole:,} of {load.jobs * load.windows:,} |"
    )
    refused = {k: n for k, n in cluster.counters().items() if n and k.startswith(("ref", "drop"))}
    print(f"\nRefused or dropped: {refused or 'nothing'}. {' '.join(said)}\n", flush=True)
    cluster.close()


def main() -> None:
    windows = max(3, int(SECONDS / WINDOW_SECONDS))
    print(f"load average {os.getloadavg()[0]:.1f}\n")
    print(
        "| jobs | messages | CPU of the scorer, headroom | its memory | last publish to verdict, "
        "median and p99 | windows with all ranks |\n|---|---|---|---|---|---|"
    )
    for jobs, nodes in ((1, 128), (1000, 8), (1, 12_500)):
        with tempfile.TemporaryDirectory(prefix="stragd-bench-") as text:
            server = Server(Path(text))
            server.start()
            try:
                score(Load(jobs, nodes, windows), server, Path(text))
            finally:
                server.stop()


if __name__ == "__main__":
    address, sent_file, *numbers = sys.argv[1:]
    asyncio.run(publish(f"nats://{address}", Load(*map(int, numbers)), Path(sent_file)))
