"""What do nodes that meet in a job's own store cost the process that serves it?

Method: a real TCPStore in a process of its own, of each torch that the tests have; so many members
of one job (the daemon's own transport and scoring, one thread each, in one process), every one with
a window of 8 ranks each 10 s, lease 5 s. CPU is the store's process; beside it a client of the
same torch asks for a key of the job 200 times a second, before the members come and with them.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

from stragd.config import Exchange as Settings
from stragd.exchange.cluster import Cluster
from stragd.exchange.message import Sender
from stragd.exchange.store import Store
from tests.exchange_jobs import Member, job
from tests.store_server import PYTHONS, StoreServer

EACH, WINDOW_SECONDS, SECONDS = 8, 10.0, 30.0
CLIENT = """
import json, sys, time
from datetime import timedelta
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), None, False, timedelta(seconds=60),
                 wait_for_workers=False)
print("ready", flush=True)
for line in sys.stdin:
    took, end = [], time.monotonic() + float(line)
    while time.monotonic() < end:
        begin = time.perf_counter()
        store.get("job")
        took.append(time.perf_counter() - begin)
        time.sleep(0.005)
    took.sort()
    print(json.dumps([took[len(took) // 2], took[int(len(took) * 0.99)]]), flush=True)
"""


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def member(server: StoreServer, nodes: int, number: int) -> Member:
    """One node of the job."""
    name = f"node{number}"
    settings = Settings(kind="store", cluster=f"bench{nodes}")
    transport = Store(settings, name, lambda _: server.address())
    sender = Sender(name, name, number + 1)
    cluster = Cluster(transport, sender, {}, settings.deadline_seconds, 5.0, print)
    cluster.start()
    ranks = range(EACH * number, EACH * (number + 1))
    return Member(name, cluster, transport, ranks, 0, 0, window_seconds=WINDOW_SECONDS)


def measure(server: StoreServer, client: subprocess.Popen[str], nodes: int) -> str:
    """A row of the table."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write("10\n")
    client.stdin.flush()
    before = json.loads(client.stdout.readline())
    windows = job(8, ranks=nodes * EACH)
    members = [member(server, nodes, number) for number in range(nodes)]
    next_window, number, cpu, begin = time.monotonic(), 0, 0.0, 0.0
    end = float("inf")
    while time.monotonic() < end:
        now = time.monotonic()
        if now >= next_window:
            for one in members:
                one.offer(windows[number % len(windows)], now)
            next_window, number = now + WINDOW_SECONDS, number + 1
            if number == 3:  # all have joined by now
                begin, end, cpu = now, now + SECONDS, cpu_seconds(server.process.pid)
                client.stdin.write(f"{SECONDS}\n")
                client.stdin.flush()
        for one in members:
            one.turn(now)
            one.cluster.tick(now)
        time.sleep(0.25)
    cpu = (cpu_seconds(server.process.pid) - cpu) / (time.monotonic() - begin)
    during = json.loads(client.stdout.readline())
    last = members[-1].verdicts[-1] if members[-1].verdicts else None
    for one in members:
        one.cluster.close()
    shown = [f"{1e6 * value:.0f}" for value in (*before, *during)]
    return (
        f"| {'2.1 and newer' if server.new else 'before 2.1'} | {nodes} | {100 * cpu:.1f} % "
        f"| {shown[0]}, {shown[1]} | {shown[2]}, {shown[3]} "
        f"| {0 if last is None else last.ranks} of {nodes * EACH} |"
    )


def main() -> None:
    print(
        "| dialect | nodes | CPU of the store's process | job's own get without them, median and "
        "p99, µs | with them | ranks in the last verdict |\n|---|---|---|---|---|---|"
    )
    for python in PYTHONS:
        server = StoreServer(python)
        server.start()
        with subprocess.Popen(
            [python, "-c", CLIENT, str(server.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as client:
            assert client.stdout is not None
            client.stdout.readline()
            for nodes in (16, 64):
                print(measure(server, client, nodes), flush=True)
            client.kill()
        server.stop()


if __name__ == "__main__":
    main()
