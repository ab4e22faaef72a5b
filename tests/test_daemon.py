"""The daemon's wiring on a hand-made engine: real sockets, real HTTP, real signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stragd.config import Config
from stragd.config_sources import load
from stragd.daemon import Daemon
from stragd.outputs.journal import Journal
from tests.pictures import raw_finding
from tests.test_control import Client, wait_for

FIELDS = [
    *((name, "<u8") for name in ("job", "signature", "window", "first_step", "last_step")),
    *((name, "<u8") for name in ("start_ns", "end_ns", "time_ns")),
    *((name, "<f8") for name in ("wall", "own", "wait", "comm", "own_se", "collectives", "bytes")),
    *((name, "<u4") for name in ("rank", "world_size", "class_id", "steps", "source", "flags")),
]


def rows(job: int, window: int, own: list[float]) -> np.ndarray:
    """One window of a job; own times in ms."""
    made = np.zeros(len(own), dtype=FIELDS)
    made["job"], made["window"], made["last_step"] = job, window, window * 100 + 99
    made["rank"], made["world_size"] = range(len(own)), len(own)
    made["own"], made["comm"], made["wall"] = np.array(own) * 1e6, 5e6, 130e6
    made["wait"] = made["wall"] - made["own"] - made["comm"]
    made["source"], made["signature"], made["class_id"], made["steps"] = 3, 1, 5, 100
    return made


class HandEngine:
    """An engine whose processes and windows a test hands in."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.changes: list[Any] = []
        self.windows: list[np.ndarray] = []
        self.assigned: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        self.calls: list[str] = []
        self.collectives: dict[tuple[int, int], int] = {}
        self.alive = 0
        self.stuck = False
        self.lost = 0.0
        self.library_state = "attached"
        self.ring = ("", 0, 0)

    def start(self) -> None:
        self.calls.append("start")

    def close(self) -> None:
        self.calls.append("close")

    def take_processes(self) -> list[Any]:
        taken, self.changes = self.changes, []
        return taken

    def assign(
        self, pid: int, start_time: int, job: int, rank: int, world_size: int, class_id: int
    ) -> bool:
        self.assigned[(pid, start_time)] = (job, rank, world_size, class_id)
        return True

    def take_windows(self, timeout: float) -> list[np.ndarray]:
        if not self.windows:
            time.sleep(min(timeout, 0.02))
        taken, self.windows = self.windows, []
        return taken

    def ranks(self) -> list[Any]:
        return [
            {
                "pid": pid,
                "start_time": start,
                "steps": 100,
                "collectives": self.collectives.get((pid, start), 10),
                "in_flight": 0,
                "signature": 1,
                "coverage": 0.75,
                "missed": ["broadcast"],
                "last_event_ns": time.monotonic_ns(),
                "communicators": [
                    {"id": 1, "rank": 0, "nranks": 2, "collectives": 5, "hash": h, "coverage": None}
                    for h in (0, 7)
                ],
            }
            for pid, start in self.assigned
        ]

    def libraries(self) -> list[Any]:
        failed = self.library_state == "failed"
        return [
            {
                "kinds": ["gloo"],
                "path": "/usr/lib/libgloo.so.0",
                "build_id": "ab",
                "version": "",
                "state": self.library_state,
                "method": "" if failed else "uprobe_multi",
                "probes": 0 if failed else 6,
                "refused": [],
                "missing": [],
                "error": "no space left" if failed else "",
                "processes": [],
            }
        ]

    def counters(self) -> dict[str, float]:
        return {"events.done": 100.0, "lost.ring": self.lost}

    def set_probes(self, on: bool) -> None:
        self.calls.append(f"probes {on}")

    def rings(self) -> list[Any]:
        return [
            {
                "pid": pid, "start_time": start, "state": "open", "refused": "", "others": 0,
                "vendor": "nvidia", "api": 5, "library": "2.28.3", "mode": self.ring[0],
                "sample": self.ring[1], "floor": self.ring[2], "wanted": self.ring[0],
                "wanted_sample": self.ring[1], "wanted_floor": self.ring[2],
                "controllable": True, "clock": "ns", "clock_hz": 10**9, "clock_moved": 0,
                "quirk": 0, "quirk_reason": "", "chained": "insp\x1bector", "records": 7,
                "lost": 1, "invalid": 0, "implausible": 0, "jumps": 0,
                "dropped": {"pool": 2}, "communicators": [],
            }
            for pid, start in self.assigned
        ]  # fmt: skip

    def set_ring(self, mode: str, sample: int, floor: int, pid: int | None) -> int:
        asked = sum(pid in (None, known) for known, _ in self.assigned)
        if pid is None or asked:
            self.ring = (mode, sample, floor)
        return asked

    def progress(self) -> int:
        self.alive += 0 if self.stuck else 1
        return self.alive

    def see(self, *pids: int) -> None:
        self.changes += [
            {"pid": pid, "start_time": pid * 10, "state": "seen", "libraries": ["gloo"]}
            for pid in pids
        ]

    def end(self, *pids: int) -> None:
        self.changes += [
            {"pid": pid, "start_time": pid * 10, "state": "gone", "libraries": []} for pid in pids
        ]


class HandScorer:
    """Says about each window what a test wants."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []
        self.say: list[dict[str, Any]] = []
        self.forgotten: list[int] = []

    def update(self, windows: np.ndarray) -> Any:
        self.calls.append((int(windows["job"][0]), len(windows)))
        abstentions = [{"job": 1, "rank": 0, "window": 1, "reason": "two peers are too few"}]
        return {"findings": self.say, "abstentions": abstentions, "refused_rows": 0}

    def forget(self, job: int) -> None:
        self.forgotten.append(job)

    def save(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing was kept."""

    def ends(self, job: int) -> None:
        return None

    def jobs(self) -> list[int]:
        return []


class HandIdentifier:
    """A process is rank pid % 10 of job pid // 10; others are nobody."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.broken: set[int] = set()

    def identify(self, pid: int, start_time: int, facts: list[Any]) -> Any:
        if pid in self.broken:
            raise RuntimeError("evil environment")
        if pid >= 10000:
            return None
        return SimpleNamespace(
            job_key=pid // 10,
            job_name=self.names.get(pid // 10, "train"),
            launcher="torchrun",
            rank=pid % 10,
            world_size=4,
            local_rank=pid % 10,
            restart_count=0,
            parent_key=pid // 10,
            host="node7",
            class_name="cpu/Test",
            class_id=5,
            container="",
            gpu_uuid="",
            labels={},
        )

    def forget(self, pid: int, start_time: int) -> None:
        """Nothing is kept."""

    def moved(self) -> list[tuple[int, int]]:
        return []

    def notes(self) -> list[str]:
        return []


class Running:
    """A daemon on its own thread, as a test sees it."""

    def __init__(self, tmp_path: Path, text: str = "", refuse: str = "") -> None:
        self.path = tmp_path / "stragd.toml"
        self.write(tmp_path, text)
        self.engine = HandEngine({})
        self.scorer, self.identifier = HandScorer(), HandIdentifier()
        self.log = (tmp_path / "log").open("w+")

        def make(config: dict[str, Any]) -> HandEngine:
            if refuse:
                raise PermissionError(1, refuse)
            self.engine.config = config
            return self.engine

        config: Config = load(self.path, {})
        self.daemon = Daemon(
            config,
            Journal("stderr", stream=self.log),
            make,
            self.scorer,
            self.identifier,
            self.path,
        )
        self.code: list[int] = []
        self.thread = threading.Thread(target=lambda: self.code.append(self.daemon.run()))
        self.thread.start()
        wait_for(lambda: "limited" in self.lines() or " jobs, " in self.lines())
        self.client = Client(config.control.socket)

    def write(self, tmp_path: Path, text: str) -> None:
        self.path.write_text(
            f"[scoring]\nbaselines_file = '{tmp_path}/baselines'\n"
            f"[control]\nsocket = '{tmp_path}/c.sock'\n[prometheus]\naddress = '127.0.0.1:0'\n"
            + text
        )

    def lines(self) -> str:
        return Path(self.log.name).read_text()

    def page(self) -> str:
        url = self.daemon.metrics_url()
        reply: bytes = urllib.request.urlopen(url, timeout=60).read()
        return reply.decode()

    def stop(self) -> int:
        self.daemon.stop()
        self.thread.join(60)
        assert not self.thread.is_alive()
        self.client.close()
        self.log.close()
        return self.code[0]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path, "[discovery]\nended_job_seconds = 0\n[windows]\nsteps = 50\n")
    yield made
    if made.thread.is_alive():
        made.stop()


def test_from_process_to_finding_to_every_output(running: Running) -> None:
    engine = running.engine
    assert engine.config["window_steps"] == 50
    engine.see(10, 11, 12, 13, 10001)
    wait_for(lambda: len(engine.assigned) == 4)
    assert engine.assigned[(12, 120)] == (1, 2, 4, 5)
    running.scorer.say = [raw_finding(job=1)]
    engine.windows.append(np.concatenate([rows(1, 3, [100, 101, 120, 99]), rows(0, 0, [1.0])]))
    wait_for(lambda: bool(running.client.ask("findings")["result"]["findings"]))
    assert running.scorer.calls == [(1, 4)], "one call per window and job, none for job 0"
    top = running.client.ask("top")["result"]
    (job,) = top["jobs"]
    assert (job["name"], job["local_ranks"], job["worst_rank"]) == ("train", 4, 2)
    assert (job["step_ms"], job["cost_ms_per_step"], job["state"]) == (130.0, 20.0, "finding")
    ranks = top["ranks"]
    assert [r["own_ms"] for r in ranks] == [100.0, 101.0, 120.0, 99.0]
    assert [r["lateness_ms"] for r in ranks] == [1.0, 2.0, 21.0, 0.0]
    assert [r["state"] for r in ranks] == ["watching", "watching", "confirmed", "watching"]
    assert ranks[2]["slowdown"] == pytest.approx(0.2)
    assert ranks[2]["source"] == "gloo"
    assert top["abstentions"][0]["reason"] == "two peers are too few"
    (found,) = top["findings"]
    assert found["subject"] == {"rank": 2, "host": "node7", "class": "cpu/Test"}
    wait_for(lambda: 'stragd_finding{job="train",kind="straggler",rank="2"' in running.page())
    assert "straggler confirmed: job train, rank 2 on node7" in running.lines()
    assert running.client.ask("status")["result"]["unidentified"] == 1


def test_job_ends_and_its_finding_is_closed(running: Running) -> None:
    running.engine.see(10, 11)
    wait_for(lambda: len(running.engine.assigned) == 2)
    running.scorer.say = [raw_finding(job=1, rank=1)]
    running.engine.windows.append(rows(1, 0, [100, 130]))
    wait_for(lambda: 'rank="1"' in running.page())
    running.engine.end(10, 11)
    wait_for(lambda: not running.client.ask("jobs")["result"]["jobs"])
    assert running.scorer.forgotten == [], "it may be started anew"
    cleared = running.client.ask("findings", cleared=True)["result"]["findings"]
    assert [f["state"] for f in cleared] == ["cleared"]
    assert "job train has ended" in running.lines()
    wait_for(lambda: 'rank="1"' not in running.page())


def test_rank_that_left_a_living_job_is_dropped(running: Running) -> None:
    running.engine.see(10, 11)
    wait_for(lambda: len(running.engine.assigned) == 2)
    running.engine.end(11)

    def ranks() -> list[int]:
        return [r["rank"] for r in running.client.ask("top")["result"]["ranks"]]

    wait_for(lambda: ranks() == [0])
    assert running.client.ask("jobs")["result"]["jobs"][0]["local_ranks"] == 1


def test_two_jobs_of_one_name_stay_apart(running: Running) -> None:
    running.engine.see(10, 20)
    wait_for(lambda: len(running.client.ask("jobs")["result"]["jobs"]) == 2)
    names = {j["name"] for j in running.client.ask("jobs")["result"]["jobs"]}
    assert names == {"train", "train-00000000"}
    running.engine.windows.append(np.concatenate([rows(1, 0, [10]), rows(2, 0, [20])]))
    wait_for(lambda: sorted(running.scorer.calls) == [(1, 1), (2, 1)])


def test_data_loader_worker_does_not_take_its_trainers_rank(running: Running) -> None:
    identify = running.identifier.identify
    running.identifier.identify = (  # type: ignore[method-assign]
        lambda pid, start, facts: identify(pid % 100, start, facts)
    )
    running.engine.see(12)
    wait_for(lambda: (12, 120) in running.engine.assigned)
    running.engine.see(112)  # the same rank, without a collective
    wait_for(lambda: running.client.ask("status")["result"]["unidentified"] == 1)
    running.engine.end(12)
    wait_for(lambda: (112, 1120) in running.engine.assigned)


def test_process_that_breaks_identification_is_skipped(running: Running) -> None:
    running.identifier.broken.add(13)
    running.engine.see(13, 12)
    wait_for(lambda: (12, 120) in running.engine.assigned)
    wait_for(lambda: "process 13 cannot be identified" in running.lines())
    assert (13, 130) not in running.engine.assigned


def test_numbers_that_the_engine_cannot_take_are_no_end(running: Running) -> None:
    assign = running.engine.assign

    def narrow(*numbers: int) -> bool:
        if numbers[3] == 9:
            raise OverflowError("can't convert negative int to unsigned")
        return assign(*numbers)

    running.engine.assign = narrow  # type: ignore[method-assign]
    running.engine.see(19, 12)
    wait_for(lambda: (12, 120) in running.engine.assigned)
    wait_for(lambda: "process 19 cannot be identified: OverflowError" in running.lines())
    wait_for(lambda: running.client.ask("status")["result"]["ranks"] == 1)


def test_window_that_cannot_be_scored_is_skipped(running: Running) -> None:
    running.engine.see(10, 20)
    wait_for(lambda: len(running.client.ask("jobs")["result"]["jobs"]) == 2)
    update = running.scorer.update

    def broken(windows: np.ndarray) -> Any:
        if windows["job"][0] == 1:
            raise ValueError("rows are out of order")
        return update(windows)

    running.scorer.update = broken  # type: ignore[method-assign]
    running.engine.windows.append(np.concatenate([rows(1, 0, [10]), rows(2, 0, [20])]))
    wait_for(lambda: running.scorer.calls == [(2, 1)])
    assert "job train: a window cannot be scored: ValueError: rows are out" in running.lines()


def test_process_whose_identity_moves_changes_its_job(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.engine.see(12)
    wait_for(lambda: running.engine.assigned.get((12, 120)) == (1, 2, 4, 5))
    identify = running.identifier.identify
    monkeypatch.setattr(
        running.identifier, "identify", lambda pid, start, facts: identify(33, start, facts)
    )
    monkeypatch.setattr(running.identifier, "moved", lambda: [(12, 120)])
    wait_for(lambda: running.engine.assigned.get((12, 120)) == (3, 3, 4, 5))

    def keys() -> list[str]:
        return [j["key"] for j in running.client.ask("jobs")["result"]["jobs"]]

    wait_for(lambda: keys() == ["0000000000000003"])
    ranks = running.client.ask("top")["result"]["ranks"]
    assert [(r["rank"], r["pid"]) for r in ranks] == [(3, 12)]
    assert running.scorer.forgotten == [1]


def test_remarks_about_identities_are_journalled_once(running: Running) -> None:
    notes = ["two jobs look alike"]
    running.identifier.notes = lambda: notes  # type: ignore[method-assign]
    wait_for(lambda: "two jobs look alike" in running.lines())
    notes.append("rank 3 is claimed twice")
    wait_for(lambda: "rank 3 is claimed twice" in running.lines())
    assert running.lines().count("two jobs look alike") == 1
    checks = running.client.ask("doctor")["result"]["checks"]
    assert any("two jobs look alike" in c["detail"] for c in checks)


def test_a_rank_is_found_behind_many_processes_that_are_none(running: Running) -> None:
    running.engine.see(*range(10000, 12000))
    wait_for(lambda: running.client.ask("status")["result"]["unidentified"] == 2000)
    running.engine.see(42)
    wait_for(lambda: (42, 420) in running.engine.assigned)


def test_slow_identification_of_many_does_not_hold_up_a_stop(running: Running) -> None:
    identify, asked = running.identifier.identify, []

    def slow(pid: int, start: int, facts: list[Any]) -> Any:
        asked.append(pid)
        time.sleep(0.2)
        return identify(pid, start, facts)

    running.identifier.identify = slow  # type: ignore[method-assign]
    running.engine.see(*range(10, 400))
    wait_for(lambda: len(set(asked)) > 12)  # goes on from where it was, tick after tick
    before = len(asked)
    running.daemon.stop()
    running.thread.join(60)
    assert running.code == [0]
    assert len(asked) - before < 12, "of 390 that wait"


def test_rings_are_shown_and_asked(running: Running) -> None:
    assert running.engine.ring == ("default", 1, 0), "as configured"
    running.engine.see(1, 2)
    ask = running.client.ask
    wait_for(lambda: len(ask("ring")["result"]["rings"]) == 2)
    ring = ask("ring", pid=2)["result"]["rings"][0]
    assert (ring["pid"], ring["library"], ring["chained"]) == (2, "2.28.3", "insp?ector")
    assert ring["joined"] == 1
    rings = ask("ring", set="on", sample=4)["result"]["rings"]
    assert [(ring["mode"], ring["sample"]) for ring in rings] == [("full", 4)] * 2
    assert "plugins of all processes are asked for full, sample 4" in running.lines()
    assert ask("ring", set="off", pid=77)["error"]["code"] == "not-found"
    wait_for(lambda: ask("ranks")["result"]["ranks"][0]["coverage"] == 0.75)
    assert ask("ranks")["result"]["ranks"][0]["missed"] == ["broadcast"]
    page = running.page()
    assert 'stragd_rings{mode="full",vendor="nvidia",version="2.28.3"} 2.0' in page
    assert "stragd_rank_ring_coverage_ratio{" in page


def test_probes_switch_and_library_failures(running: Running) -> None:
    assert running.client.ask("probes", set="off")["result"] == {"probes": "off"}
    assert running.client.ask("status")["result"]["health"]["probes"] == "off"
    assert running.client.ask("probes", set="on")["result"] == {"probes": "on"}
    assert running.engine.calls == ["start", "probes False", "probes True"]
    assert "probes are off" in running.lines()
    running.engine.library_state, running.engine.lost = "failed", 50.0
    wait_for(lambda: "50 events were lost" in running.lines())
    wait_for(lambda: running.client.ask("status")["result"]["state"] == "degraded")
    assert running.lines().count("gloo in /usr/lib/libgloo.so.0: no space left") == 1
    checks = running.client.ask("doctor")["result"]["checks"]
    assert any(c["state"] == "missing" and "no space left" in c["detail"] for c in checks)


def test_reload_applies_what_it_can(running: Running, tmp_path: Path) -> None:
    before = running.daemon.metrics_url()
    running.write(tmp_path, "max_series = 777\n[windows]\nsteps = 60\n")
    answer = running.client.ask("reload")["result"]
    assert "prometheus.max_series" in answer["changed"]
    assert answer["restart"] == ["windows.steps"]
    values = {v["key"]: v for v in running.client.ask("config")["result"]["values"]}
    assert values["prometheus.max_series"]["value"] == 777
    assert values["prometheus.max_series"]["origin"] == str(running.path)
    assert values["windows.steps"]["value"] == 50, "what runs, not what is written"
    assert running.daemon.metrics_url() != before
    assert "stragd_up" in running.page()
    running.write(tmp_path, "max_series = 'x'\n")
    error = running.client.ask("reload")["error"]
    assert error["code"] == "bad-request"
    assert "prometheus.max_series" in error["message"]
    assert "the old configuration stays" in running.lines()
    running.daemon.hang_up()
    wait_for(lambda: running.lines().count("the old configuration stays") == 2)
    assert running.daemon.config.prometheus.max_series == 777


def test_stop_detaches_and_removes_the_socket(running: Running) -> None:
    path = running.daemon.config.control.socket
    assert running.stop() == 0
    assert running.engine.calls[-1] == "close"
    assert not os.path.exists(path)
    assert "every probe is detached" in running.lines()


def test_without_capabilities_it_stays_up_and_says_so(tmp_path: Path) -> None:
    running = Running(tmp_path, refuse="CAP_BPF is missing")
    try:
        status = running.client.ask("status")["result"]
        assert status["state"] == "degraded"
        assert "CAP_BPF is missing" in status["health"]["degraded"][0]
        assert running.client.ask("probes", set="on")["error"]["code"] == "unavailable"
        checks = running.client.ask("doctor")["result"]["checks"]
        assert "CAP_BPF is missing" in checks[0]["detail"]
        assert 'stragd_up{collector="probes"} 0.0' in running.page()
    finally:
        assert running.stop() == 0


def test_metrics_address_in_use_is_no_end(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = tmp_path / "x"
        path.mkdir()
        running = Running(path)
        try:
            running.path.write_text(running.path.read_text().replace(":0'", f":{port}'"))
            assert "changed" in running.client.ask("reload")["result"]
            status = running.client.ask("status")["result"]
            assert status["metrics"] == ""
            assert f"127.0.0.1:{port}: Address already in use" in status["health"]["degraded"][0]
        finally:
            running.stop()


def test_service_manager_hears_ready_watchdog_and_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        monkeypatch.delenv("WATCHDOG_PID", raising=False)

        def hear(wanted: str) -> None:
            while not heard or wanted not in heard[-1]:
                heard.append(manager.recv(4096).decode())

        running = Running(tmp_path)
        hear("READY=1")
        assert "STATUS=0 jobs, 0 ranks" in heard[-1]
        hear("WATCHDOG=1")
        running.engine.stuck = True
        running.daemon.hang_up()
        hear("RELOADING=1")
        assert "MONOTONIC_USEC=" in heard[-1]
        hear("READY=1")
        heard.clear()
        for _ in range(3):
            hear("STATUS=")
            heard.append("")
        heard.clear()
        for _ in range(2):  # no watchdog while the drain thread is stuck
            hear("STATUS=")
            heard.append("")
        assert "WATCHDOG=1" not in heard
        running.stop()
        hear("STOPPING=1")


MAIN = """
import sys, types
from tests.test_daemon import HandEngine, HandIdentifier, HandScorer
native = types.ModuleType("stragd._rscore")
native.Engine, native.Scorer = HandEngine, lambda config: HandScorer()
sys.modules["stragd._rscore"] = native
import stragd
stragd._rscore = native
found = types.ModuleType("stragd.discovery")
found.Identifier = lambda config: HandIdentifier()
sys.modules["stragd.discovery"] = found
from stragd.daemon import main
sys.exit(main(sys.argv[1:]))
"""


def test_signals_and_exit_codes(tmp_path: Path) -> None:
    path = tmp_path / "stragd.toml"
    path.write_text(
        f"[scoring]\nbaselines_file = '{tmp_path}/baselines'\n"
        f"[control]\nsocket = '{tmp_path}/c.sock'\n[prometheus]\naddress = '127.0.0.1:0'\n"
    )
    command = [sys.executable, "-c", MAIN, "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    with (tmp_path / "log").open("w") as log:
        first = subprocess.Popen(command, stderr=log, env=environment)
        wait_for(lambda: " jobs, " in (tmp_path / "log").read_text())
        second = subprocess.run(
            command, capture_output=True, text=True, timeout=60, env=environment, check=False
        )
        assert second.returncode == 1
        assert f"another stragd (pid {first.pid}) is running" in second.stderr
        first.send_signal(signal.SIGHUP)
        wait_for(lambda: "configuration read again" in (tmp_path / "log").read_text())
        with open(f"/proc/{first.pid}/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert resident < 80 << 20, f"{resident >> 20} MiB resident"
        print(json.dumps({"rss_mib": resident / 2**20}))
        begun = time.monotonic()
        first.terminate()
        assert first.wait(60) == 0
        print(json.dumps({"stop_seconds": time.monotonic() - begun}))
    assert "stragd has stopped" in (tmp_path / "log").read_text()
