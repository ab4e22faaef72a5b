"""Is a rank that is slow in one phase named, in each way to train in parallel? CPU simulation.

Method: tests/cpunccl's trainer, 8 ranks, with the ring's plugin and a fresh stragd each time. For
each pattern and phase one rank, drawn at random, gets 5 % of a whole step's own work more in that
phase, from step FROM on; right is when that rank and nobody else is confirmed, also one window
later. Windows are steps between the fault and the confirmation over 100; the fault begins in the
middle of a window. Then healthy runs of each pattern: right is when nobody is. Communication is
real, among processes; GPU kernels are planned durations, so the figures say nothing about a GPU's
noise.

    python -m bench patterns            all
    python -m bench.patterns ddp moe    some, with their healthy runs
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.cpunccl.patterns import PATTERNS, PHASES
from tests.cpunccl.ranks import FOLDER, build
from tests.harness import ROOT, Daemon, Job, daemon

PLUGIN = ROOT / "target" / "ncclring" / "libnccl-profiler-stragd.so"
RANKS, PERCENT, FROM = 8, 5, 800
WINDOW = 100  # steps
LIMIT = 12  # windows after the fault
HEALTHY_RUNS, HEALTHY_STEPS = 5, 1200


class Training(Job):
    """The simulated job in its own process group, with the plugin."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.record, self.log = directory / "record.jsonl", directory / "job.log"
        options = ["--ranks", str(RANKS), "--plugin", str(PLUGIN), "--record", str(self.record)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, FOLDER / "trainer.py", *options, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


@dataclass(frozen=True)
class Outcome:
    """Who was named, and windows from the fault to the first name; None: nobody."""

    named: list[int]
    windows: float | None


def steps(watcher: Daemon, training: Training) -> int:
    """Steps that every rank has made."""
    return min((rank["steps"] for rank in watcher.ranks(training)), default=0)


def watch(watcher: Daemon, training: Training) -> Outcome:
    """Until a rank is named and one window more, or until LIMIT windows after the fault."""
    confirmed = None
    while training.process.poll() is None:
        time.sleep(0.5)
        now = steps(watcher, training)
        if confirmed is None and watcher.named(training):
            confirmed = now
        last = FROM + LIMIT * WINDOW if confirmed is None else confirmed + WINDOW
        if now > last:
            break
    after = None if confirmed is None else (confirmed - FROM) / WINDOW
    return Outcome(watcher.named(training), after)


def faulty(pattern: str, phase: str, rank: int, seed: int) -> Outcome:
    """One run with a slow rank."""
    slow = f"rank={rank},phase={phase},percent={PERCENT},from_step={FROM}"
    options = ["--pattern", pattern, "--steps", "100000", "--seed", str(seed), "--slow", slow]
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory, daemon() as watcher:
        training = Training(Path(directory), *options)
        try:
            return watch(watcher, training)
        finally:
            training.kill()


def healthy(pattern: str, seed: int) -> list[int]:
    """One run without a fault: the ranks named."""
    options = ["--pattern", pattern, "--steps", str(HEALTHY_STEPS), "--seed", str(seed)]
    with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory, daemon() as watcher:
        training = Training(Path(directory), *options)
        try:
            training.wait()
            time.sleep(1)
            return watcher.named(training)
        finally:
            training.kill()


def main(names: list[str] | None = None) -> None:
    build()
    subprocess.run(["make", "--silent", "-C", ROOT / "ncclring"], check=True)
    seed = int(os.environ.get("STRAGD_SEED", time.time_ns() % 1_000_000))
    draw = random.Random(seed)
    print(f"{RANKS} ranks, {PERCENT} % slow from step {FROM}; seed {seed} (STRAGD_SEED)\n")
    print("| pattern | phase | slow rank | named | windows until confirmed |")
    print("| --- | --- | --- | --- | --- |")
    right = runs = silent = quiet_runs = 0
    for pattern in names or PATTERNS:
        for phase in PHASES:
            rank = draw.randrange(RANKS)
            outcome = faulty(pattern, phase, rank, draw.randrange(1000))
            runs += 1
            right += outcome.named == [rank]
            after = "never" if outcome.windows is None else f"{outcome.windows:.1f}"
            print(f"| {pattern} | {phase} | {rank} | {outcome.named} | {after} |", flush=True)
        for number in range(HEALTHY_RUNS):
            named = healthy(pattern, draw.randrange(1000))
            quiet_runs += 1
            silent += not named
            print(f"| {pattern} | healthy {number + 1} | – | {named} | – |", flush=True)
    print(f"\nfaulty runs right: {right} of {runs}; healthy runs silent: {silent} of {quiet_runs}")


if __name__ == "__main__":
    main(sys.argv[1:])
