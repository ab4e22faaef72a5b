"""Types of the native core (rscore/src/python.rs)."""

from typing import Any, Literal, TypedDict, final, type_check_only

import numpy as np
from numpy.typing import NDArray

__all__ = ["RANK_WINDOW_BYTES", "RANK_WINDOW_LAYOUT", "VERSION", "Engine", "Scorer"]

VERSION: str
RANK_WINDOW_LAYOUT: list[tuple[str, str, int]]
"""(field, numpy type, offset) of a RankWindow; itemsize is RANK_WINDOW_BYTES."""
RANK_WINDOW_BYTES: int

@type_check_only
class ProcessChange(TypedDict):
    pid: int
    start_time: int  # clock ticks after boot, field 22 of /proc/PID/stat
    state: Literal["seen", "gone"]
    libraries: list[str]  # kinds: "nccl", "rccl", "gloo"

@type_check_only
class LibraryStatus(TypedDict):
    kinds: list[str]  # "nccl", "rccl", "gloo"
    path: str  # as the first process mapped it, in its mount namespace: a hint
    build_id: str  # hex, "" where the file has none
    version: str  # "2.32.3", "" where unknown
    state: Literal["attached", "not-probeable", "failed", "off", "duplicate"]
    method: Literal["uprobe_multi", "perf", ""]
    probes: int
    refused: list[str]  # "symbol: reason" (single-stepped instruction, moved arguments)
    missing: list[str]  # symbols of the table that this library does not have
    error: str  # one line, "" where there is none
    processes: list[int]

@type_check_only
class RankStatus(TypedDict):
    pid: int
    start_time: int
    job: int  # 0 while nobody assigned it
    rank: int
    world_size: int
    events: int
    records: int  # of its ring
    coverage: float | None  # share of the host's calls that the ring saw too; None: not known
    missed: list[str]  # functions of which the ring misses a stable share
    collectives: int
    irregular: int  # collectives outside the repeating sequence
    steps: int
    period: int  # collectives per step, 0 while no period is known
    signature: int
    source: int
    last_event_ns: int  # CLOCK_MONOTONIC
    in_flight: int
    communicators: list[CommunicatorStatus]

@type_check_only
class CommunicatorStatus(TypedDict):
    id: int  # first 8 bytes of the unique id, 0 where unknown
    rank: int  # -1 where unknown
    nranks: int  # 0 where unknown
    collectives: int
    hash: int  # of the ring's records of it, 0 where they are not joined
    coverage: float | None  # share of its calls that the ring saw too; None: not known

@type_check_only
class RingProgress(TypedDict):
    enqueued: int  # counts of the plugin
    started: int
    completed: int
    enqueued_ns: int  # CLOCK_MONOTONIC of the last one
    started_ns: int
    completed_ns: int
    sequence: int  # of the last enqueued: the library's; of messages: the plugin's count
    bytes: int  # of the last enqueued

@type_check_only
class RingCommunicator(TypedDict):
    hash: int  # the same on all ranks
    rank: int
    nranks: int
    nnodes: int
    name: str  # "" where the library gave none
    state: Literal["live", "ended", "unknown"]
    born_ns: int  # CLOCK_MONOTONIC
    ended_ns: int  # 0 while it lives
    functions: dict[str, RingProgress]  # by function, those with anything enqueued

@type_check_only
class RingStatus(TypedDict):
    pid: int
    start_time: int
    state: Literal["open", "ended", "refused"]  # ended: the last state of a process that is gone
    refused: str  # why it is not read, "" otherwise
    others: int  # more rings in the process, not read
    vendor: Literal["unknown", "nvidia", "amd"]
    api: int  # version of the profiler interface, 0 before the first communicator
    library: str  # "2.32.3", "" where unknown
    mode: Literal["off", "progress", "full", "default", "unknown"]  # in force
    sample: int  # of every N blocks of 4096 collectives one; 0 and 1: all
    floor: int  # bytes of the smallest message that is recorded, 0: all
    wanted: Literal[
        "default", "off", "progress", "full"
    ]  # asked for, by this daemon or an earlier one
    wanted_sample: int
    wanted_floor: int
    controllable: bool
    clock: Literal["host", "ns", "ticks", "unknown"]
    clock_hz: int  # declared or measured, 0 while not known
    clock_moved: int  # times that its offset to the host's clock was corrected
    quirk: int  # row of the plugin's table of versions, from 1; 0: none
    quirk_reason: str  # what that row says, "" without one
    chained: str  # plugin that is forwarded to, "" where there is none
    records: int
    lost: int  # records + lost: all tickets since the ring was opened
    invalid: int  # of the lost: contents that no plugin writes
    implausible: int  # of the records: device times that cannot be, left out
    jumps: int  # times that the count of tickets jumped and reading began anew
    dropped: dict[str, int]  # by the plugin: "pool", "communicator", "claim", "stale"
    communicators: list[RingCommunicator]

@final
class Engine:
    """Discovery, probes, drain and windows of one node; its threads never take the GIL.

    ``config`` keys (all optional): ring_bytes, lifecycle_ring_bytes (powers of two),
    sweep_seconds, window_steps, window_seconds, allow_single_step (bool),
    attach_method ("auto", "uprobe_multi", "perf"), max_processes.
    Raises ValueError for a bad value, OSError where the kernel refuses (the message names
    the missing capability).
    """

    def __new__(cls, config: dict[str, Any]) -> Engine: ...
    def start(self) -> None: ...
    def close(self) -> None:
        """Detach everything and join the threads; safe to call twice."""
    def take_processes(self) -> list[ProcessChange]:
        """Changes since the last call, oldest first."""
    def assign(
        self, pid: int, start_time: int, job: int, rank: int, world_size: int, class_id: int
    ) -> bool:
        """Say who a process is; False when it is already gone."""
    def take_windows(self, timeout: float) -> list[NDArray[np.void]]:
        """Wait up to ``timeout`` seconds; one structured array (RANK_WINDOW_LAYOUT) per window."""
    def ranks(self) -> list[RankStatus]: ...
    def libraries(self) -> list[LibraryStatus]: ...
    def counters(self) -> dict[str, float]:
        """Self-measurement, flat names: ``events.<what>``, ``lost.<cause>``,
        ``bpf_run_seconds`` and ``bpf_run_count`` (of the runs that were timed),
        ``bpf_run_measured`` (0 where the kernel refuses), ``discovery_lag_seconds``,
        ``sideband_lost``, ``attach_failures.<reason>``, ``duplicate_hits``,
        ``processes``, ``windows``, ``rings``, ``ring_records``, ``lost.ring``,
        ``ring_refused``, ``ring_dropped.<cause>``."""
    def rings(self) -> list[RingStatus]:
        """Every ring of a plugin: read, ended (kept for half an hour) or refused."""
    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> int:
        """Ask plugins how much to record: those of one process, or all and those to come.

        ``sample`` as in RingStatus, ``floor`` in bytes (0 or a power of two). Returns how many
        rings could be asked. Raises ValueError for a bad value."""
    def set_probes(self, on: bool) -> None:
        """Kill switch: off detaches every probe before it returns."""
    def progress(self) -> int:
        """Grows while the drain thread lives; for the watchdog."""

@type_check_only
class Finding(TypedDict):
    id: int
    job: int
    kind: Literal["straggler", "intermittent", "imbalance", "uneven-work", "job-wide", "network"]
    state: Literal["suspect", "confirmed", "recovering", "cleared"]
    rank: int | None
    class_id: int | None
    signature: int | None
    since_window: int
    since_time_ns: int  # CLOCK_REALTIME
    window: int  # last window that was scored
    slowdown: float
    cost_ns: float | None  # per step; None when steps are not inferred
    cost_low_ns: float | None
    cost_high_ns: float | None
    cost_fraction: float  # of wall
    confidence: float
    basis: Literal["peers", "history"]
    own_ns: float
    peers_own_ns: float  # median; NaN without peers
    peers: int
    work: float
    moved: int

@type_check_only
class Abstention(TypedDict):
    job: int
    rank: int
    window: int
    reason: str

@type_check_only
class Update(TypedDict):
    findings: list[Finding]  # open ones, and those that this update cleared
    abstentions: list[Abstention]
    refused_rows: int

@final
class Scorer:
    """Stateful scores of every job on this scorer: one call per window and job.

    ``config`` keys (all optional): false_alarms_per_million, min_slowdown, confirm_windows,
    clear_windows, history_windows. Raises ValueError for a bad value.
    """

    def __new__(cls, config: dict[str, Any]) -> Scorer: ...
    def update(self, windows: NDArray[np.void]) -> Update: ...
    def save(self) -> bytes:
        """The whole state but for the configuration; stragd/scoring/state.py has the format."""
    def restore(self, state: bytes) -> None:
        """Take a saved state over. Raises ValueError, and changes nothing, where it is none."""
    def ends(self, job: int) -> tuple[int, int | None, int] | None:
        """Last window, tenth of one (None: there was none) and step that were scored of a job."""
    def jobs(self) -> list[int]:
        """Every job that is known."""
    def forget(self, job: int) -> None: ...
    def inherit(self, from_job: int, to_job: int, ranks: list[int]) -> int:
        """Let ranks of one job that have no past take over that of the same ranks of another.

        For a job that was started anew, and ranks that run where they ran. How many there were;
        findings stay with the job that was.
        """
