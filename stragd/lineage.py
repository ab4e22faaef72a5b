"""Jobs that were started anew: a rank where it was goes on with what was known of it.

A launcher that starts its ranks again counts that, and the count is part of a job's key: it is
another job with the same parent key. Only the same rank on the same GPU is the same: another rank
may have other work, and another GPU another speed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from stragd.jobs import Identity, Job, JobTable


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


class Lineage:
    """The main loop's thread only."""

    def __init__(self, table: JobTable, scorer: Scorer) -> None:
        self._table, self._scorer = table, scorer
        self._before: dict[int, Before] = {}

    def add(self, job: Job, identity: Identity) -> None:
        """A rank was found, while the job that it belonged to before is still in the table."""
        before = self._before.get(job.key)
        if before is None:
            before = self._before[job.key] = Before(self._find(job, identity))
        old = self._table.jobs.get(before.job)
        rank = old.ranks.get(identity.rank) if old is not None else None
        if rank is not None and _where(rank.identity) == _where(identity):
            self._scorer.inherit(before.job, job.key, [identity.rank])
            before.stayed.add(identity.rank)

    def before(self, job: int) -> Before:
        """What is known of a job's past."""
        return self._before.get(job, Before())

    def forget(self, job: int) -> None:
        """The job has ended."""
        self._before.pop(job, None)

    def _find(self, job: Job, identity: Identity) -> int:
        """The job with the same parent key that was started last before this one."""
        found, count = 0, -1
        for key, other in self._table.jobs.items():
            one = next(iter(other.ranks.values()), None)
            if key == job.key or one is None or one.identity.parent_key != identity.parent_key:
                continue
            if count < one.identity.restart_count < identity.restart_count:
                found, count = key, one.identity.restart_count
        return found


def _where(identity: Identity) -> tuple[str, str, int, int]:
    """What makes a rank the same: its GPU, or without one its place on its host."""
    place = identity.gpu_uuid or str(identity.local_rank)
    return identity.host, place, identity.class_id, identity.world_size
