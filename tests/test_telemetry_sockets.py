"""TCP connections of a process, read from outside: real ones, in namespaces with a bad cable."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stragd.telemetry import sockets
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.sockets import Process, Reading, Sockets, Traffic, values
from tests.network import Network
from tests.processes import Processes, start_time, wait_for

RANKS, SICK = 3, 1
LIMIT_S = 90

# Keeps argv[2] sockets that are no TCP connections, then talks to argv[1] until it is told to stop.
CROWDED = """
import resource, socket, sys
port, count = map(int, sys.argv[1:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
crowd = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
listening = socket.create_server(("127.0.0.1", 0))
talk = socket.create_connection(("127.0.0.1", port))
print(flush=True)
while talk.recv(1) == b"g": talk.sendall(bytes(1000))
talk.close()
import time; time.sleep(600)
"""


@pytest.fixture
def network(root: None, tmp_path: Path) -> Iterator[Network]:
    with Network(RANKS, SICK, tmp_path) as made:
        yield made


def until(
    what: str, pids: list[int], condition: Callable[[list[dict[str, float]]], bool]
) -> list[dict[str, float]]:
    """Read all of them again and again; values in the order of ``pids``."""
    reader = Sockets("", answer_seconds=60)
    starts = {pid: start_time(pid) for pid in pids}
    deadline = time.monotonic() + LIMIT_S
    while True:
        made = reader.read(starts, pids)
        assert made is not None
        found = [made[pid] for pid in pids]
        if condition(found):
            return found
        assert time.monotonic() < deadline, f"waited {LIMIT_S} s in vain for {what}: {found}"
        time.sleep(0.5)


def test_who_is_far_from_all_hosts_has_the_slow_cable(network: Network) -> None:
    with network.talkers() as pids:
        until("all to talk", pids, lambda all_: all(v.get("tcp_host_count") == 2 for v in all_))
        network.faults(delay_ms=60)

        def far(all_: list[dict[str, float]]) -> bool:
            rtts = [v.get("tcp_rtt_ms", 0.0) for v in all_]
            return rtts[SICK] >= 60 and max(rtts[:SICK] + rtts[SICK + 1 :]) < 30

        found = until("the delay", pids, far)
        assert found[SICK]["tcp_rtt_least_ms"] < 60, "of the time before"


def test_who_loses_packets_to_all_hosts_has_the_lossy_cable(network: Network) -> None:
    with network.talkers() as pids:
        until("all to talk", pids, lambda all_: all(v.get("tcp_host_count") == 2 for v in all_))
        network.faults(loss=0.1)

        def lost(all_: list[dict[str, float]]) -> bool:
            lost = [v.get("tcp_lost_ppm", 0.0) for v in all_]
            return lost[SICK] > 20_000 > 4 * max(lost[:SICK] + lost[SICK + 1 :])

        until("the loss", pids, lost)


def test_victims_are_told_from_the_culprit() -> None:
    """Four hosts in a ring; everything that the second one sends comes late, and in part never."""
    good = Traffic([(100, 50), (90, 50)], 1000, 0, 1000, 0)
    to_it = Traffic([(20_100, 50)], 1000, 0, 1000, 30)
    from_it = Traffic([(20_200, 60), (20_100, 50)], 1000, 30, 1000, 0)
    victim, culprit = values([good, to_it]), values([from_it, from_it])
    assert victim["tcp_rtt_ms"] == 0.09
    assert victim["tcp_lost_ppm"] == victim["tcp_out_of_order_ppm"] == 0
    assert culprit["tcp_rtt_ms"] == 20.1
    assert culprit["tcp_rtt_least_ms"] == 0.05
    assert culprit["tcp_lost_ppm"] == 29_000
    # What comes to it is lost: it sees holes from both, its neighbours lose to it alone.
    into = Traffic([(100, 50)], 1000, 0, 1000, 30)
    assert values([into, into])["tcp_out_of_order_ppm"] == 29_000
    assert values([good, Traffic([(100, 50)], 1000, 30, 1000, 0)])["tcp_lost_ppm"] == 0


def test_of_two_hosts_nobody_can_tell_whose_cable_it_is() -> None:
    only = values([Traffic([(20_000, 50)], 1000, 11, 1000, 0)])
    assert (only["tcp_rtt_ms"], only["tcp_lost_ppm"], only["tcp_host_count"]) == (20, 10_000, 1)


def test_one_event_or_few_segments_are_no_share() -> None:
    assert values([Traffic([(100, 50)], 1000, 1, 1000, 1)])["tcp_lost_ppm"] == 0
    assert set(values([Traffic([(100, 50)], 10, 10, 10, 10)])) == {
        "tcp_rtt_ms",
        "tcp_rtt_least_ms",
        "tcp_host_count",
    }
    assert values([]) == values([Traffic()]) == {}


def test_what_was_sent_again_for_nothing_was_not_lost() -> None:
    before = Reading(1, 100, 0, 50, 0, 0, 0, 0)
    traffic = Traffic()
    traffic.add(before, before._replace(data_out=1000, retransmitted=40, needless=35))
    traffic.add(before._replace(retransmitted=9), before)  # no such connection: counted as none
    assert (traffic.sent, traffic.lost) == (1000, 5)


class Borrowing:
    """Counts the descriptors that are borrowed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = sockets._getfd

        def counted(pidfd: int, descriptor: int) -> int:
            self.count += 1
            return real(pidfd, descriptor)

        monkeypatch.setattr(sockets, "_getfd", counted)

    def of(self, process: Process, passes: int) -> tuple[dict[str, float], int]:
        """What a pass reads, and how many descriptors it borrows."""
        before = self.count
        return process.read(passes, sockets.MAX_CONNECTIONS), self.count - before


@pytest.fixture
def crowded(processes: Processes) -> Iterator[Callable[[int], tuple[int, socket.socket]]]:
    """Starts a process with many sockets; its pid, and the far end of its connection."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(LIMIT_S)
    taken: list[socket.socket] = []

    def start(count: int) -> tuple[int, socket.socket]:
        command = [sys.executable, "-c", CROWDED, str(server.getsockname()[1]), str(count)]
        pid = processes.start(dict(os.environ), command)
        taken.append(server.accept()[0])
        taken[-1].settimeout(LIMIT_S)
        return pid, taken[-1]

    yield start
    for each in (server, *taken):
        each.close()


def here_is_elsewhere(descriptor: int) -> str:
    """In place of ``_other_host``: one machine has no second host without namespaces."""
    with socket.socket(fileno=os.dup(descriptor)) as lent:
        return "elsewhere" if lent.type == socket.SOCK_STREAM and lent.getpeername() else ""


def test_a_socket_is_given_back(
    root: None,
    crowded: Callable[[int], tuple[int, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The other end hears of its closing although we have read it."""
    monkeypatch.setattr(sockets, "_other_host", here_is_elsewhere)
    pid, far = crowded(2)
    process = Process("", pid, start_time(pid))
    process.read(0, 8)
    for _ in range(60):
        far.sendall(b"g")
        for _ in range(1000):
            far.recv(1, socket.MSG_WAITALL)
    assert process.read(1, 8)["tcp_host_count"] == 1
    far.sendall(b"!")
    assert far.recv(1) == b"", "closed"
    assert process.read(2, 8) == {}


def test_a_job_with_ten_thousand_sockets_costs_a_bounded_look(
    root: None,
    crowded: Callable[[int], tuple[int, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, _ = crowded(10_000)
    borrowing = Borrowing(monkeypatch)
    process = Process("", pid, start_time(pid))
    most = sockets.MAX_NEW
    wait_for("its sockets", lambda: len(sockets._sockets(f"/proc/{pid}/fd")) > most)
    assert len(sockets._sockets(f"/proc/{pid}/fd")) <= sockets.MAX_DESCRIPTORS
    assert borrowing.of(process, 0) == ({}, most)
    assert borrowing.of(process, 1) == ({}, 0)
    assert borrowing.of(process, sockets.LOOK_EVERY) == ({}, most)


def test_a_pid_that_is_anothers_now_is_not_read(
    root: None,
    crowded: Callable[[int], tuple[int, socket.socket]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid, _ = crowded(2)
    borrowing = Borrowing(monkeypatch)
    Process("", pid, start_time(pid) + 1).read(0, 8)
    assert borrowing.count == 0
    Process("", pid, start_time(pid)).read(0, 8)
    assert borrowing.count > 0


def test_a_socket_that_does_not_come_back_delays_nothing(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close the last descriptor of a file of the job may take as long as the job likes."""
    stuck = threading.Event()
    monkeypatch.setattr(Process, "read", lambda *_: stuck.wait(600) and {})
    pid = processes.start({})
    reader = HostTelemetry()
    reader._sockets = Sockets("", answer_seconds=0.2)
    begin = time.monotonic()
    try:
        for _ in range(3):
            (sample,) = reader.read({pid: start_time(pid)}, 0, 1, suspects={pid})
            assert sockets.LATE in sample.notes
            assert not sample.silent
    finally:
        stuck.set()
    assert time.monotonic() - begin < 60


def test_only_suspects_are_read_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    monkeypatch.setattr(Process, "__init__", lambda self, _, pid, start: setattr(self, "pid", pid))
    monkeypatch.setattr(Process, "__del__", lambda self: None)
    monkeypatch.setattr(Process, "start_ticks", 7, raising=False)
    monkeypatch.setattr(Process, "read", lambda self, *_: reads.append(self.pid) or {})
    reader = Sockets("", answer_seconds=60)
    for _ in range(sockets.LOOK_EVERY):
        reader.read({1: 7, 2: 7, 3: 7}, {2})
    assert reads.count(2) == sockets.LOOK_EVERY
    assert reads.count(1) == reads.count(3) == 1
