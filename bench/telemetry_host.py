"""CPU of one telemetry pass over the hosts' side: eight ranks and eight NICs.

Method. Eight processes, each with 64 threads that sleep and one that works now and then; without
children, and with four each that work too (data loaders). Read through the real /proc and the real
cgroups of this machine. NICs: a tree of files with mlx5's names, 31 counters and 3 states of each
of eight rails, on a memory file system, as sysfs is one; traffic and congestion counters move from
pass to pass, errors stand still. 240 passes; CPU time of the reading
process, of all its threads, by CLOCK_PROCESS_CPUTIME_ID. Printed: mean over all passes
(one in twelve looks over threads and children of a rank), median, worst, and the share of one core
at a window of ten seconds. Reading real counters costs the driver's time besides: it sleeps for the
firmware, which is no CPU time.

TCP connections: eight processes in namespaces of their own that talk to each other over 28
connections each, read a tenth of a second apart; when all are suspects, and when nobody is.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from stragd.discovery.process import read_stat
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
from stragd.telemetry.sockets import Sockets
from tests.network import Network
from tests.nic_trees import NicTree

PASSES = 240
RANKS = NICS = 8
TARGET_MS = 2.5
MOVING = (
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_packets",
    "port_rcv_packets",
    "np_cnp_sent",
    "rp_cnp_handled",
)
RANK = """
import os, sys, threading, time
for _ in range(64): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range(int(sys.argv[1])):
    if os.fork() == 0: break
else:
    print(flush=True)
while True:
    time.sleep(0.05)
    sum(range(10_000))
"""


def cpu_ms(
    what: Callable[[], object], before: Callable[[int], object] = lambda _: None
) -> list[float]:
    """CPU time of each of PASSES calls; ``before`` each of them, something that does not count."""
    figures: list[float] = []
    for number in range(PASSES):
        before(number)
        begin = time.process_time_ns()
        what()
        figures.append((time.process_time_ns() - begin) / 1e6)
    return figures


def report(name: str, figures: list[float]) -> float:
    """Print one row; the mean."""
    mean = statistics.fmean(figures)
    median, worst = statistics.median(figures), max(figures)
    print(f"{name}: mean {mean:.2f} ms, median {median:.2f} ms, worst {worst:.2f} ms", end=" ")
    print(f"({mean / 1e4:.4%} of a core)")
    return mean


@contextmanager
def ranks(children: int) -> Iterator[dict[int, int]]:
    """Eight ranks: pid -> start time."""
    command = [sys.executable, "-c", RANK, str(children)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(RANKS)
    ]
    try:
        pids: dict[int, int] = {}
        for rank in started:
            assert rank.stdout is not None
            rank.stdout.readline()
            stat = read_stat("/proc", rank.pid)
            assert stat is not None
            pids[rank.pid] = stat.start_time
        yield pids
    finally:
        for rank in started:
            os.killpg(rank.pid, signal.SIGKILL)
            rank.wait()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="stragd-bench-", dir="/dev/shm") as directory:
        tree = NicTree(Path(directory))
        for index in range(NICS):
            tree.rdma("mlx5", name=f"mlx5_{index}")

        def traffic(number: int) -> None:
            for index in range(NICS):
                tree.set(f"mlx5_{index}", dict.fromkeys(MOVING, 10**12 + number * 10**6 + index))

        nics = NicTelemetry(Path(directory))
        nics.read(0, 1)
        common = report(f"{NICS} NICs", cpu_ms(lambda: nics.read(0, 1), traffic))
        connections(Path(directory))
    for children in (0, 4):
        with ranks(children) as pids:
            own = one_host(pids, children)
        target = f" (target {TARGET_MS} ms)" if not children else ""
        print(f"one pass, {children} children each: {common + own:.2f} ms of CPU{target}")


def connections(directory: Path) -> None:
    """Report what the TCP connections of the ranks cost."""
    with Network(RANKS, 0, directory) as network, network.talkers(connections=2) as pids:
        starts = {}
        for pid in pids:
            stat = read_stat("/proc", pid)
            assert stat is not None
            starts[pid] = stat.start_time
        for name, suspects in (("all suspects", set(pids)), ("nobody suspect", set[int]())):
            read = partial(Sockets("", answer_seconds=60).read, starts, suspects)
            figures = cpu_ms(read, lambda _: time.sleep(0.1))
            report(f"TCP connections of {RANKS} ranks, {name}", figures)


def one_host(pids: dict[int, int], children: int) -> float:
    """Report the node and its ranks; the sum."""
    host = HostTelemetry()
    host.read(pids, 0, 1)
    host.read_node(0, 1)
    node = report("the node", cpu_ms(lambda: host.read_node(0, 1)))
    name = f"{RANKS} ranks with {children} children each"
    return node + report(name, cpu_ms(lambda: host.read(pids, 0, 1)))


if __name__ == "__main__":
    main()
