"""All jobs of the cluster, as far as this node has heard of them: bounded, each with its age."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from stragd.exchange.summary import Summary
from stragd.finding import job_key
from stragd.outputs import snapshot

MAX_JOBS = 4096
LEAST_SECONDS = 10.0
MOST_PER_SECOND = 10
"""Summaries that each node hears: with many jobs each is told less often."""
FORGET_SECONDS = 600.0
SILENT_TURNS = 3
"""Turns of a job's teller without a word after which somebody else may tell about it."""


@dataclass
class _Heard:
    summary: Summary
    at: float


class Board:
    """The main loop's thread only."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self._jobs: dict[int, _Heard] = {}

    def every(self) -> float:
        """Seconds between two summaries of one job in which nothing has changed."""
        return max(LEAST_SECONDS, len(self._jobs) / MOST_PER_SECOND)

    def take(self, summary: Summary, now: float) -> bool:
        """Note what was said of a job; False, and counted, where somebody else speaks for it."""
        known = self._jobs.get(summary.job)
        if known is not None and not self._may_follow(known, summary, now):
            self.counters["refused.summary"] += 1
            return False
        if summary.ended:
            self._jobs.pop(summary.job, None)
        elif known is None and len(self._jobs) >= MAX_JOBS:
            self.counters["dropped.too_many_jobs"] += 1
        else:
            self._jobs[summary.job] = _Heard(summary, now)
        return True

    def _may_follow(self, known: _Heard, summary: Summary, now: float) -> bool:
        before = known.summary
        silent = now - known.at > SILENT_TURNS * self.every()
        return summary.node == before.node or summary.epoch > before.epoch or silent

    def expire(self, now: float) -> None:
        """Forget the jobs of which nobody has said anything for long."""
        old = [job for job, heard in self._jobs.items() if now - heard.at > FORGET_SECONDS]
        for job in old:
            del self._jobs[job]

    def rows(self, now: float) -> list[snapshot.ClusterJob]:
        """All of them, the one that loses most first."""
        rows = [_row(heard.summary, now - heard.at) for heard in self._jobs.values()]
        rows.sort(key=lambda row: (-(row["worst"] or {"cost_percent": 0.0})["cost_percent"],
                                   row["name"], row["key"]))  # fmt: skip
        return rows


def _row(summary: Summary, age: float) -> snapshot.ClusterJob:
    return {
        "key": job_key(summary.job),
        "name": summary.name,
        "launcher": summary.launcher,
        "world_size": summary.world_size,
        "ranks": summary.ranks,
        "nodes": summary.nodes,
        "step_ms": summary.step_ms,
        "node": summary.node,
        "findings": summary.findings,
        "worst": summary.worst,
        "age_s": round(max(age, 0.0), 1),
    }
