"""Windows of GPU telemetry, asked for as the daemon asks, on a made-up NVIDIA driver."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from stragd.telemetry.gpus import GpuTelemetry
from stragd.telemetry.reader_process import Patience
from stragd.telemetry.sample import Sample
from tests.harness import wait_for

GPUS = 3
FOREVER = 600
QUICK = Patience(call=0.5, process=5.0, one_gpu=600, first_retry=0.1, last_retry=0.2)
# No driver but the one on the loader's path.
NOWHERE = {"proc": "/nonexistent", "sys": "/nonexistent", "dev": "/nonexistent"}


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


def running(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
