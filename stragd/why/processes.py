"""What /proc says about a rank's processes. `look` imports it: plain Python 3.8, no packages.

A process can end at any moment: what is gone reads as nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

MAX_MAPS = 4 << 20  # bytes of one process's /proc/PID/maps
MAX_FRAMES = 40


def parents() -> dict[int, int]:
    """pid -> parent, of every process."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                found[int(name)] = int(stat(int(name))[1])
    return found


def stat(pid: int, tid: int | None = None) -> list[bytes]:
    """Words of a stat file from the state on; raises OSError when it is gone."""
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    with open(path, "rb") as file:
        raw = file.read(4096)
    return raw[raw.rfind(b")") + 1 :].split()


def trees(pids: list[int]) -> list[list[int]]:
    """Each rank's process and its descendants, without the other rank's."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found = []
    for root in pids:
        tree = [root]
        for pid in tree:
            tree += [child for child in children.get(pid, []) if child not in pids]
        found.append(tree)
    return found


def tasks(pid: int) -> list[int]:
    """Thread ids of a process, none when it has ended."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    return []


def frames_now(pid: int, tid: int) -> list[str]:
    """Where a thread waits in the kernel, innermost first, by /proc."""
    raw = read(f"/proc/{pid}/task/{tid}/stack", 8192).decode("ascii", "replace")
    return re.findall(r"\] (\w[\w.]*)", raw)[:MAX_FRAMES]


def faults(pid: int) -> tuple[int, int]:
    """Minor and major page faults of a process so far."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        words = stat(pid)
        return int(words[7]), int(words[9])
    return 0, 0


def name_of(pid: int, tid: int) -> str:
    """A thread's name."""
    return read(f"/proc/{pid}/task/{tid}/comm", 64).decode("utf-8", "replace").strip()


def read(path: str, limit: int) -> bytes:
    """So much of a file; nothing of one that is gone."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(limit)
    return b""


class Modules:
    """Which file of a process an address lies in, by its maps as text."""

    def __init__(self) -> None:
        self._known: dict[int, list[tuple[int, int, int, str]]] = {}

    def place(self, pid: int, address: int) -> str:
        """ "libc.so.6+0xe1234"; the bare address where no file is mapped."""
        if pid not in self._known:
            self._known[pid] = list(self._read(pid))
        for begin, end, offset, name in self._known[pid]:
            if begin <= address < end:
                return f"{name}+{address - begin + offset:#x}"
        return f"{address:#x}"

    def _read(self, pid: int) -> Iterator[tuple[int, int, int, str]]:
        with contextlib.suppress(ValueError):  # of a line that is cut off
            for line in read(f"/proc/{pid}/maps", MAX_MAPS).split(b"\n"):
                words = line.split(None, 5)
                if len(words) == 6 and b"x" in words[1]:
                    begin, end = (int(part, 16) for part in words[0].split(b"-"))
                    name = os.path.basename(words[5]).decode("utf-8", "replace")
                    yield begin, end, int(words[2], 16), name[:80]
