"""Sick AMD GPUs, as ``gpu_metrics`` and the files beside it show them."""

from __future__ import annotations

from tests.device_condition import Condition, Of, everywhere, nothing, only, same
from tests.made_up_node import BNXT, IRDMA, Rank


def _metrics(**values: int | list[int]) -> Of:
    return lambda rank: rank.amd.values.update(values)


def _clock(mhz: int) -> Of:
    return _metrics(current_gfxclk=[mhz] * 8)


def _residency(**shares: float) -> Of:
    return lambda rank: rank.amd.shares.update(shares)


def _below(**shares: float) -> Of:
    return lambda rank: rank.amd.below.update(shares)


def _growing(**per_s: float) -> Of:
    return lambda rank: rank.amd.rates.update(per_s)


def _grown(**events: int) -> Of:
    def change(rank: Rank) -> None:
        for name, number in events.items() if rank.first else ():
            rank.amd.count(name, number)

    return change


def _cap(watts: int) -> Of:
    def change(rank: Rank) -> None:
        rank.amd.cap_w = watts

    return change


def _pages(states: str) -> Of:
    def change(rank: Rank) -> None:
        rank.amd.pages = states

    return change


def _broken(rank: Rank) -> None:
    rank.amd.broken = True


THROTTLED_HOTSPOT, PROCHOT = 1 << 36, 1 << 47  # of indep_throttle_status
AMD_HOT = _metrics(temperature_hotspot=101, temperature_mem=94)
AMD_STARVED = _metrics(average_gfx_activity=50, curr_socket_power=400)

AMD: tuple[Condition, ...] = (
    Condition(
        "hot memory (MI300X)",
        "thermal-throttle",
        "thermal limit of the memory",
        only(AMD_HOT, _residency(hbm_thm_residency_acc=0.5), _clock(1500)),
        only(AMD_HOT),  # and at full clock
        hardware=BNXT,
    ),
    Condition(
        "hot regulators (MI300X)",
        "thermal-throttle",
        "thermal limit of the regulators",
        only(_residency(vr_thm_residency_acc=0.4), _clock(1600)),
        only(_residency(vr_thm_residency_acc=0.01)),
        hardware=BNXT,
    ),
    same(
        "clock held for heat (MI300X)",
        "thermal-throttle",
        "clock held for heat",
        _below(gfx_below_host_limit_thm_acc=0.5),
        _clock(1600),
        hardware=BNXT,
    ),
    Condition(
        "power limit lowered (MI300X)",
        "power-cap",
        "power limit 500 W",
        only(
            _cap(500),
            _residency(ppt_residency_acc=0.95),
            _clock(1500),
            _metrics(curr_socket_power=499),
        ),
        everywhere(_residency(ppt_residency_acc=0.95), _metrics(curr_socket_power=749)),
        hardware=BNXT,
    ),
    same(
        "PROCHOT (MI300X)",
        "power-brake",
        "power brake",
        _residency(prochot_residency_acc=0.4),
        _clock(900),
        hardware=BNXT,
    ),
    Condition(
        "clocks locked (MI300X)",
        "low-clock",
        "SM clock 1,400 MHz",
        only(_clock(1400), _metrics(gfxclk_lock_status=1, curr_socket_power=450)),
        only(_clock(2080)),
        hardware=BNXT,
    ),
    Condition(
        "uncorrected memory errors (MI300X)",
        "memory-damage",
        "uncorrected ECC errors 2",
        only(_grown(ue=2)),
        only(_growing(ce=4)),
        hardware=BNXT,
    ),
    same(
        "pages failed (MI300X)",
        "memory-damage",
        "row remaps failed 1",
        _pages("RRF"),
        hardware=BNXT,
    ),  # fmt: skip
    same(
        "corrected error storm (MI300X)",
        "memory-damage",
        "corrected ECC errors",
        _growing(ce=20_000),
        hardware=BNXT,
    ),
    same(
        "xGMI link down (MI300X)",
        "nvlink",
        "xGMI links down 1",
        _metrics(xgmi_link_status=[1, 1, 0, 1, 1, 1, 1, 0xFFFF]),
        hardware=BNXT,
    ),
    same(
        "xGMI at half speed (MI300X)",
        "nvlink",
        "xGMI speed 16",
        _metrics(xgmi_link_speed=16),
        hardware=BNXT,
    ),  # fmt: skip
    same(
        "PCIe at 8 lanes (MI300X)",
        "pcie",
        "PCIe lanes missing 8",
        _metrics(pcie_link_width=8),
        hardware=BNXT,
    ),
    same(
        "PCIe at generation 3 (MI300X)",
        "pcie",
        "PCIe generations missing 2",
        _metrics(pcie_link_speed=80),
        hardware=BNXT,
    ),
    same(
        "PCIe replays (MI300X)",
        "pcie",
        "PCIe replays",
        _growing(pcie_replay_count_acc=500),
        hardware=BNXT,
    ),
    same(
        "gpu_metrics unreadable (MI300X)", "telemetry-silent", "gpu_metrics", _broken, hardware=BNXT
    ),  # fmt: skip
    Condition(
        "GPU not fed, nobody knows why (MI300X)",
        "gpu-starved",
        "utilisation 50 %",
        only(AMD_STARVED),
        nothing,
        where="unknown",
        hardware=BNXT,
    ),
    Condition(
        "hot (MI210)",
        "thermal-throttle",
        "thermal limits acting",
        only(AMD_HOT, _metrics(indep_throttle_status=THROTTLED_HOTSPOT), _clock(1200)),
        only(AMD_HOT),
        hardware=IRDMA,
    ),
    same(
        "PROCHOT (MI210)",
        "power-brake",
        "PROCHOT signals acting",
        _metrics(indep_throttle_status=PROCHOT),
        _clock(900),
        hardware=IRDMA,
    ),
    same(
        "current limit (MI210)",
        "board-limit",
        "current limits acting",
        _metrics(indep_throttle_status=1 << 17),
        _clock(1300),
        hardware=IRDMA,
    ),
)
