"""NIC samples from fixture trees of every driver, and the traps of their counters."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

import pytest

from stragd.telemetry.nic import DISCOVER_EVERY, VANISHED_FOR, NicTelemetry
from stragd.telemetry.quantities_host import NIC
from stragd.telemetry.rdma_counters import HW_COUNTERS
from stragd.telemetry.sample import Sample
from tests.harness import wait_for
from tests.nic_trees import DRIVERS, NicTree, dgx

SECOND = 1_000_000_000
SENT, RECEIVED = 2_000_000, 4_000_000
TRAFFIC = {  # files that count packets sent and received
    "mlx5": ("port_xmit_packets", "port_rcv_packets"),
    "bnxt_re": ("tx_pkts", "rx_pkts"),
    "irdma": ("ip4OutPkts", "ip4InPkts"),
    "efa": ("tx_pkts", "rx_pkts"),
    "ionic": ("tx_rdma_ucast_pkts", "rx_rdma_ucast_pkts"),
    "rxe": ("sent_pkts", "rcvd_pkts"),
}
# The reference table: driver, file, the quantity it belongs to.
ALIASES = [
    ("mlx5", "packet_seq_err", "loss_sender_ppm"),
    ("mlx5", "implied_nak_seq_err", "loss_sender_ppm"),
    ("mlx5", "out_of_sequence", "loss_receiver_ppm"),
    ("mlx5", "duplicate_request", "loss_receiver_ppm"),
    ("mlx5", "local_ack_timeout_err", "timeout_ppm"),
    ("mlx5", "req_transport_retries_exceeded", "timeout_ppm"),
    ("mlx5", "roce_adp_retrans", "timeout_ppm"),
    ("mlx5", "roce_adp_retrans_to", "timeout_ppm"),
    ("mlx5", "rnr_nak_retry_err", "not_ready_ppm"),
    ("mlx5", "out_of_buffer", "not_ready_ppm"),
    ("mlx5", "rp_cnp_handled", "cnp_handled_ppm"),
    ("mlx5", "rp_cnp_ignored", "cnp_ignored_ppm"),
    ("mlx5", "np_cnp_sent", "cnp_sent_ppm"),
    ("mlx5", "np_ecn_marked_roce_packets", "ecn_marked_ppm"),
    ("mlx5", "rx_icrc_encapsulated", "corruption_ppm"),
    ("mlx5", "resp_cqe_error", "host_side_delta"),
    ("mlx5", "req_cqe_error", "host_side_delta"),
    ("mlx5", "symbol_error", "symbol_error_delta"),
    ("mlx5", "link_error_recovery", "recovery_delta"),
    ("mlx5", "link_downed", "link_downed_delta"),
    ("mlx5", "port_xmit_discards", "drops_per_s"),
    ("mlx5", "port_xmit_wait", "xmit_wait_per_s"),
    ("bnxt_re", "seq_err_naks_rcvd", "loss_sender_ppm"),
    ("bnxt_re", "to_retransmits", "timeout_ppm"),
    ("bnxt_re", "max_retry_exceeded", "timeout_ppm"),
    ("bnxt_re", "oos_drop_count", "loss_receiver_ppm"),
    ("bnxt_re", "dup_req", "loss_receiver_ppm"),
    ("bnxt_re", "rnr_naks_rcvd", "not_ready_ppm"),
    ("bnxt_re", "rx_out_of_buffer", "not_ready_ppm"),
    ("bnxt_re", "rx_roce_errors", "corruption_ppm"),
    ("bnxt_re", "res_tx_pci_err", "host_side_delta"),
    ("bnxt_re", "res_rx_pci_err", "host_side_delta"),
    ("irdma", "Nak Sequence Error", "loss_sender_ppm"),
    ("irdma", "RetransSegs", "loss_sender_ppm"),
    ("irdma", "Rcvd Out of order packets", "loss_receiver_ppm"),
    ("irdma", "RTO", "timeout_ppm"),
    ("irdma", "RNR sent", "not_ready_ppm"),
    ("irdma", "RNR received", "not_ready_ppm"),
    ("irdma", "cnpHandled", "cnp_handled_ppm"),
    ("irdma", "cnpIgnored", "cnp_ignored_ppm"),
    ("irdma", "cnpSent", "cnp_sent_ppm"),
    ("irdma", "RxECNMrkd", "ecn_marked_ppm"),
    ("efa", "retrans_pkts", "loss_sender_ppm"),
    ("efa", "rx_drops", "loss_receiver_ppm"),
    ("efa", "retrans_timeout_events", "timeout_ppm"),
    ("efa", "unresponsive_remote_events", "timeout_ppm"),
    ("efa", "no_completion_cmds", "host_side_delta"),
    ("efa", "cmds_err", "host_side_delta"),
    ("ionic", "req_rx_pkt_seq_err", "loss_sender_ppm"),
    ("ionic", "req_rx_impl_nak_seq_err", "loss_sender_ppm"),
    ("ionic", "tx_rdma_retx_pkts", "loss_sender_ppm"),
    ("ionic", "resp_rx_outouf_seq", "loss_receiver_ppm"),
    ("ionic", "resp_rx_dup_request", "loss_receiver_ppm"),
    ("ionic", "req_tx_retry_excd_err", "timeout_ppm"),
    ("ionic", "req_rx_rnr_retry_err", "not_ready_ppm"),
    ("ionic", "resp_rx_outof_buf", "not_ready_ppm"),
    ("ionic", "rx_rdma_cnp_pkts", "cnp_handled_ppm"),
    ("ionic", "tx_rdma_cnp_pkts", "cnp_sent_ppm"),
    ("ionic", "rx_rdma_ecn_pkts", "ecn_marked_ppm"),
    ("rxe", "rcvd_seq_err", "loss_sender_ppm"),
    ("rxe", "completer_retry_err", "loss_sender_ppm"),
    ("rxe", "out_of_seq_request", "loss_receiver_ppm"),
    ("rxe", "duplicate_request", "loss_receiver_ppm"),
    ("rxe", "retry_exceeded_err", "timeout_ppm"),
    ("rxe", "rcvd_rnr_err", "not_ready_ppm"),
    ("rxe", "link_downed", "link_downed_delta"),
]
OF_SENT = ("loss_sender_ppm", "timeout_ppm", "cnp_sent_ppm")
EVENTS = ("_ppm", "_delta", "drops_per_s", "xmit_wait_per_s")


class Nics:
    """A reader whose clock moves by ten seconds a window."""

    def __init__(self, tree: NicTree, **more: object) -> None:
        self.now = SECOND
        # A plain reference to itself would keep the reader's files until the garbage is collected.
        here = weakref.ref(self)

        def clock() -> int:
            one = here()
            return one.now if one else 0

        self.reader = NicTelemetry(tree.root, clock=clock, **more)  # type: ignore[arg-type]

    def window(self, step_ns: int = 10 * SECOND) -> dict[str, Sample]:
        self.now += step_ns
        samples = self.reader.read(self.now - step_ns, self.now)
        assert {name for s in samples for name in s.values} <= set(NIC)
        return {sample.subject: sample for sample in samples}


def events(sample: Sample) -> dict[str, float]:
    """Everything that counts events, where it is not 0."""
    return {n: v for n, v in sample.values.items() if n.endswith(EVENTS) and v}


@pytest.mark.parametrize(("driver", "counter", "quantity"), ALIASES)
def test_every_counter_of_every_driver_means_one_thing(
    tmp_path: Path, driver: str, counter: str, quantity: str
) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma(driver)
    nics = Nics(tree)
    nics.window()
    sent, received = TRAFFIC[driver]
    tree.set(device, {sent: SENT, received: RECEIVED, counter: 8})
    sample = nics.window()[f"{device}/1"]
    per = SENT if quantity in OF_SENT else RECEIVED
    expected = {"_ppm": 8e6 / per, "lta": 8.0, "r_s": 0.8}
    value = next(v for suffix, v in expected.items() if quantity.endswith(suffix))
    assert events(sample) == {quantity: pytest.approx(value)}
    assert sample.values["packets_per_s"] == (SENT + RECEIVED) / 10
    # The next window, with nothing new, has only zeros: nothing is counted twice.
    tree.set(device, {sent: 2 * SENT, received: 2 * RECEIVED})
    assert events(nics.window()[f"{device}/1"]) == {}


def test_every_driver_is_in_the_reference_table() -> None:
    assert set(HW_COUNTERS) == {driver for driver, _, _ in ALIASES} == set(DRIVERS)


def test_bytes_are_words_in_the_class_and_bytes_in_drivers(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    mlx5, efa = tree.rdma("mlx5"), tree.rdma("efa")
    nics = Nics(tree)
    nics.window()
    tree.set(mlx5, {"port_xmit_data": 1000, "port_rcv_data": 2000})
    tree.set(efa, {"tx_bytes": 1000, "rx_bytes": 2000})
    samples = nics.window()
    assert samples["mlx5_0/1"].values["transmit_bytes_per_s"] == 400
    assert samples["mlx5_0/1"].values["receive_bytes_per_s"] == 800
    assert samples["rdmap16s27/1"].values["transmit_bytes_per_s"] == 100


@pytest.mark.parametrize(
    ("renamed", "quantity"),
    [
        ({"rp_cnp_handled": 5}, "cnp_handled_ppm"),
        ({"rx_cnp_pkts": 5}, "cnp_handled_ppm"),
        ({"dup_reqs": 5}, "loss_receiver_ppm"),
        ({"np_cnp_sent": 5}, "cnp_sent_ppm"),
        ({"rp_cnp_ignored": 5}, "cnp_ignored_ppm"),  # mlx5's name, in no table of bnxt_re
    ],
)
def test_a_vendors_own_driver_package(
    tmp_path: Path, renamed: Mapping[str, int], quantity: str
) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("bnxt_re")
    hw = tree.root / f"sys/class/infiniband/{device}/ports/1/hw_counters"
    (hw / "dup_req").unlink()
    for name in renamed:
        (hw / name).write_text("0\n")
    nics = Nics(tree)
    nics.window()
    tree.set(device, {"tx_pkts": SENT, "rx_pkts": RECEIVED, **renamed})
    assert set(events(nics.window()[f"{device}/1"])) == {quantity}


# Traps


@pytest.mark.parametrize(
    ("counter", "quantity", "largest"),
    [
        ("link_downed", "link_downed_delta", 255),
        ("link_error_recovery", "recovery_delta", 255),
        ("symbol_error", "symbol_error_delta", 65535),
        ("local_link_integrity_errors", "integrity_error_delta", 15),
        ("excessive_buffer_overrun_errors", "buffer_overrun_delta", 15),
    ],
)
def test_a_saturated_counter_is_unknown_not_quiet(
    tmp_path: Path, counter: str, quantity: str, largest: int
) -> None:
    tree = NicTree(tmp_path)
    device, twin = tree.rdma("mlx5"), tree.rdma("mlx5", name="mlx5_1")
    tree.set(device, {counter: largest - 1})
    nics = Nics(tree)
    nics.window()
    tree.set(device, {counter: largest})
    sample, healthy = (nics.window()[f"{name}/1"] for name in (device, twin))
    assert quantity not in sample.values
    assert any(counter in note and "saturated" in note for note in sample.notes)
    assert healthy.values[quantity] == 0
    assert not healthy.notes
    tree.set(device, {counter: 0})  # somebody cleared it: a new beginning, no events
    nics.window()
    tree.set(device, {counter: 1})
    assert nics.window()[f"{device}/1"].values[quantity] == 1


@pytest.mark.parametrize("counter", ["port_xmit_wait", "rp_cnp_handled", "out_of_sequence"])
def test_a_32_bit_counter_wraps(tmp_path: Path, counter: str) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    tree.set(device, {counter: 2**32 - 100})
    nics = Nics(tree)
    nics.window()
    tree.set(device, {counter: 100, "port_rcv_packets": 1_000_000})
    (value,) = events(nics.window()[f"{device}/1"]).values()
    assert value in (200, 20)  # of a million packets; a second of ten


def test_a_reloaded_driver_is_a_new_beginning(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    tree.set(device, {"port_xmit_packets": 10**12, "port_rcv_packets": 10**12, "link_downed": 3})
    nics = Nics(tree)
    nics.window()
    tree.set(device, {"port_xmit_packets": 50, "port_rcv_packets": 50, "link_downed": 4})
    sample = nics.window()[f"{device}/1"]
    # The port's failures went up by one, but since when nobody knows.
    assert not events(sample)
    assert "packets_per_s" not in sample.values
    assert any("began anew" in note for note in sample.notes)
    tree.set(device, {"port_xmit_packets": 150, "link_downed": 5})
    assert nics.window()[f"{device}/1"].values["link_downed_delta"] == 1


@pytest.mark.parametrize("text", ["N/A (no PMA)", "", "-1", "0x10", "9" * 40, "1 2", "\x00", "1_0"])
def test_what_is_no_number_is_absent(tmp_path: Path, text: str) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    tree.set(device, {"symbol_error": text, "port_rcv_packets": text, "port_xmit_wait": text})
    nics = Nics(tree)
    nics.window()
    tree.set(device, {"out_of_sequence": 5, "link_downed": 1})
    sample = nics.window()[f"{device}/1"]
    # No packets, no rate of them.
    assert {
        "symbol_error_delta",
        "xmit_wait_per_s",
        "loss_receiver_ppm",
        "packets_per_s",
    }.isdisjoint(sample.values)
    assert sample.values["link_downed_delta"] == 1


def test_absent_files_and_directories_are_absent_values(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    tree.file(device, "link_downed").unlink()
    nics = Nics(tree)
    nics.window()
    values = nics.window()[f"{device}/1"].values
    assert "link_downed_delta" not in values
    assert values["recovery_delta"] == 0
    rxe = NicTree(tmp_path / "soft")
    rxe.rdma("rxe")
    quiet = Nics(rxe)
    quiet.window()
    assert {"symbol_error_delta", "transmit_bytes_per_s"}.isdisjoint(
        quiet.window()["rxe0/1"].values
    )


@pytest.mark.parametrize("step_ns", [0, -3600 * SECOND])
def test_a_clock_that_stands_or_goes_back_gives_no_rates(tmp_path: Path, step_ns: int) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    nics = Nics(tree)
    nics.window()
    tree.set(device, {"port_xmit_packets": SENT, "port_rcv_packets": RECEIVED, "link_downed": 1})
    assert not events(nics.window(step_ns)[f"{device}/1"])
    tree.set(device, {"link_downed": 2})
    assert nics.window()[f"{device}/1"].values["link_downed_delta"] == 1


def test_the_wall_clock_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: pytest.fail("wall clock read"))
    tree = NicTree(tmp_path)
    tree.rdma("mlx5")
    reader = NicTelemetry(tree.root)
    reader.read(0, 1)
    (sample,) = reader.read(1, 2)
    assert sample.values["link_downed_delta"] == 0


# States


def test_rate_width_and_pcie_against_a_twin(tmp_path: Path) -> None:
    tree = dgx(tmp_path)
    tree.set("mlx5_3", {"rate": "200 Gb/sec (2X NDR)"})
    pci = (tmp_path / "sys/class/infiniband/mlx5_5/device").resolve()
    (pci / "current_link_width").write_text("8\n")
    nics = Nics(tree)
    samples = nics.window()
    values = {name: samples[f"{name}/1"].values for name in ("mlx5_0", "mlx5_3", "mlx5_5")}
    assert (values["mlx5_0"]["rate_gbps"], values["mlx5_0"]["width_count"]) == (400, 4)
    assert (values["mlx5_3"]["rate_gbps"], values["mlx5_3"]["width_count"]) == (200, 2)
    assert values["mlx5_0"]["pcie_gbps"] == values["mlx5_0"]["pcie_max_gbps"] == 512
    assert (values["mlx5_5"]["pcie_gbps"], values["mlx5_5"]["pcie_max_gbps"]) == (256, 512)
    for name, width in (("mlx5_0", "8"), ("mlx5_5", "16")):  # trained anew
        pci = (tmp_path / f"sys/class/infiniband/{name}/device").resolve()
        (pci / "current_link_width").write_text(width + "\n")
    for _ in range(DISCOVER_EVERY + 1):
        later = nics.window()
    assert later["mlx5_0/1"].values["pcie_gbps"] == 256
    assert later["mlx5_5/1"].values["pcie_gbps"] == 512
    # A slower link is still compared with the others; the Ethernet port of the same adapter is not.
    assert samples["mlx5_3/1"].model == samples["mlx5_0/1"].model == "MT4129 InfiniBand"
    assert samples["mlx5_bond_0/1"].model == "MT4129 Ethernet"


@pytest.mark.parametrize(
    "state", [{"state": "1: DOWN"}, {"phys_state": "3: Disabled"}, {"state": "2: INIT"}]
)
def test_a_link_that_is_down(tmp_path: Path, state: Mapping[str, str]) -> None:
    tree = NicTree(tmp_path)
    device, twin = tree.rdma("mlx5"), tree.rdma("mlx5", name="mlx5_1")
    nics = Nics(tree)
    nics.window()
    tree.set(device, state)
    samples = nics.window()
    assert samples[f"{device}/1"].values["down_count"] == 1
    assert "rate_gbps" not in samples[f"{device}/1"].values
    assert samples[f"{twin}/1"].values["down_count"] == 0


def test_a_nic_that_vanishes_is_spoken_of_and_may_come_back(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    device = tree.rdma("mlx5")
    tree.rdma("mlx5", name="mlx5_1")
    nics = Nics(tree)
    nics.window()
    base = tree.root / "sys/class/infiniband" / device
    base.rename(tree.root / "gone")
    # What is deleted on a disk stays readable to who has it open; in sysfs it does not.
    for nic in nics.reader._nics.values():
        if nic.subject == f"{device}/1" and nic.port:
            nic.port._states.close()
    sample = nics.window()[f"{device}/1"]
    assert "vanished" in sample.silent
    assert not sample.values
    (tree.root / "gone").rename(base)
    tree.set(device, {"link_downed": 1})
    assert nics.window()[f"{device}/1"].values["link_downed_delta"] == 1
    base.rename(tree.root / "gone")
    for nic in nics.reader._nics.values():
        if nic.subject == f"{device}/1" and nic.port:
            nic.port._states.close()
    seen = [f"{device}/1" in nics.window() for _ in range(VANISHED_FOR + 3)]
    assert seen[0]
    assert not seen[-1]


# Network devices


def test_a_roce_port_is_one_sample_with_its_network_device(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    pci = tree.pci("pci0000:01/0000:01:00.0", driver="mlx5_core")
    tree.netdev("ens1", pci)
    tree.rdma("mlx5", pci=pci, netdev="ens1", link_layer="Ethernet")
    nics = Nics(tree)
    nics.window()
    tree.set("ens1", {"carrier_changes": 4, "tx_bytes": 10**9})
    samples = nics.window()
    assert set(samples) == {"mlx5_0/1"}
    assert samples["mlx5_0/1"].values["carrier_changes_delta"] == 2
    assert samples["mlx5_0/1"].values["transmit_bytes_per_s"] == 0  # RDMA's, not the stack's


def test_devices_without_rdma(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    pci = tree.pci("pci0000:00/0000:00:05.0", driver="ena")
    tree.netdev("eth0", pci, default_route=True, speed="25000")
    tree.netdev("veth7")  # virtual
    tree.netdev("lo")
    virtual = tree.pci("pci0000:00/0000:00:06.0", driver="mlx5_core")
    tree.netdev("vf0", virtual, virtual_function=True)
    nics = Nics(tree)
    nics.window()
    tree.set("eth0", {"tx_bytes": 10_000, "rx_dropped": 30, "carrier_changes": 3})
    samples = nics.window()
    assert set(samples) == {"eth0"}
    values = samples["eth0"].values
    assert values["rate_gbps"] == 25
    assert values["transmit_bytes_per_s"] == 1000
    assert values["drops_per_s"] == 3
    assert values["carrier_changes_delta"] == 1
    assert samples["eth0"].model == "ena Ethernet"
    tree.set("eth0", {"operstate": "down", "speed": "-1"})
    down = nics.window()["eth0"].values
    assert down["down_count"] == 1
    assert "rate_gbps" not in down


class Statistics:
    """ethtool of two devices."""

    def __init__(self) -> None:
        self.counters: dict[str, dict[str, int]] = {"ens1": {}, "ens2": {}}
        self.may_answer = threading.Event()
        self.may_answer.set()

    def statistics(self, netdev: str) -> Mapping[str, int]:
        self.may_answer.wait(60)
        return self.counters[netdev]

    def highest_gbps(self, netdev: str) -> float | None:
        return 400.0 if netdev == "ens1" else None


def roce_pair(root: Path) -> tuple[NicTree, Statistics]:
    tree = NicTree(root)
    for index in (1, 2):
        pci = tree.pci(f"pci0000:0{index}/0000:0{index}:00.0", driver="mlx5_core")
        tree.netdev(f"ens{index}", pci)
        tree.rdma(
            "mlx5",
            name=f"mlx5_{index}",
            pci=pci,
            netdev=f"ens{index}",
            link_layer="Ethernet",
            rate="200 Gb/sec (4X HDR)",
        )
    return tree, Statistics()


@pytest.mark.parametrize(
    ("statistic", "quantity", "value"),
    [
        ("rx_prio3_pause", "pause_received_per_s", 2.0),
        ("rx_global_pause", "pause_received_per_s", 2.0),
        ("tx_prio3_pause", "pause_sent_per_s", 2.0),
        ("tx_pfc_frames", "pause_sent_per_s", 2.0),
        ("tx_priority_3_xoff.nic", "pause_sent_per_s", 2.0),
        ("link_down_events_phy", "link_downed_delta", 20.0),
        ("rx_symbol_err_phy", "corruption_ppm", 20e6 / RECEIVED),
        ("frames_rx_bad_fcs", "corruption_ppm", 20e6 / RECEIVED),
        ("rx_pcs_symbol_err_phy", "symbol_error_delta", 20.0),
        ("rx_discards_phy", "host_side_delta", 20.0),
    ],
)
def test_ethtool_statistics(tmp_path: Path, statistic: str, quantity: str, value: float) -> None:
    tree, statistics = roce_pair(tmp_path)
    both = ("ens1", "ens2")
    statistics.counters = {name: {statistic: 100} for name in both}
    for name in ("mlx5_1", "mlx5_2"):
        # Where the port's own counter says nothing any more, ethtool's still does.
        tree.set(name, {"link_downed": 255})
    nics = Nics(tree, ethtool_reader=statistics)
    nics.window()
    statistics.counters["ens1"] = {statistic: 120}
    for name in ("mlx5_1", "mlx5_2"):
        tree.set(name, {"port_xmit_packets": SENT, "port_rcv_packets": RECEIVED})
    samples = nics.window()
    assert samples["mlx5_1/1"].values[quantity] == pytest.approx(value)
    assert samples["mlx5_2/1"].values[quantity] == 0
    assert samples["mlx5_1/1"].values["rate_max_gbps"] == 400
    assert "rate_max_gbps" not in samples["mlx5_2/1"].values


def test_both_counters_of_one_link_failure_count_it_once(tmp_path: Path) -> None:
    tree, statistics = roce_pair(tmp_path)
    statistics.counters = {name: {"link_down_events_phy": 1} for name in ("ens1", "ens2")}
    nics = Nics(tree, ethtool_reader=statistics)
    nics.window()
    statistics.counters["ens1"] = {"link_down_events_phy": 2}
    tree.set("mlx5_1", {"link_downed": 1})
    assert nics.window()["mlx5_1/1"].values["link_downed_delta"] == 1


def test_a_driver_that_hangs_is_left_behind(tmp_path: Path) -> None:
    tree, statistics = roce_pair(tmp_path)
    nics = Nics(tree, ethtool_reader=statistics, answer_seconds=0.2)
    assert not nics.window()["mlx5_1/1"].silent
    statistics.may_answer.clear()
    threads = threading.active_count()
    for _ in range(3):  # one question hangs; no second is asked
        samples = nics.window()
        assert set(samples) == {"mlx5_1/1", "mlx5_2/1"}
        assert all("not answered" in s.silent and not s.values for s in samples.values())
    assert threading.active_count() == threads
    assert nics.reader.nics_of(None, "mlx5_1") == ["mlx5_1/1"]
    statistics.may_answer.set()
    deadline = threading.Event()
    for _ in range(600):
        if not any(s.silent for s in nics.window().values()):
            break
        deadline.wait(0.1)
    else:
        pytest.fail("the driver answers again and is not heard")


def test_readers_that_nobody_has_any_more_hold_no_files() -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    gc.collect()  # what other tests left
    before = held()
    for _ in range(5):
        nic = NicTelemetry()
        nic.read(0, 1)
        assert held() > before
        del nic
        gc.collect()
        wait_for("files to be let go of", lambda: held() <= before or None)
