//! Robust estimates: medians that leave one out, spreads, thresholds.

/// MAD of a Gaussian to its standard deviation.
const MAD_TO_SIGMA: f64 = 1.4826;
/// Natural spread of a healthy group: no two of a kind are equal.
const NATURAL_SPREAD: f64 = 0.03;
/// A level this far above the peers is not natural (ln).
const GROSS_SLOWDOWN: f64 = 0.10;
/// Spreads that a level must exceed.
const LEVEL_SIGMAS: f64 = 4.0;

/// Median of sorted values; NaN when empty.
pub(super) fn median(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

/// Median of sorted values without the one at `place`; NaN when there is no other.
pub(super) fn median_without(sorted: &[f64], place: usize) -> f64 {
    let n = sorted.len().saturating_sub(1);
    let at = |i: usize| sorted[if i < place { i } else { i + 1 }];
    match n {
        0 => f64::NAN,
        _ if n % 2 == 1 => at(n / 2),
        _ => (at(n / 2 - 1) + at(n / 2)) / 2.0,
    }
}

/// Robust standard deviation of sorted values; `scratch` saves the allocation.
pub(super) fn spread(sorted: &[f64], scratch: &mut Vec<f64>) -> f64 {
    let center = median(sorted);
    scratch.clear();
    scratch.extend(sorted.iter().map(|value| (value - center).abs()));
    scratch.sort_unstable_by(f64::total_cmp);
    MAD_TO_SIGMA * median(scratch)
}

/// Least ln(own / peers) that no natural difference explains: beyond 10 % and beyond the
/// spread of `peers` others, of which few tell little.
pub(super) fn level_limit(spread: f64, peers: usize) -> f64 {
    let natural = spread.max(NATURAL_SPREAD) * (1.0 + 1.0 / peers.max(1) as f64);
    (1.0 + GROSS_SLOWDOWN).ln().max(LEVEL_SIGMAS * natural)
}

/// How much wider a noise estimate from `degrees` of freedom has to be taken than a known one
/// (Student's t against the normal, at the quantile that matters here).
pub(super) fn widening(degrees: f64) -> f64 {
    1.0 + 4.0 / degrees.max(1.0)
}

/// CUSUM limit for a false-alarm rate per million: the sum of standardised excesses over half
/// a deviation exceeds h with a probability near exp(-h).
pub(super) fn cusum_limit(false_alarms_per_million: f64) -> f64 {
    (1e6 / false_alarms_per_million).ln().max(2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaving_one_out_equals_the_plain_definition() {
        let sorted = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        for n in 1..=6 {
            for place in 0..n {
                let mut others = sorted[..n].to_vec();
                others.remove(place);
                let (a, b) = (median_without(&sorted[..n], place), median(&others));
                assert!(a == b || a.is_nan() && b.is_nan());
            }
        }
        assert_eq!(spread(&[1.0, 2.0, 3.0, 4.0, 100.0], &mut Vec::new()), 1.4826);
    }
}
