"""On which NUMA nodes a process may run and does run, against the node of its GPU."""

from __future__ import annotations

import os
from collections.abc import Iterable

from stragd.discovery.process import read_bounded
from stragd.telemetry.node import cpu_list

MAX_NODES = 1024


class NumaNodes:
    """CPUs of each NUMA node."""

    def __init__(self, root: str) -> None:
        base = f"{root}/sys/devices/system/node"
        try:
            names = sorted(os.listdir(base))[: 2 * MAX_NODES]
        except OSError:
            names = []
        self.cpus: dict[int, frozenset[int]] = {}
        for name in names:
            if name.startswith("node") and name[4:].isdigit():
                cpus = cpu_list(read_bounded(f"{base}/{name}/cpulist", 4096))
                if cpus:  # a node may be memory alone
                    self.cpus[int(name[4:])] = cpus

    def remote_share(
        self, node: int, allowed: frozenset[int], ran: Iterable[tuple[int, int]]
    ) -> float | None:
        """Share of CPU time away from ``node``; None where there is no other, or nothing known.

        ``allowed``: CPUs on which the process may run. ``ran``: (CPU it was on last, ns that it
        ran) of each thread; asked only where the allowed CPUs leave it open.
        """
        local = self.cpus.get(node)
        if local is None or len(self.cpus) < 2 or not allowed:
            return None
        if allowed.isdisjoint(local):
            return 1.0
        if allowed <= local:
            return 0.0
        total = remote = 0
        for processor, ns in ran:
            if processor >= 0:
                total += ns
                remote += ns if processor not in local else 0
        return remote / total if total else None
