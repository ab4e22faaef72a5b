"""Calls into drivers that may hang: made in a thread of their own and left behind when late.

A NIC whose firmware is dead lets each read of sysfs wait for a minute; a stuck reset holds the lock
that ethtool needs. Nobody else waits with them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class InTime(Generic[Answer]):
    """One call at a time, each with a limit. The thread ends when nobody has this any more."""

    def __init__(self, name: str, seconds: float) -> None:
        self._name, self._seconds = name, seconds
        self._requests: queue.SimpleQueue[Callable[[], Answer] | None] | None = None
        self._answers: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()
        self._since: float | None = None

    @property
    def late_s(self) -> float:
        """How long the present call has been out; 0 where none is."""
        return time.monotonic() - self._since if self._since is not None else 0.0

    def call(self, function: Callable[[], Answer]) -> Answer | None:
        """The function's answer, or its exception; None where it, or the call before, is late.

        A late call is not repeated: until it is back nothing else is asked, and its answer, which
        is of another window, is dropped.
        """
        if self._since is not None:
            try:
                self._answers.get_nowait()
            except queue.Empty:
                return None
        if self._requests is None:
            self._requests = queue.SimpleQueue()
            queues = (self._requests, self._answers)
            threading.Thread(target=_work, args=queues, name=self._name, daemon=True).start()
        self._since = time.monotonic()
        self._requests.put(function)
        try:
            answer = self._answers.get(timeout=self._seconds)
        except queue.Empty:
            return None
        self._since = None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __del__(self) -> None:
        if self._requests is not None:
            self._requests.put(None)


def _work(
    requests: queue.SimpleQueue[Callable[[], Answer] | None],
    answers: queue.SimpleQueue[Answer | Exception],
) -> None:
    """Until there is nothing to call. Between calls it keeps nobody's files open."""
    while True:
        function = requests.get()
        if function is None:
            return
        try:
            answers.put(function())
        except Exception as error:
            answers.put(error)
        del function
