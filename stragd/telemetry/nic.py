"""One sample per NIC port and window: RDMA ports with their network devices, and other devices.

The subject is "mlx5_0/1" for an RDMA port and "eth0" for a device without one. The model is the
adapter and its link layer, never the rate: a NIC that came up slower stays comparable.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stragd.telemetry import affinity, ethtool, links
from stragd.telemetry.counter import Change, Counters
from stragd.telemetry.intime import InTime
from stragd.telemetry.rdma import Port, Reading, port_names
from stragd.telemetry.rdma_counters import PER_SENT, RECEIVED, SENT
from stragd.telemetry.sample import Sample

DISCOVER_EVERY = 12  # windows
VANISHED_FOR = 12  # windows in which a NIC that has gone is still spoken of
ANSWER_SECONDS = 1.0
_ETHTOOL = "ethtool "  # before names of ethtool statistics, which drivers choose freely


@dataclass
class _Nic:
    """One subject."""

    subject: str
    model: str
    port: Port | None
    link: links.Link | None
    netdev: str
    numa_node: int = -1
    default_route: bool = False
    bond: bool = False
    counters: Counters = field(default_factory=Counters)
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Quantity -> counters that are added."""
    fallback: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The same for quantities that ``groups`` may not have."""
    statistics: set[str] = field(default_factory=set)
    """Counters of ethtool that are in one of the two."""
    rate_max_gbps: float | None = None
    missing: int = 0

    def rail(self) -> affinity.Rail:
        port = self.port
        return affinity.Rail(
            self.subject,
            port.device if port else self.netdev,
            port.number if port else 1,
            port.pci_path if port else "",
            self.numa_node,
            self.model,
            self.default_route,
            self.bond,
        )


class NicTelemetry:
    """Reads all NICs of a node."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        ethtool_reader: ethtool.Ethtool | None = None,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """``ethtool_reader``: pyroute2's where that is installed and ``root`` is this machine."""
        self._root = str(root).rstrip("/")
        self._clock = clock
        self._ethtool = ethtool_reader
        if ethtool_reader is None and not self._root:
            self._ethtool = ethtool.installed()
        self._nics: dict[str, _Nic] = {}
        self._until_discovery = 0
        self._calls: InTime[list[Sample]] = InTime("stragd-nic", answer_seconds)

    def read(self, start_ns: int, end_ns: int) -> list[Sample]:
        """One sample per NIC. Differences are to the last call; the first has only states.

        Returns within ANSWER_SECONDS; where the drivers do not, every NIC known is silent.
        """
        samples = self._calls.call(lambda: self._read(start_ns, end_ns))
        if samples is not None:
            return samples
        silent = f"the NICs' drivers have not answered for {self._calls.late_s:.0f} s"
        return [
            Sample("nic", nic.subject, nic.model, start_ns, end_ns, silent=silent)
            for nic in self._nics.values()
        ]

    def _read(self, start_ns: int, end_ns: int) -> list[Sample]:
        if self._until_discovery <= 0:
            self._discover()
        self._until_discovery -= 1
        now_ns = self._clock()
        samples = [self._sample(nic, now_ns, start_ns, end_ns) for nic in self._nics.values()]
        if any(nic.missing > VANISHED_FOR for nic in self._nics.values()):
            self._nics = {s: nic for s, nic in self._nics.items() if nic.missing <= VANISHED_FOR}
        return samples

    def nics_of(self, gpu_pci: str | None, environment_hca: str) -> list[str]:
        """Subjects of the NICs that a rank's traffic takes; empty where that is not known.

        ``gpu_pci``: address of the rank's GPU, None for a rank without one; ``environment_hca``:
        its NCCL_IB_HCA, "" where it has none. On a node without RDMA devices sockets carry the
        traffic, over the device of the default route.
        """
        if not self._nics:
            self._calls.call(self._discover)
        known = list(self._nics.values())
        ported = [nic.rail() for nic in known if nic.port is not None]
        if not ported:
            return [nic.subject for nic in known if nic.default_route]
        candidates = affinity.rails(ported, affinity.parse_hca(environment_hca))
        gpu = affinity.gpu_path(self._root, gpu_pci or "")
        return [rail.subject for rail in affinity.nearest(gpu, candidates)]

    def numa_node_of(self, gpu_pci: str) -> int:
        """NUMA node of a PCI device, for `HostTelemetry.read`; -1 where not known."""
        return affinity.numa_node(affinity.gpu_path(self._root, gpu_pci))

    def _discover(self) -> list[Sample]:
        """Look for NICs; those that answer stay as they are. No samples."""
        self._until_discovery = DISCOVER_EVERY
        default = links.default_route(self._root)
        found: dict[str, _Nic] = {}
        taken: set[str] = set()
        for device, number in port_names(self._root):
            nic = self._known(f"{device}/{number}") or self._of_port(
                Port(self._root, device, number)
            )
            taken.add(nic.netdev)
            found[nic.subject] = nic
        for name in links.independent(self._root, taken, default):
            found[name] = self._known(name) or self._of_link(links.Link(self._root, name, True))
        for nic in found.values():
            nic.default_route = nic.netdev in default
            if nic.port:
                nic.port.refresh()
        gone = {subject: nic for subject, nic in self._nics.items() if subject not in found}
        self._nics = found | gone
        return []

    def _known(self, subject: str) -> _Nic | None:
        nic = self._nics.get(subject)
        return nic if nic is not None and nic.missing == 0 else None

    def _of_port(self, port: Port) -> _Nic:
        link = links.Link(self._root, port.netdev, False) if port.netdev else None
        nic = _Nic(port.subject, port.model, port, link, port.netdev)
        nic.numa_node = affinity.numa_node(port.pci_path)
        return self._completed(nic)

    def _of_link(self, link: links.Link) -> _Nic:
        return self._completed(_Nic(link.name, link.model, None, link, link.name))

    def _completed(self, nic: _Nic) -> _Nic:
        nic.groups = {
            **(nic.port.groups if nic.port else {}),
            **(nic.link.groups if nic.link else {}),
        }
        nic.bond = links.is_bond(self._root, nic.netdev)
        if nic.netdev and self._ethtool:
            nic.rate_max_gbps = self._ethtool.highest_gbps(nic.netdev)
        if (before := self._nics.get(nic.subject)) is not None:
            nic.counters = before.counters  # it is back: its counters may have gone on
        return nic

    def _sample(self, nic: _Nic, now_ns: int, start_ns: int, end_ns: int) -> Sample:
        reading = nic.port.read() if nic.port else Reading()
        if nic.link:
            nic.link.read_into(reading)
        if not reading.answered:
            nic.missing += 1
            self._until_discovery = 0  # it may be back under the same name
            silent = f"{nic.subject} has vanished"
            return Sample("nic", nic.subject, nic.model, start_ns, end_ns, silent=silent)
        nic.missing = 0
        if self._ethtool and nic.netdev:
            self._add_statistics(nic, self._ethtool.statistics(nic.netdev), reading)
        bits = nic.port.bits if nic.port else {}
        change = nic.counters.advance(now_ns, reading.counters, bits)
        notes = list(reading.notes)
        if any(bits.get(name, 64) == 64 for name in change.back):
            notes.append("its counters began anew: no differences in this window")
        else:
            reading.values.update(_rates(change, nic.fallback))
            reading.values.update(_rates(change, nic.groups))
        self._rates_at_best(nic, reading.values)
        if nic.default_route:
            notes.append("carries the default route: management, no rail")
        return Sample("nic", nic.subject, nic.model, start_ns, end_ns, reading.values, tuple(notes))

    def _add_statistics(self, nic: _Nic, statistics: Mapping[str, int], reading: Reading) -> None:
        for name, value in statistics.items():
            key = _ETHTOOL + name
            reading.counters[key] = value
            if key not in nic.statistics:
                nic.statistics.add(key)
                group = ethtool.group_of(name)
                # Both count the same failures of the link; packets and pauses are others.
                into = nic.fallback if group == "link_downed_delta" else nic.groups
                into[group] = (*into.get(group, ()), key)

    def _rates_at_best(self, nic: _Nic, values: dict[str, float]) -> None:
        if nic.port:
            values.update(nic.port.pcie)
        if nic.rate_max_gbps is not None:
            # A mode that pyroute2 has no name for yet may be faster than those it knows.
            nic.rate_max_gbps = max(nic.rate_max_gbps, values.get("rate_gbps", 0.0))
            values["rate_max_gbps"] = nic.rate_max_gbps


def _rates(change: Change, groups: Mapping[str, tuple[str, ...]]) -> dict[str, float]:
    """Values of the groups by the unit in their name; a group without one is not reported."""
    by, seconds = change.by, change.seconds
    if not by:
        return {}
    totals: dict[str, int] = {}
    for group, names in groups.items():
        if len(names) == 1:
            if names[0] in by:
                totals[group] = by[names[0]]
        elif counted := [by[name] for name in names if name in by]:
            totals[group] = sum(counted)
    values: dict[str, float] = {}
    sent, received = totals.get(SENT), totals.get(RECEIVED)
    for group, total in totals.items():
        if group.endswith("_ppm"):
            if packets := sent if group in PER_SENT else received:
                values[group] = 1e6 * total / packets
        elif group.endswith("_delta"):
            values[group] = total
        elif group.endswith("_per_s"):
            values[group] = total / seconds
    if sent is not None and received is not None:
        values["packets_per_s"] = (sent + received) / seconds
    return values
