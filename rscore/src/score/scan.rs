//! The scan of a series for a run of windows that is slow. The text is `stragd/scoring/series.py`;
//! both sides do the same operations in the same order.

use super::case::Evidence;
use super::estimate::{student_limit, RUN};
use super::series::{Lanes, Series, CHAIN, CHAINS};

/// Windows before a run, at least.
pub(super) const LEAST_PAST: usize = 3;
/// Share of the limit that a run must reach without its largest window.
const REST: f64 = 0.6;
const SUSPECT_SHARE: f64 = 0.7;

/// What the scan of one series says: the newest `windows` are slower by `shift` (ln) than `before`
/// (the mean of all others, relative to the anchor); `deviate` in standard deviations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Change {
    pub evidence: Evidence,
    pub windows: usize,
    pub before: f64,
    pub shift: f64,
    pub deviate: f64,
}

impl Change {
    pub fn none(evidence: Evidence) -> Change {
        Change { evidence, windows: 0, before: 0.0, shift: 0.0, deviate: 0.0 }
    }
}

/// 1 / sqrt(m n / (m + n)) of a run of m windows after n others: ranks that have been there as
/// long share them. 0 for a run that is not looked at.
#[derive(Clone, Debug)]
struct Table {
    count: usize,
    longest: usize,
    inverse: Lanes<f64>,
}

/// The tables of some lengths, by the last digits of those.
#[derive(Debug)]
pub(super) struct Widths {
    tables: Vec<Table>,
}

impl Default for Widths {
    fn default() -> Widths {
        let none = Table { count: 0, longest: 0, inverse: Lanes::default() };
        Widths { tables: vec![none; 16] }
    }
}

impl Widths {
    fn of(&mut self, count: usize, longest: usize) -> &Lanes<f64> {
        let table = &mut self.tables[count % 16];
        if (table.count, table.longest) != (count, longest) {
            *table = Table { count, longest, inverse: Lanes::default() };
            for windows in 1..=longest {
                let (m, past) = (windows as f64, (count - windows) as f64);
                let place = (windows - 1) % CHAIN;
                table.inverse[place][(windows - 1) / CHAIN] =
                    1.0 / (m * past / count as f64).sqrt();
            }
        }
        &table.inverse
    }
}

/// What a scan is held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    pub deviation: f64,
    pub degrees: f64,
    /// `Noise::long_run`.
    pub long_run: f64,
    /// Standard deviations, of a Gaussian.
    pub limit: f64,
    /// Least shift that matters (ln).
    pub least: f64,
    /// Least run that proves anything, and the share of its windows that is slow at least.
    pub shortest: usize,
    pub share: f64,
}

/// Windows of a run, by its place.
const WINDOWS: Lanes<f64> = {
    let mut windows = [[0.0; CHAINS]; CHAIN];
    let mut run = 0;
    while run < RUN {
        windows[run % CHAIN][run / CHAIN] = (run + 1) as f64;
        run += 1;
    }
    windows
};

/// Sums of the newest 1, 2, ... values. As one chain, each would wait for the last.
#[inline(always)]
fn prefix_sums(values: &Lanes<f32>) -> Lanes<f64> {
    let mut sums: Lanes<f64> = Lanes::default();
    let mut chains = [0.0; CHAINS];
    for (sums, values) in sums.iter_mut().zip(values) {
        for ((sum, chain), value) in sums.iter_mut().zip(&mut chains).zip(values) {
            *chain += f64::from(*value);
            *sum = *chain;
        }
    }
    let mut before = [0.0; CHAINS];
    for chain in 1..CHAINS {
        before[chain] = before[chain - 1] + chains[chain - 1];
    }
    for sums in &mut sums {
        for (sum, before) in sums.iter_mut().zip(&before) {
            *sum += before;
        }
    }
    sums
}

/// The largest of all, or 0.
#[inline(always)]
fn largest(values: &Lanes<f64>) -> f64 {
    let mut most = [0.0; CHAINS];
    for values in values {
        for (most, value) in most.iter_mut().zip(values) {
            *most = if *value > *most { *value } else { *most };
        }
    }
    most.into_iter().fold(0.0, f64::max)
}

/// The run of newest windows that differs most from all before it.
///
/// A run of m windows after n others has the deviate (mean of m - mean of n) over
/// sqrt(1 / m + 1 / n) standard deviations, which is (sum of m - m mean of all) over
/// sqrt(m n / (m + n)); neighbours that resemble each other count as fewer. The newest window
/// alone may be a suspicion.
#[inline(always)]
pub(super) fn scan(series: &Series, center: f64, test: &Test, widths: &mut Widths) -> Change {
    let count = series.count();
    let longest = (series.length as usize).min(count.saturating_sub(LEAST_PAST));
    let sums = prefix_sums(&series.values);
    let inverse = widths.of(count, longest);
    let mut deviates: Lanes<f64> = Lanes::default();
    for place in 0..CHAIN {
        for chain in 0..CHAINS {
            let over = sums[place][chain] - WINDOWS[place][chain] * center;
            deviates[place][chain] = over * inverse[place][chain];
        }
    }
    if largest(&deviates) < SUSPECT_SHARE * test.limit * (test.deviation * test.long_run) {
        return Change::none(Evidence::Calm);
    }
    let in_order = |lanes: &Lanes<f64>| std::array::from_fn(|w| lanes[w % CHAIN][w / CHAIN]);
    weigh(series, center, test, longest, &in_order(&sums), &in_order(&deviates))
}

/// What the deviates and sums of the runs say, when one may say something.
#[cold]
fn weigh(
    series: &Series,
    center: f64,
    test: &Test,
    longest: usize,
    sums: &[f64; RUN],
    deviates: &[f64; RUN],
) -> Change {
    let count = series.count();
    let long_run = test.deviation * test.long_run;
    let newest = deviates[0];
    let runs = &deviates[(test.shortest - 1).min(longest)..longest];
    let proof = runs.iter().copied().fold(0.0, f64::max);
    if newest.max(proof) < SUSPECT_SHARE * test.limit * long_run {
        return Change::none(Evidence::Calm);
    }
    let proof_windows = || {
        let place = runs.iter().position(|deviate| *deviate == proof);
        place.unwrap_or_default() + test.shortest
    };
    let sizes = |windows: usize| {
        let before = (count as f64 * center - sums[windows - 1]) / (count - windows) as f64;
        (before, sums[windows - 1] / windows as f64 - before)
    };
    let limit = student_limit(test.limit, test.degrees) * long_run;
    if proof >= limit {
        let windows = proof_windows();
        let (before, shift) = sizes(windows);
        let (rest, slow) = slow_throughout(series, windows, sums[windows - 1], before, shift);
        if shift >= test.least && rest >= REST * limit && slow >= test.share {
            let (evidence, deviate) = (Evidence::Strong, proof / long_run);
            return Change { evidence, windows, before, shift, deviate };
        }
    }
    let best = newest.max(proof);
    if best < SUSPECT_SHARE * limit {
        return Change::none(Evidence::Calm);
    }
    let windows = if newest > proof { 1 } else { proof_windows() };
    let (before, shift) = sizes(windows);
    if shift < test.least || f64::from(series.value(0)) < before + shift / 2.0 {
        return Change::none(Evidence::Calm);
    }
    let (evidence, deviate) = (Evidence::Weak, best / long_run);
    Change { evidence, windows, before, shift, deviate }
}

/// (Deviate of a run without its largest window: no single one makes a case; share of its windows
/// above half of the shift.)
fn slow_throughout(
    series: &Series,
    windows: usize,
    total: f64,
    before: f64,
    shift: f64,
) -> (f64, f64) {
    let others = windows as f64 - 1.0;
    let (mut largest, mut slow) = (f64::from(series.value(0)), 0);
    for window in 0..windows {
        let value = f64::from(series.value(window));
        largest = largest.max(value);
        slow += u32::from(value - before > shift / 2.0);
    }
    let rest = (total - largest - others * before) / others.sqrt();
    (rest, f64::from(slow) / windows as f64)
}
