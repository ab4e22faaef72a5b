"""AMD GPUs from the kernel's own files: ``gpu_metrics``, hwmon, RAS and KFD; needs no library."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

from stragd.discovery.hardware import Amd
from stragd.discovery.process import read_bounded
from stragd.telemetry.amd_values import AmdCounters, partition_values, state_values
from stragd.telemetry.gpu_metrics import MAX_BLOB, BadBlob, Metrics, parse
from stragd.telemetry.reading import Reading, Unavailable

MAX_GPUS = 64
MAX_PROCESSES = 4096
PCIE_GENERATIONS = {25: 1, 50: 2, 80: 3, 160: 4, 320: 5, 640: 6}  # by speed in 0.1 GT/s
CLOCK = re.compile(rb"(\d{1,6})\s*Mhz", re.IGNORECASE)
BAD_PAGE = re.compile(rb"^0x[0-9a-f]+ : 0x[0-9a-f]+ : ([RPF])\s*$", re.MULTILINE)


class AmdReader:
    """All AMD GPUs of this node."""

    name = "amdgpu"

    def __init__(self, sys: str = "/sys") -> None:
        self._sys = sys
        self.devices: Sequence[AmdGpu] = ()

    def open(self) -> None:
        """Find the GPUs in KFD's topology; Unavailable where there is none."""
        amd = Amd(self._sys)
        parts: dict[str, list[Part]] = {}
        for gpu, properties in amd.nodes():
            model = "AMD " + amd.device(properties).class_name.partition("/")[2]
            address, partition = self._place(properties)
            parts.setdefault(address, []).append(Part(partition, gpu, model))
        if not parts:
            raise Unavailable("no AMD telemetry: KFD lists no GPU; is the amdgpu driver loaded?")
        self.devices = [
            AmdGpu(self._sys, address, sorted(of_one, key=lambda part: part.number))
            for address, of_one in sorted(parts.items())[:MAX_GPUS]
        ]

    def events(self) -> None:
        """None: the kernel log has them, not sysfs."""
        return None

    def _place(self, properties: dict[str, str]) -> tuple[str, int]:
        """PCI address and partition. Kernels put the partition's number into the upper four bits
        of ``location_id``, some into the function, where no such PCI function exists.
        """
        location = int(properties.get("location_id", "0"))
        domain = int(properties.get("domain", "0"))
        slot = f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"
        function = location & 7
        if function and not Path(self._sys, "bus/pci/devices", f"{slot}.{function}").exists():
            return f"{slot}.0", function
        return f"{slot}.{function}", location >> 28 & 0xF


class Part:
    """A GPU, or one partition of it: its number, KFD's id and the model."""

    def __init__(self, number: int, gpu: int, model: str) -> None:
        self.number, self.gpu, self.model = number, gpu, model


class AmdGpu:
    """One PCI device; in DPX, QPX and CPX mode several GPUs for a job."""

    def __init__(self, sys: str, address: str, parts: list[Part]) -> None:
        self._folder = Path(sys, "bus/pci/devices", address)
        self._kfd = Path(sys, "class/kfd/kfd/proc")
        self._address, self._parts = address, parts
        self._counters = AmdCounters()
        self._hwmon = next(iter(sorted(self._folder.glob("hwmon/hwmon*"))), self._folder)
        self._fixed = self._read_fixed()
        self._limits = self._read_limits()

    @property
    def subjects(self) -> list[tuple[str, str]]:
        """Subject and model of the GPU, or of its partitions."""
        if len(self._parts) == 1:
            return [(self._address, self._parts[0].model)]
        return [(f"{self._address}/partition-{part.number}", part.model) for part in self._parts]

    def read(self) -> list[Reading]:
        """One reading of each partition; what belongs to the whole is only with the first."""
        began = time.monotonic()
        blob = read_bounded(self._folder / "gpu_metrics", MAX_BLOB)
        try:
            if blob is None:
                raise BadBlob("gpu_metrics cannot be read")
            metrics = parse(blob)
        except BadBlob as reason:
            self._counters.forget()
            return [Reading(s, model, silent=f"amdgpu: {reason}") for s, model in self.subjects]
        self._counters.begin(metrics, time.monotonic_ns())
        readings = []
        for part, (subject, model) in zip(self._parts, self.subjects, strict=True):
            values = partition_values(metrics, part.number, self._counters)
            if part.number == 0:  # clocks, heat, power and links are valid there alone
                values = self._whole(metrics) | values
            readings.append(Reading(subject, model, values))
        latency = (time.monotonic() - began) * 1e3
        for reading in readings:
            reading.values["reader_latency_ms"] = latency
        return readings

    def processes(self) -> dict[str, list[int]]:
        """Processes that have memory on the GPU, by subject."""
        found: dict[str, list[int]] = {}
        try:
            pids = [name for name in os.listdir(self._kfd) if name.isdigit()][:MAX_PROCESSES]
        except OSError:
            return found
        for part, (subject, _) in zip(self._parts, self.subjects, strict=True):
            for pid in pids:
                if _number(self._kfd / pid / f"vram_{part.gpu}"):
                    found.setdefault(subject, []).append(int(pid))
        return found

    def _whole(self, metrics: Metrics) -> dict[str, float]:
        """What is valid for the whole GPU."""
        values = self._fixed | state_values(metrics) | self._counters.whole(metrics)
        generation = PCIE_GENERATIONS.get(metrics.numbers.get("pcie_link_speed", 0))
        if generation is not None:
            values["pcie_generation_count"] = generation
        for quantity, limit in self._limits.items():
            temperature = values.get(quantity.replace("_margin", ""))
            if temperature is not None:
                values[quantity] = limit - temperature
        if (cap := _number(self._hwmon / "power1_cap")) is not None:
            values["power_limit_w"] = cap * 1e-6
        self._memory(values)
        return values

    def _memory(self, values: dict[str, float]) -> None:
        """Errors of the memory controllers, and pages that are bad."""
        errors = read_bounded(self._folder / "ras/umc_err_count", 4096)
        counts = dict(re.findall(rb"^(ue|ce): (\d{1,18})\s*$", errors or b"", re.MULTILINE))
        for name, quantity in ((b"ce", "ecc_corrected_delta"), (b"ue", "ecc_uncorrected_delta")):
            if name in counts:
                self._counters.add(values, quantity, int(counts[name]))
        pages = read_bounded(self._folder / "ras/gpu_vram_bad_pages", 1 << 18)
        if pages is not None:
            states = BAD_PAGE.findall(pages)
            values["retired_pending_count"] = states.count(b"P")
            values["remap_failure_count"] = states.count(b"F")

    def _read_fixed(self) -> dict[str, float]:
        """What does not change, and limits to compare with."""
        fixed: dict[str, float] = {}
        for quantity, name in (("sm_clock_max_mhz", "sclk"), ("mem_clock_max_mhz", "mclk")):
            levels = read_bounded(self._folder / f"pp_dpm_{name}", 4096) or b""
            clocks = [int(clock) for clock in CLOCK.findall(levels)]
            if clocks:
                fixed[quantity] = max(clocks)
        if width := _number(self._folder / "max_link_width"):
            fixed["pcie_width_max_count"] = width
        speed = re.match(rb"(\d{1,3})\.(\d) GT/s", _read(self._folder / "max_link_speed"))
        if speed and (generation := PCIE_GENERATIONS.get(int(speed[1] + speed[2]))):
            fixed["pcie_generation_max_count"] = generation
        if (default := _number(self._hwmon / "power1_cap_default")) is not None:
            fixed["power_limit_default_w"] = default * 1e-6
        return fixed

    def _read_limits(self) -> dict[str, float]:
        """Critical temperatures in °C, by the margin that is counted from them."""
        limits: dict[str, float] = {}
        wanted = {
            b"junction": "temperature_margin_c",
            b"mem": "memory_temperature_margin_c",
        }
        for sensor in range(1, 9):
            quantity = wanted.get(_read(self._hwmon / f"temp{sensor}_label"))
            critical = _number(self._hwmon / f"temp{sensor}_crit")
            if quantity and critical:
                limits[quantity] = critical * 1e-3
        return limits


def _read(path: Path) -> bytes:
    return (read_bounded(path, 256) or b"").strip()


def _number(path: Path) -> int | None:
    raw = _read(path)
    return int(raw) if raw.isdigit() and len(raw) < 20 else None
