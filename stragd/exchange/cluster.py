"""This node's part in the jobs that span nodes: its windows out, verdicts in, the scorer role.

The main loop's thread only. While verdicts about a job come, they are the node's findings of it;
when they stop, the node's own scorer speaks again.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from stragd.exchange.board import Board
from stragd.exchange.interface import Event, Exchange
from stragd.exchange.jobscore import JobScore
from stragd.exchange.message import MessageError, Sender, decode_all, encode_windows
from stragd.exchange.summary import Summary, of_verdict
from stragd.exchange.summary import decode as decode_summary
from stragd.exchange.summary import encode as encode_summary
from stragd.exchange.verdict import Verdict, decode, encode
from stragd.lineage import Before

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stragd.outputs import snapshot

Said = TypeVar("Said", Verdict, Summary)

KEPT_WINDOWS = 5
"""Last windows of a job that are sent again to a new scorer, or when the server is back."""
KEEP_WINDOWS = 2
"""After so many windows without news a job's state is kept: the others are sent again, with those
of a failover."""
STATE_BYTES_PER_SECOND = 2 << 20
"""The state of a large job is kept less often."""
LONGEST_WAIT_SECONDS = 1.0
"""Between two of its states, beyond which a job's verdicts do not wait until one is kept."""
IDLE_SECONDS = 1.0
"""After a verdict, until the state of a large job is kept."""
WAIT_LEASES = 4
"""The longest that a verdict waits for it."""
WARNING_SECONDS = 60.0
PROBLEM_SECONDS = 5.0
LEAST_REPORT_SECONDS = 2.0
"""Between two summaries of one job, whatever happens to it."""


@dataclass
class _Sent:
    rows: NDArray[np.void]
    ended: float  # monotonic s


@dataclass
class _Followed:
    """A job with ranks here and elsewhere."""

    lowest: int  # rank on this node
    contend_at: float
    name: str = ""
    launcher: str = ""
    classes: Mapping[int, str] = field(default_factory=dict)
    causes: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    before: Before = field(default_factory=Before)
    sent: deque[_Sent] = field(default_factory=lambda: deque(maxlen=KEPT_WINDOWS))
    heard: float = float("-inf")  # of its scorer
    scorer: tuple[str, int] = ("", 0)  # node, epoch
    verdict: Verdict | None = None


@dataclass
class _Waiting:
    verdict: Verdict
    number: int  # of the state that must be kept first
    until: float


@dataclass
class _Held:
    score: JobScore
    last: Verdict | None = None  # that was told
    told: float = float("-inf")
    kept: float = float("-inf")
    keep_every: float = 0.0
    too_large: bool = False
    number: int = 0  # of the last state
    acknowledged: int = 0  # the last one that is kept
    unkept: int = 0  # windows that were scored since
    waiting: deque[_Waiting] = field(default_factory=deque)

    def waits(self) -> bool:
        """Whether its verdicts wait until a state is kept: not where that is large."""
        return self.keep_every < LONGEST_WAIT_SECONDS

    def states(self) -> frozenset[tuple[int, str]]:
        """The findings that were told."""
        return self.last.states() if self.last is not None else frozenset()


class Cluster:
    """Every job of this node that other nodes take part in."""

    def __init__(
        self,
        exchange: Exchange,
        sender: Sender,
        scorer: Mapping[str, Any],
        deadline_seconds: float,
        lease_seconds: float,
        complain: Callable[[str], None],
        seed: int | None = None,
    ) -> None:
        self._exchange, self._sender, self._scorer = exchange, sender, scorer
        self._deadline, self._lease = deadline_seconds, lease_seconds
        self._complain = complain
        self._random = random.Random(seed)
        self._followed: dict[int, _Followed] = {}
        self._held: dict[int, _Held] = {}
        self._counters: Counter[str] = Counter()
        self._warned: dict[str, float] = {}
        self._worked: float | None = None  # when there was no problem, or at the start
        self._said = ""
        self._board = Board()
        self._reported: dict[int, tuple[tuple[object, ...], float]] = {}  # state, when

    @property
    def node(self) -> str:
        """This node, as its messages say."""
        return self._sender.node

    def start(self) -> None:
        """Begin to connect."""
        self._exchange.start()

    def close(self) -> None:
        """Hand every role over and end."""
        for job, held in self._held.items():
            self._keep(job, held, held.kept)
        self._exchange.close()

    def offer(
        self,
        rows: NDArray[np.void],
        name: str,
        launcher: str,
        classes: Mapping[int, str],
        causes: Mapping[int, Mapping[str, Any]],
        now: float,
        now_ns: int,
        before: Before | None = None,
    ) -> None:
        """A window of this node's ranks of one job; ``now_ns`` is CLOCK_MONOTONIC like its end."""
        job, lowest = int(rows["job"][0]), int(rows["rank"].min())
        followed = self._followed.get(job)
        if followed is None:
            wait = 0.0 if lowest == 0 else self._patience() + self._jitter()
            followed = self._followed[job] = _Followed(lowest, now + wait)
            self._exchange.join(job)
        followed.lowest, followed.name, followed.launcher = lowest, name, launcher
        followed.classes, followed.causes = dict(classes), dict(causes)
        followed.before = before or Before()
        age = max(now_ns - int(rows["end_ns"].max()), 0) / 1e9
        followed.sent.append(_Sent(rows.copy(), now - age))
        self._publish(job, followed, followed.sent[-1], now)

    def forget(self, job: int) -> None:
        """The job has no rank here any more."""
        if self._followed.pop(job, None) is None:
            return
        held = self._held.pop(job, None)
        if held is not None:
            self._keep(job, held, held.kept)
        self._exchange.leave(job)

    def turn(self, now: float) -> list[Verdict]:
        """Take what came, score what is due; new verdicts about this node's jobs."""
        news: list[Verdict] = []
        windows: list[Event] = []
        for event in self._exchange.receive():
            if event.kind == "windows":
                windows.append(event)
            elif event.kind == "verdict":
                self._verdict(event, now, news)
            elif event.kind == "summary":
                self._summary(event, now)
            else:
                self._role(event, now)
        self._windows([event for event in windows if event.job in self._held])
        for job, held in self._held.items():
            verdicts = held.score.due(now)
            if verdicts:
                self._decide(job, held, verdicts, now)
            while held.waiting and self._may_tell(held, held.waiting[0], now):
                held.last, held.told = held.waiting.popleft().verdict, now
                self._tell(job, held.last)
            if held.waits() and held.unkept >= KEEP_WINDOWS:
                self._keep(job, held, now)
        return news

    def _decide(self, job: int, held: _Held, verdicts: list[Verdict], now: float) -> None:
        """Who scores next must know every finding that a node is told of: that is kept first."""
        held.unkept += len(verdicts)
        known = held.waiting[-1].verdict.states() if held.waiting else held.states()
        waits = held.waits()
        if waits and any(verdict.states() != known for verdict in verdicts):
            self._keep(job, held, now)
        until = now + WAIT_LEASES * self._lease if waits else now
        held.waiting.extend(_Waiting(verdict, held.number, until) for verdict in verdicts)

    @staticmethod
    def _may_tell(held: _Held, waiting: _Waiting, now: float) -> bool:
        known = held.acknowledged >= waiting.number or waiting.verdict.states() == held.states()
        return known or now >= waiting.until

    def tick(self, now: float) -> None:
        """Once a second: be heard where this node holds the role, ask for it where nobody does."""
        self._watch_problem(now)
        for job, held in self._held.items():
            # What takes long is kept when nobody waits for a verdict.
            due = held.unkept >= KEEP_WINDOWS and now - held.kept >= held.keep_every
            if due and not held.waits() and now - held.told >= IDLE_SECONDS:
                self._keep(job, held, now)
            if now - held.told >= self._lease / 3:
                held.told = now
                self._tell(job, held.last or _nothing_yet(job, self._sender.node, held.score))
        for job, followed in self._followed.items():
            silent = now - followed.heard > self._patience()
            if job in self._held or not silent or now < followed.contend_at:
                continue
            self._exchange.contend(job, followed.before.job)
            first = followed.lowest == 0
            followed.contend_at = now + self._lease / 2 + (0.0 if first else self._jitter())

    def report(self, here: list[Summary], now: float) -> None:
        """Once a second: tell the cluster of the jobs that are scored here.

        ``here`` are those whose ranks are all on this node.
        """
        held = [one.last for one in self._held.values() if one.last is not None]
        summaries = [*map(of_verdict, held), *here]
        for summary in summaries:
            state, at = self._reported.get(summary.job, ((), float("-inf")))
            changed = summary.state() != state and now - at >= LEAST_REPORT_SECONDS
            if changed or now - at >= self._board.every():
                self._report(summary, now)
        for job in self._reported.keys() - {summary.job for summary in summaries}:
            del self._reported[job]
        self._board.expire(now)

    def ended(self, job: int, now: float) -> None:
        """A job has ended that this node told the cluster of."""
        if self._reported.pop(job, None) is not None:
            node = self._sender.node
            held = self._held.get(job)
            epoch = held.score.epoch if held is not None else 0
            self._report(Summary(job, epoch, node, "", "", 0, 0, 0, None, 0, None, True), now)
            del self._reported[job]

    def jobs(self, now: float) -> list[snapshot.ClusterJob]:
        """All jobs of the cluster that this node has heard of."""
        return self._board.rows(now)

    def speaks(self, job: int, now: float) -> bool:
        """Whether verdicts about a job come: then they count, not this node's own."""
        followed = self._followed.get(job)
        if followed is None or followed.verdict is None:
            return False
        return now - followed.heard <= 3 * self._patience()

    def verdict(self, job: int) -> Verdict | None:
        """The last verdict about a job."""
        followed = self._followed.get(job)
        return followed.verdict if followed is not None else None

    def problem(self) -> str:
        """Why there are no verdicts of the cluster, "" while all works."""
        return self._exchange.problem()

    def counters(self) -> dict[str, int]:
        """What went through and what did not, by cause, since the start."""
        total = Counter(self._exchange.counters()) + self._counters
        total.update(self._board.counters)
        for held in self._held.values():
            total.update(_refusals(held.score))
        return dict(total)

    def held(self) -> list[int]:
        """Jobs that are scored here."""
        return list(self._held)

    def _patience(self) -> float:
        return 1.5 * self._lease

    def _jitter(self) -> float:
        return self._random.uniform(0.1, 0.6) * self._lease

    def _publish(self, job: int, followed: _Followed, sent: _Sent, now: float) -> None:
        try:
            data = encode_windows(
                self._sender,
                sent.rows,
                followed.name,
                followed.launcher,
                followed.classes,
                followed.causes,
                now - sent.ended,
                followed.before,
            )
        except MessageError as error:
            self._refuse("sent", error.cause, str(error), now)
            return
        self._exchange.publish(job, data)

    def _resend(self, job: int, followed: _Followed, now: float) -> None:
        for sent in followed.sent:
            self._publish(job, followed, sent, now)

    def _windows(self, events: list[Event]) -> None:
        """Windows of jobs that are scored here."""
        for event, message in zip(events, decode_all([e.data for e in events]), strict=True):
            if isinstance(message, MessageError):
                self._refuse(f"from {event.node}", message.cause, str(message), event.at)
                continue
            if message.sender.node != event.node or message.job != event.job:
                text = f"node {event.node} sends as somebody else"
                self._refuse(f"from {event.node}", "foreign", text, event.at)
                continue
            score = self._held[event.job].score
            before = score.counters["foreign_ranks"]
            score.take(message, event.at)
            if score.counters["foreign_ranks"] > before:
                text = f"it claims ranks of job {event.job:016x} that another node hosts"
                self._warn("foreign_ranks", f"from {event.node}", text, event.at)

    def _verdict(self, event: Event, now: float, news: list[Verdict]) -> None:
        followed = self._followed.get(event.job)
        if followed is None:
            return
        verdict = self._opened(event, decode, now)
        if verdict is None:
            return
        followed.heard = now
        scorer = (verdict.node, verdict.epoch)
        if scorer != followed.scorer:
            followed.scorer = scorer
            self._resend(event.job, followed, now)
        last = followed.verdict
        if verdict.window < 0:
            return  # a scorer that only says that it is there
        if last is None or verdict.window > last.window or verdict.epoch != last.epoch:
            followed.verdict = verdict
            self._board.take(of_verdict(verdict), now)
            news.append(verdict)

    def _summary(self, event: Event, now: float) -> None:
        summary = self._opened(event, decode_summary, now)
        if summary is not None:
            self._board.take(summary, now)

    def _opened(self, event: Event, take: Callable[[bytes], Said], now: float) -> Said | None:
        """A message of the node that it says it is of, about the job that it came for."""
        try:
            said = take(event.data)
            if said.node != event.node or said.job != event.job:
                raise MessageError("foreign", f"node {event.node} speaks as somebody else")
        except MessageError as error:
            self._refuse(f"from {event.node[:64]}", error.cause, str(error), now)
            return None
        return said

    def _report(self, summary: Summary, now: float) -> None:
        self._reported[summary.job] = (summary.state(), now)
        self._board.take(summary, now)
        try:
            self._exchange.report(summary.job, encode_summary(summary))
        except MessageError as error:
            self._counters[f"refused.{error.cause}"] += 1

    def _role(self, event: Event, now: float) -> None:
        if event.kind == "held" and event.job in self._followed:
            score = JobScore(
                event.job, self._sender.node, event.epoch, self._scorer, self._deadline
            )
            if event.data:
                try:
                    score.restore(event.data)
                except ValueError as error:
                    text = f"the scores that were handed over: {error}; they are learnt anew"
                    self._refuse(f"job {event.job:016x}", "state", text, now)
            self._held[event.job] = _Held(score)
            self._tell(event.job, _nothing_yet(event.job, self._sender.node, score))
        elif event.kind == "held":
            self._exchange.resign(event.job)
        elif event.kind == "kept":
            held = self._held.get(event.job)
            if held is not None and held.score.epoch == event.epoch:
                held.acknowledged = max(held.acknowledged, event.number)
        elif event.kind == "lost":
            self._drop(event.job)
        elif event.kind == "back":
            for job, followed in self._followed.items():
                if event.job in (0, job):
                    self._resend(job, followed, now)

    def _drop(self, job: int) -> None:
        held = self._held.pop(job, None)
        if held is not None:
            self._counters.update(_refusals(held.score))
            self._counters["roles_lost"] += 1

    def _tell(self, job: int, verdict: Verdict) -> None:
        try:
            self._exchange.announce(job, verdict.epoch, encode(verdict))
        except MessageError as error:
            self._counters[f"refused.{error.cause}"] += 1

    def _keep(self, job: int, held: _Held, now: float) -> None:
        held.kept, held.unkept = now, 0
        if held.too_large:
            return
        state = held.score.save()
        held.keep_every = len(state) / STATE_BYTES_PER_SECOND
        if len(state) <= self._exchange.max_state:
            held.number += 1
            self._exchange.keep(job, state, held.number)
        else:
            held.too_large = True
            self._complain(
                f"exchange: the scores of job {job:016x} are {len(state) >> 20} MiB, too many to "
                "hand over: the next scorer learns them anew"
            )

    def _watch_problem(self, now: float) -> None:
        """A line about an exchange that does not work, once it has not for some time."""
        problem = self._exchange.problem()
        if not problem or self._worked is None:
            self._worked, self._said = now, ""
        elif now - self._worked >= PROBLEM_SECONDS and problem != self._said:
            last = self._warned.get("problem", float("-inf"))
            if now - last >= WARNING_SECONDS:
                self._warned["problem"], self._said = now, problem
                self._complain(f"exchange: {problem}")

    def _refuse(self, what: str, cause: str, text: str, now: float) -> None:
        self._counters[f"refused.{cause}"] += 1
        self._warn(cause, what, text, now)

    def _warn(self, cause: str, what: str, text: str, now: float) -> None:
        """One line a minute for each cause."""
        if now - self._warned.get(cause, float("-inf")) >= WARNING_SECONDS:
            self._warned[cause] = now
            self._complain(f"exchange: a message {what} is refused: {text}")


def _refusals(score: JobScore) -> Counter[str]:
    """Rows that were not scored, by cause."""
    causes = ("refused_rows", "foreign_ranks", "late_rows", "duplicate_rows", "too_many_nodes")
    counts = Counter({f"refused.{cause}": score.counters[cause] for cause in causes})
    counts["scored"] = score.counters["windows"]
    return counts


def _nothing_yet(job: int, node: str, score: JobScore) -> Verdict:
    """A scorer that has scored nothing yet says that it is there."""
    return Verdict(job, score.epoch, node, -1, "", "", 0, 0, 0, (), None, (), ())
