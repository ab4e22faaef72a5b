//! Trimmed mean and its standard error.

/// Share that is cut off at either end.
const TRIM: f64 = 0.1;

/// A 10 % trimmed mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Trimmed {
    pub mean: f64,
    /// Standard error; NaN below three values.
    pub error: f64,
}

/// Trimmed mean of `values` (sorted in place; NaN when empty). The error comes from the
/// winsorised variance (Tukey and McLaughlin 1963; Yuen 1974):
/// (n - 1) s_w^2 / (h (h - 1)) with h values left after trimming.
pub(crate) fn trimmed(values: &mut [f64]) -> Trimmed {
    let n = values.len();
    if n == 0 {
        return Trimmed { mean: f64::NAN, error: f64::NAN };
    }
    values.sort_unstable_by(f64::total_cmp);
    let cut = (n as f64 * TRIM) as usize;
    let kept = &values[cut..n - cut];
    let h = kept.len() as f64;
    let mean = kept.iter().sum::<f64>() / h;
    if n < 3 {
        return Trimmed { mean, error: f64::NAN };
    }
    let (low, high) = (kept[0], kept[kept.len() - 1]);
    let winsorised = || values.iter().map(|v| v.clamp(low, high));
    let center = winsorised().sum::<f64>() / n as f64;
    let squares = winsorised().map(|v| (v - center) * (v - center)).sum::<f64>();
    Trimmed { mean, error: (squares / (h * (h - 1.0))).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outliers_move_neither_mean_nor_error() {
        let mut plain: Vec<f64> = (0..100).map(|i| 1000.0 + f64::from(i % 10)).collect();
        let reference = trimmed(&mut plain);
        let mut values: Vec<f64> = (0..100).map(|i| 1000.0 + f64::from(i % 10)).collect();
        values[3] = 1e9;
        values[50] = 1e12;
        let hit = trimmed(&mut values);
        assert!((hit.mean - reference.mean).abs() < 0.2, "{hit:?} {reference:?}");
        assert!((hit.error / reference.error - 1.0).abs() < 0.2, "{hit:?} {reference:?}");
        assert!(trimmed(&mut []).mean.is_nan());
        assert_eq!(trimmed(&mut [4.0]).mean, 4.0);
    }

    #[test]
    fn error_is_the_spread_of_the_mean() {
        // Uniform values from a fixed generator: the error must match the means' real spread.
        let mut state = 1u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        };
        let (mut means, mut errors) = (Vec::new(), 0.0);
        for _ in 0..2000 {
            let mut values: Vec<f64> = (0..50).map(|_| uniform()).collect();
            let t = trimmed(&mut values);
            means.push(t.mean);
            errors += t.error / 2000.0;
        }
        let center = means.iter().sum::<f64>() / 2000.0;
        let spread = (means.iter().map(|m| (m - center).powi(2)).sum::<f64>() / 1999.0).sqrt();
        assert!((errors / spread - 1.0).abs() < 0.08, "{errors} {spread}");
    }
}
