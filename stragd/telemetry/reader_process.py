"""The daemon's side of a reader's process: it asks, it never waits, and it ends what hangs.

A window that is not answered when the next one begins becomes silent samples. A process that stays
away is killed and replaced, at growing intervals; one that cannot be killed because it is stuck
inside the driver is left behind and counted.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from stragd.telemetry.messages import (
    MAX_NOTES,
    MAX_PACKET,
    TABLE,
    DoneMessage,
    ProcessesMessage,
    Request,
    SampleMessage,
    decode_answer,
    encode,
)
from stragd.telemetry.reading import Reading
from stragd.telemetry.sample import Sample

PACKAGES = Path(__file__).resolve().parents[2]
ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "LANG", "LC_ALL")
MAX_SUBJECTS = 1024
MAX_LEFT_BEHIND = 3
STEADY_WINDOWS = 10  # answered by a process before its predecessors' failures are forgotten
MAX_PACKETS = 2048  # taken at once


@dataclass(frozen=True)
class Patience:
    """How long a driver may take for what, in seconds."""

    call: float = 1.0  # until the reader leaves one GPU alone and goes on with the next
    process: float = 60.0  # without any answer, until the process is replaced
    one_gpu: float = 600.0  # the same, while other GPUs answer
    first_retry: float = 5.0
    last_retry: float = 300.0
    exit: float = 0.4  # what release() and close() wait


@dataclass
class _Window:
    number: int
    start_ns: int
    end_ns: int
    done: bool = False
    answered: set[str] = field(default_factory=set)


class ReaderProcess:
    """One driver's process and its replacements; for use by one thread."""

    def __init__(
        self,
        name: str,
        label: str,
        proc: str = "/proc",
        sys_folder: str = "/sys",
        patience: Patience | None = None,
        with_gpm: bool = True,
    ) -> None:
        """``name``: nvml or amd; ``label``: the driver's name in texts."""
        self._name, self._label = name, label
        self._patience = patience or Patience()
        seconds = str(self._patience.call)
        self._arguments = [proc, sys_folder, seconds, str(int(with_gpm)), TABLE]
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._started = False
        self._number = 0
        self._window: _Window | None = None
        self._owed: float | None = None  # since when the process owes an answer
        self._models: dict[str, str] = {}
        self._samples: list[Sample] = []
        self._missed: dict[str, Reading] = {}
        self._failures, self._steady = 0, 0
        self._retry_at = 0.0
        self._leaving: list[tuple[subprocess.Popen[bytes], float]] = []
        self.restarts = 0
        self.reason = ""
        """Why nothing is read, "" if all is well."""
        self.processes: dict[str, list[int]] = {}
        """Process ids by subject, as last listed."""
        self.listed = 0
        """How often ``processes`` was listed anew."""
        self._relisted = False

    @property
    def left_behind(self) -> int:
        """Killed processes that do not end because the driver does not let them."""
        now = time.monotonic()
        return sum(now - since > self._patience.exit for _, since in self._not_ended())

    @property
    def pid(self) -> int | None:
        """Of the process that reads now."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Begin to read, or again after ``release``."""
        self._started = True
        self._failures, self._retry_at = 0, 0.0
        if self._process is None:
            self._begin()

    def request(self, start_ns: int, end_ns: int, processes: bool = False) -> None:
        """Ask for the window that ends now, and give up the one before."""
        if not self._started:
            return
        self._receive()
        self._give_up()
        self._number += 1
        self._window = _Window(self._number, start_ns, end_ns)
        if self._owed is not None and time.monotonic() - self._owed > self._patience.process:
            self._replace(f"{self._label} has not answered for {self._patience.process:.0f} s")
        if self._process is None and time.monotonic() >= self._retry_at:
            self._begin()
        if self._channel is None or self._owed is not None:
            return
        try:
            self._channel.send(
                encode(Request(self._number, processes)), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            )
        except BlockingIOError:
            return
        except OSError:
            self._ended()
            return
        self._owed = time.monotonic()

    def take(self) -> list[Sample]:
        """Samples that have come since the last call, silent ones among them."""
        self._receive()
        samples, self._samples = self._samples, []
        return samples

    def release(self) -> bool:
        """End the process, so that the driver can be replaced; whether it has ended.

        Nothing is read until ``start``.
        """
        self._started = False
        self._window = None
        process = self._process
        self._let_go()
        if process is not None:
            try:
                process.wait(self._patience.exit)
            except subprocess.TimeoutExpired:
                return False
        return not self._not_ended()

    def _not_ended(self) -> list[tuple[subprocess.Popen[bytes], float]]:
        """Killed processes that are still there, and since when."""
        self._leaving = [left for left in self._leaving if left[0].poll() is None]
        return self._leaving

    def _begin(self) -> None:
        if len(self._not_ended()) >= MAX_LEFT_BEHIND:
            self.reason = (
                f"{MAX_LEFT_BEHIND} readers hang in the driver and cannot be ended; "
                f"{self._label} is asked again when one of them ends"
            )
            return
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            self._failed(f"the reader of {self._label} does not start: {error}")
            return
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        path = [str(PACKAGES), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(path)
        command = [sys.executable, "-m", "stragd.telemetry.reader_child"]
        try:
            self._process = subprocess.Popen(
                [*command, self._name, str(theirs.fileno()), *self._arguments],
                cwd="/",  # "-m" looks for modules there
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            ours.close()
            self._failed(f"the reader of {self._label} does not start: {error}")
            return
        finally:
            theirs.close()
        self._channel, self._steady = ours, 0

    def _receive(self) -> None:
        for _ in range(MAX_PACKETS):
            if self._channel is None:
                return
            try:
                packet = self._channel.recv(MAX_PACKET, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            if not packet:
                self._ended()
                return
            answer = decode_answer(packet)
            if isinstance(answer, SampleMessage):
                self._on_sample(answer)
            elif isinstance(answer, ProcessesMessage):
                for subject, pids in answer.by_subject.items():
                    if subject in self._models:
                        self.processes[subject] = pids
                        self._relisted = True
            elif isinstance(answer, DoneMessage):
                self._on_done(answer)

    def _on_sample(self, answer: SampleMessage) -> None:
        reading, window = answer.reading, self._window
        if reading.subject not in self._models and len(self._models) >= MAX_SUBJECTS:
            return
        self._models[reading.subject] = reading.model
        if window is None or answer.window != window.number:
            self._carry(reading)
            return
        if reading.subject in window.answered:
            return
        window.answered.add(reading.subject)
        if not reading.silent and (missed := self._missed.pop(reading.subject, None)) is not None:
            for name, events in missed.values.items():
                reading.values[name] = reading.values.get(name, 0.0) + events
            reading.notes += [note for note in missed.notes if note not in reading.notes]
        self._samples.append(
            Sample(
                kind="gpu",
                subject=reading.subject,
                model=reading.model,
                start_ns=window.start_ns,
                end_ns=window.end_ns,
                values=reading.values,
                notes=tuple(reading.notes),
                silent=reading.silent,
            )
        )

    def _carry(self, reading: Reading) -> None:
        """An answer to a window that was given up: its events count in the next one."""
        missed = self._missed.setdefault(reading.subject, Reading(reading.subject, reading.model))
        for name, value in reading.values.items():
            if name.endswith("_delta"):
                missed.values[name] = missed.values.get(name, 0.0) + value
        xids = [note for note in reading.notes if note.startswith("Xid ")]
        missed.notes += [note for note in xids if note not in missed.notes][:MAX_NOTES]

    def _on_done(self, answer: DoneMessage) -> None:
        self._owed = None
        self.reason = answer.reason
        self.listed += self._relisted
        self._relisted = False
        if not answer.reason:  # else nothing was read, and the window stays unanswered
            if self._window is not None and answer.window == self._window.number:
                self._window.done = True
                self._forget_others(self._window.answered)
            self._steady += 1
            if self._steady >= STEADY_WINDOWS:
                self._failures = 0
        patience = self._patience.process if answer.all_late else self._patience.one_gpu
        if answer.late_seconds > patience:
            self._replace(f"{self._label} has not answered for {answer.late_seconds:.0f} s")

    def _forget_others(self, subjects: set[str]) -> None:
        """A GPU that was taken out, or divided otherwise, is no longer expected."""
        for gone in self._models.keys() - subjects:
            del self._models[gone]
            self.processes.pop(gone, None)
            self._missed.pop(gone, None)

    def _give_up(self) -> None:
        """Silent samples for what the last window still lacks."""
        window = self._window
        if window is None or window.done:
            return
        text = f"{self._label} was still busy with an earlier window"
        if self._owed is not None:
            text = f"{self._label} has not answered for {time.monotonic() - self._owed:.1f} s"
        text = self.reason or text
        for subject, model in self._models.items():
            if subject not in window.answered:
                self._samples.append(
                    Sample("gpu", subject, model, window.start_ns, window.end_ns, silent=text)
                )

    def _replace(self, reason: str) -> None:
        self._let_go()
        self._failed(reason)

    def _ended(self) -> None:
        process = self._process
        self._let_go()
        status = process.poll() if process is not None else None
        how = f" ({status})" if status is not None else ""
        self._failed(self.reason or f"the reader of {self._label} has ended{how}")

    def _let_go(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            self._leaving.append((self._process, time.monotonic()))
        self._process = self._channel = self._owed = None

    def _failed(self, reason: str) -> None:
        """The next process comes at once after one that did well, else later and later."""
        self.reason = reason
        self.restarts += 1
        delay = 0.0
        if self._failures:
            delay = self._patience.first_retry * 2.0 ** min(self._failures - 1, 16)
        self._failures += 1
        self._retry_at = time.monotonic() + min(delay, self._patience.last_retry)
