"""Driver calls in a thread that is left behind when a call does not come back.

One thread works as long as all goes well. A call that is late keeps its thread, the rest gets a new
one, and nothing is asked again under that name until the late one is back: a sick GPU costs one
thread, and the others go on. What it gives when it is back is the answer to the next question, so
nothing that it has counted is lost.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Late(Exception):
    """The call has not come back."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"has not answered for {seconds:.0f} s")
        self.seconds = seconds


class _Task(Generic[T]):
    def __init__(self, name: str, job: Callable[[], T]) -> None:
        self.name, self.job = name, job
        self.since = 0.0  # 0: not begun
        self.done = False
        self.outcome: T | Exception | None = None


class _Round(Generic[T]):
    """Tasks of one thread, one after the other."""

    def __init__(self, tasks: list[_Task[T]]) -> None:
        self.tasks = tasks
        self.lock = threading.Lock()
        self.begun = 0  # tasks that were
        self.left_behind = False
        self.over = threading.Event()

    def work(self) -> bool:
        """In the thread: do them all; whether the thread is still wanted."""
        for task in self.tasks:
            task.since = time.monotonic()
            self.begun += 1
            try:
                task.outcome = task.job()
            except Exception as error:  # belongs to whoever asked
                task.outcome = error
            with self.lock:
                task.done = True
                if self.left_behind:
                    return False
        self.over.set()
        return True


class Crew:
    """Asks one thing after the other; not for use by several threads."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        """How long a call may take before it is left behind."""
        self._rounds: queue.SimpleQueue[_Round[object] | None] | None = None
        self._late: dict[str, _Task[object]] = {}

    def ask(self, name: str, job: Callable[[], T]) -> T:
        """As ``ask_all`` with one job, whose exception is raised."""
        (outcome,) = self.ask_all([(name, job)])
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def ask_all(self, jobs: Sequence[tuple[str, Callable[[], T]]]) -> list[T | Exception]:
        """What each job gave, in their order; its exception, or Late, where it gave nothing.

        Instead of a job, the one before of its name is asked for if that is late.
        """
        outcomes: dict[int, T | Exception] = {}
        tasks: dict[int, _Task[T]] = {}
        for place, (name, job) in enumerate(jobs):
            late = self._late.get(name)
            if late is None:
                tasks[place] = _Task(name, job)
            elif late.done:
                del self._late[name]
                outcomes[place] = cast("T | Exception", late.outcome)
            else:
                outcomes[place] = Late(time.monotonic() - late.since)
        left = list(tasks.values())
        while left:
            left = self._go(left)
        for place, task in tasks.items():
            if task.name in self._late:
                outcomes[place] = Late(time.monotonic() - task.since)
            else:
                outcomes[place] = cast("T | Exception", task.outcome)
        return [outcomes[place] for place in range(len(jobs))]

    def longest(self) -> float:
        """Seconds since the oldest call that is not back was made, 0 if all are."""
        now = time.monotonic()
        waiting = (now - task.since for task in self._late.values() if not task.done)
        return max(waiting, default=0.0)

    def close(self) -> None:
        """End the thread that waits for work."""
        if self._rounds is not None:
            self._rounds.put(None)
            self._rounds = None

    def _go(self, tasks: list[_Task[T]]) -> list[_Task[T]]:
        """Have tasks done; those behind the first that is late come back."""
        if self._rounds is None:
            self._rounds = queue.SimpleQueue()
            threading.Thread(
                target=_work, args=(self._rounds,), name="stragd-driver", daemon=True
            ).start()
        this: _Round[T] = _Round(tasks)
        self._rounds.put(this)  # type: ignore[arg-type]
        wait = self.seconds
        while not this.over.wait(wait):
            with this.lock:
                current = tasks[this.begun - 1] if this.begun else None
                # A thread that was not scheduled yet, or is between two tasks, is not late.
                wait = self.seconds
                if current is None or current.done:
                    continue
                wait = current.since + self.seconds - time.monotonic()
                if wait > 0:
                    continue
                this.left_behind = True
                self._late[current.name] = current  # type: ignore[assignment]
                self._rounds = None
                return tasks[this.begun :]
        return []


def _work(rounds: queue.SimpleQueue[_Round[object] | None]) -> None:
    while True:
        this = rounds.get()
        if this is None or not this.work():
            return
