"""Which NVML field values are read, and what becomes of each. Numbers and units as in nvml.h.

One batch per GPU and window; a field that a GPU refuses leaves its batch for good.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["share", "delta", "rate", "state", "link state", "link speed"]


class Field(NamedTuple):
    """A field value and the quantity it gives.

    "share": ns that grow, over the time passed; "delta": events that grow; "rate": an amount that
    grows, times ``scale``, per second; "state": the value times ``scale``; the last two make up a
    picture of all links. Fields of one quantity add up, except states: the first that is there
    counts.
    """

    number: int
    quantity: str
    kind: Kind
    scale: float = 1.0


DEVICE: tuple[Field, ...] = (
    Field(74, "sw_power_cap_share", "share"),
    Field(76, "sync_boost_share", "share"),
    Field(77, "board_limit_share", "share"),
    Field(78, "low_utilisation_share", "share"),
    Field(79, "reliability_share", "share"),
    Field(75, "sw_thermal_share", "share"),
    Field(269, "sw_thermal_share", "share"),
    Field(270, "hw_thermal_share", "share"),
    Field(271, "power_brake_share", "share"),
    Field(82, "memory_temperature_c", "state"),
    Field(83, "power_w", "rate", 1e-3),  # energy in mJ: the window's mean
    Field(185, "power_w", "state", 1e-3),
    Field(186, "power_w", "state", 1e-3),
    Field(190, "power_limit_w", "state", 1e-3),
    Field(3, "ecc_corrected_delta", "delta"),
    Field(4, "ecc_uncorrected_delta", "delta"),
    Field(31, "retired_pending_count", "state"),
    Field(142, "remap_corrected_count", "state"),
    Field(143, "remap_uncorrected_count", "state"),
    Field(144, "remap_pending_count", "state"),
    Field(145, "remap_failure_count", "state"),
    Field(94, "pcie_replay_delta", "delta"),
    Field(169, "pcie_recovery_delta", "delta"),
    Field(173, "pcie_correctable_delta", "delta"),
    Field(174, "pcie_nak_delta", "delta"),
    Field(177, "pcie_nak_delta", "delta"),
    Field(179, "pcie_uncorrected_delta", "delta"),
    Field(180, "pcie_uncorrected_delta", "delta"),
    Field(197, "pcie_bytes_per_s", "rate"),
    Field(198, "pcie_bytes_per_s", "rate"),
    Field(230, "recovery_action_count", "state"),
)
THERMAL_POLICY, SW_THERMAL = 75, 269
"""The first stands in for the second in drivers that do not tell software and hardware apart."""

LINK_STATES: tuple[Field, ...] = (
    Field(165, "nvlink_inactive_count", "link state"),  # 0 inactive, 3 active without traffic
    Field(164, "nvlink_speed_gbps", "link speed", 8e-3),  # MB/s
)
LINK_ERRORS: tuple[Field, ...] = (
    # Up to Hopper
    Field(161, "nvlink_replay_delta", "delta"),
    Field(162, "nvlink_recovery_delta", "delta"),
    Field(163, "nvlink_crc_delta", "delta"),
    # Blackwell and newer
    Field(208, "nvlink_error_delta", "delta"),
    Field(211, "nvlink_error_delta", "delta"),
    Field(212, "nvlink_error_delta", "delta"),
    Field(214, "nvlink_recovery_failed_delta", "delta"),
    Field(215, "nvlink_recovery_delta", "delta"),
    Field(219, "nvlink_crc_delta", "delta"),
    Field(295, "nvlink_replay_delta", "delta"),
)
LINK_TRAFFIC: tuple[Field, ...] = (  # for GPUs without GPM
    Field(138, "nvlink_bytes_per_s", "rate", 1024.0),
    Field(139, "nvlink_bytes_per_s", "rate", 1024.0),
)
MAX_LINKS = 36

# Read once, when the GPU is opened.
LINK_COUNT = Field(91, "nvlink_count", "state")
POWER_LIMIT_DEFAULT = Field(189, "power_limit_default_w", "state", 1e-3)
SLOWDOWN_MARGIN = Field(194, "temperature_margin_c", "state")
FIXED = (LINK_COUNT, POWER_LIMIT_DEFAULT, SLOWDOWN_MARGIN)

# nvmlReturn_t
REFUSED = frozenset({2, 3, 4, 13, 22, 25, 26})
"""Invalid argument, not supported, no permission, function not found, vGPU, version, deprecated."""
LOST = {
    1: "NVML was shut down",
    15: "the GPU has fallen off the bus",
    16: "the GPU needs a reset",
    28: "the GPU is gone",
}

# Bits of the clock event reasons
REASONS = {"idle_count": 0x1, "clocks_locked_count": 0x2, "hw_slowdown_count": 0x8}

# Health of the NVLink fabric: shift, mask, values that are a complaint, words.
FABRIC_HEALTH: tuple[tuple[int, int, range, str], ...] = (
    (0, 0x3, range(1, 2), "degraded bandwidth"),
    (2, 0x3, range(1, 2), "route recovery"),
    (4, 0x3, range(1, 2), "route unhealthy"),
    (6, 0x3, range(1, 2), "access timeout recovery"),
    (8, 0xF, range(2, 16), "wrong configuration"),
)

RECOVERY_ACTIONS = {
    1: "GPU reset",
    2: "node reboot",
    3: "drain of peer-to-peer traffic",
    4: "drain and GPU reset",
    5: "recovery of IMEX",
    6: "bus reset",
    7: "system reboot",
}
