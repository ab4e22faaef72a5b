"""Jobs that span nodes, between the watch and the exchange: windows out, verdicts into findings."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stragd.causes import Causes
from stragd.config import Config
from stragd.finding import Finding, iso_time, job_key
from stragd.findings import FindingStore, Transition
from stragd.jobs import Job, JobTable, clean
from stragd.lineage import Before
from stragd.outputs import snapshot

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd.config import Exchange as Settings
    from stragd.exchange.cluster import Cluster
    from stragd.exchange.interface import Exchange
    from stragd.exchange.summary import Summary
    from stragd.exchange.verdict import Verdict

OF_CLUSTER = 1 << 62
"""Set in the ids of findings of a job's scorer: they are not this node's own scorer's."""


def make_cluster(
    config: Config, table: JobTable, complain: Callable[[str], None]
) -> Cluster | None:
    """This node's part in the cluster; None where the configuration has none.

    Raises ValueError where the exchange's settings cannot be used.
    """
    settings = config.exchange
    if settings.kind == "local":
        return None
    # All of this costs memory: only when it is on.
    from stragd.exchange.cluster import Cluster
    from stragd.exchange.message import Sender, node_name

    host = socket.gethostname()
    node = settings.node or node_name(host)
    sender = Sender(node, host, secrets.randbits(62))
    make = _store if settings.kind == "store" else _nats
    return Cluster(
        make(settings, node, table),
        sender,
        config.scorer(),
        settings.deadline_seconds,
        settings.lease_seconds,
        complain,
    )


def _nats(settings: Settings, node: str, table: JobTable) -> Exchange:
    try:
        from stragd.exchange.nats import Nats
    except ImportError as error:
        raise ValueError(f"exchange.kind is nats: {error}; pip install 'stragd[nats]'") from None
    return Nats(settings, node)


def _store(settings: Settings, node: str, table: JobTable) -> Exchange:
    from stragd.discovery.process import MemoryReader
    from stragd.exchange.store import Store
    from stragd.exchange.store_address import StoreAddress, store_address

    reader = MemoryReader()

    def find(job: int) -> StoreAddress:
        known = table.jobs.get(job)
        ranks = [] if known is None else [r for r in known.ranks.values() if r.gone_since is None]
        if not ranks:
            raise ValueError(f"job {job:016x} has no process on this node any more")
        return store_address(ranks[0].process[0], settings.store, reader)

    return Store(settings, node, find)


class Spanning:
    """The main loop's thread only; does nothing where there is no cluster."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster | None,
        table: JobTable,
        store: FindingStore,
        causes: Causes,
    ) -> None:
        self.cluster = cluster
        self._settings = settings
        self._table, self._store, self._causes = table, store, causes

    def start(self) -> None:
        """Begin to connect."""
        if self.cluster is not None:
            self.cluster.start()

    def close(self) -> None:
        """Hand the roles over."""
        if self.cluster is not None:
            self.cluster.close()

    def offer(self, job: Job, rows: NDArray[np.void], before: Before, now: float) -> None:
        """A window of this node's ranks; kept here where all ranks of the job are."""
        if self.cluster is None or len(job.ranks) >= job.world_size:
            return
        classes = {
            rank.identity.class_id: clean(rank.identity.class_name) for rank in job.ranks.values()
        }
        causes = {
            finding["subject"]["rank"]: {**finding["cause"], "where": finding["where"]}
            for finding in self._store.open()
            if int(finding["job"]["key"], 16) == job.key
            and finding["subject"].get("rank") in job.ranks
            and finding["cause"]["name"] != "unknown"
        }
        now_ns = time.monotonic_ns()
        self.cluster.offer(rows, job.name, job.launcher, classes, causes, now, now_ns, before)

    def speaks(self, job: int, now: float) -> bool:
        """Whether the findings of a job are those of its scorer, not this node's own."""
        return self.cluster is not None and self.cluster.speaks(job, now)

    def turn(self, now: float) -> list[Transition]:
        """Take what came; what changed among the findings."""
        if self.cluster is None:
            return []
        changes: list[Transition] = []
        for verdict in self.cluster.turn(now):
            job = self._table.jobs.get(verdict.job)
            if job is not None:
                changes += self._apply(job, verdict)
        return changes

    def tick(self, now: float) -> None:
        """Once a second."""
        if self.cluster is not None:
            self.cluster.tick(now)
            self.cluster.report(self._whole_here(self.cluster.node), now)

    def forget(self, job: int, now: float) -> None:
        """The job has ended here."""
        if self.cluster is not None:
            self.cluster.ended(job, now)
            self.cluster.forget(job)

    def picture(self, host: str, now: float) -> snapshot.Cluster | None:
        """All jobs of the cluster; None without one."""
        if self.cluster is None:
            return None
        return {
            "host": host,
            "time": iso_time(time.time_ns()),
            "exchange": self._settings.kind,
            "name": self._settings.cluster,
            "problem": clean(self.cluster.problem(), 300),
            "jobs": self.cluster.jobs(now),
        }

    def _whole_here(self, node: str) -> list[Summary]:
        """Jobs that no other node has ranks of, in short."""
        from stragd.exchange.summary import Summary, worst_of

        summaries = []
        for job in self._table.jobs.values():
            if not 0 < job.live() >= job.world_size or not job.windows:
                continue
            key = job_key(job.key)
            findings = [one for one in self._store.open() if one["job"]["key"] == key]
            number, worst = worst_of(findings)
            summaries.append(
                Summary(
                    job=job.key,
                    epoch=0,
                    node=node,
                    name=job.name,
                    launcher=job.launcher,
                    world_size=job.world_size,
                    ranks=job.live(),
                    nodes=1,
                    step_ms=job.step_ms,
                    findings=number,
                    worst=worst,
                )
            )
        return summaries

    def complete(self, jobs: list[snapshot.Job], now: float) -> list[snapshot.Job]:
        """Add to each job how its scorer sees it, where it is scored as a whole."""
        for job in jobs if self.cluster is not None else []:
            key = int(job["key"], 16)
            verdict = self.cluster.verdict(key) if self.cluster is not None else None
            if verdict is not None:
                job["whole"] = {
                    "scorer": verdict.node,
                    "window": verdict.window,
                    "ranks": verdict.ranks,
                    "nodes": verdict.nodes,
                    "absent": list(verdict.absent),
                    "counts": self.speaks(key, now),
                }
        return jobs

    def counters(self) -> dict[str, float]:
        """``exchange.<what>``, for the metrics."""
        if self.cluster is None:
            return {}
        return {f"exchange.{name}": float(n) for name, n in self.cluster.counters().items()}

    def limits(self) -> list[str]:
        """Why there are no verdicts of the cluster; nothing while all works."""
        problem = self.cluster.problem() if self.cluster is not None else ""
        return [f"exchange: {clean(problem, 300)}"] if problem else []

    def _apply(self, job: Job, verdict: Verdict) -> list[Transition]:
        own: list[tuple[int, Finding]] = []
        others: list[tuple[int, Finding]] = []
        for number, finding in verdict.findings:
            finding["job"] = job.about()
            rank = finding["subject"].get("rank")
            here = rank is None or rank in job.ranks
            (own if here else others).append((number | OF_CLUSTER, finding))
        self._table.take_abstentions(job, _abstentions(verdict))
        explained = self._causes.explain(job, own)
        return self._store.apply(job.key, [*explained, *others], takeover=True)


def _abstentions(verdict: Verdict) -> list[dict[str, Any]]:
    reasons = [*verdict.abstentions, ("no report of its node in this window", verdict.absent)]
    return [
        {"rank": rank, "window": verdict.window, "reason": reason}
        for reason, ranks in reasons
        for rank in ranks
    ]
