"""CPU of one telemetry pass over the hosts' side: eight ranks and eight NICs.

Method. Eight processes, each with 64 threads that sleep, one that works now and then, and four
children (data loaders), read through the real /proc and the real cgroups of this machine; eight
NICs as a tree of files with mlx5's names (36 counters and states each) on a memory file system, as
sysfs is one. 240 passes; CPU time of the reading process, of all its threads, by
CLOCK_PROCESS_CPUTIME_ID. Printed: mean over all passes (one in twelve looks over all threads of a
rank), median and worst pass, and the share of one core at a window of ten seconds. Reading real
counters costs the driver's time besides: that sleeps for the firmware and is no CPU time here.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stragd.discovery.process import read_stat
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
from tests.nic_trees import dgx

PASSES = 240
RANKS = 8
TARGET_MS = 2.5
RANK = """
import os, threading, time
for _ in range(64): threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
for _ in range(4):
    if os.fork() == 0: time.sleep(600)
print(flush=True)
while True:
    time.sleep(0.05)
    sum(range(10_000))
"""


def cpu_ms(what: Callable[[], object]) -> list[float]:
    """CPU time of each of PASSES calls."""
    figures: list[float] = []
    for _ in range(PASSES):
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


def main() -> None:
    command = [sys.executable, "-c", RANK]
    ranks = [
        subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
        for _ in range(RANKS)
    ]
    with tempfile.TemporaryDirectory(prefix="stragd-bench-", dir="/dev/shm") as directory:
        try:
            pids: dict[int, int] = {}
            for rank in ranks:
                assert rank.stdout is not None
                rank.stdout.readline()
                stat = read_stat("/proc", rank.pid)
                assert stat is not None
                pids[rank.pid] = stat.start_time
            dgx(Path(directory))
            host, nics = HostTelemetry(), NicTelemetry(Path(directory))
            host.read(pids, 0, 1)
            host.read_node(0, 1)
            nics.read(0, 1)
            total = report(f"{RANKS} ranks", cpu_ms(lambda: host.read(pids, 0, 1)))
            total += report("the node", cpu_ms(lambda: host.read_node(0, 1)))
            total += report("9 NICs", cpu_ms(lambda: nics.read(0, 1)))
            print(f"one pass: {total:.2f} ms of CPU (target {TARGET_MS} ms)")
        finally:
            for rank in ranks:
                os.killpg(rank.pid, signal.SIGKILL)
                rank.wait()


if __name__ == "__main__":
    main()
