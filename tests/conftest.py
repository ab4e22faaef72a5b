"""Fixtures that more than one file uses."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from stragd.discovery import Identifier
from stragd.telemetry.gpus import GpuTelemetry
from tests.fakenvml import FakeNvml
from tests.gpuwindows import GPUS, NOWHERE, QUICK, Windows
from tests.needs import lacking, module
from tests.processes import Processes

# A shell that runs the tests in the background has them ignore Ctrl-C, and every program that they
# start would ignore it too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def processes() -> Iterator[Processes]:
    with Processes() as started:
        yield started


@pytest.fixture
def identifier() -> Identifier:
    return Identifier()


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        lacking("reading a ring through /proc/PID/map_files needs root")


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """A made-up NVIDIA driver with healthy GPUs, where the loader finds it."""
    module("pynvml")
    nvidia = FakeNvml(tmp_path / "driver", GPUS).healthy()
    nvidia.write()
    for name, value in nvidia.environment.items():
        monkeypatch.setenv(name, value)
    return nvidia


@pytest.fixture
def windows(driver: FakeNvml) -> Iterator[Windows]:
    """Telemetry of that driver, with little patience."""
    telemetry = GpuTelemetry(**NOWHERE, patience=QUICK)
    telemetry.start()
    try:
        yield Windows(telemetry)
    finally:
        telemetry.close()
