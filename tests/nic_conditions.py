"""Sick NICs, as the counters of their drivers, sysfs and ethtool show them."""

from __future__ import annotations

from tests.device_condition import Condition, Of, nothing, only, same
from tests.made_up_node import BNXT, IRDMA, Rank


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

NICS: tuple[Condition, ...] = (
    same("port at one lane", "nic-degraded", "link rate 100", _port(rate="100 Gb/sec (1X NDR)")),
    same("port down", "nic-degraded", "ports down 1", DOWN),
    Condition(
        "flapping link",
        "link-flap",
        "times the link went down 2",
        only(_counted(link_downed=2, symbol_error=20), _counting(local_ack_timeout_err=200)),
        nothing,
    ),
    same("link down once", "link-flap", "times the link went down 1", _counted(link_downed=1)),
    same(
        "bad transceiver",
        "nic-errors",
        "symbol errors",
        _counting(symbol_error=100, out_of_sequence=200),
    ),
    same(
        "slow receiver",
        "nic-host-side",
        "receiver not ready",
        _counting(out_of_buffer=800, rnr_nak_retry_err=200),
    ),
    same("NIC at 4 PCIe lanes", "nic-host-side", "PCIe rate of the NIC", _lanes(4)),
    same(
        "loss on the way out",
        "packet-loss",
        "lost on the way out",
        _counting(packet_seq_err=12_000, local_ack_timeout_err=300),
        where="network",
    ),
    same(
        "loss on the way in",
        "packet-loss",
        "missing on the way in",
        _counting(out_of_sequence=12_000),
        where="network",
    ),
    same(
        "congested path",
        "congestion",
        "told to slow down",
        _counting(rp_cnp_handled=240_000, np_cnp_sent=100_000),
        where="network",
    ),
    same(
        "no credits",
        "congestion",
        "ticks without credits",
        _counting(port_xmit_wait=600_000),
        where="network",
    ),  # fmt: skip
    same(
        "flapping carrier (bnxt_re)",
        "link-flap",
        "carrier changes 6",
        _carrier(6),
        hardware=BNXT,
    ),
    same(
        "port at a quarter of its rate (bnxt_re)",
        "nic-degraded",
        "link rate 100",
        _port(rate="100 Gb/sec (2X NDR)"),
        hardware=BNXT,
    ),
    same(
        "damaged packets (bnxt_re)",
        "nic-errors",
        "damaged packets",
        _counting(rx_roce_errors=200),
        hardware=BNXT,
    ),
    same(
        "pause frames sent (bnxt_re)",
        "nic-host-side",
        "pause frames sent",
        _pauses(tx_pfc_frames=800),
        _counting(rnr_naks_rcvd=200),
        hardware=BNXT,
    ),
    same(
        "loss on the way out (bnxt_re)",
        "packet-loss",
        "lost on the way out",
        _counting(seq_err_naks_rcvd=12_000, to_retransmits=300),
        where="network",
        hardware=BNXT,
    ),
    same(
        "pause frames received (bnxt_re)",
        "congestion",
        "pause frames received",
        _pauses(rx_pfc_frames=9000),
        where="network",
        hardware=BNXT,
    ),
    same(
        "out of order (irdma)",
        "packet-loss",
        "missing on the way in",
        _counting_of({"Rcvd Out of order packets": 12_000, "RTO": 40}),
        where="network",
        hardware=IRDMA,
    ),
    same(
        "congested path (irdma)",
        "congestion",
        "told to slow down",
        _counting_of({"cnpHandled": 240_000}),
        where="network",
        hardware=IRDMA,
    ),
)
