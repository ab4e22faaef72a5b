"""Real jobs, real injected conditions, the running daemon: the right rank with the right cause.

The other conditions are in ``python -m bench causes_live``.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests import injections
from tests.fakenvml import FakeNvml
from tests.harness import Daemon, Job, daemon, job, wait_for
from tests.needs import lacking

RANKS = 4
SICK = 2
LIMIT = 240.0
WATCH = "[windows]\nsteps = 25\n[telemetry]\nseconds = 1\n"
HW_THERMAL = 270  # NVML's field of the time in hardware thermal slowdown


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        lacking("the daemon attaches eBPF probes: run this as root")


def arguments(*more: str) -> list[str]:
    """A job that computes a little and sleeps most of its step, so that ranks share two cores."""
    return ["--step-ms", "60", "--cpu-ms", "6", "--steps", "100000", *more]


def learnt(watcher: Daemon, training: Job) -> dict[int, int]:
    """Wait until the scorer knows what is normal; rank -> pid."""

    def known() -> dict[int, int]:
        ranks = watcher.ranks(training)
        jobs = {rank["job"] for rank in ranks}
        windows = [j["windows"] for j in watcher.ask("jobs")["jobs"] if j["key"] in jobs]
        return {r["rank"]: r["pid"] for r in ranks} if windows and min(windows) >= 8 else {}

    found = wait_for("windows of every rank", known, LIMIT)
    assert sorted(found) == list(range(RANKS))
    return found


def blamed(watcher: Daemon, training: Job) -> dict[str, Any] | None:
    """The most expensive confirmed finding about a rank of this job."""
    jobs = {rank["job"] for rank in watcher.ranks(training)}
    for finding in watcher.ask("findings")["findings"]:
        if finding["job"]["key"] in jobs and finding["state"] == "confirmed":
            return finding if "rank" in finding["subject"] else None
    return None


def wait_for_cause(watcher: Daemon, training: Job, cause: str) -> dict[str, Any]:
    """Wait until the sick rank is the one that is blamed, for this cause."""
    last: list[Any] = []

    def named() -> dict[str, Any] | None:
        finding = blamed(watcher, training)
        if finding is None:
            return None
        last[:] = [finding]
        right = finding["subject"]["rank"] == SICK and finding["cause"]["name"] == cause
        return finding if right else None

    try:
        return wait_for(f"rank {SICK} to be slow for {cause}", named, LIMIT)
    except AssertionError as error:
        raise AssertionError(f"{error}; {last}; {watcher.output()[-3000:]}") from None


@pytest.mark.parametrize(
    ("inject", "cause", "where", "words"),
    [
        (injections.neighbours, "cpu-contention", "machine", "runnable but not running"),
        (injections.quota, "cpu-quota", "job", "throttl"),
        (injections.stops, "stopped-process", "job", "stopped"),
    ],
    ids=["neighbours on its core", "CPU quota", "stopped now and then"],
)
def test_what_is_done_to_a_rank_is_named(
    inject: Callable[[int], AbstractContextManager[None]], cause: str, where: str, words: str
) -> None:
    with daemon(WATCH) as watcher, job("ddp.py", RANKS, *arguments()) as training:
        pids = learnt(watcher, training)
        with inject(pids[SICK]):
            finding = wait_for_cause(watcher, training, cause)
            assert finding["where"] == where
            assert words in finding["cause"]["evidence"][0]
            assert "peers" in finding["cause"]["evidence"][0]
            assert finding["cause"]["advice"]
            text = watcher.control("findings").stdout
            assert f"where: {where}, cause: {cause}" in text
            assert f"cause {cause}" in watcher.output()
            assert f"cause: {cause}" in watcher.control("top").stdout


def test_a_rank_that_is_just_slow_has_no_cause_until_its_gpu_is_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is made up; the job, the daemon and its reader of NVML are real."""
    pytest.importorskip("pynvml")
    driver = FakeNvml(tmp_path / "driver", RANKS).healthy()
    slow = ["--slow-rank", str(SICK), "--slow-factor", "1.4", "--slow-after", "250"]
    with job("ddp.py", RANKS, *arguments(*slow)) as training:
        wait_for("the ranks to begin", lambda: len(training.pids()) == RANKS)
        for record in training.records():
            if record["event"] == "started":
                driver.process(record["rank"], record["pid"])
        driver.write()
        for name, value in driver.environment.items():
            monkeypatch.setenv(name, value)
        with daemon(WATCH) as watcher:
            finding = wait_for_cause(watcher, training, "unknown")
            assert finding["where"] in ("unknown", "job")
            wait_for_gpus(watcher, training)

            driver.set(SICK, "sm_clock", 1305)
            driver.share(SICK, HW_THERMAL, 0.6)
            driver.write()
            finding = wait_for_cause(watcher, training, "thermal-throttle")
            assert finding["where"] == "machine"
            assert "1,305 MHz, peers 1,980" in " ".join(finding["cause"]["evidence"])
            lines = [x for x in page(watcher).splitlines() if "stragd_finding_cause" in x]
            assert any(
                f'rank="{SICK}"' in line
                and 'cause="thermal-throttle"' in line
                and 'where="machine"' in line
                and "HW thermal slowdown" in line
                for line in lines
            ), lines
            assert "cause thermal-throttle" in watcher.output(), "the journal hears of it later"


def wait_for_gpus(watcher: Daemon, training: Job) -> None:
    """Wait until the evidence of the unknown cause says that GPUs were compared."""

    def compared() -> bool:
        finding = blamed(watcher, training)
        return finding is not None and "NVIDIA H200" in " ".join(finding["cause"]["evidence"])

    wait_for("the GPUs to be compared", compared, LIMIT)


def page(watcher: Daemon) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{watcher.port}/metrics", timeout=60) as reply:
        text: str = reply.read().decode()
    return text
