"""NVIDIA GPUs of this node, through NVML."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stragd.discovery.process import printable
from stragd.telemetry.events import XidEvents, address
from stragd.telemetry.nvml_calls import GpuLost
from stragd.telemetry.nvml_gpu import NvmlGpu
from stragd.telemetry.reading import Reading, Unavailable

MAX_GPUS = 64


class NvmlReader:
    """All NVIDIA GPUs of this node."""

    name = "NVML"

    def __init__(self, proc: str = "/proc", with_gpm: bool = True) -> None:
        self._proc, self._with_gpm = proc, with_gpm
        self.devices: Sequence[NvmlGpu | UnlistedGpu] = ()
        self._events: XidEvents | None = None

    def open(self) -> None:
        """Load the library and find the GPUs; Unavailable with the reason."""
        try:
            import pynvml
        except ImportError:
            raise Unavailable(
                "no NVIDIA telemetry: nvidia-ml-py is missing; install stragd[nvidia]"
            ) from None
        try:
            pynvml.nvmlInit()
            count = min(pynvml.nvmlDeviceGetCount(), MAX_GPUS)
        except pynvml.NVMLError as error:
            raise Unavailable(f"no NVIDIA telemetry: NVML: {printable(str(error), 120)}") from None
        gpus = []
        for index in range(count):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                gpus.append(NvmlGpu(pynvml, handle, self._with_gpm))
            except (pynvml.NVMLError, GpuLost):
                continue  # the kernel driver's own list, below, still has it
        try:
            self._events = XidEvents(pynvml, [gpu.handle for gpu in gpus])
        except (pynvml.NVMLError, AttributeError):
            self._events = None
        listed = {gpu.address for gpu in gpus}
        unlisted = [UnlistedGpu(name) for name in self._known() if name not in listed]
        self.devices = [*gpus, *unlisted]

    def events(self) -> dict[str, list[int]] | None:
        """Xid numbers since the last call, by subject; None where the driver gives no events."""
        if self._events is None:
            return None
        found: dict[str, list[int]] = {}
        if not (taken := self._events.take()):
            return found
        by_handle = {address(g.handle): g for g in self.devices if isinstance(g, NvmlGpu)}
        for handle, instance, xid in taken:
            if gpu := by_handle.get(handle):
                for subject in gpu.subjects_of(instance):
                    found.setdefault(subject, []).append(xid)
        return found

    def _known(self) -> list[str]:
        """PCI addresses of the GPUs that the kernel driver holds."""
        try:
            names = os.listdir(f"{self._proc}/driver/nvidia/gpus")
        except OSError:
            return []
        return sorted(name.lower() for name in names)[:MAX_GPUS]


class UnlistedGpu:
    """A GPU that the kernel driver has and NVML does not give: off the bus, or broken."""

    def __init__(self, address: str) -> None:
        self.subjects = [(address, "NVIDIA")]

    def read(self) -> list[Reading]:
        """Silent."""
        subject, model = self.subjects[0]
        return [Reading(subject, model, silent="the driver has this GPU and NVML does not list it")]

    def processes(self) -> dict[str, list[int]]:
        """None."""
        return {}
