"""Real things that make one rank of a real job slow, each for as long as its context is open."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
from collections.abc import Iterator

from tests.hosts import SPIN, RealCgroups, cpus, pinned

NEIGHBOURS = 6


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
