"""Causes that a GPU, its links or its driver shows."""

from __future__ import annotations

import re

from stragd.diagnosis.cause import Cause
from stragd.diagnosis.compare import View, apart
from stragd.diagnosis.signals import CLOCK_CRITICAL_MHZ
from stragd.telemetry.sample import Sample

_XID = re.compile(r"\bxid\D{0,3}(\d{1,4})\b", re.IGNORECASE)
# NVIDIA's Xid catalogue: double-bit errors, row remapping and contained memory errors; NVLink.
_MEMORY_XIDS = frozenset({48, 63, 64, 92, 94, 95})
_LINK_XIDS = frozenset({74})
# Faults of the program, which ends of them: a rank that goes on was not hit.
_PROGRAM_XIDS = frozenset({13, 31, 43, 45, 68})

_SPOKEN_FOR = _MEMORY_XIDS | _LINK_XIDS | _PROGRAM_XIDS

_REASONS = (
    "hw_thermal_share",
    "sw_thermal_share",
    "socket_thermal_share",
    "regulator_thermal_share",
    "memory_thermal_share",
    "below_limit_thermal_share",
    "below_limit_power_share",
    "power_brake_share",
    "sync_boost_share",
    "board_limit_share",
    "reliability_share",
    "throttled_power_count",
    "throttled_thermal_count",
    "throttled_current_count",
    "throttled_external_count",
)


def clocked_down(view: View) -> float:
    """Hot or capped but at full clock is no cause; a clock without comparison is half known."""
    if view.value("gpu.sm_clock_mhz") is None or view.usual("gpu.sm_clock_mhz") is None:
        return 0.8
    return 1.0 if view.deviation("gpu.sm_clock_mhz") else 0.0


def _capped(view: View) -> float:
    """At full load everybody reaches the limit; only a lower limit tells a machine apart."""
    share = view.value("gpu.sw_power_cap_share")
    if share is not None and share < 0.2:
        return 0.0
    lower = view.deviation("gpu.power_limit_w") or view.deviation("gpu.power_limit_cut_share")
    return clocked_down(view) * (1.0 if lower else 0.5)


def _without_reason(view: View) -> float:
    """A clock that is low although the GPU works and no limit holds it."""
    if view.busy() is False:
        return 0.0  # idle clocks
    reasons = [view.value(f"gpu.{name}") or 0.0 for name in _REASONS]
    cap = view.value("gpu.sw_power_cap_share")
    if max(reasons) >= 0.02 or (cap or 0.0) >= 0.2:
        return 0.0
    clock = view.deviation("gpu.sm_clock_mhz")
    deep = clock is not None and abs(clock.value - (clock.reference or 0.0)) >= CLOCK_CRITICAL_MHZ
    if not deep and view.deviation("gpu.mem_clock_mhz") is None:
        return 0.0
    return 1.0 if view.busy() and cap is not None else 0.75


def _under_load(view: View) -> float:
    busy = view.busy()
    return 0.7 if busy is None else float(busy)


def _xids(view: View, wanted: frozenset[int] | None) -> tuple[float, str] | None:
    if view.subject.gpu is None:
        return None
    found = _numbers(view.subject.gpu)
    found = found - _SPOKEN_FOR if wanted is None else found & wanted
    theirs = [_numbers(peer.gpu) for peer in view.alike() if peer.gpu is not None]
    # An Xid that most GPUs of the job report has a reason outside of this one.
    alone = {n: apart(sum(n in numbers for numbers in theirs), len(theirs)) for n in found}
    names = [f"Xid {number}" for number in sorted(found) if alone[number] > 0]
    if not names:
        return None
    return 0.9 * max(alone.values()), f"the driver reports {', '.join(names[:4])}"


def _numbers(gpu: Sample) -> set[int]:
    return {int(number) for note in gpu.notes for number in _XID.findall(note[:200])}


def _silent(view: View) -> tuple[float, str] | None:
    gpu = view.subject.gpu
    if gpu is None or not gpu.silent:
        return None
    alike = [peer.gpu for peer in view.alike() if peer.gpu is not None]
    silent = sum(bool(peer.silent) for peer in alike)
    alone = apart(silent, len(alike))  # the driver, or our reader, may be silent everywhere
    if not alone:
        return None
    peers = f", {len(alike) - silent} of {len(alike)} peers answer" if alike else ""
    return alone * (1.0 if alike else 0.7), f"its GPU does not answer: {gpu.silent[:200]}{peers}"


GPU_CAUSES = (
    Cause(
        "thermal-throttle",
        "machine",
        0.97,
        (
            "gpu.hw_thermal_share",
            "gpu.sw_thermal_share",
            "gpu.socket_thermal_share",
            "gpu.regulator_thermal_share",
            "gpu.memory_thermal_share",
            "gpu.below_limit_thermal_share",
            "gpu.throttled_thermal_count",
        ),
        "check cooling: fans, airflow, heat sink, inlet temperature; drain the node if it stays",
        supports=("gpu.sm_clock_mhz", "gpu.hw_slowdown_count"),
        context=(
            "gpu.temperature_c",
            "gpu.temperature_margin_c",
            "gpu.memory_temperature_c",
            "gpu.memory_temperature_margin_c",
        ),
        gate=clocked_down,
        clocks=True,
    ),
    Cause(
        "power-cap",
        "machine",
        0.93,
        (
            "gpu.power_limit_w",
            "gpu.power_limit_cut_share",
            "gpu.sw_power_cap_share",
            "gpu.below_limit_power_share",
        ),
        "set the power limit of its peers (nvidia-smi -pl, amd-smi set); look at the BMC's cap",
        supports=("gpu.sm_clock_mhz",),
        context=("gpu.power_w",),
        gate=_capped,
        clocks=True,
        symptom_of=("power-brake",),
    ),
    Cause(
        "power-brake",
        "machine",
        0.96,
        ("gpu.power_brake_share", "gpu.throttled_external_count"),
        "check power supplies, their cables and the chassis' power budget; drain the node",
        supports=("gpu.sm_clock_mhz", "gpu.hw_slowdown_count"),
        context=("gpu.power_w",),
        gate=clocked_down,
        clocks=True,
    ),
    Cause(
        "sync-boost",
        "machine",
        0.8,
        ("gpu.sync_boost_share",),
        "take the GPU out of its sync-boost group, or look at the slowest GPU of that group",
        supports=("gpu.sm_clock_mhz",),
        gate=clocked_down,
        clocks=True,
    ),
    Cause(
        "board-limit",
        "machine",
        0.8,
        ("gpu.board_limit_share", "gpu.reliability_share", "gpu.throttled_current_count"),
        "compare firmware and power cabling with the peers; replace the board if it stays",
        supports=("gpu.sm_clock_mhz",),
        gate=clocked_down,
        clocks=True,
        symptom_of=("power-brake", "thermal-throttle"),
    ),
    Cause(
        "low-clock",
        "machine",
        0.85,
        ("gpu.sm_clock_mhz", "gpu.mem_clock_mhz"),
        "reset locked or application clocks (nvidia-smi -rgc, -rmc, -rac; amd-smi reset --clocks)",
        supports=("gpu.clocks_locked_count", "gpu.sm_clock_max_mhz"),
        gate=_without_reason,
        clocks=True,
        symptom_of=("gpu-starved", "pcie", "memory-damage", "driver-fault"),
    ),
    Cause(
        "memory-damage",
        "machine",
        0.93,
        (
            "gpu.remap_failure_count",
            "gpu.remap_pending_count",
            "gpu.retired_pending_count",
            "gpu.ecc_uncorrected_delta",
            "gpu.ecc_corrected_delta",
        ),
        "drain and reset the GPU so that rows are remapped; replace it if errors go on",
        supports=("gpu.reader_latency_ms",),
        noticed=lambda view: _xids(view, _MEMORY_XIDS),
    ),
    Cause(
        "nvlink",
        "machine",
        0.9,
        (
            "gpu.nvlink_inactive_count",
            "gpu.nvlink_speed_gbps",
            "gpu.nvlink_recovery_failed_delta",
            "gpu.nvlink_recovery_delta",
            "gpu.nvlink_error_delta",
            "gpu.nvlink_replay_delta",
            "gpu.nvlink_crc_delta",
            "gpu.xgmi_inactive_count",
            "gpu.xgmi_speed_gbps",
        ),
        "drain and reset the GPU; if the link fails again, reseat the board or look at the switch",
        noticed=lambda view: _xids(view, _LINK_XIDS),
    ),
    Cause(
        "pcie",
        "machine",
        0.88,
        (
            "gpu.pcie_lanes_missing_count",
            "gpu.pcie_generations_missing_count",
            "gpu.pcie_uncorrected_delta",
            "gpu.pcie_correctable_delta",
            "gpu.pcie_replay_delta",
            "gpu.pcie_recovery_delta",
            "gpu.pcie_nak_delta",
        ),
        "reseat the GPU or its riser; check the slot's link with lspci -vv after a cold start",
        context=("gpu.pcie_width_count", "gpu.pcie_generation_count"),
        gate=_under_load,
    ),
    Cause(
        "fabric",
        "machine",
        0.85,
        ("gpu.fabric_unhealthy_count",),
        "look at the fabric manager's log and the NVLink switches; drain the node",
        symptom_of=("driver-fault",),
    ),
    Cause(
        "driver-fault",
        "machine",
        0.88,
        ("gpu.recovery_action_count",),
        "do what the driver asks for (reset, drain, reboot), keep its log (nvidia-bug-report.sh)",
        supports=("gpu.xid_delta", "gpu.reader_latency_ms"),
        noticed=lambda view: _xids(view, None),
        symptom_of=("memory-damage", "nvlink"),
    ),
    Cause(
        "telemetry-silent",
        "machine",
        0.65,
        ("gpu.reader_latency_ms",),
        "read the node's kernel log; a GPU that blocks its driver is often sick",
        noticed=_silent,
        of_rank=True,  # our own reader may be silent everywhere
        symptom_of=("driver-fault", "memory-damage"),
    ),
    Cause(
        "gpu-starved",
        "unknown",
        0.52,
        (
            "gpu.utilisation_share",
            "gpu.low_utilisation_share",
            "gpu.sm_active_share",
        ),
        "look at what feeds the GPU: data loader, Python, CPU; `stragctl why` compares the stacks",
        supports=("gpu.idle_count",),
        symptom_of=(
            "stopped-process",
            "cpu-quota",
            "cpu-contention",
            "cpu-steal",
            "cpu-frequency",
            "memory-pressure",
            "swap",
            "data-loader-disk",
            "data-loader-cpu",
            "numa-misplacement",
            "tooling-left-on",
            "pcie",
            "nvlink",
            "fabric",
            "driver-fault",
            "memory-damage",
        ),
        of_rank=True,
    ),
)
