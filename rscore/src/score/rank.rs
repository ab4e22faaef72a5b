//! Scores of one rank: against its past, against its peers, now and then.

use super::case::{suspect, Case, Evidence, How, MEMORY};
use super::estimate::{confidence, RUN};
use super::groups::{Key, Member, MIN_PEERS};
use super::series::{scan, Change, Noise, Series, Spread, Test, Widths, LEAST_PAST};
use super::{reason, Basis, Config, Finding, Kind, State};
use crate::window::{flag, source, RankWindow};

/// ln 1.03: ranks that share CPUs with others differ by less without any fault.
const HOST_LEAST: f64 = 0.029558802241544403;
/// Least run that proves a slow rank.
const SHORTEST: usize = 2;
/// After so many slow windows of the last 32, a lasting run has to be so long.
pub(super) const OFTEN: u32 = 3;
const OFTEN_RUN: usize = 4;
/// Share of a slow rank's run that is slow.
const MOST: f64 = 0.51;
/// A share of the unnatural level, and how much rarer than that a natural one is: while the past
/// is short, a rank so far above its peers has the limit of a rate so much higher.
const LEVEL_SHARE: f64 = 0.7;
pub(super) const LEVEL_ODDS: f64 = 1000.0;
/// Deviations below the usual that a window counts at most: when others slow down together, a
/// healthy rank looks faster for a while, and must not look slow afterwards.
const FASTER: f64 = 3.0;
/// Deviations up to which the standard error that a window states of itself is not looked at.
const TRUSTED: f64 = 1.25;
/// Deviations, size (ln) and past that make one window a slow one.
const HIGH_SIGMAS: f64 = 5.0;
const HIGH_LEAST: f64 = 0.03;
const HIGH_PAST: usize = 8;
/// Slow windows of the last 32 that make a rank intermittent, or more than that; and the newest
/// 16 of them, which are all usual when it is over.
const SOMETIMES: u32 = 4;
const ALWAYS: u32 = 16;
const QUIET: u32 = 0xFFFF;

/// What every window reads of every rank, apart from the rest so that it stays in the cache.
#[derive(Debug, Default)]
pub(super) struct Entry {
    pub rank: u32,
    pub world_size: u32,
    pub missing: u32,
    /// Windows of the job since the rank's last one in the series.
    pub behind: u32,
    pub last_step: u64,
    pub key: Key,
    /// What is usual: center of the series, or what was before a proven run; NaN without a past.
    pub usual: f64,
    pub spread: Spread,
    /// Excursion of the last tenth of a window (ln), 0 when there was none.
    pub fast: f64,
    /// Window after the one in which it was confirmed to be slow the last time; 0: never.
    pub named: u64,
    /// Windows that its series remembers.
    pub known: u32,
    /// Whether there is a finding; whether the rank is confirmed to be slow; that, or now and then.
    pub open: bool,
    pub proven: bool,
    pub slow: bool,
}

/// Everything else that is kept of one rank.
#[derive(Debug, Default)]
pub(super) struct RankScore {
    /// Which of the job's last 64 windows are in the series; bit 0 is the newest that is.
    pub present: u64,
    /// Which of the rank's last 32 windows were slow; bit 0 is the newest.
    pub high: u32,
    pub gross: u32,
    pub gross_since: (u64, u64),
    /// First of the tenths that are excursions.
    pub fast_since: (u64, u64),
    /// Mean of the values themselves, not compared with anybody.
    pub past: f64,
    pub past_count: u32,
    pub series: Series,
    pub case: Option<Box<Case>>,
    pub sometimes: Option<Box<Case>>,
}

impl Entry {
    /// Takes over who the rank is now. True when it has no past any more: another peer group,
    /// another size of job, or a process that was started anew.
    pub fn renew(&mut self, key: Key, row: &RankWindow) -> bool {
        let same = self.key == key && self.world_size == row.world_size;
        let anew = !same || row.first_step < self.last_step;
        if anew {
            *self = Entry { rank: self.rank, usual: f64::NAN, ..Entry::default() };
        }
        (self.key, self.world_size, self.last_step) = (key, row.world_size, row.last_step);
        anew
    }

    /// Whether it was slow within the `recent` windows before `window`, and is not now.
    pub fn has_moved(&self, window: u64, recent: u64) -> bool {
        self.named > 0 && window.saturating_sub(self.named - 1) < recent && !self.slow
    }
}

/// (Number, begin) of the window with which the newest `windows` ones of `present` began.
pub(super) fn since(present: u64, windows: usize, recent: &[(u64, u64)]) -> (u64, u64) {
    let (mut found, mut seen) = (recent[0], 0);
    for (place, window) in recent.iter().enumerate() {
        if present >> place & 1 == 1 {
            found = *window;
            seen += 1;
            if seen == windows {
                break;
            }
        }
    }
    found
}

/// What judging a rank needs of its job, window and group.
pub(super) struct Context<'a> {
    pub config: &'a Config,
    pub recent: &'a [(u64, u64)],
    pub least: f64,
    pub limit: f64,
    pub limit_with_level: f64,
    /// It is the only rank.
    pub alone: bool,
    pub noise: Noise,
    pub long_run: f64,
    pub around: Around,
}

/// What a finding needs of the rank's group.
#[derive(Clone, Copy)]
pub(super) struct Around {
    pub peers: usize,
    /// The two largest own times of the signature, ns.
    pub slowest: (f64, f64),
    /// `Group::moved`.
    pub moved: u32,
}

/// What judging a rank changes beside the rank.
pub(super) struct Work<'a> {
    pub widths: &'a mut Widths,
    pub next_id: &'a mut u64,
}

/// A rank beside its peers; no more than zeros where they are too few.
#[derive(Clone, Copy)]
pub(super) struct Beside {
    pub others: f64,
    pub level: f64,
    pub limit: f64,
    pub spread: f64,
}

impl Beside {
    pub const NOBODY: Beside = Beside { others: f64::NAN, level: 0.0, limit: 0.0, spread: 1.0 };
}

impl RankScore {
    /// Forgets the past. Its findings end.
    pub fn renew(&mut self, farewells: &mut Vec<Finding>) {
        for case in [self.case.take(), self.sometimes.take()].into_iter().flatten() {
            farewells.extend(case.finding.map(|f| Finding { state: State::Cleared, ..f }));
        }
        *self = RankScore::default();
    }

    pub fn is_proven(&self) -> bool {
        self.case.as_ref().is_some_and(|case| case.is_proven())
    }

    /// What is usual for the rank (ln); NaN without a past.
    pub fn usual(&self) -> f64 {
        match &self.case {
            Some(case) if case.is_proven() => self.series.anchor + case.base,
            _ if self.series.count() == 0 => f64::NAN,
            _ => self.series.anchor + self.series.center(),
        }
    }

    /// The work that the job gives the rank, over its peers'; for its findings.
    pub fn tell_work(&mut self, work: f64) {
        for case in [&mut self.case, &mut self.sometimes].into_iter().flatten() {
            if let Some(finding) = &mut case.finding {
                finding.work = work;
            }
        }
    }

    /// What every window reads of the rank.
    pub fn tell(&self, entry: &mut Entry) {
        entry.usual = self.usual();
        entry.known = self.series.count() as u32;
        entry.proven = self.is_proven();
        entry.open = self.case.is_some() || self.sometimes.is_some();
        entry.slow = entry.proven || self.sometimes.is_some();
    }

    /// The windows that the job has had since the rank's last one.
    pub fn catch_up(&mut self, behind: &mut u32) {
        self.present = self.present.checked_shl(*behind).unwrap_or(0);
        *behind = 0;
    }

    fn learn_past(&mut self, value: f64, history: u32) {
        let rate = (1.0 / f64::from(self.past_count + 1)).max(1.0 / f64::from(history));
        self.past += rate * (value - self.past);
        self.past_count = (self.past_count + 1).min(history);
    }

    /// One window; the reason when nothing can be said.
    pub fn judge(
        &mut self,
        entry: &mut Entry,
        member: &Member,
        row: &RankWindow,
        beside: Option<Beside>,
        context: &Context<'_>,
        work: &mut Work<'_>,
    ) -> Option<&'static str> {
        self.catch_up(&mut entry.behind);
        let reason = self.weigh_window(entry, member, row, beside, context, work);
        self.tell(entry);
        reason
    }

    fn weigh_window(
        &mut self,
        entry: &mut Entry,
        member: &Member,
        row: &RankWindow,
        beside: Option<Beside>,
        context: &Context<'_>,
        work: &mut Work<'_>,
    ) -> Option<&'static str> {
        let (config, spread) = (context.config, &mut entry.spread);
        let stated = if row.own_se.is_nan() { 0.0 } else { row.own_se / row.own };
        let (deviation, degrees) = spread.deviation(&context.noise);
        // A window that states a larger error than the noise (outlier steps, few steps) counts
        // less.
        let trust = if stated > 0.0 { f64::min(1.0, TRUSTED * deviation / stated) } else { 1.0 };
        let error = deviation.max(stated);
        let host = row.source == source::GLOO;
        let least = if host { context.least.max(HOST_LEAST) } else { context.least };
        if !member.is_known() {
            self.series.anchor = member.value - member.reference;
        }
        let mut value = member.value - member.reference - self.series.anchor;
        let shown = value;
        if let Some(beside) = beside {
            self.count_gross(beside.level, beside.limit, row);
        }
        let beside = beside.unwrap_or(Beside::NOBODY);
        if let Some(case) = self.case.as_mut().filter(|case| case.is_proven()) {
            let difference = value - case.base;
            case.follow(difference * trust, deviation, beside.limit, config);
            case.finding =
                Some(straggler(case, member, row, &context.around, beside, difference, error));
            if case.how == How::Fast {
                self.high = self.high << 1 | u32::from(difference >= case.shift / 2.0);
            }
            if case.state == State::Cleared && case.how == How::Level {
                (self.series, self.present, *spread) = (Series::default(), 0, Spread::default());
            }
            return None;
        }
        let excess = (member.excess - member.reference) * trust;
        if member.is_known() {
            value = self.series.center() + excess.max(-FASTER * deviation);
        }
        let high = member.is_known() && is_high(&self.series, excess, deviation, least);
        self.high = self.high << 1 | u32::from(high);
        self.series.push(value, deviation, spread, &context.noise, config.history_windows);
        self.present |= 1;
        let mut change = Change::none(Evidence::Open);
        if member.others > 0 {
            let unnatural = beside.limit > 0.0
                && beside.level >= LEVEL_SHARE * beside.limit
                && self.series.count() <= RUN;
            let limit = if unnatural { context.limit_with_level } else { context.limit };
            let (long_run, shortest, share) = (context.long_run, SHORTEST, MOST);
            let test = Test { deviation, degrees, long_run, limit, least, shortest, share };
            change = scan(&self.series, &test, work.widths);
        }
        let (evidence, since, by_level) = self.weigh(&change, member, beside, least, context);
        self.learn_past(member.value, config.history_windows);
        suspect(&mut self.case, evidence, row.window, since, config, work.next_id);
        if let Some(case) = &mut self.case {
            if case.is_proven() {
                (self.high, entry.named) = (0, context.recent[0].0 + 1);
                prove(case, &mut self.series, &change, by_level, shown, beside.level, config);
            }
            if by_level {
                (change.shift, change.deviate) = (beside.level, beside.level / beside.spread);
            }
            case.deviate = case.deviate.max(change.deviate);
            case.finding =
                Some(straggler(case, member, row, &context.around, beside, change.shift, error));
        }
        if self.judge_sometimes(high, excess, row, context, error, work.next_id) {
            entry.named = context.recent[0].0 + 1;
        }
        if context.alone {
            return Some(reason::ALONE);
        }
        let learning = self.series.count() <= LEAST_PAST && evidence < Evidence::Weak;
        learning.then_some(reason::LEARNING)
    }

    /// Windows in a row above what is natural.
    fn count_gross(&mut self, level: f64, limit: f64, row: &RankWindow) {
        if level > limit {
            if self.gross == 0 {
                self.gross_since = (row.window, row.start_time_ns());
            }
            self.gross += 1;
        } else if level < 0.6 * limit {
            self.gross = 0;
        }
    }

    /// Evidence of a change and of the level, the begin of the slow run, and whether it is the
    /// level that says so.
    fn weigh(
        &self,
        change: &Change,
        member: &Member,
        beside: Beside,
        least: f64,
        context: &Context<'_>,
    ) -> (Evidence, (u64, u64), bool) {
        let mut evidence = change.evidence;
        // Slower than before and no slower than the peers: nobody waits for it.
        let harmless = context.around.peers >= MIN_PEERS && beside.level < least / 2.0;
        // Two cannot outvote each other: the one that differs from its own past has moved.
        let unmoved =
            (member.others as usize) < MIN_PEERS && member.value - self.past < change.shift / 2.0;
        if evidence >= Evidence::Weak && (harmless || unmoved) {
            evidence = Evidence::Open;
        }
        let often = self.high.count_ones() >= OFTEN && change.windows < OFTEN_RUN;
        if evidence == Evidence::Strong && often {
            evidence = Evidence::Weak;
        }
        if self.gross > 0 {
            let lasting = self.gross > context.config.confirm_windows;
            let unnatural = if lasting { Evidence::Strong } else { Evidence::Weak };
            if evidence < unnatural {
                return (unnatural, self.gross_since, true);
            }
        }
        if evidence < Evidence::Weak {
            return (evidence, context.recent[0], false);
        }
        (evidence, since(self.present, change.windows, context.recent), false)
    }

    /// Slow in some windows and as usual in the others. Whether that is new.
    fn judge_sometimes(
        &mut self,
        high: bool,
        excess: f64,
        row: &RankWindow,
        context: &Context<'_>,
        deviation: f64,
        next_id: &mut u64,
    ) -> bool {
        let slow = self.high.count_ones();
        let lasting = self.is_proven();
        let new = self.sometimes.is_none() && high && !lasting;
        let new = new && (SOMETIMES..=ALWAYS).contains(&slow);
        if new {
            let first = (u32::BITS - self.high.leading_zeros()) as usize;
            let since = since(self.present, first, context.recent);
            let mut case = Case::new(*next_id, State::Confirmed, since);
            *next_id += 1;
            case.deviate = excess / deviation;
            self.sometimes = Some(Box::new(case));
        }
        let Some(case) = &mut self.sometimes else { return false };
        if high {
            case.windows = (case.windows + 1).min(MEMORY);
            case.shift += (excess - case.shift) / f64::from(case.windows);
        }
        if lasting || self.high & QUIET == 0 {
            case.state = State::Cleared;
        }
        let share = f64::from(slow) / RUN as f64;
        let usual = if high { row.own * (-case.shift).exp() } else { row.own };
        let slow_own = usual * case.shift.exp();
        let mut shown =
            finding(case, Kind::Intermittent, row, case.shift, slow_own, usual, deviation, share);
        of_rank(&mut shown, row);
        (shown.basis, shown.peers) = (Basis::History, context.around.peers as u32);
        (shown.peers_own_ns, shown.moved) = (f64::NAN, context.around.moved);
        case.finding = Some(shown);
        new
    }
}

/// Whether a window is far above the usual ones.
fn is_high(series: &Series, excess: f64, deviation: f64, least: f64) -> bool {
    series.count() >= HIGH_PAST
        && excess >= least.max(HIGH_LEAST)
        && excess >= HIGH_SIGMAS * deviation
}

/// The case is confirmed: what is usual is what was before it, or what the peers show.
fn prove(
    case: &mut Case,
    series: &mut Series,
    change: &Change,
    by_level: bool,
    value: f64,
    level: f64,
    config: &Config,
) {
    case.how = if by_level { How::Level } else { How::Change };
    (case.recovery, case.quiet) = (0.0, 0);
    if by_level {
        (case.base, case.shift, case.windows) = (value - level, level, 1);
        return;
    }
    series.forget_run(change.before, change.windows, config.history_windows);
    (case.base, case.shift, case.windows) = (change.before, change.shift, change.windows as u32);
}

/// The finding of a straggler. A synchronous job gains no more than the next slowest rank allows,
/// which bounds the cost.
pub(super) fn straggler(
    case: &Case,
    member: &Member,
    row: &RankWindow,
    around: &Around,
    beside: Beside,
    difference: f64,
    deviation: f64,
) -> Finding {
    let unit = if row.flags & flag::STEPS_NOT_INFERRED == 0 { 1.0 } else { row.wall };
    let against_peers = around.peers >= MIN_PEERS;
    let usual = if against_peers { beside.others } else { member.value - difference };
    let reference = usual.exp() * unit;
    let (first, second) = around.slowest;
    let next = if row.own >= first { second } else { first };
    let bound = reference.max(if member.others > 0 { next.min(row.own) } else { 0.0 });
    let slower = if against_peers { beside.level } else { difference };
    let mut shown = finding(case, Kind::Straggler, row, slower, row.own, bound, deviation, 1.0);
    of_rank(&mut shown, row);
    shown.basis = if against_peers { Basis::Peers } else { Basis::History };
    shown.peers = around.peers as u32;
    shown.peers_own_ns = if against_peers { reference } else { f64::NAN };
    shown.moved = around.moved;
    shown
}

fn of_rank(shown: &mut Finding, row: &RankWindow) {
    shown.rank = Some(row.rank);
    shown.class_id = Some(row.class_id);
    shown.signature = Some(row.signature);
}

/// A finding whose cost is `own - bound` ns in `share` of the steps. The interval is 95 % of one
/// window's noise.
#[allow(clippy::too_many_arguments)]
pub(super) fn finding(
    case: &Case,
    kind: Kind,
    row: &RankWindow,
    difference: f64,
    own: f64,
    bound: f64,
    deviation: f64,
    share: f64,
) -> Finding {
    let cost = (own - bound).max(0.0) * share;
    let error = 1.96 * own * deviation * share;
    let inferred = row.flags & flag::STEPS_NOT_INFERRED == 0;
    let known = |value: f64| inferred.then_some(value);
    Finding {
        id: case.id,
        job: row.job,
        kind,
        state: case.state,
        rank: None,
        class_id: None,
        signature: None,
        since_window: case.since.0,
        since_time_ns: case.since.1,
        window: row.window,
        slowdown: difference.exp() - 1.0,
        cost_ns: known(cost),
        cost_low_ns: known((cost - error).max(0.0)),
        cost_high_ns: known(cost + error),
        cost_fraction: (cost / row.wall).clamp(0.0, 1.0),
        confidence: confidence(case.deviate),
        basis: Basis::Peers,
        own_ns: own,
        peers_own_ns: bound,
        peers: 0,
        work: f64::NAN,
        moved: 0,
    }
}
