"""A sample: what one reader says about one subject over one window, numbers with units.

Names end in their unit: ``_share`` (0 to 1, of the window), ``_mhz``, ``_c`` (degrees Celsius),
``_w``, ``_per_s``, ``_ppm`` (events per million packets), ``_bytes_per_s``, ``_gbps`` (10^9 bits),
``_count`` (a state, not a difference), ``_delta`` (events within the window). What could not be
read is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SubjectKind = Literal["gpu", "nic", "process", "node"]


@dataclass(frozen=True, slots=True)
class Sample:
    """One subject, one window."""

    kind: SubjectKind
    subject: str
    """PCI address of a GPU ("0000:1b:00.0", and "/mig-UUID" where it is divided), device and port
    of a NIC ("mlx5_0/1", "eth0"), pid of a process, "" of the node."""
    model: str
    """Only samples of one model are compared: "NVIDIA H200", "MT4129 InfiniBand"."""
    start_ns: int
    """CLOCK_MONOTONIC at the begin of the window."""
    end_ns: int
    values: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What is no number: "CUDA_INJECTION64_PATH is set", "port_xmit_wait is saturated"."""
    silent: str = ""
    """Why nothing could be read; then ``values`` is empty, and that is evidence too."""


@dataclass(frozen=True, slots=True)
class RankTelemetry:
    """Everything that is known of one rank in one window."""

    rank: int
    host: str
    process: Sample | None = None
    gpu: Sample | None = None
    nics: tuple[Sample, ...] = ()
    """The NICs that the rank's traffic takes; empty where the affinity is not known."""
    node: Sample | None = None
