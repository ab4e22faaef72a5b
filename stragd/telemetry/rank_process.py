"""What the host did to one rank: the readings of its process, workers, cgroup and namespace."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from stragd.discovery.environ import read_environ
from stragd.discovery.process import MemoryReader, read_bounded
from stragd.telemetry import tooling
from stragd.telemetry.cgroup import Cgroups, Group
from stragd.telemetry.counter import Change, Counters, number, put
from stragd.telemetry.held import HeldFile
from stragd.telemetry.node import cpu_list
from stragd.telemetry.placement import NumaNodes
from stragd.telemetry.tasks import (
    BLOCKED,
    FIRST_SLICE,
    MAX_WORKERS,
    SEARCH_SLICE,
    SLICE,
    TICK_NS,
    TICKS_PER_S,
    Tree,
    io_read_bytes,
    parse_stat,
)
from stragd.telemetry.tcp import Namespaces

LOOK_EVERY = 12  # windows between two looks at the threads, children and cgroup of a rank
THREADS_AFTER = 3  # windows, where the threads that are read do not explain its CPU time
LEAST_GLANCES = 4  # for a share of them
STOPPED = "Tt"
STATUS = (
    b"TracerPid",
    b"VmSwap",
    b"Cpus_allowed_list",
    b"voluntary_ctxt_switches",
    b"nonvoluntary_ctxt_switches",
)


class Gone(Exception):
    """The process has ended, or its pid is another's now; the text says which."""


@dataclass(frozen=True)
class Pass:
    """What all ranks share in one pass."""

    now_ns: int
    ranks: Mapping[int, int]
    disk_waits: bool  # the kernel counts them, now


class RankProcess:
    """The process of one rank."""

    def __init__(self, root: str, pid: int, start_ticks: int, reader: MemoryReader) -> None:
        self._proc, self._pid, self.start_ticks = f"{root}/proc", pid, start_ticks
        self.directory = f"{root}/proc/{pid}"
        self._stat = HeldFile(f"{self.directory}/stat")
        self._status = HeldFile(f"{self.directory}/status", 1 << 14)
        self._io = HeldFile(f"{self.directory}/io", 512)
        self._tree = Tree(self._proc, pid, start_ticks)
        self._counters = Counters()
        self._cgroup_text: bytes | None = None
        self._until_look = self._until_threads = 0
        self._was_stopped: bool | None = None
        self._glances = self._stops = self._blocks = 0  # since the last read
        # Only processes that were started with delay accounting on are counted.
        self._disk_waits = True
        self._tools: tuple[str, ...] | None = None
        self._reader = reader
        self.group: Group | None = None
        self.namespace = ""
        self.processor = -1

    def glance(self) -> None:
        """Look whether it is stopped now."""
        fields = parse_stat(self._stat.read())
        if fields is not None and fields.start_ticks == self.start_ticks:
            self._glances += 1
            self._stops += fields.state in STOPPED
            self._blocks += fields.state == BLOCKED
        if not self._disk_waits:
            self._tree.glance()

    def read(
        self, this: Pass, cgroups: Cgroups, namespaces: Namespaces, numa: NumaNodes, node: int
    ) -> tuple[dict[str, float], list[str]]:
        """Values and notes of the window that ends now; raises Gone."""
        fields = parse_stat(self._stat.read())
        if fields is None or fields.state in "ZX":
            raise Gone("the process has ended")
        if fields.start_ticks != self.start_ticks:
            raise Gone("the process has ended, and its pid is another's now")
        self.processor = fields.processor
        status = _status(self._status.read() or b"", STATUS)
        values: dict[str, float] = {}
        notes: list[str] = []

        self._disk_waits = self._disk_waits and this.disk_waits
        several_nodes = node >= 0 and len(numa.cpus) > 1
        self._tree.refresh(this.now_ns, with_stat=self._disk_waits or several_nodes)
        change = self._own(this, fields.cpu_ticks, fields.major_faults, status, values)
        self._threads(values)
        self._workers(change, values)
        if not self._disk_waits:
            self._waits_by_glances(values)
        self._look(this, values.get("cpu_share"), fields.threads, cgroups, notes)

        frozen = False
        if self.group is not None:
            values.update(self.group.values(this.now_ns))
            frozen = self.group.frozen
        values.update(namespaces.retransmits(this.now_ns, self.namespace, self.directory))

        stopped = fields.state in STOPPED or frozen
        if self._was_stopped is not None:
            # A frozen task does not look stopped: only both ends of the window tell.
            stops = self._glances if frozen and self._was_stopped else self._stops
            values["stopped_share"] = ((self._was_stopped + stopped) / 2 + stops) / (
                1 + self._glances
            )
        self._was_stopped = stopped
        self._glances = self._stops = self._blocks = 0
        if frozen:
            notes.append("its cgroup is frozen")
        if tracer := number(status.get(b"TracerPid")):
            notes.append(f"traced by process {tracer}")
        if several_nodes:
            self._placement(numa, node, status, values, notes)
        return values, notes

    def _own(
        self,
        this: Pass,
        cpu_ticks: int,
        faults: int,
        status: Mapping[bytes, bytes],
        values: dict[str, float],
    ) -> Change:
        reading = {"cpu_ticks": cpu_ticks, "major_faults": faults}
        for key, name in (
            (b"voluntary_ctxt_switches", "voluntary"),
            (b"nonvoluntary_ctxt_switches", "involuntary"),
        ):
            if (count := number(status.get(key))) is not None:
                reading[name] = count
        if (read_bytes := io_read_bytes(self._io.read())) is not None:
            reading["read_bytes"] = read_bytes
        change = self._counters.advance(this.now_ns, reading)
        if (ticks := change.per_s("cpu_ticks")) is not None:
            values["cpu_share"] = ticks / TICKS_PER_S
        put(values, "major_faults_per_s", change.per_s("major_faults"))
        put(values, "voluntary_switches_per_s", change.per_s("voluntary"))
        put(values, "involuntary_switches_per_s", change.per_s("involuntary"))
        swapped = status.get(b"VmSwap", b"").split()
        if swapped and swapped[0].isdigit():
            values["swap_bytes"] = int(swapped[0]) * 1024
        return change

    def _threads(self, values: dict[str, float]) -> None:
        changes = [thread.change for thread in self._tree.threads.values()]
        queues = [s for c in changes if (s := c.share("queue_ns", 1.0)) is not None]
        if queues:
            values["run_queue_share"] = max(queues)
        if self._disk_waits:
            changes += [worker.change for worker in self._tree.workers.values()]
            waits = [s for c in changes if (s := c.share("disk_wait_ticks", TICK_NS)) is not None]
            if waits:
                values["disk_wait_share"] = max(waits)

    def _workers(self, own: Change, values: dict[str, float]) -> None:
        changes = [w.change for w in self._tree.workers.values() if w.change.by]
        read = [c.per_s("read_bytes") for c in [own, *changes]]
        if read[0] is not None:
            values["read_bytes_per_s"] = sum(rate for rate in read if rate is not None)
        if not self._was_looked_at:
            return
        values["worker_count"] = len(self._tree.workers)
        if not changes:
            return
        values["worker_cpu_share"] = sum(c.per_s("cpu_ticks") or 0.0 for c in changes) / TICKS_PER_S
        queues = [s for c in changes if (s := c.share("queue_ns", 1.0)) is not None]
        if queues:
            values["worker_run_queue_share"] = max(queues)
        if self._disk_waits:
            # Pools of idle helpers (compilers) must not dilute the loaders.
            active = [c for c in changes if c.by.get("cpu_ticks") or c.by.get("disk_wait_ticks")]
            waits = [s for c in active if (s := c.share("disk_wait_ticks", TICK_NS)) is not None]
            values["worker_disk_wait_share"] = sum(waits) / len(waits) if waits else 0.0

    def _waits_by_glances(self, values: dict[str, float]) -> None:
        """How often the main thread and the workers were seen to wait for a disk."""
        shares = []
        # A GPU's driver blocks the main thread as well, but reads nothing.
        if self._glances >= LEAST_GLANCES and values.get("read_bytes_per_s"):
            shares.append(self._blocks / self._glances)
        workers = self._tree.workers.values()
        glances = sum(w.glances for w in workers)
        if glances >= LEAST_GLANCES:
            active = [w for w in workers if w.blocks or w.change.by.get("cpu_ticks")]
            glances = sum(w.glances for w in active)
            share = sum(w.blocks for w in active) / glances if glances else 0.0
            values["worker_disk_wait_share"] = share
            shares.append(share)
        if shares:
            values["disk_wait_share"] = max(shares)
        for worker in workers:
            worker.glances = worker.blocks = 0

    @property
    def _was_looked_at(self) -> bool:
        return self._tools is not None

    def _look(
        self,
        this: Pass,
        cpus: float | None,
        threads: int,
        cgroups: Cgroups,
        notes: list[str],
    ) -> None:
        """Now and then: threads, children, cgroup, namespace; once: the environment."""
        if self._tools is None:
            # Ranks that begin together are looked at in different windows from then on.
            self._until_look = self._until_threads = self._pid % LOOK_EVERY
            environment = read_environ(self._reader, self._proc, self._pid, tooling.NAMES)
            unread = ("its environment cannot be read",)
            self._tools = unread if environment is None else tooling.notes(environment)
            self._tree.look_at_threads(this.now_ns, FIRST_SLICE)
            self._look_now(this, cgroups)
        elif self._until_look <= 0 or self._tree.children_changed():
            self._until_look = LOOK_EVERY
            self._look_now(this, cgroups)
        self._until_look -= 1
        self._until_threads -= 1
        soon = self._until_threads <= LOOK_EVERY - THREADS_AFTER and not self._tree.explains(cpus)
        if soon or self._until_threads <= 0:
            self._until_threads = LOOK_EVERY
            self._tree.look_at_threads(this.now_ns, SEARCH_SLICE if soon else SLICE)
        notes += self._tools
        census = self._tree.census
        if threads > FIRST_SLICE:
            notes.append(f"{threads} threads: the main and the busiest known are read")
        if census.children > MAX_WORKERS:
            notes.append(f"{census.children} children: the busiest {MAX_WORKERS} are read")
        if not self._disk_waits:
            notes.append("disk waits are sampled: it was started with kernel.task_delayacct=0")

    def _look_now(self, this: Pass, cgroups: Cgroups) -> None:
        self._tree.look_for_workers(this.now_ns, this.ranks)
        raw = read_bounded(f"{self.directory}/cgroup", 1 << 16)
        if raw is not None and raw != self._cgroup_text:
            self._cgroup_text, self.group = raw, cgroups.of(raw)
        try:
            self.namespace = os.readlink(f"{self.directory}/ns/net")
        except OSError:
            self.namespace = self.directory  # of itself alone

    def _placement(
        self,
        numa: NumaNodes,
        node: int,
        status: Mapping[bytes, bytes],
        values: dict[str, float],
        notes: list[str],
    ) -> None:
        allowed = cpu_list(status.get(b"Cpus_allowed_list"))
        threads = self._tree.threads.values()
        ran = ((t.processor, t.change.by.get("run_ns", 0)) for t in threads)
        share = numa.remote_share(node, allowed, ran)
        put(values, "numa_remote_share", share)
        if share == 1.0 and allowed and allowed.isdisjoint(numa.cpus[node]):
            homes = sorted(home for home, cpus in numa.cpus.items() if not allowed.isdisjoint(cpus))
            where = ", ".join(map(str, homes[:8]))
            notes.append(f"may run on NUMA node {where} only, its GPU is on node {node}")


def _status(raw: bytes, names: tuple[bytes, ...]) -> dict[bytes, bytes]:
    """Wanted lines of a status file, in the order in which it has them."""
    found: dict[bytes, bytes] = {}
    position = 0
    for name in names:
        begin = raw.find(b"\n" + name + b":", position)
        if begin >= 0:  # a name within a line cannot follow a line's end
            end = raw.find(b"\n", begin + 1)
            position = end if end >= 0 else len(raw)
            found[name] = raw[begin + len(name) + 2 : position].strip()
    return found
