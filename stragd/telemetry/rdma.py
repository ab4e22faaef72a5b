"""RDMA ports from /sys/class/infiniband: state, rate, counters. Each file is read once a window.

Reading costs the NIC a firmware command or a management datagram, not only a copy.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from stragd.discovery.process import printable, read_bounded
from stragd.telemetry.counter import number
from stragd.telemetry.held import HeldFiles
from stragd.telemetry.rdma_counters import (
    DATA_WORD_BYTES,
    DRIVERS,
    HW_BITS,
    PORT_COUNTERS,
    PREFIXES,
    RECEIVED_BYTES,
    SENT_BYTES,
    hw_groups,
)

MAX_DEVICES = 64
MAX_PORTS = 4
_RATE = re.compile(rb"([0-9]{1,6}(?:\.[0-9]{1,3})?) Gb/sec(?: \(([0-9]{1,2})X)?")


@dataclass
class Reading:
    """One reading of a port."""

    counters: dict[str, int] = field(default_factory=dict)  # by file
    values: dict[str, float] = field(default_factory=dict)  # states
    notes: list[str] = field(default_factory=list)
    answered: bool = False


class _Counter(NamedTuple):
    """One counter of a port."""

    name: str
    path: str
    largest: int
    """Where it sticks, 0 for one that wraps."""
    unit: int


class Port:
    """One port of one RDMA device."""

    def __init__(self, root: str, device: str, number_: int) -> None:
        base = f"{root}/sys/class/infiniband/{device}"
        port = f"{base}/ports/{number_}"
        self.device, self.number = device, number_
        self.subject = f"{device}/{number_}"
        self.link_layer = _text(f"{port}/link_layer")
        self.driver = driver_of(base, device)
        self.netdev = _netdev(base, port, number_)
        self.pci_path = _pci_path(base)
        kind = _text(f"{base}/hca_type") or self.driver or device
        self.model = f"{kind} {self.link_layer}".strip()
        self._device = f"{base}/device"
        self.pcie: dict[str, float] = {}
        self._states = HeldFiles([f"{port}/{name}" for name in ("state", "phys_state", "rate")], 64)
        self.groups: dict[str, tuple[str, ...]] = {}  # group -> files, which are added
        self.bits: dict[str, int] = {}
        self._counters: list[_Counter] = []
        self._find_counters(base, port)
        self._files = HeldFiles([counter.path for counter in self._counters], 32)
        # The texts of the last reading and what they mean: most errors never happen.
        self._texts: list[bytes | None] = [b""] * len(self._counters)
        self._numbers: dict[str, int] = {}
        self._stuck: dict[str, str] = {}

    def refresh(self) -> None:
        """Read again what changes seldom: the PCIe link, which may have been trained anew."""
        self.pcie = _pcie(self._device)

    def _find_counters(self, base: str, port: str) -> None:
        for name in _names(f"{port}/counters"):
            if name in PORT_COUNTERS:
                group, bits = PORT_COUNTERS[name]
                unit = DATA_WORD_BYTES if group in (SENT_BYTES, RECEIVED_BYTES) else 1
                self._hold(f"{port}/counters/{name}", name, bits, unit)
                self.groups[group] = (name,)
        # Some counters are the port's, some the whole device's (EFA has both).
        places = {name: f"{base}/hw_counters/{name}" for name in _names(f"{base}/hw_counters")}
        places |= {name: f"{port}/hw_counters/{name}" for name in _names(f"{port}/hw_counters")}
        bits = HW_BITS.get(self.driver, 64)
        for group, terms in hw_groups(self.driver).items():
            if group in self.groups and group not in ("drops_per_s", "corruption_ppm"):
                continue  # the class's own counter says the same
            found = [next((n for n in term.split("|") if n in places), "") for term in terms]
            for name in filter(None, found):
                self._hold(places[name], name, bits, 1)
            if any(found):
                self.groups[group] = (*self.groups.get(group, ()), *filter(None, found))

    def _hold(self, path: str, name: str, bits: int, unit: int) -> None:
        if name not in self.bits:
            largest = (1 << bits) - 1 if bits < 32 else 0
            self._counters.append(_Counter(name, path, largest, unit))
            self.bits[name] = bits

    def read(self) -> Reading:
        """Everything now; ``answered`` is False where the device has gone."""
        reading = Reading()
        state, physical, rate = self._states.read()
        reading.answered = state is not None
        if state is None:
            return reading
        down = b"ACTIVE" not in state or (physical is not None and b"LinkUp" not in physical)
        reading.values["down_count"] = float(down)
        match = _RATE.match(rate or b"")
        if match and not down:
            reading.values["rate_gbps"] = float(match[1])
            if match[2]:
                reading.values["width_count"] = float(match[2])
        texts = self._files.read()
        if texts != self._texts:
            for counter, now, before in zip(self._counters, texts, self._texts, strict=True):
                if now != before:
                    self._take(counter, now)
            self._texts = texts
        reading.counters = dict(self._numbers)
        reading.notes = list(self._stuck.values())
        return reading

    def _take(self, counter: _Counter, text: bytes | None) -> None:
        """A counter has another text than at the last reading."""
        name, value = counter.name, number(text)
        self._numbers.pop(name, None)
        self._stuck.pop(name, None)
        if value is None:
            return
        if counter.largest and value >= counter.largest:
            self._stuck[name] = f"{name} is saturated at {value}: its events are unknown"
        else:
            self._numbers[name] = value * counter.unit


def port_names(root: str) -> list[tuple[str, int]]:
    """(device, port) of all RDMA ports of the node, by name."""
    found: list[tuple[str, int]] = []
    base = f"{root}/sys/class/infiniband"
    for device in _names(base)[:MAX_DEVICES]:
        numbers = sorted(int(n) for n in _names(f"{base}/{device}/ports") if n.isdigit())
        found += [(device, n) for n in numbers[:MAX_PORTS]]
    return found


def driver_of(base: str, device: str) -> str:
    """Name of the counter table; "" where the driver is not known."""
    try:
        name = os.path.basename(os.readlink(f"{base}/device/driver"))
    except OSError:
        raw = read_bounded(f"{base}/device/uevent", 4096) or b""
        name = raw.partition(b"DRIVER=")[2].partition(b"\n")[0].decode("ascii", "replace")
    by_prefix = (table for prefix, table in PREFIXES if device.startswith(prefix))
    return DRIVERS.get(name) or next(by_prefix, "")


def _netdev(base: str, port: str, number_: int) -> str:
    """Network device of a port: of its first GID, or the PCI function's with this port number."""
    if name := _text(f"{port}/gid_attrs/ndevs/0"):
        return name
    for name in _names(f"{base}/device/net"):
        dev_port = number(read_bounded(f"{base}/device/net/{name}/dev_port", 16))
        if dev_port in (None, number_ - 1):
            return name
    return ""


def _pci_path(base: str) -> str:
    device = os.path.realpath(f"{base}/device")
    return device if os.path.isdir(device) and "/pci" in device else ""


def _pcie(device: str) -> dict[str, float]:
    """Raw rate of the PCIe link, now and at best."""
    values: dict[str, float] = {}
    for name, prefix in (("pcie_gbps", "current"), ("pcie_max_gbps", "max")):
        speed = _text(f"{device}/{prefix}_link_speed").partition(" ")[0]
        width = number(read_bounded(f"{device}/{prefix}_link_width", 16))
        if width and re.fullmatch(r"[0-9]{1,3}(\.[0-9]+)?", speed):
            values[name] = float(speed) * width
    return values


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))[:4096]
    except OSError:
        return []


def _text(path: str | Path) -> str:
    return printable((read_bounded(path, 256) or b"").decode("utf-8", "replace").strip())
