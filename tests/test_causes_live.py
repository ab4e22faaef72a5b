"""Real jobs, real injected conditions, the running daemon: the right rank with the right cause.

Busy neighbours are in test_outputs_agree.py, all others in ``python -m bench causes_live``.
"""

from __future__ import annotations

import os
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.fakenvml import FakeNvml
from tests.harness import Daemon, Job, daemon, job, wait_for
from tests.injections import CONDITIONS, LIMIT, RANKS, WATCH, arguments, blamed, learnt
from tests.needs import lacking, module

SICK = 2
QUICK = ("CPU quota", "stopped now and then")
HW_THERMAL = 270  # NVML's field of the time in hardware thermal slowdown


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    if os.geteuid() != 0:
        lacking("the daemon attaches eBPF probes: run this as root")


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


@pytest.mark.parametrize("name", QUICK)
def test_what_is_done_to_a_rank_is_named(name: str) -> None:
    condition = CONDITIONS[name]
    with daemon(WATCH) as watcher, job("ddp.py", RANKS, *arguments()) as training:
        pids = learnt(watcher, training)
        with condition.inject(pids[SICK]):
            finding = wait_for_cause(watcher, training, condition.cause)
            if "the job, not the machine" not in " ".join(finding["evidence"]):
                assert finding["where"] == condition.where
            assert condition.words in finding["cause"]["evidence"][0]
            assert "peers" in finding["cause"]["evidence"][0]
            assert finding["cause"]["advice"]
            place = f"cause: {condition.cause} ("
            assert place in watcher.control("findings").stdout
            assert place in watcher.control("top").stdout
            assert f"cause {condition.cause}" in watcher.output()


def test_a_rank_that_is_just_slow_has_no_cause_until_its_gpu_is_hot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver is made up; the job, the daemon and its reader of NVML are real."""
    module("pynvml")
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


def test_a_driver_call_that_blocks_for_a_minute_delays_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap 12, with everything around it: windows and scrapes go on, the daemon ends."""
    module("pynvml")
    driver = FakeNvml(tmp_path / "driver", RANKS).healthy()
    driver.write()
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    with daemon(WATCH) as watcher, job("ddp.py", RANKS, *arguments()) as training:
        wait_for("the GPUs to be read", lambda: read_seconds(watcher) is not None, LIMIT)
        for gpu in range(RANKS):
            driver.hang(gpu, "nvmlDeviceGetFieldValues", 60)
        driver.write()
        first = windows(watcher, training)
        scrapes: list[float] = []

        def going_on() -> bool:
            begin = time.monotonic()
            assert "stragd_up{" in page(watcher)
            scrapes.append(time.monotonic() - begin)
            return windows(watcher, training) >= first + 3

        wait_for("windows", going_on, LIMIT)
        # Not timings, but the difference between waiting for the driver and not.
        assert max(scrapes) < 30
        begin = time.monotonic()
        assert watcher.stop() == 0
        assert time.monotonic() - begin < 30


def windows(watcher: Daemon, training: Job) -> int:
    """Windows of this job so far."""
    jobs = {rank["job"] for rank in watcher.ranks(training)}
    return sum(j["windows"] for j in watcher.ask("jobs")["jobs"] if j["key"] in jobs)


def read_seconds(watcher: Daemon) -> float | None:
    """What the last reading of GPUs took."""
    readers = {reader["name"]: reader for reader in watcher.ask("status")["readers"]}
    seconds: float | None = readers["gpu"]["read_s"]
    return seconds


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
