//! Scores of one job: every rank against its peers and its past, then the groups.

use std::collections::BTreeMap;

use super::estimate::{cusum_limit, median_without, spread_without};
use super::groups::{Group, Groups};
use super::life::{Evidence, Life};
use super::rank::{change, confidence, finding, Change, RankScore, LEARN_HISTORY};
use super::series::{pooled_noise, witness, Series, Test};
use super::{Abstention, Basis, Config, Finding, Kind, State, Update};
use crate::window::{flag, RankWindow};

/// Peers that can outvote a rank.
const MIN_PEERS: usize = 3;
/// Groups in which one member counts for the spread.
const SMALL_GROUP: usize = 16;
/// Least lasting slowdown of the job against its past (ln).
const JOB_LEAST: f64 = 0.07;
/// Least difference of classes or signatures (ln), in spreads too, and windows that it lasts.
const GROUP_LEAST: f64 = 0.0953;
const GROUP_SPREADS: f64 = 3.0;
const GROUP_WINDOWS: u32 = 3;
/// Windows in a row that prove a slow job: bursts hit everybody at once.
const JOB_RUN: usize = 4;
/// Windows without a row after which a rank is forgotten.
const MISSING_WINDOWS: u32 = 10;

/// A class, a signature, or the job.
#[derive(Debug, Default)]
struct GroupScore {
    run: u32,
    since: (u64, u64),
    life: Life,
    shown: Option<Finding>,
    seen: bool,
}

/// Everything that is kept of one job.
#[derive(Debug, Default)]
pub(super) struct JobScore {
    pub last_call: u64,
    window: Option<u64>,
    ranks: BTreeMap<u32, RankScore>,
    wide: GroupScore,
    wide_series: Series,
    wide_key: u64,
    groups: Groups,
    compared: BTreeMap<(Kind, u64), GroupScore>,
    noises: Vec<(f64, f64)>,
    scratch: Vec<f64>,
}

impl JobScore {
    /// Last window that was scored.
    pub fn last_window(&self) -> Option<u64> {
        self.window
    }

    /// Takes the accepted rows of one window.
    pub fn update(
        &mut self,
        rows: &[RankWindow],
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        let Some(first) = rows.first() else { return };
        self.window = Some(first.window);
        let mut groups = std::mem::take(&mut self.groups);
        groups.build(rows, &mut update.abstentions);
        self.ranks.values_mut().for_each(|rank| rank.missing += 1);
        for row in rows {
            self.ranks.entry(row.rank).or_default().missing = 0;
        }
        for group in &groups.groups {
            self.score_group(group, &groups, rows, config, next_id, update);
        }
        self.score_job(&groups, rows, config, next_id);
        self.compare_groups(&groups, rows, config, next_id);
        self.groups = groups;
        self.show(update);
    }

    fn score_group(
        &mut self,
        group: &Group,
        groups: &Groups,
        rows: &[RankWindow],
        config: &Config,
        next_id: &mut u64,
        update: &mut Update,
    ) {
        let members = &groups.members[group.from..group.to];
        let values = &groups.values[group.from..group.to];
        let against_peers = members.len() > MIN_PEERS;
        let mut noises = std::mem::take(&mut self.noises);
        let (mut products, mut squares) = (0.0, 0.0);
        noises.clear();
        for member in members {
            let row = &rows[member.row];
            let rank = self.ranks.entry(row.rank).or_default();
            if rank.signature != row.signature || rank.class_id != row.class_id {
                rank.peers = Series::default();
                rank.history = Series::default();
                (rank.signature, rank.class_id, rank.gross) = (row.signature, row.class_id, 0);
            }
            let series = if against_peers { &rank.peers } else { &rank.history };
            noises.push(series.squares());
            let terms = series.correlation_terms();
            products += terms.0;
            squares += terms.1;
        }
        // The least witness of them is the measure for all.
        let witnesses = || members.iter().map(|member| witness(&rows[member.row]));
        let noise = witnesses().map(|witness| witness.noise).fold(0.0, f64::max);
        let clip = witnesses().map(|witness| witness.clip).fold(f64::INFINITY, f64::min);
        let (pooled_noise, degrees) = pooled_noise(&mut noises, noise);
        let test = Test {
            pooled_noise,
            degrees,
            // Few products say little about a correlation.
            correlation: products / squares.max(f64::MIN_POSITIVE) * degrees / (degrees + 20.0),
            stated_error: 0.0,
            clip,
            least: (1.0 + config.min_slowdown).ln(),
            limit: cusum_limit(config.false_alarms_per_million),
            history: config.history_windows,
        };
        self.noises = noises;
        let mut slow = 0;
        let mut verdicts = Vec::with_capacity(members.len());
        for (place, member) in members.iter().enumerate() {
            let row = &rows[member.row];
            let stated_error = if row.own_se.is_nan() { 0.0 } else { row.own_se / row.own };
            let test = Test { stated_error, ..test };
            let others = median_without(values, place);
            let Some(rank) = self.ranks.get_mut(&row.rank) else { continue };
            let verdict = if against_peers {
                rank.push_history(member.value, row, &test);
                let group = match members.len() {
                    n if n <= SMALL_GROUP => {
                        Group { spread: spread_without(values, place, &mut self.scratch), ..*group }
                    }
                    _ => *group,
                };
                rank.judge_peers(member.value, others, &group, row, &test, config)
            } else {
                rank.judge_history(member.value, members.len() - 1, row, &test)
            };
            match verdict {
                Ok(verdict) => {
                    slow += usize::from(verdict.evidence == Evidence::Strong);
                    verdicts.push((member.row, verdict));
                }
                Err(reason) => {
                    let (job, window) = (row.job, row.window);
                    update.abstentions.push(Abstention { job, rank: row.rank, window, reason });
                }
            }
        }
        // Without peers, everybody slower than before is the job and not a rank.
        let together = !against_peers && slow > 1 && slow == members.len();
        let slowest = groups.slowest_two(rows, group.signature);
        for (place, mut verdict) in verdicts {
            let row = &rows[place];
            if together {
                verdict.evidence = Evidence::Open;
            }
            if let Some(rank) = self.ranks.get_mut(&row.rank) {
                rank.conclude(&verdict, row, slowest, config, next_id);
            }
        }
    }

    /// Everybody slower than before: even the fastest quarter is.
    fn score_job(
        &mut self,
        groups: &Groups,
        rows: &[RankWindow],
        config: &Config,
        next_id: &mut u64,
    ) {
        let key = groups.groups.iter().fold(0, |key, group| key ^ group.signature);
        if key != self.wide_key {
            self.wide_key = key;
            self.wide_series = Series::default();
            self.wide.seen = false;
        }
        if groups.members.len() < 2 {
            return;
        }
        let fast = |group: &Group| groups.values[group.from + (group.len() - 1) / 4];
        let total: usize = groups.groups.iter().map(Group::len).sum();
        let value =
            groups.groups.iter().map(|g| fast(g) * g.len() as f64).sum::<f64>() / total as f64;
        let row = &rows[groups.members[0].row];
        let series = &mut self.wide_series;
        let (pooled_noise, degrees) = pooled_noise(&mut [series.squares()], witness(row).noise);
        let test = Test {
            pooled_noise,
            degrees,
            correlation: {
                let (products, squares) = series.correlation_terms();
                products / squares.max(f64::MIN_POSITIVE)
            },
            stated_error: 0.0,
            clip: witness(row).clip,
            least: JOB_LEAST.max((1.0 + config.min_slowdown).ln()),
            limit: cusum_limit(config.false_alarms_per_million),
            history: config.history_windows,
        };
        series.push(value, row.window, row.start_time_ns(), LEARN_HISTORY, &test);
        let Change { evidence, since, proof, .. } =
            change(series, value, &test, &self.wide.life, JOB_RUN);
        let difference = value - series.baseline();
        let baseline = series.baseline();
        let score = &mut self.wide;
        if !score.life.advance(evidence, row.window, since, config, next_id) {
            score.shown = None;
            return;
        }
        if score.life.state() == Some(State::Cleared) {
            self.wide_series.calm();
        }
        let inferred = row.flags & flag::STEPS_NOT_INFERRED == 0;
        let unit = if inferred { 1.0 } else { row.wall };
        let own = value.exp() * unit;
        let noise = own * self.wide_series.deviation(&test) * 1.96;
        score.shown = Some(Finding {
            kind: Kind::JobWide,
            basis: Basis::History,
            confidence: confidence(proof),
            ..finding(&score.life, row, difference, own, baseline.exp() * unit, noise, 0)
        });
    }

    /// Classes within a signature, and signatures within a class.
    fn compare_groups(
        &mut self,
        groups: &Groups,
        rows: &[RankWindow],
        config: &Config,
        next_id: &mut u64,
    ) {
        self.compared.values_mut().for_each(|score| score.seen = false);
        let large = |group: &&Group| group.len() >= 2;
        for group in groups.groups.iter().filter(large) {
            let first = &rows[groups.members[group.from].row];
            let inferred = first.flags & flag::STEPS_NOT_INFERRED == 0;
            for kind in [Kind::Imbalance, Kind::UnevenWork] {
                let related = |other: &&Group| match kind {
                    Kind::Imbalance => {
                        other.signature == group.signature && other.class_id != group.class_id
                    }
                    _ => {
                        inferred
                            && other.class_id == group.class_id
                            && other.signature != group.signature
                    }
                };
                let others = || groups.groups.iter().filter(large).filter(related);
                let Some(reference) = others().map(|g| g.median).min_by(f64::total_cmp) else {
                    continue;
                };
                let spread = others().map(|g| g.spread).fold(group.spread, f64::max);
                let difference = group.median - reference;
                let key = match kind {
                    Kind::Imbalance => (kind, u64::from(group.class_id)),
                    _ => (kind, group.signature),
                };
                let score = self.compared.entry(key).or_default();
                if score.seen {
                    continue;
                }
                score.seen = true;
                let evidence = score.count(difference, spread, first);
                let since = score.since;
                if !score.life.advance(evidence, first.window, since, config, next_id) {
                    score.shown = None;
                    continue;
                }
                let unit = if inferred { 1.0 } else { first.wall };
                let (own, other) = (group.median.exp() * unit, reference.exp() * unit);
                let error = own * spread / (group.len() as f64).sqrt() * 1.96;
                let imbalance = kind == Kind::Imbalance;
                score.shown = Some(Finding {
                    kind,
                    class_id: imbalance.then_some(group.class_id),
                    signature: (!imbalance).then_some(group.signature),
                    confidence: confidence(difference / spread.max(0.01)),
                    ..finding(&score.life, first, difference, own, other, error, group.len())
                });
            }
        }
        for score in self.compared.values_mut().filter(|score| !score.seen) {
            score.run = 0;
            if let (true, Some(shown)) = (score.life.end(), &mut score.shown) {
                shown.state = State::Cleared;
            }
        }
        self.compared.retain(|_, score| score.seen || score.shown.is_some());
    }

    fn show(&mut self, update: &mut Update) {
        for rank in self.ranks.values_mut().filter(|rank| rank.missing > MISSING_WINDOWS) {
            rank.life.end();
            if let Some(shown) = &mut rank.shown {
                shown.state = State::Cleared;
            }
        }
        let lives = self.ranks.values_mut().map(|rank| &mut rank.shown);
        let groups = self.compared.values_mut().map(|score| &mut score.shown);
        for shown in lives.chain([&mut self.wide.shown]).chain(groups) {
            if let Some(finding) = shown {
                update.findings.push(finding.clone());
                if finding.state == State::Cleared {
                    *shown = None;
                }
            }
        }
        self.ranks.retain(|_, rank| rank.missing <= MISSING_WINDOWS);
    }
}

impl GroupScore {
    fn count(&mut self, difference: f64, spread: f64, row: &RankWindow) -> Evidence {
        let limit = GROUP_LEAST.max(GROUP_SPREADS * spread);
        if difference > limit {
            if self.run == 0 {
                self.since = (row.window, row.start_time_ns());
            }
            self.run += 1;
            return if self.run >= GROUP_WINDOWS { Evidence::Strong } else { Evidence::Weak };
        }
        if difference > 0.7 * limit && self.run > 0 {
            return Evidence::Open;
        }
        self.run = 0;
        Evidence::Calm
    }
}
