//! Robust estimates and thresholds: medians that leave one out, spreads, limits. The text is
//! `stragd/scoring/estimate.py`; both sides do the same operations in the same order.

/// Windows of the longest slow run that is told from its past: the newest ones are kept.
pub(super) const RUN: usize = 32;

/// MAD of a Gaussian to its standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Siegmund's nu(x)^2 is about exp(-2 x 0.583) (Sequential Analysis, 1985, ch. 10).
const OVERSHOOT: f64 = 1.166;
#[allow(clippy::approx_constant, clippy::excessive_precision)] // the same digits on both sides
const DENSITY: f64 = 0.3989422804014327;
/// A larger job raises no more false alarms than one of so many ranks.
const JOB_SIZE: f64 = 64.0;
const NATURAL_SPREAD: f64 = 0.03;
/// ln 1.1.
pub(super) const GROSS: f64 = 0.09531017980432493;
const LEVEL_SIGMAS: f64 = 4.5;

/// The three values in the middle of a set: all that medians need, with and without a member.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Middle {
    pub count: usize,
    pub below: f64,
    pub at: f64,
    pub above: f64,
}

/// From so many values on, a sample says where the middle is.
const MANY: usize = 2048;
const SAMPLE: usize = 512;
/// Places in the sample, on both sides of the one that is looked for: 3.5 standard errors.
const AROUND: usize = 40;

impl Middle {
    /// Of `values`, which it reorders. Linear in their number.
    pub fn of(values: &mut [f64]) -> Middle {
        match values.len() {
            0 => Middle::default(),
            count => Middle::around(values, (count - 1) / 2),
        }
    }

    /// The value with so many below it, and its neighbours. Few of many values are near it: a
    /// sample says between which two it is (Floyd and Rivest 1975), and if they are not right,
    /// nothing is lost but time.
    pub fn around(values: &mut [f64], place: usize) -> Middle {
        let count = values.len();
        if count < MANY {
            return Middle::select(values, place);
        }
        let mut sample: [f64; SAMPLE] = std::array::from_fn(|n| values[n * count / SAMPLE]);
        sample.sort_unstable_by(f64::total_cmp);
        let expected = place * SAMPLE / count;
        let least = sample[expected.saturating_sub(AROUND)];
        let most = sample[(expected + AROUND).min(SAMPLE - 1)];
        let (mut below, mut near) = (0, vec![0.0; count / 4]);
        let mut kept = 0;
        for value in values.iter() {
            below += usize::from(*value < least);
            let Some(free) = near.get_mut(kept) else { break };
            *free = *value;
            kept += usize::from((*value >= least) & (*value <= most));
        }
        let found = kept < near.len() && place > below && place + 1 < below + kept;
        match found {
            true => Middle { count, ..Middle::select(&mut near[..kept], place - below) },
            false => Middle::select(values, place),
        }
    }

    fn select(values: &mut [f64], place: usize) -> Middle {
        let (left, at, right) = values.select_nth_unstable_by(place, f64::total_cmp);
        let larger = |a: f64, b: f64| if b > a { b } else { a };
        let smaller = |a: f64, b: f64| if b < a { b } else { a };
        Middle {
            below: fold(left, f64::NEG_INFINITY, larger),
            at: *at,
            above: fold(right, f64::INFINITY, smaller),
            count: values.len(),
        }
    }

    /// Median; there must be a value.
    pub fn median(&self) -> f64 {
        if self.count % 2 == 1 {
            self.at
        } else {
            (self.at + self.above) / 2.0
        }
    }

    /// Median without one member that has this value; there must be another.
    pub fn median_without(&self, value: f64) -> f64 {
        let at = if value <= self.at { self.above } else { self.at };
        if self.count % 2 == 0 {
            return at;
        }
        let below = if value <= self.below { self.at } else { self.below };
        (below + at) / 2.0
    }
}

/// Folds in eight chains: one would wait for each comparison.
fn fold(values: &[f64], start: f64, with: impl Fn(f64, f64) -> f64) -> f64 {
    let mut chains = [start; 8];
    let eights = values.chunks_exact(8);
    let rest = eights.remainder();
    for eight in eights {
        for (chain, value) in chains.iter_mut().zip(eight) {
            *chain = with(*chain, *value);
        }
    }
    chains.iter().chain(rest).fold(start, |most, value| with(most, *value))
}

/// Robust standard deviation of values around their median, which they become the distances to.
pub(super) fn spread(values: &mut [f64], center: f64) -> f64 {
    values.iter_mut().for_each(|value| *value = (*value - center).abs());
    MAD_TO_SIGMA * Middle::of(values).median()
}

/// Least ln(own / peers) that no natural difference of machines explains: the median of n values
/// varies by pi / 2 of what their mean does.
pub(super) fn level_limit(spread_of_peers: f64, peers: usize) -> f64 {
    let prior = if peers < 16 { NATURAL_SPREAD } else { NATURAL_SPREAD / 2.0 };
    let natural = spread_of_peers.max(prior);
    let uncertain = (1.0 + std::f64::consts::FRAC_PI_2 / peers as f64).sqrt();
    GROSS.max(LEVEL_SIGMAS * natural * uncertain)
}

/// False alarms of one healthy rank and window, when the scan's largest deviate is held against
/// `limit` (Siegmund and Venkatraman, Annals of Statistics 23, 1995).
fn false_alarms(limit: f64) -> f64 {
    let part = |x: f64| (x / OVERSHOOT + 1.0 / (OVERSHOOT * OVERSHOOT)) * (-OVERSHOOT * x).exp();
    let scan = part(limit / (RUN as f64).sqrt()) - part(limit / 2f64.sqrt());
    limit * DENSITY * (-(limit * limit) / 2.0).exp() * scan
}

/// Deviate that keeps the wanted rate for a job of so many ranks; from 2 to 40.
pub(super) fn scan_limit(false_alarms_per_million: f64, ranks: usize) -> f64 {
    let wanted = false_alarms_per_million * 1e-6 * f64::min(1.0, JOB_SIZE / ranks as f64);
    let (mut low, mut high) = (2.0, 40.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if false_alarms(middle) > wanted {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// The deviate of Student's t that is as rare as `limit` is of a Gaussian (Wallace, Annals of
/// Mathematical Statistics 30, 1959, inverted).
pub(super) fn student_limit(limit: f64, degrees: f64) -> f64 {
    let scaled = limit * (8.0 * degrees + 3.0) / (8.0 * degrees + 1.0);
    (degrees * ((scaled * scaled / degrees).min(700.0).exp() - 1.0)).sqrt()
}

/// One minus the order of magnitude of the chance that noise gets so far.
pub(super) fn confidence(deviate: f64) -> f64 {
    (1.0 - (-deviate * deviate / 2.0).exp()).clamp(0.5, 0.9999)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(values: &[f64]) -> f64 {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        if n % 2 == 1 {
            sorted[n / 2]
        } else {
            (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0
        }
    }

    #[test]
    fn leaving_one_out_equals_the_plain_definition() {
        let all = [4.0, 1.0, 16.0, 2.0, 2.0, 8.0, 32.0, 2.0, 1.0];
        for n in 1..=all.len() {
            let middle = Middle::of(&mut all[..n].to_vec());
            assert_eq!(middle.median(), plain(&all[..n]));
            for place in 0..n {
                let mut others = all[..n].to_vec();
                others.remove(place);
                if !others.is_empty() {
                    assert_eq!(middle.median_without(all[place]), plain(&others), "{n} {place}");
                }
            }
        }
        let mut one_far = [1.0, 2.0, 3.0, 4.0, 100.0];
        assert_eq!(spread(&mut one_far, 3.0), 1.4826);
    }

    #[test]
    fn limits_follow_from_the_rate() {
        let limit = scan_limit(0.01, 64);
        assert!((limit - 6.08).abs() < 0.05, "{limit}");
        assert!((false_alarms(limit) / 1e-8 - 1.0).abs() < 1e-6);
        assert_eq!(scan_limit(0.01, 2), limit, "a small job has the stated rate");
        assert!((false_alarms(scan_limit(0.01, 6400)) / 1e-10 - 1.0).abs() < 1e-6);
        assert!(scan_limit(1e-6, 1 << 20) < 40.0);
        // Tables of Student's t: P(t > 3.0902) is P(normal > 3.0902) = 0.001 for many degrees,
        // and 4.144 has that chance with ten.
        assert!((student_limit(3.0902, 10.0) / 4.144 - 1.0).abs() < 0.01);
        assert!((student_limit(3.0902, 1e6) / 3.0902 - 1.0).abs() < 1e-4);
    }

    #[test]
    fn a_sample_finds_the_same_middle() {
        let mut seed = 9u64;
        for (count, values) in [(2048, 1e6), (2049, 4.0), (50_000, 1e9), (50_001, 1.0)] {
            let mut many: Vec<f64> = (0..count)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ((seed >> 33) as f64 / (1u64 << 31) as f64 * values).floor()
                })
                .collect();
            let mut sorted = many.clone();
            sorted.sort_by(f64::total_cmp);
            for place in [1, count / 4, (count - 1) / 2, count - 2] {
                let middle = Middle::around(&mut many, place);
                let found = [middle.below, middle.at, middle.above];
                assert_eq!(found, sorted[place - 1..place + 2], "{place} of {count}");
                assert_eq!(middle.count, count);
            }
        }
    }
}
