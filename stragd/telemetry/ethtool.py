"""``ethtool -S`` of a network device, through pyroute2 where that is installed.

pyroute2 finds the names; the buffer for the values is ours. The kernel writes as many values as
the driver has at that moment, which may be more than when the names were read (a queue was added):
there is room for them.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Mapping
from typing import Any, Protocol

from stragd.telemetry.rdma_counters import ETHTOOL

MAX_STATISTICS = 1 << 16
ROOM = 1 << 14
_GSTATS = 0x1D  # ETHTOOL_GSTATS of linux/ethtool.h
_STATISTICS = 1  # ETH_SS_STATS
_PATTERNS = {
    group: re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for group, patterns in ETHTOOL.items()
}
_SPEED = re.compile(r"([0-9]{2,7})base")


class Ethtool(Protocol):
    """What is asked of a network device."""

    def statistics(self, netdev: str) -> Mapping[str, int]:
        """The counters that ``group_of`` knows; empty where the device has none."""

    def highest_gbps(self, netdev: str) -> float | None:
        """The fastest mode it supports; None where that is unknown."""


def group_of(name: str) -> str:
    """The group of a statistic, "" where it has none."""
    return next((group for group, p in _PATTERNS.items() if p.fullmatch(name)), "")


class _Device:
    """One network device and where its wanted statistics are."""

    def __init__(self, module: Any, netdev: str) -> None:
        self._ioctl = module.IoctlEthtool(netdev)
        self._count = -1
        self._wanted: list[tuple[int, str]] = []
        self._values: Any = None

    def statistics(self) -> dict[str, int]:
        count = self._ioctl.get_stringset_length(_STATISTICS)
        if not 0 < count <= MAX_STATISTICS:
            return {}
        if count != self._count:
            names = self._ioctl.get_stringset(set_id=_STATISTICS)
            self._wanted = [(i, name) for i, name in enumerate(names) if group_of(name)]
            self._values = (ctypes.c_uint64 * (1 + count + ROOM))()
            self._count = count
        if not self._wanted:
            return {}
        header = (ctypes.c_uint32 * 2).from_buffer(self._values)
        header[0], header[1] = _GSTATS, count
        self._ioctl.ifreq.gstats = ctypes.cast(self._values, ctypes.c_void_p)
        self._ioctl.ioctl()
        if header[1] != count:
            self._count = -1  # other statistics than those we have the names of
            return {}
        return {name: self._values[1 + i] for i, name in self._wanted}

    def highest_gbps(self) -> float | None:
        supported = self._ioctl.get_link_mode_masks(self._ioctl.get_link_settings())[0]
        names = [bit.name for bit in self._ioctl.get_link_mode_bits(supported)]
        speeds = [int(m[1]) for name in names if (m := _SPEED.match(name))]
        return max(speeds) / 1000 if speeds else None


def _calls() -> Any:
    """pyroute2's ethtool calls alone: the rest of the package takes 14 MB of memory."""
    name = "pyroute2.ethtool.ioctl"
    spec = importlib.util.find_spec("pyroute2")
    if spec is None or not spec.submodule_search_locations or "pyroute2" in sys.modules:
        return importlib.import_module(name)
    folder = spec.submodule_search_locations[0]
    packages = {"pyroute2": folder, "pyroute2.ethtool": f"{folder}/ethtool"}
    for package, path in packages.items():
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = [path]
    try:
        return importlib.import_module(name)
    finally:  # whoever imports them later gets the whole
        for package in packages:
            del sys.modules[package]


class Pyroute2:
    """Devices of our own network namespace."""

    def __init__(self) -> None:
        self._module = _calls()
        self._devices: dict[str, _Device | None] = {}

    def _device(self, netdev: str) -> _Device | None:
        if netdev not in self._devices:
            try:
                self._devices[netdev] = _Device(self._module, netdev)
            except (OSError, self._module.EthtoolError):
                self._devices[netdev] = None
        return self._devices[netdev]

    def statistics(self, netdev: str) -> Mapping[str, int]:
        """See `Ethtool`."""
        device = self._device(netdev)
        if device is not None:
            try:
                return device.statistics()
            except (OSError, self._module.EthtoolError):
                self._devices[netdev] = None  # it has none, or has gone: not asked again
        return {}

    def highest_gbps(self, netdev: str) -> float | None:
        """See `Ethtool`. Asked when a device is found, which may have had another's name."""
        self._devices.pop(netdev, None)
        device = self._device(netdev)
        try:
            return device.highest_gbps() if device is not None else None
        except (OSError, self._module.EthtoolError, AttributeError, KeyError, TypeError):
            return None  # settings that this pyroute2 does not know


def installed() -> Pyroute2 | None:
    """The reader, None without pyroute2 (or with one of another shape)."""
    try:
        return Pyroute2()
    except (ImportError, AttributeError):
        return None
