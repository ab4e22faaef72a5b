"""Bounded reads of /proc/PID: a job owns what is in there, so nothing is trusted.

``environ`` and ``cmdline`` are copied out of the process's own memory. A job can put a file of its
own (FUSE) under those pages and let the reader wait for ever, so they are read in a thread that is
abandoned when it does not answer.
"""

from __future__ import annotations

import os
import queue
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_ABANDONED = 64
MAX_ABANDONED_OF_USER = 8
MEMORY_SECONDS = 0.5
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
    """Up to ``limit`` bytes of a regular file; None where it cannot be read.

    Anything else is not opened: a job may name a device, and opening one can do something.
    """
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        if not stat.S_ISREG(os.fstat(place).st_mode):
            return None
        file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(place)
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
    def __init__(self, path: str, limit: int, owner: int) -> None:
        self.path, self.limit, self.owner = path, limit, owner
        self.done = threading.Event()
        self.late = False
        self.answer: bytes | None = None


class MemoryReader:
    """Reads files that live in another process's memory, with a time limit."""

    def __init__(self, seconds: float = MEMORY_SECONDS) -> None:
        self._seconds = seconds
        self._requests: queue.SimpleQueue[_Request] | None = None
        self._lock = threading.Lock()
        self._by_owner: dict[int, int] = {}  # user -> threads that hang in a process of theirs
        self.abandoned = 0  # threads that hang
        self.late = 0
        """Reads that did not answer in time, or were not tried because others of that user hang."""

    def read(self, path: str, limit: int) -> bytes | None:
        """Up to ``limit`` bytes; None where unreadable, or late (then `late` has grown).

        Users are counted apart, so that one whose processes hang takes nothing from the others.
        """
        owner = _real_user(os.path.dirname(path))
        with self._lock:
            if (
                self.abandoned >= MAX_ABANDONED
                or self._by_owner.get(owner, 0) >= MAX_ABANDONED_OF_USER
            ):
                self.late += 1
                return None
        if self._requests is None:
            self._requests = queue.SimpleQueue()
            threading.Thread(
                target=self._work, args=(self._requests,), name="stragd-proc", daemon=True
            ).start()
        request = _Request(path, limit, owner)
        self._requests.put(request)
        request.done.wait(self._seconds)
        with self._lock:
            if not request.done.is_set():
                request.late = True
                self.late += 1
                self._count(owner, 1)
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
                    self._count(request.owner, -1)
                    return

    def _count(self, owner: int, change: int) -> None:
        self.abandoned += change
        self._by_owner[owner] = self._by_owner.get(owner, 0) + change
        if not self._by_owner[owner]:
            del self._by_owner[owner]


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
    users = _users(f"{proc}/{pid}")
    return users[1] if len(users) > 1 else None


def _real_user(folder: str) -> int:
    """Real uid of a process, which it cannot choose; -1 when unknown."""
    users = _users(folder)
    return users[0] if users else -1


def _users(folder: str) -> list[int]:
    """Real, effective, saved and file system uid of a process; empty when unknown."""
    raw = read_bounded(f"{folder}/status", 4096) or b""
    for line in raw.splitlines():
        if line.startswith(b"Uid:"):
            return [int(word) for word in line.split()[1:] if word.isdigit()]
    return []


def network_namespace(proc: str, pid: int) -> str:
    """Name of the network namespace, "" where unknown."""
    try:
        return os.readlink(f"{proc}/{pid}/ns/net")
    except OSError:
        return ""


def printable(text: str, limit: int = 64) -> str:
    """A text that a job chose, fit for a screen and a label."""
    if text.isprintable():  # nearly always, and at once
        return text[: limit * 2].strip()[:limit]
    return "".join(c if c.isprintable() else "?" for c in text[: limit * 2]).strip()[:limit]
