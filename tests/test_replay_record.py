"""stragctl record: from the windows of a running daemon to a file that replay reads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from scripts import demo
from stragd.cli.client import ControlClient, ControlError
from stragd.outputs import windowlog
from stragd.outputs.control import ControlServer
from stragd.outputs.verbs import Verbs
from stragd.outputs.windowlog import WindowLog
from stragd.replay.detect import open_recording
from tests.harness import daemon, job, wait_for
from tests.test_cli import CannedDaemon
from tests.test_replay import replay, stragctl
from tests.test_replay_files import rows

OWN = [80e6] * 4


class Watched(CannedDaemon):
    """The canned picture, and a real window log."""

    def __init__(self) -> None:
        super().__init__()
        self.log = WindowLog()
        self.key = int(self.picture["jobs"][0]["key"], 16)

    def windows(self, after: int | None, job: int | None) -> Any:
        return self.log.since(after, job)


class Served:
    def __init__(self, path: Path) -> None:
        self.path, self.daemon = path, Watched()
        self.server = ControlServer(str(path), "no-such-group", Verbs(self.daemon))
        self.server.start()

    def record(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return stragctl("--socket", self.path, "record", *arguments)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path / "control.sock")
    yield made
    made.server.close()


def test_the_log_is_bounded_and_says_what_went() -> None:
    size = rows(0, OWN).nbytes
    log = WindowLog(kept_bytes=10 * size)
    assert log.since(None).after == 0
    for number in range(25):
        log.add(1 + number % 2, rows(number, OWN))
    part = log.since(5)
    assert [entry.number for entry in part.entries] == list(range(16, 26))
    assert (part.missed, part.after) == (10, 25)
    assert log.since(20).missed == 0
    assert [entry.number for entry in log.since(20, 2).entries] == [22, 24]
    assert log.since(25).entries == []
    assert log.since(None).after == 25
    assert log.since(99).after == 25  # a number of another daemon's life
    # One window is kept and given, however large it is.
    large = WindowLog(kept_bytes=1)
    large.add(1, rows(0, OWN))
    assert len(large.since(0).entries) == 1


def test_an_answer_is_cut_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windowlog, "REPLY_BYTES", 3 * rows(0, OWN).nbytes)
    log = WindowLog()
    for number in range(8):
        log.add(1, rows(number, OWN))
    seen, after = [], 0
    while part := log.since(after).entries:
        assert len(part) <= 3
        seen += [entry.number for entry in part]
        after = log.since(after).after
    assert seen == list(range(1, 9))


def test_what_was_held_is_written_and_read_again(served: Served, tmp_path: Path) -> None:
    for number in range(6):
        served.daemon.log.add(served.daemon.key, rows(number, OWN, job=served.daemon.key))
        served.daemon.log.add(99, rows(number, OWN, job=99))  # of a job that is gone
    path = tmp_path / "own"
    done = served.record(path, "--past", "--windows", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"5 windows in {path}\n"
    recording = open_recording(path)
    assert [int(w["window"][0]) for w in recording.windows] == [0, 1, 2, 3, 4]
    (about,) = recording.jobs.values()
    picture = served.daemon.picture
    assert about.name == picture["jobs"][0]["name"]
    there = {
        r["rank"]: r["host"] for r in picture["ranks"] if r["job"] == picture["jobs"][0]["key"]
    }
    assert about.hosts == there
    # A recording is never overwritten.
    before = path.read_bytes()
    done = served.record(path, "--seconds", "1")
    assert done.returncode == 1
    assert f"{path}: it exists already" in done.stderr
    assert path.read_bytes() == before


def test_requests_that_make_no_sense(served: Served, tmp_path: Path) -> None:
    done = served.record(tmp_path / "x", "--job", "nobody")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "no job 'nobody'" in done.stderr
    assert not (tmp_path / "x").exists()
    done = served.record(tmp_path / "no" / "x", "--seconds", "1")
    assert "No such file or directory" in done.stderr
    for option in ("--windows", "--seconds"):
        assert served.record(tmp_path / "x", option, "0").returncode == 2
    with ControlClient(str(served.path)) as client:
        for bad in ("5", True, 1.5, None):
            with pytest.raises(ControlError, match="after must be a whole number"):
                client.request("windows", after=bad)
    del served.daemon.picture["ranks"]
    served.daemon.log.add(served.daemon.key, rows(0, OWN))
    assert served.record(tmp_path / "y", "--past", "--windows", "1").returncode == 1


def test_ctrl_c_ends_a_recording_that_is_whole(served: Served, tmp_path: Path) -> None:
    served.daemon.log.add(served.daemon.key, rows(0, OWN, job=served.daemon.key))
    path = tmp_path / "own"
    command = [sys.executable, "-m", "stragd.cli.main", "--socket", str(served.path)]
    process = subprocess.Popen(
        [*command, "record", str(path), "--past"], stdout=subprocess.PIPE, text=True
    )
    wait_for("a window in the file", lambda: path.exists() and path.stat().st_size > 1000)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, f"1 windows in {path}\n")
    assert len(open_recording(path).windows) == 1


def test_a_live_job_replayed_names_the_rank_that_was_named_live(tmp_path: Path) -> None:
    """Real daemon, real eBPF, real training."""
    assert os.geteuid() == 0, "this test attaches eBPF probes: run it as root"
    rank = random.SystemRandom().randrange(demo.RANKS)
    options = ["--step-ms", "40", "--steps", "4000", "--slow-rank", str(rank)]
    options += ["--slow-factor", "1.3", "--slow-after", "300"]
    with daemon("[windows]\nsteps = 25\n") as watcher, job("ddp.py", demo.RANKS, *options) as run:

        def named() -> dict[str, Any] | None:
            """The finding, some windows after the slowdown: tenths are not in a recording."""
            found = [f for f in watcher.findings(run) if f["subject"]["rank"] == rank]
            windows = {one["key"]: one["windows"] for one in watcher.ask("top")["jobs"]}
            late = [f for f in found if windows.get(f["job"]["key"], 0) >= 300 / 25 + 8]
            return late[0] if late and late[0]["state"] == "confirmed" else None

        live = wait_for(f"rank {rank} to be named", named, 180)
        path, key = tmp_path / "own", live["job"]["key"]
        done = watcher.control("record", str(path), "--past", "--job", key, "--seconds", "2")
        assert done.returncode == 0, done.stderr
        after = watcher.findings(run)
    answer = replay(path)
    replayed = [f for f in answer["findings"] if f["kind"] == "straggler"]
    # On a busy machine others may be slow for a moment: who is named here was named live.
    assert sinces(replayed).keys() <= sinces(after).keys()
    # The tenth in which it was seen live is not known here, and later windows may move the begin.
    apart = abs(began(sinces(replayed)[rank]) - began(live["since"]["time"]))
    assert apart <= timedelta(seconds=5), "four windows"
    finding = next(f for f in replayed if f["subject"]["rank"] == rank)
    assert finding["subject"]["label"] == f"rank {rank}"
    assert finding["subject"]["class"] == live["subject"]["class"]
    assert finding["job"] == live["job"]
    assert not any(f["since"]["time"].startswith("1970") for f in replayed)


def began(time: str) -> datetime:
    return datetime.fromisoformat(time.replace("Z", "+00:00"))


def sinces(findings: list[dict[str, Any]]) -> dict[int, str]:
    """When each rank that is named began to be slow; of several times the first in the list."""
    return {f["subject"]["rank"]: f["since"]["time"] for f in reversed(findings)}
