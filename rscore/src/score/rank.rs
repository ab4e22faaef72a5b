//! Scores of one rank, and what a series says.

use super::estimate::level_limit;
use super::groups::Group;
use super::life::{Evidence, Life};
use super::series::{pooled_noise, witness, Series, Test};
use super::{reason, Basis, Config, Finding, Kind, State};
use crate::window::{flag, RankWindow};

/// Windows before a change is looked for: against peers, and against the past alone.
const LEARN_PEERS: u32 = 3;
pub(super) const LEARN_HISTORY: u32 = 8;
/// Least lasting slowdown of one rank against its past alone (ln).
const HISTORY_LEAST: f64 = 0.05;
/// Windows in a row that prove a slow rank.
const RANK_RUN: usize = 2;
/// Share of the level limit that confirms a suspected change, and windows that it lasts.
const SECOND_WITNESS: f64 = 0.7;
const SECOND_WITNESS_RUN: usize = 4;
/// Windows after which a run without proof is taken as usual, if it is no larger (ln).
const UNPROVEN_WINDOWS: usize = 16;
const UNPROVEN_SHIFT: f64 = 0.1;

/// A rank.
#[derive(Debug, Default)]
pub(super) struct RankScore {
    pub signature: u64,
    pub class_id: u32,
    pub peers: Series,
    pub history: Series,
    pub gross: u32,
    pub gross_since: (u64, u64),
    pub life: Life,
    pub shown: Option<Finding>,
    pub missing: u32,
}

/// What a series says.
pub(super) struct Change {
    pub evidence: Evidence,
    pub since: (u64, u64),
    /// Windows and mean of the slow run.
    pub windows: usize,
    pub mean: f64,
    pub proof: f64,
}

/// What one rank's window says.
pub(super) struct Verdict {
    pub evidence: Evidence,
    pub since: (u64, u64),
    pub basis: Basis,
    /// ln(own / reference).
    pub difference: f64,
    pub reference: f64,
    pub deviation: f64,
    pub confidence: f64,
    pub peers: usize,
}

impl RankScore {
    pub fn push_history(&mut self, value: f64, row: &RankWindow, test: &Test) {
        let (pooled_noise, degrees) =
            pooled_noise(&mut [self.history.squares()], witness(row).noise);
        let test = Test { pooled_noise, degrees, ..*test };
        self.history.push(value, row.window, row.start_time_ns(), LEARN_HISTORY, &test);
    }

    pub fn judge_peers(
        &mut self,
        value: f64,
        others: f64,
        group: &Group,
        row: &RankWindow,
        test: &Test,
        config: &Config,
    ) -> Result<Verdict, &'static str> {
        let difference = value - others;
        let peers = group.len() - 1;
        self.peers.push(difference, row.window, row.start_time_ns(), LEARN_PEERS, test);
        let limit = level_limit(group.spread, peers);
        if difference > limit {
            if self.gross == 0 {
                self.gross_since = (row.window, row.start_time_ns());
            }
            self.gross += 1;
        } else if difference < 0.6 * limit {
            self.gross = 0;
        }
        let Change { mut evidence, mut since, windows, mean, proof } =
            change(&mut self.peers, difference, test, &self.life, RANK_RUN);
        // A baseline of few windows may never prove a change alone; then a change to a level
        // that is hardly natural, and of that size itself, is the second witness.
        let least = SECOND_WITNESS * limit;
        let unnatural = mean.min(difference).min(mean - self.peers.baseline()) >= least;
        if evidence == Evidence::Weak && unnatural && windows >= SECOND_WITNESS_RUN {
            evidence = Evidence::Strong;
        }
        // Slower than its own past and still no slower than the peers costs nobody anything.
        if evidence >= Evidence::Weak && mean < test.least / 2.0 {
            evidence = Evidence::Open;
        }
        if self.gross > 0 {
            let proven = self.gross > config.confirm_windows;
            let level = if proven { Evidence::Strong } else { Evidence::Weak };
            if evidence < level {
                (evidence, since) = (level, self.gross_since);
            }
        }
        if self.peers.count() < LEARN_PEERS && evidence < Evidence::Weak {
            return Err(reason::LEARNING);
        }
        let deviation = self.peers.deviation(test);
        let level = if self.gross > 0 { difference / group.spread.max(0.03) } else { 0.0 };
        Ok(Verdict {
            evidence,
            since,
            basis: Basis::Peers,
            difference,
            reference: others,
            deviation,
            confidence: confidence(proof.max(level * level / 2.0)),
            peers,
        })
    }

    pub fn judge_history(
        &mut self,
        value: f64,
        peers: usize,
        row: &RankWindow,
        test: &Test,
    ) -> Result<Verdict, &'static str> {
        let test = Test { least: test.least.max(HISTORY_LEAST), ..*test };
        self.gross = 0;
        self.history.push(value, row.window, row.start_time_ns(), LEARN_HISTORY, &test);
        if self.history.count() < LEARN_HISTORY {
            return Err(reason::NO_PEERS);
        }
        let Change { evidence, since, proof, .. } =
            change(&mut self.history, value, &test, &self.life, RANK_RUN);
        Ok(Verdict {
            evidence,
            since,
            basis: Basis::History,
            difference: value - self.history.baseline(),
            reference: self.history.baseline(),
            deviation: self.history.deviation(&test),
            confidence: confidence(proof),
            peers,
        })
    }

    pub fn conclude(
        &mut self,
        verdict: &Verdict,
        row: &RankWindow,
        slowest: (f64, f64),
        config: &Config,
        next_id: &mut u64,
    ) {
        let window = row.window;
        if !self.life.advance(verdict.evidence, window, verdict.since, config, next_id) {
            self.shown = None;
            return;
        }
        if self.life.state() == Some(State::Cleared) {
            self.peers.calm();
            self.history.calm();
            if self.gross_since.0 == self.life.since().0 {
                // It was slow from the start, so its baseline was learnt slow.
                self.peers = Series::default();
            }
        }
        let unit = if row.flags & flag::STEPS_NOT_INFERRED == 0 { 1.0 } else { row.wall };
        let reference = verdict.reference.exp() * unit;
        // A synchronous job gains no more than the next slowest allows.
        let next = if row.own >= slowest.0 { slowest.1 } else { slowest.0 };
        let bound = reference.max(if verdict.peers > 0 { next.min(row.own) } else { 0.0 });
        let error = 1.96 * row.own * verdict.deviation;
        let mut shown =
            finding(&self.life, row, verdict.difference, row.own, bound, error, verdict.peers);
        shown.rank = Some(row.rank);
        shown.class_id = Some(row.class_id);
        shown.signature = Some(row.signature);
        shown.basis = verdict.basis;
        shown.confidence = verdict.confidence;
        shown.peers_own_ns = match verdict.basis {
            Basis::Peers => reference,
            Basis::History => f64::NAN,
        };
        self.shown = Some(shown);
    }
}

/// What a series says: evidence, start of the slow run, its mean and its proof. `windows` is
/// how many windows in a row have to be slow.
pub(super) fn change(
    series: &mut Series,
    value: f64,
    test: &Test,
    life: &Life,
    windows: usize,
) -> Change {
    let baseline = series.baseline();
    let none = Change {
        evidence: Evidence::Calm,
        since: life.since(),
        windows: 0,
        mean: value,
        proof: 0.0,
    };
    let Some(shift) = series.shift(test) else { return none };
    let size = shift.mean - baseline;
    let usual = (0.4 * size).max(0.5 * test.least);
    let high = value - baseline >= usual;
    let lasting = size >= test.least
        && shift.windows >= windows
        && series.lowest_of_last(windows) - baseline >= usual;
    let evidence = match shift.proof {
        _ if life.is_proven() && high => Evidence::Strong,
        _ if life.is_proven() => Evidence::Calm,
        proof if proof >= test.limit && lasting => Evidence::Strong,
        proof if proof >= test.limit / 2.0 && high && size >= test.least => Evidence::Weak,
        proof if proof >= test.limit / 2.0 => Evidence::Open,
        _ => Evidence::Calm,
    };
    let small = size < UNPROVEN_SHIFT;
    if small && evidence < Evidence::Weak && !life.is_proven() && shift.windows > UNPROVEN_WINDOWS {
        series.absorb(test);
    }
    Change {
        evidence,
        since: (shift.window, shift.time_ns),
        windows: shift.windows,
        mean: shift.mean,
        proof: shift.proof,
    }
}

/// One minus the chance that a CUSUM (or a squared deviate over two) gets so far by itself.
pub(super) fn confidence(sum: f64) -> f64 {
    (1.0 - (-sum).exp()).clamp(0.5, 0.9999)
}

pub(super) fn finding(
    life: &Life,
    row: &RankWindow,
    difference: f64,
    own: f64,
    bound: f64,
    error: f64,
    peers: usize,
) -> Finding {
    let inferred = row.flags & flag::STEPS_NOT_INFERRED == 0;
    let cost = (own - bound).max(0.0);
    let known = |value: f64| inferred.then_some(value);
    Finding {
        id: life.id(),
        job: row.job,
        kind: Kind::Straggler,
        state: life.state().unwrap_or(State::Suspect),
        rank: None,
        class_id: None,
        signature: None,
        since_window: life.since().0,
        since_time_ns: life.since().1,
        window: row.window,
        slowdown: difference.exp() - 1.0,
        cost_ns: known(cost),
        cost_low_ns: known((cost - error).max(0.0)),
        cost_high_ns: known(cost + error),
        cost_fraction: (cost / row.wall).clamp(0.0, 1.0),
        confidence: 0.5,
        basis: Basis::Peers,
        own_ns: own,
        peers_own_ns: bound,
        peers: peers as u32,
    }
}
