//! Scores of one rank: against its past, against its peers, now and then.

use super::case::{suspect, Case, Evidence, How, MEMORY};
use super::estimate::{LEVEL_SIGMAS, RUN};
use super::finding::{finding, of_rank, straggler};
use super::groups::MIN_PEERS;
use super::members::{Flags, Member};
use super::ranks::One;
use super::scan::{scan, Ceiling, Change, Test, Widths, LEAST_PAST};
use super::series::{Noise, Series, Spread};
use super::{reason, Basis, Config, Kind, State};
use crate::window::RankWindow;

/// ln 1.03: ranks that share CPUs with others differ by less without any fault.
const HOST_LEAST: f64 = 0.029558802241544403;
/// ln 1.15: the same, from the first step on.
pub(super) const HOST_LEVEL: f64 = 0.13976194237515863;
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
/// Share of the unnatural level below which a rank is natural again.
pub(super) const GROSS_ENDS: f64 = 0.6;
/// What a window counts at most, in unnatural levels.
const GROSS_MOST: f64 = 1.25;
/// Deviations below the usual that a window counts at most: when others slow down together, a
/// healthy rank looks faster for a while, and must not look slow afterwards.
pub(super) const FASTER: f64 = 3.0;
/// Deviations up to which the standard error that a window states of itself is not looked at.
pub(super) const TRUSTED: f64 = 1.25;
/// Deviations, size (ln) and past that make one window a slow one.
pub(super) const HIGH_SIGMAS: f64 = 5.0;
pub(super) const HIGH_LEAST: f64 = 0.03;
const HIGH_PAST: usize = 8;
/// Slow windows of the last 32 that make a rank intermittent, or more than that; and the newest
/// 16 of them, which are all usual when it is over.
const SOMETIMES: u32 = 4;
const ALWAYS: u32 = 16;
const QUIET: u32 = 0xFFFF;

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
}

impl Beside {
    pub const NOBODY: Beside = Beside { others: f64::NAN, level: 0.0, limit: 0.0 };
}

/// A rank's window beside what is usual.
struct Window<'a> {
    member: &'a Member,
    row: &'a RankWindow,
    beside: Beside,
    /// Noise of one window (ln), or what it states of itself if that is more.
    error: f64,
    /// Least slowdown that matters (ln).
    least: f64,
    /// Value over the rank's own past and the reference, as far as it is trusted.
    excess: f64,
    /// Whether it is far above the usual ones.
    high: bool,
}

impl One<'_> {
    /// One window; the reason when nothing can be said. `quiet` does the same to a rank of which
    /// nothing is said.
    pub fn judge(
        &mut self,
        member: &Member,
        reference: f64,
        rows: &[RankWindow],
        beside: Option<Beside>,
        context: &Context<'_>,
        work: &mut Work<'_>,
    ) -> Option<&'static str> {
        let (config, stated) = (context.config, member.stated);
        let (deviation, degrees) = self.score.spread.deviation(&context.noise);
        // A window that states a larger error than the noise (outlier steps, few steps) counts
        // less.
        let trust = match stated > TRUSTED * deviation {
            true => TRUSTED * deviation / stated,
            false => 1.0,
        };
        let error = deviation.max(stated);
        let least = if member.flags.has(Flags::HOST) {
            context.least.max(HOST_LEAST)
        } else {
            context.least
        };
        if !member.is_known() {
            self.score.series.anchor = member.value - reference;
        }
        let shown = member.value - reference - self.score.series.anchor;
        if let Some(beside) = &beside {
            self.count_gross(beside, &rows[member.place.row as usize]);
        }
        let beside = beside.unwrap_or(Beside::NOBODY);
        let row = &rows[member.place.row as usize];
        let mut window = Window { member, row, beside, error, least, excess: 0.0, high: false };
        if self.flags.has(Flags::PROVEN) {
            self.follow(&window, shown, trust, deviation, context);
            return None;
        }
        let series = &mut self.score.series;
        let (mut value, mut high) = (shown, false);
        let excess = (member.excess - reference) * trust;
        if member.is_known() {
            value = series.center() + excess.max(-FASTER * deviation);
            high = is_high(series, excess, deviation, least);
        }
        self.score.high = self.score.high << 1 | u32::from(high);
        let spread = &mut self.score.spread;
        series.push(value, deviation, spread, &context.noise, config.history_windows);
        self.score.newest = (self.score.newest + 1) % RUN as u8;
        self.score.present |= 1;
        let (series, center) = (&self.score.series, self.score.series.center());
        let mut change = Change::none(Evidence::Open);
        if member.others > 0 {
            let unnatural = beside.limit > 0.0
                && beside.level >= LEVEL_SHARE * beside.limit
                && series.count() <= RUN;
            let limit = if unnatural { context.limit_with_level } else { context.limit };
            let (long_run, shortest, share) = (context.long_run, SHORTEST, MOST);
            let test = Test { deviation, degrees, long_run, limit, least, shortest, share };
            change = scan(series, center, &test, work.widths);
            self.score.ceiling = Ceiling::of(series, center, test.threshold());
        }
        let past = self.score.past;
        self.score.learn_past(member.value, config.history_windows);
        let mut weak = false;
        let quiet = change.evidence < Evidence::Weak && self.score.gross == 0;
        if quiet && !high && !self.flags.has(Flags::OPEN) {
            // Nothing is said of the rank, and nothing was.
            self.score.usual = self.score.series.anchor + center;
        } else {
            (window.excess, window.high) = (excess, high);
            weak = self.weigh_window(&window, change, shown, past, context, work);
        }
        if context.alone {
            return Some(reason::ALONE);
        }
        let learning = self.score.series.count() <= LEAST_PAST && !weak;
        learning.then_some(reason::LEARNING)
    }

    /// A window of a rank that is confirmed to be slow.
    #[cold]
    fn follow(
        &mut self,
        window: &Window<'_>,
        value: f64,
        trust: f64,
        deviation: f64,
        context: &Context<'_>,
    ) {
        let Some(case) = &mut self.cases.case else { return };
        let difference = value - case.base;
        case.follow(difference * trust, deviation, window.beside.limit, context.config);
        case.finding = Some(straggler(
            case,
            window.member,
            window.row,
            &context.around,
            window.beside,
            difference,
            window.error,
        ));
        if case.how == How::Fast {
            let high = difference >= case.shift / 2.0;
            self.score.high = self.score.high << 1 | u32::from(high);
        }
        if case.state == State::Cleared && case.how == How::Level {
            (self.score.series, self.score.present) = (Series::default(), 0);
            self.score.spread = Spread::default();
        }
        self.tell();
    }

    /// A window that says something, or of which something was said before. Whether that is at
    /// least a suspicion.
    #[cold]
    fn weigh_window(
        &mut self,
        window: &Window<'_>,
        mut change: Change,
        shown: f64,
        past: f64,
        context: &Context<'_>,
        work: &mut Work<'_>,
    ) -> bool {
        let Window { member, row, beside, error, .. } = *window;
        let config = context.config;
        let (evidence, since, by_level) = self.weigh(&change, window, past, context);
        let cases = &mut **self.cases;
        let case = &mut cases.case;
        suspect(case, evidence, row.window, since, config, work.next_id);
        if let Some(case) = case {
            if case.is_proven() {
                (self.score.high, cases.named) = (0, context.recent[0].0 + 1);
                let series = &mut self.score.series;
                prove(case, series, &change, by_level, shown, beside.level, config);
            }
            if by_level {
                change.shift = beside.level;
                change.deviate = LEVEL_SIGMAS * (beside.level / beside.limit);
            }
            case.deviate = case.deviate.max(change.deviate);
            let (around, shift) = (&context.around, change.shift);
            case.finding = Some(straggler(case, member, row, around, beside, shift, error));
        }
        if self.judge_sometimes(window, context, work.next_id) {
            self.cases.named = context.recent[0].0 + 1;
        }
        self.tell();
        evidence >= Evidence::Weak
    }

    /// Windows above what is natural, and by how much the mean of all since the first is: noise
    /// carries a natural rank above it now and then, but not the mean.
    fn count_gross(&mut self, beside: &Beside, row: &RankWindow) {
        let share = beside.level / beside.limit;
        if share >= 1.0 {
            if self.score.gross == 0 {
                self.cases.gross_since = (row.window, row.start_time_ns());
                self.cases.balance = 0.0;
            }
            self.score.gross += 1;
        } else if share < GROSS_ENDS {
            self.score.gross = 0;
        }
        if self.score.gross > 0 {
            self.cases.balance += share.min(GROSS_MOST) - 1.0;
        }
    }

    /// Evidence of a change and of the level, the begin of the slow run, and whether it is the
    /// level that says so.
    fn weigh(
        &self,
        change: &Change,
        window: &Window<'_>,
        past: f64,
        context: &Context<'_>,
    ) -> (Evidence, (u64, u64), bool) {
        let Window { member, beside, least, .. } = *window;
        let mut evidence = change.evidence;
        // Slower than before and no slower than the peers: nobody waits for it.
        let harmless = context.around.peers >= MIN_PEERS && beside.level < least / 2.0;
        // Two cannot outvote each other: the one that differs from its own past has moved.
        let unmoved =
            (member.others as usize) < MIN_PEERS && member.value - past < change.shift / 2.0;
        if evidence >= Evidence::Weak && (harmless || unmoved) {
            evidence = Evidence::Open;
        }
        let often = self.score.high.count_ones() >= OFTEN && change.windows < OFTEN_RUN;
        if evidence == Evidence::Strong && often {
            evidence = Evidence::Weak;
        }
        if self.score.gross > 0 && beside.limit > 0.0 {
            let often = self.score.gross > context.config.confirm_windows;
            let lasting = often && self.cases.balance >= 0.0;
            let unnatural = if lasting { Evidence::Strong } else { Evidence::Weak };
            if evidence < unnatural {
                return (unnatural, self.cases.gross_since, true);
            }
        }
        if evidence < Evidence::Weak {
            return (evidence, context.recent[0], false);
        }
        (evidence, since(self.score.present, change.windows, context.recent), false)
    }

    /// Slow in some windows and as usual in the others. Whether that is new.
    fn judge_sometimes(
        &mut self,
        window: &Window<'_>,
        context: &Context<'_>,
        next_id: &mut u64,
    ) -> bool {
        let Window { row, error: deviation, excess, high, .. } = *window;
        let (slow, lasting) = (self.score.high.count_ones(), self.cases.is_proven());
        let new = self.cases.sometimes.is_none() && high && !lasting;
        let new = new && (SOMETIMES..=ALWAYS).contains(&slow);
        if new {
            let first = (u32::BITS - self.score.high.leading_zeros()) as usize;
            let since = since(self.score.present, first, context.recent);
            let mut case = Case::new(*next_id, State::Confirmed, since);
            *next_id += 1;
            case.deviate = excess / deviation;
            self.cases.sometimes = Some(Box::new(case));
        }
        let Some(case) = &mut self.cases.sometimes else { return false };
        if high {
            case.windows = (case.windows + 1).min(MEMORY);
            case.shift += (excess - case.shift) / f64::from(case.windows);
        }
        if lasting || self.score.high & QUIET == 0 {
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
