"""Readings of one process from /proc: its main thread, its busiest threads, its workers.

Bounded: a rank may have hundreds of threads and children. The main thread and a few of the busiest
are read every window; a slice of the others now and then, in turn, and sooner where those that are
read do not account for the CPU time of the process. Busy is who runs or wants to: a thread that is
starved of CPUs uses none.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from stragd.discovery.process import read_bounded
from stragd.telemetry.counter import NO_CHANGE, Counters
from stragd.telemetry.held import HeldFile

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
TICK_NS = 1e9 / TICKS_PER_S
MAX_BUSY = 3
FIRST_SLICE = 256
SLICE = 16
SEARCH_SLICE = 64
UNEXPLAINED_CPUS = 0.1
MAX_LISTED = 4096
MAX_CHILDREN = 64
MAX_DEPTH = 3
MAX_WORKERS = 16
BLOCKED = "D"  # in uninterruptible sleep: of a data loader, it waits for a disk


class Fields(NamedTuple):
    """What is used of a stat file; times in clock ticks."""

    state: str
    cpu_ticks: int
    major_faults: int
    threads: int
    start_ticks: int
    processor: int
    disk_wait_ticks: int


def parse_stat(raw: bytes | None) -> Fields | None:
    """Fields of /proc/PID/stat, by their numbers in proc(5); None where it cannot be read."""
    if raw is None:
        return None
    # The name before the last ")" may hold anything.
    words = raw[raw.rfind(b")") + 1 :].split(None, 40)
    try:
        return Fields(
            state=words[0].decode("ascii"),
            cpu_ticks=int(words[11]) + int(words[12]),
            major_faults=int(words[9]),
            threads=int(words[17]),
            start_ticks=int(words[19]),
            processor=int(words[36]),
            disk_wait_ticks=int(words[39]),
        )
    except (ValueError, IndexError):
        return None


def parse_schedstat(raw: bytes | None) -> tuple[int, int] | None:
    """(ns on a CPU, ns ready and waiting for one) of one thread."""
    words = (raw or b"").split()
    if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
        return None
    return int(words[0]), int(words[1])


class Thread:
    """One thread, read every window."""

    def __init__(self, directory: str) -> None:
        self._schedstat = HeldFile(f"{directory}/schedstat", 128)
        self._stat = HeldFile(f"{directory}/stat")
        self._counters = Counters()
        self.change = NO_CHANGE
        self.processor = -1

    def refresh(self, now_ns: int, with_stat: bool) -> bool:
        """Read it again; False where it has ended. ``with_stat``: its disk wait and CPU too."""
        times = parse_schedstat(self._schedstat.read())
        if times is None:
            return False
        reading = {"run_ns": times[0], "queue_ns": times[1]}
        if with_stat and (fields := parse_stat(self._stat.read())) is not None:
            reading["disk_wait_ticks"] = fields.disk_wait_ticks
            self.processor = fields.processor
        self.change = self._counters.advance(now_ns, reading)
        return True


class Worker:
    """A child process: a data loader, most often."""

    def __init__(self, proc: str, pid: int) -> None:
        self._stat = HeldFile(f"{proc}/{pid}/stat")
        self._schedstat = HeldFile(f"{proc}/{pid}/schedstat", 128)
        self._io = HeldFile(f"{proc}/{pid}/io", 512)
        self._counters = Counters()
        self.change = NO_CHANGE
        self._read_bytes: int | None = None
        self.weight = 0  # ticks that it worked or waited so far
        self.glances = self.blocks = 0  # since the owner has reset them

    def glance(self) -> None:
        """Look whether it waits in the kernel now."""
        if (fields := parse_stat(self._stat.read())) is not None:
            self.glances += 1
            self.blocks += fields.state == BLOCKED

    def refresh(self, now_ns: int) -> bool:
        """Read it again; False where it has ended."""
        fields = parse_stat(self._stat.read())
        if fields is None or fields.state in "ZX":
            return False
        weight, self.weight = self.weight, fields.cpu_ticks + fields.disk_wait_ticks
        reading = {"cpu_ticks": fields.cpu_ticks, "disk_wait_ticks": fields.disk_wait_ticks}
        if (times := parse_schedstat(self._schedstat.read())) is not None:
            reading["queue_ns"] = times[1]
        # Who did nothing has read nothing; a few blocks more are counted when it next works.
        if self.weight != weight or self._read_bytes is None:
            self._read_bytes = io_read_bytes(self._io.read())
        if self._read_bytes is not None:
            reading["read_bytes"] = self._read_bytes
        self.change = self._counters.advance(now_ns, reading)
        return True


def io_read_bytes(raw: bytes | None) -> int | None:
    """Bytes that a process had read from block devices."""
    value = (raw or b"").partition(b"\nread_bytes: ")[2].partition(b"\n")[0]
    return int(value) if value.isdigit() else None


@dataclass(slots=True)
class Census:
    """What the last look over the whole process found."""

    children: int = 0
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Thread id -> (ns that it ran or waited to run so far, when that was read)."""
    after: int = 0
    """Where the next slice of threads begins."""


class Tree:
    """The threads and workers of one process that are read every window."""

    def __init__(self, proc: str, pid: int, start_ticks: int) -> None:
        self._proc, self._pid = proc, pid
        self._started_ns = int(start_ticks * TICK_NS)
        self.threads: dict[int, Thread] = {pid: Thread(f"{proc}/{pid}/task/{pid}")}
        self.workers: dict[int, Worker] = {}
        self.census = Census()
        self._parents: set[int] = set()  # threads that were seen to have children
        self._children = HeldFile(f"{proc}/{pid}/task/{pid}/children")
        self._children_text: bytes | None = b""
        self._glanced = -1

    def glance(self) -> None:
        """Look at one worker, the next in turn."""
        if self.workers:
            later = [pid for pid in self.workers if pid > self._glanced]
            self._glanced = min(later or self.workers)
            self.workers[self._glanced].glance()

    def children_changed(self) -> bool:
        """Whether the main thread has other children than at the last look."""
        return self._children.read() != self._children_text

    def refresh(self, now_ns: int, with_stat: bool) -> None:
        """Read all that is followed; who has ended is dropped."""
        ended = [tid for tid, t in self.threads.items() if not t.refresh(now_ns, with_stat)]
        for tid in ended:
            del self.threads[tid]
        gone = [pid for pid, worker in self.workers.items() if not worker.refresh(now_ns)]
        for pid in gone:
            del self.workers[pid]

    def explains(self, cpus: float | None) -> bool:
        """Whether the threads that are read used the CPUs that the process used."""
        used = sum(thread.change.per_s("run_ns") or 0.0 for thread in self.threads.values()) / 1e9
        return cpus is None or cpus - used < UNEXPLAINED_CPUS

    def look_at_threads(self, now_ns: int, size: int) -> None:
        """Find the busiest threads, among those that are read and the next ``size`` others."""
        directory = f"{self._proc}/{self._pid}/task"
        try:
            with os.scandir(directory) as entries:
                tids = sorted(int(entry.name) for entry in islice(entries, MAX_LISTED))
        except (OSError, ValueError):
            return
        census = self.census
        later = [tid for tid in tids if tid > census.after]
        chosen = (later + [tid for tid in tids if tid <= census.after])[:size]
        census.after = chosen[-1] if chosen else 0
        rates: dict[int, float] = {}
        self._parents &= set(tids)
        for tid in chosen:
            times = parse_schedstat(read_bounded(f"{directory}/{tid}/schedstat", 128))
            if times is None:
                continue
            busy_ns, at_ns = census.seen.get(tid, (0, self._started_ns))
            rates[tid] = (sum(times) - busy_ns) / max(1, now_ns - at_ns)
            census.seen[tid] = (sum(times), now_ns)
            if read_bounded(f"{directory}/{tid}/children", 16):
                self._parents.add(tid)
        for tid, thread in self.threads.items():
            if thread.change.by:
                by = thread.change.by
                busy_ns = by.get("run_ns", 0) + by.get("queue_ns", 0)
                rates[tid] = busy_ns / (thread.change.seconds * 1e9)
        if len(census.seen) > len(tids):
            census.seen = {tid: census.seen[tid] for tid in tids if tid in census.seen}
        rates.pop(self._pid, None)
        busiest = sorted(rates, key=lambda tid: (-rates[tid], tid))[:MAX_BUSY]
        kept = {tid: t for tid, t in self.threads.items() if tid in busiest or tid == self._pid}
        for tid in busiest:
            if tid not in kept:
                kept[tid] = Thread(f"{directory}/{tid}")
                kept[tid].refresh(now_ns, with_stat=True)
        self.threads = kept

    def look_for_workers(self, now_ns: int, ranks: Collection[int]) -> None:
        """Find the child processes that are no ranks themselves."""
        self._children_text = self._children.read()
        pids = self._list(self._pid, [self._pid, *sorted(self._parents - {self._pid})])
        level = pids
        for _ in range(MAX_DEPTH - 1):
            if not level or len(pids) >= MAX_CHILDREN:
                break
            level = [child for pid in level for child in self._list(pid, [pid])][:MAX_CHILDREN]
            pids = pids + level
        pids = [pid for pid in pids if pid not in ranks][:MAX_CHILDREN]
        self.census.children = len(pids)
        workers: dict[int, Worker] = {}
        for pid in pids:
            worker = self.workers.get(pid) or Worker(self._proc, pid)
            if pid in self.workers or worker.refresh(now_ns):
                workers[pid] = worker
        heaviest = sorted(workers, key=lambda pid: (-workers[pid].weight, pid))[:MAX_WORKERS]
        self.workers = {pid: workers[pid] for pid in heaviest}

    def _list(self, pid: int, tids: list[int]) -> list[int]:
        found: list[int] = []
        for tid in tids[:MAX_CHILDREN]:
            raw = read_bounded(f"{self._proc}/{pid}/task/{tid}/children", 8 * MAX_CHILDREN) or b""
            # A list that was cut off ends within a number.
            words = raw.split() if raw.endswith(b" ") else raw.split()[:-1]
            found += [int(word) for word in words if word.isdigit()]
        return found[:MAX_CHILDREN]
