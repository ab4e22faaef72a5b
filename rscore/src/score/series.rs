//! One series of logarithmic differences: slow baseline, learnt noise, one-sided CUSUM.

use super::estimate::widening;
use crate::window::{flag, source, RankWindow};

/// Noise below this is not believed (ln): windows differ by more than their steps say.
const NOISE_FLOOR: f64 = 0.004;
/// What to expect of windows by who timed them.
#[derive(Debug)]
pub(super) struct Witness {
    /// Noise before anything was learnt (ln).
    pub noise: f64,
    /// Largest standardised deviation of one window: a single one never proves a change.
    pub clip: f64,
}

/// Host times carry the machine's scheduling, which may hold up one rank for a window or two.
const HOST: Witness = Witness { noise: 0.02, clip: 8.0 };
/// Device times carry only what the device does.
const DEVICE: Witness = Witness { noise: 0.006, clip: 12.0 };

/// How many values the noise that is expected is worth.
const PRIOR_WEIGHT: f64 = 2.0;
/// How many values of its own the group's noise is worth to a rank.
const GROUP_WEIGHT: f64 = 4.0;
/// Least drift of the CUSUM, in deviations.
const DRIFT: f64 = 0.5;
/// Values of a slow run that are kept for its change point.
const RUN: usize = 64;

/// One value of a run above the baseline.
#[derive(Clone, Copy, Debug)]
struct Point {
    window: u64,
    time_ns: u64,
    value: f64,
}

/// Who timed a window.
pub(super) fn witness(row: &RankWindow) -> &'static Witness {
    match row.source == source::DEVICE_RING && row.flags & flag::HOST_TIMED == 0 {
        true => &DEVICE,
        false => &HOST,
    }
}

/// Noise of a group (ln) from the (squares, weight) of its series, and the values behind it.
/// The noisiest eighth, at least one of four, is left out: it may be what is looked for.
pub(super) fn pooled_noise(terms: &mut [(f64, f64)], prior: f64) -> (f64, f64) {
    terms.sort_unstable_by(|a, b| (a.0 / a.1.max(1.0)).total_cmp(&(b.0 / b.1.max(1.0))));
    let kept = match terms.len() {
        n if n >= 4 => n - (n / 8).max(1),
        n => n,
    };
    let (mut squares, mut weight) = (PRIOR_WEIGHT * prior * prior, PRIOR_WEIGHT);
    for term in &terms[..kept] {
        squares += term.0;
        weight += term.1;
    }
    ((squares / weight).sqrt().max(NOISE_FLOOR), weight)
}

/// A slow run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shift {
    pub window: u64,
    pub time_ns: u64,
    pub windows: usize,
    /// Mean of the run (ln).
    pub mean: f64,
    /// The smaller of the CUSUM and half the squared deviate of the mean: chance is exp(-proof).
    pub proof: f64,
}

/// State of one series.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    count: u32,
    baseline: f64,
    /// Sum of weights and weighted squares of deviations from the baseline.
    weight: f64,
    squares: f64,
    products: f64,
    previous: f64,
    /// Deviation of the last value, if it was far down: noise, or the begin of a shift.
    far: Option<f64>,
    sum: f64,
    run: Vec<Point>,
}

/// What a series is tested with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Test {
    /// Noise of the group (ln); the rank's own counts where it is larger.
    pub pooled_noise: f64,
    /// Values behind `pooled_noise`.
    pub degrees: f64,
    /// Correlation of a window with the next.
    pub correlation: f64,
    /// Standard error that the window states of itself (ln).
    pub stated_error: f64,
    /// Largest standardised deviation that one window counts with.
    pub clip: f64,
    /// Shift that matters (ln).
    pub least: f64,
    /// CUSUM above which the baseline is held.
    pub limit: f64,
    pub history: u32,
}

impl Series {
    /// Values so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Level that counts as usual.
    pub fn baseline(&self) -> f64 {
        self.baseline
    }

    /// Least of the last `n` values of the run (ln).
    pub fn lowest_of_last(&self, n: usize) -> f64 {
        let last = &self.run[self.run.len().saturating_sub(n)..];
        last.iter().map(|point| point.value).fold(f64::INFINITY, f64::min)
    }

    /// Weighted squares of the deviations from the baseline, and the sum of the weights.
    pub fn squares(&self) -> (f64, f64) {
        (self.squares, self.weight)
    }

    /// Weighted products of neighbours and squares, for a correlation pooled over the group.
    pub fn correlation_terms(&self) -> (f64, f64) {
        (self.products, self.squares)
    }

    /// Deviation of one window used for tests (ln). A rank may be noisier than its group, and
    /// is not believed to be quieter.
    pub fn deviation(&self, test: &Test) -> f64 {
        let group = test.pooled_noise * test.pooled_noise;
        let own = (self.squares + GROUP_WEIGHT * group) / (self.weight + GROUP_WEIGHT);
        let noise = own.max(group).sqrt().max(NOISE_FLOOR) * widening(test.degrees);
        noise.max(test.stated_error) * (1.0 + 1.0 / f64::from(self.count.max(1))).sqrt()
    }

    /// Correlation of neighbours, as far as noise is what they differ by: far below the
    /// deviation that is believed, it thins no evidence out.
    fn correlation(&self, deviation: f64, test: &Test) -> f64 {
        let noise = self.squares / self.weight.max(1.0);
        let share = (2.0 * noise / (deviation * deviation)).min(1.0);
        test.correlation.clamp(0.0, 0.8) * share
    }

    /// Takes the value of one window. Until `learn` values it only learns.
    pub fn push(&mut self, value: f64, window: u64, time_ns: u64, learn: u32, test: &Test) {
        if self.count < learn {
            self.learn(value, test, 1.0);
            return;
        }
        let deviation = self.deviation(test);
        let z = (value - self.baseline) / deviation;
        // Neighbours that resemble each other count as fewer.
        let rho = self.correlation(deviation, test);
        let thin = ((1.0 - rho) / (1.0 + rho)).sqrt();
        let drift = DRIFT.max(test.least / (2.0 * deviation)).min(test.clip / 2.0);
        self.sum = (self.sum + (z.min(test.clip) - drift) * thin).clamp(0.0, 4.0 * test.limit);
        if self.run.len() == RUN {
            self.run.remove(0);
        }
        self.run.push(Point { window, time_ns, value });
        // What may be the begin of a slow run is learnt only when it came to nothing.
        if self.sum == 0.0 {
            let mut run = std::mem::take(&mut self.run);
            run.iter().for_each(|point| self.learn(point.value, test, deviation));
            run.clear();
            self.run = run;
        }
    }

    fn learn(&mut self, value: f64, test: &Test, deviation: f64) {
        self.count = self.count.saturating_add(1);
        let n = f64::from(self.count);
        let error = value - self.baseline;
        if self.count == 1 {
            self.baseline = value;
            return;
        }
        // Far values move the baseline no further than the limit of a usual one.
        let rate = (1.0 / n).max(1.0 / f64::from(test.history));
        let step = if n > 4.0 { error.clamp(-3.0 * deviation, 3.0 * deviation) } else { error };
        self.baseline += rate * step;
        // Deviation from a mean of n - 1 values is wider than the noise by n / (n - 1).
        let unbiased = step * ((n - 1.0) / n).sqrt();
        // A shift down that lasts is no noise: half of a group gets faster than its peers when
        // the other half slows down, and that must not hide them. One value alone is noise.
        let waiting = self.far.take();
        if n > 4.0 && error < -3.0 * deviation {
            self.far = Some(unbiased);
            return;
        }
        for deviate in waiting.into_iter().chain([unbiased]) {
            let keep = 1.0 - 1.0 / f64::from(test.history);
            self.products = self.products * keep + deviate * self.previous;
            self.squares = self.squares * keep + deviate * deviate;
            self.weight = self.weight * keep + 1.0;
            self.previous = deviate;
        }
    }

    /// The slow run, if there is one: where it began (the point that splits best for the shift
    /// it shows), its mean, and how sure its shift is.
    pub fn shift(&self, test: &Test) -> Option<Shift> {
        let recent = &self.run[self.run.len().saturating_sub(3)..];
        if recent.is_empty() {
            return None;
        }
        let size =
            recent.iter().map(|p| p.value).sum::<f64>() / recent.len() as f64 - self.baseline;
        let (mut sum, mut least, mut start) = (0.0, 0.0, 0);
        for (place, point) in self.run.iter().enumerate() {
            sum += point.value - self.baseline - size / 2.0;
            if sum < least {
                (least, start) = (sum, place + 1);
            }
        }
        let tail = &self.run[start.min(self.run.len() - 1)..];
        let n = tail.len() as f64;
        // The baseline is a mean too, of few windows at first; neighbours count as fewer.
        let deviation = self.deviation(test);
        let rho = self.correlation(deviation, test);
        let known = f64::from(self.count.min(test.history));
        let error = ((1.0 + rho) / (1.0 - rho) * (1.0 / n + 1.0 / known.max(1.0))).sqrt();
        let clipped = tail.iter().map(|p| ((p.value - self.baseline) / deviation).min(test.clip));
        let deviate = clipped.sum::<f64>() / n / error;
        Some(Shift {
            window: tail[0].window,
            time_ns: tail[0].time_ns,
            windows: tail.len(),
            mean: tail.iter().map(|p| p.value).sum::<f64>() / n,
            proof: self.sum.min(deviate.max(0.0) * deviate.max(0.0) / 2.0),
        })
    }

    /// A run that proves nothing for so long was usual after all.
    pub fn absorb(&mut self, test: &Test) {
        let deviation = self.deviation(test);
        let run = std::mem::take(&mut self.run);
        run.iter().for_each(|point| self.learn(point.value, test, deviation));
        self.sum = 0.0;
    }

    /// The run is over, and nothing of it was usual.
    pub fn calm(&mut self) {
        self.sum = 0.0;
        self.run.clear();
    }
}
