"""Sick NVIDIA GPUs, as NVML's calls and field values show them."""

from __future__ import annotations

from tests.device_condition import Condition, Of, everywhere, nothing, only, same
from tests.made_up_node import Rank

# Numbers of NVML's field values
ECC_CORRECTED, ECC_UNCORRECTED = 3, 4
SW_POWER_CAP, SYNC_BOOST, BOARD_LIMIT, LOW_UTILISATION, RELIABILITY = 74, 76, 77, 78, 79
PCIE_REPLAYS, PCIE_RECOVERIES, PCIE_FATAL = 94, 169, 180
REMAP_PENDING, REMAP_FAILURE = 144, 145
LINK_RECOVERIES, LINK_CRC, LINK_SPEED, LINK_STATE = 162, 163, 164, 165
POWER_LIMIT = 190
RECOVERY_ACTION = 230
SW_THERMAL, HW_THERMAL, POWER_BRAKE = 269, 270, 271
FIELDS = "nvmlDeviceGetFieldValues"
HUNG_S = 3600


def _set(**values: int) -> Of:
    def change(rank: Rank) -> None:
        for name, value in values.items():
            rank.nvidia.driver.set(rank.number, name, value)

    return change


def _state(field: int, value: int, *links: int) -> Of:
    def change(rank: Rank) -> None:
        for link in links or (0,):
            rank.nvidia.driver.field(rank.number, field, value, link)

    return change


def _share(field: int, share: float) -> Of:
    return lambda rank: rank.nvidia.driver.share(rank.number, field, share)


def _rate(field: int, per_s: float, link: int = 0) -> Of:
    return lambda rank: rank.nvidia.driver.rate(rank.number, field, per_s, link)


def _once(field: int, events: int = 1, link: int = 0) -> Of:
    def change(rank: Rank) -> None:
        if rank.first:
            rank.nvidia.count(field, events, link)

    return change


def _xid(*numbers: int) -> Of:
    def change(rank: Rank) -> None:
        for number in numbers if rank.first else ():
            rank.nvidia.driver.xid(rank.number, number)

    return change


def _power(watts: float) -> Of:
    return lambda rank: rank.nvidia.power(watts)


def _busy(share: float, active: float) -> Of:
    return lambda rank: rank.nvidia.busy(share, active)


def _lost(rank: Rank) -> None:
    rank.nvidia.driver.lose(rank.number)


def _hung(rank: Rank) -> None:
    rank.nvidia.driver.hang(rank.number, FIELDS, HUNG_S)


HOT = _set(temperature=91, margin=-5)
STARVED = _busy(0.5, 0.4)
IDLE = (_busy(0.0, 0.0), _set(reasons=0x1), _power(120))

NVIDIA: tuple[Condition, ...] = (
    Condition(
        "HW thermal slowdown",
        "thermal-throttle",
        "HW thermal slowdown",
        only(HOT, _set(sm_clock=1305, reasons=0x48), _share(HW_THERMAL, 0.62), _power(430)),
        only(HOT, _share(HW_THERMAL, 0.004)),  # hot, not clocked down
    ),
    Condition(
        "SW thermal slowdown",
        "thermal-throttle",
        "SW thermal slowdown",
        only(HOT, _set(sm_clock=1665, reasons=0x20), _share(SW_THERMAL, 0.35), _power(480)),
        only(HOT, _share(SW_THERMAL, 0.35)),  # and at full clock
    ),
    Condition(
        "power limit lowered",
        "power-cap",
        "power limit 450 W",
        only(
            _state(POWER_LIMIT, 450_000),
            _share(SW_POWER_CAP, 0.93),
            _set(sm_clock=1410, reasons=0x4),
            _power(449),
        ),
        everywhere(_share(SW_POWER_CAP, 0.95), _power(699)),  # capped at full load
    ),
    same(
        "power brake",
        "power-brake",
        "power brake",
        _share(POWER_BRAKE, 0.4),
        _set(sm_clock=990, reasons=0x88),
        _power(300),
    ),
    Condition(
        "sync boost",
        "sync-boost",
        "held by sync boost",
        only(_share(SYNC_BOOST, 0.7), _set(sm_clock=1500, reasons=0x10)),
        only(_share(SYNC_BOOST, 0.7)),
    ),
    same(
        "board's current limit",
        "board-limit",
        "board limit",
        _share(BOARD_LIMIT, 0.5),
        _set(sm_clock=1545),
    ),
    same(
        "reliability limit",
        "board-limit",
        "reliability limit",
        _share(RELIABILITY, 0.5),
        _set(sm_clock=1545),
    ),
    Condition(
        "clocks locked",
        "low-clock",
        "SM clock 1,410 MHz",
        only(_set(sm_clock=1410, reasons=0x2), _power(420)),
        only(_set(sm_clock=1935)),  # one step below
    ),
    same("memory clock low", "low-clock", "memory clock 1,593 MHz", _set(mem_clock=1593)),
    Condition(
        "row remapping failed",
        "memory-damage",
        "row remaps failed",
        only(_state(REMAP_FAILURE, 1), _state(REMAP_PENDING, 1)),
        only(_rate(ECC_CORRECTED, 4)),  # a few corrected errors are normal
    ),
    Condition(
        "uncorrected ECC errors",
        "memory-damage",
        "Xid 94",
        only(_once(ECC_UNCORRECTED, 2), _xid(94)),
        only(_xid(31)),  # the program's own fault
    ),
    Condition(
        "one uncorrected ECC error",
        "memory-damage",
        "uncorrected ECC errors 1",
        only(_once(ECC_UNCORRECTED)),
        everywhere(_once(ECC_UNCORRECTED)),
    ),
    Condition(
        "Xid 48",
        "memory-damage",
        "Xid 48",
        only(_xid(48)),
        only(_xid(13, 43)),
    ),  # fmt: skip
    same(
        "corrected ECC storm", "memory-damage", "corrected ECC errors", _rate(ECC_CORRECTED, 17_700)
    ),
    same("NVLinks inactive", "nvlink", "inactive NVLinks 2", _state(LINK_STATE, 0, 3, 4)),
    same(
        "NVLink CRC errors",
        "nvlink",
        "NVLink CRC errors",
        _rate(LINK_CRC, 4000, 7),
        _once(LINK_RECOVERIES, 3, 7),
    ),
    same("NVLink recovered once", "nvlink", "NVLink recoveries 1", _once(LINK_RECOVERIES, 1, 5)),
    same("NVLink at half speed", "nvlink", "NVLink speed 106", _state(LINK_SPEED, 13_281, 9)),
    same("Xid 74", "nvlink", "Xid 74", _xid(74)),
    Condition(
        "PCIe at 4 lanes",
        "pcie",
        "PCIe lanes missing 12",
        only(_set(pcie_width=4), STARVED),
        everywhere(_set(pcie_width=4), STARVED),
    ),
    Condition(
        "PCIe at generation 1 under load",
        "pcie",
        "PCIe generations missing 4",
        only(_set(pcie_generation=1)),
        everywhere(_set(pcie_generation=1), *IDLE),
    ),
    same("PCIe replays", "pcie", "PCIe replays", _rate(PCIE_REPLAYS, 500)),
    same("PCIe link recoveries", "pcie", "PCIe link recoveries", _rate(PCIE_RECOVERIES, 400)),
    same("one PCIe error, uncorrected", "pcie", "PCIe errors 1", _once(PCIE_FATAL)),
    same("fabric degraded", "fabric", "fabric faults 1", _set(fabric_health=0x1A9)),
    Condition(
        "driver asks for a reset",
        "driver-fault",
        "Xid 119",
        only(_state(RECOVERY_ACTION, 1), _xid(119)),
        everywhere(_xid(119)),
    ),
    Condition("Xid 119", "driver-fault", "Xid 119", only(_xid(119)), only(_xid(45))),
    Condition(
        "off the bus",
        "driver-fault",
        "Xid 79",
        only(_lost, _xid(79)),
        everywhere(_lost),  # the driver is being replaced
    ),
    Condition(
        "driver's call hangs",
        "telemetry-silent",
        "does not answer",
        only(_hung),
        everywhere(_lost),
        spoils=True,
    ),
    Condition(
        "GPU not fed, nobody knows why",
        "gpu-starved",
        "SMs active",
        only(STARVED, _share(LOW_UTILISATION, 0.5), _set(reasons=0x1)),
        nothing,
        where="unknown",
    ),
)
