//! One series of logarithmic differences: slow baseline, learnt noise, one-sided CUSUM.

use super::estimate::widening;

/// Noise below this is not believed (ln): windows differ by more than their steps say.
const NOISE_FLOOR: f64 = 0.004;
/// Noise before anything was learnt (ln), and how many values that is worth.
const NOISE_PRIOR: f64 = 0.02;
const PRIOR_WEIGHT: f64 = 2.0;
/// Largest standardised deviation of one window: a single one never proves a change.
const CLIP: f64 = 8.0;
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

    /// Sum of standardised excesses.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Learnt standard deviation (ln), with the prior.
    pub fn noise(&self) -> f64 {
        let prior = PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR;
        ((self.squares + prior) / (self.weight + PRIOR_WEIGHT)).sqrt().max(NOISE_FLOOR)
    }

    /// Values that the noise was learnt from.
    pub fn degrees(&self) -> f64 {
        self.weight
    }

    /// Weighted products of neighbours and squares, for a correlation pooled over the group.
    pub fn correlation_terms(&self) -> (f64, f64) {
        (self.products, self.squares)
    }

    /// Deviation of one window used for tests (ln).
    pub fn deviation(&self, test: &Test) -> f64 {
        let own = self.noise() * widening(self.weight + PRIOR_WEIGHT);
        let pooled = test.pooled_noise * widening(test.degrees + PRIOR_WEIGHT);
        // A rank may be noisier than its peers; quieter is believed only as it is learnt.
        let share = self.weight / (self.weight + 8.0);
        let noise = (share * own.max(pooled) + (1.0 - share) * pooled).max(test.stated_error);
        noise * (1.0 + 1.0 / f64::from(self.count.max(1))).sqrt()
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
        let rho = test.correlation.clamp(0.0, 0.8);
        let thin = ((1.0 - rho) / (1.0 + rho)).sqrt();
        let drift = DRIFT.max(test.least / (2.0 * deviation)).min(CLIP / 2.0);
        self.sum = (self.sum + (z.min(CLIP) - drift) * thin).clamp(0.0, 4.0 * test.limit);
        if self.sum == 0.0 {
            self.run.clear();
        } else {
            if self.run.len() == RUN {
                self.run.remove(0);
            }
            self.run.push(Point { window, time_ns, value });
        }
        if self.sum < test.limit / 2.0 {
            self.learn(value, test, deviation);
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
        let keep = 1.0 - 1.0 / f64::from(test.history);
        self.products = self.products * keep + unbiased * self.previous;
        self.squares = self.squares * keep + unbiased * unbiased;
        self.weight = self.weight * keep + 1.0;
        self.previous = unbiased;
    }

    /// Where the run began: the point that splits it best for the shift it shows. Window, time,
    /// and mean value from there on.
    pub fn change_point(&self) -> Option<(u64, u64, f64)> {
        let recent = &self.run[self.run.len().saturating_sub(3)..];
        if recent.is_empty() {
            return None;
        }
        let shift = recent.iter().map(|p| p.value).sum::<f64>() / recent.len() as f64 - self.baseline;
        let (mut sum, mut least, mut start) = (0.0, 0.0, 0);
        for (place, point) in self.run.iter().enumerate() {
            sum += point.value - self.baseline - shift / 2.0;
            if sum < least {
                (least, start) = (sum, place + 1);
            }
        }
        let tail = &self.run[start.min(self.run.len() - 1)..];
        let mean = tail.iter().map(|p| p.value).sum::<f64>() / tail.len() as f64;
        Some((tail[0].window, tail[0].time_ns, mean))
    }

    /// The run is over: what was held back is usual again.
    pub fn calm(&mut self) {
        self.sum = 0.0;
        self.run.clear();
    }
}
