"""One pass over all that this node's ranks depend on, and which of it is whose.

Processes, node and NICs are read at once; the readers of GPUs answer later, from processes of their
own, so that a pass is complete at one of the next ticks. Nothing here waits for a driver longer
than the NIC reader's second, and that once: while a driver does not answer it is not asked again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from stragd.config import Telemetry
from stragd.discovery.environ import read_environ
from stragd.discovery.process import MemoryReader
from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.nic import NicTelemetry
from stragd.telemetry.reading import NO_PROCESS_LIST
from stragd.telemetry.sample import RankTelemetry, Sample

MAX_MEMBERS = 1024
GPU_SECONDS = 2.0
"""A pass is complete without the GPUs that have not answered for so long."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Member:
    """The process of a rank on this node."""

    job: int
    rank: int
    host: str
    pid: int
    start_ticks: int
    suspect: bool = False
    """Its job has an open finding: look closer."""


class GpuReader(Protocol):
    """``stragd.telemetry.gpus.GpuTelemetry`` as it is used here; no method waits."""

    @property
    def present(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    def start(self) -> None: ...
    def request(self, start_ns: int, end_ns: int) -> None: ...
    def samples(self) -> list[Sample]: ...
    def gpus_of(self, pid: int) -> list[str]: ...
    def forget(self, pid: int) -> None: ...
    def close(self) -> None: ...


class HostReader(Protocol):
    """``HostTelemetry``."""

    def read(
        self,
        pids: Mapping[int, int],
        start_ns: int,
        end_ns: int,
        numa_nodes: Mapping[int, int] | None = None,
        suspects: Collection[int] = (),
    ) -> list[Sample]: ...
    def read_node(self, start_ns: int, end_ns: int) -> Sample: ...
    def glance(self) -> None: ...


class NicReader(Protocol):
    """``NicTelemetry``."""

    def read(self, start_ns: int, end_ns: int) -> list[Sample]: ...
    def nics_of(self, gpu_pci: str | None, environment_hca: str) -> list[str]: ...
    def numa_node_of(self, gpu_pci: str) -> int: ...


@dataclass
class Part:
    """One reader's health."""

    name: str
    reason: str = ""
    """Why it gives nothing, "" when it works."""
    note: str = ""
    """What it does not give, though it works."""
    seconds: float | None = None
    """What its last pass took."""
    failed: bool = False
    """Whether it has failed since the last pass began."""


@dataclass
class _Pass:
    """A pass whose GPUs may still be missing."""

    start_ns: int
    end_ns: int
    time_ns: int  # CLOCK_REALTIME at the end
    members: tuple[Member, ...]
    processes: dict[int, Sample] = field(default_factory=dict)  # pid -> sample
    node: Sample | None = None
    nics: dict[str, Sample] = field(default_factory=dict)
    gpus: dict[str, Sample] = field(default_factory=dict)
    unanswered: dict[str, Sample] = field(default_factory=dict)
    """Silent samples of the pass before: all there is of a GPU that still does not answer."""


@dataclass(frozen=True)
class Complete:
    """A pass by job and rank."""

    time_ns: int
    """CLOCK_REALTIME at the end of its window."""
    ranks: Mapping[int, Mapping[int, RankTelemetry]]
    """Job -> rank -> telemetry."""


class Collector:
    """All readers of one node, for one thread; a reader that raises costs its samples only."""

    def __init__(
        self,
        config: Telemetry,
        fault: Callable[[str, str], None],
        *,
        host: HostReader | None = None,
        nic: NicReader | None = None,
        gpu: GpuReader | None = None,
    ) -> None:
        """``fault`` hears of a reader (name, reason) once, until it has worked again.

        ``host``, ``nic`` and ``gpu`` are given by tests.
        """
        self._fault = fault
        self._memory = MemoryReader()
        self._host: HostReader | None = None
        self._nic: NicReader | None = None
        if config.enabled and config.host:
            self._host = host or HostTelemetry(reader=self._memory)
        if config.enabled and config.nic:
            self._nic = nic or NicTelemetry()
        self._gpu = gpu or (gpu_reader(config) if config.enabled else None)
        self.parts: dict[str, Part] = {}
        for name, reader in (("host", self._host), ("nic", self._nic), ("gpu", self._gpu)):
            if reader is not None:
                self.parts[name] = Part(name)
        self._known_gpus: set[str] = set()
        self._hca: dict[tuple[int, int], str] = {}
        self._pass: _Pass | None = None
        self._last_ns = time.monotonic_ns()

    def start(self) -> None:
        """Start the readers of GPUs."""
        if self._gpu is not None:
            self._try("gpu", self._gpu.start)

    def close(self) -> None:
        """Let go of the drivers and of every file that the readers hold."""
        if self._gpu is not None:
            self._try("gpu", self._gpu.close)
        self._gpu = self._nic = self._host = None

    def glance(self) -> None:
        """Between passes: which processes are stopped now."""
        if self._host is not None:
            self._try("host", self._host.glance)

    def begin(self, members: Iterable[Member]) -> Complete | None:
        """Read; differences are to the last pass. What the last one still lacked is given up.

        The last pass, if that was not complete yet.
        """
        late = self._join() if self._pass is not None else None
        for part in self.parts.values():
            part.reason = part.reason if part.failed else ""
            part.failed = False
        chosen = tuple(members)[:MAX_MEMBERS]
        this = _Pass(self._last_ns, time.monotonic_ns(), time.time_ns(), chosen)
        self._last_ns = this.end_ns
        self._pass = this
        self._keep({(m.pid, m.start_ticks) for m in chosen})
        if self._gpu is not None:
            gpu = self._gpu
            self._try("gpu", lambda: gpu.request(this.start_ns, this.end_ns))
        if self._host is not None:
            self._timed("host", lambda: self._read_host(this))
        if self._nic is not None:
            self._timed("nic", lambda: self._read_nics(this))
        return late

    def complete(self) -> Complete | None:
        """The pass that has begun, once its GPUs have answered or are late."""
        this = self._pass
        if this is None:
            return None
        if self._gpu is not None:
            self._try("gpu", lambda: self._take_gpus(this))
            waited = (time.monotonic_ns() - this.end_ns) / 1e9
            missing = self._known_gpus.difference(this.gpus)
            if (missing or not self._known_gpus) and waited < GPU_SECONDS:
                return None
            self._known_gpus = {*this.gpus, *this.unanswered}
        return self._join()

    def _keep(self, processes: set[tuple[int, int]]) -> None:
        for process in [p for p in self._hca if p not in processes]:
            del self._hca[process]
            if self._gpu is not None:
                self._gpu.forget(process[0])

    def _read_host(self, this: _Pass) -> None:
        assert self._host is not None
        pids = {m.pid: m.start_ticks for m in this.members}
        nodes = {}
        if self._nic is not None and self._gpu is not None:
            for pid, gpu in self._gpus(pids).items():
                nodes[pid] = self._nic.numa_node_of(gpu)
        suspects = {m.pid for m in this.members if m.suspect}
        for sample in self._host.read(pids, this.start_ns, this.end_ns, nodes, suspects):
            this.processes[int(sample.subject)] = sample
        this.node = self._host.read_node(this.start_ns, this.end_ns)

    def _read_nics(self, this: _Pass) -> None:
        assert self._nic is not None
        for sample in self._nic.read(this.start_ns, this.end_ns):
            this.nics[sample.subject] = sample

    def _take_gpus(self, this: _Pass) -> None:
        assert self._gpu is not None
        latencies = []
        part = self.parts["gpu"]
        for sample in self._gpu.samples():
            if sample.end_ns >= this.end_ns:
                this.gpus[sample.subject] = sample
                latencies.append(sample.values.get("reader_latency_ms", 0.0))
                part.note = NO_PROCESS_LIST if NO_PROCESS_LIST in sample.notes else part.note
            elif sample.silent:
                this.unanswered[sample.subject] = sample
        if latencies:
            part.seconds = max(latencies) / 1e3
        if self._gpu.reason:
            self._failed("gpu", self._gpu.reason)

    def _gpus(self, pids: Iterable[int]) -> dict[int, str]:
        """The GPU of each process; who has contexts on others too has its own to itself."""
        if self._gpu is None:
            return {}
        listed = {pid: self._gpu.gpus_of(pid) for pid in pids}
        sharers = Counter(gpu for gpus in listed.values() for gpu in gpus)
        found = {}
        for pid, gpus in listed.items():
            least = min((sharers[gpu] for gpu in gpus), default=0)
            own = [gpu for gpu in gpus if sharers[gpu] == least]
            if len(own) == 1:
                found[pid] = own[0]
        return found

    def _join(self) -> Complete:
        """RankTelemetry of every member."""
        this, self._pass = self._pass, None
        assert this is not None
        by_address = {**this.unanswered, **this.gpus}
        gpus = self._try("gpu", lambda: self._gpus(m.pid for m in this.members)) or {}
        ranks: dict[int, dict[int, RankTelemetry]] = {}
        for member in this.members:
            pci = gpus.get(member.pid)
            nics = self._try("nic", partial(self._nics_of, this, member, pci)) or ()
            ranks.setdefault(member.job, {})[member.rank] = RankTelemetry(
                member.rank,
                member.host,
                this.processes.get(member.pid),
                by_address.get(pci) if pci else None,
                nics,
                this.node,
            )
        return Complete(this.time_ns, ranks)

    def _nics_of(self, this: _Pass, member: Member, pci: str | None) -> tuple[Sample, ...]:
        if self._nic is None or not this.nics:
            return ()
        subjects = self._nic.nics_of(pci, self._hca_of(this, member))
        return tuple(this.nics[subject] for subject in subjects if subject in this.nics)

    def _hca_of(self, this: _Pass, member: Member) -> str:
        """The NCCL_IB_HCA with which a process was started; only RDMA ports ask for it."""
        if not any("/" in subject for subject in this.nics):
            return ""
        process = (member.pid, member.start_ticks)
        if process not in self._hca:
            found = read_environ(self._memory, "/proc", member.pid, ("NCCL_IB_HCA",))
            self._hca[process] = (found or {}).get("NCCL_IB_HCA", "")
        return self._hca[process]

    def _timed(self, name: str, work: Callable[[], None]) -> None:
        begin = time.monotonic()
        self._try(name, work)
        self.parts[name].seconds = time.monotonic() - begin

    def _try(self, name: str, work: Callable[[], T]) -> T | None:
        try:
            return work()
        except Exception as error:
            self._failed(name, f"{type(error).__name__}: {error}")
            return None

    def _failed(self, name: str, reason: str) -> None:
        part = self.parts[name]
        part.failed = True
        if reason != part.reason:
            part.reason = reason
            self._fault(name, reason)


def gpu_reader(config: Telemetry) -> GpuReader | None:
    """The reader of GPUs; None where there is no GPU, or none is wanted."""
    reader = GpuTelemetry(nvidia=config.nvidia, amd=config.amd)
    return reader if reader.present else None
