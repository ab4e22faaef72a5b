"""The process that asks NVML: it hangs, dies, goes away and comes back, and nobody waits for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.reader_process import ENVIRONMENT, MAX_LEFT_BEHIND, Patience
from stragd.telemetry.sample import Sample
from tests.fakenvml import FakeNvml
from tests.harness import ROOT, wait_for

GPUS = 3
FOREVER = 600
QUICK = Patience(call=0.3, process=1.0, one_gpu=600, first_retry=0.1, last_retry=0.2)
# Of a driver that only the file system shows.
NOWHERE = {"proc": "/nonexistent", "sys": "/nonexistent", "dev": "/nonexistent"}


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    pytest.importorskip("pynvml")
    driver = FakeNvml(tmp_path / "driver", GPUS).healthy()
    driver.write()
    for name, value in driver.environment.items():
        monkeypatch.setenv(name, value)
    return driver


class Windows:
    """Asks for one window after the other, as the daemon does."""

    def __init__(self, telemetry: GpuTelemetry) -> None:
        self.telemetry = telemetry
        self.now = 0
        self.samples: list[Sample] = []

    def next(self, seconds: float = 0.1) -> None:
        """A window passes, and its successor begins."""
        self.telemetry.request(self.now, self.now + 5)
        self.now += 5
        time.sleep(seconds)
        self.samples += self.telemetry.samples()

    def until(self, what: str, check: Callable[[], object], seconds: float = 0.1) -> None:
        """Windows pass until ``check`` holds."""

        def passed() -> bool:
            self.next(seconds)
            return bool(check())

        wait_for(what, passed)

    def newest(self) -> dict[str, Sample]:
        """The last sample of each subject."""
        return {sample.subject: sample for sample in self.samples}

    def until_all_read(self) -> None:
        """Every GPU has given a sample that is not silent, anew."""
        self.samples.clear()

        def all_read() -> bool:
            newest = self.newest()
            return len(newest) == GPUS and not any(s.silent for s in newest.values())

        self.until("samples of all GPUs", all_read)


@pytest.fixture
def windows(fake: FakeNvml) -> Iterator[Windows]:
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    try:
        yield Windows(telemetry)
    finally:
        telemetry.close()


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_samples_of_a_window(fake: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    sample = windows.newest()[fake.address(1)]
    assert (sample.kind, sample.model) == ("gpu", "NVIDIA H200")
    assert sample.end_ns - sample.start_ns == 5
    assert sample.values["sm_clock_mhz"] == 1980
    assert windows.telemetry.reason == ""
    windows.until_all_read()
    keys = [(sample.subject, sample.start_ns) for sample in windows.samples]
    assert len(keys) == len(set(keys))


def test_a_call_that_blocks_delays_nothing(fake: FakeNvml, windows: Windows) -> None:
    """Trap 12: one GPU's call hangs; the others' samples come, and so does the end."""
    began = time.monotonic()
    windows.until_all_read()
    fake.hang(1, "nvmlDeviceGetFieldValues", FOREVER)
    fake.write()
    windows.until("the GPU to be silent", lambda: windows.newest()[fake.address(1)].silent, 0.6)
    assert windows.newest()[fake.address(1)].silent.startswith("NVML has not answered for ")
    windows.samples.clear()
    for _ in range(3):
        windows.next(0.6)
    newest = windows.newest()
    assert newest[fake.address(1)].silent
    for gpu in (0, 2):
        assert not newest[fake.address(gpu)].silent
        assert newest[fake.address(gpu)].values["xid_delta"] == 0
    windows.telemetry.close()
    assert time.monotonic() - began < FOREVER / 5


def test_it_answers_again_when_the_driver_does(fake: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    pid = windows.telemetry.pids
    fake.hang(0, "nvmlDeviceGetClockInfo", 2)
    fake.write()
    windows.until("the GPU to be silent", lambda: windows.newest()[fake.address(0)].silent)
    fake.hang(0, "nvmlDeviceGetClockInfo", 0)
    fake.write()
    windows.until_all_read()
    assert windows.telemetry.pids == pid


def test_a_driver_that_hangs_from_the_start(fake: FakeNvml) -> None:
    fake.hang(None, "nvmlInitWithFlags", FOREVER)
    fake.write()
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    windows = Windows(telemetry)
    windows.until("the reason", lambda: "NVML has not answered" in telemetry.reason)
    windows.until("a replacement", lambda: telemetry.restarts > 0)
    fake.hang(None, "nvmlInitWithFlags", 0)
    fake.write()
    windows.until_all_read()
    assert telemetry.reason == ""
    telemetry.close()


def test_a_process_that_does_not_answer_is_replaced(fake: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    os.kill(pid, signal.SIGSTOP)
    windows.samples.clear()
    windows.until("silence", lambda: len(windows.samples) >= GPUS)
    assert {s.subject for s in windows.samples} == {fake.address(n) for n in range(GPUS)}
    assert all("NVML has not answered for" in s.silent for s in windows.samples)
    windows.until("a new process", lambda: windows.telemetry.pids not in ([], [pid]))
    windows.until_all_read()
    assert windows.telemetry.restarts == 1
    wait_for("the old one to end", lambda: not running(pid))


def test_an_answer_that_comes_too_late_is_dropped(fake: FakeNvml) -> None:
    telemetry = GpuTelemetry(**NOWHERE, patience=Patience(process=FOREVER))
    telemetry.start()
    windows = Windows(telemetry)
    windows.until_all_read()
    (pid,) = telemetry.pids
    os.kill(pid, signal.SIGSTOP)
    windows.samples.clear()
    for _ in range(4):
        windows.next()
    assert len(windows.samples) >= 3 * GPUS
    os.kill(pid, signal.SIGCONT)
    windows.until("samples again", lambda: not windows.newest()[fake.address(0)].silent)
    keys = [(sample.subject, sample.start_ns) for sample in windows.samples]
    assert len(keys) == len(set(keys))
    assert telemetry.pids == [pid]
    telemetry.close()


def test_a_process_that_dies_is_replaced(windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    os.kill(pid, signal.SIGSEGV)
    windows.samples.clear()
    windows.until("the loss to be seen", lambda: windows.telemetry.restarts)
    windows.until_all_read()
    assert windows.telemetry.pids != [pid]
    assert windows.telemetry.reason == ""


def test_why_a_window_is_silent_is_said(windows: Windows, monkeypatch: pytest.MonkeyPatch) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    monkeypatch.setattr("sys.executable", "/nonexistent/python")  # no new one can be started
    os.kill(pid, signal.SIGSEGV)
    why = "the reader of NVML (has ended|does not start)"
    windows.until("silence", lambda: any(re.match(why, s.silent) for s in windows.samples))
    windows.until("the error", lambda: "does not start" in windows.telemetry.reason)
    monkeypatch.undo()


def test_a_gpu_that_was_taken_out_is_forgotten(fake: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    fake.gpus = 2
    fake.lines = {key: line for key, line in fake.lines.items() if key[1] != 2}
    fake.write()
    os.kill(pid, signal.SIGKILL)

    def two_left() -> bool:
        newest = windows.newest()
        windows.samples.clear()
        return set(newest) == {fake.address(0), fake.address(1)}

    windows.until("samples of two GPUs", two_left)


def test_one_that_cannot_be_killed_is_left_behind(
    windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows.until_all_read()
    stopped: list[int] = []
    with monkeypatch.context() as patched, contextlib.ExitStack() as cleaning:
        # A process within a driver call does not take the signal; this one is not given it.
        patched.setattr(subprocess.Popen, "kill", lambda process: None)
        for _ in range(MAX_LEFT_BEHIND):
            windows.until_all_read()
            (pid,) = windows.telemetry.pids
            os.kill(pid, signal.SIGSTOP)
            cleaning.callback(os.kill, pid, signal.SIGKILL)
            stopped.append(pid)
            windows.until("it to be given up", lambda gone=pid: gone not in windows.telemetry.pids)
        windows.until("all to be counted", lambda: windows.telemetry.left_behind == 3)
        windows.until("no more", lambda: "cannot be ended" in windows.telemetry.reason)
        assert windows.telemetry.pids == []
    for pid in stopped:
        wait_for("it to end", lambda gone=pid: not running(gone))
    windows.until_all_read()
    assert windows.telemetry.left_behind == 0


def test_the_driver_can_be_released(fake: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    assert windows.telemetry.release()
    assert not running(pid)
    windows.samples.clear()
    for _ in range(3):
        windows.next()
    assert windows.samples == []
    assert windows.telemetry.pids == []
    windows.telemetry.start()
    windows.until_all_read()


def test_it_ends_with_the_daemon_even_within_a_call(fake: FakeNvml) -> None:
    for gpu in range(GPUS):
        fake.hang(gpu, "nvmlDeviceGetFieldValues", FOREVER)
    fake.write()
    program = (
        "import time\n"
        "from stragd.telemetry.gpus import GpuTelemetry\n"
        "telemetry = GpuTelemetry()\n"
        "telemetry.start()\n"
        "telemetry.request(0, 1)\n"
        "print(*telemetry.pids, flush=True)\n"
        "time.sleep(600)\n"
    )
    daemon = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline())
        assert running(pid)
    finally:
        daemon.kill()
        daemon.wait()
    wait_for("the reader to end", lambda: not running(pid))


def test_processes_are_found_when_they_come(fake: FakeNvml, windows: Windows) -> None:
    telemetry = windows.telemetry
    fake.process(0, 4242)
    fake.process(2, 4242)
    fake.write()
    windows.until("the process", lambda: telemetry.gpus_of(4242))
    assert telemetry.gpus_of(4242) == [fake.address(0), fake.address(2)]
    assert telemetry.gpus_of(4243) == []
    fake.process(1, 4243)
    fake.write()
    windows.until("the new process", lambda: telemetry.gpus_of(4243))
    assert telemetry.gpus_of(4243) == [fake.address(1)]
    telemetry.forget(4243)
    assert telemetry.gpus_of(4243) == []


def test_processes_on_parts_of_a_gpu(fake: FakeNvml) -> None:
    """Trap 10: two jobs on one GPU have a part each."""
    parts = [fake.mig(0, instance, "3g.71gb") for instance in (1, 2)]
    for instance, pid in ((1, 501), (2, 502)):
        fake.process(0, pid, instance)
    fake.write()
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    windows = Windows(telemetry)
    windows.until("the processes", lambda: telemetry.gpus_of(501) and telemetry.gpus_of(502))
    assert [telemetry.gpus_of(pid) for pid in (501, 502)] == [[part] for part in parts]
    telemetry.close()


def test_it_keeps_one_capability_and_little_environment(
    windows: Windows, root: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    assert int(status["CapEff"], 16) & ~(1 << 21) == 0
    assert int(status["CapPrm"], 16) & ~(1 << 21) == 0
    assert status["NoNewPrivs"] == "1"
    for thread in Path(f"/proc/{pid}/task").iterdir():
        text = (thread / "status").read_text()
        assert int(text.partition("CapEff:\t")[2].split()[0], 16) & ~(1 << 21) == 0
    environment = Path(f"/proc/{pid}/environ").read_bytes().rstrip(b"\0").split(b"\0")
    names = {entry.partition(b"=")[0].decode() for entry in environment}
    assert names <= set(ENVIRONMENT)


@pytest.mark.parametrize(
    ("missing", "words"),
    [("library", "NVML: .*not found"), ("binding", "nvidia-ml-py is missing; install stragd")],
)
def test_what_is_missing_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str, words: str
) -> None:
    pytest.importorskip("pynvml")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if missing == "binding":
        (tmp_path / "pynvml.py").write_text("raise ImportError\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text("NVRM version\n")
    telemetry = GpuTelemetry(proc=str(tmp_path), sys="/nonexistent", dev="/nonexistent")
    assert telemetry.present
    telemetry.start()
    windows = Windows(telemetry)
    windows.until("the reason", lambda: telemetry.reason)

    assert re.search(words, telemetry.reason, re.IGNORECASE)
    assert windows.samples == []
    telemetry.close()


def test_an_upgrade_beneath_the_daemon_is_said(
    fake: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old daemon, new reader: their tables of quantities may differ, so nothing is read."""
    monkeypatch.setattr("stragd.telemetry.reader_process.TABLE", "00000000")
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    other = Windows(telemetry)
    other.until("the reason", lambda: "restart stragd.service" in telemetry.reason)
    assert other.samples == []
    telemetry.close()


def test_events_of_a_window_that_was_given_up_are_not_lost(fake: FakeNvml) -> None:
    telemetry = GpuTelemetry(**NOWHERE, patience=Patience(process=FOREVER))
    telemetry.start()
    windows = Windows(telemetry)
    windows.until_all_read()
    (pid,) = telemetry.pids
    os.kill(pid, signal.SIGSTOP)
    fake.xid(1, 94)
    fake.field(1, 3, 25)
    fake.write()
    windows.samples.clear()
    for _ in range(2):
        windows.next()
    os.kill(pid, signal.SIGCONT)  # now it answers the window that has been given up
    windows.until("samples again", lambda: not windows.newest()[fake.address(1)].silent)
    read = [s for s in windows.samples if s.subject == fake.address(1) and not s.silent]
    assert sum(sample.values["xid_delta"] for sample in read) == 1
    assert sum(sample.values.get("ecc_corrected_delta", 0) for sample in read) == 25
    assert [note for sample in read for note in sample.notes] == ["Xid 94"]
    telemetry.close()


def test_without_a_driver_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    telemetry = GpuTelemetry(**NOWHERE)
    telemetry.start()
    telemetry.request(0, 1)
    assert not telemetry.present
    assert (telemetry.samples(), telemetry.pids, telemetry.reason) == ([], [], "")
    telemetry.close()
