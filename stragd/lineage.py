"""Jobs that were started anew: a rank where it was goes on with what was known of it.

A launcher that starts its ranks again counts that, and the count is part of a job's key: it is
another job with the same parent key. Only the same rank on the same GPU is the same: another rank
may have other work, and another GPU another speed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from stragd.jobs import Identity, Job, JobTable

RESTART_SECONDS = 900.0
"""From the end of a job until it is not started anew any more: data and models are loaded first."""
MAX_ENDED = 64


class Scorer(Protocol):
    """What is needed of the native scorer (``stragd._rscore.Scorer``)."""

    def inherit(self, from_job: int, to_job: int, ranks: list[int]) -> int: ...


@dataclass
class Before:
    """What a job was before it was started anew."""

    job: int = 0
    """Its key then; 0 where it is not known to have been another one."""
    stayed: set[int] = field(default_factory=set)
    """Ranks of this node that are where they were."""
    name: str = ""


Place = tuple[str, str, int, int]
"""What makes a rank the same: host, GPU, class and size of the job."""


@dataclass
class _Ended:
    """What is needed of a job that is not in the table any more."""

    name: str
    parent: int
    restart_count: int
    places: dict[int, Place]  # by rank
    until: float  # monotonic s


class _Past(NamedTuple):
    """A job that was started before another one, and where that one's rank was in it."""

    restart_count: int
    key: int
    name: str
    place: Place | None


class Lineage:
    """The main loop's thread only. ``forget`` is told of jobs whose past nobody needs any more."""

    def __init__(self, table: JobTable, scorer: Scorer, forget: Callable[[int], None]) -> None:
        self._table, self._scorer, self._forget = table, scorer, forget
        self._before: dict[int, Before] = {}
        self._ended: dict[int, _Ended] = {}  # by job, oldest first

    def add(self, job: Job, identity: Identity) -> None:
        """A rank was found."""
        if self._ended.pop(job.key, None) is not None:
            self._forget(job.key)  # it begins again under its old name
        before = self._before.setdefault(job.key, Before())
        for past in self._pasts(job.key, identity):
            if not before.name:
                before.name = past.name
            # A start that failed taught nothing: then it is the one before that.
            same = past.place == _place(identity)
            if same and self._scorer.inherit(past.key, job.key, [identity.rank]):
                if before.job in (0, past.key):
                    before.job = past.key
                    before.stayed.add(identity.rank)
                return

    def before(self, job: int) -> Before:
        """What is known of a job's past."""
        return self._before.get(job, Before())

    def end(self, job: Job, now: float) -> None:
        """The job has ended; what was learnt of it is kept for a while."""
        self._before.pop(job.key, None)
        one = _first(job)
        if one is None:
            self._forget(job.key)
            return
        places = {number: _place(rank.identity) for number, rank in job.ranks.items()}
        until = now + RESTART_SECONDS
        self._ended[job.key] = _Ended(job.name, one.parent_key, one.restart_count, places, until)
        if len(self._ended) > MAX_ENDED:
            self._drop(next(iter(self._ended)))

    def tick(self, now: float) -> None:
        """Once a second."""
        for key in [key for key, ended in self._ended.items() if now >= ended.until]:
            self._drop(key)

    def _drop(self, key: int) -> None:
        del self._ended[key]
        self._forget(key)

    def _pasts(self, key: int, identity: Identity) -> list[_Past]:
        """Jobs with the same parent key that were started before this one, the last one first."""
        rank, parent, count = identity.rank, identity.parent_key, identity.restart_count
        pasts = [
            _Past(ended.restart_count, ended_key, ended.name, ended.places.get(rank))
            for ended_key, ended in self._ended.items()
            if ended.parent == parent and ended.restart_count < count
        ]
        for other in self._table.jobs.values() if count > 0 else ():
            one = _first(other)
            if other.key == key or one is None or one.parent_key != parent:
                continue
            if one.restart_count < count:
                there = other.ranks.get(rank)
                place = _place(there.identity) if there is not None else None
                pasts.append(_Past(one.restart_count, other.key, other.name, place))
        return sorted(pasts, key=lambda past: -past.restart_count)


def _first(job: Job) -> Identity | None:
    """One of a job's ranks: what is the job's is the same in all."""
    rank = next(iter(job.ranks.values()), None)
    return rank.identity if rank is not None else None


def _place(identity: Identity) -> Place:
    """Without a GPU it is the rank's place on its host."""
    place = identity.gpu_uuid or str(identity.local_rank)
    return identity.host, place, identity.class_id, identity.world_size
