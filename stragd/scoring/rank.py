"""Scores of one rank: against its past, against its peers, now and then."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass, field

from stragd.scoring.case import CHANGE, FAST, LEVEL, MEMORY, Case, suspect
from stragd.scoring.estimate import LEVEL_SIGMAS, RUN, confidence, level_limit
from stragd.scoring.groups import MIN_PEERS, Group, GroupKey, Member
from stragd.scoring.model import (
    ALONE,
    CLEARED,
    CONFIRMED,
    GLOO,
    HISTORY,
    INTERMITTENT,
    LEARNING,
    OPEN,
    PEERS,
    STEPS_NOT_INFERRED,
    STRAGGLER,
    STRONG,
    WEAK,
    Config,
    Finding,
    Row,
    start_time_ns,
)
from stragd.scoring.series import LEAST_PAST, Change, Noise, Series, scan

HOST_LEAST = 0.029558802241544403
"""ln 1.03: ranks that share CPUs with others differ by less without any fault."""
HOST_LEVEL = 0.13976194237515863
"""ln 1.15: the same, from the first step on."""
GROSS_ENDS, GROSS_MOST = 0.6, 1.25
"""Shares of the unnatural level: below the one a rank is natural again, the other is what a window
counts at most."""
SHORTEST = 2
"""Least run that proves a slow rank."""
OFTEN, OFTEN_RUN = 3, 4
"""After so many slow windows of the last 32, a lasting run has to be so long."""
LEVEL_SHARE, LEVEL_ODDS = 0.7, 1000.0
"""A share of the unnatural level, and how much rarer than that a natural one is: while the past is
short, a rank so far above its peers has the limit of a rate so much higher."""
MOST = 0.51
"""Share of a slow rank's run that is slow."""
FASTER = 3.0
"""Deviations below the usual that a window counts at most: when others slow down together, a
healthy rank looks faster for a while, and must not look slow afterwards."""
TRUSTED = 1.25
"""Deviations up to which the standard error that a window states of itself is not looked at."""
HIGH_SIGMAS, HIGH_LEAST, HIGH_PAST = 5.0, 0.03, 8
SOMETIMES, ALWAYS, QUIET = 4, 16, 0xFFFF
"""Slow windows of the last 32 that make a rank intermittent, or more than that; and the newest
16 of them, which are all usual when it is over."""


@dataclass
class RankScore:
    """Everything that is kept of one rank."""

    key: GroupKey = (0, 0, 0)
    world_size: int = 0
    last_step: int = 0
    missing: int = 0
    present: int = 0
    """Which of the job's last 64 windows are in the series; bit 0 is the newest."""
    high: int = 0
    """Which of the rank's last 32 windows were slow; bit 0 is the newest."""
    fast: float = 0.0
    """Excursion of the last tenth of a window (ln), 0 when there was none."""
    fast_since: tuple[int, int] = (0, 0)
    gross: int = 0
    gross_since: tuple[int, int] = (0, 0)
    balance: float = 0.0
    """Of the windows since then: sum of their levels' shares of the limit, less one each."""
    named: int = 0
    """Window after the one in which it was confirmed to be slow the last time; 0: never."""
    past: float = 0.0
    """Mean of the values themselves, not compared with anybody."""
    past_count: int = 0
    series: Series = field(default_factory=Series)
    case: Case | None = None
    sometimes: Case | None = None

    def excess(self, value: float) -> float:
        """Value over the rank's own past."""
        proven = self.case is not None and self.case.proven()
        usual = self.case.base if self.case is not None and proven else self.series.center()
        return value - (self.series.anchor + usual)

    def since(self, windows: int, recent: list[tuple[int, int]]) -> tuple[int, int]:
        """(number, begin) of the window with which the newest ``windows`` ones began."""
        found, seen = recent[0], 0
        for place, window in enumerate(recent):
            if self.present >> place & 1:
                found = window
                seen += 1
                if seen == windows:
                    break
        return found

    def learn_past(self, value: float, history: int) -> None:
        """Mean of the values of the rank itself."""
        rate = max(1.0 / float(self.past_count + 1), 1.0 / float(history))
        self.past += rate * (value - self.past)
        self.past_count = min(self.past_count + 1, history)

    def without_windows(self) -> RankScore:
        """What is known of the rank, and nothing of the windows that it was learnt in."""
        return RankScore(
            key=self.key,
            world_size=self.world_size,
            past=self.past,
            past_count=self.past_count,
            series=deepcopy(self.series),
        )

    def has_moved(self, window: int, recent: int) -> bool:
        """Whether it was slow within the ``recent`` windows before ``window``, and is not now."""
        lately = self.named > 0 and window - (self.named - 1) < recent
        slow = self.sometimes is not None or (self.case is not None and self.case.proven())
        return lately and not slow


@dataclass
class Context:
    """What judging a rank needs of its job, window and group."""

    config: Config
    recent: list[tuple[int, int]]
    next_id: list[int]
    least: float
    limit: float
    limit_with_level: float
    alone: bool
    group: Group
    slowest: tuple[float, float]


def judge(rank: RankScore, member: Member, noise: Noise, context: Context) -> str | None:
    """One window of one rank; the reason when nothing can be said."""
    row, series, config = member.row, rank.series, context.config
    stated = 0.0 if math.isnan(row.own_se) else row.own_se / row.own
    deviation, degrees = series.spread.deviation(noise)
    # A window that states a larger error than the noise (outlier steps, few steps) counts less.
    trust = min(1.0, TRUSTED * deviation / stated) if stated > 0.0 else 1.0
    error = max(deviation, stated)
    correlation = noise.correlation
    least = max(context.least, HOST_LEAST) if row.source == GLOO else context.least
    if not member.known:
        series.anchor = member.value - member.reference
    value = shown = member.value - member.reference - series.anchor
    others, level, limit = math.nan, 0.0, 0.0
    peers = len(context.group.members) - 1
    if peers >= MIN_PEERS:
        others, spread = context.group.level(member)
        level, limit = member.value - others, level_limit(spread, peers)
        if row.source == GLOO:
            limit = max(limit, HOST_LEVEL)
        _count_gross(rank, level, limit, row)
    if rank.case is not None and rank.case.proven():
        difference = value - rank.case.base
        rank.case.follow(difference * trust, deviation, limit, config)
        show(rank.case, member, context, others, level, difference, error)
        if rank.case.how == FAST:
            _count_high(rank, difference >= rank.case.shift / 2.0)
        if rank.case.state == CLEARED and rank.case.how == LEVEL:
            rank.series, rank.present = Series(), 0
        return None
    excess = (member.excess - member.reference) * trust
    if member.known:
        value = series.center() + max(excess, -FASTER * deviation)
    high = member.known and _is_high(series, excess, deviation, least)
    _count_high(rank, high)
    series.push(value, deviation, noise, config.history_windows)
    rank.present |= 1
    change = Change(OPEN)
    if member.others > 0:
        unnatural = limit > 0.0 and level >= LEVEL_SHARE * limit and series.count() <= RUN
        held = context.limit_with_level if unnatural else context.limit
        change = scan(series, deviation, degrees, correlation, held, least, SHORTEST, MOST)
    evidence = change.evidence
    # Slower than before and no slower than the peers: nobody waits for it.
    harmless = peers >= MIN_PEERS and level < least / 2.0
    # Two cannot outvote each other: the one that differs from its own past has moved.
    unmoved = member.others < MIN_PEERS and member.value - rank.past < change.shift / 2.0
    if evidence >= WEAK and (harmless or unmoved):
        evidence = OPEN
    if evidence == STRONG and bin(rank.high).count("1") >= OFTEN and change.windows < OFTEN_RUN:
        evidence = WEAK
    since = rank.since(change.windows, context.recent)
    by_level = False
    if rank.gross > 0 and limit > 0.0:
        lasting = STRONG if rank.gross > config.confirm_windows and rank.balance >= 0.0 else WEAK
        if evidence < lasting:
            evidence, since, by_level = lasting, rank.gross_since, True
    rank.learn_past(member.value, config.history_windows)
    rank.case = suspect(rank.case, evidence, row.window, since, config, context.next_id)
    if rank.case is not None and rank.case.proven():
        _prove(rank, rank.case, change, by_level, shown, level, context)
    if rank.case is not None:
        if by_level:
            change = Change(evidence, shift=level, deviate=LEVEL_SIGMAS * (level / limit))
        rank.case.deviate = max(rank.case.deviate, change.deviate)
        show(rank.case, member, context, others, level, change.shift, error)
    _judge_sometimes(rank, high, excess, member, context, error)
    if context.alone:
        return ALONE
    return LEARNING if series.count() <= LEAST_PAST and evidence < WEAK else None


def _count_gross(rank: RankScore, level: float, limit: float, row: Row) -> None:
    """Windows above what is natural, and by how much the mean of all since the first is: noise
    carries a natural rank above it now and then, but not the mean."""
    share = level / limit
    if share >= 1.0:
        if rank.gross == 0:
            rank.gross_since, rank.balance = (row.window, start_time_ns(row)), 0.0
        rank.gross += 1
    elif share < GROSS_ENDS:
        rank.gross = 0
    if rank.gross > 0:
        rank.balance += min(share, GROSS_MOST) - 1.0


def _count_high(rank: RankScore, high: bool) -> None:
    rank.high = (rank.high << 1 | high) & (1 << RUN) - 1


def _is_high(series: Series, excess: float, deviation: float, least: float) -> bool:
    """Whether a window is far above the usual ones."""
    return (
        series.count() >= HIGH_PAST
        and excess >= max(least, HIGH_LEAST)
        and excess >= HIGH_SIGMAS * deviation
    )


def _judge_sometimes(
    rank: RankScore,
    high: bool,
    excess: float,
    member: Member,
    context: Context,
    deviation: float,
) -> None:
    """Slow in some windows and as usual in the others."""
    slow, case = bin(rank.high).count("1"), rank.sometimes
    lasting = rank.case is not None and rank.case.proven()
    if case is None and high and not lasting and SOMETIMES <= slow <= ALWAYS:
        first = rank.high.bit_length()
        since = rank.since(first, context.recent)
        rank.named = context.recent[0][0] + 1
        case = Case(context.next_id[0], CONFIRMED, since[0], since[1])
        context.next_id[0] += 1
        case.deviate = excess / deviation
        rank.sometimes = case
    if case is None:
        return
    if high:
        case.windows = min(case.windows + 1, MEMORY)
        case.shift += (excess - case.shift) / float(case.windows)
    if lasting or rank.high & QUIET == 0:
        case.state = CLEARED
    row, share = member.row, float(slow) / float(RUN)
    usual = row.own * math.exp(-case.shift) if high else row.own
    slow_own = usual * math.exp(case.shift)
    one = build(case, INTERMITTENT, row, case.shift, slow_own, usual, deviation, share)
    one.rank, one.class_id, one.signature = row.rank, row.class_id, row.signature
    one.basis, one.peers = HISTORY, len(context.group.members) - 1
    one.peers_own_ns = math.nan
    _tell_work(one, member, context)
    case.finding = one


def _prove(
    rank: RankScore,
    case: Case,
    change: Change,
    by_level: bool,
    value: float,
    level: float,
    context: Context,
) -> None:
    """The case is confirmed: what is usual is what was before it, or what the peers show."""
    rank.high = 0
    rank.named = context.recent[0][0] + 1
    case.how, case.recovery, case.quiet = LEVEL if by_level else CHANGE, 0.0, 0
    if by_level:
        case.base, case.shift, case.windows = value - level, level, 1
        return
    rank.series.forget_run(change.before, change.windows, context.config.history_windows)
    case.base, case.shift, case.windows = change.before, change.shift, change.windows


def show(
    case: Case,
    member: Member,
    context: Context,
    others: float,
    level: float,
    difference: float,
    deviation: float,
) -> None:
    """The finding of a straggler. A synchronous job gains no more than the next slowest rank
    allows, which bounds the cost."""
    row, peers = member.row, len(context.group.members) - 1
    unit = row.wall if row.flags & STEPS_NOT_INFERRED else 1.0
    against_peers = peers >= MIN_PEERS
    reference = math.exp(others if against_peers else member.value - difference) * unit
    first, second = context.slowest
    next_slowest = second if row.own >= first else first
    bound = max(reference, min(next_slowest, row.own) if member.others > 0 else 0.0)
    slower = level if against_peers else difference
    one = build(case, STRAGGLER, row, slower, row.own, bound, deviation, 1.0)
    one.rank, one.class_id, one.signature = row.rank, row.class_id, row.signature
    one.basis, one.peers = PEERS if against_peers else HISTORY, peers
    one.peers_own_ns = reference if against_peers else math.nan
    _tell_work(one, member, context)
    case.finding = one


def _tell_work(one: Finding, member: Member, context: Context) -> None:
    """What tells slow work from a slow machine."""
    usual = context.group.usual_bytes()
    if len(context.group.members) > MIN_PEERS and usual > 0.0:
        one.work = member.row.bytes / usual - 1.0
    one.moved = context.group.moved


def build(
    case: Case,
    kind: int,
    row: Row,
    difference: float,
    own: float,
    bound: float,
    deviation: float,
    share: float,
) -> Finding:
    """A finding whose cost is ``own - bound`` ns in ``share`` of the steps. The interval is 95 %
    of one window's noise."""
    cost = max(own - bound, 0.0) * share
    error = 1.96 * own * deviation * share
    inferred = not row.flags & STEPS_NOT_INFERRED
    return Finding(
        id=case.id,
        job=row.job,
        kind=kind,
        state=case.state,
        rank=None,
        class_id=None,
        signature=None,
        since_window=case.since_window,
        since_time_ns=case.since_time_ns,
        window=row.window,
        slowdown=math.exp(difference) - 1.0,
        cost_ns=cost if inferred else None,
        cost_low_ns=max(cost - error, 0.0) if inferred else None,
        cost_high_ns=cost + error if inferred else None,
        cost_fraction=min(max(cost / row.wall, 0.0), 1.0),
        confidence=confidence(case.deviate),
        basis=PEERS,
        own_ns=own,
        peers_own_ns=bound,
        peers=0,
    )
