"""The process that asks a GPU driver: ``python -m stragd.telemetry.reader_child NAME SOCKET …``.

It answers one request after the other and ends when the daemon's end of the socket closes, be it
in the middle of a driver call.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from stragd.telemetry import privileges
from stragd.telemetry.amd import AmdReader
from stragd.telemetry.crew import Crew, Late
from stragd.telemetry.events import add_xids
from stragd.telemetry.messages import (
    MAX_PACKET,
    TABLE,
    DoneMessage,
    ProcessesMessage,
    Request,
    SampleMessage,
    decode_request,
    encode,
)
from stragd.telemetry.nvml import NvmlReader
from stragd.telemetry.reading import Device, Reader, Reading, Unavailable


def main() -> int:
    """NAME is nvml or amd; then the socket's number, /proc, /sys, seconds, whether to use GPM, and
    the daemon's table of quantities.
    """
    name, number, proc, sys_folder, seconds, with_gpm, table = sys.argv[1:8]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the daemon
    channel = socket.socket(fileno=int(number))
    threading.Thread(target=_end_with_daemon, args=(channel,), daemon=True).start()
    reader: Reader = NvmlReader(proc, with_gpm == "1") if name == "nvml" else AmdReader(sys_folder)
    Service(channel, reader, float(seconds), table).run()
    return 0


def _end_with_daemon(channel: socket.socket) -> None:
    """The one way out that needs no driver call to come back."""
    privileges.drop(keep=0)
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    poll.poll()
    os._exit(0)


class Service:
    """Requests in, answers out."""

    def __init__(
        self, channel: socket.socket, reader: Reader, seconds: float, table: str = TABLE
    ) -> None:
        self._channel, self._reader, self._table = channel, reader, table
        self._crew = Crew(seconds)
        self._opened = False

    def run(self) -> None:
        """Until the daemon closes the socket, or there is nothing to read."""
        while True:
            request = decode_request(self._channel.recv(MAX_PACKET))
            if request is None:
                return
            try:
                self._open()
            except Unavailable as reason:
                self._send(DoneMessage(request.window, str(reason), 0.0, False))
                return  # the daemon tries anew later, with a process that has loaded nothing
            except Late as late:
                self._send(DoneMessage(request.window, self._says(late), late.seconds, True))
                continue
            self._answer(request)

    def _open(self) -> None:
        if not self._opened:
            if self._table != TABLE:
                raise Unavailable("stragd was upgraded while it ran: restart stragd.service")
            self._crew.ask("open", self._reader.open)
            self._crew.close()  # its next thread is started by this one, and inherits the loss
            privileges.drop()
            gc.freeze()  # what is loaded stays: no use in looking through it again and again
            self._opened = True

    def _answer(self, request: Request) -> None:
        devices = self._reader.devices
        jobs: list[tuple[str, Callable[[], Any]]] = [("events", self._reader.events)]
        jobs += [(f"gpu {place}", device.read) for place, device in enumerate(devices)]
        events, *outcomes = self._crew.ask_all(jobs)
        xids = None if isinstance(events, Exception) else events
        for device, outcome in zip(devices, outcomes, strict=True):
            if isinstance(outcome, Exception):
                silent = self._says(outcome)
                readings = [Reading(s, model, silent=silent) for s, model in device.subjects]
            else:
                readings = outcome
            for reading in readings:
                add_xids(reading, xids)
                self._send(SampleMessage(request.window, reading))
        if request.processes:
            answering = [d for d, o in zip(devices, outcomes, strict=True) if not _late(o)]
            self._answer_processes(request.window, answering)
        all_late = bool(outcomes) and all(map(_late, outcomes))
        self._send(DoneMessage(request.window, "", self._crew.longest(), all_late))

    def _answer_processes(self, window: int, devices: Sequence[Device]) -> None:
        jobs = [(f"processes of {device.subjects[0]}", device.processes) for device in devices]
        for device, found in zip(devices, self._crew.ask_all(jobs), strict=True):
            if isinstance(found, Exception):
                continue  # the daemon keeps what it knew
            listed = {subject: found.get(subject, []) for subject, _ in device.subjects}
            self._send(ProcessesMessage(window, listed))

    def _says(self, error: Exception) -> str:
        """Why there is nothing. One GPU's nonsense, too, is not the silence of the others."""
        if isinstance(error, Late):
            return f"{self._reader.name} {error}"
        return f"{self._reader.name}: {type(error).__name__}: {error}"

    def _send(self, message: SampleMessage | ProcessesMessage | DoneMessage) -> None:
        self._channel.send(encode(message))


def _late(outcome: object) -> bool:
    return isinstance(outcome, Late)


if __name__ == "__main__":
    sys.exit(main())
