"""Jobs made of samples, and what can be wrong with a rank of one.

Every condition comes with what it brings along in a real job (a rank whose process starves leaves
its GPU idle; a hot GPU draws less power; who waits keeps few multiprocessors busy) and with a
healthy twin: the same readings where they mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from stragd.diagnosis import Past
from stragd.finding import Finding
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.pictures import finding as picture

WINDOW_NS = 10_000_000_000
SINCE_NS = 1_795_946_400_000_000_000
"""When the finding of `tests.pictures` began, CLOCK_REALTIME."""

GPU = {
    "sm_clock_mhz": 1950.0,
    "sm_clock_max_mhz": 1980.0,
    "mem_clock_mhz": 2619.0,
    "mem_clock_max_mhz": 2619.0,
    "sw_power_cap_share": 0.08,
    "sync_boost_share": 0.0,
    "sw_thermal_share": 0.0,
    "hw_thermal_share": 0.0,
    "power_brake_share": 0.0,
    "low_utilisation_share": 0.0,
    "idle_count": 0.0,
    "board_limit_share": 0.0,
    "clocks_locked_count": 0.0,
    "temperature_c": 62.0,
    "temperature_margin_c": 25.0,
    "memory_temperature_c": 70.0,
    "power_w": 560.0,
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "ecc_corrected_delta": 0.0,
    "ecc_uncorrected_delta": 0.0,
    "remap_pending_count": 0.0,
    "remap_failure_count": 0.0,
    "retired_pending_count": 0.0,
    "xid_delta": 0.0,
    "nvlink_inactive_count": 0.0,
    "nvlink_count": 18.0,
    "nvlink_replay_delta": 0.0,
    "nvlink_recovery_delta": 0.0,
    "nvlink_crc_delta": 0.0,
    "nvlink_speed_gbps": 212.5,
    "pcie_generation_count": 5.0,
    "pcie_generation_max_count": 5.0,
    "pcie_width_count": 16.0,
    "pcie_width_max_count": 16.0,
    "pcie_replay_delta": 0.0,
    "pcie_recovery_delta": 0.0,
    "pcie_nak_delta": 0.0,
    "utilisation_share": 0.97,
    "sm_active_share": 0.62,
    "tensor_active_share": 0.4,
    "recovery_action_count": 0.0,
    "fabric_unhealthy_count": 0.0,
    "reader_latency_ms": 4.0,
}
PROCESS = {
    "run_queue_share": 0.01,
    "cpu_share": 1.6,
    "throttled_share": 0.0,
    "throttled_periods_share": 0.0,
    "major_faults_per_s": 0.3,
    "voluntary_switches_per_s": 900.0,
    "involuntary_switches_per_s": 6.0,
    "disk_wait_share": 0.004,
    "worker_disk_wait_share": 0.02,
    "worker_cpu_share": 2.2,
    "read_bytes_per_s": 4e7,
    "stopped_share": 0.0,
    "retransmits_ppm": 20.0,
    "numa_remote_share": 0.03,
    "swap_bytes": 0.0,
    "cgroup_memory_high_delta": 0.0,
    "cgroup_oom_delta": 0.0,
    "pressure_cpu_share": 0.02,
    "pressure_memory_share": 0.0,
    "pressure_io_share": 0.01,
}
NODE = {
    "pressure_cpu_share": 0.04,
    "pressure_memory_share": 0.0,
    "pressure_io_share": 0.02,
    "steal_share": 0.0,
    "swap_in_per_s": 0.0,
    "cpu_frequency_mhz": 3100.0,
    "cpu_frequency_max_mhz": 3700.0,
    "load_per_cpu": 0.6,
}
NIC = {
    "rate_gbps": 400.0,
    "rate_max_gbps": 400.0,
    "width_count": 4.0,
    "down_count": 0.0,
    "carrier_changes_delta": 0.0,
    "loss_sender_ppm": 0.2,
    "loss_receiver_ppm": 0.2,
    "timeout_ppm": 0.0,
    "not_ready_ppm": 0.0,
    "cnp_handled_ppm": 80.0,
    "cnp_sent_ppm": 80.0,
    "corruption_ppm": 0.0,
    "host_side_delta": 0.0,
    "pause_received_per_s": 8.0,
    "pause_sent_per_s": 0.0,
    "link_downed_delta": 0.0,
    "symbol_error_delta": 0.0,
    "recovery_delta": 0.0,
    "xmit_wait_per_s": 4000.0,
    "drops_per_s": 0.0,
}
STEADY = (
    "_count",
    "_max_mhz",
    "_default_w",
    "_limit_w",
    "rate_gbps",
    "rate_max_gbps",
    "speed_gbps",
)


@dataclass
class Rank:
    """One rank's readings in one window, to be changed by a condition."""

    number: int
    host: str
    gpu: dict[str, float]
    process: dict[str, float]
    node: dict[str, float]
    """Shared by the ranks of the host."""
    nic: dict[str, float]
    model: str = "NVIDIA H200"
    notes: list[str] = field(default_factory=list)
    gpu_notes: list[str] = field(default_factory=list)
    silent: str = ""

    def starves(self, share: float = 0.4) -> None:
        """Its process does not feed its GPU."""
        self.gpu.update(utilisation_share=0.98 - share, power_w=380.0)
        self.gpu["sm_active_share"] = 0.7 * (1 - share)

    def clocked(self, mhz: float) -> None:
        self.gpu.update(sm_clock_mhz=mhz, sm_active_share=0.85)

    def picture(self, start_ns: int) -> RankTelemetry:
        def sample(kind: str, subject: str, model: str, values: dict[str, float]) -> Sample:
            return Sample(kind, subject, model, start_ns, start_ns + WINDOW_NS, dict(values))  # type: ignore[arg-type]

        pci = f"0000:{0x18 + self.number % 8:02x}:00.0"
        gpu = Sample(
            "gpu",
            pci,
            self.model,
            start_ns,
            start_ns + WINDOW_NS,
            {} if self.silent else dict(self.gpu),
            tuple(self.gpu_notes),
            self.silent,
        )
        process = Sample(
            "process",
            str(1000 + self.number),
            "",
            start_ns,
            start_ns + WINDOW_NS,
            dict(self.process),
            tuple(self.notes),
        )
        nic = sample("nic", f"mlx5_{self.number % 8}/1", "MT4129 400 Gb/s", self.nic)
        node = sample("node", "", "", self.node)
        return RankTelemetry(
            self.number, self.host, process, gpu if self.model else None, (nic,), node
        )


class JobOfSamples:
    """A healthy job; every window is drawn anew around each rank's own level."""

    def __init__(self, seed: int, hosts: int = 4, per_host: int = 4, slow: int = 5) -> None:
        self._draw = random.Random(seed)
        self.hosts, self.per_host = hosts, per_host
        self.slow = slow
        self._levels = [self._draw.gauss(1.0, 0.004) for _ in range(hosts * per_host)]

    def _noisy(self, name: str, value: float, level: float) -> float:
        if name.endswith(STEADY):
            return value
        if name == "sm_clock_mhz":
            return round(value * level / 15) * 15.0  # clocks go in steps
        if name.endswith(("_delta",)) and value == 0.0:
            return 0.0
        made = value * level * self._draw.gauss(1.0, 0.06)
        return min(1.0, max(0.0, made)) if name.endswith("_share") and value <= 1 else made

    def ranks(self) -> list[Rank]:
        nodes = [
            {name: self._noisy(name, value, 1.0) for name, value in NODE.items()}
            for _ in range(self.hosts)
        ]

        def drawn(kind: dict[str, float], level: float) -> dict[str, float]:
            return {name: self._noisy(name, value, level) for name, value in kind.items()}

        return [
            Rank(
                number,
                f"node{number // self.per_host}",
                drawn(GPU, level),
                drawn(PROCESS, level),
                nodes[number // self.per_host],
                drawn(NIC, level),
            )
            for number, level in enumerate(self._levels)
        ]

    def past(self, windows: int = 12, change: Callable[[list[Rank]], None] | None = None) -> Past:
        """Healthy windows before the finding; ``change`` says what they had in common."""
        past = Past()
        for back in range(windows, 0, -1):
            ranks = self.ranks()
            if change is not None:
                change(ranks)
            for rank in ranks:
                past.add(rank.picture((1000 - back) * WINDOW_NS), SINCE_NS - back * WINDOW_NS)
        return past

    def window(self) -> list[Rank]:
        """A window of the finding: everybody waits for ``slow``."""
        ranks = self.ranks()
        for rank in ranks:
            if rank.number != self.slow:
                rank.gpu["sm_active_share"] *= 0.8
                rank.gpu["power_w"] *= 0.9
                rank.gpu["utilisation_share"] = 1.0
                rank.process["worker_cpu_share"] *= 0.97
        return ranks


Change = Callable[[Rank, list[Rank]], None]
"""(the slow rank, all ranks)"""


@dataclass(frozen=True)
class Condition:
    """What is wrong with a rank, the cause that is to be named, and its healthy twin."""

    name: str
    cause: str
    inject: Change
    twin: Change
    where: str = "machine"


def everywhere(change: Callable[[Rank], None]) -> Change:
    """The same readings on every rank: they tell nobody apart."""

    def made(_: Rank, ranks: list[Rank]) -> None:
        for rank in ranks:
            change(rank)

    return made


def nothing(_: Rank, __: list[Rank]) -> None:
    """Healthy."""


def _set(part: str, **values: float) -> Callable[[Rank], None]:
    def change(rank: Rank) -> None:
        getattr(rank, part).update(values)

    return change


def _only(*changes: Callable[[Rank], None]) -> Change:
    def made(rank: Rank, _: list[Rank]) -> None:
        for change in changes:
            change(rank)

    return made


def _same(
    name: str, cause: str, *changes: Callable[[Rank], None], where: str = "machine"
) -> Condition:
    """A condition whose twin is that every rank shows it."""

    def all_of_them(rank: Rank) -> None:
        for change in changes:
            change(rank)

    return Condition(name, cause, _only(*changes), everywhere(all_of_them), where)


def _starving(rank: Rank) -> None:
    rank.starves()


def _clock(mhz: float) -> Callable[[Rank], None]:
    return lambda rank: rank.clocked(mhz)


def _note(text: str) -> Callable[[Rank], None]:
    return lambda rank: rank.notes.append(text)


def _xid(number: int) -> Callable[[Rank], None]:
    def change(rank: Rank) -> None:
        rank.gpu["xid_delta"] = 1.0
        rank.gpu_notes.append(f"Xid {number}")

    return change


def _silent(rank: Rank) -> None:
    rank.silent = "the driver has not answered for 12 s"


HOT = _set("gpu", temperature_c=91.0, temperature_margin_c=-3.0, memory_temperature_c=98.0)

CONDITIONS: tuple[Condition, ...] = (
    Condition(
        "HW thermal slowdown",
        "thermal-throttle",
        _only(HOT, _clock(1305.0), _set("gpu", hw_thermal_share=0.62, power_w=430.0)),
        _only(HOT, _set("gpu", hw_thermal_share=0.004)),  # hot, not clocked down
    ),
    Condition(
        "SW thermal slowdown",
        "thermal-throttle",
        _only(HOT, _clock(1665.0), _set("gpu", sw_thermal_share=0.35, power_w=480.0)),
        _only(HOT),
    ),
    Condition(
        "power limit lowered",
        "power-cap",
        _only(
            _clock(1410.0), _set("gpu", power_limit_w=450.0, sw_power_cap_share=0.93, power_w=449.0)
        ),
        everywhere(_set("gpu", sw_power_cap_share=0.95, power_w=699.0)),  # capped at full load
    ),
    _same(
        "power brake",
        "power-brake",
        _clock(990.0),
        _set("gpu", power_brake_share=0.4, power_w=300.0),
    ),
    Condition(
        "sync boost",
        "sync-boost",
        _only(_clock(1500.0), _set("gpu", sync_boost_share=0.7)),
        _only(_set("gpu", sync_boost_share=0.7)),
    ),
    _same(
        "board's current limit", "board-limit", _clock(1545.0), _set("gpu", board_limit_share=0.5)
    ),
    Condition(
        "clocks locked",
        "low-clock",
        _only(_clock(1410.0), _set("gpu", power_w=420.0, clocks_locked_count=1.0)),
        _only(_set("gpu", sm_clock_mhz=1935.0)),  # one step below
    ),
    Condition(
        "memory clock low",
        "low-clock",
        _only(_set("gpu", mem_clock_mhz=1593.0)),
        everywhere(_set("gpu", mem_clock_mhz=1593.0)),
    ),
    Condition(
        "row remapping failed",
        "memory-damage",
        _only(_set("gpu", remap_failure_count=1.0, remap_pending_count=1.0)),
        _only(_set("gpu", ecc_corrected_delta=40.0)),  # a few corrected errors are normal
    ),
    Condition(
        "uncorrected ECC error",
        "memory-damage",
        _only(_set("gpu", ecc_uncorrected_delta=2.0), _xid(94)),
        _only(_xid(31)),  # the program's own fault
    ),
    _same("corrected ECC storm", "memory-damage", _set("gpu", ecc_corrected_delta=90_000.0)),
    _same("NVLink inactive", "nvlink", _set("gpu", nvlink_inactive_count=2.0)),
    _same(
        "NVLink CRC errors",
        "nvlink",
        _set("gpu", nvlink_crc_delta=400.0, nvlink_recovery_delta=3.0),
    ),
    _same("PCIe at 4 lanes", "pcie", _set("gpu", pcie_width_count=4.0), _starving),
    Condition(
        "PCIe at generation 1 under load",
        "pcie",
        _only(_set("gpu", pcie_generation_count=1.0)),
        everywhere(
            _set("gpu", pcie_generation_count=1.0, utilisation_share=0.02, sm_active_share=0.02)
        ),
    ),
    _same("fabric unhealthy", "fabric", _set("gpu", fabric_unhealthy_count=1.0)),
    Condition(
        "driver asks for a reset",
        "driver-fault",
        _only(_set("gpu", recovery_action_count=1.0), _xid(119)),
        everywhere(_xid(119)),
    ),
    _same("driver silent", "telemetry-silent", _silent),
    Condition(
        "GPU not fed, nobody knows why", "gpu-starved", _only(_starving), nothing, where="unknown"
    ),
    _same(
        "spinning neighbour",
        "cpu-contention",
        _set(
            "process",
            run_queue_share=0.35,
            involuntary_switches_per_s=400.0,
            pressure_cpu_share=0.4,
        ),
        _starving,
    ),
    _same(
        "CPU quota",
        "cpu-quota",
        _set(
            "process",
            throttled_share=0.3,
            throttled_periods_share=0.8,
            run_queue_share=0.25,
            pressure_cpu_share=0.35,
        ),
        _starving,
        where="job",
    ),
    Condition(
        "memory.high",
        "memory-pressure",
        _only(
            _set(
                "process",
                cgroup_memory_high_delta=300.0,
                pressure_memory_share=0.25,
                major_faults_per_s=250.0,
                pressure_io_share=0.12,
            ),
            _starving,
        ),
        _only(_set("process", major_faults_per_s=6.0)),
        where="job",
    ),
    Condition(
        "swapping",
        "swap",
        _only(
            _set(
                "process",
                swap_bytes=4e9,
                major_faults_per_s=900.0,
                pressure_memory_share=0.3,
                pressure_io_share=0.2,
            ),
            _set("node", swap_in_per_s=3000.0, pressure_memory_share=0.3),
            _starving,
        ),
        _only(_set("process", swap_bytes=4e9)),  # cold pages
    ),
    _same(
        "slow disk under the data loader",
        "data-loader-disk",
        _set(
            "process",
            worker_disk_wait_share=0.7,
            pressure_io_share=0.45,
            disk_wait_share=0.1,
            worker_cpu_share=1.1,
        ),
        _starving,
        where="job",
    ),
    _same(
        "dear samples",
        "data-loader-cpu",
        _set("process", worker_cpu_share=6.5),
        _starving,
        where="job",
    ),
    Condition(
        "stopped by a signal",
        "stopped-process",
        _only(_set("process", stopped_share=0.5), _starving),
        everywhere(_set("process", stopped_share=0.5)),
        where="job",
    ),
    _same(
        "other socket", "numa-misplacement", _set("process", numa_remote_share=0.98), where="job"
    ),
    Condition(
        "CPU at 1.2 GHz",
        "cpu-frequency",
        _only(_set("node", cpu_frequency_mhz=1200.0), _starving),
        _only(
            _set("node", cpu_frequency_mhz=1200.0, load_per_cpu=0.05),
            _set("process", cpu_share=0.1),
        ),
    ),
    Condition(
        "CPU stolen",
        "cpu-steal",
        _only(_set("node", steal_share=0.15), _set("process", run_queue_share=0.12), _starving),
        everywhere(_set("node", steal_share=0.15)),
    ),
    _same(
        "profiler left on", "tooling-left-on", _note("CUDA_INJECTION64_PATH is set"), where="job"
    ),
    _same(
        "port at a quarter of its rate",
        "nic-degraded",
        _set("nic", rate_gbps=100.0, width_count=1.0),
    ),
    Condition("port down", "nic-degraded", _only(_set("nic", down_count=1.0)), nothing),
    Condition(
        "flapping link",
        "link-flap",
        _only(
            _set(
                "nic",
                link_downed_delta=2.0,
                carrier_changes_delta=4.0,
                symbol_error_delta=60.0,
                timeout_ppm=40.0,
            )
        ),
        _only(_set("nic", carrier_changes_delta=1.0)),
    ),
    _same(
        "bad transceiver",
        "nic-errors",
        _set("nic", symbol_error_delta=400.0, corruption_ppm=40.0, loss_receiver_ppm=60.0),
    ),
    _same(
        "slow receiver", "nic-host-side", _set("nic", pause_sent_per_s=800.0, not_ready_ppm=30.0)
    ),
    _same(
        "loss on the path",
        "packet-loss",
        _set("nic", loss_sender_ppm=3000.0, timeout_ppm=80.0),
        where="network",
    ),
    _same(
        "TCP retransmits", "packet-loss", _set("process", retransmits_ppm=20_000.0), where="network"
    ),
    _same(
        "congested path",
        "congestion",
        _set(
            "nic", cnp_handled_ppm=60_000.0, xmit_wait_per_s=60_000.0, pause_received_per_s=9000.0
        ),
        where="network",
    ),
)


def _has_more_to_do(rank: Rank, _: list[Rank]) -> None:
    """It works while its peers wait: more power, so a little less clock; all of it sound."""
    rank.clocked(1875.0)
    rank.gpu.update(sw_power_cap_share=0.55, power_w=690.0, temperature_c=71.0)
    rank.process["cpu_share"] *= 1.2


def _waits_less_in_the_network(rank: Rank, ranks: list[Rank]) -> None:
    """Loss shows at both ends of a path, and here most ranks are at one."""
    for other in ranks:
        if other.number % 2:
            other.nic.update(loss_sender_ppm=900.0, timeout_ppm=20.0)
        else:
            other.nic.update(loss_receiver_ppm=900.0)


HARMLESS: tuple[Condition, ...] = (
    Condition("nothing", "unknown", nothing, nothing, "unknown"),
    Condition("more to do than its peers", "unknown", _has_more_to_do, nothing, "unknown"),
    Condition("loss on many paths", "unknown", _waits_less_in_the_network, nothing, "unknown"),
)
"""Slow ranks whose telemetry has something to show that is not the cause."""


def case(
    condition: Condition,
    seed: int,
    healthy: bool = False,
    with_past: bool = True,
    lost: float = 0.0,
    kind: str = "straggler",
    hosts: int = 4,
) -> tuple[Finding, RankTelemetry, list[RankTelemetry], Past]:
    """A finding about the slow rank, its telemetry, its peers' and the past.

    ``lost`` is the share of readings that could not be read.
    """
    job = JobOfSamples(seed, hosts)
    ranks = job.window()
    change = condition.twin if healthy else condition.inject
    change(ranks[job.slow], ranks)
    draw = random.Random(seed + 1)
    for rank in ranks:
        for part in (rank.gpu, rank.process, rank.nic):
            for name in [n for n in part if draw.random() < lost]:
                del part[name]
    pictures = [rank.picture(1000 * WINDOW_NS) for rank in ranks]
    past = job.past() if with_past else Past()
    made = picture(kind=kind, rank=job.slow, slowdown=0.3)
    made["subject"]["rank"] = job.slow
    others: Iterable[RankTelemetry] = (p for p in pictures if p.rank != job.slow)
    return made, pictures[job.slow], list(others), past
