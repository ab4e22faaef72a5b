"""What can be wrong with a GPU or a NIC, as its driver shows it, each with its healthy twin.

As `tests/conditions.py`, but what is changed is what a driver says (NVML's field values, AMD's
``gpu_metrics``, counters of RDMA drivers) and not what a reader makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.made_up_node import Rank

Of = Callable[[Rank], None]
Change = Callable[[Rank, list[Rank]], None]
"""(the slow rank, all ranks of its job)"""

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


@dataclass(frozen=True)
class Condition:
    """What is wrong with a rank's device, and what must be said of it."""

    name: str
    cause: str
    words: str
    """In the first line of the evidence."""
    inject: Change
    twin: Change
    where: str = "machine"
    hardware: str = "H200, mlx5"
    spoils: bool = False
    """The node's readers are of no use any more afterwards."""


def _only(*changes: Of) -> Change:
    def made(rank: Rank, _: list[Rank]) -> None:
        for change in changes:
            change(rank)

    return made


def _everywhere(*changes: Of) -> Change:
    """The same on every rank of the job: it tells nobody apart."""

    def made(_: Rank, ranks: list[Rank]) -> None:
        for rank in ranks:
            for change in changes:
                change(rank)

    return made


def _nothing(_: Rank, __: list[Rank]) -> None:
    """Healthy."""


def _same(name: str, cause: str, words: str, *changes: Of, **more: str) -> Condition:
    """A condition whose twin is that every rank shows it."""
    return Condition(name, cause, words, _only(*changes), _everywhere(*changes), **more)  # type: ignore[arg-type]


# What NVML says


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
        _only(HOT, _set(sm_clock=1305, reasons=0x48), _share(HW_THERMAL, 0.62), _power(430)),
        _only(HOT, _share(HW_THERMAL, 0.004)),  # hot, not clocked down
    ),
    Condition(
        "SW thermal slowdown",
        "thermal-throttle",
        "SW thermal slowdown",
        _only(HOT, _set(sm_clock=1665, reasons=0x20), _share(SW_THERMAL, 0.35), _power(480)),
        _only(HOT, _share(SW_THERMAL, 0.35)),  # and at full clock
    ),
    Condition(
        "power limit lowered",
        "power-cap",
        "power limit 450 W",
        _only(
            _state(POWER_LIMIT, 450_000),
            _share(SW_POWER_CAP, 0.93),
            _set(sm_clock=1410, reasons=0x4),
            _power(449),
        ),
        _everywhere(_share(SW_POWER_CAP, 0.95), _power(699)),  # capped at full load
    ),
    _same(
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
        _only(_share(SYNC_BOOST, 0.7), _set(sm_clock=1500, reasons=0x10)),
        _only(_share(SYNC_BOOST, 0.7)),
    ),
    _same(
        "board's current limit",
        "board-limit",
        "board limit",
        _share(BOARD_LIMIT, 0.5),
        _set(sm_clock=1545),
    ),
    _same(
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
        _only(_set(sm_clock=1410, reasons=0x2), _power(420)),
        _only(_set(sm_clock=1935)),  # one step below
    ),
    _same("memory clock low", "low-clock", "memory clock 1,593 MHz", _set(mem_clock=1593)),
    Condition(
        "row remapping failed",
        "memory-damage",
        "row remaps failed",
        _only(_state(REMAP_FAILURE, 1), _state(REMAP_PENDING, 1)),
        _only(_rate(ECC_CORRECTED, 4)),  # a few corrected errors are normal
    ),
    Condition(
        "uncorrected ECC errors",
        "memory-damage",
        "Xid 94",
        _only(_once(ECC_UNCORRECTED, 2), _xid(94)),
        _only(_xid(31)),  # the program's own fault
    ),
    Condition(
        "one uncorrected ECC error",
        "memory-damage",
        "uncorrected ECC errors 1",
        _only(_once(ECC_UNCORRECTED)),
        _everywhere(_once(ECC_UNCORRECTED)),
    ),
    Condition(
        "Xid 48",
        "memory-damage",
        "Xid 48",
        _only(_xid(48)),
        _only(_xid(13, 43)),
    ),  # fmt: skip
    _same(
        "corrected ECC storm", "memory-damage", "corrected ECC errors", _rate(ECC_CORRECTED, 17_700)
    ),
    _same("NVLinks inactive", "nvlink", "inactive NVLinks 2", _state(LINK_STATE, 0, 3, 4)),
    _same(
        "NVLink CRC errors",
        "nvlink",
        "NVLink CRC errors",
        _rate(LINK_CRC, 4000, 7),
        _once(LINK_RECOVERIES, 3, 7),
    ),
    _same("NVLink recovered once", "nvlink", "NVLink recoveries 1", _once(LINK_RECOVERIES, 1, 5)),
    _same("NVLink at half speed", "nvlink", "NVLink speed 106", _state(LINK_SPEED, 13_281, 9)),
    _same("Xid 74", "nvlink", "Xid 74", _xid(74)),
    Condition(
        "PCIe at 4 lanes",
        "pcie",
        "PCIe lanes missing 12",
        _only(_set(pcie_width=4), STARVED),
        _everywhere(_set(pcie_width=4), STARVED),
    ),
    Condition(
        "PCIe at generation 1 under load",
        "pcie",
        "PCIe generations missing 4",
        _only(_set(pcie_generation=1)),
        _everywhere(_set(pcie_generation=1), *IDLE),
    ),
    _same("PCIe replays", "pcie", "PCIe replays", _rate(PCIE_REPLAYS, 500)),
    _same("PCIe link recoveries", "pcie", "PCIe link recoveries", _rate(PCIE_RECOVERIES, 400)),
    _same("one PCIe error, uncorrected", "pcie", "PCIe errors 1", _once(PCIE_FATAL)),
    _same("fabric degraded", "fabric", "fabric faults 1", _set(fabric_health=0x1A9)),
    Condition(
        "driver asks for a reset",
        "driver-fault",
        "Xid 119",
        _only(_state(RECOVERY_ACTION, 1), _xid(119)),
        _everywhere(_xid(119)),
    ),
    Condition("Xid 119", "driver-fault", "Xid 119", _only(_xid(119)), _only(_xid(45))),
    Condition(
        "off the bus",
        "driver-fault",
        "Xid 79",
        _only(_lost, _xid(79)),
        _everywhere(_lost),  # the driver is being replaced
    ),
    Condition(
        "driver's call hangs",
        "telemetry-silent",
        "does not answer",
        _only(_hung),
        _everywhere(_lost),
        spoils=True,
    ),
    Condition(
        "GPU not fed, nobody knows why",
        "gpu-starved",
        "SMs active",
        _only(STARVED, _share(LOW_UTILISATION, 0.5), _set(reasons=0x1)),
        _nothing,
        where="unknown",
    ),
)


# What the NICs' drivers say


def _port(**states: str) -> Of:
    return lambda rank: rank.nic.states.update(states)


def _counting(**per_s: float) -> Of:
    return lambda rank: rank.nic.rates.update(per_s)


def _counting_of(names: dict[str, float]) -> Of:
    return lambda rank: rank.nic.rates.update(names)


def _pauses(**per_s: float) -> Of:
    return lambda rank: rank.nic.pauses.update(per_s)


def _counted(**events: int) -> Of:
    def change(rank: Rank) -> None:
        for name, number in events.items() if rank.first else ():
            rank.nic.count(name, number)

    return change


def _carrier(changes: int) -> Of:
    def change(rank: Rank) -> None:
        if rank.first:
            rank.nic.carrier(changes)

    return change


def _lanes(lanes: int) -> Of:
    def change(rank: Rank) -> None:
        rank.nic.lanes = lanes

    return change


DOWN = _port(state="1: DOWN", phys_state="2: Polling")
BNXT, IRDMA = "MI300X, bnxt_re", "MI210, irdma"

NICS: tuple[Condition, ...] = (
    _same("port at one lane", "nic-degraded", "link rate 100", _port(rate="100 Gb/sec (1X NDR)")),
    _same("port down", "nic-degraded", "ports down 1", DOWN),
    Condition(
        "flapping link",
        "link-flap",
        "times the link went down 2",
        _only(_counted(link_downed=2, symbol_error=20), _counting(local_ack_timeout_err=200)),
        _nothing,
    ),
    _same("link down once", "link-flap", "times the link went down 1", _counted(link_downed=1)),
    _same(
        "bad transceiver",
        "nic-errors",
        "symbol errors",
        _counting(symbol_error=100, out_of_sequence=200),
    ),
    _same(
        "slow receiver",
        "nic-host-side",
        "receiver not ready",
        _counting(out_of_buffer=800, rnr_nak_retry_err=200),
    ),
    _same("NIC at 4 PCIe lanes", "nic-host-side", "PCIe rate of the NIC", _lanes(4)),
    _same(
        "loss on the way out",
        "packet-loss",
        "lost on the way out",
        _counting(packet_seq_err=12_000, local_ack_timeout_err=300),
        where="network",
    ),
    _same(
        "loss on the way in",
        "packet-loss",
        "missing on the way in",
        _counting(out_of_sequence=12_000),
        where="network",
    ),
    _same(
        "congested path",
        "congestion",
        "told to slow down",
        _counting(rp_cnp_handled=240_000, np_cnp_sent=100_000),
        where="network",
    ),
    _same(
        "no credits",
        "congestion",
        "ticks without credits",
        _counting(port_xmit_wait=600_000),
        where="network",
    ),  # fmt: skip
    _same(
        "flapping carrier (bnxt_re)",
        "link-flap",
        "carrier changes 6",
        _carrier(6),
        hardware=BNXT,
    ),
    _same(
        "port at a quarter of its rate (bnxt_re)",
        "nic-degraded",
        "link rate 100",
        _port(rate="100 Gb/sec (2X NDR)"),
        hardware=BNXT,
    ),
    _same(
        "damaged packets (bnxt_re)",
        "nic-errors",
        "damaged packets",
        _counting(rx_roce_errors=200),
        hardware=BNXT,
    ),
    _same(
        "pause frames sent (bnxt_re)",
        "nic-host-side",
        "pause frames sent",
        _pauses(tx_pfc_frames=800),
        _counting(rnr_naks_rcvd=200),
        hardware=BNXT,
    ),
    _same(
        "loss on the way out (bnxt_re)",
        "packet-loss",
        "lost on the way out",
        _counting(seq_err_naks_rcvd=12_000, to_retransmits=300),
        where="network",
        hardware=BNXT,
    ),
    _same(
        "pause frames received (bnxt_re)",
        "congestion",
        "pause frames received",
        _pauses(rx_pfc_frames=9000),
        where="network",
        hardware=BNXT,
    ),
    _same(
        "out of order (irdma)",
        "packet-loss",
        "missing on the way in",
        _counting_of({"Rcvd Out of order packets": 12_000, "RTO": 40}),
        where="network",
        hardware=IRDMA,
    ),
    _same(
        "congested path (irdma)",
        "congestion",
        "told to slow down",
        _counting_of({"cnpHandled": 240_000}),
        where="network",
        hardware=IRDMA,
    ),
)


# What amdgpu says


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
        _only(AMD_HOT, _residency(hbm_thm_residency_acc=0.5), _clock(1500)),
        _only(AMD_HOT),  # and at full clock
        hardware=BNXT,
    ),
    Condition(
        "hot regulators (MI300X)",
        "thermal-throttle",
        "thermal limit of the regulators",
        _only(_residency(vr_thm_residency_acc=0.4), _clock(1600)),
        _only(_residency(vr_thm_residency_acc=0.01)),
        hardware=BNXT,
    ),
    _same(
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
        _only(
            _cap(500),
            _residency(ppt_residency_acc=0.95),
            _clock(1500),
            _metrics(curr_socket_power=499),
        ),
        _everywhere(_residency(ppt_residency_acc=0.95), _metrics(curr_socket_power=749)),
        hardware=BNXT,
    ),
    _same(
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
        _only(_clock(1400), _metrics(gfxclk_lock_status=1, curr_socket_power=450)),
        _only(_clock(2080)),
        hardware=BNXT,
    ),
    Condition(
        "uncorrected memory errors (MI300X)",
        "memory-damage",
        "uncorrected ECC errors 2",
        _only(_grown(ue=2)),
        _only(_growing(ce=4)),
        hardware=BNXT,
    ),
    _same(
        "pages failed (MI300X)",
        "memory-damage",
        "row remaps failed 1",
        _pages("RRF"),
        hardware=BNXT,
    ),  # fmt: skip
    _same(
        "corrected error storm (MI300X)",
        "memory-damage",
        "corrected ECC errors",
        _growing(ce=20_000),
        hardware=BNXT,
    ),
    _same(
        "xGMI link down (MI300X)",
        "nvlink",
        "xGMI links down 1",
        _metrics(xgmi_link_status=[1, 1, 0, 1, 1, 1, 1, 0xFFFF]),
        hardware=BNXT,
    ),
    _same(
        "xGMI at half speed (MI300X)",
        "nvlink",
        "xGMI speed 16",
        _metrics(xgmi_link_speed=16),
        hardware=BNXT,
    ),  # fmt: skip
    _same(
        "PCIe at 8 lanes (MI300X)",
        "pcie",
        "PCIe lanes missing 8",
        _metrics(pcie_link_width=8),
        hardware=BNXT,
    ),
    _same(
        "PCIe at generation 3 (MI300X)",
        "pcie",
        "PCIe generations missing 2",
        _metrics(pcie_link_speed=80),
        hardware=BNXT,
    ),
    _same(
        "PCIe replays (MI300X)",
        "pcie",
        "PCIe replays",
        _growing(pcie_replay_count_acc=500),
        hardware=BNXT,
    ),
    _same(
        "gpu_metrics unreadable (MI300X)", "telemetry-silent", "gpu_metrics", _broken, hardware=BNXT
    ),  # fmt: skip
    Condition(
        "GPU not fed, nobody knows why (MI300X)",
        "gpu-starved",
        "utilisation 50 %",
        _only(AMD_STARVED),
        _nothing,
        where="unknown",
        hardware=BNXT,
    ),
    Condition(
        "hot (MI210)",
        "thermal-throttle",
        "thermal limits acting",
        _only(AMD_HOT, _metrics(indep_throttle_status=THROTTLED_HOTSPOT), _clock(1200)),
        _only(AMD_HOT),
        hardware=IRDMA,
    ),
    _same(
        "PROCHOT (MI210)",
        "power-brake",
        "PROCHOT signals acting",
        _metrics(indep_throttle_status=PROCHOT),
        _clock(900),
        hardware=IRDMA,
    ),
    _same(
        "current limit (MI210)",
        "board-limit",
        "current limits acting",
        _metrics(indep_throttle_status=1 << 17),
        _clock(1300),
        hardware=IRDMA,
    ),
)

CONDITIONS: tuple[Condition, ...] = (*NVIDIA, *NICS, *AMD)
