"""A healthy job made of samples, in which everybody waits for one rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from stragd.diagnosis import Past
from stragd.telemetry.sample import RankTelemetry, Sample

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
    "tcp_rtt_ms": 0.3,
    "tcp_rtt_least_ms": 0.08,
    "tcp_host_count": 3.0,
    "tcp_lost_ppm": 20.0,
    "tcp_out_of_order_ppm": 100.0,
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
