"""What counts as a difference: one row per quantity, with the source of its numbers.

A reading deviates when it lies at least ``least`` on the bad side of what it is compared with: the
peers of the same model, else the rank's own past. Only where there is neither does ``limit``, an
absolute number, speak; without a ``limit`` such a reading says nothing.

Sources. GCM: Meta's health checks. AZURE: Azure's node health checks. NVS: NVSentinel. NVRX:
nvidia-resiliency-ext. NVHV: NVIDIA's health validation. OWN: chosen here, because nothing is
published; the reason stands with it. "Any" means that one event is one too many.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024.0 * 1024.0


@dataclass(frozen=True, slots=True)
class Signal:
    """How one quantity of a sample is judged."""

    label: str
    """The words of the evidence line."""
    least: float
    """Smallest difference that counts: in the quantity's unit, or a share of the reference."""
    full: float
    """Difference from which the evidence does not get stronger."""
    limit: float | None
    """Reading that is bad by itself; None where only a comparison can tell."""
    source: str
    falls: bool = False
    """A smaller reading is the worse one."""
    relative: bool = False
    """``least`` and ``full`` are shares of the reference."""
    per_second: bool = False
    """``least``, ``full`` and ``limit`` are per second; the reading counts a window."""
    lost_time: bool = False
    """The difference is a share of time lost, to be held against the finding's slowdown."""


_LOST = "OWN: a lost share under 2 % of the window slows a rank by less than the scorer can see"
_NOW = "A1, A2: a state at the window's end, so it only counts against peers or the past"
_ANY = "NVS, NVRX, GCM: any"

SIGNALS: dict[str, Signal] = {
    # GPU: clocks
    "gpu.sm_clock_mhz": Signal("SM clock", 30, 500, None, "GCM: drift of 30 MHz warns", falls=True),
    "gpu.sm_clock_max_mhz": Signal(
        "highest SM clock allowed", 30, 500, None, "GCM: as the clock", falls=True
    ),
    "gpu.mem_clock_mhz": Signal(
        "memory clock", 75, 600, None, "GCM: drift of 75 MHz is critical", falls=True
    ),
    "gpu.hw_thermal_share": Signal("HW thermal slowdown", 0.02, 0.3, 0.1, _LOST),
    "gpu.sw_thermal_share": Signal("SW thermal slowdown", 0.02, 0.3, 0.1, _LOST),
    "gpu.socket_thermal_share": Signal("thermal limit of the socket", 0.02, 0.3, 0.1, _LOST),
    "gpu.regulator_thermal_share": Signal("thermal limit of the regulators", 0.02, 0.3, 0.1, _LOST),
    "gpu.memory_thermal_share": Signal("thermal limit of the memory", 0.02, 0.3, 0.1, _LOST),
    "gpu.below_limit_thermal_share": Signal("clock held for heat", 0.02, 0.3, 0.1, _LOST),
    "gpu.throttled_thermal_count": Signal("thermal limits acting", 1, 2, None, _NOW),
    "gpu.hw_slowdown_count": Signal("hardware slowdown", 1, 1, None, _NOW),
    "gpu.clocks_locked_count": Signal("clock limit set", 1, 1, None, _NOW),
    "gpu.throttled_external_count": Signal("PROCHOT signals acting", 1, 2, None, _NOW),
    "gpu.board_limit_share": Signal("board limit", 0.02, 0.3, 0.1, _LOST),
    "gpu.reliability_share": Signal("reliability limit", 0.02, 0.3, 0.1, _LOST),
    "gpu.throttled_current_count": Signal("current limits acting", 1, 2, None, _NOW),
    "gpu.power_brake_share": Signal("power brake", 0.02, 0.3, 0.05, _LOST),
    "gpu.sw_power_cap_share": Signal(
        "at the power limit", 0.2, 0.8, None, "OWN: every busy GPU reaches its limit now and then"
    ),
    "gpu.below_limit_power_share": Signal(
        "clock held for power", 0.2, 0.8, None, "OWN: as the power limit"
    ),
    "gpu.sync_boost_share": Signal("held by sync boost", 0.05, 0.5, 0.2, _LOST),
    "gpu.power_limit_w": Signal(
        "power limit", 0.03, 0.3, None, "OWN: limits of one model differ by a percent", True, True
    ),
    "gpu.power_limit_cut_share": Signal(
        "power limit below the default", 0.03, 0.3, 0.1, "OWN: as the limit; alone a tenth"
    ),
    # GPU: memory
    "gpu.ecc_uncorrected_delta": Signal("uncorrected ECC errors", 1, 2, 1, "NVS, A1: any"),
    "gpu.ecc_corrected_delta": Signal(
        "corrected ECC errors",
        100,
        10_000,
        1000,
        "OWN: low counts are normal; a sick GB200 had 17,700 per second",
        per_second=True,
    ),
    "gpu.remap_pending_count": Signal("row remaps pending", 1, 1, 1, "AZURE: fail"),
    "gpu.remap_failure_count": Signal("row remaps failed", 1, 1, 1, "AZURE: fail"),
    "gpu.retired_pending_count": Signal("page retirements pending", 1, 1, 1, "as row remaps"),
    # GPU: links
    "gpu.nvlink_inactive_count": Signal("inactive NVLinks", 1, 2, 1, "NVHV: 0 inactive links"),
    "gpu.nvlink_speed_gbps": Signal(
        "NVLink speed", 0.05, 0.5, None, "NVHV: one speed per model", True, True
    ),
    "gpu.nvlink_recovery_delta": Signal("NVLink recoveries", 1, 5, 1, "GCM, NVRX: any"),
    "gpu.nvlink_recovery_failed_delta": Signal("NVLink recoveries failed", 1, 1, 1, "NVRX: any"),
    "gpu.nvlink_error_delta": Signal("NVLink packet errors", 1, 100, 10, "NVRX: any"),
    "gpu.xgmi_inactive_count": Signal("xGMI links down", 1, 2, 1, "as NVLinks"),
    "gpu.xgmi_speed_gbps": Signal("xGMI speed", 0.05, 0.5, None, "as NVLinks", True, True),
    "gpu.nvlink_replay_delta": Signal("NVLink replays", 1, 100, 10, "GCM: any; alone OWN: ten"),
    "gpu.nvlink_crc_delta": Signal("NVLink CRC errors", 1, 100, 10, "GCM: any; alone OWN: ten"),
    "gpu.pcie_lanes_missing_count": Signal(
        "PCIe lanes missing", 1, 8, 1, "A3: width under maximum while busy"
    ),
    "gpu.pcie_generations_missing_count": Signal(
        "PCIe generations missing", 1, 2, 1, "A3: generation under maximum while busy"
    ),
    "gpu.pcie_replay_delta": Signal(
        "PCIe replays",
        1,
        100,
        10,
        "OWN: single replays are repaired in microseconds",
        per_second=True,
    ),
    "gpu.pcie_recovery_delta": Signal(
        "PCIe link recoveries", 0.1, 10, 1, "OWN: each takes the link away", per_second=True
    ),
    "gpu.pcie_nak_delta": Signal("PCIe NAKs", 1, 100, 10, "OWN: as replays", per_second=True),
    "gpu.pcie_uncorrected_delta": Signal("PCIe errors", 1, 5, 1, "OWN: any"),
    "gpu.pcie_correctable_delta": Signal(
        "PCIe errors corrected", 1, 100, 10, "OWN: as replays", per_second=True
    ),
    # GPU: driver and fabric
    "gpu.xid_delta": Signal("Xid events", 1, 2, 1, "AZURE: any in 2 h"),
    "gpu.recovery_action_count": Signal("recovery action asked for", 1, 1, 1, "NVRX: not none"),
    "gpu.fabric_unhealthy_count": Signal("fabric faults", 1, 1, 1, "A1: health mask"),
    "gpu.reader_latency_ms": Signal(
        "driver's answer", 1000, 10_000, 5000, "A5: calls on a sick GPU block for seconds"
    ),
    # GPU: use
    "gpu.idle_count": Signal("idle", 1, 1, None, "OWN: one look; supports only"),
    "gpu.utilisation_share": Signal(
        "utilisation", 0.15, 0.6, None, "OWN: waiting in a collective reads as use", falls=True
    ),
    "gpu.low_utilisation_share": Signal("low utilisation", 0.15, 0.6, None, "OWN: as utilisation"),
    "gpu.sm_active_share": Signal("SMs active", 0.15, 0.5, None, "OWN: as utilisation", falls=True),
    # process
    "process.run_queue_share": Signal(
        "runnable but not running",
        0.05,
        0.4,
        0.2,
        "OWN: twice what a fair scheduler costs",
        lost_time=True,
    ),
    "process.worker_run_queue_share": Signal(
        "data-loader workers runnable but not running", 0.1, 0.6, 0.4, "OWN: workers prefetch"
    ),
    "process.involuntary_switches_per_s": Signal(
        "involuntary context switches", 50, 1000, None, "OWN: supports only"
    ),
    "process.pressure_cpu_share": Signal("CPU pressure", 0.1, 0.6, None, "OWN: supports only"),
    "process.throttled_share": Signal(
        "throttled by its CPU quota", 0.02, 0.3, 0.05, _LOST, lost_time=True
    ),
    "process.throttled_periods_share": Signal(
        "periods with throttling", 0.1, 0.6, 0.25, "OWN: one burst in ten is tolerable"
    ),
    "process.major_faults_per_s": Signal(
        "major page faults per second", 20, 1000, 200, "OWN: 20 x 100 us is 0.2 % of the time"
    ),
    "process.pressure_memory_share": Signal("memory pressure", 0.02, 0.3, 0.1, _LOST),
    "process.cgroup_memory_high_delta": Signal(
        "times over memory.high", 10, 1000, 100, "OWN: each is a forced reclaim"
    ),
    "process.cgroup_memory_max_delta": Signal(
        "times at the memory limit", 10, 1000, 100, "OWN: each is a forced reclaim"
    ),
    "process.pressure_memory_full_share": Signal(
        "memory pressure on all tasks", 0.02, 0.3, 0.1, _LOST
    ),
    "process.pressure_cpu_full_share": Signal(
        "all tasks without a CPU", 0.05, 0.4, None, "OWN: supports only"
    ),
    "process.cgroup_oom_delta": Signal("out-of-memory events", 1, 1, 1, "any"),
    "process.swap_bytes": Signal(
        "swapped out", 64 * MIB, 2048 * MIB, None, "OWN: cold pages may lie in swap for ever"
    ),
    "process.disk_wait_share": Signal(
        "waiting for the disk", 0.05, 0.4, 0.2, _LOST, lost_time=True
    ),
    "process.worker_disk_wait_share": Signal(
        "data-loader workers waiting for the disk", 0.1, 0.6, 0.4, "OWN: workers prefetch"
    ),
    "process.pressure_io_share": Signal("I/O pressure", 0.05, 0.5, 0.3, _LOST),
    "process.worker_cpu_share": Signal(
        "CPUs used by data-loader workers",
        0.3,
        1.5,
        None,
        "OWN: samples differ by a quarter",
        relative=True,
    ),
    "process.read_bytes_per_s": Signal(
        "reading from disks", 1, 10, None, "OWN: twice its peers", relative=True
    ),
    "process.stopped_share": Signal("stopped", 0.02, 0.3, 0.02, _LOST, lost_time=True),
    "process.numa_remote_share": Signal(
        "on the other NUMA node than its GPU", 0.3, 0.9, 0.5, "OWN: half of the time"
    ),
    # node
    "node.steal_share": Signal(
        "CPU stolen by the hypervisor", 0.02, 0.2, 0.05, _LOST, lost_time=True
    ),
    "node.cpu_frequency_mhz": Signal(
        "CPU clock", 0.1, 0.5, None, "OWN: turbo bins differ by less", True, True
    ),
    "node.pressure_cpu_share": Signal(
        "CPU pressure of the node", 0.1, 0.6, None, "OWN: supports only"
    ),
    "node.pressure_memory_share": Signal("memory pressure of the node", 0.02, 0.3, 0.1, _LOST),
    "node.pressure_io_share": Signal(
        "I/O pressure of the node", 0.1, 0.6, None, "OWN: supports only"
    ),
    "node.swap_in_per_s": Signal(
        "pages swapped in per second", 50, 5000, 500, "OWN: as major faults"
    ),
    # NIC: state
    "nic.rate_gbps": Signal(
        "link rate", 0.05, 0.5, None, "GCM: rate against a manifest", True, True
    ),
    "nic.rate_cut_share": Signal(
        "link rate below its maximum", 0.05, 0.5, 0.2, "GCM: rate against a manifest"
    ),
    "nic.width_count": Signal("link lanes", 1, 3, None, "as the rate", falls=True),
    "nic.down_count": Signal("ports down", 1, 1, 1, "NVS: down is fatal"),
    "nic.carrier_changes_delta": Signal("carrier changes", 2, 6, 3, "NVS: more than 2 a poll"),
    "nic.link_downed_delta": Signal("times the link went down", 1, 2, 1, _ANY),
    # NIC: damaged packets
    "nic.symbol_error_delta": Signal(
        "symbol errors",
        120 / 3600,
        10,
        120 / 3600,
        "NVS: 120 per hour, 10 per second",
        per_second=True,
    ),
    "nic.recovery_delta": Signal(
        "link error recoveries", 5 / 60, 1, 5 / 60, "NVS: 5 per minute", per_second=True
    ),
    "nic.integrity_error_delta": Signal("link integrity errors", 1, 2, 1, _ANY),
    "nic.corruption_ppm": Signal(
        "damaged packets per million", 1, 100, 10, "OWN: a sound link has none"
    ),
    # NIC: loss
    "nic.loss_sender_ppm": Signal(
        "packets per million lost on the way out", 20, 2000, 500, "OWN: 20 x 1 ms is 2 % at 1 kpps"
    ),
    "nic.loss_receiver_ppm": Signal(
        "packets per million missing on the way in", 20, 2000, 500, "OWN: as sender"
    ),
    "nic.timeout_ppm": Signal(
        "timeouts per million packets", 2, 100, 20, "NVS: 1 per second degrades"
    ),
    "process.retransmits_ppm": Signal(
        "TCP retransmits per million segments",
        500,
        20_000,
        5000,
        "OWN: sound networks stay under 100",
    ),
    "process.tcp_lost_ppm": Signal(
        "TCP segments per million lost on the way out", 500, 20_000, 5000, "OWN: as retransmits"
    ),
    "process.tcp_out_of_order_ppm": Signal(
        "TCP segments per million out of order on the way in",
        2000,
        50_000,
        None,
        "OWN: paths of one flow may differ, and then nothing is lost",
    ),
    "process.tcp_rtt_ms": Signal(
        "TCP round trip", 1, 20, None, "OWN: more than busy hosts and switches in a room make"
    ),
    # NIC: congestion, and a host that cannot keep up
    "nic.cnp_handled_ppm": Signal(
        "told to slow down, per million packets", 1000, 50_000, None, "OWN: normal under load"
    ),
    "nic.cnp_sent_ppm": Signal(
        "marked packets received, per million", 1000, 50_000, None, "OWN: normal under load"
    ),
    "nic.xmit_wait_per_s": Signal(
        "ticks without credits per second", 1, 10, None, "OWN: twice its peers", relative=True
    ),
    "nic.cnp_ignored_ppm": Signal(
        "congestion notices ignored, per million packets", 10, 1000, None, "B2: should not rise"
    ),
    "nic.ecn_marked_ppm": Signal(
        "packets marked by a switch, per million", 1000, 50_000, None, "OWN: normal under load"
    ),
    "nic.pause_received_per_s": Signal(
        "pause frames received per second", 100, 10_000, None, "OWN: normal under load"
    ),
    "nic.pause_sent_per_s": Signal(
        "pause frames sent per second", 10, 1000, 100, "B2: a host that keeps up sends none"
    ),
    "nic.host_side_delta": Signal("host-side errors", 1, 100, 10, "B2: completion and PCIe errors"),
    "nic.not_ready_ppm": Signal(
        "receiver not ready, per million packets", 1, 100, 10, "NVS: any rnr_nak_retry_err is fatal"
    ),
    "nic.buffer_overrun_delta": Signal("buffer overruns", 1, 2, 1, _ANY),
    "nic.pcie_cut_share": Signal(
        "PCIe rate of the NIC below its best", 0.05, 0.5, 0.3, "A3: as the GPU's PCIe"
    ),
    "nic.drops_per_s": Signal(
        "packets dropped per second", 10, 1000, 100, "NVS: 100 discards per second"
    ),
}


# Numbers that belong to no single quantity.
CLOCK_CRITICAL_MHZ = 75.0
"""A low clock without a reason is a cause from here on. GCM: 75 MHz is critical."""
SPREAD = 3.0
"""A difference must be this many robust standard deviations of the peers or the past. The usual
three sigma."""
COUNTED = ("_delta", "_ppm", "_per_s")
"""Ends of the names of quantities that count something in a window."""
COUNTED_MORE = 0.5
"""A count must be this much more than the usual one. OWN: traffic and short windows make counts
differ, and three peers are too few to say by how much."""
VICTIMS = 0.5
"""Where this share of the peers shows it too, it tells nobody apart. OWN."""
MAX_PEERS = 256
"""Peers compared with; of more, evenly spread ones. OWN: a median of more is no better."""
FEW_PEERS = 3
"""With fewer peers the evidence is weaker. Design: two of a kind cannot outvote each other."""
HISTORY_WINDOWS = 3
"""Windows before the finding that a history needs. OWN: the fewest with a median and a spread."""
EXPLAINED = 0.5
"""Share of the slowdown that lost time must account for; with less, a cause gets less confidence in
proportion. OWN: half, as means over a window and a step's critical path are not the same time."""
NAMED = 0.4
"""Confidence from which a cause is named; below it is "unknown", and the guess a runner-up. OWN."""
STRONG = 0.7
"""Confidence from which a cause says more about the place than the timing does. OWN: what a clear
deviation from several peers gets."""
SURE = 0.9
"""Confidence from which one pass is enough to name a cause. OWN: with less, a second of a busy node
shows any rank far worse off than three peers."""
BUSY_UTILISATION = 0.3
BUSY_SM_ACTIVE = 0.1
"""A GPU is busy from either on. OWN: between a data-bound trainer (half busy) and a GPU between
two jobs (under a tenth)."""
WAITING_FOR_DISKS = 0.1
"""I/O pressure from which it matters who reads most. OWN: as the pressure that counts."""
LOADED_CPU = 0.5
"""CPUs in use from which a CPU clock means something. OWN: an idle core clocks down by design."""
