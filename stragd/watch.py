"""The watch: processes become ranks, windows become findings, and the journal hears of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stragd import baselines, lineage
from stragd.causes import Causes
from stragd.config import Config
from stragd.config import Ring as RingConfig
from stragd.finding import job_key
from stragd.findings import FindingStore, Transition
from stragd.history import History
from stragd.jobs import TENTH, Identity, Job, JobTable, ProcessKey, clean, split
from stragd.outputs.journal import NOTICE, WARNING, Journal
from stragd.outputs.snapshot import Library, Reader, Ring
from stragd.outputs.windowlog import WindowLog
from stragd.spanning import Spanning, make_cluster

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd._rscore import (
        CommunicatorStatus,
        LibraryStatus,
        ProcessChange,
        RankStatus,
        RingStatus,
        Update,
    )

LOST_REPORT_SECONDS = 30.0
LOOK_AGAIN_SECONDS = 10.0
IDENTIFY_SECONDS = 0.25
"""Longest a tick identifies processes: however many there are, a signal is answered soon."""
MAX_PATH = 512
MAX_LINES = 256


class Engine(Protocol):
    """The native engine as the daemon uses it (``stragd._rscore.Engine``)."""

    def start(self) -> None: ...
    def close(self) -> None: ...
    def take_processes(self) -> list[ProcessChange]: ...
    def assign(
        self, pid: int, start_time: int, job: int, rank: int, world_size: int, class_id: int
    ) -> bool: ...
    def take_windows(self, timeout: float) -> list[NDArray[np.void]]: ...
    def ranks(self) -> list[RankStatus]: ...
    def libraries(self) -> list[LibraryStatus]: ...
    def counters(self) -> dict[str, float]: ...
    def set_probes(self, on: bool) -> None: ...
    def rings(self) -> list[RingStatus]: ...
    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> int: ...
    def progress(self) -> int: ...


class Scorer(baselines.Scorer, lineage.Scorer, Protocol):
    """The native scorer (``stragd._rscore.Scorer``)."""

    def update(self, windows: NDArray[np.void]) -> Update: ...


class Identifier(Protocol):
    """Who a process is (``stragd.discovery.Identifier``)."""

    def identify(
        self, pid: int, start_time: int, facts: list[CommunicatorStatus]
    ) -> Identity | None: ...
    def forget(self, pid: int, start_time: int) -> None: ...
    def moved(self) -> list[ProcessKey]: ...
    def notes(self) -> list[str]: ...


class Watch:
    """Engine, identities, scorer and findings of one node; the main loop's thread only."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        make_engine: Callable[[dict[str, Any]], Engine],
        scorer: Scorer,
        identifier: Identifier,
    ) -> None:
        self.table = JobTable(config.discovery.max_processes)
        self.store = FindingStore(config.findings.cleared_kept)
        self.windows = WindowLog()
        self.history = History()
        self.engine: Engine | None = None
        self.engine_error = ""
        """Why there is no engine, "" when it runs."""
        self.probes_on = config.probes.enabled
        self.causes = Causes(config.telemetry, socket.gethostname(), self._reader_failed)
        self._config = config
        self._journal = journal
        self._make_engine = make_engine
        self._scorer = scorer
        kept = config.scoring
        self._baselines = baselines.Baselines(
            Path(kept.baselines_file), scorer, self.store, self._complain, kept.baselines_seconds
        )
        self._identifier = identifier
        self._lineage = lineage.Lineage(self.table, scorer, self._baselines.forget)
        cluster = make_cluster(config, self.table, self._complain)
        self.spanning = Spanning(config.exchange, cluster, self.table, self.store, self.causes)
        self._statuses: dict[ProcessKey, RankStatus] = {}
        self._looked_again = 0.0
        self._counted: float | None = None  # when losses were last counted
        self._waiting: dict[ProcessKey, None] = {}  # to identify, oldest request first
        self._noted: set[str] = set()  # remarks in the journal
        self._reported: set[tuple[str, str, str]] = set()  # libraries in the journal
        self._lost, self._lost_time = 0, -LOST_REPORT_SECONDS

    def start(self) -> None:
        """Load and attach; when the kernel refuses, `engine_error` says why."""
        self._baselines.load(time.monotonic())
        self.causes.start()
        self.spanning.start()
        engine: Engine | None = None
        try:
            engine = self._make_engine(self._config.engine())
            if not self.probes_on:
                engine.set_probes(False)
            _ask(engine, self._config.ring)
            engine.start()
        except OSError as error:
            if engine is not None:
                engine.close()
            self.engine_error = str(error)
            return
        self.engine = engine

    def close(self) -> None:
        """Detach every probe, let go of the drivers."""
        try:
            if self.engine is not None:
                self.engine.close()
                self._baselines.save(time.monotonic())
        finally:
            self.spanning.close()
            self.causes.close()

    def set_probes(self, on: bool) -> None:
        """Attach or detach every probe. Raises OSError when the kernel refuses."""
        assert self.engine is not None
        self.engine.set_probes(on)
        self.probes_on = on

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> int:
        """Ask the plugin of one process, or all; how many could be asked.

        Raises ValueError for a bad value.
        """
        assert self.engine is not None
        return self.engine.set_ring(mode, sample, floor, pid)

    def configure_ring(self, ring: RingConfig) -> None:
        """Ask all plugins, those to come too, for what the configuration says."""
        if self.engine is not None:
            _ask(self.engine, ring)

    def rings(self) -> list[Ring]:
        """The ring of every process that has one."""
        if self.engine is None or not (rings := self.engine.rings()):
            return []
        joined = {
            status["pid"]: sum(known["hash"] != 0 for known in status["communicators"])
            for status in self.engine.ranks()
        }
        return [_ring(status, joined.get(status["pid"], 0)) for status in rings]

    def wait(self, seconds: float) -> list[NDArray[np.void]]:
        """Windows, at the latest after ``seconds``. There must be an engine."""
        assert self.engine is not None
        return self.engine.take_windows(seconds)

    def turn(self, windows: list[NDArray[np.void]], now: float) -> None:
        """Take what came: processes first, since the windows belong to them."""
        if self.engine is not None:
            self._take_processes(self.engine, now)
        self.causes.turn(now)
        for array in windows:
            self._score(array, now)
        self._tell(self.spanning.turn(now))

    def tick(self, now: float, ended_job_seconds: float) -> None:
        """Once a second: identify processes, drop jobs that have ended."""
        if self.engine is not None:
            statuses = self.engine.ranks()
            self._statuses = {(s["pid"], s["start_time"]): s for s in statuses}
            self.table.update_status(statuses)
            self._identify(self.engine, now)
            self._report_notes()
        if self._counted is not None:
            self.table.count_losses(self.store.open(), now - self._counted)
        self._counted = now
        self._baselines.tick(now)
        self.spanning.tick(now)
        self._lineage.tick(now)
        for finding in self.causes.tick(self.table, self.store, now):
            self._journal.cause(finding)
            self.history.cause(finding)
        for job in self.table.expired(now, ended_job_seconds):
            self.causes.forget(job.key)
            self.spanning.forget(job.key, now)
            self._lineage.end(job, now)
            self._tell(self.store.close_job(job.key, "job ended"))
            self._journal.write(
                "job-ended", f"job {job.name} has ended", job=job.name, job_key=job_key(job.key)
            )

    def notes(self) -> list[str]:
        """What a person should know about the identities."""
        return self._identifier.notes()

    def counters(self) -> dict[str, float]:
        """The engine's counters, and the exchange's."""
        own = self.engine.counters() if self.engine is not None else {}
        return {**own, **self.spanning.counters()}

    def limits(self) -> list[str]:
        """One line for each part between the engine and the outputs that works with limits."""
        unsaved = self._baselines.problem
        return [*self.spanning.limits(), *([unsaved] if unsaved else [])]

    def libraries(self) -> list[Library]:
        """Every library file that carries collectives."""
        statuses = self.engine.libraries() if self.engine is not None else []
        return [_library(status) for status in statuses]

    def _take_processes(self, engine: Engine, now: float) -> None:
        for change in engine.take_processes():
            process = (change["pid"], change["start_time"])
            if change["state"] == "seen":
                self.table.seen(process)
            else:
                self.table.gone(process, now)
                self._identifier.forget(*process)
                self._statuses.pop(process, None)
                self._waiting.pop(process, None)

    def _identify(self, engine: Engine, now: float) -> None:
        """New processes, those whose identity moved, and now and then every one.

        Communicators and GPUs come late, and they can say more than the environment did.
        """
        again = [*self._identifier.moved(), *self.table.due(now)]
        if now - self._looked_again >= LOOK_AGAIN_SECONDS:
            self._looked_again = now
            again += self.table.processes()
        self._waiting.update(dict.fromkeys(again))
        deadline = time.monotonic() + IDENTIFY_SECONDS
        while self._waiting and time.monotonic() < deadline:
            process = next(iter(self._waiting))
            del self._waiting[process]
            self._identify_one(engine, process)

    def _identify_one(self, engine: Engine, process: ProcessKey) -> None:
        status = self._statuses.get(process)
        facts = status["communicators"] if status else []
        collectives = status["collectives"] if status else 0
        try:
            identity = self._identifier.identify(*process, facts)
            if identity is None or not self.table.may_hold(process, identity, collectives):
                return
            if self.table.refresh(process, identity):
                return  # the same rank as before
            place = (identity.job_key, identity.rank, identity.world_size, identity.class_id)
            if not engine.assign(*process, *place):
                return  # gone already: its end is the next change
        except Exception as error:  # what a process can write must not end the daemon
            self._fault(f"process {process[0]} cannot be identified", error)
            return
        known = identity.job_key in self.table.jobs
        job = self.table.add(process, identity)
        self._lineage.add(job, identity)
        if not known:
            earlier = self._lineage.before(job.key).name
            anew = f"; it is {earlier}, started anew" if earlier else ""
            self._journal.write(
                "job-seen",
                f"job {job.name} ({job.launcher}, {job.world_size} ranks) is watched{anew}",
                job=job.name,
                job_key=job_key(job.key),
            )

    def _complain(self, text: str) -> None:
        self._journal.write("degraded", text, WARNING, reason=text)

    def _fault(self, what: str, error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}"
        self._journal.write("degraded", f"{what}: {reason}", WARNING, reason=reason)

    def _reader_failed(self, name: str, reason: str) -> None:
        text = f"telemetry: {name} cannot be read: {clean(reason, MAX_PATH)}"
        self._journal.write("degraded", text, WARNING, reason=reason, part=f"telemetry-{name}")

    def _score(self, array: NDArray[np.void], now: float) -> None:
        for key, rows in split(array):
            job = self.table.jobs.get(key)
            if job is None:
                continue  # a last window of a job that was dropped
            if not self._baselines.go_on(key, rows):
                continue
            tenth = bool(rows["flags"][0] & TENTH)
            if not tenth:
                self.table.take_window(job, rows)
                self.windows.add(key, rows)
                self.causes.window(self.table, now)
                self.spanning.offer(job, rows, self._lineage.before(key), now)
            try:
                update = self._scorer.update(rows)
            except Exception as error:  # one job's window must not end the watch of the others
                self._fault(f"job {job.name}: a window cannot be scored", error)
                continue
            if self.spanning.speaks(key, now):
                continue  # this node's own scorer only stays in practice
            if not tenth:
                self.table.take_abstentions(job, update["abstentions"])
            self._apply(job, update)

    def _apply(self, job: Job, update: Update) -> None:
        scored = [(raw["id"], self.table.finding(job, raw)) for raw in update["findings"]]
        explained = self.causes.explain(job, scored)
        takeover = self.spanning.cluster is not None
        self._tell(self.store.apply(job.key, explained, takeover))

    def _tell(self, transitions: list[Transition]) -> None:
        for transition in transitions:
            self._journal.transition(transition)
            self.history.transition(transition)

    def _report_notes(self) -> None:
        """One entry for each new remark about the identities; `stragctl doctor` lists them all."""
        notes = self._identifier.notes()
        for note in notes:
            if note not in self._noted:
                self._journal.write("identity-note", note, NOTICE)
        self._noted = set(notes)

    def report_libraries(self, libraries: list[Library]) -> None:
        """One entry for each library that cannot be watched, when it is first seen."""
        current = set()
        for library in libraries:
            state = library["state"]
            key = (library["path"], library["build_id"], state)
            if state not in ("failed", "not-probeable"):
                continue
            current.add(key)
            if key in self._reported:
                continue
            event = "attach-failed" if state == "failed" else "not-probeable"
            reason = library["error"] or "no symbol of its collectives can be found"
            self._journal.write(
                event,
                f"{'+'.join(library['kinds'])} in {library['path']}: {reason}",
                WARNING,
                library=library["path"],
                reason=reason,
            )
        self._reported = current

    def report_losses(self, causes: Mapping[str, int], now: float) -> None:
        """Lost events since the last report, at most twice a minute; ``causes`` since start."""
        lost = sum(causes.values())
        if lost > self._lost and now - self._lost_time >= LOST_REPORT_SECONDS:
            text = ", ".join(f"{cause} {count}" for cause, count in causes.items() if count)
            self._journal.write(
                "events-lost",
                f"{lost - self._lost} events were lost (since start: {text})",
                WARNING,
                lost=lost - self._lost,
            )
            self._lost, self._lost_time = lost, now


def _library(status: LibraryStatus) -> Library:
    """A library's path, version and symbols are a job's own words."""
    return {
        "kinds": [clean(kind) for kind in status["kinds"]],
        "path": clean(status["path"], MAX_PATH),
        "build_id": clean(status["build_id"]),
        "version": clean(status["version"]),
        "state": status["state"],
        "method": status["method"],
        "probes": status["probes"],
        "refused": [clean(line) for line in status["refused"][:MAX_LINES]],
        "missing": [clean(line) for line in status["missing"][:MAX_LINES]],
        "error": clean(status["error"], MAX_PATH),
        "processes": list(status.get("processes", ()))[:MAX_LINES],
    }


def _ask(engine: Engine, ring: RingConfig) -> None:
    engine.set_ring(ring.mode, ring.sample, ring.floor if ring.floor > 1 else 0, None)


def _ring(status: RingStatus, joined: int) -> Ring:
    """Names in a ring are a job's own words."""
    return {
        "pid": status["pid"],
        "state": status["state"],
        "reason": clean(status["refused"] or status["quirk_reason"], MAX_PATH),
        "vendor": status["vendor"],
        "library": clean(status["library"]),
        "api": status["api"],
        "mode": status["mode"],
        "sample": status["sample"],
        "floor": status["floor"],
        "wanted": status["wanted"],
        "clock": status["clock"],
        "chained": clean(status["chained"]),
        "communicators": sum(c["state"] == "live" for c in status["communicators"]),
        "joined": joined,
        "records": status["records"],
        "lost": status["lost"],
        "dropped": dict(status["dropped"]),
    }


def engine_limits(counters: Mapping[str, float]) -> list[str]:
    """One line for each part of the engine that works with limits."""
    if counters.get("sideband", 1.0) > 0:
        return []
    return ["no live process events: processes are found by the sweep through /proc only"]


def reader_limits(readers: Iterable[Reader]) -> list[str]:
    """One line for each reader of telemetry that gives nothing."""
    return [f"telemetry of {r['name']}: {r['reason']}" for r in readers if r["reason"]]


def library_limits(libraries: list[Library]) -> list[str]:
    """One line for each library that cannot be watched."""
    lines = []
    for library in libraries:
        if library["state"] in ("failed", "not-probeable"):
            what = "not probeable" if library["state"] == "not-probeable" else "attach failed"
            why = f": {library['error']}" if library["error"] else ""
            lines.append(f"{'+'.join(library['kinds'])} in {library['path']}: {what}{why}")
    return lines[:20]
