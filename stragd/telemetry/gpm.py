"""How busy the parts of a GPU were: NVIDIA's GPM, Hopper and newer.

A metric is the mean between two samples, so each window costs one sample and reuses the last.
"""

from __future__ import annotations

import ctypes
import math
import struct
from typing import Any

# nvmlGpmMetric_t: number, return code, value, three names. Attribute by attribute is slow.
METRIC = struct.Struct("=4xId24x")
MIB = float(1 << 20)
PERCENT = 0.01
# nvmlGpmMetricId_t, quantity, factor. Metrics of one quantity add up.
METRICS: tuple[tuple[int, str, float], ...] = (
    (1, "utilisation_share", PERCENT),
    (2, "sm_active_share", PERCENT),
    (5, "tensor_active_share", PERCENT),
    (10, "memory_active_share", PERCENT),
    (20, "pcie_bytes_per_s", MIB),
    (21, "pcie_bytes_per_s", MIB),
    (60, "nvlink_bytes_per_s", MIB),
    (61, "nvlink_bytes_per_s", MIB),
)


def supported(nvml: Any, handle: Any) -> bool:
    """Whether the GPU and the driver have GPM."""
    try:
        return bool(nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (nvml.NVMLError, AttributeError):
        return False


class Gpm:
    """Two samples of one GPU, or of one instance of a divided one, used in turn."""

    def __init__(self, nvml: Any, handle: Any, instance: int | None = None) -> None:
        """NVMLError where no sample can be allocated."""
        self._nvml, self._handle, self._instance = nvml, handle, instance
        self._last, self._next = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._primed = False
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(METRICS)
        for place, (number, _, _) in enumerate(METRICS):
            self._request.metrics[place].metricId = number
        offset = type(self._request).metrics.offset
        self._metrics = (ctypes.c_char * (METRIC.size * len(METRICS))).from_buffer(
            self._request, offset
        )

    def read(self) -> dict[str, float]:
        """Means since the last call, empty at the first; NVMLError where the driver refuses."""
        nvml = self._nvml
        if self._instance is None:
            nvml.nvmlGpmSampleGet(self._handle, self._next)
        else:
            nvml.nvmlGpmMigSampleGet(self._handle, self._instance, self._next)
        primed, self._primed = self._primed, True
        self._last, self._next = self._next, self._last
        return self._between() if primed else {}

    def _between(self) -> dict[str, float]:
        request = self._request
        request.sample1, request.sample2 = self._next, self._last
        self._nvml.nvmlGpmMetricsGet(request)
        values: dict[str, float] = {}
        rows = METRIC.iter_unpack(self._metrics)
        for (_, quantity, factor), (code, mean) in zip(METRICS, rows, strict=True):
            if code == 0 and 0 <= mean < math.inf:
                value = min(mean * factor, 1.0) if factor == PERCENT else mean * factor
                values[quantity] = values.get(quantity, 0.0) + value
        return values
