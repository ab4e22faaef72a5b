"""Profilers, debuggers and injected libraries that a process was started with, by its environment.

The names are those that DCGM's own software check and gpud warn about, CUDA's and ROCm's documented
switches that make launches synchronous, and the profilers' injection variables. Values are the
job's business and are not reported.
"""

from __future__ import annotations

from collections.abc import Mapping

LOADED = (
    "CUDA_INJECTION32_PATH",
    "CUDA_INJECTION64_PATH",
    "NVTX_INJECTION64_PATH",
    "HSA_TOOLS_LIB",
    "ROCP_TOOL_LIB",
    "ROCP_TOOL_LIBRARIES",
)
"""In effect by any value."""

SWITCHED = (
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_PROFILE",
    "COMPUTE_PROFILE",
    "OPENCL_PROFILE",
    "NSIGHT_CUDA_DEBUGGER",
    "CUDA_DEVICE_WAITS_ON_EXCEPTION",
    "CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
    "CUDA_DEBUGGER_SOFTWARE_PREEMPTION",
    "HIP_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "AMD_SERIALIZE_COPY",
)
"""In effect unless 0 or empty."""

NAMES = frozenset(LOADED + SWITCHED)


def notes(environment: Mapping[str, str]) -> tuple[str, ...]:
    """ "NAME is set" for each that is in effect, in the order of the lists."""
    on = [name for name in LOADED if environment.get(name)]
    on += [name for name in SWITCHED if environment.get(name, "").strip() not in ("", "0")]
    return tuple(f"{name} is set" for name in on)
