"""Causes that a rank's network interfaces show."""

from __future__ import annotations

from stragd.diagnosis.cause import Cause

NIC_CAUSES = (
    Cause(
        "nic-degraded",
        "machine",
        0.93,
        ("nic.down_count", "nic.rate_gbps", "nic.rate_cut_share", "nic.width_count"),
        "reseat or replace the cable or transceiver; compare the port's rate and lanes",
    ),
    Cause(
        "link-flap",
        "machine",
        0.92,
        ("nic.link_downed_delta", "nic.carrier_changes_delta"),
        "reseat or replace the cable or transceiver; look at the switch port; drain if it goes on",
    ),
    Cause(
        "nic-errors",
        "machine",
        0.85,
        (
            "nic.symbol_error_delta",
            "nic.recovery_delta",
            "nic.corruption_ppm",
            "nic.integrity_error_delta",
        ),
        "clean or replace the cable or transceiver; check optical power and FEC at both ends",
        symptom_of=("link-flap",),
    ),
    Cause(
        "nic-host-side",
        "machine",
        0.78,
        (
            "nic.pause_sent_per_s",
            "nic.host_side_delta",
            "nic.not_ready_ppm",
            "nic.drops_per_s",
            "nic.buffer_overrun_delta",
            "nic.pcie_cut_share",
        ),
        "check the NIC's PCIe link, IOMMU and ring sizes, and what keeps this host from receiving",
        symptom_of=("pcie",),
    ),
    Cause(
        "packet-loss",
        "network",
        0.82,
        (
            "nic.timeout_ppm",
            "nic.loss_sender_ppm",
            "nic.loss_receiver_ppm",
            "process.tcp_lost_ppm",
            "process.tcp_out_of_order_ppm",
            "process.retransmits_ppm",
        ),
        "look for drops on the path: switch counters, PFC and ECN settings; try another port",
        context=("process.tcp_host_count",),
        symptom_of=("link-flap", "nic-errors", "nic-degraded", "nic-host-side"),
    ),
    Cause(
        "network-delay",
        "network",
        0.78,
        ("process.tcp_rtt_ms",),
        "look at the path from that host: a detour, a full queue, a tunnel; compare with ping, mtr",
        context=("process.tcp_rtt_least_ms", "process.tcp_host_count"),
        # Who sends again, or at a lower rate, waits in a queue as well.
        symptom_of=("nic-degraded", "link-flap", "nic-errors", "nic-host-side", "packet-loss"),
    ),
    Cause(
        "congestion",
        "network",
        0.58,
        (
            "nic.cnp_handled_ppm",
            "nic.cnp_ignored_ppm",
            "nic.cnp_sent_ppm",
            "nic.ecn_marked_ppm",
            "nic.xmit_wait_per_s",
            "nic.pause_received_per_s",
        ),
        "look at the switch: load balancing, other jobs on the same links, ECN and PFC thresholds",
        symptom_of=("nic-degraded", "link-flap", "nic-errors", "nic-host-side", "packet-loss"),
    ),
)
