"""Real stragd daemons and real training jobs, for the demo, the tests and the benches.

Everything started here lives in one temporary directory and ends with its context manager.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.trainer.launch import apart, torchrun

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = Path(sys.executable).parent
T = TypeVar("T")


def free_port() -> int:
    """A loopback TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(what: str, check: Callable[[], T | None], limit: float = 90.0) -> T:
    """Call ``check`` until it gives something true; AssertionError after ``limit`` seconds."""
    deadline = time.monotonic() + limit
    while True:
        value = check()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {limit:.0f} s in vain for {what}; last: {value!r}")
        time.sleep(0.2)


class Daemon:
    """One stragd with its own socket, port and configuration."""

    def __init__(self, directory: Path, config: str = "") -> None:
        self.directory = directory
        self.socket = directory / "control.sock"
        self.port = free_port()
        self.log = directory / "stragd.log"
        self.config = directory / "stragd.toml"
        self.config.write_text(
            f'[scoring]\nbaselines_file = "{directory}/baselines"\n'
            f'[control]\nsocket = "{self.socket}"\n'
            f'[prometheus]\naddress = "127.0.0.1:{self.port}"\n{config}'
        )
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str | Path]:
        """The command line that starts it."""
        return [SCRIPTS / "stragd", "--config", self.config]

    def start(self) -> None:
        """Start it and wait until it answers."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)
        process = self.process

        def answers() -> bool:
            if process.poll() is not None:
                raise AssertionError(f"stragd ended with {process.returncode}: {self.output()}")
            return self.control("status").returncode == 0

        wait_for("stragd to answer", answers)

    def stop(self, how: int = signal.SIGTERM) -> int:
        """Signal it, wait for its end, return its exit status."""
        if self.process is None:
            return 0
        self.process.send_signal(how)
        status = self.process.wait(60)
        self.process = None
        return status

    def control(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run stragctl against this daemon."""
        return subprocess.run(
            [SCRIPTS / "stragctl", "--socket", self.socket, *arguments],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ask(self, *arguments: str) -> dict[str, Any]:
        """Run stragctl with --json and return the object it prints."""
        done = self.control(*arguments, "--json")
        if done.returncode != 0:
            raise AssertionError(f"stragctl {arguments}: {done.stderr}")
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def ranks(self, training: Job) -> list[dict[str, Any]]:
        """Ranks of one job; the node may run others too."""
        pids = training.pids()
        ranks: list[dict[str, Any]] = self.ask("top")["ranks"]
        return [rank for rank in ranks if rank["pid"] in pids]

    def findings(self, training: Job, kind: str = "straggler") -> list[dict[str, Any]]:
        """Findings of one job and kind that were ever confirmed, cleared ones too."""
        jobs = {rank["job"] for rank in self.ranks(training)}
        return [
            finding
            for finding in self.ask("findings", "--cleared")["findings"]
            if finding["job"]["key"] in jobs
            and finding["kind"] == kind
            and finding["state"] != "suspect"
        ]

    def named(self, training: Job) -> list[int]:
        """Ranks of a job that were ever confirmed to be slow."""
        return [finding["subject"]["rank"] for finding in self.findings(training)]

    def output(self) -> str:
        """What it has printed so far."""
        return self.log.read_text(errors="replace")


@contextlib.contextmanager
def daemon(config: str = "") -> Iterator[Daemon]:
    """A running stragd in a temporary directory."""
    with tempfile.TemporaryDirectory(prefix="stragd-") as directory:
        one = Daemon(Path(directory), config)
        try:
            one.start()
            yield one
        finally:
            if one.process is not None:
                one.stop()


class Job:
    """A real job of torchrun, or of ranks in ``namespaces``, in its own process group."""

    def __init__(
        self,
        directory: Path,
        script: str,
        ranks: int,
        *arguments: str,
        namespaces: Sequence[str] = (),
        master: str = "",
        more: tuple[str, ...] = (),
    ) -> None:
        self.record = directory / "record.jsonl"
        self.log = directory / "job.log"
        logs = directory / "ranks"
        options = [*arguments, "--record", str(self.record)]
        if namespaces:
            command = apart(script, namespaces, master, *options)
        else:
            command = torchrun(script, ranks, free_port(), logs, *options, more=more)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("VIRTUAL_ENV")
        }
        environment["OMP_NUM_THREADS"] = "1"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def wait(self, limit: float = 600.0) -> int:
        """Wait for its end."""
        return self.process.wait(limit)

    def kill(self) -> None:
        """Kill every process of the job."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def pids(self) -> set[int]:
        """Processes of the ranks that have begun."""
        return {record["pid"] for record in self.records() if record["event"] == "started"}

    def records(self) -> list[dict[str, Any]]:
        """What the job itself wrote down about what was injected."""
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines()]


@contextlib.contextmanager
def job(script: str, ranks: int, *arguments: str, **where: Any) -> Iterator[Job]:
    """A running training job that is gone, with all its ranks, at the end; ``where`` as of Job."""
    with tempfile.TemporaryDirectory(prefix="stragd-job-") as directory:
        one = Job(Path(directory), script, ranks, *arguments, **where)
        try:
            yield one
        finally:
            one.kill()
