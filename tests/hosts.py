"""What host tests need: processes that behave in one way, real cgroups, a reader that waits."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from stragd.telemetry.host import HostTelemetry
from stragd.telemetry.quantities_host import PROCESS
from stragd.telemetry.sample import Sample
from tests.needs import lacking
from tests.processes import start_time

SPIN = [sys.executable, "-c", "while True: pass"]
LIMIT_S = 60
WINDOW_S = 0.5


def pinned(cpu: int, argv: list[str], nice: int = 0) -> list[str]:
    """The same command on one CPU."""
    return ["taskset", "-c", str(cpu), "nice", "-n", str(nice), *argv]


class Host:
    """Windows of a reader over some processes."""

    def __init__(self, *pids: int, root: Path = Path("/"), **more: object) -> None:
        self.reader = HostTelemetry(root, **more)  # type: ignore[arg-type]
        self.pids = {pid: start_time(pid) for pid in pids}
        self.numa_nodes: Mapping[int, int] | None = None
        self.read()

    def read(self) -> dict[int, Sample]:
        """One sample per process; a first window has no differences."""
        samples = self.reader.read(self.pids, 0, 1, self.numa_nodes)
        assert [s.subject for s in samples] == [str(pid) for pid in self.pids]
        assert {name for s in samples for name in s.values} <= set(PROCESS)
        for sample in samples:
            shares = {n: v for n, v in sample.values.items() if n.endswith("_share")}
            over = {"cpu_share", "worker_cpu_share"}  # of several CPUs
            assert all(0 <= v <= 1 or n in over for n, v in shares.items()), shares
        return {int(sample.subject): sample for sample in samples}

    def until(self, what: str, condition: Callable[[dict[int, Sample]], bool]) -> dict[int, Sample]:
        """The first window that meets a condition."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            time.sleep(WINDOW_S)
            samples = self.read()
            if condition(samples):
                return samples
            assert time.monotonic() < deadline, f"waited {LIMIT_S} s in vain for {what}: {samples}"


def more_than_twin(
    name: str, pid: int, twin: int, least: float
) -> Callable[[dict[int, Sample]], bool]:
    """A value of one process is at least so much, and at least twice its twin's."""

    def condition(samples: dict[int, Sample]) -> bool:
        values = [samples[p].values.get(name) for p in (pid, twin)]
        return None not in values and values[0] >= max(least, 2 * values[1])  # type: ignore

    return condition


def waits_more_than_twin(pid: int, twin: int) -> Callable[[dict[int, Sample]], bool]:
    """The time that is left for running is less than half of the twin's.

    Of the waiting itself this could not be asked: on a busy machine the twin waits too.
    """

    def condition(samples: dict[int, Sample]) -> bool:
        shares = [samples[p].values.get("run_queue_share", 0.0) for p in (pid, twin)]
        return shares[0] > 0.5 and 2 * (1 - shares[0]) < 1 - shares[1]

    return condition


class RealCgroups:
    """Cgroups of our own, in whichever hierarchy has the controller."""

    def __init__(self) -> None:
        self._made: list[Path] = []

    def make(self, controller: str, parent: Path | None = None, **files: str) -> Path:
        """A new cgroup; ``files`` are written where they exist (v1 or v2 names, "." as "__")."""
        base = parent or self.hierarchy(controller)
        path = base / f"stragd-test-{uuid.uuid4().hex[:8]}"
        try:
            path.mkdir()
        except OSError as error:
            lacking(f"cgroups cannot be made: {error}")
        self._made.append(path)
        written = 0
        for name, text in files.items():
            file = path / name.replace("__", ".")
            if file.exists():
                file.write_text(text)
                written += 1
        assert written or not files, f"none of {list(files)} in {path}"
        return path

    def hierarchy(self, controller: str) -> Path:
        """Where a controller is mounted; the unified hierarchy for ""."""
        unified: Path | None = None
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, path, kind, options, *_ = line.split(" ")
            if kind == "cgroup" and controller in options.split(","):
                return Path(path)
            if kind == "cgroup2":
                unified = Path(path)
        if unified is not None and not controller:
            return unified
        if unified is not None:
            control = unified / "cgroup.subtree_control"
            if controller not in control.read_text().split():
                try:
                    control.write_text(f"+{controller}")
                except OSError:
                    lacking(f"cgroup v2 does not give the controller {controller}")
            return unified
        lacking(f"no cgroup hierarchy has {controller or 'v2'}")

    def move(self, pid: int, path: Path) -> None:
        """Put a process into a cgroup."""
        (path / "cgroup.procs").write_text(str(pid))

    def __enter__(self) -> RealCgroups:
        return self

    def __exit__(self, *_: object) -> None:
        for path in reversed(self._made):
            top = path.parent
            for pid in (path / "cgroup.procs").read_text().split():
                with suppress(ProcessLookupError):  # it has ended since
                    (top / "cgroup.procs").write_text(pid)
            path.rmdir()


def cpus(least: int = 2) -> list[int]:
    """CPUs that tests may use."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < least:
        pytest.skip(f"needs {least} CPUs")
    return allowed
