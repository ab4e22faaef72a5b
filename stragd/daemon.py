"""The daemon: wires engine, identity, scorer, findings and outputs; decides nothing itself."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stragd import __version__
from stragd.config import DEFAULT_FILE, KEYS, Config, ConfigError, environment_name
from stragd.config_sources import load
from stragd.doctor import examine, read_host
from stragd.finding import iso_time
from stragd.health import HealthMeter, cpu_seconds
from stragd.notify import notify, reloading, watchdog_seconds
from stragd.outputs.control import AlreadyRunning, ControlServer, RequestError
from stragd.outputs.journal import ERROR, INFO, NOTICE, WARNING, Journal
from stragd.outputs.readings import readings
from stragd.outputs.snapshot import Check, ConfigValue, Ring, Snapshot
from stragd.outputs.verbs import Verbs
from stragd.outputs.windowlog import Part
from stragd.watch import (
    Engine,
    Identifier,
    Scorer,
    Watch,
    engine_limits,
    library_limits,
    reader_limits,
)

if TYPE_CHECKING:
    from stragd.outputs.prometheus import MetricsServer

WAIT_SECONDS = 0.25
"""Longest wait for a window; a signal is answered at the end of it."""
TICK_SECONDS = 1.0
COMMAND_SECONDS = 20.0


class Daemon:
    """One node's daemon; ``run`` is its main loop, the other threads read its snapshot."""

    def __init__(
        self,
        config: Config,
        journal: Journal,
        engine: Callable[[dict[str, Any]], Engine],
        scorer: Scorer,
        identifier: Identifier,
        config_path: Path | None = None,
    ) -> None:
        """``engine`` makes the engine; its OSError leaves a daemon that says what is missing."""
        self.config = config
        self._config_path = config_path
        self._journal = journal
        self._watch = Watch(config, journal, engine, scorer, identifier)
        self._meter = HealthMeter()
        self._limits: dict[str, str] = {}  # part -> why it does not work
        self._host = socket.gethostname()
        self._commands: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = (
            queue.SimpleQueue()
        )
        self._stop = threading.Event()
        self._hangup = False
        self._ready = False
        self._metrics: MetricsServer | None = None
        self._control: ControlServer | None = None
        self._watchdog = watchdog_seconds()
        self._watchdog_time = 0.0
        self._progress = -1
        self._ticked = time.monotonic()
        self._snapshot = self._picture()

    # The main loop.

    def run(self) -> int:
        """Until `stop`; the exit code."""
        try:
            self._start_control()
        except AlreadyRunning as error:
            self._journal.write("stopped", str(error), ERROR)
            return 1
        try:
            self._start_metrics()
            self._watch.start()
            if self._watch.engine is None:
                self._limit("probes", f"no probes, no job is watched: {self._watch.engine_error}")
            self._tick(time.monotonic())
            self._ready = True
            notify("READY=1", f"STATUS={self._status_line()}")
            self._journal.write("started", f"version {__version__}: {self._status_line()}")
            while not self._stop.is_set():
                self._turn()
        finally:
            self._close()
        return 0

    def stop(self) -> None:
        """End `run` within WAIT_SECONDS; for signal handlers and tests."""
        self._stop.set()

    def hang_up(self) -> None:
        """Read the configuration again at the next turn; for SIGHUP."""
        self._hangup = True

    def _turn(self) -> None:
        if self._watch.engine is None:
            self._stop.wait(WAIT_SECONDS)
            windows = []
        else:
            windows = self._watch.wait(WAIT_SECONDS)
        now = time.monotonic()
        self._watch.turn(windows, now)
        self._run_commands()
        if self._hangup:
            self._hangup = False
            notify(*reloading())
            with contextlib.suppress(RequestError):  # the reason is in the journal
                self._reload()
            notify("READY=1")
        if now - self._ticked >= TICK_SECONDS:
            self._tick(now)

    def _tick(self, now: float) -> None:
        self._ticked = now
        self._watch.tick(now, self.config.discovery.ended_job_seconds)
        self._snapshot = self._picture()
        self._watch.report_libraries(self._snapshot["libraries"])
        self._watch.report_losses(self._snapshot["health"]["lost_by_cause"], now)
        notify(f"STATUS={self._status_line()}")
        self._feed_watchdog(now)

    def _feed_watchdog(self, now: float) -> None:
        """Only while the drain thread lives too: a daemon that counts nothing must be restarted."""
        if self._watchdog is None or now - self._watchdog_time < self._watchdog:
            return
        if self._watch.engine is not None:
            progress = self._watch.engine.progress()
            if progress == self._progress:
                return
            self._progress = progress
        self._watchdog_time = now
        notify("WATCHDOG=1")

    # Outputs.

    def _limit(self, part: str, reason: str) -> None:
        self._limits[part] = reason
        self._journal.write("degraded", reason, WARNING, reason=reason, part=part)

    def _start_control(self) -> None:
        control = self.config.control
        server = ControlServer(control.socket, control.group, Verbs(self))
        try:
            server.start()
        except OSError as error:
            self._limit("control", error.strerror or str(error))
            return
        self._control = server

    def _start_metrics(self) -> None:
        """(Re)start the page as configured."""
        if self._metrics is not None:
            self._metrics.close()
            self._metrics = None
        self._limits.pop("metrics", None)
        wanted = self.config.prometheus
        if not wanted.enabled:
            return
        from stragd.outputs.prometheus import MetricsServer  # costs memory: only when it is on

        server = MetricsServer(wanted.address, wanted.max_series, self._ready_snapshot, self._age)
        try:
            server.start()
        except OSError as error:
            self._limit("metrics", error.strerror or str(error))
            return
        self._metrics = server

    def _ready_snapshot(self) -> Snapshot | None:
        return self._snapshot if self._ready else None

    def _age(self) -> float:
        return time.monotonic() - self._ticked

    def _picture(self) -> Snapshot:
        table, store = self._watch.table, self._watch.store
        counters, libraries = self._watch.counters(), self._watch.libraries()
        probes_on = self._watch.engine is not None and self._watch.probes_on
        findings, readers = store.open(), self._watch.causes.readers()
        return {
            "version": __version__,
            "host": self._host,
            "time": iso_time(time.time_ns()),
            "pid": os.getpid(),
            "cluster": self._watch.spanning.picture(self._host, time.monotonic()),
            "jobs": self._watch.spanning.complete(table.job_rows(findings), time.monotonic()),
            "ranks": table.rank_rows(findings, time.monotonic_ns),
            "findings": findings,
            "cleared": store.cleared(),
            "abstentions": [a for job in table.jobs.values() for a in job.abstentions],
            "unidentified": table.unidentified,
            "libraries": libraries,
            "rings": self._watch.rings(),
            "readers": readers,
            "readings": readings(self._watch.causes.latest()),
            "events": self._watch.history.events(),
            "counters": counters,
            "collector_up": {
                "probes": probes_on,
                "process_events": counters.get("sideband", 1.0 if counters else 0.0) > 0,
                "control": "control" not in self._limits,
                "metrics": "metrics" not in self._limits,
                **{f"telemetry_{reader['name']}": not reader["reason"] for reader in readers},
            },
            "cpu_seconds": cpu_seconds(),
            "start_time": self._meter.started,
            "health": self._meter.measure(
                counters,
                libraries,
                "on" if probes_on else "off",
                [
                    *self._limits.values(),
                    *engine_limits(counters),
                    *library_limits(libraries),
                    *reader_limits(readers),
                    *self._watch.limits(),
                ],
            ),
        }

    def _status_line(self) -> str:
        now = self._snapshot
        health = now["health"]
        ranks = sum(job["local_ranks"] for job in now["jobs"])
        line = (
            f"{len(now['jobs'])} jobs, {ranks} ranks, {len(now['findings'])} findings, "
            f"{health['probes_attached']} probes in {health['libraries']} libraries"
        )
        return line if not health["degraded"] else f"{line}; limited: {health['degraded'][0]}"

    # Commands; called from the control threads, carried out by the main loop.

    def snapshot(self) -> Snapshot:
        """The last published picture."""
        return self._snapshot

    def metrics_url(self) -> str:
        """Where /metrics is, "" when it is off."""
        return self._metrics.url() if self._metrics is not None else ""

    def config_files(self) -> list[str]:
        """Files that the configuration came from."""
        return list(self.config.files)

    def config_values(self) -> list[ConfigValue]:
        """Every key with its value and origin."""
        config = self.config
        return [
            {
                "key": key,
                "value": config.get(key),
                "origin": config.origin(key),
                "environment": environment_name(key),
            }
            for key in KEYS
        ]

    def doctor(self) -> list[Check]:
        """What is missing for full function."""
        now = self._snapshot
        host = read_host(group=self.config.control.group)
        others = [why for part, why in self._limits.items() if part != "probes"]
        error, notes = self._watch.engine_error, self._watch.notes()
        return examine(host, now["libraries"], error, others, notes, now["rings"], now["readers"])

    def windows(self, after: int | None, job: int | None) -> Part:
        """Windows that were scored after number ``after``, perhaps of one job only."""
        return self._watch.windows.since(after, job)

    def set_probes(self, on: bool) -> str:
        """Attach or detach every probe; "on" or "off" once it is done."""
        word: str = self._command(lambda: self._set_probes(on))
        return word

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> list[Ring]:
        """Ask the plugins of one process, or of all; their rings as they are now."""
        rings: list[Ring] = self._command(lambda: self._set_ring(mode, sample, floor, pid))
        return rings

    def reload(self) -> dict[str, list[str]]:
        """Read the configuration again."""
        changes: dict[str, list[str]] = self._command(self._reload)
        return changes

    def _command(self, work: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()
        self._commands.put((work, future))
        try:
            return future.result(COMMAND_SECONDS)
        except FutureTimeout:
            future.cancel()
            raise RequestError("unavailable", "the daemon is busy; try again") from None

    def _run_commands(self) -> None:
        while True:
            try:
                work, future = self._commands.get_nowait()
            except queue.Empty:
                return
            if not future.set_running_or_notify_cancel():
                continue  # nobody waits for it any more
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)

    def _set_probes(self, on: bool) -> str:
        if self._watch.engine is None:
            raise RequestError("unavailable", f"there are no probes: {self._watch.engine_error}")
        try:
            self._watch.set_probes(on)
        except OSError as error:
            raise RequestError("unavailable", f"the kernel refuses: {error}") from None
        word = "on" if on else "off"
        self._journal.write(f"probes-{word}", f"probes are {word}", NOTICE)
        self._snapshot = self._picture()
        return word

    def _set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> list[Ring]:
        if self._watch.engine is None:
            raise RequestError("unavailable", f"there is no engine: {self._watch.engine_error}")
        try:
            asked = self._watch.set_ring(mode, sample, floor, pid)
        except ValueError as error:
            raise RequestError("bad-request", f"ring: {error}") from None
        if pid is not None and asked == 0:
            raise RequestError(
                "not-found", f"process {pid} has no ring that can be asked: see stragctl ring"
            )
        whom = "all processes" if pid is None else f"process {pid}"
        text = f"plugins of {whom} are asked for {mode}, sample {sample}, floor {floor} bytes"
        self._journal.write("ring-asked", text, NOTICE)
        self._snapshot = self._picture()
        return [ring for ring in self._snapshot["rings"] if pid is None or ring["pid"] == pid]

    def _reload(self) -> dict[str, list[str]]:
        try:
            new = load(self._config_path)
        except ConfigError as error:
            reason = "; ".join(error.problems)
            self._journal.write(
                "config-refused", f"the old configuration stays: {reason}", ERROR, reason=reason
            )
            raise RequestError("bad-request", reason) from None
        old = self.config
        changed, restart = old.changed(new)
        self.config = old.adopt(new)
        journal = new.journal
        self._journal.configure(journal.target, journal.burst, journal.interval_seconds)
        self._watch.store.keep(new.findings.cleared_kept)
        if old.prometheus != self.config.prometheus:
            self._start_metrics()
        if old.telemetry != self.config.telemetry:
            self._watch.causes.configure(self.config.telemetry)
        if old.ring != self.config.ring:
            self._watch.configure_ring(self.config.ring)
        text = f"changed: {', '.join(changed) or 'nothing'}"
        if restart:
            text += f"; waiting for a restart: {', '.join(restart)}"
        self._journal.write("reloaded", f"configuration read again; {text}", INFO)
        self._snapshot = self._picture()
        return {"changed": changed, "restart": restart}

    def _close(self) -> None:
        """Probes first: whatever else happens, the jobs are left alone."""
        notify("STOPPING=1")
        try:
            self._watch.close()
        finally:
            if self._control is not None:
                self._control.close()
            if self._metrics is not None:
                self._metrics.close()
            self._journal.write("stopped", "stragd has stopped; every probe is detached")


def parser() -> argparse.ArgumentParser:
    """The argument parser; the man page is made from it."""
    made = argparse.ArgumentParser(
        prog="stragd", description="Find the slow rank of a live distributed training job."
    )
    made.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration file (default: {DEFAULT_FILE}, which need not exist)",
    )
    made.add_argument("--check-config", action="store_true", help="check it and exit")
    made.add_argument("--version", action="version", version=f"stragd {__version__}")
    return made


def main(argv: list[str] | None = None) -> int:
    """Console script: 0 after a stop, 1 when the daemon cannot start, 2 for wrong usage."""
    arguments = parser().parse_args(argv)
    try:
        config = load(arguments.config)
    except ConfigError as error:
        for problem in error.problems:
            print(f"stragd: {problem}", file=sys.stderr)
        return 1
    if arguments.check_config:
        print("ok")
        return 0
    try:
        from stragd import _rscore
        from stragd.discovery import Identifier as Discovery
    except ImportError as error:
        print(f"stragd: the native core is not built: {error}; run make setup", file=sys.stderr)
        return 1
    journal = Journal(**dataclasses.asdict(config.journal))
    try:
        scorer = _rscore.Scorer(config.scorer())
        daemon = Daemon(
            config,
            journal,
            _rscore.Engine,
            scorer,
            Discovery(dataclasses.asdict(config.discovery)),
            arguments.config,
        )
    except ValueError as error:
        print(f"stragd: the configuration cannot be used: {error}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    signal.signal(signal.SIGINT, lambda *_: daemon.stop())
    signal.signal(signal.SIGHUP, lambda *_: daemon.hang_up())
    return daemon.run()


if __name__ == "__main__":
    sys.exit(main())
