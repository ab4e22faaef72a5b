"""Which NICs a GPU's traffic takes: PCI trees, NCCL_IB_HCA, NUMA nodes, management NICs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stragd.telemetry.affinity import Distance, Rail, distance, parse_hca, pci_address, rails
from stragd.telemetry.nic import NicTelemetry
from tests.nic_trees import NicTree, dgx, gpu_address

GPU = "/sys/devices/pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.0"


@pytest.mark.parametrize(
    ("nic", "same_node", "expected"),
    [
        # another downstream port of the GPU's switch; the port above it; a second switch
        ("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:01.0/0000:14:00.0", True, Distance.PIX),
        ("pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:00.0/0000:13:00.1", True, Distance.PIX),
        (
            "pci0000:10/0000:10:01.0/0000:11:00.0/0000:12:02.0/0000:20:00.0/0000:21:00.0/0000:22:00.0",
            True,
            Distance.PXB,
        ),
        ("pci0000:10/0000:10:03.0/0000:15:00.0", True, Distance.PHB),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", True, Distance.NODE),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", False, Distance.SYS),
        ("virtual/net/x", True, Distance.NODE),
        ("", False, Distance.SYS),
    ],
)
def test_classes_of_distance(nic: str, same_node: bool, expected: Distance) -> None:
    assert distance(GPU, f"/sys/devices/{nic}" if nic else "", same_node) is expected


def test_addresses() -> None:
    assert pci_address("00000000:1B:00.0") == "0000:1b:00.0"
    assert pci_address("0000:1b:00.0/mig-GPU-1/2/3") == "0000:1b:00.0"
    assert pci_address("00010000:1b:00.0") == "10000:1b:00.0"
    for wrong in ("", "1b:00.0", "../../etc", "0000:1b:00.9", "0000:1b:00.0\n0000:1c:00.0"):
        assert pci_address(wrong) == ""


def test_every_gpu_of_a_node_has_its_own_rail(tmp_path: Path) -> None:
    dgx(tmp_path)
    nics = NicTelemetry(tmp_path)
    for index in range(8):
        assert nics.nics_of(gpu_address(index), "") == [f"mlx5_{index}/1"]
        # As NVML writes it.
        assert nics.nics_of("0000" + gpu_address(index).upper(), "") == [f"mlx5_{index}/1"]
        assert nics.numa_node_of(gpu_address(index)) == index // 4


def test_a_management_nic_is_no_rail(tmp_path: Path) -> None:
    tree = dgx(tmp_path)
    # A GPU beside the management NIC: the nearest of all would be the bond.
    tree.pci("pci0000:00/0000:00:02.0/0000:06:00.0", numa=0)
    nics = NicTelemetry(tmp_path)
    assert "mlx5_bond_0/1" not in nics.nics_of("0000:06:00.0", "")
    (sample,) = [s for s in nics.read(0, 1) if s.subject == "mlx5_bond_0/1"]
    assert any("management" in note for note in sample.notes)
    # Unless the user says so.
    assert nics.nics_of("0000:06:00.0", "mlx5_bond_0") == ["mlx5_bond_0/1"]


def test_rails_that_are_bonds_are_rails(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for index in range(4):
        pci = tree.pci(f"pci0000:1{index}/0000:1{index}:01.0/0000:2{index}:00.0")
        tree.pci(f"pci0000:1{index}/0000:1{index}:01.0/0000:3{index}:00.0")
        tree.netdev(f"bond{index}", bond_of=())
        (tmp_path / f"sys/class/net/bond{index}/bonding").mkdir()
        tree.rdma("mlx5", name=f"mlx5_bond_{index}", pci=pci, netdev=f"bond{index}", hca="MT4129")
    other = tree.pci("pci0000:00/0000:00:01.0/0000:01:00.0")
    tree.netdev("eth0", other, default_route=True)
    tree.rdma("mlx5", name="mlx5_8", pci=other, netdev="eth0", hca="MT4125")
    nics = NicTelemetry(tmp_path)
    assert nics.nics_of("0000:32:00.0", "") == ["mlx5_bond_2/1"]


def test_a_vlan_on_a_bond_leads_to_the_management_nic(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for index in range(2):
        pci = tree.pci(f"pci0000:1{index}/0000:1{index}:01.0/0000:2{index}:00.0")
        tree.netdev(f"eth{index}", pci)
        tree.rdma("mlx5", name=f"mlx5_{index}", pci=pci, netdev=f"eth{index}")
    tree.netdev("bond0", bond_of=("eth0",))
    tree.netdev("bond0.5", bond_of=("bond0",), default_route=True)
    assert NicTelemetry(tmp_path).nics_of(None, "") == ["mlx5_1/1"]


def test_what_the_user_selects(tmp_path: Path) -> None:
    dgx(tmp_path)
    nics = NicTelemetry(tmp_path)
    # The nearest of those selected, by NUMA node where no switch is shared.
    assert nics.nics_of(gpu_address(0), "mlx5_4,mlx5_0") == ["mlx5_0/1"]
    assert nics.nics_of(gpu_address(0), "mlx5_1,mlx5_5") == ["mlx5_1/1"]
    assert nics.nics_of(gpu_address(0), "=mlx5_3:1") == ["mlx5_3/1"]
    assert nics.nics_of(gpu_address(0), "=mlx5_3:2") == []
    assert nics.nics_of(gpu_address(0), "^mlx5_0") == ["mlx5_1/1", "mlx5_2/1", "mlx5_3/1"]
    assert nics.nics_of(gpu_address(0), "nothing_like_it") == []
    assert nics.nics_of(None, "") == []  # without a GPU nothing says which of eight


def test_hidden_trees_fall_back_to_numa_nodes_or_are_unknown(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    for index in range(4):  # as a virtual machine shows it: everything on one bus
        pci = tree.pci(f"pci0000:00/0000:00:1{index}.0", numa=index // 2)
        tree.rdma("mlx5", name=f"mlx5_{index}", pci=pci)
    tree.pci("pci0000:00/0000:00:01.0", numa=1)
    tree.pci("pci0000:00/0000:00:02.0", numa=-1)
    nics = NicTelemetry(tmp_path)
    assert nics.nics_of("0000:00:01.0", "") == ["mlx5_2/1", "mlx5_3/1"]
    assert nics.nics_of("0000:00:02.0", "") == []
    assert nics.nics_of("0000:99:00.0", "") == []  # no such GPU
    assert nics.nics_of("0000:00:02.0", "mlx5_1") == ["mlx5_1/1"]  # only one can be meant


def test_no_rdma_devices_means_sockets_over_the_default_route(tmp_path: Path) -> None:
    tree = NicTree(tmp_path)
    tree.netdev("eth0", tree.pci("pci0000:00/0000:00:05.0"), default_route=True)
    tree.netdev("eth1", tree.pci("pci0000:00/0000:00:06.0"))
    assert NicTelemetry(tmp_path).nics_of(None, "") == ["eth0"]
    assert NicTelemetry(tmp_path / "empty").nics_of(None, "") == []


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("", ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("mlx5_1", ["mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),
        ("=mlx5_1", ["mlx5_1:1", "mlx5_1:2"]),
        ("mlx5_1:2", ["mlx5_1:2"]),
        ("^mlx5_1", ["mlx5_0:1"]),
        ("^=mlx5_1", ["mlx5_0:1", "mlx5_10:1"]),
        ("=mlx5_0,mlx5_10:1", ["mlx5_0:1", "mlx5_10:1"]),
        (" mlx5_0 , mlx5_1:2 ", ["mlx5_0:1", "mlx5_1:2"]),
        ("mlx5_0:x", ["mlx5_0:1", "mlx5_1:1", "mlx5_1:2", "mlx5_10:1"]),  # not understood
    ],
)
def test_nccls_syntax(text: str, taken: list[str]) -> None:
    selection = parse_hca(text)
    ports = [("mlx5_0", 1), ("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]
    assert [f"{d}:{p}" for d, p in ports if selection.takes(d, p)] == taken


def test_no_text_of_a_user_breaks_the_parser() -> None:
    random_ = random.Random(6)
    rail = Rail("mlx5_0/1", "mlx5_0", 1, "", -1, "m")
    for _ in range(2000):
        text = "".join(random_.choices("^=,: mlx5_019\0\n\ud800é²", k=random_.randrange(200)))
        rails([rail], parse_hca(text))
    assert len(parse_hca("a," * 100_000).names) <= 32
