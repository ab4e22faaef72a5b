"""What the numbers of a ``gpu_metrics`` blob mean as quantities of a sample.

Throttling is counted by the firmware in its own ticks: a share is the growth of a residency over
the growth of ``accumulation_counter``, both of 32 bits, which wrap. Older tables (1.3) only say
which limits act at the moment of reading.
"""

from __future__ import annotations

from stragd.telemetry.counter import Baselines
from stragd.telemetry.gpu_metrics import Metrics

NS = 1e9
ENERGY_J = 2.0**-16  # a step of the energy counter
KB = 1024.0
MAX_POWER_W = 1e4  # above it the energy counter was reset or is none
SLACK = 1.02  # residencies and ticks are not read in the same instant

RESIDENCIES = {
    "ppt_residency_acc": "sw_power_cap_share",
    "prochot_residency_acc": "power_brake_share",
    "socket_thm_residency_acc": "socket_thermal_share",
    "vr_thm_residency_acc": "regulator_thermal_share",
    "hbm_thm_residency_acc": "memory_thermal_share",
}
THERMAL = ("socket_thermal_share", "regulator_thermal_share", "memory_thermal_share")
PARTITION_RESIDENCIES = {
    "gfx_below_host_limit_ppt_acc": "below_limit_power_share",
    "gfx_below_host_limit_thm_acc": "below_limit_thermal_share",
    "gfx_below_host_limit_total_acc": "below_limit_share",
    "gfx_low_utilization_acc": "low_utilisation_share",
}
EVENTS = {
    "pcie_replay_count_acc": ("pcie_replay_delta", 64),
    "pcie_l0_to_recov_count_acc": ("pcie_recovery_delta", 64),
    "pcie_nak_sent_count_acc": ("pcie_nak_delta", 32),
    "pcie_nak_rcvd_count_acc": ("pcie_nak_delta", 32),
}
STATES = {
    "temperature_hotspot": "temperature_c",
    "temperature_mem": "memory_temperature_c",
    "curr_socket_power": "power_w",
    "average_socket_power": "power_w",
    "current_uclk": "mem_clock_mhz",
    "pcie_link_width": "pcie_width_count",
    "xgmi_link_speed": "xgmi_speed_gbps",
}
# Bits of indep_throttle_status, the same for every model.
THROTTLED = {
    "throttled_power_count": range(0, 8),
    "throttled_current_count": range(16, 24),
    "throttled_thermal_count": range(32, 46),
    "throttled_external_count": range(46, 48),
}


def state_values(metrics: Metrics) -> dict[str, float]:
    """What holds at the moment of reading, for the whole GPU."""
    numbers = metrics.numbers
    values: dict[str, float] = {}
    for name, quantity in STATES.items():
        if name in numbers:
            values[quantity] = float(numbers[name])
    if "temperature_hotspot" not in numbers and "temperature_edge" in numbers:
        values["temperature_c"] = float(numbers["temperature_edge"])
    clocks = [c for c in metrics.arrays.get("current_gfxclk", []) if c is not None]
    if "current_gfxclk" in numbers:
        clocks = [numbers["current_gfxclk"]]
    if clocks:
        values["sm_clock_mhz"] = sum(clocks) / len(clocks)
    activity = numbers.get("average_gfx_activity", 101)
    if activity <= 100:
        values["utilisation_share"] = activity / 100
    if "gfxclk_lock_status" in numbers:
        values["clocks_locked_count"] = float(numbers["gfxclk_lock_status"] != 0)
    if "indep_throttle_status" in numbers:
        status = numbers["indep_throttle_status"]
        for quantity, bits in THROTTLED.items():
            values[quantity] = sum(status >> bit & 1 for bit in bits)
    links = [link for link in metrics.arrays.get("xgmi_link_status", []) if link is not None]
    if links:
        values["xgmi_count"] = len(links)
        values["xgmi_inactive_count"] = links.count(0)
    return values


def partition_values(metrics: Metrics, number: int, counters: AmdCounters) -> dict[str, float]:
    """What is valid on every partition of a GPU."""
    values: dict[str, float] = {}
    if number >= len(metrics.partitions):
        return values
    partition = metrics.partitions[number]
    busy = [b for b in partition.get("gfx_busy_inst", []) if b is not None and b <= 100]
    if busy:
        values["utilisation_share"] = sum(busy) / len(busy) / 100
    for name, quantity in PARTITION_RESIDENCIES.items():
        shares = []
        for place, value in enumerate(partition.get(name, [])):
            if value is not None:
                share = counters.share((number, name, place), value, 64)
                shares += [] if share is None else [share]
        if shares:
            values[quantity] = sum(shares) / len(shares)
    return values


class AmdCounters:
    """Growth of one GPU's counters between two blobs."""

    def __init__(self) -> None:
        self._counters = Baselines()
        self._read_at: int | None = None
        self._firmware: int | None = None
        self._passed: int | None = None  # ns
        self._ticks: int | None = None  # of the firmware

    def begin(self, metrics: Metrics, now_ns: int) -> None:
        """A new blob, read at ``now_ns``. Across a restart of the firmware nothing is compared."""
        firmware = metrics.numbers.get("firmware_timestamp")
        if firmware is not None and self._firmware is not None and firmware < self._firmware:
            self.forget()
        self._firmware = firmware
        self._passed = now_ns - self._read_at if self._read_at is not None else None
        self._read_at = now_ns
        ticks = metrics.numbers.get("accumulation_counter")
        self._ticks = None if ticks is None else self._counters.delta("ticks", ticks, 32)

    def forget(self) -> None:
        """The next blob is the first."""
        self._counters.forget()
        self._read_at = self._firmware = self._passed = self._ticks = None

    def share(self, key: object, value: int, bits: int) -> float | None:
        """Share of the firmware's ticks since the last blob; None where it makes no sense."""
        grown = self._counters.delta(key, value, bits)
        if grown is None or not self._ticks or grown > self._ticks * SLACK:
            return None
        return min(grown / self._ticks, 1.0)

    def add(self, values: dict[str, float], quantity: str, value: int) -> None:
        """Events since the last blob, of a counter that is named as its quantity."""
        grown = self._counters.delta(quantity, value)
        if grown is not None:
            values[quantity] = grown

    def whole(self, metrics: Metrics) -> dict[str, float]:
        """Shares, events and rates of the whole GPU."""
        values: dict[str, float] = {}
        for name, quantity in RESIDENCIES.items():
            if name in metrics.numbers:
                share = self.share(name, metrics.numbers[name], 32)
                if share is not None:
                    values[quantity] = share
        thermal = [values[quantity] for quantity in THERMAL if quantity in values]
        if thermal:
            values["hw_thermal_share"] = max(thermal)
        for name, (quantity, bits) in EVENTS.items():
            if name in metrics.numbers:
                grown = self._counters.delta(name, metrics.numbers[name], bits)
                if grown is not None:
                    values[quantity] = values.get(quantity, 0.0) + grown
        self._rates(metrics, values)
        return values

    def _rates(self, metrics: Metrics, values: dict[str, float]) -> None:
        seconds = (self._passed or 0) / NS
        if "energy_accumulator" in metrics.numbers:
            steps = self._counters.delta("energy", metrics.numbers["energy_accumulator"])
            if steps and seconds > 0 and steps * ENERGY_J / seconds < MAX_POWER_W:
                values["power_w"] = steps * ENERGY_J / seconds
        moved: list[int] = []
        for name in ("xgmi_read_data_acc", "xgmi_write_data_acc"):
            for link, value in enumerate(metrics.arrays.get(name, [])):
                if value is not None:
                    grown = self._counters.delta((name, link), value)
                    moved += [] if grown is None else [grown]
        if moved and seconds > 0:
            values["xgmi_bytes_per_s"] = sum(moved) * KB / seconds
