"""Network devices from /sys/class/net: state, carrier changes, traffic, and which are management.

Reads of sysfs cost a tenth of a netlink dump parsed in Python and say the same.
"""

from __future__ import annotations

import os

from stragd.discovery.process import printable, read_bounded
from stragd.telemetry.counter import number
from stragd.telemetry.held import HeldFile
from stragd.telemetry.rdma import Reading
from stragd.telemetry.rdma_counters import RECEIVED, RECEIVED_BYTES, SENT, SENT_BYTES

MAX_LINKS = 32
MAX_LOWER = 4  # VLAN on bridge on bond on device

TRAFFIC = {
    SENT_BYTES: ("tx_bytes",),
    RECEIVED_BYTES: ("rx_bytes",),
    SENT: ("tx_packets",),
    RECEIVED: ("rx_packets",),
    "drops_per_s": ("rx_dropped", "tx_dropped", "rx_missed_errors"),
    "corruption_ppm": ("rx_crc_errors",),
}
"""Groups by files of statistics/."""


class Link:
    """One network device."""

    def __init__(self, root: str, name: str, with_traffic: bool) -> None:
        """``with_traffic``: count packets too. An RDMA port's are not the network device's."""
        base = f"{root}/sys/class/net/{name}"
        self.name = name
        self.model = f"{_driver(base) or 'network device'} Ethernet"
        self.groups: dict[str, tuple[str, ...]] = {"carrier_changes_delta": ("carrier_changes",)}
        self._files = [("carrier_changes", HeldFile(f"{base}/carrier_changes", 32))]
        self._state = HeldFile(f"{base}/operstate", 32)
        self._speed = HeldFile(f"{base}/speed", 32) if with_traffic else None
        if with_traffic:
            self.groups |= TRAFFIC
            for names in TRAFFIC.values():
                self._files += [(n, HeldFile(f"{base}/statistics/{n}", 32)) for n in names]

    def read_into(self, reading: Reading) -> None:
        """Add counters; states and ``answered`` only for a device that stands for itself."""
        for name, file in self._files:
            if (value := number(file.read())) is not None:
                reading.counters[name] = value
        if self._speed is None:
            return
        state = (self._state.read() or b"").strip()
        reading.answered = bool(state)
        down = state not in (b"up", b"unknown")  # virtual devices do not tell
        reading.values["down_count"] = float(down)
        megabits = number(self._speed.read())
        if megabits and not down and megabits < 1 << 31:  # -1 as unsigned is "unknown"
            reading.values["rate_gbps"] = megabits / 1000


def independent(root: str, taken: set[str], default: set[str]) -> list[str]:
    """Devices worth a sample of their own: physical ones that are no RDMA port's and no virtual
    functions, and what carries the default route."""
    base = f"{root}/sys/class/net"
    try:
        names = sorted(os.listdir(base))[:4096]
    except OSError:
        return []
    found = [
        name
        for name in names
        if name not in taken
        and name != "lo"
        and (
            name in default
            or (
                os.path.exists(f"{base}/{name}/device")
                and not os.path.exists(f"{base}/{name}/device/physfn")
            )
        )
    ]
    return found[:MAX_LINKS]


def default_route(root: str) -> set[str]:
    """Devices of the default routes, and those beneath them (VLAN, bridge, bond)."""
    found: set[str] = set()
    for line in (read_bounded(f"{root}/proc/net/route", 1 << 18) or b"").splitlines()[1:]:
        words = line.split()
        if len(words) >= 8 and words[1] == words[7] == b"00000000":
            found.add(words[0].decode("utf-8", "replace"))
    for line in (read_bounded(f"{root}/proc/net/ipv6_route", 1 << 18) or b"").splitlines():
        words = line.split()
        if len(words) == 10 and words[0] == b"0" * 32 and words[1] == b"00":
            found.add(words[9].decode("utf-8", "replace"))
    found.discard("lo")  # the kernel's own entry for unreachable addresses
    for _ in range(MAX_LOWER):
        found |= {lower for name in list(found) for lower in _lower(root, name)}
    return {printable(name) for name in found}


def is_bond(root: str, name: str) -> bool:
    """Whether a network device is a bond of others."""
    return bool(name) and os.path.isdir(f"{root}/sys/class/net/{name}/bonding")


def _lower(root: str, name: str) -> list[str]:
    try:
        entries = os.listdir(f"{root}/sys/class/net/{name}")
    except OSError:
        return []
    return [entry[6:] for entry in entries if entry.startswith("lower_")]


def _driver(base: str) -> str:
    try:
        return printable(os.path.basename(os.readlink(f"{base}/device/driver")))
    except OSError:
        return ""
