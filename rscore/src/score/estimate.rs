//! Robust estimates and thresholds: spreads, limits. The text is `stragd/scoring/estimate.py`; both
//! sides do the same operations in the same order.

use super::middle::{Middle, Near};

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
/// What is known of the spread of healthy machines of one class before they are seen, as degrees of
/// freedom of a scaled inverse chi-square: 0.7 to 1.9 % in 19 of 20 jobs.
const NATURAL_SPREAD: f64 = 0.01;
const NATURAL_DEGREES: f64 = 8.0;
/// Of the MAD against the standard deviation of a Gaussian sample.
const MAD_EFFICIENCY: f64 = 0.37;
pub(super) const LEVEL_SIGMAS: f64 = 5.0;
/// ln 1.04: of less nothing is said.
const LEAST_LEVEL: f64 = 0.03922071315328133;
/// Among so many peers or more 9 % and 13 % are unnatural (ln), where these do not differ by as
/// much themselves.
const GROSS: [(usize, f64); 2] = [(16, 0.08617769624105241), (7, 0.12221763272424911)];

/// Robust standard deviation of values around their median.
pub(super) fn spread(values: &[f64], center: f64, near: &mut Near) -> f64 {
    let distances = Middle::of_each(values, |value| (value - center).abs(), near);
    MAD_TO_SIGMA * distances.median()
}

/// Least ln(own / peers) that no natural difference of machines explains. The spread is the
/// posterior one, and what is as rare as `LEVEL_SIGMAS` is Student's; the median of n values varies
/// by pi / 2 of what their mean does.
pub(super) fn level_limit(spread_of_peers: f64, peers: usize) -> f64 {
    let seen = MAD_EFFICIENCY * peers as f64;
    let degrees = NATURAL_DEGREES + seen;
    let prior = NATURAL_DEGREES * (NATURAL_SPREAD * NATURAL_SPREAD);
    let natural = ((prior + seen * (spread_of_peers * spread_of_peers)) / degrees).sqrt();
    let uncertain = (1.0 + std::f64::consts::FRAC_PI_2 / peers as f64).sqrt();
    let limit = LEAST_LEVEL.max(student_limit(LEVEL_SIGMAS, degrees) * natural * uncertain);
    match GROSS.iter().find(|(least, _)| peers >= *least) {
        Some((_, gross)) => limit.min(gross.max(LEVEL_SIGMAS * spread_of_peers)),
        None => limit,
    }
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

    #[test]
    fn one_far_value_is_no_spread() {
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 100.0], 3.0, &mut Near::default()), 1.4826);
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
}
