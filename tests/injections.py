"""Real things that make one rank of a real job slow, each for as long as its context is open."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.harness import Daemon, Job, daemon, job, wait_for
from tests.hosts import SPIN, RealCgroups, cpus, pinned
from tests.needs import lacking
from tests.network import Network

RANKS = 4
WATCH = "[windows]\nsteps = 25\n[telemetry]\nseconds = 1\n"
WATCH_NETWORK = "[windows]\nsteps = 10\n[telemetry]\nseconds = 1\n"
LEARNT_WINDOWS = 8
LIMIT = 150.0

NEIGHBOURS = 24
"""Enough that a fair share of the core is less than what the rank needs of it."""


@contextlib.contextmanager
def nothing(pid: int) -> Iterator[None]:
    """The slowness is the trainer's own."""
    yield


@contextlib.contextmanager
def neighbours(pid: int, core_of_others: int = -1, count: int = NEIGHBOURS) -> Iterator[None]:
    """Busy processes on a core; by default the one to which the rank is bound.

    Each in a session of its own: the kernel may share a core out by session (autogroup), and then
    many in one count like one.
    """
    own, other = cpus()[-1], cpus()[core_of_others]
    subprocess.run(["taskset", "-acp", str(own), str(pid)], check=True, stdout=subprocess.DEVNULL)
    busy = [subprocess.Popen(pinned(other, SPIN), start_new_session=True) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait(60)


@contextlib.contextmanager
def quota(pid: int, ms: int = 6) -> Iterator[None]:
    """A cgroup that lets the rank run for so many ms of each 100 ms."""
    with RealCgroups() as cgroups:
        limits = {"cpu__max": f"{ms}000 100000", "cpu__cfs_quota_us": f"{ms}000"}
        cgroups.move(pid, cgroups.make("cpu", **limits))
        yield


@contextlib.contextmanager
def stops(pid: int, sent: signal.Signals = signal.SIGSTOP) -> Iterator[None]:
    """SIGSTOP for about a third of the time, in bursts that are longer than a step."""
    end = threading.Event()

    def stop_and_go() -> None:
        draw = random.Random(pid)
        with contextlib.suppress(ProcessLookupError):
            while not end.wait(draw.uniform(0.1, 0.3)):
                os.kill(pid, sent)
                end.wait(draw.uniform(0.08, 0.12))
                os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=stop_and_go)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(60)


@contextlib.contextmanager
def little_memory(pid: int, share: float = 0.5) -> Iterator[None]:
    """A memory cgroup with ``share`` of the room for the file that the rank reads again and again,
    and for little else: the memory that it has already is charged elsewhere."""
    file = _data_of(pid)
    room = str(int(os.stat(file).st_size * share))
    limits = {"memory__high": room, "memory__limit_in_bytes": room}
    with RealCgroups() as cgroups:
        inside = [limited := cgroups.make("memory", **limits)]
        if not limited.is_relative_to(cgroups.hierarchy("")):
            inside.append(cgroups.make(""))  # v1: pressure is counted by the unified hierarchy
        for path in inside:
            cgroups.move(pid, path)
        # What lies in the page cache belongs to who read it first: read it anew.
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        yield


@contextlib.contextmanager
def slow_disk(pid: int, reads_per_second: int = 100) -> Iterator[None]:
    """The disk gives the rank and its data loaders so many reads a second; they want 500."""
    disk = _disk_of(_data_of(pid))
    limits = {
        "io__max": f"{disk} riops={reads_per_second}",
        "blkio__throttle__read_iops_device": f"{disk} {reads_per_second}",
    }
    with RealCgroups() as cgroups:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        first = any(m[2] == "cgroup" and "blkio" in m[3].split(",") for m in mounts)
        limited = cgroups.make("blkio" if first else "io", **limits)
        for process in (pid, *children(pid)):
            cgroups.move(process, limited)
        yield


def _data_of(pid: int) -> str:
    """The file that a trainer's batches are read from."""
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            if (target := os.readlink(entry.path)).endswith(".data"):
                return target
    raise AssertionError(f"process {pid} reads no data: {list(os.scandir(f'/proc/{pid}/fd'))}")


def _disk_of(file: str) -> str:
    """Numbers of the whole disk that holds a file, "254:0"."""
    device = os.stat(file).st_dev
    directory = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (directory / "partition").exists():
        directory = directory.parent
    if not (directory / "dev").exists():
        lacking(f"{file} is on no disk of its own: reads cannot be held back there")
    return (directory / "dev").read_text().strip()


def children(pid: int) -> list[int]:
    """Child processes of the main thread."""
    return [int(c) for c in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


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
    trainer: tuple[str, ...] = ()
    """More of its options."""
    cable: tuple[float, float] = (0.0, 0.0)
    """What is wrong with the rank's network: delay in ms, share of packets lost. Everybody waits
    for it, so that the finding may be about the network and name no rank."""
    windows: int = LEARNT_WINDOWS
    """Of health before it: what is normal for a network is one series, not one per rank."""

    def options(self, rank: int, directory: Path) -> list[str]:
        """For the trainer, which may keep files in ``directory``."""
        made = [part.format(directory=directory) for part in self.trainer]
        if self.slow_factor != 1.0:
            made += ["--slow-rank", str(rank), "--slow-factor", str(self.slow_factor)]
        return made


@dataclass
class Scene:
    """A daemon and a job to which something can be done."""

    watcher: Daemon
    training: Job
    network: Network | None

    @contextlib.contextmanager
    def injected(self, condition: Condition, pid: int) -> Iterator[None]:
        """While it is open."""
        with condition.inject(pid):
            if self.network is not None:
                self.network.faults(*condition.cable)
            try:
                yield
            finally:
                if self.network is not None:
                    self.network.faults()


@contextlib.contextmanager
def scene(condition: Condition, rank: int) -> Iterator[Scene]:
    """All is well so far."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="stragd-data-")))
        watcher = stack.enter_context(daemon(WATCH_NETWORK if any(condition.cable) else WATCH))
        options = arguments(*condition.options(rank, directory))
        network, where = None, {}
        if any(condition.cable):
            network = stack.enter_context(Network(RANKS, rank, directory))
            where = {"namespaces": network.names, "master": network.address(0)}
        training = stack.enter_context(job("ddp.py", RANKS, *options, **where))
        yield Scene(watcher, training, network)


DATA = ("--data", "{directory}")
READING = (*DATA, "--batch-blocks", "256")
"""So many reads that those which miss the page cache take part of a step on a quick disk too."""
LOADING = (*DATA, "--direct", "--workers", "1")
TALKING = ("--buckets", "1", "--width", "256", "--step-ms", "30", "--cpu-ms", "1")
"""One all-reduce of 263 kB a step: at the pace of `Network` it takes longer than all else."""
NETWORK_WINDOWS = 60

CONDITIONS = {
    "neighbours on its core": Condition(
        neighbours, "cpu-contention", "machine", "runnable but not running"
    ),
    "CPU quota": Condition(quota, "cpu-quota", "job", "throttl"),
    "stopped now and then": Condition(stops, "stopped-process", "job", "stopped"),
    "less memory than its data": Condition(
        little_memory, "memory-pressure", "job", "memory", trainer=READING
    ),
    "slow disk under its data loader": Condition(
        slow_disk, "data-loader-disk", "machine", "waiting for the disk", trainer=LOADING
    ),
    "lossy network": Condition(
        nothing,
        "packet-loss",
        "network",
        "lost on the way out",
        trainer=TALKING,
        cable=(0.0, 0.1),
        windows=NETWORK_WINDOWS,
    ),
    "slow network": Condition(
        nothing,
        "network-delay",
        "network",
        "TCP round trip",
        trainer=TALKING,
        cable=(20.0, 0.0),
        windows=NETWORK_WINDOWS,
    ),
    "slow by itself": Condition(nothing, "unknown", "unknown", slow_factor=1.4),
}

TWINS = {
    "a neighbour on the other core": Condition(
        functools.partial(neighbours, core_of_others=0, count=1), "", ""
    ),
    "a CPU quota that is enough": Condition(functools.partial(quota, ms=200), "", ""),
    "a signal that stops nobody": Condition(functools.partial(stops, sent=signal.SIGURG), "", ""),
    "memory for its data": Condition(
        functools.partial(little_memory, share=4.0), "", "", trainer=READING
    ),
    "a disk that is fast enough": Condition(
        functools.partial(slow_disk, reads_per_second=50_000), "", "", trainer=LOADING
    ),
    "one packet in ten thousand lost": Condition(
        nothing, "", "", trainer=TALKING, cable=(0.0, 0.0001), windows=NETWORK_WINDOWS
    ),
    "a fifth of a millisecond more": Condition(
        nothing, "", "", trainer=TALKING, cable=(0.2, 0.0), windows=NETWORK_WINDOWS
    ),
}
"""The same measures where they slow nobody: no cause may be named."""


def arguments(*more: str) -> list[str]:
    """A job that computes a little and sleeps most of its step, so that ranks share two cores."""
    return ["--step-ms", "60", "--cpu-ms", "6", "--steps", "100000", *more]


def learnt(
    watcher: Daemon, training: Job, least: int = LEARNT_WINDOWS, limit: float = LIMIT
) -> dict[int, int]:
    """Wait until the scorer has seen ``least`` windows; rank -> pid."""

    def known() -> dict[int, int]:
        ranks = watcher.ranks(training)
        jobs = {rank["job"] for rank in ranks}
        windows = [j["windows"] for j in watcher.ask("jobs")["jobs"] if j["key"] in jobs]
        enough = len(ranks) == RANKS and windows and min(windows) >= least
        return {rank["rank"]: rank["pid"] for rank in ranks} if enough else {}

    return wait_for("windows of every rank", known, limit)


def blamed(watcher: Daemon, training: Job, network: bool = False) -> dict[str, Any] | None:
    """The most expensive confirmed finding of this job, if it is about a rank; or the network."""
    jobs = {rank["job"] for rank in watcher.ranks(training)}
    findings: list[dict[str, Any]] = watcher.ask("findings")["findings"]
    for finding in findings:
        if finding["job"]["key"] in jobs and finding["state"] == "confirmed":
            about = "rank" in finding["subject"] or (network and finding["kind"] == "network")
            return finding if about else None
    return None
