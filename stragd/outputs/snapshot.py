"""The picture of the daemon that every output renders: plain JSON types, no behaviour.

Times end in ``_ms`` (milliseconds per step), ``_s`` (seconds) or are ISO 8601 in UTC. A number
that is not known is ``None``, never NaN. A job's key is 16 hexadecimal digits.
"""

from __future__ import annotations

from typing import Literal, TypedDict

from stragd.finding import Finding, Kind, Subject

JobState = Literal["learning", "watching", "finding"]
RankState = Literal["learning", "watching", "suspect", "confirmed", "recovering", "gone"]
Source = Literal["device-ring", "host-probe", "gloo", ""]
Flag = Literal[
    "events-lost",
    "steps-not-inferred",
    "partial",
    "own-unknown",
    "ring-incomplete",
    "host-timed",
    "no-ring",
]


class Whole(TypedDict):
    """A job that spans nodes, as its scorer sees it."""

    scorer: str  # node
    window: int
    ranks: int  # that reported in that window
    nodes: int
    absent: list[int]  # ranks that did not, the first ones
    counts: bool  # False: verdicts have stopped, findings are this node's own


class _OptionalJob(TypedDict, total=False):
    whole: Whole


class Job(_OptionalJob):
    """One training job that has ranks on this node."""

    key: str
    name: str
    launcher: str  # "torchrun", "slurm", ...
    world_size: int
    local_ranks: int  # ranks on this node
    step_ms: float | None  # median wall time of a step; None while no step is inferred
    steps: int
    windows: int  # windows scored
    worst_rank: int | None  # rank of the most expensive open finding
    cost_ms_per_step: float | None  # of that finding
    cost_percent: float | None  # of that finding, share of the step's wall time
    lost_rank_s: float  # time that the ranks here lost to confirmed findings, ranks times seconds
    state: JobState


class ClusterJob(TypedDict):
    """A job of the cluster, as this node has heard of it."""

    key: str
    name: str
    launcher: str
    world_size: int
    ranks: int  # that reported last
    nodes: int
    step_ms: float | None
    node: str  # where it is scored
    findings: int  # open ones
    worst: Finding | None  # the most expensive of them
    age_s: float  # since it was said


class Cluster(TypedDict):
    """Answer of `cluster`."""

    host: str
    time: str
    exchange: str  # "nats", "store"
    name: str
    problem: str  # why nothing new comes, "" while all works
    jobs: list[ClusterJob]  # the one that loses most first


# "class" is a keyword of Python and a word of the contract, hence the functional form.
Rank = TypedDict(
    "Rank",
    {
        "job": str,
        "rank": int,
        "local_rank": int,  # -1 where unknown
        "host": str,
        "class": str,  # "nvidia/H200", "cpu/AMD EPYC 9654"
        "signature": str,  # of its collective sequence, 16 hexadecimal digits; "" before the first
        "gpu_uuid": str,  # "" where the driver does not say
        "pid": int,
        "container": str,  # short id, "" outside containers
        "own_ms": float | None,
        "wait_ms": float | None,
        "comm_ms": float | None,
        "wall_ms": float | None,
        "per": Literal["step", "window"],  # what the four times above are per
        "lateness_ms": float | None,  # largest (wait + comm) of the job's ranks minus own
        "lateness_history": list[float],  # last 30 windows, oldest first
        "slowdown": float | None,  # own over the median of its peers, minus one
        "source": Source,
        "coverage": float | None,  # share of its calls that its ring saw; None: not known
        "missed": list[str],  # functions of which its ring misses a stable share
        "flags": list[Flag],
        "steps": int,
        "collectives": int,
        "in_flight": int,
        "silent_s": float | None,  # since the last event
        "state": RankState,
    },
)


class Abstention(TypedDict):
    """A rank about which the scorer says nothing, and why."""

    job: str
    job_name: str
    rank: int
    window: int
    reason: str


class Health(TypedDict):
    """The daemon about itself."""

    events_per_s: float
    events: int
    lost: int
    lost_by_cause: dict[str, int]
    probes_attached: int
    libraries: int  # attached library files
    bpf_ns_per_event: float | None  # None while the kernel does not measure it
    cpu_percent: float  # of one core, since the last tick
    rss_bytes: int
    uptime_s: float
    probes: Literal["on", "off"]
    degraded: list[str]  # one line each, empty when everything works


class Library(TypedDict):
    """One library file that carries collectives."""

    kinds: list[str]
    path: str
    build_id: str
    version: str
    state: str
    method: str
    probes: int
    refused: list[str]
    missing: list[str]
    error: str
    processes: list[int]


class Ring(TypedDict):
    """The ring of the profiler plugin in one process."""

    pid: int
    state: Literal["open", "ended", "refused"]
    reason: str  # why it is not read, or why it does not record everything; "" otherwise
    vendor: str
    library: str  # version, "" where unknown
    api: int  # version of the profiler interface, 0 before the first communicator
    mode: str  # in force: "full", "progress", "off"
    sample: int  # of every N blocks of 4096 collectives one; 0 and 1: all
    floor: int  # bytes of the smallest message that is recorded, 0: all
    wanted: str  # asked for
    clock: str  # "ns", "ticks", "host"
    chained: str  # plugin that is forwarded to, "" where there is none
    communicators: int
    joined: int  # of them, with the calls of the host
    records: int
    lost: int  # overwritten before they were read
    dropped: dict[str, int]  # by the plugin, by cause


class Reader(TypedDict):
    """A reader of telemetry that is on."""

    name: str  # "host", "nic", "gpu"
    reason: str  # why it gives nothing, "" when it works
    note: str  # what it does not give, though it works
    read_s: float | None  # what its last pass took


class Reading(TypedDict):
    """What telemetry last said about one subject, in the reader's units."""

    kind: Literal["gpu", "nic", "process", "node"]
    subject: str  # PCI address, "mlx5_0/1", pid, "" of the node
    job: str  # "" where it is not one rank's
    rank: int  # -1 where it is not one rank's
    values: dict[str, float]


class Event(TypedDict):
    """Something that happened to a finding."""

    time: str
    job: str  # key
    finding: str  # id
    kind: Kind
    subject: Subject
    what: str  # the state that it entered, or "cause"
    text: str  # why it was cleared, or the cause with its first evidence


class Report(TypedDict):
    """Answer of `report`: what the daemon holds about one job, which may have ended."""

    version: str
    host: str
    time: str
    job: Job | None  # None when it has ended
    key: str
    ranks: list[Rank]
    findings: list[Finding]  # open ones, then the cleared ones, newest first
    abstentions: list[Abstention]
    events: list[Event]  # oldest first


class Check(TypedDict):
    """One line of `doctor`: a feature, whether it works, and how to get it."""

    feature: str
    state: Literal["ok", "limited", "missing"]
    detail: str
    fix: str  # "" when there is nothing to do


class ConfigValue(TypedDict):
    """One key of the configuration and where its value comes from."""

    key: str  # "prometheus.address"
    value: object
    origin: str  # "default", a file, or "environment STRAGD_..."
    environment: str  # name of the variable that overrides the key


class Status(TypedDict):
    """Answer of `status`."""

    version: str
    host: str
    pid: int
    time: str
    state: Literal["running", "degraded"]
    jobs: int
    ranks: int
    unidentified: int  # processes with a library but without a rank
    findings: int  # open ones
    metrics: str  # "http://127.0.0.1:9464/metrics", "" when off
    config_files: list[str]
    readers: list[Reader]
    health: Health


class Top(TypedDict):
    """Answer of `top`: all that one screen needs, of one moment."""

    version: str
    host: str
    time: str
    jobs: list[Job]
    ranks: list[Rank]
    findings: list[Finding]  # open ones, most expensive first
    abstentions: list[Abstention]
    health: Health


class Snapshot(Top):
    """What the main loop publishes once a tick; `top` is a part of it."""

    pid: int
    cluster: Cluster | None  # None without an exchange
    unidentified: int
    cleared: list[Finding]  # newest last, bounded
    libraries: list[Library]
    rings: list[Ring]
    readers: list[Reader]
    readings: list[Reading]
    events: list[Event]  # newest last, bounded
    counters: dict[str, float]  # Engine.counters()
    collector_up: dict[str, bool]  # part of the daemon -> works
    cpu_seconds: float
    start_time: float  # seconds since the epoch
