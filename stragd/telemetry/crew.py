"""Driver calls in a thread that is left behind when a call does not come back.

One thread works as long as all goes well. A call that is late keeps its thread, the next call gets
a new one, and nothing is asked again under that name until the late one is back: a sick GPU costs
one thread, and the others go on.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class Late(Exception):
    """The call has not come back."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"has not answered for {seconds:.0f} s")
        self.seconds = seconds


class _Task:
    def __init__(self, job: Callable[[], Any]) -> None:
        self.job = job
        self.since = time.monotonic()
        self.done = threading.Event()
        self.abandoned = False
        self.result: Any = None
        self.error: Exception | None = None


class Crew:
    """Asks one thing after the other; not for use by several threads."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """How long a call may take before it is left behind."""
        self._tasks: queue.SimpleQueue[_Task | None] | None = None
        self._late: dict[str, _Task] = {}

    def ask(self, name: str, job: Callable[[], T]) -> T:
        """Result or exception of ``job``; Late if it, or the last one of this name, is not back."""
        if (late := self._late.get(name)) is not None:
            if not late.done.is_set():
                raise Late(time.monotonic() - late.since)
            del self._late[name]
        task = _Task(job)
        if self._tasks is None:
            self._tasks = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(self._tasks,), name="stragd-driver", daemon=True
            ).start()
        self._tasks.put(task)
        if not task.done.wait(self.seconds):
            task.abandoned = True
            self._late[name] = task
            self._tasks = None
            raise Late(time.monotonic() - task.since)
        if task.error is not None:
            raise task.error
        result: T = task.result
        return result

    def longest(self) -> float:
        """Seconds since the oldest call that is not back was made, 0 if all are."""
        now = time.monotonic()
        waiting = (now - task.since for task in self._late.values() if not task.done.is_set())
        return max(waiting, default=0.0)

    def close(self) -> None:
        """End the thread that waits for work."""
        if self._tasks is not None:
            self._tasks.put(None)
            self._tasks = None


def _work(tasks: queue.SimpleQueue[_Task | None]) -> None:
    while True:
        task = tasks.get()
        if task is None:
            return
        try:
            task.result = task.job()
        except Exception as error:  # belongs to whoever asked
            task.error = error
        task.done.set()
        if task.abandoned:
            return
