"""A simulated job with the profiler plugin, from device clock to finding. CPU simulation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.patterns import PLUGIN, Training
from tests.cpunccl.ranks import build
from tests.harness import ROOT, Daemon, daemon, wait_for

SLOW = "rank=5,phase=backward,percent=8,from_step=600"


@pytest.fixture
def watcher() -> Iterator[Daemon]:
    build()
    with daemon() as one:
        yield one


@pytest.fixture
def training(watcher: Daemon, tmp_path: Path) -> Iterator[Training]:
    options = ["--pattern", "tpdp", "--steps", "100000", "--seed", "11", "--slow", SLOW]
    job = Training(tmp_path, *options)
    try:
        yield job
    finally:
        job.kill()


def test_rank_slow_in_its_backward_pass_is_named_by_device_time(
    watcher: Daemon, training: Training
) -> None:
    assert PLUGIN.is_relative_to(ROOT)
    named = wait_for("the slow rank", lambda: watcher.named(training), limit=300)
    assert named == [5], "its tensor peer waits for it and is no culprit"
    ranks = {rank["rank"]: rank for rank in watcher.ranks(training)}
    assert sorted(ranks) == list(range(8))
    assert {rank["source"] for rank in ranks.values()} == {"device-ring"}
    # A busy machine may keep the reader from a ring for so long that a few records are lost.
    assert min(rank["coverage"] for rank in ranks.values()) > 0.98
    rings = watcher.ask("ring")["rings"]
    ours = [ring for ring in rings if ring["pid"] in {rank["pid"] for rank in ranks.values()}]
    # Tensor and data group are splits of the world, which itself works nothing: no probe sees
    # their hashes.
    assert [(ring["communicators"], ring["joined"]) for ring in ours] == [(3, 2)] * 8
    (finding,) = watcher.findings(training)
    cost = finding["cost_ms_per_step"]
    # 8 % of 40 ms, put in by the job itself.
    assert cost["low"] - 0.5 <= 3.2 <= cost["high"] + 0.5, cost


def test_recording_is_switched_while_the_job_runs(watcher: Daemon, training: Training) -> None:
    def modes() -> set[str]:
        pids = training.pids()
        return {ring["mode"] for ring in watcher.ask("ring")["rings"] if ring["pid"] in pids}

    def source() -> set[str]:
        return {rank["source"] for rank in watcher.ranks(training)}

    wait_for("all rings", lambda: modes() == {"full"} and len(watcher.ranks(training)) == 8)
    wait_for("windows of device time", lambda: source() == {"device-ring"}, limit=180)
    assert watcher.control("ring", "off").returncode == 0
    wait_for("rings that are off", lambda: modes() == {"off"})
    wait_for("windows of host probes", lambda: source() == {"host-probe"}, limit=180)
    assert watcher.control("ring", "on").returncode == 0
    wait_for("windows of device time again", lambda: source() == {"device-ring"}, limit=180)
    assert training.process.poll() is None, training.log.read_text()
