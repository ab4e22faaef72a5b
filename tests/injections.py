"""Real things that make one rank of a real job slow, each for as long as its context is open."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from tests.harness import Daemon, Job, wait_for
from tests.hosts import SPIN, RealCgroups, cpus, pinned

RANKS = 4
WATCH = "[windows]\nsteps = 25\n[telemetry]\nseconds = 1\n"
LEARNT_WINDOWS = 8
LIMIT = 150.0

NEIGHBOURS = 24
"""Enough that a fair share of the core is less than what the rank needs of it."""


@contextlib.contextmanager
def nothing(pid: int) -> Iterator[None]:
    """The slowness is the trainer's own."""
    yield


@contextlib.contextmanager
def neighbours(pid: int) -> Iterator[None]:
    """Busy processes on the core to which the rank is bound.

    Each in a session of its own: the kernel may share a core out by session (autogroup), and then
    many in one count like one.
    """
    core = cpus()[-1]
    subprocess.run(["taskset", "-acp", str(core), str(pid)], check=True, stdout=subprocess.DEVNULL)
    busy = [subprocess.Popen(pinned(core, SPIN), start_new_session=True) for _ in range(NEIGHBOURS)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait(60)


@contextlib.contextmanager
def quota(pid: int) -> Iterator[None]:
    """A cgroup that lets the rank run for 6 ms of each 100 ms."""
    with RealCgroups() as cgroups:
        limits = {"cpu__max": "6000 100000", "cpu__cfs_quota_us": "6000"}
        cgroups.move(pid, cgroups.make("cpu", **limits))
        yield


@contextlib.contextmanager
def stops(pid: int) -> Iterator[None]:
    """SIGSTOP for about a third of the time, in bursts that are longer than a step."""
    end = threading.Event()

    def stop_and_go() -> None:
        draw = random.Random(pid)
        with contextlib.suppress(ProcessLookupError):
            while not end.wait(draw.uniform(0.1, 0.3)):
                os.kill(pid, signal.SIGSTOP)
                end.wait(draw.uniform(0.08, 0.12))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(60)


@dataclass(frozen=True)
class Condition:
    """What is done to a rank, and what must be said about it."""

    inject: Callable[[int], AbstractContextManager[None]]
    """Takes the rank's pid."""
    cause: str
    where: str
    words: str = ""
    """In the first line of evidence."""
    slow_factor: float = 1.0
    """Of the trainer's own waits."""

    def options(self, rank: int) -> list[str]:
        """For the trainer."""
        if self.slow_factor == 1.0:
            return []
        return ["--slow-rank", str(rank), "--slow-factor", str(self.slow_factor)]


CONDITIONS = {
    "neighbours on its core": Condition(
        neighbours, "cpu-contention", "machine", "runnable but not running"
    ),
    "CPU quota": Condition(quota, "cpu-quota", "job", "throttl"),
    "stopped now and then": Condition(stops, "stopped-process", "job", "stopped"),
    "slow by itself": Condition(nothing, "unknown", "unknown", slow_factor=1.4),
}


def arguments(*more: str) -> list[str]:
    """A job that computes a little and sleeps most of its step, so that ranks share two cores."""
    return ["--step-ms", "60", "--cpu-ms", "6", "--steps", "100000", *more]


def learnt(watcher: Daemon, training: Job) -> dict[int, int]:
    """Wait until the scorer knows what is normal; rank -> pid."""

    def known() -> dict[int, int]:
        ranks = watcher.ranks(training)
        jobs = {rank["job"] for rank in ranks}
        windows = [j["windows"] for j in watcher.ask("jobs")["jobs"] if j["key"] in jobs]
        enough = len(ranks) == RANKS and windows and min(windows) >= LEARNT_WINDOWS
        return {rank["rank"]: rank["pid"] for rank in ranks} if enough else {}

    return wait_for("windows of every rank", known, LIMIT)


def blamed(watcher: Daemon, training: Job) -> dict[str, Any] | None:
    """The most expensive confirmed finding of this job, if it is about a rank."""
    jobs = {rank["job"] for rank in watcher.ranks(training)}
    findings: list[dict[str, Any]] = watcher.ask("findings")["findings"]
    for finding in findings:
        if finding["job"]["key"] in jobs and finding["state"] == "confirmed":
            return finding if "rank" in finding["subject"] else None
    return None
