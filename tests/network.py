"""A real network for the ranks of one job: a namespace and a cable for each, joined by a bridge.

The cable of one rank is a program between two TAP devices that delays and drops packets: what netem
does, on kernels without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from tests.needs import lacking
from tests.trainer.launch import FIRST

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
QUEUE = 1000  # packets, as netem's
JUMBO = 9000
SHAPED = "rate {}mbit burst 64k latency 400ms"


# Sends 20 kB to each of argv[2:] fifty times a second, over argv[1] connections each.
TALKER = """
import socket, sys, threading, time
count, own, *others = sys.argv[1:]
def take(peer):
    while peer.recv(1 << 16): pass
def serve():
    while True: threading.Thread(target=take, args=server.accept()[:1], daemon=True).start()
server = socket.create_server((own, 29400))
threading.Thread(target=serve, daemon=True).start()
def connected(other):
    while True:
        try: return socket.create_connection((other, 29400), 600)
        except OSError: time.sleep(0.1)  # it is not there yet
talks = [connected(other) for other in others for _ in range(int(count))]
print(flush=True)
while True:
    for talk in talks: talk.sendall(bytes(20_000))
    time.sleep(0.02)
"""


class Network:
    """Namespaces ``names``, one per rank, with addresses 10.77.0.1 and up.

    Each sends ``mbit`` a second at most: the kernel's pace, and not that of two busy cores, is what
    a transfer takes.
    """

    def __init__(self, ranks: int, cable_of: int, directory: Path, mbit: int = 50) -> None:
        self._tag = f"stragd-{uuid.uuid4().hex[:6]}"
        self.switch = f"{self._tag}-sw"
        self.names = [f"{self._tag}-r{rank}" for rank in range(ranks)]
        self._cable_of, self._mbit = cable_of, mbit
        self._faults = directory / "faults"
        self._made: list[str] = []
        self._cable: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Network:
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def faults(self, delay_ms: float = 0.0, loss: float = 0.0) -> None:
        """Of what the rank sends from now on: delay in ms, share of packets lost."""
        new = self._faults.with_suffix(".new")
        new.write_text(f"{delay_ms} {loss}")
        new.rename(self._faults)

    def address(self, rank: int) -> str:
        """Of a rank."""
        return f"10.77.0.{rank + 1}"

    @contextlib.contextmanager
    def talkers(self, connections: int = 1) -> Iterator[list[int]]:
        """A process in each namespace that talks to all others; their pids."""
        hosts = [self.address(rank) for rank in range(len(self.names))]
        started: list[subprocess.Popen[bytes]] = []
        try:
            for name, own in zip(self.names, hosts, strict=True):
                talk = [TALKER, str(connections), own, *(other for other in hosts if other != own)]
                command = ["ip", "netns", "exec", name, sys.executable, "-c", *talk]
                started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            for talker in started:
                assert talker.stdout is not None
                talker.stdout.readline()
            yield [talker.pid for talker in started]
        finally:
            for talker in started:
                talker.kill()
            for talker in started:
                talker.wait(60)

    def _build(self) -> None:
        refused = subprocess.run([*FIRST, "true"], capture_output=True, check=False).returncode
        for name in (self.switch, *self.names):
            made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
            if made.returncode:
                lacking("network namespaces cannot be made")
            self._made.append(name)
            _ip(name, "link set lo up")
        _ip(self.switch, "link add br0 type bridge")
        _ip(self.switch, "link set br0 up")
        self.faults()
        for rank, name in enumerate(self.names):
            far = f"port{rank}"
            if rank == self._cable_of:
                command = [] if refused else [*FIRST]
                command += [sys.executable, "-m", "tests.network", self.switch, far, name, "eth0"]
                self._cable = subprocess.Popen(
                    [*command, str(self._faults)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
                assert self._cable.stdout is not None
                if self._cable.stdout.readline() != b"ready\n":
                    lacking("this kernel has no TAP devices")
            else:
                _ip(self.switch, f"link add {far} type veth peer name eth0 netns {name}")
            _ip(self.switch, f"link set {far} mtu {JUMBO} master br0 up")
            _ip(name, f"addr add {self.address(rank)}/24 dev eth0")
            _ip(name, f"link set eth0 mtu {JUMBO} up")
            shape = f"qdisc add dev eth0 root tbf {SHAPED.format(self._mbit)}"
            subprocess.run(["tc", "-n", name, *shape.split()], check=True)
            _ip(name, "route add default via 10.77.0.254")

    def _remove(self) -> None:
        if self._cable is not None:
            self._cable.kill()
            self._cable.wait(60)
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False)


def _ip(namespace: str, command: str) -> None:
    subprocess.run(["ip", "-n", namespace, *command.split()], check=True)


def _tap(namespace: str, name: str) -> int:
    """A TAP device in a namespace; it goes when its file is closed."""
    with inside(namespace):
        file = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(file, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    return file


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """This thread in a network namespace, and what it starts meanwhile for good."""
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        _enter(other.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if ctypes.CDLL(None, use_errno=True).setns(namespace, 0) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def _faults_of(path: str) -> Iterator[tuple[float, float]]:
    """Seconds of delay and share of loss, anew every tenth of a second."""
    read_at, now = float("-inf"), (0.0, 0.0)
    while True:
        if time.monotonic() - read_at > 0.1:
            read_at = time.monotonic()
            delay, loss = Path(path).read_text().split()
            now = float(delay) / 1e3, float(loss)
        yield now


def cable(ends: list[tuple[str, str]], path: str) -> None:
    """Carry packets between two TAP devices until standard input is closed."""
    files = [_tap(*end) for end in ends]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    draw = random.Random(1)
    waiting: list[tuple[float, int, int, bytes]] = []  # due, order, file, packet
    order = 0
    for delay, loss in _faults_of(path):
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, _, file, packet = heapq.heappop(waiting)
            with contextlib.suppress(OSError):  # the device is down
                os.write(file, packet)
        left = max(0.0, waiting[0][0] - now) if waiting else None
        for file in select.select([0, *files], [], [], left)[0]:
            if file == 0:
                return  # the test has ended
            with contextlib.suppress(BlockingIOError):
                packet = os.read(file, 1 << 16)
                order += 1
                if file == files[0]:  # towards the rank
                    heapq.heappush(waiting, (0.0, order, files[1], packet))
                elif len(waiting) < QUEUE and draw.random() >= loss:
                    heapq.heappush(waiting, (time.monotonic() + delay, order, files[0], packet))


if __name__ == "__main__":
    switch, port, namespace, device, faults = sys.argv[1:]
    cable([(switch, port), (namespace, device)], faults)
