"""The GPUs of this node: samples of each window, and which GPUs a process has."""

from __future__ import annotations

import os
import time
from pathlib import Path

from stragd.discovery.hardware import Amd, Nvidia
from stragd.telemetry.reader_process import Patience, ReaderProcess
from stragd.telemetry.sample import Sample

LIST_SECONDS = 60.0  # a driver's process list is asked this often, and when a new pid comes up
QUICK_LISTS = 3  # and a pid that it lacks is looked for in the windows after, this often
MAX_UNKNOWN = 4096
LIBRARY = "libnvidia-ml.so.1"


def _library_given() -> bool:
    """Whether somebody has put NVML on the loader's path: there it is meant to be used."""
    folders = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return any(folder and Path(folder, LIBRARY).exists() for folder in folders)


class GpuTelemetry:
    """All GPUs, each driver in a process of its own; for use by one thread.

    No method waits for a driver: ``request`` and ``samples`` return at once, ``release`` and
    ``close`` within ``Patience.exit`` for each driver.
    """

    def __init__(
        self,
        proc: str = "/proc",
        sys: str = "/sys",
        dev: str = "/dev",
        patience: Patience | None = None,
        with_gpm: bool = True,
        nvidia: bool = True,
        amd: bool = True,
    ) -> None:
        """``nvidia`` and ``amd``: which drivers may be asked, if they are there."""
        self._readers: list[ReaderProcess] = []
        if nvidia and (Nvidia(proc, dev).present or _library_given()):
            self._readers.append(ReaderProcess("nvml", "NVML", proc, sys, patience, with_gpm))
        if amd and Amd(sys).present:
            self._readers.append(ReaderProcess("amd", "amdgpu", proc, sys, patience))
        self._by_pid: dict[int, list[str]] = {}
        self._unknown: dict[int, int] = {}  # pid -> lists that lacked it
        self._seen = [0] * len(self._readers)
        self._listed_at = float("-inf")

    @property
    def present(self) -> bool:
        """Whether there is any driver to ask."""
        return bool(self._readers)

    @property
    def reason(self) -> str:
        """Why GPUs are not read, "" if all is well."""
        return "; ".join(reader.reason for reader in self._readers if reader.reason)

    @property
    def restarts(self) -> int:
        """Readers' processes that ended or were replaced."""
        return sum(reader.restarts for reader in self._readers)

    @property
    def left_behind(self) -> int:
        """Readers' processes that hang in a driver and cannot be ended."""
        return sum(reader.left_behind for reader in self._readers)

    @property
    def pids(self) -> list[int]:
        """The readers' own processes, for the daemon's account of what it costs."""
        return [reader.pid for reader in self._readers if reader.pid is not None]

    def start(self) -> None:
        """Start the readers, or start them again after ``release``."""
        for reader in self._readers:
            reader.start()

    def request(self, start_ns: int, end_ns: int) -> None:
        """Ask for the window that ends now (CLOCK_MONOTONIC); does not wait."""
        now = time.monotonic()
        wanted = any(lists < QUICK_LISTS for lists in self._unknown.values())
        processes = wanted or now - self._listed_at >= LIST_SECONDS
        if processes:
            self._listed_at = now
        for reader in self._readers:
            reader.request(start_ns, end_ns, processes)

    def samples(self) -> list[Sample]:
        """What has come since the last call; a GPU that did not answer in time is ``silent``."""
        samples = [sample for reader in self._readers for sample in reader.take()]
        self._update_processes()
        return samples

    def gpus_of(self, pid: int) -> list[str]:
        """Subjects of the GPUs whose driver lists the process; empty if none does, or not yet."""
        found = self._by_pid.get(pid, [])
        if not found and len(self._unknown) < MAX_UNKNOWN:
            self._unknown.setdefault(pid, 0)
        return list(found)

    def forget(self, pid: int) -> None:
        """The process is gone; its pid may come back as another."""
        self._unknown.pop(pid, None)
        self._by_pid.pop(pid, None)

    def release(self) -> bool:
        """Let the drivers go, so that they can be replaced; whether every reader has ended."""
        ended = [reader.release() for reader in self._readers]
        return all(ended)

    def close(self) -> None:
        """End the readers."""
        self.release()

    def _update_processes(self) -> None:
        listed = [reader.listed for reader in self._readers]
        if listed == self._seen:
            return
        self._seen = listed
        self._by_pid = {}
        for reader in self._readers:
            for subject, pids in reader.processes.items():
                for pid in pids:
                    self._by_pid.setdefault(pid, []).append(subject)
        self._unknown = {
            pid: lists + 1 for pid, lists in self._unknown.items() if pid not in self._by_pid
        }
