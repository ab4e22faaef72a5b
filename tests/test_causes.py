"""Findings get their cause: at every window, without one, and as long as it is worth knowing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from stragd import causes as module
from stragd.causes import Causes
from stragd.config import Telemetry
from stragd.finding import Finding
from stragd.findings import FindingStore
from stragd.jobs import Job
from stragd.telemetry.collector import Collector, Complete, Member, Part
from stragd.telemetry.sample import RankTelemetry, Sample
from tests.pictures import raw_finding
from tests.test_jobs import filled

RANKS, SICK = 4, 2
S = 1_000_000_000


class HandCollector(Collector):
    """Passes at the hand of a test: run-queue shares by rank."""

    def __init__(self, config: Telemetry, fault: Callable[[str, str], None]) -> None:
        super().__init__(Telemetry(enabled=False), fault)
        self.config = config
        self.parts = {"host": Part("host")}
        self.waits = dict.fromkeys(range(RANKS), 0.01)
        self.passes = self.glances = self.closed = 0
        self.members: tuple[Member, ...] = ()
        self.time_ns = 1_795_946_400 * S - 600 * S  # before the finding of pictures
        self._ready = False

    def begin(self, members: Iterable[Member]) -> Complete | None:
        self.members, self._ready = tuple(members), True
        self.passes += 1
        self.time_ns += 10 * S
        return None

    def complete(self) -> Complete | None:
        if not self._ready:
            return None
        self._ready = False
        made: dict[int, dict[int, RankTelemetry]] = {}
        for m in self.members:
            values = {"run_queue_share": self.waits[m.rank], "stopped_share": 0.0}
            process = Sample("process", str(m.pid), "", 0, 10 * S, values)
            made.setdefault(m.job, {})[m.rank] = RankTelemetry(m.rank, m.host, process)
        return Complete(self.time_ns, made)

    def glance(self) -> None:
        self.glances += 1

    def close(self) -> None:
        self.closed += 1


class Watched:
    """A job of four ranks, its findings and their causes."""

    def __init__(self) -> None:
        self.table = filled(RANKS, lambda number: (1, number))
        self.store = FindingStore()
        self.causes = Causes(Telemetry(seconds=5), "node7", lambda *_: None, HandCollector)
        self.now = 0.0
        self.told: list[Finding] = []

    @property
    def collector(self) -> HandCollector:
        made = self.causes._collector
        assert isinstance(made, HandCollector)
        return made

    @property
    def job(self) -> Job:
        return self.table.jobs[1]

    def window(self, **changes: Any) -> Finding | None:
        """A window with a finding about the sick rank, ten seconds after the last."""
        self.now += 10
        self.causes.window(self.table, self.now)
        scored = []
        if changes:
            raw = raw_finding(job=1, rank=SICK, slowdown=0.3, **changes)
            scored = [(raw["id"], self.table.finding(self.job, raw))]
        self.store.apply(1, self.causes.explain(self.job, scored))
        return (self.store.open() or [None])[0]  # type: ignore[list-item]

    def tick(self, seconds: float = 10) -> Finding | None:
        """Time passes without a window."""
        self.now += seconds
        self.told += self.causes.tick(self.table, self.store, self.now)
        return (self.store.open() or [None])[0]  # type: ignore[list-item]


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    for _ in range(5):
        made.window()
    return made


def name(finding: Finding | None) -> str:
    assert finding is not None
    return finding["cause"]["name"]


def test_every_window_says_the_cause_anew(watched: Watched) -> None:
    assert watched.collector.passes == 5
    assert name(watched.window(state="suspect")) == "unknown"
    watched.collector.waits[SICK] = 0.5
    for state in ("suspect", "confirmed", "confirmed"):
        found = watched.window(state=state)
        assert found is not None
        assert (found["state"], name(found), found["where"]) == (state, "cpu-contention", "machine")
        assert "50 % of the window, peers 1.0 %" in found["cause"]["evidence"][0]


def test_a_finding_is_looked_at_again_without_a_window(watched: Watched) -> None:
    first = watched.window(state="confirmed")
    assert first is not None
    assert name(first) == "unknown"
    watched.collector.waits[SICK] = 0.5
    found = watched.tick()
    assert name(found) == "cpu-contention"
    assert found is not None
    assert found["id"] == first["id"]
    assert name(first) == "unknown", "a picture that was published does not change"
    assert [name(finding) for finding in watched.told] == ["cpu-contention"]
    watched.tick()
    assert len(watched.told) == 1, "the journal hears of it once"
    watched.collector.waits[SICK] = 0.6
    found = watched.tick()
    assert found is not None
    assert "60 %" in found["cause"]["evidence"][0]


def test_the_transition_tells_the_cause_so_it_is_not_told_again(watched: Watched) -> None:
    watched.collector.waits[SICK] = 0.5
    watched.window(state="suspect")
    watched.window(state="confirmed")
    watched.tick()
    assert watched.told == []


def test_without_findings_only_windows_are_followed(watched: Watched) -> None:
    for _ in range(5):
        watched.tick()
    assert watched.collector.passes == 5
    watched.tick(0.1)
    watched.causes.window(watched.table, watched.now)
    watched.causes.window(watched.table, watched.now + 0.1)
    assert watched.collector.passes == 6, "not more often than every five seconds"


def test_new_ranks_are_read_before_their_first_window() -> None:
    watched = Watched()
    watched.tick()
    assert watched.collector.passes == 1
    watched.tick()
    assert watched.collector.passes == 1


def test_who_recovers_keeps_its_cause(watched: Watched) -> None:
    watched.collector.waits[SICK] = 0.5
    watched.window(state="confirmed")
    watched.collector.waits[SICK] = 0.01
    for _ in range(30):
        assert name(watched.window(state="recovering")) == "cpu-contention"
    watched.window(state="cleared")
    (cleared,) = watched.store.cleared()
    assert (name(cleared), cleared["where"]) == ("cpu-contention", "machine")


def test_a_cause_that_is_not_seen_any_more_is_held_for_a_while(watched: Watched) -> None:
    watched.collector.waits[SICK] = 0.5
    watched.window(state="confirmed")
    watched.collector.waits[SICK] = 0.01
    passes = int(module.HOLD_SECONDS / 10)
    for _ in range(passes):
        found = watched.window(state="confirmed")
        assert name(found) == "cpu-contention"
        assert found is not None
        seen = [line for line in found["cause"]["evidence"] if line.startswith("last seen at")]
        assert seen == ["last seen at 2026-11-29T09:51:00Z"]
    assert name(watched.window(state="confirmed")) == "unknown"


def test_ranks_of_another_stage_are_no_peers(watched: Watched) -> None:
    for number in (0, 1):
        status: Any = {**(watched.job.ranks[number].status or {}), "signature": 2}
        watched.job.ranks[number].status = status
        watched.collector.waits[number] = 0.5
    watched.collector.waits[SICK] = 0.5
    watched.window(state="confirmed")  # one peer is not much: it takes a second pass
    assert name(watched.window(state="confirmed")) == "cpu-contention"


def test_slow_ranks_are_no_measure_of_health(watched: Watched) -> None:
    for number in (1, 2, 3):
        watched.collector.waits[number] = 0.5
    watched.window()
    scored = []
    for number in (1, 2, 3):
        raw = raw_finding(job=1, id=number, rank=number, state="confirmed")
        scored.append((number, watched.table.finding(watched.job, raw)))
    watched.causes.explain(watched.job, scored)
    watched.now += 10  # one healthy peer is not much: it takes a second pass
    watched.causes.window(watched.table, watched.now)
    found = watched.causes.explain(watched.job, scored)
    assert [finding["cause"]["name"] for _, finding in found] == ["cpu-contention"] * 3


def test_ranks_of_a_job_with_a_finding_are_looked_at_closer(watched: Watched) -> None:
    assert not any(member.suspect for member in watched.collector.members)
    watched.window(state="suspect")
    watched.window(state="suspect")
    assert all(member.suspect for member in watched.collector.members)
    watched.window()
    watched.window()
    assert not any(member.suspect for member in watched.collector.members)


def test_a_rank_of_another_node_has_no_telemetry_here(watched: Watched) -> None:
    raw = raw_finding(job=1, id=9, rank=77)
    ((_, found),) = watched.causes.explain(
        watched.job, [(9, watched.table.finding(watched.job, raw))]
    )
    assert found["cause"]["evidence"] == ["there is no telemetry of this rank"]


def test_a_job_that_has_ended_is_forgotten(watched: Watched) -> None:
    watched.window(state="confirmed")
    job = watched.table.jobs.pop(1)
    watched.causes.forget(1)
    watched.tick()
    causes = watched.causes
    assert (causes._past, causes._now, causes._held) == ({}, {}, {})
    assert watched.collector.passes == 6, "there is nobody left to read"
    assert job.ranks


def test_a_finding_that_the_scorer_drops_is_forgotten(watched: Watched) -> None:
    watched.window(state="confirmed")
    assert watched.window() is None
    assert watched.causes._held == {}


def test_a_new_configuration_replaces_the_readers(watched: Watched) -> None:
    before = watched.collector
    watched.causes.configure(Telemetry(seconds=50))
    assert watched.collector is before, "how often is no reason to let go of a driver"
    watched.causes.configure(Telemetry(seconds=50, nvidia=False))
    assert before.closed == 1
    assert watched.collector.config.nvidia is False
    watched.tick()
    assert watched.collector.passes == 1


def test_glances_are_not_more_frequent_than_needed(watched: Watched) -> None:
    for step in range(10):
        watched.causes.turn(100 + step * module.GLANCE_SECONDS / 4)
    assert 2 <= watched.collector.glances <= 4


@pytest.mark.parametrize("wait", [0.1, 0.3])
def test_a_cause_that_is_not_sure_waits_for_a_second_pass(watched: Watched, wait: float) -> None:
    watched.collector.waits[SICK] = wait
    first = watched.window(state="confirmed")
    assert first is not None
    assert name(first) == "unknown"
    assert "cpu-contention (" in first["evidence"][-1]
    assert name(watched.tick(0.1)) == "unknown", "the same pass again"
    assert name(watched.window(state="confirmed")) == "cpu-contention"
    assert name(watched.window(state="confirmed")) == "cpu-contention"


@pytest.mark.parametrize("bad", [0.1, 0.3])
def test_one_bad_pass_names_nothing(watched: Watched, bad: float) -> None:
    for wait in (bad, 0.01) * 5:
        watched.collector.waits[SICK] = wait
        assert name(watched.window(state="confirmed")) == "unknown"
