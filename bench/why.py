"""Does a job keep its speed while `stragctl why` looks at it?

Method: one real job (two torchrun ranks, DDP over gloo, each with 6 ms of CPU in a step of 40 ms)
under one stragd, ten looks of ten seconds at rank 1 beside rank 0, with as long a rest between
them. Step times are stragd's own windows of 25 steps: those that lie within the life of a
`stragctl why`, compiling included, against those that lie within a rest. Printed: the medians of
both, their ratio with the 95 % interval of 2,000 bootstrap draws, and the CPU time of a look, which
is of `stragctl`, bcc's child and py-spy together. The target is a ratio within 1 %.
"""

from __future__ import annotations

import base64
import json
import os
import random
import resource
import statistics
import subprocess
import time

import numpy as np

from stragd.cli.client import ControlClient
from stragd.replay.recording import ROW
from tests.harness import SCRIPTS, daemon, job, wait_for

LOOKS = 10
SECONDS = 10.0
RANKS = 2
DRAWS = 2000
CONFIG = "[windows]\nsteps = 25\n"


def look(socket: str, key: str) -> tuple[int, int, float]:
    """One look: begin, end (CLOCK_MONOTONIC, ns), CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic_ns()
    command = [SCRIPTS / "stragctl", "--socket", socket, "why", key, "1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["seconds"] >= SECONDS - 0.1
    end = time.monotonic_ns()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return begin, end, used


def walls(client: ControlClient, key: str, after: int) -> tuple[int, list[tuple[int, int, float]]]:
    """Windows that were scored since: the next number, (begin, end, ms per step) of rank 0."""
    part = client.request("windows", after=after, job=key)
    found = []
    for window in part["windows"]:
        rows = np.frombuffer(base64.b64decode(window["rows"]), ROW)
        for row in rows[rows["rank"] == 0]:
            if np.isfinite(row["wall"]) and not row["flags"]:
                found.append((int(row["start_ns"]), int(row["end_ns"]), row["wall"] / 1e6))
    return part["after"], found


def interval(looking: list[float], resting: list[float]) -> tuple[float, float]:
    """95 % interval of the ratio of medians."""
    draw = random.Random(1)
    ratios = sorted(
        statistics.median(draw.choices(looking, k=len(looking)))
        / statistics.median(draw.choices(resting, k=len(resting)))
        for _ in range(DRAWS)
    )
    return ratios[int(0.025 * DRAWS)], ratios[int(0.975 * DRAWS)]


def main() -> None:
    options = ["--step-ms", "40", "--cpu-ms", "6", "--steps", "100000"]
    with daemon(CONFIG) as watcher, job("ddp.py", RANKS, *options) as training:
        rows = wait_for(
            "windows of both ranks",
            lambda: [r for r in watcher.ranks(training) if r["own_ms"] is not None][1:],
        )
        key, socket = rows[0]["job"], str(watcher.socket)
        looks, cpu, steps = [], [], []
        with ControlClient(socket) as client:
            after, _ = walls(client, key, 0)
            for _ in range(LOOKS):
                begin, end, used = look(socket, key)
                looks.append((begin, end))
                cpu.append(used)
                time.sleep((end - begin) / 1e9)
                after, found = walls(client, key, after)
                steps += found
    looking = [w for b, e, w in steps if any(lb <= b and e <= le for lb, le in looks)]
    resting = [w for b, e, w in steps if all(e <= lb or b >= le for lb, le in looks)]
    ratio = statistics.median(looking) / statistics.median(resting)
    low, high = interval(looking, resting)
    took = statistics.median((end - begin) / 1e9 for begin, end in looks)
    print(f"load average {os.getloadavg()[0]:.1f}, {LOOKS} looks of {SECONDS:.0f} s\n")
    print("| | windows | median ms per step |")
    print("| --- | --- | --- |")
    print(f"| while it looks | {len(looking)} | {statistics.median(looking):.2f} |")
    print(f"| between looks | {len(resting)} | {statistics.median(resting):.2f} |")
    print(f"\nratio {ratio:.4f} (95 %: {low:.4f} to {high:.4f})")
    print(f"a look takes {took:.1f} s and {statistics.median(cpu):.2f} s of CPU")


if __name__ == "__main__":
    main()
