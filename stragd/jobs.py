"""Table of the jobs and ranks of this node: who they are and what their last window said."""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from stragd.finding import Finding, FindingJob, Subject, build, class_speeds, job_key
from stragd.outputs import snapshot
from stragd.peers import Peers, median

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd._rscore import RankStatus

ProcessKey = tuple[int, int]
"""(pid, start time in clock ticks): a pid alone is reused."""

LATENESS_HISTORY = 30
MAX_NAME = 120
EVENTS_LOST, STEPS_NOT_INFERRED, PARTIAL, OWN_UNKNOWN = 1, 2, 4, 8
TENTH = 128
RING_INCOMPLETE, HOST_TIMED, NO_RING = 16, 32, 64
FLAGS: tuple[tuple[int, snapshot.Flag], ...] = (
    (EVENTS_LOST, "events-lost"),
    (STEPS_NOT_INFERRED, "steps-not-inferred"),
    (PARTIAL, "partial"),
    (OWN_UNKNOWN, "own-unknown"),
    (RING_INCOMPLETE, "ring-incomplete"),
    (HOST_TIMED, "host-timed"),
    (NO_RING, "no-ring"),
)
SOURCES: dict[int, snapshot.Source] = {1: "device-ring", 2: "host-probe", 3: "gloo"}


class Identity(Protocol):
    """What ``stragd.discovery`` says about a process (read-only)."""

    @property
    def job_key(self) -> int: ...
    @property
    def job_name(self) -> str: ...
    @property
    def launcher(self) -> str: ...
    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def restart_count(self) -> int: ...
    @property
    def parent_key(self) -> int: ...
    @property
    def host(self) -> str: ...
    @property
    def class_name(self) -> str: ...
    @property
    def class_id(self) -> int: ...
    @property
    def container(self) -> str: ...
    @property
    def gpu_uuid(self) -> str: ...


@dataclass
class Rank:
    """One rank on this node. Times are milliseconds per step, or per window without steps."""

    process: ProcessKey
    identity: Identity
    gone_since: float | None = None  # monotonic seconds; None while the process is there
    wall: float | None = None
    own: float | None = None
    wait: float | None = None
    comm: float | None = None
    lateness: float | None = None
    history: deque[float] = field(default_factory=lambda: deque(maxlen=LATENESS_HISTORY))
    flags: int = 0
    source: int = 0
    status: RankStatus | None = None


@dataclass
class Job:
    """One job with ranks on this node."""

    key: int
    name: str  # unique among the jobs of this node
    launcher: str
    world_size: int
    ranks: dict[int, Rank] = field(default_factory=dict)
    windows: int = 0
    steps: int = 0
    step_ms: float | None = None
    empty_since: float | None = None  # monotonic seconds
    abstentions: list[snapshot.Abstention] = field(default_factory=list)
    lost: float = 0.0  # rank-seconds that confirmed findings cost the ranks on this node

    def about(self) -> FindingJob:
        """The job as a finding names it."""
        return {"key": job_key(self.key), "name": self.name, "world_size": self.world_size}

    def live(self) -> int:
        """Ranks whose process is there."""
        return sum(rank.gone_since is None for rank in self.ranks.values())


@dataclass
class _Pending:
    tries: int = 0
    next_try: float = 0.0


class JobTable:
    """Processes become ranks, ranks make up jobs; bounded by the engine's ``max_processes``."""

    def __init__(self, max_processes: int = 4096) -> None:
        self.jobs: dict[int, Job] = {}
        self._max_processes = max_processes
        self._pending: dict[ProcessKey, _Pending] = {}
        self._ranks: dict[ProcessKey, tuple[int, int]] = {}  # process -> (job, rank)
        self._names: dict[str, int] = {"other": 0}  # -> job, 0 for nobody
        self._class_names: dict[int, str] = {}
        self._host = socket.gethostname()

    @property
    def unidentified(self) -> int:
        """Processes with a collective library that are not (yet) a rank."""
        return len(self._pending)

    def seen(self, process: ProcessKey) -> None:
        """A process has mapped a collective library."""
        if process not in self._ranks and len(self._pending) < self._max_processes:
            self._pending.setdefault(process, _Pending())

    def gone(self, process: ProcessKey, now: float) -> None:
        """A process ended; its rank stays, marked, until the job goes or the rank returns."""
        self._pending.pop(process, None)
        place = self._ranks.pop(process, None)
        if place is None:
            return
        self.jobs[place[0]].ranks[place[1]].gone_since = now

    def due(self, now: float) -> list[ProcessKey]:
        """Processes to identify now: every second at first, every ten after half a minute."""
        due = [key for key, pending in self._pending.items() if pending.next_try <= now]
        for key in due:
            pending = self._pending[key]
            pending.tries += 1
            pending.next_try = now + (1.0 if pending.tries < 30 else 10.0)
        return due

    def may_hold(self, process: ProcessKey, identity: Identity, collectives: int) -> bool:
        """Whether a process may take its rank.

        Data-loader workers inherit their trainer's environment and so its rank: who has issued
        collectives is the rank, and a process without any does not replace one that is alive.
        """
        job = self.jobs.get(identity.job_key)
        holder = job.ranks.get(identity.rank) if job else None
        if holder is None or holder.gone_since is not None or holder.process == process:
            return True
        status = holder.status
        return collectives > 0 and (status is None or status["collectives"] == 0)

    def processes(self) -> list[ProcessKey]:
        """Processes that are a rank."""
        return list(self._ranks)

    def refresh(self, process: ProcessKey, identity: Identity) -> bool:
        """Take the details of a known identity; False when it is another rank, or a new one."""
        place = self._ranks.get(process)
        if place is None:
            return False
        rank = self.jobs[place[0]].ranks[place[1]]
        old, rank.identity = rank.identity, identity
        if _place(old) == _place(identity):
            return True
        rank.identity = old
        return False

    def add(self, process: ProcessKey, identity: Identity) -> Job:
        """A process is this rank; returns its job, new or known."""
        self._pending.pop(process, None)
        self._leave(process)
        job = self.jobs.get(identity.job_key)
        if job is None:
            name = self._unique_name(identity)
            job = Job(identity.job_key, name, clean(identity.launcher), identity.world_size)
            self.jobs[job.key] = job
            self._names[name] = job.key
        job.world_size = max(job.world_size, identity.world_size)
        job.empty_since = None
        old = job.ranks.get(identity.rank)
        if old is not None and old.process != process:
            self._ranks.pop(old.process, None)
        job.ranks[identity.rank] = Rank(process, identity)
        self._ranks[process] = (job.key, identity.rank)
        self._class_names[identity.class_id] = clean(identity.class_name)
        return job

    def _leave(self, process: ProcessKey) -> None:
        """A process turns out to be another rank than it was taken for."""
        place = self._ranks.pop(process, None)
        if place is None:
            return
        job = self.jobs[place[0]]
        del job.ranks[place[1]]
        if not job.live():
            job.empty_since = 0.0  # drop it at the next look

    def _unique_name(self, identity: Identity) -> str:
        """Two jobs of one name ("none") get apart; "other" is Prometheus' word for the rest.

        A job that has ended hands its name on: after a restart people ask for the living one.
        """
        name = clean(identity.job_name) or "unnamed"
        holder = self.jobs.get(self._names.get(name, 0))
        if holder is not None and not holder.live():
            self._rename(holder, self._apart(name, holder.key))
        return self._apart(name, identity.job_key) if name in self._names else name

    def _apart(self, name: str, key: int) -> str:
        """The name with the beginning of the key, or all of the key."""
        longer = f"{name}-{job_key(key)[:8]}"
        return longer if longer not in self._names else job_key(key)

    def _rename(self, job: Job, name: str) -> None:
        del self._names[job.name]
        job.name = name
        self._names[name] = job.key

    def update_status(self, statuses: Iterable[RankStatus]) -> None:
        """Take the engine's running counts."""
        for status in statuses:
            place = self._ranks.get((status["pid"], status["start_time"]))
            if place is not None:
                self.jobs[place[0]].ranks[place[1]].status = status

    def take_window(self, job: Job, rows: NDArray[np.void]) -> None:
        """Remember the last window of every rank on this node. Times in ``rows`` are ns."""
        job.windows += 1
        busy = [_ms(row["wait"] + row["comm"]) for row in rows]
        latest = max((b for b in busy if b is not None), default=None)
        walls = []
        for row, own_busy in zip(rows, busy, strict=True):
            flags = int(row["flags"])
            wall = _ms(row["wall"])
            if wall is not None and not flags & STEPS_NOT_INFERRED:
                walls.append(wall)
                job.steps = max(job.steps, int(row["last_step"]) + 1)
            rank = job.ranks.get(int(row["rank"]))
            if rank is None:
                continue
            rank.wall, rank.own = wall, _ms(row["own"])
            rank.wait, rank.comm = _ms(row["wait"]), _ms(row["comm"])
            rank.flags, rank.source = flags, int(row["source"])
            rank.lateness = None
            if own_busy is not None and latest is not None:
                rank.lateness = latest - own_busy
                rank.history.append(round(rank.lateness, 3))
        job.step_ms = median(walls)

    def take_abstentions(self, job: Job, raw: Iterable[Mapping[str, Any]]) -> None:
        """Remember about which ranks the scorer says nothing."""
        job.abstentions = [
            {
                "job": job_key(job.key),
                "job_name": job.name,
                "rank": int(a["rank"]),
                "window": int(a["window"]),
                "reason": _reason(job.ranks.get(int(a["rank"])), clean(a["reason"])),
            }
            for a in raw
        ]

    def finding(self, job: Job, raw: Mapping[str, Any]) -> Finding:
        """The scorer's finding with the names of its subject."""
        subject: Subject = {}
        steps = raw["cost_ns"] is not None or job.step_ms is not None
        if raw["rank"] is not None:
            rank = job.ranks.get(raw["rank"])
            subject["rank"] = raw["rank"]
            subject["host"] = clean(rank.identity.host) if rank else ""
            subject["class"] = clean(rank.identity.class_name) if rank else ""
        elif raw["kind"] == "imbalance" and raw["class_id"] is not None:
            subject["class"] = self._class_names.get(raw["class_id"], f"{raw['class_id']:08x}")
        elif raw["kind"] == "uneven-work" and raw["signature"] is not None:
            subject["signature"] = f"{raw['signature']:016x}"
        speeds = class_speeds(
            (clean(rank.identity.class_name), rank.own)
            for rank in job.ranks.values()
            if rank.own is not None
        )
        return build(raw, job.about(), subject, steps, speeds)

    def expired(self, now: float, seconds: float) -> list[Job]:
        """Remove and return the jobs that have had no process for ``seconds``.

        A living job loses the ranks that went so long ago: their number is the job's to choose.
        """
        for job in self.jobs.values():
            gone = [rank.gone_since for rank in job.ranks.values() if rank.gone_since is not None]
            if len(gone) == len(job.ranks):
                if job.empty_since is None:
                    job.empty_since = max(gone, default=now)
            elif gone and now - min(gone) >= seconds:
                job.ranks = {
                    number: rank
                    for number, rank in job.ranks.items()
                    if rank.gone_since is None or now - rank.gone_since < seconds
                }
        ended = [
            job
            for job in self.jobs.values()
            if job.empty_since is not None and now - job.empty_since >= seconds
        ]
        for job in ended:
            del self.jobs[job.key]
            del self._names[job.name]
        return ended

    def count_losses(self, findings: Iterable[Finding], seconds: float) -> None:
        """``seconds`` have passed: each live rank lost its job's costliest confirmed share.

        Costs do not add up: without one fault the next slowest rank bounds the step.
        """
        share: dict[str, float] = {}
        for finding in findings:
            if finding["state"] == "confirmed":
                key = finding["job"]["key"]
                share[key] = max(share.get(key, 0.0), finding["cost_percent"] / 100)
        for job in self.jobs.values():
            job.lost += share.get(job_key(job.key), 0.0) * job.live() * seconds

    def job_rows(self, findings: Iterable[Finding]) -> list[snapshot.Job]:
        """All jobs; the most expensive finding about a rank names a job's worst rank."""
        worst: dict[str, Finding] = {}
        for finding in findings:
            key = finding["job"]["key"]
            cost = finding["cost_percent"]
            if "rank" in finding["subject"] and (
                key not in worst or cost > worst[key]["cost_percent"]
            ):
                worst[key] = finding
        return [self._job_row(job, worst.get(job_key(job.key))) for job in self.jobs.values()]

    def _job_row(self, job: Job, worst: Finding | None) -> snapshot.Job:
        cost = worst["cost_ms_per_step"] if worst else None
        state: snapshot.JobState = "watching" if job.windows else "learning"
        return {
            "key": job_key(job.key),
            "name": job.name,
            "launcher": job.launcher,
            "world_size": job.world_size,
            "local_ranks": job.live(),
            "step_ms": _rounded(job.step_ms),
            "steps": job.steps,
            "windows": job.windows,
            "worst_rank": worst["subject"].get("rank") if worst else None,
            "cost_ms_per_step": cost["value"] if cost else None,
            "cost_percent": worst["cost_percent"] if worst else None,
            "lost_rank_s": round(job.lost, 3),
            "state": "finding" if worst else state,
        }

    def rank_rows(
        self, findings: Iterable[Finding], monotonic_ns: Callable[[], int]
    ) -> list[snapshot.Rank]:
        """All ranks of this node, by job and rank."""
        about: dict[tuple[str, int], Finding] = {}
        for finding in findings:  # the most serious comes first
            if "rank" in finding["subject"]:
                about.setdefault((finding["job"]["key"], finding["subject"]["rank"]), finding)
        now_ns = monotonic_ns()
        rows = []
        for job in self.jobs.values():
            peers = _peers(job)
            for number, rank in sorted(job.ranks.items()):
                finding_or_none = about.get((job_key(job.key), number))
                rows.append(self._rank_row(job, rank, peers, finding_or_none, now_ns))
        return rows

    def _rank_row(
        self, job: Job, rank: Rank, peers: Peers, finding: Finding | None, now_ns: int
    ) -> snapshot.Rank:
        identity, status = rank.identity, rank.status
        state: snapshot.RankState = "watching" if rank.wall is not None else "learning"
        if finding is not None and finding["state"] != "cleared":
            state = cast("snapshot.RankState", finding["state"])
        silent = None
        if status is not None and status["last_event_ns"]:
            silent = round(max(0, now_ns - status["last_event_ns"]) / 1e9, 3)
        return {
            "job": job_key(job.key),
            "rank": identity.rank,
            "local_rank": identity.local_rank,
            "host": clean(identity.host) or self._host,
            "class": clean(identity.class_name),
            "signature": f"{status['signature']:016x}" if status and status["signature"] else "",
            "gpu_uuid": clean(identity.gpu_uuid),
            "pid": rank.process[0],
            "container": clean(identity.container)[:12],
            "own_ms": _rounded(rank.own),
            "wait_ms": _rounded(rank.wait),
            "comm_ms": _rounded(rank.comm),
            "wall_ms": _rounded(rank.wall),
            "per": "window" if rank.flags & STEPS_NOT_INFERRED else "step",
            "lateness_ms": _rounded(rank.lateness),
            "lateness_history": list(rank.history),
            "slowdown": peers.slowdown(kind_of(rank), rank.own),
            "source": SOURCES.get(rank.source, ""),
            "coverage": _rounded(status["coverage"]) if status else None,
            "missed": list(status["missed"]) if status else [],
            "flags": [name for bit, name in FLAGS if rank.flags & bit],
            "steps": status["steps"] if status else 0,
            "collectives": status["collectives"] if status else 0,
            "in_flight": status["in_flight"] if status else 0,
            "silent_s": silent,
            "state": state if rank.gone_since is None else "gone",
        }


def clean(text: object, limit: int = MAX_NAME) -> str:
    """A name that a job chose, made safe for a screen, a log line and a label."""
    short = str(text)[:limit]
    if short.isascii() and short.isprintable():
        return short
    printable = "".join(c if c.isprintable() else "?" for c in short)
    return printable.encode("utf-8", "replace").decode("utf-8")


def split(rows: NDArray[np.void]) -> list[tuple[int, NDArray[np.void]]]:
    """One array per job; rows of processes that nobody assigned (job 0) are left out."""
    keys = {int(key) for key in rows["job"]} - {0}
    return [(key, rows[rows["job"] == key]) for key in sorted(keys)]


def _reason(rank: Rank | None, reason: str) -> str:
    """Why there is no verdict: the scorer knows that own time is unknown, the flags know why."""
    if rank is None or not rank.flags & OWN_UNKNOWN:
        return reason
    if rank.flags & RING_INCOMPLETE:
        missed = ", ".join(rank.status["missed"]) if rank.status else ""
        return f"the library hides calls from its profiler: {missed or 'some functions'}"
    if rank.flags & NO_RING:
        return "no profiler plugin in this rank; other ranks of the job have one"
    if SOURCES.get(rank.source) == "device-ring":
        return "most steps have a collective without device time"
    return reason


def _place(identity: Identity) -> tuple[int, int, int, int]:
    """What the engine is told about a process."""
    return identity.job_key, identity.rank, identity.world_size, identity.class_id


def _ms(nanoseconds: Any) -> float | None:
    value = float(nanoseconds)
    return value / 1e6 if math.isfinite(value) else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def kind_of(rank: Rank) -> tuple[int, int] | None:
    """Ranks of one class and signature are peers; None before the first collective."""
    return (rank.identity.class_id, rank.status["signature"]) if rank.status else None


def _peers(job: Job) -> Peers:
    return Peers((kind_of(rank), rank.own) for rank in job.ranks.values())
