"""Is the demo's finding right, again and again?

Method: the demo's own job (four torchrun ranks, DDP over gloo) with a fresh stragd each time, in
turn with a slow rank drawn at random and healthy. A faulty run is right when exactly the slow rank
is named; a healthy run is right when nobody is. Timings are of a CPU job.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from datetime import datetime

from scripts import demo
from tests.harness import daemon, job

HEALTHY_STEPS = 600


def seconds(time_of_record: str) -> float:
    """A record's UTC time as seconds since the epoch."""
    return datetime.fromisoformat(time_of_record.replace("Z", "+00:00")).timestamp()


def faulty(rank: int) -> tuple[list[int], float]:
    """One run with a slow rank: the ranks named, and seconds from the fault to the name."""
    arguments = ["--steps", str(demo.STEPS), "--step-ms", str(demo.STEP_MS)]
    arguments += ["--slow-rank", str(rank), "--slow-factor", str(demo.SLOW_FACTOR)]
    arguments += ["--slow-after", str(demo.SLOW_AFTER)]
    with daemon() as watcher, job("ddp.py", demo.RANKS, *arguments) as training:
        deadline = time.monotonic() + demo.LIMIT_SECONDS
        while time.monotonic() < deadline and training.process.poll() is None:
            found = demo.confirmed(watcher, training)
            if found:
                injected = [r for r in training.records() if r["event"] == "injected"]
                delay = time.time() - seconds(injected[0]["time"]) if injected else float("nan")
                time.sleep(8)  # one window more: does it name anybody else?
                return watcher.named(training), delay
            time.sleep(0.5)
        return watcher.named(training), float("nan")


def healthy() -> list[int]:
    """One run without a fault: the ranks named."""
    arguments = ["--steps", str(HEALTHY_STEPS), "--step-ms", str(demo.STEP_MS)]
    with daemon() as watcher, job("ddp.py", demo.RANKS, *arguments) as training:
        training.wait()
        time.sleep(1)
        return watcher.named(training)


def main(count: int = 20) -> None:
    seed = int(os.environ.get("STRAGD_SEED", time.time_ns() % 1_000_000))
    draw = random.Random(seed)
    print(f"{count} faulty and {count} healthy runs, seed {seed} (STRAGD_SEED)\n")
    right = silent = 0
    delays = []
    for number in range(1, count + 1):
        rank = draw.randrange(demo.RANKS)
        named, delay = faulty(rank)
        right += named == [rank]
        delays.append(delay)
        nobody = healthy()
        silent += not nobody
        print(
            f"{number:2}: injected {rank}, named {named} after {delay:.1f} s;"
            f" healthy: named {nobody}",
            flush=True,
        )
    print(f"\nfaulty runs right: {right} of {count}; healthy runs silent: {silent} of {count}")
    print(f"fault to name: median {statistics.median(delays):.1f} s, longest {max(delays):.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
