"""Which NICs the traffic of a GPU takes: by the PCI tree, NCCL_IB_HCA and NUMA nodes.

The classes of distance are NCCL's. "Unknown" is an answer: virtual machines and some boards hide
the tree, and a guess would blame the wrong NIC.
"""

from __future__ import annotations

import enum
import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from stragd.discovery.process import read_bounded

MAX_HCA_LIST = 32  # as many as NCCL takes
_ROOT_COMPLEX = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")
_ADDRESS = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")


class Distance(enum.IntEnum):
    """How two PCI devices are connected, nearest first."""

    PIX = 0  # one switch
    PXB = 1  # several switches
    PHB = 2  # the host bridge
    NODE = 3  # host bridges of one NUMA node
    SYS = 4  # further, or not known


@dataclass(frozen=True)
class Rail:
    """What is known of a NIC that may carry the job's traffic."""

    subject: str
    device: str
    port: int
    path: str  # resolved sysfs path, "" where there is none
    numa_node: int  # -1 where not known
    model: str
    is_default_route: bool = False
    is_bond: bool = False


@dataclass(frozen=True)
class Selection:
    """A parsed NCCL_IB_HCA: [^][=]name[:port],...; without "=" a name is a prefix."""

    names: tuple[tuple[str, int], ...] = ()  # port -1: any
    excludes: bool = False
    exact: bool = False

    @property
    def names_its_own(self) -> bool:
        """Whether it says which to take, not only which to leave."""
        return bool(self.names) and not self.excludes

    def takes(self, device: str, port: int) -> bool:
        """Whether NCCL would use this port; everything where nothing is selected."""
        if not self.names:
            return True
        hit = any(
            (device == name if self.exact else device.startswith(name)) and wanted in (-1, port)
            for name, wanted in self.names
        )
        return hit != self.excludes


def parse_hca(text: str) -> Selection:
    """Parse NCCL_IB_HCA, which a user wrote; what cannot be understood selects nothing."""
    text = text.strip()
    excludes = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    text = text.removeprefix("=")
    names: list[tuple[str, int]] = []
    for part in text.split(",", MAX_HCA_LIST)[:MAX_HCA_LIST]:
        name, colon, port = part.strip().partition(":")
        if name and (not colon or (port.isascii() and port.isdigit() and len(port) < 4)):
            names.append((name, int(port) if colon else -1))
    return Selection(tuple(names), excludes, exact)


def pci_address(text: str) -> str:
    """A PCI address as sysfs writes it, four digits of domain; "" where it is none.

    NVML writes eight digits of domain; a MIG instance has "/mig-..." behind its GPU's address.
    """
    match = _ADDRESS.fullmatch(text.strip().lower().partition("/")[0])
    if not match:
        return ""
    domain = match[1].lstrip("0").rjust(4, "0")
    return f"{domain}:{match[2]}"


def gpu_path(root: str, gpu_pci: str) -> str:
    """Resolved sysfs path of a GPU; "" where there is none."""
    address = pci_address(gpu_pci)
    path = os.path.realpath(f"{root}/sys/bus/pci/devices/{address}")
    return path if address and os.path.isdir(path) else ""


def numa_node(path: str) -> int:
    """NUMA node of a PCI device; -1 where not known."""
    raw = (read_bounded(f"{path}/numa_node", 16) or b"").strip() if path else b""
    return int(raw) if raw.isdigit() and len(raw) < 6 else -1


def distance(gpu: str, nic: str, same_node: bool) -> Distance:
    """Class of the way between two resolved sysfs paths."""
    ways = [_below_root(path) for path in (gpu, nic)]
    if ways[0] and ways[1] and ways[0][0] == ways[1][0]:
        common = len(os.path.commonprefix(ways))
        if common == 1:
            return Distance.PHB
        # A switch is two bridges deep: its upstream port in common, one downstream port each.
        return Distance.PIX if max(len(way) - common for way in ways) <= 2 else Distance.PXB
    return Distance.NODE if same_node else Distance.SYS


def _below_root(path: str) -> list[str]:
    parts = path.split("/")
    starts = [i for i, part in enumerate(parts) if _ROOT_COMPLEX.fullmatch(part)]
    return parts[starts[0] :] if starts else []


def rails(nics: Sequence[Rail], selection: Selection) -> list[Rail]:
    """NICs that can be rails: the user's choice, or all but management."""
    taken = [nic for nic in nics if selection.takes(nic.device, nic.port)]
    if selection.names_its_own:
        return taken
    # Whatever carries the default route is for management, unless there is nothing else. So is an
    # odd one out: a bond or another model beside a set of equal NICs.
    others = [nic for nic in taken if not nic.is_default_route] or taken
    kinds = Counter((nic.model, nic.is_bond) for nic in others)
    most = max(kinds.values(), default=0)
    return [nic for nic in others if kinds[nic.model, nic.is_bond] == most]


def nearest(gpu: str, candidates: Sequence[Rail]) -> list[Rail]:
    """The rails that a GPU (resolved path, "" unknown) uses; empty where that cannot be told."""
    if len(candidates) <= 1:
        return list(candidates)
    if not gpu:
        return []
    node = numa_node(gpu)
    ways = [
        (distance(gpu, nic.path, node >= 0 and nic.numa_node == node), nic) for nic in candidates
    ]
    best = min(way for way, _ in ways)
    chosen = [nic for way, nic in ways if way == best]
    if best <= Distance.PXB:
        return chosen
    if best is Distance.SYS:
        return []
    if len(chosen) < len(candidates):
        return chosen
    # All alike: the tree is hidden. The NUMA node may still tell them apart.
    near = [nic for nic in candidates if node >= 0 and nic.numa_node == node]
    return near if len(near) < len(candidates) else []
