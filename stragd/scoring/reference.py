"""Scores of every job: which rank is slow, compared with its peers and with its own past.

One window of one job goes through `Job.update`: rows are refused or grouped, every rank gets its
reference (what happened to the others), the ranks are judged, then the job, the network and the
groups. `docs/scoring.md` has the model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from stragd.scoring.case import LEVEL, Case, suspect
from stragd.scoring.estimate import median, scan_limit
from stragd.scoring.fast import TENTHS, FastScore, judge_tenth, known_members
from stragd.scoring.groups import (
    Group,
    group,
    judgeable,
    set_references,
    slowest_two,
    stated_error,
)
from stragd.scoring.model import (
    CALM,
    CLEARED,
    GLOO,
    HISTORY,
    IMBALANCE,
    JOB_WIDE,
    NETWORK,
    OPEN,
    STEPS_NOT_INFERRED,
    STRONG,
    TENTH,
    UNEVEN_WORK,
    WEAK,
    Abstention,
    Config,
    Row,
    Update,
    accept,
    start_time_ns,
)
from stragd.scoring.rank import LEVEL_ODDS, Context, RankScore, build, judge
from stragd.scoring.series import Prior, Series, lend, pool, scan

HOST_FLOOR, DEVICE_FLOOR = 0.004, 0.001
"""Noise of a window below which none is believed (ln)."""
JOB_LEAST, NETWORK_LEAST = 0.06765864847381486, 0.22314355131420976
"""ln 1.07 and ln 1.25: least lasting slowdown of the job and of its transfers."""
JOB_RUN = 5
"""Least run of a slow job: bursts hit everybody at once."""
GROUP_LEAST, GROUP_SPREADS, GROUP_WINDOWS = 0.09531017980432493, 3.0, 3
"""Least difference of classes or signatures (ln 1.1), in spreads too, and windows it lasts."""
MISSING_WINDOWS = 10
"""Windows without a row after which a rank is forgotten."""
RECENT = 64
WINDOWS_SHARE = 0.9
"""Share of the false alarms that whole windows may raise; the rest is for tenths of them."""
MAX_JOBS = 4096
"""Most jobs that are scored at a time; the one that was silent longest goes first."""


@dataclass
class WholeScore:
    """A series of the whole job."""

    present: int = 0
    series: Series = field(default_factory=Series)
    case: Case | None = None


@dataclass
class Compared:
    """A class or a signature against the others of its kind."""

    run: int = 0
    since: tuple[int, int] = (0, 0)
    case: Case | None = None
    seen: bool = False


@dataclass
class Job:
    """Everything that is kept of one job."""

    last_call: int = 0
    window: int | None = None
    recent: list[tuple[int, int]] = field(default_factory=list)
    """(number, begin) of the last 64 windows, newest first."""
    ranks: dict[int, RankScore] = field(default_factory=dict)
    key: int = 0
    wide: WholeScore = field(default_factory=WholeScore)
    network: WholeScore = field(default_factory=WholeScore)
    compared: dict[tuple[int, int], Compared] = field(default_factory=dict)
    fast: FastScore = field(default_factory=FastScore)

    def update(self, rows: list[Row], config: Config, next_id: list[int], update: Update) -> None:
        """Takes the accepted rows of one window."""
        self.window = rows[0].window
        self.recent = [(rows[0].window, start_time_ns(rows[0])), *self.recent[: RECENT - 1]]
        for rank in self.ranks.values():
            rank.missing += 1
            rank.present = rank.present << 1 & (1 << RECENT) - 1
        for row in rows:
            self.ranks.setdefault(row.rank, RankScore()).missing = 0
        members = judgeable(rows, update.abstentions)
        groups = group(members)
        for one in groups:
            for member in one.members:
                rank = self.ranks[member.row.rank]
                self._renew(rank, one, member.row, update)
                member.known = rank.series.count() > 0
                member.proven = rank.case is not None and rank.case.proven()
                if member.known:
                    member.excess = rank.excess(member.value)
        everybody = set_references(groups)
        rate, ranks = config.false_alarms_per_million * WINDOWS_SHARE, max(len(members), 1)
        least = math.log(1.0 + config.min_slowdown)
        limit, with_level = scan_limit(rate, ranks), scan_limit(rate * LEVEL_ODDS, ranks)
        slowest = slowest_two(groups)
        spreads = [
            self.ranks[member.row.rank].series.spread for one in groups for member in one.members
        ]
        prior = lend(spreads, stated_error(members))
        self.fast.window_variance = 0.0
        for one in groups:
            context = Context(
                config,
                self.recent,
                next_id,
                least,
                limit,
                with_level,
                len(members) == 1,
                one,
                slowest[one.key[0]],
            )
            self._judge_group(one, context, prior, update)
        self._judge_job(groups, everybody, config, next_id, limit)
        self._judge_network(groups, config, next_id, limit)
        self._compare_groups(groups, config, next_id)
        self._show(update)

    def update_tenth(
        self, rows: list[Row], config: Config, next_id: list[int], update: Update
    ) -> None:
        """Takes the accepted rows of a tenth of a window."""
        self.fast.last = rows[0].window
        members = known_members(rows, self.ranks)
        if members:
            rate = config.false_alarms_per_million * (1.0 - WINDOWS_SHARE) / TENTHS
            limit = scan_limit(rate, len(members))
            judge_tenth(self.fast, self.ranks, members, config, limit, self.recent, next_id)
        self._show(update)

    def _renew(self, rank: RankScore, one: Group, row: Row, update: Update) -> None:
        """A rank with another peer group, or of another size of job, or whose process was
        started anew, has no past."""
        same = rank.key == one.key and rank.world_size == row.world_size
        if not same or row.first_step < rank.last_step:
            for case in (rank.case, rank.sometimes):
                if case is not None and case.finding is not None:
                    case.finding.state = CLEARED
                    update.findings.append(case.finding)
            rank.case = rank.sometimes = None
            rank.series, rank.present, rank.high, rank.gross = Series(), 0, 0, 0
            rank.past, rank.past_count, rank.gross_since, rank.balance = 0.0, 0, (0, 0), 0.0
            rank.fast, rank.fast_since, rank.named = 0.0, (0, 0), 0
        rank.key, rank.world_size, rank.last_step = one.key, row.world_size, row.last_step

    def _judge_group(self, one: Group, context: Context, prior: Prior, update: Update) -> None:
        ranks = [self.ranks[member.row.rank] for member in one.members]
        host = any(member.row.source == GLOO for member in one.members)
        floor = HOST_FLOOR if host else DEVICE_FLOOR
        noise = pool([rank.series.spread for rank in ranks], floor, prior)
        self.fast.window_variance = max(self.fast.window_variance, noise.variance)
        window = one.members[0].row.window
        one.moved = sum(rank.has_moved(window, RECENT) for rank in ranks)
        for rank, member in zip(ranks, one.members, strict=True):
            reason = judge(rank, member, noise, context)
            if reason is not None:
                row = member.row
                update.abstentions.append(Abstention(row.job, row.rank, row.window, reason))

    def _judge_job(
        self,
        groups: list[Group],
        everybody: list[float],
        config: Config,
        next_id: list[int],
        limit: float,
    ) -> None:
        """Everybody slower than before: even the fastest quarter is."""
        key = 0
        for one in groups:
            key ^= one.key[0]
        if key != self.key:
            self.key = key
            self.wide.series, self.wide.present = Series(), 0
        if len(everybody) < 2:
            return
        value = everybody[(len(everybody) - 1) // 4]
        row = groups[0].members[0].row
        self._judge_whole(self.wide, JOB_WIDE, value, JOB_LEAST, False, row, config, next_id, limit)
        case = self.wide.case
        if case is None:
            return
        unit = row.wall if row.flags & STEPS_NOT_INFERRED else 1.0
        own = math.exp(median(sorted(m.value for g in groups for m in g.members))) * unit
        self._show_whole(self.wide, JOB_WIDE, value, own, row)

    def _judge_network(
        self, groups: list[Group], config: Config, next_id: list[int], limit: float
    ) -> None:
        """Transfers slower than before, while the ranks' own work is not."""
        transfers = sorted(m.row.comm for g in groups for m in g.members if m.row.comm > 0.0)
        if len(transfers) < 2:
            return
        comm = median(transfers)
        row = groups[0].members[0].row
        doubtful = self.wide.case is not None
        value = math.log(comm)
        self._judge_whole(
            self.network, NETWORK, value, NETWORK_LEAST, doubtful, row, config, next_id, limit
        )
        if self.network.case is not None:
            self._show_whole(self.network, NETWORK, value, comm, row)

    def _judge_whole(
        self,
        score: WholeScore,
        kind: int,
        value: float,
        least: float,
        doubtful: bool,
        row: Row,
        config: Config,
        next_id: list[int],
        limit: float,
    ) -> None:
        series = score.series
        noise = pool([series.spread], HOST_FLOOR, Prior())
        deviation, degrees = series.spread.deviation(noise)
        correlation = noise.correlation
        score.present = score.present << 1 & (1 << RECENT) - 1
        if score.case is not None and score.case.proven():
            excess = value - series.anchor - score.case.base
            score.case.follow(excess, deviation, 0.0, config)
            return
        if series.count() == 0:
            series.anchor = value
        series.push(value - series.anchor, deviation, noise, config.history_windows)
        score.present |= 1
        least = max(least, math.log(1.0 + config.min_slowdown))
        change = scan(series, deviation, degrees, correlation, limit, least, JOB_RUN, 1.0)
        evidence = OPEN if doubtful and change.evidence >= WEAK else change.evidence
        since = RankScore(present=score.present).since(change.windows, self.recent)
        score.case = suspect(score.case, evidence, row.window, since, config, next_id)
        case = score.case
        if case is None:
            return
        case.deviate = max(case.deviate, change.deviate)
        if case.proven():
            series.forget_run(change.before, change.windows, config.history_windows)
            case.base, case.shift, case.windows = change.before, change.shift, change.windows
        elif evidence >= WEAK:
            case.base = change.before

    def _show_whole(self, score: WholeScore, kind: int, value: float, own: float, row: Row) -> None:
        case = score.case
        assert case is not None
        difference = value - score.series.anchor - case.base
        spread = score.series.spread
        deviation, _ = spread.deviation(pool([spread], HOST_FLOOR, Prior()))
        before = own * math.exp(-difference)
        case.finding = build(case, kind, row, difference, own, before, deviation, 1.0)
        case.finding.basis = HISTORY

    def _compare_groups(self, groups: list[Group], config: Config, next_id: list[int]) -> None:
        """Classes within a signature, and signatures within a class."""
        for score in self.compared.values():
            score.seen = False
        large = [one for one in groups if len(one.members) >= 2]
        alike: dict[tuple[int, int, int], list[tuple[float, float]]] = {}
        for one in large:
            figures = (one.median(), one.spread())
            for kind in (IMBALANCE, UNEVEN_WORK):
                alike.setdefault(_bucket(kind, one), []).append(figures)
        for one in large:
            for kind in (IMBALANCE, UNEVEN_WORK):
                related = alike[_bucket(kind, one)]
                if len(related) > 1 and (kind == IMBALANCE or one.key[1] == 0):
                    self._compare(kind, one, related, config, next_id)
        for score in self.compared.values():
            if not score.seen:
                score.run = 0
                if score.case is not None:
                    score.case.state = CLEARED
                    if score.case.finding is not None:
                        score.case.finding.state = CLEARED
        self.compared = {k: s for k, s in self.compared.items() if s.seen or s.case is not None}

    def _waited_for(self, one: Group) -> float:
        """The most that a slow rank with another signature works beyond its peers, ns."""
        most = 0.0
        for rank in self.ranks.values():
            case = rank.case
            if case is None or not case.proven() or case.finding is None:
                continue
            extra = case.finding.own_ns - case.finding.peers_own_ns
            if rank.key[0] != one.key[0] and extra > most:
                most = extra
        return most

    def _compare(
        self,
        kind: int,
        one: Group,
        related: list[tuple[float, float]],
        config: Config,
        next_id: list[int],
    ) -> None:
        """One group against the fastest of the others. ``related``: (median, spread) of all."""
        row, own_median = one.members[0].row, one.median()
        first, second = sorted(figures[0] for figures in related)[:2]
        reference = second if own_median <= first else first
        spread = max(figures[1] for figures in related)
        difference = own_median - reference
        number = one.key[2] if kind == IMBALANCE else one.key[0]
        score = self.compared.setdefault((kind, number), Compared())
        if score.seen:
            return
        score.seen = True
        evidence = _count_difference(score, difference, spread, row)
        # Behind a slow rank of another stage, the wait of a whole stage can pass for its work.
        extra = math.exp(own_median) - math.exp(reference)
        if kind == UNEVEN_WORK and evidence >= WEAK and self._waited_for(one) >= extra:
            evidence = OPEN
        if score.case is not None and score.case.proven():
            score.case.count(evidence, config)
        else:
            since = score.since
            score.case = suspect(score.case, evidence, row.window, since, config, next_id)
        case = score.case
        if case is None:
            return
        unit = row.wall if row.flags & STEPS_NOT_INFERRED else 1.0
        own, other = math.exp(own_median) * unit, math.exp(reference) * unit
        case.deviate = difference / max(spread, 0.01)
        error = spread / math.sqrt(float(len(one.members)))
        finding = build(case, kind, row, difference, own, other, error, 1.0)
        finding.peers = len(one.members)
        if kind == IMBALANCE:
            finding.class_id = one.key[2]
        else:
            finding.signature = one.key[0]
        case.finding = finding

    def _show(self, update: Update) -> None:
        """Every open finding, and those that this window cleared."""
        for rank in self.ranks.values():
            if rank.missing > MISSING_WINDOWS:
                for case in (rank.case, rank.sometimes):
                    if case is not None and case.finding is not None:
                        case.state = case.finding.state = CLEARED
        for number in sorted(self.ranks):
            rank = self.ranks[number]
            rank.case = _shown(rank.case, update)
            rank.sometimes = _shown(rank.sometimes, update)
        self.wide.case = _shown(self.wide.case, update)
        self.network.case = _shown(self.network.case, update)
        for key in sorted(self.compared):
            self.compared[key].case = _shown(self.compared[key].case, update)
        self.ranks = {n: r for n, r in self.ranks.items() if r.missing <= MISSING_WINDOWS}


def _shown(case: Case | None, update: Update) -> Case | None:
    """Lists the finding of a case; the case, unless it is over."""
    if case is None or case.finding is None:
        return None
    update.findings.append(case.finding)
    return None if case.state == CLEARED else case


def _bucket(kind: int, one: Group) -> tuple[int, int, int]:
    """Groups of one bucket differ in class only (imbalance), or in signature only."""
    return kind, one.key[1], one.key[0] if kind == IMBALANCE else one.key[2]


def _count_difference(score: Compared, difference: float, spread: float, row: Row) -> int:
    limit = max(GROUP_LEAST, GROUP_SPREADS * spread)
    if difference > limit:
        if score.run == 0:
            score.since = (row.window, start_time_ns(row))
        score.run += 1
        return STRONG if score.run >= GROUP_WINDOWS else WEAK
    if difference > 0.7 * limit and score.run > 0:
        return OPEN
    score.run = 0
    return CALM


class Scorer:
    """Scores of every job. One call per window and job."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config or Config()
        self.jobs: dict[int, Job] = {}
        self.calls = 0
        self.next_id = [1]

    def update(self, rows: list[Row]) -> Update:
        """Scores one window of one job; rows of several jobs are scored one after another."""
        update = Update([], [], 0)
        place = 0
        while place < len(rows):
            end = place
            while end < len(rows) and rows[end].job == rows[place].job:
                end += 1
            self._update_job(rows[place:end], update)
            place = end
        return update

    def forget(self, job: int) -> None:
        """Forgets a job."""
        self.jobs.pop(job, None)

    def inherit(self, from_job: int, to_job: int, ranks: list[int]) -> int:
        """Ranks of a job that have no past take over that of the same ranks of another."""
        room = to_job in self.jobs or len(self.jobs) < MAX_JOBS
        if from_job == to_job or from_job not in self.jobs or not room:
            return 0
        old, known = self.jobs[from_job].ranks, self.jobs.get(to_job)
        taken: dict[int, RankScore] = {}
        for rank in sorted(set(ranks)):
            if rank not in old or (known is not None and rank in known.ranks):
                continue
            case = old[rank].case
            if case is not None and case.proven() and case.how == LEVEL:
                continue  # its past is slow too
            if old[rank].series.count() > 0:
                taken[rank] = old[rank].without_windows()
        if not taken:
            return 0
        if known is None:
            known = self.jobs[to_job] = Job()
        known.last_call = self.calls
        known.ranks.update(taken)
        return len(taken)

    def _update_job(self, rows: list[Row], update: Update) -> None:
        key = rows[0].job
        self.calls += 1
        known = self.jobs.get(key)
        last, tenth = (known.window, known.fast.last) if known else (None, None)
        accepted = accept(rows, last, tenth)
        update.refused_rows += len(rows) - len(accepted)
        if not accepted:
            return
        if accepted[0].flags & TENTH:
            if last is not None:  # tenths of a job without a window tell nothing
                assert known is not None
                known.last_call = self.calls
                known.update_tenth(accepted, self.config, self.next_id, update)
            return
        if known is None:
            if len(self.jobs) >= MAX_JOBS:
                del self.jobs[min(self.jobs, key=lambda one: self.jobs[one].last_call)]
            known = self.jobs[key] = Job()
        known.last_call = self.calls
        known.update(accepted, self.config, self.next_id, update)
