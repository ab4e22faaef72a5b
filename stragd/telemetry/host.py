"""What the host did to each rank, from /proc, cgroups and PSI alone; no eBPF, nothing attached."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from stragd.discovery.hardware import cpu_class
from stragd.discovery.process import MemoryReader
from stragd.telemetry.cgroup import Cgroups
from stragd.telemetry.held import HeldFile
from stragd.telemetry.node import Node
from stragd.telemetry.placement import NumaNodes
from stragd.telemetry.rank_process import Gone, Pass, RankProcess
from stragd.telemetry.sample import Sample
from stragd.telemetry.sockets import LATE, Sockets
from stragd.telemetry.tcp import Namespaces

MAX_RANKS = 1024


class HostTelemetry:
    """Reads all ranks of a node, and the node."""

    def __init__(
        self,
        root: Path = Path("/"),
        *,
        reader: MemoryReader | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._root = str(root).rstrip("/")
        self._reader = reader or MemoryReader()
        self._clock = clock
        self._ranks: dict[int, RankProcess] = {}
        self._cgroups = Cgroups(self._root)
        self._namespaces = Namespaces()
        self._sockets = None if self._root else Sockets(self._root)
        self._numa = NumaNodes(self._root)
        self._node = Node(self._root)
        self._cpu = cpu_class(f"{self._root}/proc")
        self._delayacct = HeldFile(f"{self._root}/proc/sys/kernel/task_delayacct", 16)

    def read(
        self,
        pids: Mapping[int, int],
        start_ns: int,
        end_ns: int,
        numa_nodes: Mapping[int, int] | None = None,
        suspects: Collection[int] = (),
    ) -> list[Sample]:
        """One sample per process of ``pids`` (pid -> start time in clock ticks after boot).

        Differences are to the last call; the first has only states. A process that is not asked
        for any more is forgotten. ``numa_nodes``: pid -> NUMA node of its GPU, where known.
        The TCP connections of ``suspects`` are read every time, those of others now and then.
        """
        this = Pass(self._clock(), pids, (self._delayacct.read() or b"").strip() == b"1")
        self._ranks = {pid: rank for pid, rank in self._ranks.items() if pid in pids}
        samples: list[Sample] = []
        pids = dict(list(pids.items())[:MAX_RANKS])
        connections = self._sockets.read(pids, suspects) if self._sockets else {}
        for pid, start_ticks in pids.items():
            rank = self._ranks.get(pid)
            if rank is None or rank.start_ticks != start_ticks:
                rank = self._ranks[pid] = RankProcess(self._root, pid, start_ticks, self._reader)
            node = (numa_nodes or {}).get(pid, -1)
            values: dict[str, float] = {}
            notes: list[str] = []
            silent = ""
            try:
                values, notes = rank.read(this, self._cgroups, self._namespaces, self._numa, node)
                values.update((connections or {}).get(pid, {}))
                notes += [LATE] if connections is None else []
            except Gone as gone:
                silent = str(gone)
            samples.append(
                Sample("process", str(pid), "", start_ns, end_ns, values, tuple(notes), silent)
            )
        self._cgroups.keep({r.group for r in self._ranks.values() if r.group is not None})
        self._namespaces.keep({rank.namespace for rank in self._ranks.values()})
        return samples

    def glance(self) -> None:
        """Look which ranks are stopped now: a stop within a window has ended at its end."""
        for rank in self._ranks.values():
            rank.glance()

    def read_node(self, start_ns: int, end_ns: int) -> Sample:
        """The node, since the last call; clocks are of the CPUs on which ranks were last seen."""
        cpus = {rank.processor for rank in self._ranks.values() if rank.processor >= 0}
        values = self._node.values(self._clock(), cpus)
        return Sample("node", "", self._cpu, start_ns, end_ns, values)
