"""What every rank of the test trainers shares: pace, injected slowness, record, its own end.

Four busy ranks on two cores would slow each other down, and no one rank could be called slow. So a
rank does real but small work (a few ms of CPU) and then *waits as a rank waits for its GPU*: it
sleeps until an absolute deadline. Work plus device wait is the rank's own time of the step. A slow
rank's device waits stretch, so that its own time is ``factor`` times its peers'.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import signal
import statistics
import sys
import time
from datetime import datetime, timezone
from typing import Any

PR_SET_PDEATHSIG = 1
DATA, FORWARD, BACKWARD = "data", "forward", "backward"
SHARES = {DATA: 0.1, FORWARD: 0.35, BACKWARD: 0.55}  # of a step's own time; sums to 1


def die_with_launcher() -> None:
    """Let the kernel kill this process when the one that started it is gone."""
    launcher = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:  # it died before the request
        os._exit(1)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options that every trainer takes."""
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--step-ms", type=float, default=60.0, help="own time of a healthy step")
    parser.add_argument("--jitter", type=float, default=0.02, help="sigma of own time, relative")
    parser.add_argument("--cpu-ms", type=float, default=0.0, help="CPU time before every step")
    parser.add_argument("--slow-rank", type=int, default=-1, help="-1: nobody")
    parser.add_argument("--slow-factor", type=float, default=1.2)
    parser.add_argument("--slow-after", type=int, default=0, help="first slow step")
    parser.add_argument("--slow-until", type=int, default=-1, help="first healthy step again")
    parser.add_argument("--phase", choices=["whole", *SHARES], default="whole")
    parser.add_argument("--record", default="", help="JSON lines: what was injected, what came")
    parser.add_argument("--record-steps", action="store_true", help="and rank 0's every step")


class Record:
    """Appends JSON lines to one file for all ranks; every line is one atomic write."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o644) if path else -1

    def write(self, event: str, rank: int, **values: Any) -> None:
        """One line; ``time`` is UTC with milliseconds."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = {"event": event, "rank": rank, "time": now.replace("+00:00", "Z"), **values}
        if self._file >= 0:
            os.write(self._file, (json.dumps(line) + "\n").encode())


class Pace:
    """Absolute deadlines of one rank's steps."""

    def __init__(self, options: argparse.Namespace, rank: int, record: Record) -> None:
        self._options, self._rank, self._record = options, rank, record
        self._random = random.Random(rank * 7919 + 1)
        self._slow = False
        self.step = -1
        self._deadlines: dict[str, float] = {}
        self._begin = time.monotonic()
        self._times: dict[str, dict[str, list[float]]] = {
            "before": {"wall": [], "own": []},
            "slow": {"wall": [], "own": []},
            "after": {"wall": [], "own": []},
        }
        self._own_end = self._begin
        self._cpu = time.process_time()  # importing torch is not the steps' work
        record.write("started", rank, pid=os.getpid(), step_ms=options.step_ms)

    def begin_step(self) -> None:
        """The last step's collectives are over: its times count, the next one's deadlines begin."""
        now = time.monotonic()
        if self.step >= 0:
            times = self._times[self._part()]
            times["wall"].append((now - self._begin) * 1e3)
            times["own"].append((self._own_end - self._begin) * 1e3)
            if self._options.record_steps and self._rank == 0:
                self._record.write("step", 0, begin=self._begin, end=now)  # CLOCK_MONOTONIC, s
        self.step += 1
        self._begin = now
        self._inject()
        self._compute(self._options.cpu_ms / 1e3)
        self.begin_device()

    def begin_device(self) -> None:
        """The device has what it needs for the step: its deadlines count from now."""
        own = self._options.step_ms / 1e3 * max(0.5, self._random.gauss(1, self._options.jitter))
        begin, passed = time.monotonic(), 0.0
        for phase, share in SHARES.items():
            slow = self._slow and self._options.phase in ("whole", phase)
            passed += own * share * (self._options.slow_factor if slow else 1.0)
            self._deadlines[phase] = begin + passed

    def _compute(self, seconds: float) -> None:
        """Use so much CPU time, however long that takes: as a rank prepares its batch."""
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            sum(range(1000))

    def wait_for_device(self, phase: str) -> None:
        """Sleep as a rank waits for its GPU, until the phase's deadline."""
        left = self._deadlines[phase] - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._own_end = time.monotonic()

    def wait_for_part(self, part: int, parts: int) -> None:
        """Wait for the ``part``-th of ``parts`` (from 1) equal pieces of the backward pass."""
        begin, end = self._deadlines[FORWARD], self._deadlines[BACKWARD]
        left = begin + (end - begin) * part / parts - time.monotonic()
        if left > 0:
            time.sleep(left)
        self._own_end = time.monotonic()

    def _part(self) -> str:
        options = self._options
        if options.slow_rank < 0 or self.step < options.slow_after:
            return "before"
        return "after" if 0 <= options.slow_until <= self.step else "slow"

    def _inject(self) -> None:
        options = self._options
        slow = options.slow_rank == self._rank and self._part() == "slow"
        if slow != self._slow:
            self._slow = slow
            values = {"factor": options.slow_factor, "phase": options.phase}
            self._record.write(
                "injected" if slow else "withdrawn", self._rank, step=self.step, **values
            )

    def finish(self, **values: Any) -> None:
        """Write this rank's own step times: milliseconds, by part of the run (all ranks alike)."""
        self.begin_step()
        summary = {
            part: {name: describe(values) for name, values in times.items()}
            for part, times in self._times.items()
            if times["wall"]
        }
        cpu = (time.process_time() - self._cpu) * 1e3 / max(1, self.step)
        values |= {"steps": self.step, "cpu_ms_per_step": round(cpu, 2), "parts": summary}
        self._record.write("summary", self._rank, **values)


def describe(values: list[float]) -> dict[str, float]:
    """Count, median, mean and standard deviation, in the unit of the values."""
    return {
        "steps": len(values),
        "median": round(statistics.median(values), 3),
        "mean": round(statistics.fmean(values), 3),
        "deviation": round(statistics.pstdev(values), 3),
    }


def refuse(message: str) -> int:
    """One line on stderr; the exit status."""
    sys.stderr.write(f"trainer: {message}\n")
    return 2
