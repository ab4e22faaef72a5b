"""A cluster's messages through a real nats-server into one scorer.

Method: a nats-server on loopback, one process that publishes what the daemons of all nodes would
(messages of 8 ranks, all of a window in one burst, since a synchronous job's windows end together),
and one that is the node of rank 0 and holds the scorer role: transport, checks, alignment, scoring
and verdict are the daemon's own code. CPU and memory are the scorer process's, without the
publisher and the server. The latency is from the last publish of a window to its verdict as it came
back over NATS; the first window is left out. STRAGD_BENCH_SECONDS shortens the two minutes.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
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
SECONDS = float(os.environ.get("STRAGD_BENCH_SECONDS", "120"))


def rows_of(window: np.ndarray, number: int) -> np.ndarray:
    """One of the drawn windows under another number."""
    rows = window.copy()
    rows["window"], rows["first_step"] = number, 100 * number
    rows["last_step"] = 100 * number + 99
    return rows


async def publish(server: str, nodes: int, windows: int) -> None:
    """What all nodes but the first would send; one line for each window: when its last one left."""
    drawn = list(simulate(Scenario(nodes * EACH, windows=8, tenths=False)))
    client = await nats.connect(server, pending_size=64 << 20)
    job = int(drawn[0]["job"][0])
    print("ready", flush=True)
    sys.stdin.readline()
    begin = time.monotonic()
    for number in range(windows):
        rows = rows_of(drawn[number % len(drawn)], number)
        end = begin + number * WINDOW_SECONDS
        rows["end_ns"], rows["start_ns"] = 10**15, 10**15 - int(WINDOW_SECONDS * 1e9)
        await asyncio.sleep(max(0.0, end - time.monotonic()))
        for node in range(1, nodes):
            name = f"node{node}"
            data = encode_windows(
                Sender(name, name, node),
                rows[node * EACH : (node + 1) * EACH],
                "bench",
                "torchrun",
                {},
                {},
                time.monotonic() - end,
            )
            await client.publish(f"stragd.default.windows.{job:016x}.{name}", data)
            if node % 64 == 0:
                await asyncio.sleep(0)
        await client.flush(30)
        print(json.dumps([number, len(data), time.monotonic()]), flush=True)
    await client.close()


def score(nodes: int, windows: int, server: Server) -> None:
    """Hold the role for a job of so many nodes; prints a row of the table."""
    drawn = list(simulate(Scenario(nodes * EACH, windows=8, tenths=False)))
    job, said = int(drawn[0]["job"][0]), list[str]()
    transport = Nats(server.settings(node="node0", lease_seconds=10.0), "node0")
    cluster = Cluster(transport, Sender("node0", "node0", 1), {}, 2.0, 10.0, said.append)
    cluster.start()
    command = [sys.executable, "-m", "bench.exchange", server.address, str(nodes), str(windows)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as all_:
        assert all_.stdin is not None
        assert all_.stdout is not None
        all_.stdout.readline()
        while cluster.problem():
            time.sleep(0.1)
        first = rows_of(drawn[0], 0)[:EACH]
        first["end_ns"], first["start_ns"] = 10**15, 10**15 - int(WINDOW_SECONDS * 1e9)
        verdicts: dict[int, tuple[float, int]] = {}
        # The role first: rank 0 asks as soon as it has a window.
        cluster.offer(first, "bench", "torchrun", {}, {}, time.monotonic(), 10**15)
        while job not in cluster.held():
            cluster.turn(time.monotonic())
            cluster.tick(time.monotonic())
            time.sleep(0.05)
        all_.stdin.write("\n")
        all_.stdin.flush()
        begin, cpu = time.monotonic(), time.process_time()
        offered, ticked = 1, 0.0
        while len(verdicts) < windows and time.monotonic() < begin + windows * WINDOW_SECONDS + 30:
            now = time.monotonic()
            if offered < windows and now >= begin + offered * WINDOW_SECONDS:
                own = rows_of(drawn[offered % len(drawn)], offered)[:EACH]
                own["end_ns"], own["start_ns"] = 10**15, 10**15 - int(WINDOW_SECONDS * 1e9)
                cluster.offer(own, "bench", "torchrun", {}, {}, now, 10**15)
                offered += 1
            for verdict in cluster.turn(now):
                verdicts[verdict.window] = (time.monotonic(), verdict.ranks)
            if now - ticked >= 1.0:
                ticked = now
                cluster.tick(now)
            time.sleep(0.05)
        cpu, wall = time.process_time() - cpu, time.monotonic() - begin
        sent = [json.loads(line) for line in all_.stdout]
    late = sorted(verdicts[number][0] - at for number, _, at in sent[1:] if number in verdicts)
    whole = sum(ranks == nodes * EACH for _, ranks in verdicts.values())
    each = sent[-1][1]
    rate = (nodes - 1) * len(sent) / wall
    worst = late[min(len(late) - 1, int(len(late) * 0.99))]
    print(
        f"| {nodes * EACH:,} ranks on {nodes:,} nodes "
        f"| {rate:,.0f}/s, {rate * each / 1e6:.2f} MB/s | {100 * cpu / wall:.0f} % "
        f"| {rss_bytes() >> 20} MiB | {late[len(late) // 2]:.2f} s, {worst:.2f} s "
        f"| {whole} of {windows} |"
    )
    refused = {k: n for k, n in cluster.counters().items() if n and k.startswith(("ref", "drop"))}
    print(f"\nRefused or dropped: {refused or 'nothing'}. {' '.join(said)}\n", flush=True)
    cluster.close()


def main() -> None:
    windows = max(3, int(SECONDS / WINDOW_SECONDS))
    print(
        "| job | messages | CPU of the scorer | its memory | last publish to verdict, median and "
        "p99 | windows with all ranks |\n|---|---|---|---|---|---|"
    )
    for nodes in (128, 12_500):
        with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory:
            server = Server(Path(directory))
            server.start()
            try:
                score(nodes, windows, server)
            finally:
                server.stop()


if __name__ == "__main__":
    address, nodes, windows = sys.argv[1:]
    asyncio.run(publish(f"nats://{address}", int(nodes), int(windows)))
