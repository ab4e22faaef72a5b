"""The fast lane: tenths of windows, for a slowdown too gross to wait for whole ones.

A tenth compares with what whole windows taught; it teaches them nothing. docs/scoring.md, § 5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from stragd.scoring.case import FAST, Case
from stragd.scoring.groups import MIN_PEERS, Member, group, judgeable, set_references, slowest_two
from stragd.scoring.model import CONFIRMED, STEPS_NOT_INFERRED, Config, Row, start_time_ns
from stragd.scoring.rank import OFTEN, Context, RankScore, show
from stragd.scoring.series import LEAST_PAST

TENTHS = 10.0
"""Tenths of a window; of independent steps, one has so many times its variance."""
LEAST, TWICE, ONCE = 0.11332868530700317, 0.13976194237515863, 0.4054651081081644
"""ln 1.12, ln 1.15 and ln 1.5: an excursion, the mean of two in a row that proves, one alone."""
TWICE_TAIL, ONCE_TAIL = 1.25, 2.0
"""Times the largest excursion that came to nothing, for the same."""
TRUSTED = 2.0
"""A tenth's standard error, of so few steps, may be off by this factor."""
KEEP, TAIL_KEEP = 0.99, 0.999
MOST = 9.0
"""A squared deviate counts so many variances at most."""


@dataclass
class FastScore:
    """What a job's tenths say about noise (ln)."""

    last: int | None = None
    """Number of the last tenth."""
    squares: float = 0.0
    weight: float = 0.0
    tail: float = 0.0
    """Largest excursion of one tenth that came to nothing; it fades."""
    window_variance: float = 0.0
    """Of whole windows, of the noisiest group."""

    def deviation(self) -> float:
        """Standard deviation of one tenth: what was seen, or that of independent steps."""
        seen = self.squares / self.weight if self.weight > 0.0 else 0.0
        return math.sqrt(max(seen, TENTHS * self.window_variance))

    def learn(self, squares: float, count: float) -> None:
        """The mean square of one tenth over the ranks."""
        self.squares = self.squares * KEEP + squares / count
        self.weight = self.weight * KEEP + 1.0


def known_members(rows: list[Row], ranks: dict[int, RankScore]) -> list[Member]:
    """The rows that can be compared with their ranks' own past."""
    members = []
    for member in judgeable(rows, []):
        row, rank = member.row, ranks.get(member.row.rank)
        if rank is None or row.flags & STEPS_NOT_INFERRED:
            continue
        same = rank.key == (row.signature, 0, row.class_id) and rank.world_size == row.world_size
        if not same or row.first_step < rank.last_step or rank.series.count() <= LEAST_PAST:
            continue
        member.known = True
        member.proven = rank.case is not None and rank.case.proven()
        member.excess = rank.excess(member.value)
        members.append(member)
    return members


def judge_tenth(
    fast: FastScore,
    ranks: dict[int, RankScore],
    members: list[Member],
    config: Config,
    limit: float,
    recent: list[tuple[int, int]],
    next_id: list[int],
) -> None:
    """One tenth of a window of a job."""
    groups = group(members)
    set_references(groups)
    slowest = slowest_two(groups)
    deviation, squares, count = fast.deviation(), 0.0, 0.0
    fast.tail *= TAIL_KEEP
    for one in groups:
        context = Context(
            config, recent, next_id, LEAST, limit, limit, False, one, slowest[one.key[0]]
        )
        for member in one.members:
            rank = ranks[member.row.rank]
            if member.proven or member.others < MIN_PEERS:
                continue
            value = member.excess - member.reference
            squares += min(value * value, MOST * deviation * deviation)
            count += 1.0
            _weigh(fast, rank, member, value, deviation, context)
    if count > 0.0:
        fast.learn(squares, count)


def _weigh(
    fast: FastScore,
    rank: RankScore,
    member: Member,
    value: float,
    deviation: float,
    context: Context,
) -> None:
    """An excursion that lasts, or is enormous, is proof; one that ends tells of the noise."""
    before = rank.fast
    if value < LEAST:
        if before > 0.0:
            fast.tail = max(fast.tail, before)
        rank.fast = 0.0
        return
    row = member.row
    rank.fast = value
    if before == 0.0:
        rank.fast_since = (context.recent[0][0] + 1, start_time_ns(row))
    sometimes = rank.sometimes is not None or bin(rank.high).count("1") >= OFTEN
    others, level = math.nan, value
    if len(context.group.members) > MIN_PEERS:
        others, _ = context.group.level(member)
        level = member.value - others
    if sometimes or level < LEAST / 2.0:
        return
    stated = 0.0 if math.isnan(row.own_se) else row.own_se / row.own
    error = max(deviation, stated / TRUSTED)
    noise = context.limit * error
    shift = (before + value) / 2.0
    once = value >= max(ONCE, ONCE_TAIL * fast.tail, noise)
    twice = before > 0.0 and shift >= max(TWICE, TWICE_TAIL * fast.tail, noise)
    if not once and not twice:
        return
    if once:
        shift = value
    since = rank.fast_since
    case = rank.case
    if case is None:
        case = rank.case = Case(context.next_id[0], CONFIRMED, since[0], since[1])
        context.next_id[0] += 1
    case.state, case.how, case.recovery, case.quiet = CONFIRMED, FAST, 0.0, 0
    case.since_window, case.since_time_ns = since
    case.base, case.shift, case.windows = rank.series.center(), shift, 1
    case.deviate = max(case.deviate, shift / deviation)
    rank.series.forget_run(case.base, 0, context.config.history_windows)
    rank.fast, rank.named = 0.0, since[0] + 1
    shown = replace(member, row=row._replace(window=context.recent[0][0] + 1))
    show(case, shown, context, others, level, value, error)
