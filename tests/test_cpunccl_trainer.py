"""The trainer is a training job: its slow rank, and no other, has most work of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cpunccl import truth
from tests.cpunccl.patterns import PATTERNS, PHASES
from tests.harness import wait_for

pytest_plugins = ["tests.cpunccl.ranks"]
TRAINER = Path(__file__).resolve().parent / "cpunccl" / "trainer.py"
RANKS, SLOW, STEPS = 8, 3, 31
LIMIT = 240.0


class Training:
    """One job of the trainer."""

    def __init__(self, directory: Path, *arguments: str, **environment: str) -> None:
        self.record, self.dump = directory / "record.jsonl", str(directory / "dump")
        self.log = directory / "log"
        options = ["--record", str(self.record), "--dump", self.dump, *arguments]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAINER), *options],
                stdout=log,
                stderr=log,
                env=os.environ | environment,
                start_new_session=True,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.record.read_text().splitlines() if self.record.exists() else []
        return [e for e in map(json.loads, lines) if e["event"] == name]

    def finish(self) -> list[float]:
        """Wait for its end; mean own time in ms, by rank."""
        assert self.process.wait(LIMIT) == 0, self.log.read_text()
        return truth.mean_own(self.dump, len(self.events("started")))


@pytest.fixture
def train(cpunccl: Path, tmp_path: Path) -> Iterator[Callable[..., Training]]:
    jobs: list[Training] = []

    def start(*arguments: str, **environment: str) -> Training:
        # Planned times do not depend on the pace, so no test has to wait for them.
        jobs.append(Training(tmp_path, *arguments, **{"CPUNCCL_HURRY": "1"} | environment))
        return jobs[-1]

    yield start
    for one in jobs:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
        one.process.wait(60)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_own_is_largest_where_it_was_put(
    train: Callable[..., Training], pattern: str, phase: str
) -> None:
    """5 % of a step of 40 ms: the slow rank has 2 ms more of its own than anybody else."""
    slow = f"rank={SLOW},phase={phase},percent=5"
    own = train("--pattern", pattern, "--steps", str(STEPS), "--slow", slow).finish()
    others = [value for rank, value in enumerate(own) if rank != SLOW]
    assert own[SLOW] - max(others) > 1.0, own


@pytest.mark.parametrize("pattern", PATTERNS)
def test_healthy_ranks_are_alike(train: Callable[..., Training], pattern: str) -> None:
    own = train("--pattern", pattern, "--steps", str(STEPS), "--jitter", "0.002").finish()
    for stage in (own[0::2], own[1::2]):  # the two stages of a pipeline differ
        assert max(stage) / min(stage) < 1.02, own


def test_events_and_the_time_of_a_fault(train: Callable[..., Training]) -> None:
    slow = f"rank={SLOW},phase=forward,phase_percent=50,from_step=10,until=20"
    options = ["--steps", "30", "--jitter", "0", "--scale", "0.5"]
    job = train(*options, "--slow", slow, CPUNCCL_TRANSFER_JITTER="0")
    job.finish()
    assert sorted(e["rank"] for e in job.events("started")) == list(range(RANKS))
    assert sorted(e["rank"] for e in job.events("running")) == list(range(RANKS))
    assert [(e["rank"], e["step"]) for e in job.events("injected")] == [(SLOW, 10)]
    assert [(e["rank"], e["step"]) for e in job.events("withdrawn")] == [(SLOW, 20)]
    own = truth.own(Path(f"{job.dump}.{SLOW}"))  # from step 1 on
    wall = [e["step_ms"] for e in job.events("summary")]
    assert max(wall) - min(wall) < 0.1
    # Half of the half-scaled forward pass of 12 ms, and exact.
    assert abs(own[12] - own[5] - 3.0) < 0.01
    assert abs(own[22] - own[5]) < 0.01


def test_a_graph_has_the_same_times(train: Callable[..., Training]) -> None:
    slow = f"rank={SLOW},phase=backward,percent=5"
    own = train("--graph", "--steps", str(STEPS), "--slow", slow).finish()
    assert own.index(max(own)) == SLOW


def test_a_slow_link_is_no_slow_rank(train: Callable[..., Training]) -> None:
    """Half the bandwidth: longer steps, and nobody's own time grows."""
    options = ["--pattern", "tpdp", "--steps", "41", "--jitter", "0.002"]
    job = train(*options, "--link", "rank=2,other=3,factor=0.25,from_step=20")
    job.finish()
    for rank in range(RANKS):
        own = truth.own(Path(f"{job.dump}.{rank}"))
        before, after = sum(own[5:19]) / 14, sum(own[21:]) / len(own[21:])
        assert after < 1.02 * before
    steps = truth.steps(Path(f"{job.dump}.0"))
    ends = [max(end for _, end in step) for step in steps]
    assert (ends[40] - ends[21]) / 19 > 1.05 * (ends[19] - ends[1]) / 18


def test_real_time_a_kill_and_the_end_of_all(train: Callable[..., Training]) -> None:
    """At its real pace; a killed rank ends the job with an error and leaves nobody behind."""
    job = train("--ranks", "4", "--steps", "100000", CPUNCCL_HURRY="0")
    wait_for("the job to run", lambda: len(job.events("running")) == 4)
    pids = [e["pid"] for e in job.events("started")]
    environment = Path(f"/proc/{pids[0]}/environ").read_bytes()
    for name in (b"RANK=", b"WORLD_SIZE=4", b"MASTER_PORT=", b"TORCHELASTIC_RUN_ID="):
        assert name in environment
    os.kill(pids[1], signal.SIGKILL)
    assert job.process.wait(LIMIT) != 0
    assert "remote process exited" in job.log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--slow", "rank=1,phase=sideways"], "sideways"),
        (["--slow", "rank=1"], "phase"),
        (["--link", "rank=1,speed=3"], "speed"),
        (["--pattern", "tpdp", "--ranks", "3"], "multiple of 2"),
        (["--pattern", "moe", "--graph"], "only ddp"),
        (["--library", "/nowhere.so"], "is not built"),
    ],
)
def test_bad_options(train: Callable[..., Training], arguments: list[str], reason: str) -> None:
    job = train(*arguments)
    assert job.process.wait(60) == 2
    assert reason in job.log.read_text()
