"""A cause for every finding: telemetry of this node's ranks, each held against the others.

The main loop's thread only. A pass follows every window of a job, and while a finding is open its
cause is looked at again without one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from stragd.config import Telemetry
from stragd.diagnosis import Diagnosis, Past, apply, diagnose
from stragd.diagnosis.signals import SURE
from stragd.finding import Finding, iso_time
from stragd.findings import FindingStore
from stragd.jobs import Job, JobTable, clean, kind_of
from stragd.outputs.snapshot import Reader
from stragd.telemetry.collector import Collector, Complete, Member
from stragd.telemetry.sample import RankTelemetry

HOLD_SECONDS = 90.0
"""A cause that is no longer seen stays for so long: three windows of 30 s, until the scorer says
that the rank recovers."""

GLANCE_SECONDS = 0.2
"""Least time between two looks at who is stopped."""

_UNKNOWN = Diagnosis("unknown", 0.0, (), "", "unknown")

FindingKey = tuple[int, int]
"""(job, the scorer's id)"""


@dataclass
class _Held:
    """A finding as the scorer made it, and what is thought of it."""

    finding: Finding
    diagnosis: Diagnosis
    seen_ns: int  # CLOCK_REALTIME at the end of the pass that showed the cause
    told: str = ""  # the cause that the journal has
    guess: tuple[str, int] = ("", 0)  # a cause not yet named, and the end of the first pass with it


class Causes:
    """Owns the readers, every job's past, and the diagnosis of every open finding."""

    def __init__(
        self,
        config: Telemetry,
        host: str,
        fault: Callable[[str, str], None],
        make: Callable[[Telemetry, Callable[[str, str], None]], Collector] = Collector,
    ) -> None:
        self._config, self._host, self._fault, self._make = config, host, fault, make
        self._collector = make(config, fault)
        self._past: dict[int, Past] = {}
        self._now: dict[int, dict[int, RankTelemetry]] = {}
        self._now_ns = 0
        self._fresh = False  # a pass has come since the last look at the findings
        self._members: frozenset[Member] = frozenset()
        self._last = float("-inf")  # monotonic s
        self._glanced = float("-inf")
        self._held: dict[FindingKey, _Held] = {}

    def start(self) -> None:
        """Start the readers that are processes of their own."""
        self._collector.start()

    def close(self) -> None:
        """End them."""
        self._collector.close()

    def configure(self, config: Telemetry) -> None:
        """Apply the [telemetry] section; what is turned off lets go of its driver."""
        same = replace(config, seconds=self._config.seconds) == self._config
        self._config = config
        if same:
            return
        self._collector.close()
        self._collector = self._make(config, self._fault)
        self._collector.start()
        self._now, self._members, self._last = {}, frozenset(), float("-inf")

    def readers(self) -> list[Reader]:
        """How each reader does."""
        return [
            {
                "name": part.name,
                "reason": clean(part.reason, 300),
                "note": part.note,
                "read_s": None if part.seconds is None else round(part.seconds, 6),
            }
            for part in self._collector.parts.values()
        ]

    def latest(self) -> Mapping[int, Mapping[int, RankTelemetry]]:
        """The last complete pass: job -> rank -> telemetry."""
        return self._now

    def turn(self, now: float) -> None:
        """Between passes: whose processes are stopped now."""
        if now - self._glanced >= GLANCE_SECONDS:
            self._glanced = now
            self._collector.glance()

    def window(self, table: JobTable, now: float) -> None:
        """A window of a job has closed: read what belongs to it."""
        if now - self._last >= self._config.seconds:
            self._read(table, now)

    def tick(self, table: JobTable, store: FindingStore, now: float) -> list[Finding]:
        """Once a second; findings whose cause has come to be known, or is another."""
        if not self._collector.parts:
            return []
        due = now - self._last >= self._config.seconds
        if due and (self._held or self._members != frozenset(self._living(table))):
            self._read(table, now)
        self._take(self._collector.complete())
        if not self._fresh:
            return []
        self._fresh = False
        return self._look_again(table, store)

    def forget(self, job: int) -> None:
        """A job has ended."""
        self._past.pop(job, None)
        self._now.pop(job, None)
        for key in [key for key in self._held if key[0] == job]:
            del self._held[key]

    def explain(self, job: Job, scored: Iterable[tuple[int, Finding]]) -> list[tuple[int, Finding]]:
        """All that the scorer says about a job, each with its cause; others are forgotten."""
        scored = list(scored)
        slow = _slow(finding for _, finding in scored)
        for key in [k for k in self._held if k[0] == job.key]:
            if key[1] not in {number for number, _ in scored}:
                del self._held[key]
        explained = []
        for number, finding in scored:
            key = (job.key, number)
            held = self._held.get(key)
            before = held.finding["state"] if held else ""
            if held is None:
                held = self._held[key] = _Held(finding, _UNKNOWN, self._now_ns)
            held.finding = finding
            self._renew(job, held, slow)
            if finding["state"] == "confirmed" != before:
                held.told = held.diagnosis.name  # the journal tells it with the state
            if finding["state"] == "cleared":
                del self._held[key]
            explained.append((number, apply(finding, held.diagnosis)))
        return explained

    def _look_again(self, table: JobTable, store: FindingStore) -> list[Finding]:
        """Diagnose every open finding of the last pass anew."""
        news = []
        for key, held in self._held.items():
            job = table.jobs.get(key[0])
            if job is None:
                continue
            own = (h.finding for (number, _), h in self._held.items() if number == job.key)
            self._renew(job, held, _slow(own))
            finding = store.replace(key, apply(held.finding, held.diagnosis))
            known = held.diagnosis.name not in ("unknown", held.told)
            if finding is not None and finding["state"] == "confirmed" and known:
                held.told = held.diagnosis.name
                news.append(finding)
        return news

    def _renew(self, job: Job, held: _Held, slow: Collection[int]) -> None:
        """The diagnosis by the last pass; who recovers looks healthy, so what was known stays."""
        if held.finding["state"] not in ("suspect", "confirmed"):
            return
        made = self._diagnose(job, held.finding, slow)
        if made.name != held.diagnosis.name and 0.0 < made.confidence < SURE:
            # On a crowded node any one pass shows some rank worse off: wait for a second.
            if held.guess[0] != made.name:
                held.guess = (made.name, self._now_ns)
            if held.guess[1] == self._now_ns:
                others = ((made.name, round(made.confidence, 3)), *made.others)
                made = replace(_UNKNOWN, evidence=made.evidence, others=others)
        else:
            held.guess = ("", 0)
        age = (self._now_ns - held.seen_ns) / 1e9
        if made.name != "unknown" or held.diagnosis.name == "unknown" or age > HOLD_SECONDS:
            held.diagnosis, held.seen_ns = made, self._now_ns
            return
        seen = f"last seen at {iso_time(held.seen_ns)}"
        evidence = [line for line in held.diagnosis.evidence if not line.startswith("last seen at")]
        held.diagnosis = replace(held.diagnosis, evidence=(*evidence, seen))

    def _diagnose(self, job: Job, finding: Finding, slow: Collection[int]) -> Diagnosis:
        ranks = self._now.get(job.key, {})
        number = finding["subject"].get("rank", -1)
        subject = job.ranks.get(number)
        kind = kind_of(subject) if subject is not None else None
        others = [telemetry for rank, telemetry in ranks.items() if rank != number]
        # Ranks of another stage do other work: they are asked where there are no others.
        alike = [
            telemetry
            for telemetry in others
            if kind and telemetry.rank in job.ranks and kind_of(job.ranks[telemetry.rank]) == kind
        ]
        past = self._past.get(job.key) or Past()
        return diagnose(finding, ranks.get(number), alike or others, past, slow)

    def _living(self, table: JobTable) -> list[Member]:
        suspects = {job for job, _ in self._held}
        return [
            Member(
                job.key,
                number,
                clean(rank.identity.host) or self._host,
                *rank.process,
                suspect=job.key in suspects,
            )
            for job in table.jobs.values()
            for number, rank in job.ranks.items()
            if rank.gone_since is None
        ]

    def _read(self, table: JobTable, now: float) -> None:
        members = self._living(table)
        if not members or not self._collector.parts:
            return
        self._last, self._members = now, frozenset(members)
        self._past = {job: past for job, past in self._past.items() if job in table.jobs}
        self._take(self._collector.begin(members))
        self._take(self._collector.complete())

    def _take(self, complete: Complete | None) -> None:
        if complete is None:
            return
        self._fresh = True
        self._now_ns = complete.time_ns
        self._now = {job: dict(ranks) for job, ranks in complete.ranks.items()}
        for job, ranks in complete.ranks.items():
            past = self._past.setdefault(job, Past())
            for telemetry in ranks.values():
                past.add(telemetry, complete.time_ns)


def _slow(findings: Iterable[Finding]) -> frozenset[int]:
    """Ranks that a finding of their own says are slow now: no measure of health."""
    return frozenset(
        f["subject"]["rank"]
        for f in findings
        if "rank" in f["subject"] and f["state"] in ("suspect", "confirmed")
    )
