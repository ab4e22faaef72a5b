"""Xid errors and the like, which the NVIDIA driver reports when they happen.

The driver queues them per event set, so they are collected once per window.
"""

from __future__ import annotations

import ctypes
from typing import Any

from stragd.telemetry.reading import Reading

XID = 0x8
ALL_INSTANCES = 0xFFFFFFFF
MAX_EVENTS = 256  # per window; a storm goes on in the next


def address(handle: Any) -> int:
    """The number behind a device handle, by which two handles are compared."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def add_xids(reading: Reading, xids: dict[str, list[int]] | None) -> None:
    """Count the subject's Xid errors and note their numbers; None: the driver has no events."""
    if xids is None:
        return
    own = xids.get(reading.subject, [])
    reading.notes.extend(f"Xid {xid}" for xid in sorted(set(own)))
    if not reading.silent:
        reading.values["xid_delta"] = len(own)


class XidEvents:
    """The event set of all GPUs."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        """NVMLError where the driver has no events at all; a GPU without them is left out."""
        self._nvml = nvml
        self._set = nvml.nvmlEventSetCreate()
        for handle in handles:
            try:
                if nvml.nvmlDeviceGetSupportedEventTypes(handle) & XID:
                    nvml.nvmlDeviceRegisterEvents(handle, XID, self._set)
            except nvml.NVMLError:
                continue

    def take(self) -> list[tuple[int, int | None, int]]:
        """(address of the device's handle, GPU instance or None for the whole, Xid), in order."""
        found: list[tuple[int, int | None, int]] = []
        for _ in range(MAX_EVENTS):
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except self._nvml.NVMLError:
                break  # nothing more, or a GPU is lost: its own reading says so
            if event.eventType & XID:
                instance = None if event.gpuInstanceId == ALL_INSTANCES else event.gpuInstanceId
                found.append((address(event.device), instance, int(event.eventData)))
        return found
