"""Builds sysfs as NIC drivers show it: PCI tree, RDMA devices, network devices, routes.

Names and formats are those of the kernel; values are ours. A test changes a file, as a driver does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

ROUTE_HEAD = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"

# Names of hw_counters/ of each driver, beyond those that a test is about.
MLX5_HW = (
    "duplicate_request implied_nak_seq_err local_ack_timeout_err np_cnp_sent"
    " np_ecn_marked_roce_packets out_of_buffer out_of_sequence packet_seq_err req_cqe_error"
    " req_cqe_flush_error req_transport_retries_exceeded resp_cqe_error rnr_nak_retry_err"
    " roce_adp_retrans roce_adp_retrans_to roce_slow_restart rp_cnp_handled rp_cnp_ignored"
    " rx_icrc_encapsulated rx_read_requests rx_write_requests"
).split()
BNXT_HW = (
    "active_qps rx_pkts rx_bytes tx_pkts tx_bytes recoverable_errors rx_roce_errors"
    " rx_roce_discards to_retransmits seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd"
    " missing_resp dup_req res_tx_pci_err res_rx_pci_err oos_drop_count rx_out_of_buffer"
).split()
IRDMA_HW = [
    "ip4InOctets",
    "ip4InPkts",
    "ip4InDiscards",
    "ip4OutOctets",
    "ip4OutPkts",
    "ip6InOctets",
    "ip6InPkts",
    "ip6OutOctets",
    "ip6OutPkts",
    "RetransSegs",
    "cnpHandled",
    "cnpIgnored",
    "cnpSent",
    "RxECNMrkd",
    "RNR sent",
    "RNR received",
    "Nak Sequence Error",
    "Nak Sequence Error Implied",
    "RTO",
    "Rcvd Out of order packets",
    "CRC errors",
]
EFA_PORT_HW = (
    "tx_bytes tx_pkts rx_bytes rx_pkts rx_drops send_bytes rdma_read_bytes retrans_bytes"
    " retrans_pkts retrans_timeout_events unresponsive_remote_events impaired_remote_conn_events"
).split()
EFA_DEVICE_HW = "submitted_cmds completed_cmds cmds_err no_completion_cmds mmap_err".split()
IONIC_HW = (
    "tx_rdma_ucast_bytes tx_rdma_ucast_pkts rx_rdma_ucast_bytes rx_rdma_ucast_pkts"
    " tx_rdma_cnp_pkts rx_rdma_cnp_pkts rx_rdma_ecn_pkts tx_rdma_ack_timeout tx_rdma_retx_pkts"
    " req_rx_pkt_seq_err req_rx_impl_nak_seq_err req_rx_rnr_retry_err req_rx_cqe_err"
    " req_tx_retry_excd_err resp_rx_dup_request resp_rx_outof_buf resp_rx_outouf_seq"
    " resp_rx_cqe_err"
).split()
RXE_HW = (
    "sent_pkts rcvd_pkts duplicate_request out_of_seq_request rcvd_rnr_err send_rnr_err"
    " rcvd_seq_err ack_deffered retry_exceeded_err retry_rnr_exceeded_err completer_retry_err"
    " send_err link_downed rdma_sends rdma_recvs"
).split()
CLASS_COUNTERS = (
    "port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets port_xmit_wait"
    " port_xmit_discards port_rcv_errors symbol_error link_error_recovery link_downed"
    " local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped"
    " port_rcv_remote_physical_errors unicast_xmit_packets multicast_rcv_packets"
).split()

DRIVERS = {  # table -> (PCI driver, device name, class counters, port's hw, device's hw)
    "mlx5": ("mlx5_core", "mlx5_0", CLASS_COUNTERS, MLX5_HW, []),
    "bnxt_re": ("bnxt_en", "bnxt_re0", [], BNXT_HW, []),
    "irdma": ("ice", "rocep1s0f0", [], IRDMA_HW, []),
    "efa": ("efa", "rdmap16s27", [], EFA_PORT_HW, EFA_DEVICE_HW),
    "ionic": ("ionic", "rocep226s0", [], IONIC_HW, []),
    "rxe": ("", "rxe0", [], RXE_HW, []),
}


class NicTree:
    """A root directory with /sys and /proc/net."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/class/net").mkdir(parents=True)
        self._write("proc/net/route", ROUTE_HEAD)

    def _write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def _link(self, path: str, target: Path) -> None:
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)

    def pci(self, path: str, numa: int = -1, driver: str = "", **files: str) -> Path:
        """A PCI device, "pci0000:17/0000:17:01.0/0000:18:00.0"; bridges come with it."""
        directory = self.root / "sys/devices" / path
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in {"numa_node": str(numa), **files}.items():
            (directory / name).write_text(text + "\n")
        if driver:
            target = self.root / "sys/bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (directory / "driver").symlink_to(target)
        self._link(f"sys/bus/pci/devices/{directory.name}", directory)
        return directory

    def rdma(
        self,
        table: str,
        *,
        name: str = "",
        pci: Path | None = None,
        netdev: str = "",
        link_layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
        hca: str = "",
    ) -> str:
        """A device with one port, as the driver of this table shows it; returns its name."""
        driver, default_name, counters, port_hw, device_hw = DRIVERS[table]
        name = name or default_name
        base, port = f"sys/class/infiniband/{name}", f"sys/class/infiniband/{name}/ports/1"
        if pci is None and driver:
            number = len(list((self.root / "sys/class").glob("infiniband/*")))
            pci = self.pci(f"pci0000:{number:02x}/0000:{number:02x}:01.0", driver=driver)
        if pci is not None:
            self._link(f"{base}/device", pci)
        if hca:
            self._write(f"{base}/hca_type", hca + "\n")
        self._write(f"{port}/state", "4: ACTIVE\n")
        self._write(f"{port}/phys_state", "5: LinkUp\n")
        self._write(f"{port}/link_layer", link_layer + "\n")
        self._write(f"{port}/rate", rate + "\n")
        if netdev:
            self._write(f"{port}/gid_attrs/ndevs/0", netdev + "\n")
        for file in counters:
            self._write(f"{port}/counters/{file}", "0\n")
        for file in [*port_hw, "lifespan"]:
            self._write(f"{port}/hw_counters/{file}", "10\n" if file == "lifespan" else "0\n")
        for file in device_hw:
            self._write(f"{base}/hw_counters/{file}", "0\n")
        return name

    def netdev(
        self,
        name: str,
        pci: Path | None = None,
        *,
        speed: str = "100000",
        bond_of: tuple[str, ...] = (),
        virtual_function: bool = False,
        default_route: bool = False,
    ) -> str:
        """A network device."""
        base = f"sys/class/net/{name}"
        files = {"carrier_changes": "2", "operstate": "up", "speed": speed, "dev_port": "0"}
        names = "rx_bytes tx_bytes rx_packets tx_packets rx_dropped tx_dropped rx_missed_errors"
        files |= {f"statistics/{n}": "0" for n in [*names.split(), "rx_crc_errors"]}
        for file, text in files.items():
            self._write(f"{base}/{file}", text + "\n")
        if pci is not None:
            self._link(f"{base}/device", pci)
            if virtual_function:
                self._link(f"{base}/device/physfn", pci)
        if bond_of:
            self._write(f"{base}/bonding/mode", "802.3ad 4\n")
            for lower in bond_of:
                self._link(f"{base}/lower_{lower}", self.root / "sys/class/net" / lower)
        if default_route:
            route = self.root / "proc/net/route"
            line = "\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
            route.write_text(route.read_text() + name + line)
        return name

    def file(self, device: str, counter: str) -> Path:
        """Where a counter of a device is, or an attribute of its port."""
        base = self.root / "sys/class/infiniband" / device
        port = base / "ports/1"
        for directory in (port / "counters", port / "hw_counters", base / "hw_counters", port):
            if (directory / counter).exists():
                return directory / counter
        net = self.root / "sys/class/net" / device
        return net / counter if (net / counter).exists() else net / "statistics" / counter

    def set(self, device: str, values: Mapping[str, int | str]) -> None:
        """What the driver reports from now on."""
        for counter, value in values.items():
            self.file(device, counter).write_text(f"{value}\n")


def dgx(root: Path, gpus: int = 8, table: str = "mlx5") -> NicTree:
    """Eight GPUs and eight rails, a pair per switch, two sockets, and a bonded management NIC.

    Rails are InfiniBand where ``table`` is mlx5, else Ethernet with a network device each.
    """
    tree = NicTree(root)
    for index in range(gpus):
        domain = 0x10 + 0x10 * index
        switch = f"pci0000:{domain:02x}/0000:{domain:02x}:01.0/0000:{domain + 1:02x}:00.0"
        socket = index * 2 // gpus
        tree.pci(f"{switch}/0000:{domain + 2:02x}:00.0/0000:{domain + 3:02x}:00.0", numa=socket)
        nic = tree.pci(
            f"{switch}/0000:{domain + 2:02x}:01.0/0000:{domain + 4:02x}:00.0",
            numa=socket,
            driver=DRIVERS[table][0],
            current_link_speed="32.0 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
            current_link_width="16",
            max_link_width="16",
        )
        if table == "mlx5":
            tree.rdma("mlx5", name=f"mlx5_{index}", pci=nic, hca="MT4129")
            continue
        netdev = tree.netdev(f"eth{index}", nic, speed="400000")
        name = f"{table}_{index}"
        tree.rdma(table, name=name, pci=nic, netdev=netdev, link_layer="Ethernet")
    management = tree.pci("pci0000:00/0000:00:02.0/0000:05:00.0", numa=0, driver="mlx5_core")
    tree.netdev("eno1", management)
    tree.netdev("bond0", bond_of=("eno1",), default_route=True)
    tree.rdma(
        "mlx5",
        name="mlx5_bond_0",
        pci=management,
        netdev="bond0",
        link_layer="Ethernet",
        rate="200 Gb/sec (4X HDR)",
        hca="MT4129",
    )
    return tree


def gpu_address(index: int) -> str:
    """PCI address of a GPU of `dgx`."""
    return f"0000:{0x13 + 0x10 * index:02x}:00.0"
