"""One NVIDIA GPU: a batch of field values and a few calls per window.

Any call may hang (``crew.py`` sees to that) and any number may be refused. The accumulators of the
driver become differences here, over the time that passed between two batches.
"""

from __future__ import annotations

import ctypes
import math
import time
from typing import Any

from stragd.discovery.process import printable
from stragd.telemetry import gpm
from stragd.telemetry import nvml_fields as fields
from stragd.telemetry.counter import Baselines
from stragd.telemetry.field_batch import FieldBatch, Key, Row
from stragd.telemetry.nvml_calls import Calls, GpuLost, text
from stragd.telemetry.nvml_fields import Field
from stragd.telemetry.reading import NO_PROCESS_LIST, Reading

MAX_SLICES = 16
MAX_PROCESSES = 2048
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
SM, MEMORY = 1, 2  # nvmlClockType_t
GPU_SENSOR = 0
SLOWDOWN, MEMORY_MAX = 1, 2  # nvmlTemperatureThresholds_t
MIG_ENABLED = 1
FABRIC_COMPLETED = 3
NS = 1e9
SW_THERMAL, THERMAL_POLICY = (fields.SW_THERMAL, 0), (fields.THERMAL_POLICY, 0)
NO_TRAFFIC = (0, 3)  # states of an NVLink
STEADY: tuple[fields.Kind, ...] = ("delta", "link state", "link speed")

# Quantity, function, arguments.
FIXED_CALLS: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    ("sm_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (SM,)),
    ("mem_clock_max_mhz", "nvmlDeviceGetMaxClockInfo", (MEMORY,)),
    ("pcie_generation_max_count", "nvmlDeviceGetMaxPcieLinkGeneration", ()),
    ("pcie_width_max_count", "nvmlDeviceGetMaxPcieLinkWidth", ()),
)
# The same and a scale. The first that is there counts; a field value comes before all of them.
CALLS: tuple[tuple[str, str, tuple[int, ...], float], ...] = (
    ("sm_clock_mhz", "nvmlDeviceGetClockInfo", (SM,), 1.0),
    ("mem_clock_mhz", "nvmlDeviceGetClockInfo", (MEMORY,), 1.0),
    ("temperature_c", "nvmlDeviceGetTemperatureV", (GPU_SENSOR,), 1.0),
    ("temperature_c", "nvmlDeviceGetTemperature", (GPU_SENSOR,), 1.0),
    ("pcie_generation_count", "nvmlDeviceGetCurrPcieLinkGeneration", (), 1.0),
    ("pcie_width_count", "nvmlDeviceGetCurrPcieLinkWidth", (), 1.0),
    ("power_w", "nvmlDeviceGetPowerUsage", (), 1e-3),
    ("power_limit_w", "nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
)


class Slice:
    """A MIG device: an instance of a divided GPU."""

    def __init__(self, nvml: Any, gpu: NvmlGpu, handle: Any) -> None:
        self.instance = int(nvml.nvmlDeviceGetGpuInstanceId(handle))
        uuid = printable(text(nvml.nvmlDeviceGetUUID(handle)), 96).removeprefix("MIG-")
        self.subject = f"{gpu.address}/mig-{uuid}"
        self.model = printable(text(nvml.nvmlDeviceGetName(handle)), 96)
        self.gpm = gpm.Gpm(nvml, gpu.handle, self.instance) if gpu.has_gpm else None


class NvmlGpu:
    """One GPU, or the instances of a divided one, which share its clocks, heat and links."""

    def __init__(self, nvml: Any, handle: Any, with_gpm: bool = True) -> None:
        """NVMLError or GpuLost where it does not even say which GPU it is."""
        self.handle = handle
        self._calls = Calls(nvml, handle)
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        self.address = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
        self.model = printable(text(nvml.nvmlDeviceGetName(handle)), 96)
        self._counters = Baselines()
        self._read_at: int | None = None
        self.has_gpm = with_gpm and gpm.supported(nvml, handle)
        self._slices = self._find_slices()
        self._gpm: gpm.Gpm | None = None
        if self.has_gpm and not self._slices:
            self._gpm = self._calls.ask("GPM", lambda: gpm.Gpm(nvml, handle))
        self._fabric_info: Any = None
        self._fixed: dict[str, float] = {}
        self._slowdown_margin: float | None = None
        self._read_fixed()
        self._batch = FieldBatch(self._calls, self._all_fields(), STEADY)
        self._quiet: dict[str, float] = {}  # what the steady fields say when nothing has changed

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """Subject and model of the GPU, or of its instances."""
        if self._slices:
            return [(part.subject, part.model) for part in self._slices]
        return [(self.address, self.model)]

    def subjects_of(self, instance: int | None) -> list[str]:
        """Subjects that something about a GPU instance is about; None: about the whole GPU."""
        if self._slices and instance is not None:
            return [part.subject for part in self._slices if part.instance == instance]
        return [subject for subject, _ in self.subjects]

    def read(self) -> list[Reading]:
        """One reading of the GPU, or one of each instance."""
        began = time.monotonic()
        board = Reading(self.address, self.model)
        try:
            self._read_batch(board.values)
            if self._gpm is not None:
                board.values.update(self._calls.ask("GPM", self._gpm.read) or {})
            self._read_calls(board.values, board.notes)
            if self._slices and self._calls.refused(PROCESSES):
                board.notes.append(NO_PROCESS_LIST)
            readings = [self._of_slice(part, board) for part in self._slices] or [board]
        except GpuLost as lost:
            readings = [Reading(s, model, silent=str(lost)) for s, model in self.subjects]
            self._read_at = None
            self._counters.forget()
            self._batch.forget()
        latency = (time.monotonic() - began) * 1e3
        for reading in readings:
            if not reading.silent:
                reading.values["reader_latency_ms"] = latency
        return readings

    def processes(self) -> dict[str, list[int]]:
        """Compute processes that NVML lists, by subject."""
        found: dict[str, list[int]] = {}
        listed = self._calls.get(PROCESSES) or []
        for process in listed[:MAX_PROCESSES]:
            for subject in self.subjects_of(getattr(process, "gpuInstanceId", None)):
                found.setdefault(subject, []).append(int(process.pid))
        return found

    def _find_slices(self) -> list[Slice]:
        nvml, slices = self._calls.nvml, []
        mode = self._calls.get("nvmlDeviceGetMigMode")
        if mode is None or mode[0] != MIG_ENABLED:
            return []
        count = self._calls.get("nvmlDeviceGetMaxMigDeviceCount") or 0
        for index in range(min(count, MAX_SLICES)):
            try:
                part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(self.handle, index)
                slices.append(Slice(nvml, self, part))
            except nvml.NVMLError:
                continue
        return slices

    def _of_slice(self, part: Slice, board: Reading) -> Reading:
        reading = Reading(part.subject, part.model, dict(board.values), list(board.notes))
        if part.gpm is not None:
            busy = self._calls.ask(f"GPM {part.instance}", part.gpm.read)
            reading.values.update(busy or {})
        return reading

    def _read_fixed(self) -> None:
        """What does not change, and the limits to compare with."""
        for quantity, function, arguments in FIXED_CALLS:
            if value := self._calls.get(function, *arguments):
                self._fixed[quantity] = value
        _, given = FieldBatch(self._calls, {(f.number, 0): f for f in fields.FIXED}).read()
        values = {f.quantity: v * f.scale for _, f, v in given if not math.isnan(v)}
        # Models with T.Limit give margins (-2 on H100), older ones absolute temperatures.
        self._slowdown_margin = values.pop(fields.SLOWDOWN_MARGIN.quantity, None)
        self._fixed.update(values)
        limit_of = "nvmlDeviceGetTemperatureThreshold"
        self._slowdown_limit = self._calls.get(limit_of, SLOWDOWN)
        self._memory_limit = self._calls.get(limit_of, MEMORY_MAX)
        self._persistent = self._calls.get("nvmlDeviceGetPersistenceMode")

    def _all_fields(self) -> dict[Key, Field]:
        wanted: dict[Key, Field] = {(field.number, 0): field for field in fields.DEVICE}
        per_link = fields.LINK_STATES + fields.LINK_ERRORS
        if not self.has_gpm:
            per_link += fields.LINK_TRAFFIC
        for link in range(min(int(self._fixed.get("nvlink_count", 0)), fields.MAX_LINKS)):
            wanted.update({(field.number, link): field for field in per_link})
        return wanted

    def _read_batch(self, values: dict[str, float]) -> None:
        steady, others = self._batch.read()
        now = time.monotonic_ns()
        passed = now - self._read_at if self._read_at is not None else 0
        self._read_at = now
        if steady is None:
            values.update(self._quiet)
        else:
            self._quiet = self._changed(steady, passed, values)
        for key, (_, name, kind, scale), value in others:
            if math.isnan(value):
                continue
            if kind == "state":
                values.setdefault(name, value * scale)
            elif (grown := self._counters.delta(key, int(value))) is None or passed <= 0:
                continue
            elif kind == "rate":
                values[name] = values.get(name, 0.0) + grown * scale * NS / passed
            elif grown < 2 * passed:  # more is no time of this window
                values[name] = min(grown / passed, 1.0)
        values.update(self._fixed)
        if SW_THERMAL in self._batch.wanted and THERMAL_POLICY in self._batch.wanted:
            self._batch.drop({THERMAL_POLICY})

    def _changed(self, rows: list[Row], passed: int, values: dict[str, float]) -> dict[str, float]:
        """Enter the steady fields; what they will say while they stay as they are."""
        quiet: dict[str, float] = {}
        states: dict[int, float] = {}
        speeds: dict[int, float] = {}
        for key, (_, name, kind, scale), value in rows:
            if math.isnan(value):
                continue
            if kind == "link state":
                states[key[1]] = value
            elif kind == "link speed":
                speeds[key[1]] = value * scale
            else:
                quiet[name] = 0.0
                grown = self._counters.delta(key, int(value))
                if grown is not None and passed > 0:
                    values[name] = values.get(name, 0.0) + grown
        links: dict[str, float] = {}
        if states:
            links["nvlink_inactive_count"] = sum(s in NO_TRAFFIC for s in states.values())
        working = [s for link, s in speeds.items() if s > 0 and states.get(link) not in NO_TRAFFIC]
        if working:
            links["nvlink_speed_gbps"] = min(working)
        values.update(links)
        return quiet | links

    def _read_calls(self, values: dict[str, float], notes: list[str]) -> None:
        """What no field value gives."""
        for quantity, function, arguments, scale in CALLS:
            if quantity not in values:
                value = self._calls.get(function, *arguments)
                if value is not None:
                    values[quantity] = value * scale
        if "utilisation_share" not in values:  # no GPM, or its first sample
            used = self._calls.get("nvmlDeviceGetUtilizationRates")
            if used is not None:
                values["utilisation_share"] = used.gpu * 0.01
        reasons = self._calls.get("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # the name before 535
            reasons = self._calls.get("nvmlDeviceGetCurrentClocksThrottleReasons")
        if reasons is not None:
            for quantity, bit in fields.REASONS.items():
                values[quantity] = float(bool(reasons & bit))
        self._margins(values)
        self._fabric(values, notes)
        if action := int(values.get("recovery_action_count", 0)):
            wanted = fields.RECOVERY_ACTIONS.get(action, f"action {action}")
            notes.append(f"the driver asks for: {wanted}")
        if self._persistent == 0:
            notes.append("persistence mode is off")

    def _margins(self, values: dict[str, float]) -> None:
        margin = None
        if self._slowdown_margin is not None:
            margin = self._calls.get("nvmlDeviceGetMarginTemperature")
        if margin is not None and self._slowdown_margin is not None:
            values["temperature_margin_c"] = margin - self._slowdown_margin
        elif self._slowdown_limit and "temperature_c" in values:
            values["temperature_margin_c"] = self._slowdown_limit - values["temperature_c"]
        if self._memory_limit and "memory_temperature_c" in values:
            left = self._memory_limit - values["memory_temperature_c"]
            values["memory_temperature_margin_c"] = left

    def _fabric(self, values: dict[str, float], notes: list[str]) -> None:
        info = self._calls.ask("fabric", self._ask_fabric)
        if info is None or info.state != FABRIC_COMPLETED:
            return
        wrong = [f"status {info.status}"] if info.status else []
        for shift, mask, complaints, words in fields.FABRIC_HEALTH:
            if (info.healthMask >> shift) & mask in complaints:
                wrong.append(words)
        values["fabric_unhealthy_count"] = len(wrong)
        notes.extend(f"NVLink fabric: {words}" for words in wrong)

    def _ask_fabric(self) -> Any:
        nvml = self._calls.nvml
        if self._fabric_info is None:  # made once: filling it in takes longer than the call
            self._fabric_info = nvml.c_nvmlGpuFabricInfoV_t()
        nvml.nvmlDeviceGetGpuFabricInfoV(self.handle, ctypes.byref(self._fabric_info))
        return self._fabric_info
