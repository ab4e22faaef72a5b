"""A node with real readers and real ranks, whose devices are made up.

Ranks are processes that sleep. The NVIDIA driver is a library that reads a file, AMD's driver and
the NICs' are files of /sys. Before each pass everything is written anew: healthy, with noise, and
then changed by a condition; counters go on from where they were, by the time that has passed.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

from stragd.config import Telemetry
from stragd.telemetry.collector import Collector, Complete, Member
from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
from stragd.telemetry.sample import Sample
from tests.amdtree import HEALTHY, MI210, MI300X, AmdTree, blob
from tests.fakenvml import POWER_W, FakeNvml
from tests.nic_trees import NicTree, dgx, gpu_address
from tests.processes import Processes, start_time, wait_for

RANKS = 8
WINDOW_S = 10
LEAST_S = 0.03
"""Windows take as long as it takes to read, and so long at least: in less, one event is a storm."""
BEGIN_NS = 1_795_946_400_000_000_000
TICKS_PER_S = 1000.0  # of AMD's firmware
NVIDIA_POWER = 83
SM_ACTIVE, UTILISATION = 2, 1  # GPM metrics

MLX5, BNXT, IRDMA = "H200, mlx5", "MI300X, bnxt_re", "MI210, irdma"
HARDWARE = {MLX5: (0, "mlx5"), BNXT: (MI300X, "bnxt_re"), IRDMA: (MI210, "irdma")}
"""AMD's device, 0 for an H200; driver of the NICs."""

TRAFFIC = {
    "mlx5": ("port_xmit_packets", "port_rcv_packets"),
    "bnxt_re": ("tx_pkts", "rx_pkts"),
    "irdma": ("ip4OutPkts", "ip4InPkts"),
}
PACKETS_PER_S = 4e6
WAITS_PER_S = 4000.0  # ticks without credits of a healthy InfiniBand port
MEMORY = "/dev/shm"  # as fast as sysfs, but programs may not be loaded from there
PAUSES = ("rx_pfc_frames", "tx_pfc_frames")


class NvidiaGpu:
    """One GPU of the made-up NVIDIA driver."""

    def __init__(self, driver: FakeNvml, number: int) -> None:
        self.driver, self.number = driver, number
        self._counts: dict[tuple[int, int], int] = {}

    def healthy(self, draw: random.Random) -> None:
        """As ever, with a little noise."""
        for (field, link), count in self._counts.items():
            self.driver.field(self.number, field, count, link)
        self.driver.set(self.number, "sm_clock", 1980 - 15 * draw.randrange(3))
        self.driver.set(self.number, "temperature", 55 + draw.randrange(5))
        self.driver.set(self.number, "margin", 32 - draw.randrange(5))
        self.power(POWER_W * draw.gauss(1, 0.02))
        self.busy(0.99, 0.9 * draw.gauss(1, 0.02))

    def waits(self) -> None:
        """For another rank, in a collective that keeps few multiprocessors busy."""
        self.power(0.9 * POWER_W)
        self.busy(1.0, 0.7)

    def power(self, watts: float) -> None:
        """What it draws."""
        self.driver.rate(self.number, NVIDIA_POWER, watts * 1000)

    def busy(self, share: float, active: float) -> None:
        """For this share of the time, with this share of its multiprocessors."""
        self.driver.set(self.number, "utilisation", round(100 * share))
        self.driver.gpm(self.number, UTILISATION, 100 * share)
        self.driver.gpm(self.number, SM_ACTIVE, 100 * active)

    def count(self, field: int, events: int, link: int = 0) -> None:
        """A counter goes on by so many events, and stays there."""
        self._counts[field, link] = self._counts.get((field, link), 0) + events
        self.driver.field(self.number, field, self._counts[field, link], link)


class AmdGpu:
    """One GPU of a made-up amdgpu."""

    def __init__(self, tree: AmdTree, address: str, device: int, pid: int) -> None:
        self._tree, self._address = tree, address
        self._version = (1, 8) if device == MI300X else (1, 3)
        (kfd,) = tree.add(address, device)
        tree.process(pid, kfd)
        self._counts: defaultdict[str, float] = defaultdict(float)
        self._ticks = 100_000.0
        self.healthy(random.Random(0))

    def healthy(self, draw: random.Random) -> None:
        """As ever, with a little noise."""
        clock = 2100 - 5 * draw.randrange(6)
        self.values: dict[str, int | list[int]] = {
            "temperature_hotspot": 58 + draw.randrange(5),
            "current_gfxclk": [clock] * 8,
            "average_gfx_activity": 97,
            "curr_socket_power": round(620 * draw.gauss(1, 0.02)),
        }
        self.shares: dict[str, float] = {}
        """Residencies, as shares of the firmware's ticks."""
        self.below: dict[str, float] = {}
        """The same, of a partition."""
        self.rates: dict[str, float] = {}
        """Events per second, by counter; "ce" and "ue" are memory errors."""
        self.pages = ""
        self.cap_w = 750
        self.broken = False

    def waits(self) -> None:
        """For another rank."""
        self.values |= {"average_gfx_activity": 100, "curr_socket_power": 540}

    def count(self, counter: str, events: float) -> None:
        """A counter goes on by so many events, and stays there."""
        self._counts[counter] += events

    def write(self, seconds: float) -> None:
        """The files, after so much time."""
        ticks = max(1.0, seconds * TICKS_PER_S)
        self._ticks += ticks
        for name, share in (self.shares | self.below).items():
            self._counts[name] += share * ticks
        for name, rate in self.rates.items():
            self._counts[name] += rate * seconds
        counters = {
            name: _base(name) + int(self._counts[name]) for name in self._counts if name in HEALTHY
        }
        activity = self.values["average_gfx_activity"]
        assert isinstance(activity, int)
        partition = {"gfx_busy_inst": [activity] * 8} | {
            name: [int(self._counts[name])] * 8
            for name in ("gfx_below_host_limit_ppt_acc", "gfx_below_host_limit_thm_acc")
        }
        more = {"partitions": [partition]} if self._version == (1, 8) else {}
        ticking = {
            "accumulation_counter": int(self._ticks),
            "firmware_timestamp": int(1_000_000 + self._ticks),
        }
        raw = blob(self._version, **{**self.values, **counters, **ticking, **more})
        self._tree.metrics(self._address, b"" if self.broken else raw)
        self._tree.errors(self._address, int(self._counts["ce"]), int(self._counts["ue"]))
        self._tree.bad_pages(self._address, self.pages)
        self._tree.cap(self._address, self.cap_w)


def _base(member: str) -> int:
    """A counter of a healthy GPU."""
    value = HEALTHY[member]
    assert isinstance(value, int)
    return value


class Nic:
    """One NIC of a made-up tree, with its network device's statistics as ethtool gives them."""

    def __init__(self, tree: NicTree, table: str, number: int) -> None:
        self._tree, self.table = tree, table
        self.device, self.netdev = f"{table}_{number}", f"eth{number}"
        device = tree.root / f"sys/class/infiniband/{self.device}/device"
        self._lanes = device / "current_link_width"
        self._counts: defaultdict[str, float] = defaultdict(float)
        self.statistics = dict.fromkeys(PAUSES, 0.0)
        self.healthy(random.Random(0))

    def healthy(self, draw: random.Random) -> None:
        """As ever, with a little noise."""
        sent, received = TRAFFIC[self.table]
        self.rates = {
            sent: PACKETS_PER_S * draw.gauss(1, 0.05),
            received: PACKETS_PER_S * draw.gauss(1, 0.05),
        }
        """Events per second, by counter."""
        if self.table == "mlx5":
            self.rates["port_xmit_wait"] = WAITS_PER_S * draw.gauss(1, 0.05)
        self.pauses: dict[str, float] = {}
        """The same of ethtool's statistics."""
        self.states = {
            "state": "4: ACTIVE",
            "phys_state": "5: LinkUp",
            "rate": "400 Gb/sec (4X NDR)",
        }
        self.lanes = 16
        """Of its PCIe link."""

    def count(self, counter: str, events: float) -> None:
        """A counter goes on by so many events, and stays there."""
        self._counts[counter] += events

    def write(self, seconds: float) -> None:
        """The files, after so much time."""
        for name, rate in self.rates.items():
            self._counts[name] += rate * seconds
        for name, rate in self.pauses.items():
            self.statistics[name] += rate * seconds
        self._tree.set(self.device, {name: int(count) for name, count in self._counts.items()})
        self._tree.set(self.device, self.states)
        self._lanes.write_text(f"{self.lanes}\n")

    def carrier(self, changes: int) -> None:
        """The network device's carrier changes, and stays what it is."""
        path = self._tree.file(self.netdev, "carrier_changes")
        path.write_text(f"{int(path.read_text()) + changes}\n")


@dataclass
class Rank:
    """A rank with its devices, to be changed by a condition."""

    number: int
    pid: int
    gpu: NvidiaGpu | AmdGpu
    nic: Nic
    first: bool = False
    """Whether this is the condition's first pass: then happens what happens once."""

    @property
    def nvidia(self) -> NvidiaGpu:
        assert isinstance(self.gpu, NvidiaGpu)
        return self.gpu

    @property
    def amd(self) -> AmdGpu:
        assert isinstance(self.gpu, AmdGpu)
        return self.gpu


class Statistics:
    """What ethtool says of the NICs' network devices."""

    def __init__(self, nics: Iterable[Nic]) -> None:
        self._nics = {nic.netdev: nic for nic in nics}

    def statistics(self, netdev: str) -> Mapping[str, int]:
        nic = self._nics.get(netdev)
        return {name: int(count) for name, count in nic.statistics.items()} if nic else {}

    def highest_gbps(self, netdev: str) -> float | None:
        return None


class RanksOnly(HostTelemetry):
    """What else this machine does is no part of the experiment."""

    def read_node(self, start_ns: int, end_ns: int) -> Sample:
        return replace(super().read_node(start_ns, end_ns), values={})


class Passes(Collector):
    """The daemon's, but by the wall clock its windows end ten seconds apart."""

    time_ns = BEGIN_NS

    def complete(self) -> Complete | None:
        made = super().complete()
        if made is None:
            return None
        self.time_ns += WINDOW_S * 1_000_000_000
        return replace(made, time_ns=self.time_ns)


class Node:
    """Eight ranks, each with a GPU and a NIC of its own, and the daemon's readers."""

    def __init__(self, root: Path, driver: Path, hardware: str, processes: Processes) -> None:
        """``root`` for the files of the kernel, ``driver`` for a library that can be loaded."""
        device, table = HARDWARE[hardware]
        self._tree = dgx(root, RANKS, table)
        self._driver: FakeNvml | None = None
        pids = [processes.start({}, ["sleep", "3600"]) for _ in range(RANKS)]
        self.processes = [(pid, start_time(pid)) for pid in pids]
        gpus = self._amd(root, device, pids) if device else self._nvidia(driver, pids)
        self.ranks = [
            Rank(n, pid, gpu, Nic(self._tree, table, n))
            for n, (pid, gpu) in enumerate(zip(pids, gpus, strict=True))
        ]
        self._root = root
        self._last = time.monotonic()
        self._statistics = Statistics(rank.nic for rank in self.ranks)

    def _nvidia(self, folder: Path, pids: list[int]) -> list[NvidiaGpu | AmdGpu]:
        driver = self._driver = FakeNvml(folder, RANKS).healthy()
        for number, pid in enumerate(pids):
            driver.at(number, int(gpu_address(number).split(":")[1], 16))
            driver.process(number, pid)
        self._lines = dict(driver.lines)
        return [NvidiaGpu(driver, number) for number in range(RANKS)]

    def _amd(self, root: Path, device: int, pids: list[int]) -> list[NvidiaGpu | AmdGpu]:
        tree = AmdTree(root / "sys")
        return [AmdGpu(tree, gpu_address(n), device, pid) for n, pid in enumerate(pids)]

    @property
    def environment(self) -> dict[str, str]:
        """What the readers need to find the drivers."""
        return self._driver.environment if self._driver else {}

    def collector(self) -> Passes:
        """The readers; `environment` is set as long as they are used."""
        nowhere = str(self._root / "nowhere")
        sys, nvidia = str(self._root / "sys"), self._driver is not None
        gpu = GpuTelemetry(nowhere, sys, nowhere, nvidia=nvidia, amd=not nvidia)
        return Passes(
            Telemetry(seconds=1),
            lambda name, reason: print(f"{name}: {reason}"),
            host=RanksOnly(),
            nic=NicTelemetry(self._root, ethtool_reader=self._statistics),
            gpu=gpu,
        )

    def known(self, collector: Collector) -> bool:
        """Whether the readers have found what belongs to each rank."""
        collector.begin(Member(0, n, "node7", *process) for n, process in enumerate(self.processes))
        ranks = wait_for("a pass", collector.complete).ranks[0].values()
        return all(rank.gpu and not rank.gpu.silent and rank.nics for rank in ranks)

    def write(self, draw: random.Random, change: Callable[[], None]) -> None:
        """What the drivers say from now on: all is healthy, and then comes ``change``."""
        if self._driver:
            self._driver.lines = dict(self._lines)
        for rank in self.ranks:
            rank.gpu.healthy(draw)
            rank.nic.healthy(draw)
        change()
        time.sleep(max(0.0, self._last + LEAST_S - time.monotonic()))
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if self._driver:
            self._driver.write()
        for rank in self.ranks:
            if isinstance(rank.gpu, AmdGpu):
                rank.gpu.write(seconds)
            rank.nic.write(seconds)


@contextlib.contextmanager
def made_up_node(hardware: str) -> Iterator[tuple[Node, Passes]]:
    """A node and its readers, which have been started."""
    with contextlib.ExitStack() as stack:
        in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        root = Path(stack.enter_context(TemporaryDirectory(prefix="stragd-sys-", dir=in_memory)))
        driver = Path(stack.enter_context(TemporaryDirectory(prefix="stragd-driver-")))
        node = Node(root, driver, hardware, stack.enter_context(Processes()))
        stack.enter_context(mock.patch.dict(os.environ, node.environment))
        node.write(random.Random(0), lambda: None)
        collector = node.collector()
        collector.start()
        stack.callback(collector.close)
        wait_for("the GPU and the NIC of every rank", lambda: node.known(collector))
        yield node, collector
