"""What a transport does: publish windows, receive a job's windows, hold the scorer role.

No call waits. What comes back is an event in ``receive``: also the outcome of ``contend``.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass
from typing import Literal, Protocol

MAX_QUEUED = 65_536
MAX_QUEUED_BYTES = 256 << 20


@dataclass(frozen=True)
class Event:
    """Something came. ``node`` is who the transport says sent it."""

    kind: Literal["windows", "verdict", "summary", "held", "kept", "lost", "back"]
    job: int = 0  # back: 0 for all of them
    node: str = ""
    data: bytes = b""  # held: the state that was kept, empty where there is none
    epoch: int = 0  # held, kept, lost: of the lease
    at: float = 0.0  # CLOCK_MONOTONIC of its arrival, s
    number: int = 0  # kept: of the state


class Exchange(Protocol):
    """A transport; every method may be called from the main loop and returns at once."""

    max_state: int
    """Bytes that can be kept for the next holder of a role."""

    def start(self) -> None: ...
    def close(self) -> None:
        """Give every role back and end; at most a second or two."""

    def join(self, job: int) -> None:
        """This node has ranks of the job: its verdicts shall come."""

    def leave(self, job: int) -> None:
        """It has none any more; a role is given back."""

    def publish(self, job: int, data: bytes) -> None:
        """One window of a job, for whoever scores it."""

    def announce(self, job: int, epoch: int, data: bytes) -> None:
        """A verdict, for every node of the job; from the holder of its role."""

    def contend(self, job: int, before: int = 0) -> None:
        """Ask for the scorer role; `held` follows if nobody has it, with all windows after it.

        ``before`` is what the job was before it was started anew, 0 if nothing: where nothing was
        kept of the job, `held` brings what was kept of that one.
        """

    def resign(self, job: int) -> None:
        """Give the role back."""

    def keep(self, job: int, state: bytes, number: int) -> None:
        """State for whoever holds the role next; the last one counts. `kept` follows."""

    def report(self, job: int, data: bytes) -> None:
        """A job in short, for every node of the cluster."""

    def receive(self) -> list[Event]:
        """What came since the last call, in its order."""

    def counters(self) -> dict[str, int]:
        """``sent``, ``received``, ``dropped.<cause>``, ``refused.<cause>``, since the start."""

    def problem(self) -> str:
        """Why nothing goes through, one line; "" while it does."""


class Inbox:
    """Events between a transport's thread and the main loop: bounded, drops the oldest windows."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._events: deque[Event] = deque()
        self._roles: deque[Event] = deque()  # a change of role is never dropped
        self._bytes = 0
        self._lock = threading.Lock()

    def put(self, event: Event) -> None:
        with self._lock:
            if event.kind not in ("windows", "verdict", "summary"):
                self._roles.append(event)
                return
            self._events.append(event)
            self._bytes += len(event.data)
            while len(self._events) > MAX_QUEUED or self._bytes > MAX_QUEUED_BYTES:
                self._bytes -= len(self._events.popleft().data)
                self._counters["dropped.inbox_full"] += 1

    def take(self, most: int = 4096) -> list[Event]:
        """Changes of role first, then at most so many others."""
        with self._lock:
            taken = [*self._roles]
            self._roles.clear()
            while self._events and most > 0:
                event = self._events.popleft()
                self._bytes -= len(event.data)
                taken.append(event)
                most -= 1
        return taken
