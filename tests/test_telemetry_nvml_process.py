"""The process that asks NVML: it hangs, dies, goes away and comes back, and nobody waits for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.reader_process import MAX_LEFT_BEHIND, Patience
from tests.fakenvml import FakeNvml
from tests.gpuwindows import FOREVER, GPUS, NOWHERE, QUICK, Windows, running
from tests.harness import ROOT, wait_for


def test_a_call_that_blocks_delays_nothing(driver: FakeNvml, windows: Windows) -> None:
    """Trap 12: one GPU's call hangs; the others' samples come, and so does the end."""
    began = time.monotonic()
    windows.until_all_read()
    driver.hang(1, "nvmlDeviceGetFieldValues", FOREVER)
    driver.write()
    windows.until("the GPU to be silent", lambda: windows.newest()[driver.address(1)].silent, 0.6)
    assert windows.newest()[driver.address(1)].silent.startswith("NVML has not answered for ")
    windows.samples.clear()

    def others_read_beside_it() -> bool:
        newest = windows.newest()
        others = [newest[driver.address(gpu)] for gpu in (0, 2)]
        return newest[driver.address(1)].silent != "" and not any(s.silent for s in others)

    windows.until("the others", lambda: len(windows.newest()) == GPUS and others_read_beside_it())
    for gpu in (0, 2):
        assert windows.newest()[driver.address(gpu)].values["xid_delta"] == 0
    windows.telemetry.close()
    assert time.monotonic() - began < FOREVER / 5


def test_it_answers_again_when_the_driver_does(driver: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    pid = windows.telemetry.pids
    driver.hang(0, "nvmlDeviceGetClockInfo", 2)
    driver.write()
    windows.until("the GPU to be silent", lambda: windows.newest()[driver.address(0)].silent)
    driver.hang(0, "nvmlDeviceGetClockInfo", 0)
    driver.write()
    windows.until_all_read()
    assert windows.telemetry.pids == pid


def test_a_driver_that_hangs_from_the_start(driver: FakeNvml) -> None:
    driver.hang(None, "nvmlInitWithFlags", FOREVER)
    driver.write()
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    windows = Windows(telemetry)
    windows.until("the reason", lambda: "NVML has not answered" in telemetry.reason)
    windows.until("a replacement", lambda: telemetry.restarts > 0)
    driver.hang(None, "nvmlInitWithFlags", 0)
    driver.write()
    windows.until_all_read()
    assert telemetry.reason == ""
    telemetry.close()


def test_a_process_that_does_not_answer_is_replaced(driver: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    os.kill(pid, signal.SIGSTOP)
    windows.samples.clear()
    windows.until("silence", lambda: len(windows.samples) >= GPUS)
    assert {s.subject for s in windows.samples} == {driver.address(n) for n in range(GPUS)}
    assert all("NVML has not answered for" in s.silent for s in windows.samples)
    windows.until("a new process", lambda: windows.telemetry.pids not in ([], [pid]))
    windows.until_all_read()
    assert windows.telemetry.restarts == 1
    wait_for("the old one to end", lambda: not running(pid))


def test_an_answer_that_comes_too_late_is_dropped(driver: FakeNvml) -> None:
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
    windows.until("samples again", lambda: not windows.newest()[driver.address(0)].silent)
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


def test_a_gpu_that_was_taken_out_is_forgotten(driver: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    (pid,) = windows.telemetry.pids
    driver.gpus = 2
    driver.lines = {key: line for key, line in driver.lines.items() if key[1] != 2}
    driver.write()
    os.kill(pid, signal.SIGKILL)

    def two_left() -> bool:
        newest = windows.newest()
        windows.samples.clear()
        return set(newest) == {driver.address(0), driver.address(1)}

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


def test_the_driver_can_be_released(driver: FakeNvml, windows: Windows) -> None:
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


def test_it_ends_with_the_daemon_even_within_a_call(driver: FakeNvml) -> None:
    for gpu in range(GPUS):
        driver.hang(gpu, "nvmlDeviceGetFieldValues", FOREVER)
    driver.write()
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
