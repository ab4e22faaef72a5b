"""Which counter of which driver means what: the groups that the NIC sample reports.

A term is "a|b": the first that the device has, because a counter was renamed between versions.
Terms of one group are added. Names: mlx5's and the InfiniBand class's documentation in the kernel,
the tables of the drivers bnxt_re, irdma, efa and rxe, Broadcom's own package, ionic's firmware
strings as AMD's exporters list them. irdma's names hold spaces.
"""

from __future__ import annotations

from typing import Final

Groups = dict[str, tuple[str, ...]]

# Internal names: what rates are taken of.
SENT, RECEIVED = "transmit_packets", "receive_packets"
SENT_BYTES, RECEIVED_BYTES = "transmit_bytes_per_s", "receive_bytes_per_s"

PER_SENT: Final = frozenset({"loss_sender_ppm", "timeout_ppm", "cnp_sent_ppm"})
"""Rates per million packets sent; the other rates are per million received."""

_MLX5: Final[Groups] = {
    "loss_sender_ppm": ("packet_seq_err", "implied_nak_seq_err"),
    "loss_receiver_ppm": ("out_of_sequence", "duplicate_request"),
    "timeout_ppm": (
        "local_ack_timeout_err",
        "req_transport_retries_exceeded",
        "roce_adp_retrans",
        "roce_adp_retrans_to",
    ),
    "not_ready_ppm": ("rnr_nak_retry_err", "out_of_buffer"),
    "cnp_handled_ppm": ("rp_cnp_handled",),
    "cnp_ignored_ppm": ("rp_cnp_ignored",),
    "cnp_sent_ppm": ("np_cnp_sent",),
    "ecn_marked_ppm": ("np_ecn_marked_roce_packets",),
    "corruption_ppm": ("rx_icrc_encapsulated",),
    "host_side_delta": ("resp_cqe_error", "req_cqe_error"),
}

HW_COUNTERS: Final[dict[str, Groups]] = {
    "mlx5": _MLX5,
    "bnxt_re": {
        # "to" is a timeout, although both ends of a loss are counted as retransmissions.
        "loss_sender_ppm": ("seq_err_naks_rcvd",),
        "loss_receiver_ppm": ("oos_drop_count|res_oos_drop_count", "dup_req|dup_reqs"),
        "timeout_ppm": ("to_retransmits", "max_retry_exceeded"),
        "not_ready_ppm": ("rnr_naks_rcvd", "rx_out_of_buffer|res_oob_drop_count"),
        "cnp_handled_ppm": ("rp_cnp_handled|rx_cnp_pkts|cnp_rx_pkts",),
        "cnp_sent_ppm": ("np_cnp_sent|tx_cnp_pkts|cnp_tx_pkts",),
        "ecn_marked_ppm": ("np_ecn_marked_roce_packets|rx_ecn_marked_pkts",),
        "corruption_ppm": ("rx_roce_errors|rx_roce_error_pkts",),
        "host_side_delta": ("res_tx_pci_err", "res_rx_pci_err"),
        "drops_per_s": (
            "rx_roce_discards|rx_roce_discard_pkts",
            "tx_roce_discards|tx_roce_discards_pkts",
        ),
        SENT: ("tx_pkts",),
        RECEIVED: ("rx_pkts",),
        SENT_BYTES: ("tx_bytes",),
        RECEIVED_BYTES: ("rx_bytes",),
    },
    "irdma": {
        "loss_sender_ppm": (
            "Nak Sequence Error",
            "Nak Sequence Error Implied",
            "RetransSegs|tcpRetransSegs",
        ),
        "loss_receiver_ppm": ("Rcvd Out of order packets",),
        "timeout_ppm": ("RTO",),
        "not_ready_ppm": ("RNR received", "RNR sent"),
        "cnp_handled_ppm": ("cnpHandled",),
        "cnp_ignored_ppm": ("cnpIgnored",),
        "cnp_sent_ppm": ("cnpSent",),
        "ecn_marked_ppm": ("RxECNMrkd",),
        "corruption_ppm": ("CRC errors",),
        "drops_per_s": ("ip4InDiscards", "ip6InDiscards"),
        SENT: ("ip4OutPkts", "ip6OutPkts"),
        RECEIVED: ("ip4InPkts", "ip6InPkts"),
        SENT_BYTES: ("ip4OutOctets", "ip6OutOctets"),
        RECEIVED_BYTES: ("ip4InOctets", "ip6InOctets"),
    },
    "efa": {
        "loss_sender_ppm": ("retrans_pkts",),
        "loss_receiver_ppm": ("rx_drops",),
        "timeout_ppm": ("retrans_timeout_events", "unresponsive_remote_events"),
        "host_side_delta": ("no_completion_cmds", "cmds_err"),
        SENT: ("tx_pkts",),
        RECEIVED: ("rx_pkts",),
        SENT_BYTES: ("tx_bytes",),
        RECEIVED_BYTES: ("rx_bytes",),
    },
    "ionic": {
        "loss_sender_ppm": (
            "req_rx_pkt_seq_err",
            "req_rx_impl_nak_seq_err",
            "tx_rdma_retx_pkts",
        ),
        "loss_receiver_ppm": ("resp_rx_outouf_seq|resp_rx_outof_seq", "resp_rx_dup_request"),
        "timeout_ppm": ("req_tx_retry_excd_err", "tx_rdma_ack_timeout"),
        "not_ready_ppm": ("req_rx_rnr_retry_err", "resp_rx_outof_buf"),
        "cnp_handled_ppm": ("rx_rdma_cnp_pkts",),
        "cnp_sent_ppm": ("tx_rdma_cnp_pkts",),
        "ecn_marked_ppm": ("rx_rdma_ecn_pkts",),
        "host_side_delta": ("req_rx_cqe_err", "resp_rx_cqe_err"),
        SENT: ("tx_rdma_ucast_pkts",),
        RECEIVED: ("rx_rdma_ucast_pkts",),
        SENT_BYTES: ("tx_rdma_ucast_bytes",),
        RECEIVED_BYTES: ("rx_rdma_ucast_bytes",),
    },
    "rxe": {
        "loss_sender_ppm": ("rcvd_seq_err", "completer_retry_err"),
        "loss_receiver_ppm": ("out_of_seq_request", "duplicate_request"),
        "timeout_ppm": ("retry_exceeded_err",),
        "not_ready_ppm": ("rcvd_rnr_err", "send_rnr_err"),
        "link_downed_delta": ("link_downed",),
        SENT: ("sent_pkts",),
        RECEIVED: ("rcvd_pkts",),
    },
}

# The InfiniBand class's counters/: group, bits. The kernel reads these widths by the port's
# performance query; counters of 4, 8 and 16 bits stick at their largest value until cleared.
PORT_COUNTERS: Final[dict[str, tuple[str, int]]] = {
    "port_xmit_data": (SENT_BYTES, 64),
    "port_rcv_data": (RECEIVED_BYTES, 64),
    "port_xmit_packets": (SENT, 64),
    "port_rcv_packets": (RECEIVED, 64),
    "port_xmit_wait": ("xmit_wait_per_s", 32),
    "port_xmit_discards": ("drops_per_s", 16),
    "port_rcv_errors": ("corruption_ppm", 16),
    "symbol_error": ("symbol_error_delta", 16),
    "link_error_recovery": ("recovery_delta", 8),
    "link_downed": ("link_downed_delta", 8),
    "local_link_integrity_errors": ("integrity_error_delta", 4),
    "excessive_buffer_overrun_errors": ("buffer_overrun_delta", 4),
}
DATA_WORD_BYTES: Final = 4
"""port_xmit_data and port_rcv_data count words."""

# PCI driver of the device -> its table. bnxt_re and irdma hang on the Ethernet function's driver.
DRIVERS: Final = {
    "mlx5_core": "mlx5",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "i40e": "irdma",
    "idpf": "irdma",
    "irdma": "irdma",
    "efa": "efa",
    "ionic": "ionic",
}
PREFIXES: Final = (
    ("mlx5", "mlx5"),
    ("bnxt_re", "bnxt_re"),
    ("irdma", "irdma"),
    ("efa", "efa"),
    ("ionic", "ionic"),
    ("rxe", "rxe"),
)
"""Of the device name, where sysfs does not tell the driver (rxe has no PCI device)."""

# mlx5 keeps its queue counters in 32 bits; the others extend theirs to 64 in driver or firmware.
HW_BITS: Final = {"mlx5": 32}

# ethtool -S: group -> patterns of whole names. Counters that contain one another are left out
# (mlx5's rx_pause_ctrl_phy sums up both kinds of pause).
ETHTOOL: Final[dict[str, tuple[str, ...]]] = {
    "pause_received_per_s": (
        r"rx_prio\d_pause",  # mlx5
        r"rx_global_pause",
        r"rx_pause_frames",  # bnxt_en
        r"rx_pfc_frames",
        r"rx_priority_\d_xoff(\.nic)?",  # ice
        r"link_xoff_rx(\.nic)?",
        r"frames_rx_(pri)?pause",  # ionic
    ),
    "pause_sent_per_s": (
        r"tx_prio\d_pause",
        r"tx_global_pause",
        r"tx_pause_frames",
        r"tx_pfc_frames",
        r"tx_priority_\d_xoff(\.nic)?",
        r"link_xoff_tx(\.nic)?",
        r"frames_tx_(pri)?pause",
    ),
    "link_downed_delta": (r"link_down_events_phy",),
    "corruption_ppm": (
        r"rx_symbol_err_phy",
        r"rx_crc_errors_phy",
        r"rx_fcs_err_frames",
        r"rx_crc_errors(\.nic)?",
        r"frames_rx_bad_fcs",
    ),
    "symbol_error_delta": (r"rx_pcs_symbol_err_phy",),
    "host_side_delta": (r"rx_discards_phy", r"outbound_pci_buffer_overflow"),
}


def hw_groups(driver: str) -> Groups:
    """Groups of a driver; mlx5's names stand in where it has none of its own.

    Vendor packages took mlx5's names where the kernel's driver of the same card did not.
    """
    own = HW_COUNTERS.get(driver, {})
    groups = dict(own)
    for group, terms in _MLX5.items():
        if driver == "mlx5":
            break
        mine = own.get(group, ())
        groups[group] = mine or terms
    return groups
