"""What the scorer has learnt, kept over restarts of the daemon: no rank is learnt anew.

The numbers of a job's windows and steps begin anew with the daemon; here they go on, and so do the
ids of open findings. The file is one line of JSON, those ids and the time, and the scorer's state
behind it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from stragd.jobs import TENTH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SAVE_SECONDS = 60.0
UNSEEN_SECONDS = 600.0
"""A job of an earlier daemon that has not come by then has ended meanwhile."""
MAX_BYTES = 1 << 30


class Scorer(Protocol):
    """What is kept of the native scorer (``stragd._rscore.Scorer``)."""

    def save(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...
    def ends(self, job: int) -> tuple[int, int | None, int] | None: ...
    def jobs(self) -> list[int]: ...
    def forget(self, job: int) -> None: ...


class Store(Protocol):
    """What is kept of the open findings (``FindingStore``)."""

    def names(self) -> list[tuple[int, int, str]]: ...
    def know(self, names: Iterable[tuple[int, int, str]]) -> None: ...
    def forget(self, job: int) -> None: ...


class Baselines:
    """The scorer's state in one file; the main loop's thread only."""

    def __init__(
        self,
        path: Path,
        scorer: Scorer,
        store: Store,
        complain: Callable[[str], None],
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        """``complain`` takes one line: what is wrong, why, and what it costs. The file is written
        every ``save_seconds``."""
        self._path = path
        self._save_seconds = save_seconds
        self._scorer = scorer
        self._store = store
        self._complain = complain
        self.problem = ""
        """Why the file could not be written the last time, "" when it could."""
        self._saved = self._begun = 0.0
        self._earlier: set[int] = set()  # jobs of the file that were not seen yet
        self._next: dict[int, tuple[int, int, int]] = {}  # window, tenth and step, by job
        self._first: dict[tuple[int, bool], int] = {}  # this daemon's first window, first tenth
        self._until_ns = 0  # CLOCK_MONOTONIC at which the file was written

    def load(self, now: float) -> None:
        """Take over what an earlier daemon left."""
        self._saved = self._begun = now
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ValueError("it is no regular file")
                if status.st_size > MAX_BYTES:
                    raise ValueError(f"it is longer than {MAX_BYTES} bytes")
                state = file.read(status.st_size)  # a limit as its size would be allocated
            line, _, state = state.partition(b"\n")
            names, until_ns = _facts(line)
            self._scorer.restore(state)
            self._store.know(names)
            # After a boot the clock began anew.
            self._until_ns = until_ns if until_ns <= now * 1e9 else 0
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            self._complain(f"{self._path}: {error}; every baseline is learnt anew")
            return
        self._earlier = set(self._scorer.jobs())

    def go_on(self, job: int, rows: NDArray[np.void]) -> bool:
        """Number the rows of a window, in place, after those that an earlier daemon scored.

        False where that one had begun before it wrote its file, so it may have been scored: a ring
        still holds what was before this daemon, of some ranks sooner than of others.
        """
        if job in self._earlier:
            self._earlier.discard(job)
            window, tenth, step = self._scorer.ends(job) or (-1, None, -1)
            self._next[job] = (window + 1, 0 if tenth is None else tenth + 1, step + 1)
        if job not in self._next:
            return True
        if int(rows["start_ns"].min()) < self._until_ns:
            return False
        next_window, next_tenth, next_step = self._next[job]
        is_tenth = bool(rows["flags"][0] & TENTH)
        first = self._first.setdefault((job, is_tenth), int(rows["window"][0]))
        rows["window"] = rows["window"] - first + (next_tenth if is_tenth else next_window)
        rows["first_step"] += next_step
        rows["last_step"] += next_step
        return True

    def forget(self, job: int) -> None:
        """The job has ended."""
        self._scorer.forget(job)
        self._next.pop(job, None)
        for tenth in (False, True):
            self._first.pop((job, tenth), None)

    def tick(self, now: float) -> None:
        """Now and then: write, and forget what has ended while no daemon ran."""
        if self._earlier and now - self._begun >= UNSEEN_SECONDS:
            for job in self._earlier:
                self._scorer.forget(job)
                self._store.forget(job)
            self._earlier.clear()
        if now - self._saved >= self._save_seconds:
            self.save(now)

    def save(self, now: float) -> None:
        """Write the file; the old one stays whole until the new one is."""
        self._saved = now
        try:
            facts = {"findings": self._store.names(), "until_ns": int(now * 1e9)}
            line = json.dumps(facts).encode()
            self._write(line + b"\n" + self._scorer.save())
        except (OSError, ValueError) as error:
            problem = f"{self._path}: {error}; a restart would learn every baseline anew"
            if not self.problem:
                self._complain(problem)
            self.problem = problem
            return
        self.problem = ""

    def _write(self, state: bytes) -> None:
        if self._path.exists() and not self._path.is_file():
            raise ValueError("it is no regular file")
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._path.with_name(self._path.name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(new, flags, 0o600), "wb") as file:
            file.write(state)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._path)


def _facts(line: bytes) -> tuple[list[tuple[int, int, str]], int]:
    """Ids of findings and the time in the file's first line; ValueError where there are none."""
    try:
        facts = json.loads(line)
        names, until_ns = facts["findings"], facts.get("until_ns", 0)
        good = all(list(map(type, name)) == [int, int, str] for name in names)
        if good and type(until_ns) is int:
            return [(job, scorer_id, name) for job, scorer_id, name in names], until_ns
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise ValueError("it is no file of baselines")
