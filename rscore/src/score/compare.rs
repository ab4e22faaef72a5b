//! Classes within a signature (imbalance), and signatures within a class (uneven work).

use std::collections::{BTreeMap, HashMap};

use super::case::{suspect, Case, Evidence};
use super::finding::finding;
use super::groups::{Group, Groups};
use super::{Config, Finding, Kind, State};
use crate::window::{flag, RankWindow};

/// Least difference of classes or signatures (ln 1.1), in spreads too, and windows that it lasts.
const LEAST: f64 = 0.09531017980432493;
const SPREADS: f64 = 3.0;
const WINDOWS: u32 = 3;

/// A class or a signature against the others of its kind.
#[derive(Debug, Default)]
pub(super) struct Compared {
    pub run: u32,
    pub since: (u64, u64),
    pub case: Option<Box<Case>>,
    seen: bool,
}

/// A rank that is confirmed to be slow.
pub(super) struct Straggler {
    pub signature: u64,
    /// What it works beyond its peers; NaN without any.
    pub extra_ns: f64,
}

/// By kind, and class or signature.
pub(super) type Comparisons = BTreeMap<(Kind, u64), Compared>;

/// Groups that differ in class only, or in signature only: the two smallest medians, the number
/// of groups, and the largest spread.
#[derive(Clone, Copy)]
struct Related {
    first: f64,
    second: f64,
    count: usize,
    spread: f64,
}

type Bucket = (Kind, u32, u64);

fn bucket(kind: Kind, group: &Group) -> Bucket {
    let (signature, inferred, class) = group.key;
    (kind, inferred, if kind == Kind::Imbalance { signature } else { u64::from(class) })
}

/// One window.
pub(super) fn compare(
    compared: &mut Comparisons,
    groups: &Groups,
    rows: &[RankWindow],
    stragglers: &[Straggler],
    config: &Config,
    next_id: &mut u64,
) {
    compared.values_mut().for_each(|score| score.seen = false);
    if groups.groups.len() > 1 {
        let large = || groups.groups.iter().filter(|group| group.len() >= 2);
        let mut alike: HashMap<Bucket, Related> = HashMap::new();
        for group in large() {
            for kind in [Kind::Imbalance, Kind::UnevenWork] {
                let none = Related {
                    first: f64::INFINITY,
                    second: f64::INFINITY,
                    count: 0,
                    spread: group.spread,
                };
                let related = alike.entry(bucket(kind, group)).or_insert(none);
                related.count += 1;
                related.spread = related.spread.max(group.spread);
                if group.median < related.first {
                    (related.first, related.second) = (group.median, related.first);
                } else if group.median < related.second {
                    related.second = group.median;
                }
            }
        }
        for group in large() {
            for kind in [Kind::Imbalance, Kind::UnevenWork] {
                let related = alike[&bucket(kind, group)];
                if related.count > 1 && (kind == Kind::Imbalance || group.key.1 == 0) {
                    let first = groups.number(group, 0);
                    let row = &rows[groups.members.places[first].row as usize];
                    let waited = stragglers.iter().filter(|one| one.signature != group.key.0);
                    let waited = waited.map(|one| one.extra_ns).fold(0.0, f64::max);
                    judge(compared, kind, group, &related, row, waited, config, next_id);
                }
            }
        }
    }
    for score in compared.values_mut().filter(|score| !score.seen) {
        score.run = 0;
        if let Some(case) = &mut score.case {
            case.state = State::Cleared;
            if let Some(shown) = &mut case.finding {
                shown.state = State::Cleared;
            }
        }
    }
    compared.retain(|_, score| score.seen || score.case.is_some());
}

/// One group against the fastest of the others. `waited_ns`: what a slow rank of another signature
/// works beyond its peers.
#[allow(clippy::too_many_arguments)]
fn judge(
    compared: &mut Comparisons,
    kind: Kind,
    group: &Group,
    related: &Related,
    row: &RankWindow,
    waited_ns: f64,
    config: &Config,
    next_id: &mut u64,
) {
    let imbalance = kind == Kind::Imbalance;
    let number = if imbalance { u64::from(group.key.2) } else { group.key.0 };
    let score = compared.entry((kind, number)).or_default();
    if score.seen {
        return;
    }
    score.seen = true;
    let reference = if group.median <= related.first { related.second } else { related.first };
    let difference = group.median - reference;
    let mut evidence = score.count(difference, related.spread, row);
    // Behind a slow rank of another stage, the wait of a whole stage can pass for its work.
    let extra = group.median.exp() - reference.exp();
    if !imbalance && evidence >= Evidence::Weak && waited_ns >= extra {
        evidence = Evidence::Open;
    }
    match score.case.as_mut().filter(|case| case.is_proven()) {
        Some(case) => case.count(evidence, config),
        None => suspect(&mut score.case, evidence, row.window, score.since, config, next_id),
    }
    let Some(case) = &mut score.case else { return };
    let unit = if row.flags & flag::STEPS_NOT_INFERRED == 0 { 1.0 } else { row.wall };
    let (own, other) = (group.median.exp() * unit, reference.exp() * unit);
    case.deviate = difference / related.spread.max(0.01);
    let error = related.spread / (group.len() as f64).sqrt();
    let shown = finding(case, kind, row, difference, own, other, error, 1.0);
    case.finding = Some(Finding {
        class_id: imbalance.then_some(group.key.2),
        signature: (!imbalance).then_some(group.key.0),
        peers: group.len() as u32,
        ..shown
    });
}

impl Compared {
    fn count(&mut self, difference: f64, spread: f64, row: &RankWindow) -> Evidence {
        let limit = LEAST.max(SPREADS * spread);
        if difference > limit {
            if self.run == 0 {
                self.since = (row.window, row.start_time_ns());
            }
            self.run += 1;
            return if self.run >= WINDOWS { Evidence::Strong } else { Evidence::Weak };
        }
        if difference > 0.7 * limit && self.run > 0 {
            return Evidence::Open;
        }
        self.run = 0;
        Evidence::Calm
    }
}
