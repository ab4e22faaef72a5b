//! One series of logarithms: its past, its noise, and the scan for a run that is slow. The text
//! is `stragd/scoring/series.py`; both sides do the same operations in the same order.

use super::case::Evidence;
use super::estimate::{student_limit, RUN};

/// Noise of a window before anything was learnt (ln), and how many differences that is worth.
const NOISE_PRIOR: f64 = 0.02;
const PRIOR_WEIGHT: f64 = 2.0;
/// Noise of a window over the standard error that it states: steps resemble each other.
const STATED: f64 = 3.0;
/// Differences that the rest of the job is worth to a group, at most.
const LENT: f64 = 24.0;
/// Memory of the noise: 200 windows.
const NOISE_KEEP: f64 = 0.995;
/// Differences of neighbours that tell as much of a variance as one value does.
const DIFFERENCES: f64 = 1.5;
/// Degrees of freedom that machines of a kind share before anything was learnt of how alike their
/// noise is, and how many ranks that is worth.
const ALIKE: f64 = 60.0;
const ALIKE_RANKS: f64 = 4.0;
/// Twice the squared standard deviations of a difference (4.5) that is no noise.
const JUMP: f64 = 40.0;
/// Differences that speak for no correlation before anything was learnt.
const UNCORRELATED: f64 = 10.0;
/// Standard errors, and the factor, by which a correlation is believed to be larger than its
/// estimate: it is the group's, and one rank's may be above it.
const MARGIN: f64 = 0.5;
const RELATIVE: f64 = 1.1;
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
    pub variance: f64,
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
    /// Sum of `values`.
    pub total: f64,
}

impl Series {
    /// Windows that it remembers.
    pub fn count(&self) -> usize {
        (self.known + self.length) as usize
    }

    /// Mean of all that it remembers, relative to the anchor.
    pub fn center(&self) -> f64 {
        (f64::from(self.known) * self.base + self.total) / self.count() as f64
    }

    /// Takes the value of one window; the oldest of the newest becomes past.
    pub fn push(
        &mut self,
        value: f64,
        deviation: f64,
        spread: &mut Spread,
        noise: &Noise,
        history: u32,
    ) {
        if self.length > 0 {
            let second = (self.length > 1).then(|| f64::from(self.values[1]));
            spread.learn(value, f64::from(self.values[0]), second, noise);
        }
        if self.length as usize == RUN {
            let oldest = f64::from(self.values[RUN - 1]);
            self.total -= oldest;
            let mut step = oldest - self.base;
            if self.known > 4 {
                step = step.max(-3.0 * deviation).min(3.0 * deviation);
            }
            self.base += (1.0 / f64::from(self.known + 1)).max(1.0 / f64::from(history)) * step;
            self.known = (self.known + 1).min(history);
        }
        self.values.copy_within(..RUN - 1, 1);
        self.values[0] = value as f32;
        self.total += f64::from(self.values[0]);
        self.length = (self.length + 1).min(RUN as u32);
    }

    /// A run is proven slow: only what was `before` it stays.
    pub fn forget_run(&mut self, before: f64, windows: usize, history: u32) {
        self.base = before;
        self.known = ((self.count() - windows) as u32).min(history);
        (self.length, self.total) = (0, 0.0);
    }
}

/// What the differences of a series say about its noise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub near: f64,
    pub near_weight: f64,
    pub far: f64,
    pub far_weight: f64,
}

impl Spread {
    /// A lasting shift enters differences once, and a baseline never.
    fn learn(&mut self, value: f64, last: f64, second: Option<f64>, noise: &Noise) {
        let own = match self.near_weight > 0.0 {
            true => self.near / self.near_weight,
            false => noise.differences,
        };
        let most = 18.0 * noise.differences.max(own);
        let error = value - last;
        self.near = self.near * NOISE_KEEP + (error * error).min(most) / 2.0;
        self.near_weight = self.near_weight * NOISE_KEEP + 1.0;
        let Some(second) = second else { return };
        // A jump is in two of these and in one of the others, and would look like correlation.
        let jump = JUMP * noise.differences.max(own);
        let (before, both) = (last - second, value - second);
        if (error * error).max(before * before).max(both * both / 2.0) < jump {
            self.far = self.far * NOISE_KEEP + both * both / 2.0;
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
    pub fn deviation(&self, noise: &Noise) -> (f64, f64) {
        let own = self.near_weight / DIFFERENCES;
        let share = (noise.alike + own * self.ratio(noise.differences)) / (noise.alike + own);
        ((noise.variance * share).sqrt(), (noise.alike + own).min(noise.degrees))
    }
}

/// What is believed of a group's noise before it is looked at, and what its job has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    near: f64,
    weight: f64,
    /// Whether the group is among those that it was made of.
    inside: bool,
}

impl Default for Prior {
    fn default() -> Prior {
        let near = PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR;
        Prior { near, weight: PRIOR_WEIGHT, inside: false }
    }
}

impl Prior {
    /// (Sum, weight) without a group that has these.
    fn rest(&self, near: f64, near_weight: f64) -> (f64, f64) {
        if !self.inside {
            return (self.near, self.weight);
        }
        ((self.near - near).max(0.0), (self.weight - near_weight).max(PRIOR_WEIGHT))
    }
}

/// What a whole job says about the noise of its groups. `stated` is the median of the standard
/// errors that its windows state (ln), 0 where none does.
pub(super) fn lend<'a>(everybody: impl Iterator<Item = &'a Spread>, stated: f64) -> Prior {
    let start = if stated > 0.0 { (STATED * stated).min(NOISE_PRIOR) } else { NOISE_PRIOR };
    let (mut near, mut weight) = (PRIOR_WEIGHT * start * start, PRIOR_WEIGHT);
    for one in everybody {
        near += one.near;
        weight += one.near_weight;
    }
    Prior { near, weight, inside: true }
}

/// Noise of a group, from its members in the order of their ranks.
pub(super) fn pool<'a>(
    members: impl Iterator<Item = &'a Spread> + Clone,
    floor: f64,
    prior: Prior,
) -> Noise {
    let (mut near, mut near_weight, mut far, mut far_weight) = (0.0, 0.0, 0.0, 0.0);
    for one in members.clone() {
        near += one.near;
        near_weight += one.near_weight;
        far += one.far;
        far_weight += one.far_weight;
    }
    // An AR(1) has lag-1 differences of (1 - rho) and lag-2 ones of (1 - rho^2) variances.
    let mut correlation = 0.0;
    if far_weight > 0.0 && near > 0.0 {
        correlation = (far / far_weight / (near / near_weight) - 1.0).clamp(0.0, 0.9);
        correlation *= far_weight / (far_weight + UNCORRELATED);
    }
    let (rest, rest_weight) = prior.rest(near, near_weight);
    let lent = rest_weight.min(LENT);
    near += lent * (rest / rest_weight);
    near_weight += lent;
    let differences = (near / near_weight).max(1e-12);
    let variance = (differences / (1.0 - correlation)).max(floor * floor);
    let degrees = near_weight / DIFFERENCES;
    let believed = (RELATIVE * correlation + MARGIN / degrees.sqrt()).min(0.9);
    let alike = likeness(members, differences);
    Noise { differences, variance, correlation: believed, alike, degrees }
}

/// How alike the members' noise is, in degrees of freedom: what their variances differ beyond
/// what the estimates themselves do (2 / degrees each).
fn likeness<'a>(members: impl Iterator<Item = &'a Spread>, differences: f64) -> f64 {
    let (mut count, mut total, mut squares, mut weight) = (0.0, 0.0, 0.0, 0.0);
    for one in members {
        let ratio = one.ratio(differences);
        count += 1.0;
        total += ratio;
        squares += ratio * ratio;
        weight += one.near_weight;
    }
    let mean = total / count;
    let differ = squares / count - mean * mean;
    let extra = (differ - 2.0 * DIFFERENCES / f64::max(weight / count, 1.0)).max(0.0);
    let between = (ALIKE_RANKS * (2.0 / ALIKE) + count * extra) / (ALIKE_RANKS + count);
    (2.0 / between).clamp(8.0, 1000.0)
}

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

/// 1 / sqrt(m n / (m + n)) of a run of m windows after n others, m from 1; every rank that has
/// been there as long shares them.
#[derive(Clone, Debug, Default)]
pub(super) struct Widths {
    count: usize,
    inverse: [f64; RUN],
}

impl Widths {
    fn of(&mut self, count: usize) -> &[f64; RUN] {
        if self.count != count {
            self.count = count;
            for windows in 1..=RUN.min(count.saturating_sub(1)) {
                let (m, past) = (windows as f64, (count - windows) as f64);
                self.inverse[windows - 1] = 1.0 / (m * past / count as f64).sqrt();
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
    /// Least run that proves anything, and the share of its windows that is slow at least.
    pub shortest: usize,
    pub share: f64,
}

/// Sums of the newest 1, 2, ... values. Four by four: as one chain, each would wait for the last.
fn prefix_sums(values: &[f32; RUN]) -> [f64; RUN] {
    let (mut sums, mut block) = ([0.0; RUN], 0.0);
    for from in (0..RUN).step_by(4) {
        let value = |place: usize| f64::from(values[from + place]);
        let one = value(0);
        let two = one + value(1);
        let three = two + value(2);
        let four = three + value(3);
        sums[from] = block + one;
        sums[from + 1] = block + two;
        sums[from + 2] = block + three;
        sums[from + 3] = block + four;
        block = sums[from + 3];
    }
    sums
}

/// The largest of some values, or 0. Four chains: one would wait for each comparison.
fn largest(values: &[f64]) -> f64 {
    let mut most = [0.0; 4];
    for values in values.chunks(4) {
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
pub(super) fn scan(series: &Series, test: &Test, widths: &mut Widths) -> Change {
    let (count, center) = (series.count(), series.center());
    let long_run = test.deviation * test.long_run;
    let longest = (series.length as usize).min(count.saturating_sub(LEAST_PAST));
    let sums = prefix_sums(&series.values);
    let inverse = widths.of(count);
    let mut deviates = [0.0; RUN];
    for (place, deviate) in deviates[..longest].iter_mut().enumerate() {
        *deviate = (sums[place] - (place + 1) as f64 * center) * inverse[place];
    }
    let newest = deviates[0];
    let runs = &deviates[(test.shortest - 1).min(longest)..longest];
    let proof = largest(runs);
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
        let run = &series.values[..windows];
        let (rest, slow) = slow_throughout(run, sums[windows - 1], before, shift);
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
    if shift < test.least || f64::from(series.values[0]) < before + shift / 2.0 {
        return Change::none(Evidence::Calm);
    }
    let (evidence, deviate) = (Evidence::Weak, best / long_run);
    Change { evidence, windows, before, shift, deviate }
}

/// (Deviate of a run without its largest window: no single one makes a case; share of its windows
/// above half of the shift.)
fn slow_throughout(run: &[f32], total: f64, before: f64, shift: f64) -> (f64, f64) {
    let others = run.len() as f64 - 1.0;
    let (mut largest, mut slow) = (f64::from(run[0]), 0);
    for value in run {
        let value = f64::from(*value);
        largest = largest.max(value);
        slow += u32::from(value - before > shift / 2.0);
    }
    let rest = (total - largest - others * before) / others.sqrt();
    (rest, f64::from(slow) / run.len() as f64)
}
