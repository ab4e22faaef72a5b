"""One pass over a node: whose GPU, whose NICs, and readers that fail, hang or come late."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from stragd.config import Telemetry
from stragd.telemetry import collector as module
from stragd.telemetry.collector import Collector, Complete, Member
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.fakenvml import FakeNvml
from tests.harness import wait_for
from tests.nic_trees import dgx, gpu_address
from tests.processes import Processes, start_time


class HandGpus:
    """GPUs whose answers a test hands in; who has contexts where is its choice too."""

    present, reason = True, ""

    def __init__(self, listed: dict[int, list[str]]) -> None:
        self.listed = listed
        self.windows: list[tuple[int, int]] = []
        self.answers: list[Sample] = []
        self.forgotten: list[int] = []

    def start(self) -> None:
        """Nothing is started."""

    def close(self) -> None:
        """Nothing is ended."""

    def request(self, start_ns: int, end_ns: int) -> None:
        self.windows.append((start_ns, end_ns))

    def samples(self) -> list[Sample]:
        taken, self.answers = self.answers, []
        return taken

    def gpus_of(self, pid: int) -> list[str]:
        return self.listed.get(pid, [])

    def forget(self, pid: int) -> None:
        self.forgotten.append(pid)

    def answer(self, *subjects: str, silent: str = "", window: int = -1) -> None:
        start, end = self.windows[window]
        self.answers += [Sample("gpu", s, "H200", start, end, {}, (), silent) for s in subjects]


class HandHost:
    """A host reader that gives what it was asked for, or raises."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.nodes: Mapping[int, int] = {}
        self.suspects: set[int] = set()

    def read(
        self,
        pids: Mapping[int, int],
        start_ns: int,
        end_ns: int,
        numa_nodes: Mapping[int, int] | None = None,
        suspects: Collection[int] = (),
    ) -> list[Sample]:
        self._fail()
        self.suspects = set(suspects)
        self.nodes = dict(numa_nodes or {})
        return [Sample("process", str(pid), "", start_ns, end_ns) for pid in pids]

    def _fail(self) -> None:
        if self.error:  # one of its own: what was raised holds on to who asked
            raise type(self.error)(*self.error.args)

    def read_node(self, start_ns: int, end_ns: int) -> Sample:
        return Sample("node", "", "cpu", start_ns, end_ns)

    def glance(self) -> None:
        self._fail()


class Node:
    """A collector over hand-made readers, and the NICs of a DGX."""

    def __init__(self, root: Path, listed: dict[int, list[str]]) -> None:
        dgx(root)
        self.host, self.gpus = HandHost(), HandGpus(listed)
        self.faults = faults = list[tuple[str, str]]()
        self.collector = Collector(
            Telemetry(),
            lambda name, reason: faults.append((name, reason)),  # without self: no cycle
            host=self.host,
            nic=NicTelemetry(root),
            gpu=self.gpus,
        )
        self.members = [Member(7, rank, "node7", 100 + rank, 5) for rank in range(len(listed))]

    def joined(self) -> Mapping[int, RankTelemetry]:
        """A whole pass, every GPU answering; how many there are only the first tells."""
        self.collector.begin(self.members)
        self.gpus.answer(*{gpu for gpus in self.gpus.listed.values() for gpu in gpus})
        return wait_for("the pass", self.collector.complete).ranks[7]


def nics(rank: RankTelemetry) -> list[str]:
    return [nic.subject for nic in rank.nics]


def test_process_gpu_and_nics_are_joined(tmp_path: Path) -> None:
    node = Node(tmp_path, {100 + rank: [gpu_address(rank)] for rank in range(8)})
    ranks = node.joined()
    assert sorted(ranks) == list(range(8))
    for number, rank in ranks.items():
        assert rank.process is not None
        assert rank.process.subject == str(100 + number)
        assert rank.gpu is not None
        assert rank.gpu.subject == gpu_address(number)
        assert nics(rank) == [f"mlx5_{number}/1"]
        assert rank.node is not None
    assert node.host.nodes == {100 + rank: rank // 4 for rank in range(8)}
    assert node.host.suspects == set()
    node.members[1] = replace(node.members[1], suspect=True)
    node.joined()
    assert node.host.suspects == {101}


def test_stray_contexts_on_the_first_gpu_are_not_taken_for_the_ranks_own(tmp_path: Path) -> None:
    listed = {100 + rank: [gpu_address(0), gpu_address(rank)] for rank in range(1, 4)}
    node = Node(tmp_path, {100: [gpu_address(0)], **listed})
    found = {number: rank.gpu for number, rank in node.joined().items()}
    assert [g.subject if g else "" for _, g in sorted(found.items())] == [
        gpu_address(rank) for rank in range(4)
    ]


def test_a_rank_with_two_gpus_of_its_own_has_no_one_gpu(tmp_path: Path) -> None:
    node = Node(tmp_path, {100: [gpu_address(0), gpu_address(1)]})
    (rank,) = node.joined().values()
    assert rank.gpu is None
    assert nics(rank) == [], "which of the rails is its own cannot be told either"


def test_the_nic_that_the_job_has_chosen(tmp_path: Path, processes: Processes) -> None:
    """NCCL_IB_HCA is read from the real process."""
    pid = processes.start({"NCCL_IB_HCA": "=mlx5_6"}, ["sleep", "600"])
    node = Node(tmp_path, {pid: [gpu_address(1)]})
    node.members = [Member(7, 0, "node7", pid, start_time(pid))]

    wait_for("the environment", lambda: nics(node.joined()[0]) == ["mlx5_6/1"])
    node.members = []
    node.collector.begin(node.members)
    assert node.gpus.forgotten == [pid]


def test_a_reader_that_raises_costs_its_samples_and_one_line(tmp_path: Path) -> None:
    node = Node(tmp_path, {100: [gpu_address(0)]})
    node.host.error = RuntimeError("bad file")
    for _ in range(3):
        rank = node.joined()[0]
        node.collector.glance()
        assert (rank.process, rank.node) == (None, None)
        assert rank.gpu is not None
        assert nics(rank) == ["mlx5_0/1"]
    assert node.faults == [("host", "RuntimeError: bad file")]
    assert node.collector.parts["host"].reason == "RuntimeError: bad file"
    assert node.collector.parts["nic"].reason == ""

    node.host.error = None
    node.joined()
    node.joined()
    assert node.collector.parts["host"].reason == ""
    node.host.error = RuntimeError("bad file")
    node.joined()
    assert len(node.faults) == 2, "it has worked in between: that is news"


def test_gpus_answer_later(tmp_path: Path) -> None:
    node = Node(tmp_path, {100 + rank: [gpu_address(rank)] for rank in range(2)})
    node.joined()
    node.collector.begin(node.members)
    assert node.collector.complete() is None
    node.gpus.answer(gpu_address(0))
    assert node.collector.complete() is None, "one of two"
    node.gpus.answer(gpu_address(1))
    complete = node.collector.complete()
    assert complete is not None
    assert node.collector.complete() is None, "once"


def test_a_gpu_that_does_not_answer_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, {100 + rank: [gpu_address(rank)] for rank in range(2)})
    node.joined()
    node.collector.begin(node.members)
    node.gpus.answer(gpu_address(0))
    assert node.collector.complete() is None
    # The next window comes first: the reader gives up on the one before.
    late = node.collector.begin(node.members)
    assert isinstance(late, Complete)
    assert late.ranks[7][1].gpu is None, "not known yet"
    node.gpus.answer(gpu_address(1), silent="NVML has not answered for 5.0 s", window=-2)
    node.gpus.answer(gpu_address(0))
    assert node.collector.complete() is None, "it may answer this time"
    monkeypatch.setattr(module, "GPU_SECONDS", 0.0)
    complete = node.collector.complete()
    assert complete is not None
    gpu = complete.ranks[7][1].gpu
    assert gpu is not None
    assert gpu.silent.startswith("NVML has not")
    there = complete.ranks[7][0].gpu
    assert there is not None
    assert there.silent == ""


def test_what_is_off_is_not_read() -> None:
    faults: list[str] = []
    off = Telemetry(host=False, nvidia=False, amd=False)
    collector = Collector(off, lambda name, _: faults.append(name), nic=NicTelemetry(Path("/no")))
    assert list(collector.parts) == ["nic"]
    assert Collector(Telemetry(enabled=False), lambda *_: None).parts == {}


def test_a_driver_that_hangs_delays_nobody(driver: FakeNvml) -> None:
    """The real reader on a driver whose calls take a minute."""
    me = os.getpid()
    driver.process(0, me)
    driver.write()
    host = HostTelemetry()
    config = Telemetry(nic=False, amd=False)
    collector = Collector(config, lambda *_: None, host=host)
    collector.start()
    members = [Member(7, 0, "node7", me, start_time(me))]

    def own_gpu(silent: bool) -> bool:
        collector.begin(members)
        deadline = time.monotonic() + 10
        while (complete := collector.complete()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        gpu = complete.ranks[7][0].gpu
        return gpu is not None and bool(gpu.silent) == silent

    try:
        wait_for("the GPU of this process", lambda: own_gpu(silent=False))
        driver.hang(0, "nvmlDeviceGetFieldValues", 60)
        driver.write()
        wait_for("silence", lambda: own_gpu(silent=True))
    finally:
        begin = time.monotonic()
        collector.close()
    # Not a timing but the difference between waiting for the driver and not.
    assert time.monotonic() - begin < 30
