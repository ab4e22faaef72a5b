"""Asks stragd for pictures in its own thread, so that a slow answer never holds up a key.

The newest picture lies in a single slot: who looks late misses pictures, never waits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import Any, NamedTuple

from stragd.cli.client import ControlClient, ControlError

ANSWER_TIMEOUT = 5.0  # seconds


class Sample(NamedTuple):
    """An answer or the reason why there is none; ``at`` is CLOCK_MONOTONIC in seconds."""

    at: float
    answer: dict[str, Any] | None
    problem: str


class Sampler:
    """Asks one verb every ``interval`` seconds and connects again after every failure."""

    def __init__(self, socket_path: str, interval: float, verb: str) -> None:
        self._verb = verb
        self._client = ControlClient(socket_path, ANSWER_TIMEOUT)
        self._interval = interval
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._slot: Sample | None = None
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Daemonic and never joined: a thread inside a hung read must not hold up "quit".
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    @property
    def wake_fd(self) -> int:
        """Readable when a sample lies in the slot, or a signal was written to `signal_fd`."""
        return self._wake_read

    @property
    def signal_fd(self) -> int:
        """For `signal.set_wakeup_fd`: one descriptor wakes the loop for everything."""
        return self._wake_write

    def start(self) -> None:
        """Begin to sample."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end; it may still be inside its last request."""
        self._stop.set()

    def take(self) -> Sample | None:
        """The newest sample, once; None when there is no new one."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
        with self._lock:
            sample, self._slot = self._slot, None
        return sample

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                sample = Sample(time.monotonic(), self._client.request(self._verb), "")
            except ControlError as error:
                sample = Sample(time.monotonic(), None, str(error))
            except Exception as error:  # a fault of stragctl: say it on the screen
                sample = Sample(time.monotonic(), None, f"stragctl: {error!r}")
            else:
                sample = sample._replace(at=time.monotonic())
            with self._lock:
                self._slot = sample
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake_write, b"\0")
        self._client.close()
