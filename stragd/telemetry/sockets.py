"""TCP connections of a rank, read from outside: round trips, losses, what came out of order.

``pidfd_getfd`` lends us a descriptor of the rank's socket, TCP_INFO is read from it and it is given
back: the same in every network namespace, and of this process alone. A dump of sock_diag goes
through all sockets of a namespace, and to enter another one takes CAP_SYS_ADMIN, which the service
does not have.

One sick host at the other end must not make a rank look sick. So a round trip is the median over
the hosts that a rank talks to, and counts leave out the host with most: who is far from every host
has the slow cable, who is far from one has not.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from stragd.discovery.process import read_stat
from stragd.telemetry.intime import InTime

MAX_DESCRIPTORS = 1024  # of a rank are looked at, the lowest numbers
MAX_NEW = 128  # sockets of a rank that one look meets for the first time
MAX_CONNECTIONS = 32  # of a rank are read
MAX_BORROWED = 512  # connections of all ranks in one pass
LOOK_EVERY = 12  # passes between two looks at a rank's descriptors, or at all of who is no suspect
LEAST_SEGMENTS = 50  # for a share of them
ANSWER_SECONDS = 1.0
LATE = "its TCP connections have not been read in time"

_PIDFD_GETFD = 438  # of every architecture but alpha
_ESTABLISHED, _LISTEN = 1, 10
_LIBC = ctypes.CDLL(None, use_errno=True)


class Reading(NamedTuple):
    """Parts of TCP_INFO (linux/tcp.h); segments are counted since the connection began."""

    state: int
    rtt_us: int
    retransmitted: int
    least_rtt_us: int
    data_in: int
    data_out: int
    needless: int
    out_of_order: int


_LAYOUT = struct.Struct("=B67xI28xI44x3I56xI4xI")  # kernels before 5.4 give less, and no readings


@dataclass(slots=True)
class _Connection:
    descriptor: int
    host: str
    before: Reading
    rests: bool = False
    """Nothing went over it lately: not read until the next look."""


@dataclass(slots=True)
class Traffic:
    """What went between a rank and one host since the last reading."""

    rtts_us: list[tuple[int, int]] = field(default_factory=list)
    """Of each connection that sent: now, and the shortest of the last five minutes."""
    sent: int = 0
    lost: int = 0
    received: int = 0
    out_of_order: int = 0

    def add(self, before: Reading, now: Reading) -> None:
        """Take one connection's."""
        sent = now.data_out - before.data_out
        if sent > 0:
            self.rtts_us.append((now.rtt_us, now.least_rtt_us))
        self.sent += max(sent, 0)
        # What the other end had already was late, not lost: a busy host is no bad cable.
        again = now.retransmitted - before.retransmitted
        self.lost += max(again - max(now.needless - before.needless, 0), 0)
        self.received += max(now.data_in - before.data_in, 0)
        self.out_of_order += max(now.out_of_order - before.out_of_order, 0)


class Process:
    """The connections of one process; when it has ended there are none."""

    def __init__(self, root: str, pid: int, start_ticks: int) -> None:
        self._directory = f"{root}/proc/{pid}/fd"
        self.start_ticks = start_ticks
        self._tcp_info = _TcpInfo()
        self._looked_at = -LOOK_EVERY
        self._known: dict[int, _Connection] = {}  # by inode
        self._others: set[int] = set()  # inodes of sockets that are none
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1
        stat = read_stat(f"{root}/proc", pid)
        if stat is None or stat.start_time != start_ticks:
            self._close()  # the pid is another's by now

    def _close(self) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    __del__ = _close

    def read(self, passes: int, most: int) -> dict[str, float]:
        """Values since the last call, from at most ``most`` connections."""
        if self._pidfd < 0:
            return {}
        hosts: dict[str, Traffic] = {}
        for inode, connection in list(self._known.items()):
            if connection.rests:
                continue
            now = self._borrow(connection.descriptor, inode)
            if now is None or now.state != _ESTABLISHED:
                del self._known[inode]
                continue
            before, connection.before = connection.before, now
            connection.rests = (now.data_in, now.data_out) == (before.data_in, before.data_out)
            hosts.setdefault(connection.host, Traffic()).add(before, now)
        if passes - self._looked_at >= LOOK_EVERY:
            self._looked_at = passes
            self._look(most)
        return values(hosts.values())

    def _look(self, most: int) -> None:
        """Find new connections; those that rest are to be read once more."""
        found = _sockets(self._directory)
        self._others &= found.keys()
        known: dict[int, _Connection] = {}
        left = MAX_NEW
        for inode, descriptor in found.items():
            if len(known) >= most:
                break
            connection = self._known.get(inode)
            if connection is None and inode not in self._others and left:
                left -= 1
                connection = self._meet(descriptor, inode)
            if connection is not None:
                connection.descriptor, connection.rests = descriptor, False
                known[inode] = connection
        self._known = known

    def _meet(self, descriptor: int, inode: int) -> _Connection | None:
        """A TCP connection to another host; None of anything else."""
        borrowed = _getfd(self._pidfd, descriptor)
        if borrowed < 0:
            return None
        try:
            reading = self._tcp_info.of(borrowed, inode)
            host = _other_host(borrowed) if reading and reading.state == _ESTABLISHED else ""
        finally:
            os.close(borrowed)
        if reading is None or reading.state == _LISTEN or host is None:
            self._others.add(inode)
        return _Connection(descriptor, host, reading) if reading and host else None

    def _borrow(self, descriptor: int, inode: int) -> Reading | None:
        borrowed = _getfd(self._pidfd, descriptor)
        if borrowed < 0:
            return None
        try:
            return self._tcp_info.of(borrowed, inode)
        finally:
            os.close(borrowed)


class Sockets:
    """Those of all ranks, in a thread that is left behind when it is late.

    Who gives back a descriptor may be the last to do so, and then closes the file. What that takes
    is up to the job: a socket may linger, a file may lie on a file system of its own.
    """

    def __init__(self, root: str, answer_seconds: float = ANSWER_SECONDS) -> None:
        self._root = root
        self._calls: InTime[dict[int, dict[str, float]]] = InTime("stragd-tcp", answer_seconds)
        self._processes: dict[int, Process] = {}
        self._passes = 0

    def read(
        self, pids: Mapping[int, int], suspects: Collection[int]
    ) -> dict[int, dict[str, float]] | None:
        """Values by pid; None where they are late. ``pids``: pid -> start time in clock ticks.

        Only ``suspects`` are read every time, others once in LOOK_EVERY passes.
        """
        self._passes += 1
        now = self._passes
        wanted = [pid for pid in pids if pid in suspects or (pid + now) % LOOK_EVERY == 0]
        return self._calls.call(lambda: self._read(pids, wanted, now))

    def _read(
        self, pids: Mapping[int, int], wanted: list[int], passes: int
    ) -> dict[int, dict[str, float]]:
        kept = self._processes.items()
        self._processes = {pid: one for pid, one in kept if pids.get(pid) == one.start_ticks}
        most = min(MAX_CONNECTIONS, max(1, MAX_BORROWED // max(1, len(wanted))))
        found = {}
        for pid in wanted:
            process = self._processes.get(pid)
            if process is None:
                process = self._processes[pid] = Process(self._root, pid, pids[pid])
            found[pid] = process.read(passes, most)
        return found


def values(hosts: Collection[Traffic]) -> dict[str, float]:
    """Quantities of a rank from its traffic with each host."""
    made: dict[str, float] = {}
    # A host's quickest connection: on others an acknowledgement may have waited for data.
    rtts = sorted(min(host.rtts_us) for host in hosts if host.rtts_us)
    if rtts:
        now, least = rtts[(len(rtts) - 1) // 2]
        made |= {"tcp_rtt_ms": now / 1e3, "tcp_rtt_least_ms": least / 1e3}
        made["tcp_host_count"] = len(rtts)
    for name, among, of in (
        ("tcp_lost_ppm", "lost", "sent"),
        ("tcp_out_of_order_ppm", "out_of_order", "received"),
    ):
        counts = sorted((getattr(host, among), getattr(host, of)) for host in hosts)
        counts = counts[:-1] or counts
        total = sum(of for _, of in counts)
        if total >= LEAST_SEGMENTS:  # one of them may be chance
            made[name] = 1e6 * max(0, sum(events for events, _ in counts) - 1) / total
    return made


def _sockets(directory: str) -> dict[int, int]:
    """Inode -> descriptor of the sockets among the first descriptors of a process."""
    found: dict[int, int] = {}
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, MAX_DESCRIPTORS):
            with suppress(OSError, ValueError):  # closed meanwhile, or no socket
                kind, _, inode = os.readlink(entry.path).partition(":")
                if kind == "socket":
                    found[int(inode[1:-1])] = int(entry.name)
    return found


def _getfd(pidfd: int, descriptor: int) -> int:
    """A descriptor of our own for another process' file, negative where there is none."""
    made: int = _LIBC.syscall(_PIDFD_GETFD, pidfd, descriptor, 0)
    return made


class _TcpInfo:
    """Room for one TCP_INFO, for one thread."""

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(_LAYOUT.size)
        self._length = ctypes.c_uint32()
        self._where = (socket.IPPROTO_TCP, socket.TCP_INFO, self._room, ctypes.byref(self._length))

    def of(self, descriptor: int, inode: int) -> Reading | None:
        """Of the socket with this inode; None of another file, which has got its number."""
        if os.fstat(descriptor).st_ino != inode:
            return None
        self._length.value = _LAYOUT.size
        failed = _LIBC.getsockopt(descriptor, *self._where)
        if failed or self._length.value < _LAYOUT.size:
            return None
        return Reading._make(_LAYOUT.unpack_from(self._room))


def _other_host(descriptor: int) -> str | None:
    """Address of the other end; "" where there is none now, None where it is this host."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as lent:
            here, there = lent.getsockname()[0], lent.getpeername()[0]
    except OSError:
        return ""
    there = there.removeprefix("::ffff:")
    local = there == here.removeprefix("::ffff:") or there == "::1" or there.startswith("127.")
    return None if local else there
