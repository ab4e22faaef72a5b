//! The fast lane: tenths of windows, for a slowdown too gross to wait for whole ones. A tenth
//! compares with what whole windows taught; it teaches them nothing. The text is
//! `stragd/scoring/fast.py`; both sides do the same operations in the same order.

use super::case::{Case, How};
use super::finding::straggler;
use super::groups::{Groups, MIN_PEERS};
use super::members::Member;
use super::rank::{Around, Beside, OFTEN};
use super::ranks::{One, Ranks};
use super::scan::LEAST_PAST;
use super::{Config, State};
use crate::window::{flag, RankWindow};

/// Tenths of a window; of independent steps, one has so many times its variance.
pub(super) const TENTHS: f64 = 10.0;
/// ln 1.12, ln 1.15 and ln 1.5: an excursion, the mean of two in a row that proves, one alone.
const LEAST: f64 = 0.11332868530700317;
const TWICE: f64 = 0.13976194237515863;
const ONCE: f64 = 0.4054651081081644;
/// Times the largest excursion that came to nothing, for the same.
const TWICE_TAIL: f64 = 1.25;
const ONCE_TAIL: f64 = 2.0;
/// A tenth's standard error, of so few steps, may be off by this factor.
const TRUSTED: f64 = 2.0;
const KEEP: f64 = 0.99;
const TAIL_KEEP: f64 = 0.999;
/// A squared deviate counts so many variances at most.
const MOST: f64 = 9.0;

/// What a job's tenths say about noise (ln).
#[derive(Debug, Default)]
pub(super) struct FastScore {
    /// Number of the last tenth.
    pub last: Option<u64>,
    pub squares: f64,
    pub weight: f64,
    /// Largest excursion of one tenth that came to nothing; it fades.
    pub tail: f64,
    /// Of whole windows, of the noisiest group.
    pub window_variance: f64,
}

/// What a tenth is held against.
pub(super) struct Base<'a> {
    pub rows: &'a [RankWindow],
    pub recent: &'a [(u64, u64)],
    pub config: &'a Config,
    /// Standard deviations, of a Gaussian.
    pub limit: f64,
}

/// One excursion beside its peers.
struct Excursion {
    value: f64,
    before: f64,
    deviation: f64,
    beside: Beside,
}

/// Whether a rank can be compared with its own past.
pub(super) fn can_judge(row: &RankWindow, slot: u32, ranks: &Ranks) -> bool {
    let slot = slot as usize;
    let inferred = row.flags & flag::STEPS_NOT_INFERRED == 0;
    slot < ranks.numbers.len()
        && inferred
        && ranks.identities.goes_on(slot, row)
        && ranks.scores.count(slot) > LEAST_PAST
}

impl FastScore {
    /// Standard deviation of one tenth: what was seen, or that of independent steps.
    fn deviation(&self) -> f64 {
        let seen = if self.weight > 0.0 { self.squares / self.weight } else { 0.0 };
        seen.max(TENTHS * self.window_variance).sqrt()
    }

    /// One tenth of a window of a job; the members have their references.
    pub fn judge(
        &mut self,
        ranks: &mut Ranks,
        groups: &mut Groups,
        base: &Base<'_>,
        next_id: &mut u64,
    ) {
        let (deviation, mut squares, mut count) = (self.deviation(), 0.0, 0.0);
        self.tail *= TAIL_KEEP;
        for place in 0..groups.groups.len() {
            let group = groups.groups[place];
            for number in 0..group.len() {
                let (member, reference) = groups.member(groups.number(&group, number));
                if member.is_proven() || (member.others as usize) < MIN_PEERS {
                    continue;
                }
                let value = member.excess - reference;
                squares += (value * value).min(MOST * deviation * deviation);
                count += 1.0;
                let fast = &mut ranks.fast[member.place.slot as usize];
                let before = std::mem::take(fast);
                if value < LEAST {
                    if before > 0.0 {
                        self.tail = self.tail.max(before);
                    }
                    continue;
                }
                *fast = value;
                let beside = match group.len() > MIN_PEERS {
                    true => groups.beside(&member),
                    false => Beside { level: value, ..Beside::NOBODY },
                };
                let excursion = Excursion { value, before, deviation, beside };
                let around = groups.around(&group, 0);
                ranks.change(member.place.slot, |one| {
                    if self.weigh(one, &member, &excursion, base, &around, next_id) {
                        let row = &base.rows[member.place.row as usize];
                        one.cases.tell_work(groups.work(place, base.rows, row));
                    }
                });
            }
        }
        if count > 0.0 {
            self.squares = self.squares * KEEP + squares / count;
            self.weight = self.weight * KEEP + 1.0;
        }
    }

    /// An excursion that lasts, or is enormous, is proof. Whether it is.
    fn weigh(
        &self,
        one: &mut One<'_>,
        member: &Member,
        excursion: &Excursion,
        base: &Base<'_>,
        around: &Around,
        next_id: &mut u64,
    ) -> bool {
        let Excursion { value, before, deviation, beside } = *excursion;
        let mut row = base.rows[member.place.row as usize];
        row.window = base.recent[0].0 + 1;
        if before == 0.0 {
            one.cases.fast_since = (row.window, row.start_time_ns());
        }
        let sometimes = one.cases.sometimes.is_some() || one.score.high.count_ones() >= OFTEN;
        if sometimes || beside.level < LEAST / 2.0 {
            return false;
        }
        let stated = if row.own_se.is_nan() { 0.0 } else { row.own_se / row.own };
        let error = deviation.max(stated / TRUSTED);
        let noise = base.limit * error;
        let mut shift = (before + value) / 2.0;
        let once = value >= ONCE.max(ONCE_TAIL * self.tail).max(noise);
        let twice = before > 0.0 && shift >= TWICE.max(TWICE_TAIL * self.tail).max(noise);
        if !once && !twice {
            return false;
        }
        if once {
            shift = value;
        }
        let (since, history) = (one.cases.fast_since, base.config.history_windows);
        let cases = &mut **one.cases;
        let case = cases.case.get_or_insert_with(|| {
            let id = *next_id;
            *next_id += 1;
            Box::new(Case::new(id, State::Confirmed, since))
        });
        (case.state, case.how, case.since) = (State::Confirmed, How::Fast, since);
        (case.recovery, case.quiet) = (0.0, 0);
        (case.base, case.shift, case.windows) = (one.score.series.center(), shift, 1);
        case.deviate = case.deviate.max(shift / deviation);
        one.score.series.forget_run(case.base, 0, history);
        (*one.fast, cases.named) = (0.0, since.0 + 1);
        case.finding = Some(straggler(case, member, &row, around, beside, value, error));
        one.tell();
        true
    }
}
