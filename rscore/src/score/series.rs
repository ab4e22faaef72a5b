//! One series of logarithms: its past, its noise, and the scan for a run that is slow. The text
//! is `stragd/scoring/series.py`; both sides do the same operations in the same order.

use super::case::Evidence;
use super::estimate::{student_limit, RUN};

/// Noise of a window before anything was learnt (ln), and how many differences that is worth.
const NOISE_PRIOR: f64 = 0.02;
const PRIOR_WEIGHT: f64 = 2.0;
/// Memory of the noise: 200 windows.
const NOISE_KEEP: f64 = 0.995;
/// Differences of neighbours that tell as much of a variance as one value does.
const DIFFERENCES: f64 = 1.5;
/// Degrees of freedom that machines of a kind share before anything was learnt of how alike their
/// noise is, and how many ranks that is worth.
const ALIKE: f64 = 60.0;
const ALIKE_RANKS: f64 = 8.0;
/// Windows before a run, at least.
pub(super) const LEAST_PAST: usize = 3;
/// Share of the limit that a run must reach without its largest window.
const REST: f64 = 0.6;
const SUSPECT_SHARE: f64 = 0.7;

/// What the members of a group say about the noise of one window (ln).
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// Half the mean squared difference of neighbouring windows.
    differences: f64,
    variance: f64,
    /// Of a window with the next one, as it is believed: a little above the estimate.
    correlation: f64,
    /// Degrees of freedom of a member that the group lends it.
    alike: f64,
    degrees: f64,
}

impl Noise {
    /// How much wider a mean of many windows is than if they did not resemble their neighbours.
    pub fn long_run(&self) -> f64 {
        ((1.0 + self.correlation) / (1.0 - self.correlation)).sqrt()
    }
}

/// State of one series. `values` are relative to `anchor`, the newest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub anchor: f64,
    pub base: f64,
    pub known: u32,
    pub length: u32,
    pub values: [f32; RUN],
    pub near: f64,
    pub near_weight: f64,
    pub far: f64,
    pub far_weight: f64,
}

impl Series {
    /// Windows that it remembers.
    pub fn count(&self) -> usize {
        (self.known + self.length) as usize
    }

    fn newest(&self) -> &[f32] {
        &self.values[..self.length as usize]
    }

    /// Mean of all that it remembers, relative to the anchor.
    pub fn center(&self) -> f64 {
        let mut total = 0.0;
        for value in self.newest() {
            total += f64::from(*value);
        }
        (f64::from(self.known) * self.base + total) / self.count() as f64
    }

    /// Takes the value of one window; the oldest of the newest becomes past.
    pub fn push(&mut self, value: f64, deviation: f64, noise: &Noise, history: u32) {
        if self.length > 0 {
            self.learn_noise(value, noise);
        }
        if self.length as usize == RUN {
            let mut step = f64::from(self.values[RUN - 1]) - self.base;
            if self.known > 4 {
                step = step.max(-3.0 * deviation).min(3.0 * deviation);
            }
            self.base += (1.0 / f64::from(self.known + 1)).max(1.0 / f64::from(history)) * step;
            self.known = (self.known + 1).min(history);
        }
        self.values.copy_within(..RUN - 1, 1);
        self.values[0] = value as f32;
        self.length = (self.length + 1).min(RUN as u32);
    }

    /// From differences, which a lasting shift enters once and a baseline never.
    fn learn_noise(&mut self, value: f64, noise: &Noise) {
        let own = match self.near_weight > 0.0 {
            true => self.near / self.near_weight,
            false => noise.differences,
        };
        let most = 18.0 * noise.differences.max(own);
        let error = value - f64::from(self.values[0]);
        self.near = self.near * NOISE_KEEP + (error * error).min(most) / 2.0;
        self.near_weight = self.near_weight * NOISE_KEEP + 1.0;
        if self.length > 1 {
            let error = value - f64::from(self.values[1]);
            self.far = self.far * NOISE_KEEP + (error * error).min(most) / 2.0;
            self.far_weight = self.far_weight * NOISE_KEEP + 1.0;
        }
    }

    /// Its own noise over the group's.
    fn ratio(&self, differences: f64) -> f64 {
        match self.near_weight > 0.0 {
            true => (self.near / self.near_weight / differences).min(9.0),
            false => 1.0,
        }
    }

    /// Standard deviation of one window, and the degrees of freedom behind it. The group's
    /// variance is a prior (scaled inverse chi-square) of `noise.alike` degrees.
    pub fn deviation(&self, noise: &Noise, stated: f64) -> (f64, f64) {
        let own = self.near_weight / DIFFERENCES;
        let share = (noise.alike + own * self.ratio(noise.differences)) / (noise.alike + own);
        let variance = (noise.variance * share).max(stated * stated);
        (variance.sqrt(), (noise.alike + own).min(noise.degrees))
    }

    /// A run is proven slow: only what was before it stays.
    pub fn forget_run(&mut self, before: f64, windows: usize, history: u32) {
        self.base += before;
        self.known = ((self.count() - windows) as u32).min(history);
        self.length = 0;
    }
}

/// Noise of a group, from its members in the order of their ranks.
pub(super) fn pool<'a>(members: impl Iterator<Item = &'a Series> + Clone, floor: f64) -> Noise {
    let (mut near, mut near_weight) = (PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR, PRIOR_WEIGHT);
    let (mut far, mut far_weight) = (0.0, 0.0);
    for series in members.clone() {
        near += series.near;
        near_weight += series.near_weight;
        far += series.far;
        far_weight += series.far_weight;
    }
    let differences = (near / near_weight).max(1e-12);
    // An AR(1) has lag-1 differences of (1 - rho) and lag-2 ones of (1 - rho^2) variances.
    let mut correlation = 0.0;
    if far_weight > 0.0 {
        correlation = (far / far_weight / differences - 1.0).max(0.0).min(0.9);
    }
    let variance = (differences / (1.0 - correlation)).max(floor * floor);
    let degrees = near_weight / DIFFERENCES;
    let believed = (correlation + 0.5 / degrees.sqrt()).min(0.9);
    let alike = likeness(members, differences);
    Noise { differences, variance, correlation: believed, alike, degrees }
}

/// How alike the members' noise is, in degrees of freedom: what their variances differ beyond
/// what the estimates themselves do (2 / degrees each).
fn likeness<'a>(members: impl Iterator<Item = &'a Series> + Clone, differences: f64) -> f64 {
    let (mut count, mut total, mut weight) = (0.0, 0.0, 0.0);
    for series in members.clone() {
        count += 1.0;
        total += series.ratio(differences);
        weight += series.near_weight;
    }
    let mean = total / count;
    let mut squares = 0.0;
    for series in members {
        let error = series.ratio(differences) - mean;
        squares += error * error;
    }
    let extra = (squares / count - 2.0 * DIFFERENCES / f64::max(weight / count, 1.0)).max(0.0);
    let between = (ALIKE_RANKS * (2.0 / ALIKE) + count * extra) / (ALIKE_RANKS + count);
    (2.0 / between).max(8.0).min(1000.0)
}

/// What the scan of one series says. `deviate` is in standard deviations.
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

/// 1 / sqrt(m n / (m + n)) of a run of m windows after n others, by m; every rank that has been
/// there as long shares them.
#[derive(Clone, Debug)]
pub(super) struct Widths {
    count: usize,
    inverse: [f64; RUN + 1],
}

impl Default for Widths {
    fn default() -> Widths {
        Widths { count: 0, inverse: [0.0; RUN + 1] }
    }
}

impl Widths {
    fn of(&mut self, count: usize) -> &[f64; RUN + 1] {
        if self.count != count {
            self.count = count;
            for windows in 1..=RUN.min(count.saturating_sub(1)) {
                let (m, past) = (windows as f64, (count - windows) as f64);
                self.inverse[windows] = 1.0 / (m * past / count as f64).sqrt();
            }
        }
        &self.inverse
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
    /// Least run that proves anything.
    pub shortest: usize,
}

/// The run of newest windows that differs most from all before it.
///
/// A run of m windows after n others has the deviate (mean of m - mean of n) over
/// sqrt(1 / m + 1 / n) standard deviations; neighbours that resemble each other count as fewer.
pub(super) fn scan(series: &Series, test: &Test, widths: &mut Widths) -> Change {
    let count = series.count();
    let long_run = test.deviation * test.long_run;
    let mut total = 0.0;
    for value in series.newest() {
        total += f64::from(*value) - series.base;
    }
    let mean = total / count as f64;
    let longest = series.newest().len().min(count.saturating_sub(LEAST_PAST));
    let inverse = widths.of(count);
    let (mut run, mut best, mut best_windows, mut best_run) = (0.0, 0.0, 0, 0.0);
    let (mut proof, mut proof_windows, mut proof_run) = (0.0, 0, 0.0);
    for (place, value) in series.newest()[..longest].iter().enumerate() {
        let windows = place + 1;
        run += f64::from(*value) - series.base;
        let deviate = (run - windows as f64 * mean) * inverse[windows];
        if deviate > best {
            (best, best_windows, best_run) = (deviate, windows, run);
        }
        if windows >= test.shortest && deviate > proof {
            (proof, proof_windows, proof_run) = (deviate, windows, run);
        }
    }
    if best < SUSPECT_SHARE * test.limit * long_run {
        return Change::none(Evidence::Calm);
    }
    let limit = student_limit(test.limit, test.degrees) * long_run;
    if proof >= limit {
        if let Some((before, shift)) =
            proven(series, total, proof_run, proof_windows, limit, test.least)
        {
            let deviate = proof / long_run;
            let evidence = Evidence::Strong;
            return Change { evidence, windows: proof_windows, before, shift, deviate };
        }
    }
    if best >= SUSPECT_SHARE * limit {
        let before = (total - best_run) / (count - best_windows) as f64;
        let shift = best_run / best_windows as f64 - before;
        let newest = f64::from(series.values[0]) - series.base;
        if shift >= test.least && newest >= before + shift / 2.0 {
            let (evidence, windows, deviate) = (Evidence::Weak, best_windows, best / long_run);
            return Change { evidence, windows, before, shift, deviate };
        }
    }
    Change::none(Evidence::Calm)
}

/// Whether the run is slow throughout: no single window makes a case, and most are slow.
fn proven(
    series: &Series,
    total: f64,
    run: f64,
    windows: usize,
    limit: f64,
    least: f64,
) -> Option<(f64, f64)> {
    let m = windows as f64;
    let before = (total - run) / (series.count() - windows) as f64;
    let shift = run / m - before;
    let (mut largest, mut slow) = (f64::from(series.values[0]) - series.base, 0);
    for value in &series.values[..windows] {
        let value = f64::from(*value) - series.base;
        largest = largest.max(value);
        slow += usize::from(value - before > shift / 2.0);
    }
    let rest = (run - largest - (m - 1.0) * before) / (m - 1.0).sqrt();
    (shift >= least && rest >= REST * limit && 2 * slow > windows).then_some((before, shift))
}
