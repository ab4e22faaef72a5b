"""What can be wrong with a rank of a job, in its samples.

Every condition comes with what it brings along in a real job (a rank whose process starves leaves
its GPU idle; a hot GPU draws less power; who waits keeps few multiprocessors busy) and with a
healthy twin: the same readings where they mean nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from stragd.diagnosis import Past
from stragd.finding import Finding
from stragd.telemetry.sample import RankTelemetry
from tests.jobs_of_samples import WINDOW_NS, JobOfSamples, Rank
from tests.pictures import finding as picture

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


def _uncounted(rank: Rank) -> None:
    """One cgroup and disk for all, and a kernel that does not count waits by task."""
    del rank.process["disk_wait_share"], rank.process["worker_disk_wait_share"]
    rank.node["pressure_io_share"] = 0.4


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
    Condition(
        "most reads under I/O pressure, waits not counted",
        "data-loader-disk",
        _only(_uncounted, _set("process", read_bytes_per_s=6e8), _starving),
        _only(_set("process", read_bytes_per_s=6e8)),  # and nobody waits
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
        "loss on its own TCP connections",
        "packet-loss",
        _set("process", tcp_lost_ppm=10_000.0, tcp_rtt_ms=3.0),
        where="network",
    ),
    _same(
        "a path with a detour",
        "network-delay",
        _set("process", tcp_rtt_ms=20.0, tcp_rtt_least_ms=19.0),
        where="network",
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
    return made, pictures[job.slow], [p for p in pictures if p.rank != job.slow], past
