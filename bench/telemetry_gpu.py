"""What one pass over 8 GPUs costs: the reader's process and the daemon's own part.

Method: the readers run as in the daemon, on a made-up NVIDIA driver (tests/fakenvml: per GPU 116
field values of an H200 with 18 NVLinks, 15 calls and 8 GPM metrics; nine tenths of the time at the
power limit, so that energy and that accumulator grow) and on a made-up /sys with AMD GPUs
(gpu_metrics 1.6). A window every half second, 60 of them after 5 that do not count. The reader's
CPU time is that of all its threads (/proc/PID/task/*/schedstat), the daemon's is the thread time of
`request` and `samples`. A real driver adds its own time, which no fake can show; this one adds
next to none, as it does not look at its file meanwhile.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from stragd.telemetry.gpus import GpuTelemetry
from tests.amdtree import AmdTree
from tests.fakenvml import FakeNvml

GPUS = 8
WARM_UP, WINDOWS = 5, 60
SECONDS = 0.5
MS = 1e6
NOWHERE = "/nonexistent"
POWER_CAP = 74  # NVML's field of the time at the power limit


def nvidia(directory: Path) -> GpuTelemetry:
    """8 H200."""
    fake = FakeNvml(directory / "driver", GPUS).healthy()
    for gpu in range(GPUS):
        fake.process(gpu, 1000 + gpu)
        fake.share(gpu, POWER_CAP, 0.9)
    fake.write(final=True)
    os.environ.update(fake.environment)
    return GpuTelemetry(NOWHERE, NOWHERE, NOWHERE)


def amd(directory: Path) -> GpuTelemetry:
    """8 MI300X."""
    tree = AmdTree(directory / "sys")
    for gpu in range(GPUS):
        (own,) = tree.add(f"0000:{0x0C + gpu:02x}:00.0")
        tree.process(1000 + gpu, own)
    os.environ.pop("LD_LIBRARY_PATH", None)
    return GpuTelemetry(NOWHERE, str(directory / "sys"), NOWHERE)


def cpu_of(pid: int) -> int:
    """CPU time of a process's threads, ns."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def measure(telemetry: GpuTelemetry) -> tuple[float, float, float, int]:
    """CPU ms per window of reader and daemon, MB of the reader, samples per window."""
    telemetry.start()
    reader = daemon = samples = 0
    for window in range(WARM_UP + WINDOWS):
        if window == WARM_UP:
            (pid,) = telemetry.pids
            reader, daemon, samples = cpu_of(pid), 0, 0
        began = time.thread_time_ns()
        now = time.monotonic_ns()
        telemetry.request(now - int(SECONDS * 1e9), now)
        daemon += time.thread_time_ns() - began
        time.sleep(SECONDS)
        began = time.thread_time_ns()
        samples += sum(not sample.silent for sample in telemetry.samples())
        daemon += time.thread_time_ns() - began
    reader = cpu_of(pid) - reader
    smaps = Path(f"/proc/{pid}/smaps_rollup").read_text()
    memory = int(smaps.partition("Pss:")[2].split()[0]) / 1e3
    telemetry.close()
    return reader / WINDOWS / MS, daemon / WINDOWS / MS, memory, round(samples / WINDOWS)


def main() -> None:
    kinds: list[tuple[str, Callable[[Path], GpuTelemetry]]] = [("NVIDIA", nvidia), ("AMD", amd)]
    print("| GPUs | samples per window | reader, CPU ms | daemon, CPU ms | reader, MB |")
    print("| --- | --- | --- | --- | --- |")
    for name, make in kinds:
        with tempfile.TemporaryDirectory(prefix="stragd-bench-") as directory:
            reader, daemon, memory, samples = measure(make(Path(directory)))
        print(f"| {GPUS} {name} | {samples} | {reader:.2f} | {daemon:.2f} | {memory:.0f} |")
