"""Bounded reads of /proc/PID: a job owns what is in there, so nothing is trusted.

``environ`` and ``cmdline`` are copied out of the process's own memory. A job can put a file of its
own (FUSE) under those pages and let the reader wait for ever, so they are read in a thread that is
abandoned when it does not answer.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_ABANDONED = 8
MEMORY_SECONDS = 2.0
MAX_ANCESTORS = 16


@dataclass(frozen=True)
class Stat:
    """What /proc/PID/stat says about a process; addresses are 0 where the kernel hides them."""

    pid: int
    comm: str
    ppid: int
    session: int
    start_time: int  # clock ticks after boot
    start_stack: int
    env_start: int

    def same_image(self, other: Stat) -> bool:
        """Whether one is a fork of the other without exec: addresses are random for every exec."""
        image = (self.start_stack, self.env_start)
        return 0 not in image and image == (other.start_stack, other.env_start)


def read_bounded(path: str | Path, limit: int) -> bytes | None:
    """Up to ``limit`` bytes of a file; None where it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None
    try:
        parts: list[bytes] = []
        left = limit
        while left > 0:
            part = os.read(file, min(left, 1 << 16))
            if not part:
                break
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except OSError:
        return None
    finally:
        os.close(file)


class _Request:
    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = path, limit
        self.done = threading.Event()
        self.late = False
        self.answer: bytes | None = None


class MemoryReader:
    """Reads files that live in another process's memory, with a time limit."""

    def __init__(self, seconds: float = MEMORY_SECONDS) -> None:
        self._seconds = seconds
        self._requests: queue.SimpleQueue[_Request] | None = None
        self._lock = threading.Lock()
        self.abandoned = 0  # threads that hang

    def read(self, path: str, limit: int) -> bytes | None:
        """Up to ``limit`` bytes; None where unreadable, late, or too many reads hang already."""
        if self._requests is None:
            if self.abandoned >= MAX_ABANDONED:
                return None
            self._requests = queue.SimpleQueue()
            threading.Thread(
                target=self._work, args=(self._requests,), name="stragd-proc", daemon=True
            ).start()
        request = _Request(path, limit)
        self._requests.put(request)
        request.done.wait(self._seconds)
        with self._lock:
            if not request.done.is_set():
                request.late = True
                self.abandoned += 1
                self._requests = None  # it may never come back; the next read gets a new thread
                return None
        return request.answer

    def _work(self, requests: queue.SimpleQueue[_Request]) -> None:
        while True:
            request = requests.get()
            request.answer = read_bounded(request.path, request.limit)
            with self._lock:
                request.done.set()
                if request.late:  # back after all, when nobody waits any more
                    self.abandoned -= 1
                    return


def read_stat(proc: str, pid: int) -> Stat | None:
    """Parse /proc/PID/stat; None when the process is gone."""
    raw = read_bounded(f"{proc}/{pid}/stat", 4096)
    if raw is None:
        return None
    begin, end = raw.find(b"("), raw.rfind(b")")  # the name may hold anything, ")" too
    fields = raw[end + 1 :].split()
    if begin < 0 or end < begin or len(fields) < 23:
        return None

    def field(number: int) -> int:
        """Field by its number in proc(5)."""
        index = number - 3
        return int(fields[index]) if index < len(fields) else 0

    try:
        comm = raw[begin + 1 : end].decode("utf-8", "replace")
        return Stat(pid, comm, field(4), field(6), field(22), field(28), field(50))
    except ValueError:
        return None


def ancestors(proc: str, stat: Stat) -> Iterator[Stat]:
    """Parent, grandparent and so on, without pid 1, at most MAX_ANCESTORS."""
    for _ in range(MAX_ANCESTORS):
        if stat.ppid <= 1:
            return
        parent = read_stat(proc, stat.ppid)
        if parent is None or parent.start_time > stat.start_time:  # a reused pid
            return
        yield parent
        stat = parent


def read_cmdline(reader: MemoryReader, proc: str, pid: int, limit: int = 16384) -> list[str]:
    """Arguments of a process; empty where unreadable."""
    raw = reader.read(f"{proc}/{pid}/cmdline", limit)
    if not raw:
        return []
    return [part.decode("utf-8", "replace") for part in raw.rstrip(b"\0").split(b"\0")[:256]]


def owner(proc: str, pid: int) -> int | None:
    """Effective uid; None when unknown or in another user namespace, where it means nothing."""
    try:
        if os.readlink(f"{proc}/{pid}/ns/user") != os.readlink(f"{proc}/self/ns/user"):
            return None
    except OSError:
        return None
    raw = read_bounded(f"{proc}/{pid}/status", 4096) or b""
    for line in raw.splitlines():
        if line.startswith(b"Uid:"):
            words = line.split()
            return int(words[2]) if len(words) > 2 and words[2].isdigit() else None
    return None


def network_namespace(proc: str, pid: int) -> str:
    """Name of the network namespace, "" where unknown."""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net")
    except OSError:
        return ""


def printable(text: str, limit: int = 64) -> str:
    """A text that a job chose, fit for a screen and a label."""
    return "".join(c if c.isprintable() else "?" for c in text[: limit * 2]).strip()[:limit]
