//! The scan of a series for a run of windows that is slow. The text is `stragd/scoring/series.py`;
//! both sides do the same operations in the same order.

use super::case::Evidence;
use super::estimate::{student_limit, RUN};
use super::series::{Lanes, Series, CHAIN, CHAINS};
use super::vector::Vector;

/// Windows before a run, at least.
pub(super) const LEAST_PAST: usize = 3;
/// Share of the limit that a run must reach without its largest window.
const REST: f64 = 0.6;
pub(super) const SUSPECT_SHARE: f64 = 0.7;

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

/// What no run of newest windows of a series exceeds: the sum of the newest m values is at most
/// `height + m * slope`. It follows from the last one and the new value (a CUSUM, Page 1954), and
/// most windows need no scan for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ceiling<V> {
    pub slope: V,
    pub height: V,
}

/// Largest value that a ceiling is taken of (ln); windows are far below.
const LARGEST: f64 = 1e3;
/// More than rounding moves sums of 32 such values, and less than any deviation; and a share that
/// is more than it moves a product.
const ROUNDING: f64 = 1e-8;
const DOWNWARD: f64 = 1.0 - 1e-9;

impl Ceiling<f64> {
    /// Of a series that was not looked at.
    pub const UNKNOWN: Ceiling<f64> = Ceiling { slope: 0.0, height: f64::INFINITY };

    /// The slope is such that the ceiling lasts: that of the threshold, which runs of m windows
    /// are held against and which rises with sqrt(m), from the shortest to the longest.
    pub fn of(series: &Series, center: f64, threshold: f64) -> Ceiling<f64> {
        let count = series.count() as f64;
        let longest = f64::from(series.length).min(count - LEAST_PAST as f64);
        let mut slope = center;
        if longest > 1.0 {
            let rise = (longest * (count - longest) / count).sqrt() - (1.0 - 1.0 / count);
            slope += threshold * rise / (longest - 1.0);
        }
        let bounded = |value: f64| value.abs() <= LARGEST;
        let (mut sum, mut height) = (0.0, 0.0);
        for window in 0..series.length as usize {
            let value = f64::from(series.value(window));
            if !bounded(value) || !bounded(slope) {
                return Ceiling::UNKNOWN;
            }
            sum += value - slope;
            height = f64::max(height, sum);
        }
        Ceiling { slope, height }
    }
}

impl<V: Vector> Ceiling<V> {
    /// That of the series with one more value.
    #[inline(always)]
    pub fn push(self, value: V) -> Ceiling<V> {
        let height = (self.height + (value - self.slope)).max(V::splat(0.0));
        let (most, least) = (V::splat(LARGEST), V::splat(-LARGEST));
        let bounded = value.up_to(most) & least.up_to(value);
        Ceiling { slope: self.slope, height: height.or(bounded, V::splat(f64::INFINITY)) }
    }

    /// Whether `scan` finds no run that reaches `threshold`. A sum of m values less m means is
    /// below a line, and what it is held against, with sqrt(m (count - m) / count), bends
    /// downwards: what holds of the shortest and the longest run holds of all.
    #[inline(always)]
    pub fn is_below(self, threshold: V, center: V, count: V, longest: V) -> V::Mask {
        let (height, rise) = (self.height, self.slope - center);
        let (threshold, rounding) = (threshold * V::splat(DOWNWARD), V::splat(ROUNDING));
        let least = V::splat(1.0) - V::splat(1.0) / count;
        let most = (longest * (count - longest) / count).sqrt();
        (height + rise).up_to(threshold * least - rounding)
            & (height + longest * rise).up_to(threshold * most - rounding)
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

impl Series {
    /// Windows of the longest run that a scan looks at.
    fn longest_run(&self) -> usize {
        (self.length as usize).min(self.count().saturating_sub(LEAST_PAST))
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

impl Test {
    /// What a run must reach to be looked at.
    pub fn threshold(&self) -> f64 {
        SUSPECT_SHARE * self.limit * (self.deviation * self.long_run)
    }
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

/// Of each run, the sum of its values and its deviate.
///
/// A run of m windows after n others has the deviate (mean of m - mean of n) over
/// sqrt(1 / m + 1 / n) standard deviations, which is (sum of m - m mean of all) over
/// sqrt(m n / (m + n)); neighbours that resemble each other count as fewer.
#[inline(always)]
fn deviates(
    series: &Series,
    center: f64,
    longest: usize,
    widths: &mut Widths,
) -> (Lanes<f64>, Lanes<f64>) {
    let sums = prefix_sums(&series.values);
    let inverse = widths.of(series.count(), longest);
    let mut deviates: Lanes<f64> = Lanes::default();
    for place in 0..CHAIN {
        for chain in 0..CHAINS {
            let over = sums[place][chain] - WINDOWS[place][chain] * center;
            deviates[place][chain] = over * inverse[place][chain];
        }
    }
    (sums, deviates)
}

/// The ceiling of a series in which `scan` finds no run that reaches `threshold`; none where it
/// may find one.
pub(super) fn ceiling_of_calm(
    series: &Series,
    center: f64,
    threshold: f64,
    widths: &mut Widths,
) -> Option<Ceiling<f64>> {
    let (_, deviates) = deviates(series, center, series.longest_run(), widths);
    let calm = largest(&deviates) < threshold * DOWNWARD;
    calm.then(|| Ceiling::of(series, center, threshold))
}

/// The run of newest windows that differs most from all before it. The newest window alone may be
/// a suspicion.
#[inline(always)]
pub(super) fn scan(series: &Series, center: f64, test: &Test, widths: &mut Widths) -> Change {
    let longest = series.longest_run();
    let (sums, deviates) = deviates(series, center, longest, widths);
    if largest(&deviates) < test.threshold() {
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
    let newest = deviates[0];
    let runs = &deviates[(test.shortest - 1).min(longest)..longest];
    let proof = runs.iter().copied().fold(0.0, f64::max);
    if newest.max(proof) < test.threshold() {
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
    let long_run = test.deviation * test.long_run;
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

#[cfg(test)]
mod tests {
    use super::super::series::{Noise, Spread};
    use super::*;

    #[test]
    fn a_ceiling_hides_no_run() {
        let (mut seed, mut widths) = (3u64, Widths::default());
        let mut uniform = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let noise = Noise::of_one(&Spread::default(), 0.001);
        let (mut hidden, mut seen, mut windows) = (0, 0, 0);
        for series_number in 0..300 {
            let (mut series, mut spread) = (Series::default(), Spread::default());
            let mut ceiling = Ceiling::UNKNOWN;
            let (offset, shift_at) = (uniform() * 10.0 - 5.0, 20 + series_number % 80);
            for window in 0..140 {
                let jitter = (0..6).map(|_| uniform() - 0.5).sum::<f64>();
                let shift = if window >= shift_at { uniform() * 2.0 } else { 0.0 };
                let value = offset + 0.01 * (jitter + shift);
                series.push(value, 0.01, &mut spread, &noise, 60);
                ceiling = ceiling.push(f64::from(series.value(0)));
                let test = Test {
                    deviation: 0.007 * (0.8 + 0.4 * uniform()),
                    degrees: 100.0,
                    long_run: 1.0 + uniform() / 2.0,
                    limit: 2.0 + 4.0 * uniform(),
                    least: 0.0,
                    shortest: 1,
                    share: 0.0,
                };
                let (count, center) = (series.count() as f64, series.center());
                let longest = f64::from(series.length).min(count - LEAST_PAST as f64);
                let below =
                    longest >= 1.0 && ceiling.is_below(test.threshold(), center, count, longest);
                let change = scan(&series, center, &test, &mut widths);
                windows += 1;
                if below {
                    hidden += 1;
                    assert_eq!(change.evidence, Evidence::Calm, "{series_number}, {window}");
                } else {
                    ceiling = Ceiling::of(&series, center, test.threshold());
                    seen += u32::from(change.evidence > Evidence::Calm);
                }
            }
        }
        assert!(hidden > windows / 4 && seen > windows / 20, "{hidden}, {seen} of {windows}");
    }
}
