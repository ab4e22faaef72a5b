"""The trainers are real, do what they say, and leave nothing behind; who they are is seen."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stragd.discovery import Identifier, process
from tests.trainer.launch import PYTHON, TRAINERS, torchrun


def wait_for(what: str, check: Callable[[], Any], limit: float = 120) -> Any:
    deadline = time.monotonic() + limit
    while not (value := check()):
        assert time.monotonic() < deadline, f"waited {limit} s in vain for {what}"
        time.sleep(0.1)
    return value


class Run:
    """A trainer in a session of its own, gone with all its processes at the end."""

    def __init__(self, command: list[str], record: Path, log: Path) -> None:
        self.record, self.log = record, log
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, "--record", str(record)],
                stdout=file,
                stderr=file,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def records(self, event: str) -> list[dict[str, Any]]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [r for r in map(json.loads, lines) if r["event"] == event]

    def ranks(self, count: int) -> list[int]:
        """Pids by rank, once all have begun."""

        def started() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self.log.read_text()
            found = self.records("started")
            return found if len(found) == count else []

        begun = wait_for("the ranks to start", started)
        return [r["pid"] for r in sorted(begun, key=lambda r: r["rank"])]

    def finish(self) -> list[dict[str, Any]]:
        """Wait for its end; the summaries by rank."""
        assert self.process.wait(240) == 0, self.log.read_text()
        return sorted(self.records("summary"), key=lambda r: r["rank"])

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def start(script: str, ranks: int, *arguments: str) -> Run:
        if ranks:
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command = torchrun(script, ranks, port, tmp_path / "logs", *arguments)
        else:
            command = [PYTHON, str(TRAINERS / script), *arguments]
        runs.append(Run(command, tmp_path / "record.jsonl", tmp_path / "job.log"))
        return runs[-1]

    yield start
    for one in runs:
        one.end()


def start_time(pid: int) -> int:
    stat = process.read_stat("/proc", pid)
    assert stat is not None
    return stat.start_time


def children(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_ddp_trains_and_its_slow_rank_is_slow(run: Callable[..., Run]) -> None:
    injected_at, factor = 40, 1.5
    arguments = ["--steps", "80", "--step-ms", "40", "--slow-rank", "1"]
    arguments += ["--slow-factor", str(factor), "--slow-after", str(injected_at)]
    job = run("ddp.py", 4, *arguments)
    summaries = job.finish()
    assert [s["rank"] for s in summaries] == [0, 1, 2, 3]
    assert {s["steps"] for s in summaries} == {80}
    # Real training: the loss falls, and the parameters stay equal on all ranks.
    assert all(s["losses"][1] < s["losses"][0] for s in summaries)
    assert len({s["checksum"] for s in summaries}) == 1
    injected = job.records("injected")
    assert [(r["rank"], r["step"], r["factor"]) for r in injected] == [(1, injected_at, factor)]
    own = [s["parts"]["slow"]["own"]["median"] for s in summaries]
    peers = statistics.median(own[:1] + own[2:])
    assert 0.7 * (factor - 1) < own[1] / peers - 1 < 1.3 * (factor - 1)
    before = [s["parts"]["before"]["own"]["median"] for s in summaries]
    assert max(before) / min(before) < 1.1


def test_real_torchrun_ranks_and_their_helpers(run: Callable[..., Run]) -> None:
    job = run("ddp.py", 2, "--steps", "100000", "--workers", "1")
    pids = job.ranks(2)
    loaders = wait_for("data-loaders", lambda: [c for p in pids for c in children(p)][:2])
    identifier = Identifier()
    for helper in [job.process.pid, *loaders]:
        assert identifier.identify(helper, start_time(helper), []) is None
    found = [identifier.identify(pid, start_time(pid), []) for pid in pids]
    places = [(i.rank, i.world_size, i.local_rank, i.launcher) for i in found if i]
    assert places == [(0, 2, 0, "torchrun"), (1, 2, 1, "torchrun")]
    assert len({i.job_key for i in found if i}) == 1
    assert all(i.job_name.startswith("ddp.py@") for i in found if i)
    for helper in [job.process.pid, *loaders]:
        assert identifier.identify(helper, start_time(helper), []) is None
    assert identifier.notes() == []
    # The launcher is killed: nobody is left behind, and gone is gone.
    job.process.kill()
    job.process.wait(60)
    everyone = [*pids, *loaders]
    wait_for("the ranks to end", lambda: not any(Path(f"/proc/{p}").exists() for p in everyone))


@pytest.mark.parametrize("address", ["argument", "environment"])
def test_spawned_ranks_are_known_by_their_communicators(
    run: Callable[..., Run], address: str
) -> None:
    job = run("plain.py", 0, "--ranks", "2", "--steps", "100000", "--address", address)
    pids = job.ranks(2)
    identifier = Identifier()
    assert identifier.identify(job.process.pid, start_time(job.process.pid), []) is None
    found = []
    for rank, pid in enumerate(pids):
        assert identifier.identify(pid, start_time(pid), []) is None
        facts: Any = [{"id": 0, "rank": rank, "nranks": 2, "collectives": 3}]
        found.append(identifier.identify(pid, start_time(pid), facts))
    assert [(i.rank, i.world_size) for i in found if i] == [(0, 2), (1, 2)]
    assert len({i.job_key for i in found if i}) == 1
    assert all(i.job_name.startswith("plain.py") for i in found if i)
    assert identifier.identify(job.process.pid, start_time(job.process.pid), []) is None


def test_irregular_job_runs_to_its_end(run: Callable[..., Run]) -> None:
    summaries = run("irregular.py", 2, "--steps", "40", "--step-ms", "5").finish()
    assert [s["steps"] for s in summaries] == [40, 40]
