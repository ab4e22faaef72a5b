"""Real daemon, real eBPF, real torchrun jobs over gloo: what an operator relies on.

Needs root and Debian's python3-torch; fails where they are missing.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench import soak
from scripts import demo
from tests.harness import Daemon, Job, daemon, job, wait_for

SHORT_WINDOWS = "[windows]\nsteps = 50\n"
FAST = ["--step-ms", "40"]


@pytest.fixture(scope="module", autouse=True)
def _root() -> None:
    assert os.geteuid() == 0, "these tests attach eBPF probes: run them as root"


def wait_for_ranks(watcher: Daemon, training: Job, count: int) -> list[dict[str, Any]]:
    """Wait until so many ranks of the job have step times."""

    def enough() -> list[dict[str, Any]]:
        seen = [rank for rank in watcher.ranks(training) if rank["own_ms"] is not None]
        return seen if len(seen) >= count else []

    return wait_for(f"{count} ranks with step times", enough, 180)


def metrics(watcher: Daemon) -> str:
    """The Prometheus page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{watcher.port}/metrics") as page:
        text: str = page.read().decode()
    return text


def test_a_restarted_job_goes_on_with_what_its_ranks_were() -> None:
    arguments = [*FAST, "--steps", "100000"]
    restarts = ("--max_restarts", "20")  # the port of the old ranks may still be taken
    with daemon(SHORT_WINDOWS) as watcher, job("ddp.py", 3, *arguments, more=restarts) as training:

        def learnt() -> list[dict[str, Any]]:
            """The ranks, once the scorer has no reason to be silent about them."""
            ranks, abstentions = watcher.ranks(training), watcher.ask("top")["abstentions"]
            known = [rank for rank in ranks if rank["own_ms"] is not None]
            learning = {one["job"] for one in abstentions}
            return [rank for rank in known if rank["job"] not in learning]

        before = wait_for("three ranks that are known", learnt, 180)
        old = {rank["job"] for rank in watcher.ranks(training)}
        os.kill(before[-1]["pid"], signal.SIGKILL)
        reasons: set[tuple[str, str]] = set()

        def third_window() -> str:
            """The key of the restarted job, once it has three."""
            answer = watcher.ask("top")
            new = {rank["job"] for rank in watcher.ranks(training)} - old
            reasons.update((one["job"], one["reason"]) for one in answer["abstentions"])
            there = [one for one in answer["jobs"] if one["key"] in new and one["windows"] >= 3]
            return there[0]["key"] if there else ""

        key = wait_for("three windows of the restarted job", third_window, 300)
        assert "started anew" in watcher.output()
        assert (key, "learning") not in reasons


def test_a_slow_rank_is_named_with_its_cost_and_nobody_else() -> None:
    rank = random.SystemRandom().randrange(demo.RANKS)
    arguments = [*FAST, "--steps", "4000", "--slow-rank", str(rank), "--slow-factor", "1.2"]
    arguments += ["--slow-after", "400"]
    with daemon() as watcher, job("ddp.py", demo.RANKS, *arguments) as training:
        wait_for(f"rank {rank} to be named", lambda: demo.confirmed(watcher, training), 180)
        (finding,) = watcher.findings(training)
        assert finding["subject"]["rank"] == rank
        # 20 % of 40 ms; the next slowest rank bounds it, noise moves it.
        assert 3 < finding["cost_ms_per_step"]["value"] < 14
        assert 0.1 < finding["slowdown"] < 0.35
        lines = [x for x in metrics(watcher).splitlines() if x.startswith("stragd_finding{")]
        assert any(f'rank="{rank}"' in line and 'state="confirmed"' in line for line in lines)
        assert f"rank {rank}" in watcher.output(), "the log names the rank too"
        page = watcher.control("report", finding["job"]["key"], "-o", "-").stdout
        assert f"Rank {rank} on " in page
        assert f"Own work of rank {rank}" in page


def test_a_healthy_job_names_nobody() -> None:
    with daemon() as watcher, job("ddp.py", 4, *FAST, "--steps", "900") as training:
        wait_for_ranks(watcher, training, 4)
        training.wait()
        time.sleep(1)
        assert watcher.named(training) == []


def test_daemon_comes_late_dies_and_comes_back_and_the_job_is_unharmed(tmp_path: Path) -> None:
    watcher = Daemon(tmp_path, SHORT_WINDOWS)
    with job("ddp.py", 2, *FAST, "--steps", "900") as training:
        wait_for("the job to step", training.record.exists)
        time.sleep(2)
        watcher.start()  # the job was there first
        wait_for_ranks(watcher, training, 2)
        watcher.stop(signal.SIGKILL)
        assert training.process.poll() is None, "the job outlives a killed daemon"
        watcher.start()  # the stale socket is replaced
        wait_for_ranks(watcher, training, 2)
        assert training.wait() == 0, training.log.read_text()
        begin = time.monotonic()
        assert watcher.stop() == 0
        assert time.monotonic() - begin < 30, "a stop never hangs"


def test_a_killed_job_leaves_nothing_behind() -> None:
    arguments = [*FAST, "--steps", "100000"]
    with daemon(SHORT_WINDOWS) as watcher, job("ddp.py", 2, *arguments) as training:
        wait_for_ranks(watcher, training, 2)
        (key,) = {rank["job"] for rank in watcher.ranks(training)}
        name = next(j["name"] for j in watcher.ask("jobs")["jobs"] if j["key"] == key)
        assert f'job="{name}"' in metrics(watcher)
        training.kill()
        wait_for("the series to go", lambda: f'job="{name}"' not in metrics(watcher))


def test_two_jobs_with_the_run_id_none_stay_apart() -> None:
    with (
        daemon(SHORT_WINDOWS) as watcher,
        job("ddp.py", 2, *FAST, "--steps", "100000") as one,
        job("ddp.py", 2, *FAST, "--steps", "100000") as other,
    ):
        for training in (one, other):
            ranks = wait_for_ranks(watcher, training, 2)
            assert sorted(rank["rank"] for rank in ranks) == [0, 1]
        keys = [{rank["job"] for rank in watcher.ranks(training)} for training in (one, other)]
        assert [len(key) for key in keys] == [1, 1]
        assert keys[0] != keys[1]


def test_eight_ranks_on_two_cores() -> None:
    arguments = ["--step-ms", "150", "--steps", "100000"]
    with daemon(SHORT_WINDOWS) as watcher, job("ddp.py", 8, *arguments) as training:
        ranks = wait_for_ranks(watcher, training, 8)
        assert sorted(rank["rank"] for rank in ranks) == list(range(8))
        assert len({rank["job"] for rank in ranks}) == 1


def test_two_hundred_short_lived_processes_change_nothing() -> None:
    arguments = [*FAST, "--steps", "100000"]
    with daemon(SHORT_WINDOWS) as watcher, job("ddp.py", 2, *arguments) as training:
        wait_for_ranks(watcher, training, 2)
        for _ in range(200):
            subprocess.run(["/bin/true"], check=True)
        assert watcher.process is not None
        assert watcher.process.poll() is None
        steps = sum(rank["steps"] for rank in watcher.ranks(training))
        wait_for("more", lambda: sum(rank["steps"] for rank in watcher.ranks(training)) > steps)


def test_the_kill_switch_detaches_and_attaches_again() -> None:
    arguments = [*FAST, "--steps", "100000"]
    with daemon(SHORT_WINDOWS) as watcher, job("ddp.py", 2, *arguments) as training:
        wait_for_ranks(watcher, training, 2)
        assert watcher.ask("probes", "off")["probes"] == "off"
        assert watcher.ask("top")["health"]["probes_attached"] == 0

        def events_of_two_seconds() -> int:
            before: int = watcher.ask("top")["health"]["events"]
            time.sleep(2)
            after: int = watcher.ask("top")["health"]["events"]
            return after - before

        # What was in the rings arrives first.
        wait_for("events to end while off", lambda: events_of_two_seconds() == 0)
        events = watcher.ask("top")["health"]["events"]
        assert watcher.ask("probes", "on")["probes"] == "on"
        wait_for("events again", lambda: watcher.ask("top")["health"]["events"] > events)


def test_an_irregular_job_is_watched_by_time() -> None:
    with (
        daemon("[windows]\nseconds = 5\n") as watcher,
        job("irregular.py", 2, "--steps", "100000") as training,
    ):
        ranks = wait_for_ranks(watcher, training, 2)
        assert all("steps-not-inferred" in r["flags"] for r in ranks), ranks
        assert training.process.poll() is None


def test_memory_stays_flat_while_jobs_come_and_go() -> None:
    samples, rate, _ = soak.soak(60)
    assert rate > 2000, "the load arrived"
    assert soak.spread(samples, 10) < 6, f"RSS in MB, second by second: {samples}"
    assert max(samples) < 110


def test_messages_that_cannot_be_timed_make_it_abstain() -> None:
    arguments = ["--step-ms", "30", "--steps", "100000", "--slow-rank", "1", "--slow-after", "100"]
    with daemon(SHORT_WINDOWS) as watcher, job("pipeline.py", 4, *arguments) as training:

        def reasons() -> set[str]:
            jobs = {rank["job"] for rank in watcher.ranks(training)}
            answer = watcher.ask("findings")["abstentions"]
            return {a["reason"] for a in answer if a["job"] in jobs} - {"learning"}

        found = wait_for("an abstention", reasons, 180)
        assert any("host probes only" in reason for reason in found), found
        assert watcher.named(training) == []
