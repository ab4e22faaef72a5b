"""The child of the deep look: compiles, attaches, waits, prints one JSON object, ends.

Runs under whichever Python has bcc (``python3 -I look.py``, 3.8 or newer: it belongs to the
distribution), so of stragd it imports only what does without any package. What to do comes as one
JSON object on stdin; with the end of this process the kernel detaches and frees everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

# Of what is there only stragd is looked up: other packages belong to another Python.
sys.path.append(os.path.abspath(f"{__file__}/../../.."))

from stragd.why import program as bpf
from stragd.why.processes import (
    MAX_FRAMES,
    Modules,
    faults,
    frames_now,
    name_of,
    stat,
    tasks,
    trees,
)

PR_SET_PDEATHSIG = 1
CLONE_NEWNS = 0x20000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
TRACEFS = "/sys/kernel/tracing"
DEBUGFS = "/sys/kernel/debug/tracing"
MAX_LISTED = 4000  # waits that are reported one by one, the longest first
MAX_TAKERS = 200


class Refused(Exception):
    """The look cannot be taken: a code for the caller and the detail."""

    def __init__(self, code: str, detail: object) -> None:
        super().__init__(str(detail))
        self.code = code


def prepare() -> str:
    """Where tracefs is; where it is not mounted, mount it for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getppid()
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    os.nice(10)
    for place in (DEBUGFS, TRACEFS):
        if os.path.isdir(f"{place}/events"):
            return place
    done = (
        libc.unshare(CLONE_NEWNS) == 0
        and libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None) == 0
        and libc.mount(b"tracefs", TRACEFS.encode(), b"tracefs", 0, None) == 0
    )
    if not done:
        raise Refused("tracefs", os.strerror(ctypes.get_errno()))
    return TRACEFS


def macros(tracefs: str) -> tuple[str, list[str]]:
    """``#define`` lines with the places of the fields, and the tracepoints there are."""
    lines, there = [], []
    for point, names in bpf.FIELDS.items():
        with contextlib.suppress(OSError):
            text = Path(f"{tracefs}/events/{point}/format").read_text(encoding="ascii")
            places = dict(re.findall(r"field:[^;]*?\b(\w+)(?:\[\d*\])?;\s*offset:(\d+);", text))
            if all(name in places for name in names):
                there.append(point)
                for name in names:
                    macro = f"{point.split('/')[1]}_{name}".upper()
                    lines.append(f"#define {macro} {places[name]}")
                continue
        # Compiled all the same, and never attached.
        lines += [f"#define {point.split('/')[1]}_{name}".upper() + " 0" for name in names]
    return "\n".join(lines), there


def load(headers: str, defines: str) -> Any:
    """The compiled program: with the headers of our own, else with the kernel's."""
    try:
        from bcc import BPF
    except Exception as error:  # a bcc of another Python or libc fails in its own ways
        raise Refused("no-bcc", error) from None
    text = f"{defines}\n{bpf.TEXT}"
    os.environ["BCC_KERNEL_SOURCE"] = headers
    try:
        return BPF(text=text)
    except Exception as first:
        del os.environ["BCC_KERNEL_SOURCE"]
        if not os.path.isdir(f"/lib/modules/{os.uname().release}/build"):
            raise Refused("no-headers", first) from None
        try:
            return BPF(text=text)
        except Exception as second:
            raise Refused("compile", second) from None


def attach(program: Any, there: list[str]) -> list[str]:
    """Attach what can be; the tracepoints that could not. Those of the scheduler must be."""
    missing = []
    for point, function in bpf.FUNCTIONS.items():
        known = point.replace("_new", "")
        try:
            if known not in there:
                raise Refused("attach", "this kernel does not have it")
            program.attach_tracepoint(tp=point.replace("/", ":"), fn_name=function)
        except Exception as error:
            if point.startswith("sched/"):
                raise Refused("attach", f"{point}: {error}") from None
            missing.append(point)
    return missing


class Look:
    """One look at one or two process trees."""

    def __init__(self, program: Any, pids: list[int]) -> None:
        self._program, self._pids = program, pids
        self._threads = program["threads"]
        self._owner: dict[int, int] = {}  # tid -> pid
        self._group: dict[int, int] = {}  # pid -> index of its rank
        self._initial: dict[int, list[str]] = {}
        self._stacks: dict[int, list[int]] = {}
        self._snapshots: list[tuple[int, list[list[int]], dict[Any, list[int]]]] = []
        self.not_followed = 0

    def enroll(self) -> None:
        """Tell the program the threads; twice, for those that began meanwhile."""
        for _ in range(2):
            for group, tree in enumerate(trees(self._pids)):
                for pid in tree:
                    self._group[pid] = group
                    for tid in tasks(pid):
                        self._enroll_thread(group, pid, tid)
        self._faults = {pid: faults(pid) for pid in self._group}

    def _enroll_thread(self, group: int, pid: int, tid: int) -> None:
        if tid in self._owner:
            return
        if len(self._owner) >= bpf.MAX_THREADS - 1024:  # room for those to come
            self.not_followed += 1
            return
        try:
            state = stat(pid, tid)[0]
        except (OSError, IndexError):
            return
        self._owner[tid] = pid
        now = time.monotonic_ns()
        thread = self._threads.Leaf(group=group, kernel=-1, user=-1)
        if state == b"R":
            thread.__setattr__("in", now)
        else:
            thread.out, thread.state = now, 2 if state == b"D" else 1
            self._initial[tid] = frames_now(pid, tid)
        key = self._threads.Key(tid)
        if key not in self._threads:  # the fork that made it was seen
            self._threads[key] = thread

    def snapshot(self) -> None:
        """Cumulated times up to now, with what is under way."""
        now = time.monotonic_ns()
        totals: list[list[int]] = []
        for group in range(len(self._pids)):
            t = self._program["totals"][group]
            totals.append([t.ran, t.waited, t.waits, t.longest, t.voluntary, t.involuntary])
        waits: dict[Any, list[int]] = {}
        for key, value in self._program["waits"].items():
            name = (key.group, key.tid, key.state, key.kernel, key.user)
            waits[name] = [value.ns, value.count, value.longest]
        for tid, t in self._threads.items():
            since_in = getattr(t, "in")
            sums = totals[t.group] if t.group < len(totals) else None
            if sums is None:
                continue
            if since_in:
                sums[0] += max(0, now - since_in)
            elif t.out:
                blocked_until = now
                if not t.state & 0xFF:
                    blocked_until = t.out
                elif t.woke > t.out:
                    blocked_until = t.woke
                waiting = max(0, now - blocked_until)
                sums[1] += waiting
                sums[3] = max(sums[3], waiting)
                blocked = blocked_until - t.out
                if blocked > 0:
                    name = (t.group, tid.value, t.state & 0xFF, t.kernel, t.user)
                    entry = waits.setdefault(name, [0, 0, 0])
                    entry[0] += blocked
                    entry[1] += 1
                    entry[2] = max(entry[2], blocked)
        self._snapshots.append((now, totals, waits))

    def alive(self) -> bool:
        """Whether both ranks' processes are there."""
        return all(os.path.exists(f"/proc/{pid}") for pid in self._pids)

    def result(self) -> dict[str, Any]:
        """The whole look as plain JSON types; times in ns."""
        # Threads and processes that began during the look.
        for group, tree in enumerate(trees(self._pids)):
            for pid in tree:
                self._group.setdefault(pid, group)
                self._faults.setdefault(pid, (0, 0))
                for tid in tasks(pid):
                    self._owner.setdefault(tid, pid)
        times = [moment for moment, _, _ in self._snapshots]
        threads = {tid.value: t for tid, t in self._threads.items()}
        ranks = []
        for group, pid in enumerate(self._pids):
            ranks.append(
                {
                    "pid": pid,
                    "totals": [totals[group] for _, totals, _ in self._snapshots],
                    "processes": self._processes(group),
                    "threads": self._thread_rows(group, threads),
                    "waits": self._waits(group),
                    "takers": self._takers(group),
                    "io": self._io(group),
                }
            )
        lost = [int(v.value) for v in self._program["lost"].values()]
        return {
            "times": times,
            "ranks": ranks,
            "lost": {"waits": lost[0], "stacks": lost[1], "threads": lost[2] + self.not_followed},
        }

    def _processes(self, group: int) -> list[dict[str, int]]:
        rows = []
        for pid in [pid for pid, owner in self._group.items() if owner == group]:
            before, after = self._faults[pid], faults(pid)
            minor, major = (max(0, b - a) for a, b in zip(before, after))
            rows.append({"pid": pid, "minor_faults": minor, "major_faults": major})
        return rows

    def _thread_rows(self, group: int, threads: dict[int, Any]) -> list[dict[str, Any]]:
        return [
            {
                "tid": tid, "pid": self._owner.get(tid, 0),
                "name": name_of(self._owner.get(tid, tid), tid),
                "ran_ns": t.ran, "waited_ns": t.waited, "switches": t.switches,
            }
            for tid, t in threads.items()
            if t.group == group
        ]  # fmt: skip

    def _waits(self, group: int) -> list[dict[str, Any]]:
        """Waits by thread and stack with their share of each slice, the longest first."""
        names, modules = _KernelNames(self._program), Modules()
        last = self._snapshots[-1][2]
        mine = sorted((k for k in last if k[0] == group), key=lambda k: -last[k][0])
        rows = []
        for key in mine[:MAX_LISTED]:
            _, tid, state, kernel, user = key
            ns, count, longest = last[key]
            sums = [waits[key][0] if key in waits else 0 for _, _, waits in self._snapshots]
            pid = self._owner.get(tid, tid)
            before = self._initial.get(tid, []) if kernel == -1 else []
            frames = [names.at(a) for a in self._walk(kernel)] or before
            rows.append(
                {
                    "tid": tid, "pid": pid, "state": state, "ns": ns, "count": count,
                    "longest_ns": longest, "kernel": frames,
                    "user": [modules.place(pid, a) for a in self._walk(user)],
                    "slices": [max(0, b - a) for a, b in zip(sums, sums[1:])],
                }
            )  # fmt: skip
        return rows

    def _takers(self, group: int) -> list[dict[str, Any]]:
        """Who got a CPU that a thread of the rank had to leave although it could go on."""
        counts = {k.tid: v.value for k, v in self._program["takers"].items() if k.group == group}
        rows = []
        for tid in sorted(counts, key=lambda tid: -counts[tid])[:MAX_TAKERS]:
            owner = self._owner.get(tid)
            own = owner is not None and self._group.get(owner) == group
            name = name_of(tid, tid)  # a thread has a folder in /proc by its own number too
            rows.append({"tid": tid, "name": name, "own": own, "count": counts[tid]})
        return rows

    def _walk(self, stack: int) -> list[int]:
        if stack < 0:
            return []
        if stack not in self._stacks:
            with contextlib.suppress(Exception):  # the stack may be gone
                self._stacks[stack] = list(self._program["stacks"].walk(stack))[:MAX_FRAMES]
        return self._stacks.get(stack, [])

    def _io(self, group: int) -> dict[str, int]:
        io = self._program["ios"][group]
        return {
            "ns": io.ns, "count": io.count, "longest_ns": io.longest, "bytes": 512 * io.sectors,
        }  # fmt: skip


class _KernelNames:
    """Names of the kernel's functions; "" for all where the kernel hides them."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self._known: dict[int, str] = {}

    def at(self, address: int) -> str:
        """The function around an address."""
        if address not in self._known:
            name = self._program.ksym(address).decode("ascii", "replace")
            self._known[address] = "" if name == "[unknown]" else name
        return self._known[address]


def run(spec: dict[str, Any]) -> dict[str, Any]:
    """Take the look that was asked for."""
    tracefs = prepare()
    defines, there = macros(tracefs)
    program = load(spec["headers"], defines)
    missing = attach(program, there)
    look = Look(program, spec["pids"])
    look.enroll()
    print("looking", flush=True)
    begin = time.monotonic()
    look.snapshot()
    for number in range(1, spec["slices"] + 1):
        until = begin + spec["seconds"] * number / spec["slices"]
        time.sleep(max(0.0, until - time.monotonic()))
        if not look.alive():
            raise Refused("ended", "")
        look.snapshot()
    result = look.result()
    return {**result, "missing": missing}


def main() -> None:
    try:
        answer = run(json.load(sys.stdin))
    except Refused as error:
        answer = {"error": error.code, "detail": str(error)[-500:]}
    print(json.dumps(answer), flush=True)
    # The kernel detaches and frees everything; bcc's own way out takes longer and complains.
    os._exit(0)


if __name__ == "__main__":
    main()
