"""GPU telemetry as the daemon has it: samples, processes, what is missing, what is given up."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.reader_process import ENVIRONMENT, Patience
from tests.fakenvml import FakeNvml
from tests.gpuwindows import FOREVER, NOWHERE, QUICK, Windows
from tests.needs import module


def test_samples_of_a_window(driver: FakeNvml, windows: Windows) -> None:
    windows.until_all_read()
    sample = windows.newest()[driver.address(1)]
    assert (sample.kind, sample.model) == ("gpu", "NVIDIA H200")
    assert sample.end_ns - sample.start_ns == 5
    assert sample.values["sm_clock_mhz"] == 1980
    assert windows.telemetry.reason == ""
    windows.until_all_read()
    keys = [(sample.subject, sample.start_ns) for sample in windows.samples]
    assert len(keys) == len(set(keys))


def test_processes_are_found_when_they_come(driver: FakeNvml, windows: Windows) -> None:
    telemetry = windows.telemetry
    driver.process(0, 4242)
    driver.process(2, 4242)
    driver.write()
    windows.until("the process", lambda: telemetry.gpus_of(4242))
    assert telemetry.gpus_of(4242) == [driver.address(0), driver.address(2)]
    assert telemetry.gpus_of(4243) == []
    driver.process(1, 4243)
    driver.write()
    windows.until("the new process", lambda: telemetry.gpus_of(4243))
    assert telemetry.gpus_of(4243) == [driver.address(1)]
    telemetry.forget(4243)
    assert telemetry.gpus_of(4243) == []


def test_processes_on_parts_of_a_gpu(driver: FakeNvml) -> None:
    """Trap 10: two jobs on one GPU have a part each."""
    parts = [driver.mig(0, instance, "3g.71gb") for instance in (1, 2)]
    for instance, pid in ((1, 501), (2, 502)):
        driver.process(0, pid, instance)
    driver.write()
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
    module("pynvml")
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
    driver: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old daemon, new reader: their tables of quantities may differ, so nothing is read."""
    monkeypatch.setattr("stragd.telemetry.reader_process.TABLE", "00000000")
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    other = Windows(telemetry)
    other.until("the reason", lambda: "restart stragd.service" in telemetry.reason)
    assert other.samples == []
    telemetry.close()


def test_events_of_a_window_that_was_given_up_are_not_lost(driver: FakeNvml) -> None:
    telemetry = GpuTelemetry(**NOWHERE, patience=Patience(process=FOREVER))
    telemetry.start()
    windows = Windows(telemetry)
    windows.until_all_read()
    (pid,) = telemetry.pids
    os.kill(pid, signal.SIGSTOP)
    driver.xid(1, 94)
    driver.field(1, 3, 25)
    driver.write()
    windows.samples.clear()
    for _ in range(2):
        windows.next()
    os.kill(pid, signal.SIGCONT)  # now it answers the window that has been given up
    windows.until("samples again", lambda: not windows.newest()[driver.address(1)].silent)
    read = [s for s in windows.samples if s.subject == driver.address(1) and not s.silent]
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
