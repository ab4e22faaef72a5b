"""What a sample may say: the canonical names with their unit and meaning.

Readers give no name that is not here, diagnosis and documentation read this table. The unit is also
the end of the name (``sample.py``). "State" is the value when the window ended, "delta" counts
events within it. What a device or a driver does not give is absent from its samples.
"""

from __future__ import annotations

from typing import NamedTuple


class Quantity(NamedTuple):
    """One name's unit and meaning."""

    unit: str
    meaning: str


SHARE, STATE, DELTA = "share of the window", "state", "events in the window"

GPU: dict[str, Quantity] = {
    # Clocks and what holds them down
    "sm_clock_mhz": Quantity("MHz", "multiprocessor clock when the window ended (AMD: gfxclk)"),
    "sm_clock_max_mhz": Quantity("MHz", "the highest that the model allows"),
    "mem_clock_mhz": Quantity("MHz", "memory clock when the window ended"),
    "mem_clock_max_mhz": Quantity("MHz", "the highest that the model allows"),
    "sw_power_cap_share": Quantity(SHARE, "clocks held down by the power limit"),
    "sync_boost_share": Quantity(SHARE, "clocks held down by another GPU of the sync group"),
    "sw_thermal_share": Quantity(SHARE, "slowed by the driver: GPU or memory too hot"),
    "hw_thermal_share": Quantity(SHARE, "slowed by the hardware's thermal protection"),
    "power_brake_share": Quantity(SHARE, "slowed from outside: power supply, chassis, PROCHOT"),
    "board_limit_share": Quantity(SHARE, "clocks held down by voltage or current limits"),
    "reliability_share": Quantity(SHARE, "clocks held down by the reliability limit"),
    "low_utilisation_share": Quantity(SHARE, "clocks low because there is too little work"),
    "socket_thermal_share": Quantity(SHARE, "AMD: thermal limit of the socket"),
    "regulator_thermal_share": Quantity(SHARE, "AMD: thermal limit of the voltage regulators"),
    "memory_thermal_share": Quantity(SHARE, "AMD: thermal limit of the memory"),
    "below_limit_power_share": Quantity(SHARE, "AMD partition: clock under its limit for power"),
    "below_limit_thermal_share": Quantity(SHARE, "AMD partition: clock under its limit for heat"),
    "below_limit_share": Quantity(SHARE, "AMD partition: clock under its limit, any reason"),
    "hw_slowdown_count": Quantity(STATE, "1: clocks cut by half or more by the hardware now"),
    "clocks_locked_count": Quantity(STATE, "1: somebody has set or locked the clocks"),
    "throttled_power_count": Quantity(STATE, "AMD before MI300: power limits that act now"),
    "throttled_current_count": Quantity(STATE, "AMD before MI300: current limits that act now"),
    "throttled_thermal_count": Quantity(STATE, "AMD before MI300: thermal limits that act now"),
    "throttled_external_count": Quantity(STATE, "AMD before MI300: PROCHOT signals that act now"),
    # Heat and power
    "temperature_c": Quantity("°C", "of the GPU (AMD: hotspot)"),
    "temperature_margin_c": Quantity("°C", "to the slowdown; 0 or less is over it"),
    "memory_temperature_c": Quantity("°C", "of the memory"),
    "memory_temperature_margin_c": Quantity("°C", "to the memory's limit; 0 or less is over it"),
    "power_w": Quantity("W", "mean of the window from the energy counter, else of the last second"),
    "power_limit_w": Quantity("W", "the limit that is enforced, whoever has set it"),
    "power_limit_default_w": Quantity("W", "the limit that the board comes with"),
    # Memory damage
    "ecc_corrected_delta": Quantity(DELTA, "memory errors that were corrected"),
    "ecc_uncorrected_delta": Quantity(DELTA, "memory errors that could not be corrected"),
    "remap_corrected_count": Quantity(STATE, "memory rows replaced for correctable errors"),
    "remap_uncorrected_count": Quantity(STATE, "memory rows replaced for uncorrectable errors"),
    "remap_pending_count": Quantity(STATE, "1: a row waits for a reset to be replaced"),
    "remap_failure_count": Quantity(STATE, "rows, or on AMD pages, that could not be replaced"),
    "retired_pending_count": Quantity(STATE, "memory pages that wait for a reset to be retired"),
    "xid_delta": Quantity(DELTA, "errors that the driver reported; the notes say which"),
    # Links
    "nvlink_count": Quantity(STATE, "NVLinks that the GPU has"),
    "nvlink_inactive_count": Quantity(STATE, "of these, without traffic: inactive or disabled"),
    "nvlink_speed_gbps": Quantity("10^9 bit/s", "of the slowest active NVLink"),
    "nvlink_replay_delta": Quantity(DELTA, "NVLink resends, all links"),
    "nvlink_recovery_delta": Quantity(DELTA, "NVLink recoveries, all links"),
    "nvlink_recovery_failed_delta": Quantity(DELTA, "NVLink recoveries that failed, all links"),
    "nvlink_crc_delta": Quantity(DELTA, "NVLink checksum errors, all links"),
    "nvlink_error_delta": Quantity(DELTA, "NVLink packets lost or broken (Blackwell), all links"),
    "xgmi_count": Quantity(STATE, "AMD: xGMI links that the GPU has"),
    "xgmi_inactive_count": Quantity(STATE, "AMD: of these, down"),
    "xgmi_speed_gbps": Quantity("10^9 bit/s", "AMD: bit rate of an xGMI lane"),
    "xgmi_bytes_per_s": Quantity("byte/s", "AMD: xGMI traffic, both directions, all links"),
    "nvlink_bytes_per_s": Quantity("byte/s", "NVLink traffic, both directions, all links"),
    "pcie_generation_count": Quantity(STATE, "falls when the GPU is idle: judge only under load"),
    "pcie_generation_max_count": Quantity(STATE, "the highest of GPU and slot"),
    "pcie_width_count": Quantity(STATE, "lanes in use"),
    "pcie_width_max_count": Quantity(STATE, "lanes of GPU and slot"),
    "pcie_replay_delta": Quantity(DELTA, "PCIe resends"),
    "pcie_recovery_delta": Quantity(DELTA, "PCIe link recoveries"),
    "pcie_nak_delta": Quantity(DELTA, "PCIe NAKs sent and received"),
    "pcie_correctable_delta": Quantity(DELTA, "PCIe errors that were corrected"),
    "pcie_uncorrected_delta": Quantity(DELTA, "PCIe errors, fatal or not, that were not"),
    "pcie_bytes_per_s": Quantity("byte/s", "PCIe traffic, both directions"),
    # Is it busy
    "utilisation_share": Quantity(SHARE, "time with at least one kernel running"),
    "idle_count": Quantity(STATE, "1: the driver says the GPU is idle now"),
    "sm_active_share": Quantity(SHARE, "multiprocessors that were busy, mean"),
    "tensor_active_share": Quantity(SHARE, "tensor cores that were busy, mean"),
    "memory_active_share": Quantity(SHARE, "memory bandwidth used"),
    # Driver and fabric
    "recovery_action_count": Quantity(STATE, "what the driver asks for; 0: nothing, 1: GPU reset"),
    "fabric_unhealthy_count": Quantity(STATE, "complaints of the NVLink fabric; see the notes"),
    "reader_latency_ms": Quantity("ms", "what reading this GPU took; a sick one answers slowly"),
}
