//! Finds the shortest stable period of a sequence of collectives.
//!
//! Tokens decide as long as they differ. Where they do not (all buckets of one size), the time
//! between collectives does: a training step has one long gap, its forward pass, and the same
//! short ones behind it, again and again.

use super::kinds::KindId;

/// Longest period, collectives.
pub(crate) const MAX_PERIOD: usize = 4096;
/// Collectives that a search looks back.
pub(crate) const HISTORY: usize = 16_384;
/// Fewest collectives and repetitions that make a period.
pub(crate) const MIN_COLLECTIVES: usize = 8;
const MIN_REPETITIONS: usize = 3;
/// A period this short may well be a part of a step.
pub(crate) const SHORT_PERIOD: usize = 4;
/// Periods that are looked at, and the share of the collectives that one must account for.
const MAX_CANDIDATES: usize = 12;
const MIN_COVERAGE: f32 = 0.6;
/// Repetitions that the gaps of a hidden step need.
const MIN_GAP_CYCLES: usize = 4;
/// How far a search for hidden steps looks: lags and collectives.
const MAX_GAP_LAG: usize = 512;
const MAX_GAP_HISTORY: usize = 2048;
/// Share of the gaps' variance that the place in the step must explain.
const GAP_EXPLAINED: f32 = 0.5;
/// Longest mean gap over the median of the others: a phase border, not a slow data loader.
const GAP_CONTRAST: f32 = 2.5;

/// A period of the last collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period {
    /// Collectives per step.
    pub len: usize,
    /// Period of the tokens alone; `len` is a multiple of it.
    pub tokens: usize,
}

/// The period of `tokens` (with `gaps[i]`, ns of own time before token i), oldest first. With
/// `known`, the step in force: only a longer one, of which that is a part.
pub(crate) fn find(tokens: &[KindId], gaps: &[u32], known: Option<&[KindId]>) -> Option<Period> {
    let from = tokens.len().saturating_sub(HISTORY);
    let (tokens, gaps) = (&tokens[from..], &gaps[from..]);
    let n = tokens.len();
    if n < MIN_COLLECTIVES {
        return None;
    }
    let runs = suffix_runs(tokens, MAX_PERIOD.min(n / MIN_REPETITIONS));
    // The shortest ones first, each with a longer run than all before it: a suffix repeats
    // shortly within a part of a step (all-gathers of equal layers) and longer as a whole.
    let mut longest = 0;
    let mut candidates = (1..runs.len())
        .filter(|&p| {
            let better =
                runs[p] >= (MIN_REPETITIONS * p).max(MIN_COLLECTIVES) && runs[p] > longest + p / 2;
            longest = if better { runs[p] } else { longest };
            better
        })
        .take(MAX_CANDIDATES)
        .filter(|&p| coverage(tokens, &tokens[n - p..]) >= MIN_COVERAGE);
    let short = match known {
        Some(step) => step,
        None => candidates.next().map(|p| &tokens[n - p..])?,
    };
    let long = candidates
        .find(|&p| p > short.len())
        .filter(|&p| short_is_a_part(tokens, gaps, short, p, runs[p]));
    let base = long.unwrap_or(short.len());
    if known.is_none() && long.is_none() && just_broken(tokens, gaps, base, runs[base]) {
        return None;
    }
    let run = runs.get(base).copied().unwrap_or(0).min(MAX_GAP_HISTORY);
    match hidden_step(&gaps[n - run..], base) {
        Some(len) => Some(Period { len, tokens: base }),
        None if known.is_some() && long.is_none() => None,
        None => Some(Period { len: base, tokens: base }),
    }
}

/// Whether a shorter period is the step, and the sequence only ends too near to a break of it:
/// a later look will find it.
fn just_broken(tokens: &[KindId], gaps: &[u32], long: usize, run: usize) -> bool {
    let n = tokens.len();
    (1..4).any(|quarter| {
        let earlier = &tokens[..n - long * quarter / 4];
        let runs = suffix_runs(earlier, long / MIN_REPETITIONS);
        let least = |p: usize| (MIN_REPETITIONS * p).max(MIN_COLLECTIVES);
        (1..runs.len()).find(|&p| runs[p] >= least(p)).is_some_and(|p| {
            let short = &earlier[earlier.len() - p..];
            coverage(tokens, short) >= MIN_COVERAGE
                && !short_is_a_part(tokens, gaps, short, long, run)
        })
    })
}

/// Share of `tokens` that `pattern` accounts for as whole, unbroken copies.
fn coverage(tokens: &[KindId], pattern: &[KindId]) -> f32 {
    let borders = borders(pattern);
    let (mut matched, mut covered) = (0usize, 0usize);
    for &token in tokens {
        while matched > 0 && pattern[matched] != token {
            matched = usize::from(borders[matched]);
        }
        if pattern[matched] == token {
            matched += 1;
        }
        if matched == pattern.len() {
            covered += matched;
            matched = 0;
        }
    }
    covered as f32 / tokens.len() as f32
}

/// For a matched prefix of each length, the longest border of it (Knuth-Morris-Pratt).
pub(crate) fn borders(pattern: &[KindId]) -> Vec<u16> {
    let mut borders = vec![0u16; pattern.len() + 1];
    let mut k = 0usize;
    for i in 1..pattern.len() {
        while k > 0 && pattern[i] != pattern[k] {
            k = usize::from(borders[k]);
        }
        if pattern[i] == pattern[k] {
            k += 1;
        }
        borders[i + 1] = k as u16;
    }
    borders
}

/// What breaks the short period regularly is either a thing of its own (logging every tenth
/// step), or the short one is only a part of a step (equal layers, then the gradients).
fn short_is_a_part(
    tokens: &[KindId],
    gaps: &[u32],
    short: &[KindId],
    long: usize,
    run: usize,
) -> bool {
    let left = (1.0 - coverage(&tokens[tokens.len() - run..], short)) * run as f32;
    // One collective put in spoils itself and at most the step around it; at either end of the
    // run a step may be cut.
    let edges = 2.0 * (short.len() as f32 - 1.0);
    let per_cycle = (left - edges) * long as f32 / run as f32;
    let part = short.len() <= SHORT_PERIOD && per_cycle > short.len() as f32 + 1.5;
    part || splits_phases(tokens, gaps, short.len(), long, run)
}

/// For every period p: length of the longest suffix that is p-periodic. Z-function of the
/// reversed sequence, O(n).
fn suffix_runs(tokens: &[KindId], max_period: usize) -> Vec<usize> {
    let n = tokens.len();
    let at = |i: usize| tokens[n - 1 - i];
    let mut z = vec![0usize; n];
    let (mut left, mut right) = (0, 0);
    for i in 1..n {
        let mut len = if i < right { z[i - left].min(right - i) } else { 0 };
        while i + len < n && at(len) == at(i + len) {
            len += 1;
        }
        if i + len > right {
            (left, right) = (i, i + len);
        }
        z[i] = len;
    }
    z.truncate(max_period + 1);
    for (p, run) in z.iter_mut().enumerate().skip(1) {
        *run += p;
    }
    z
}

/// Logarithms of gaps, with a floor so that no gap at all is a small one and not minus infinity.
fn log_gaps(gaps: &[u32]) -> Vec<f32> {
    let mean = gaps.iter().map(|&g| f64::from(g)).sum::<f64>() / gaps.len().max(1) as f64;
    let floor = (mean * 0.05).max(1.0) as f32;
    gaps.iter().map(|&g| (g as f32 + floor).ln()).collect()
}

/// Mean of every phase of `values` folded at `period`, which ends with the slice.
fn phase_means(values: &[f32], period: usize) -> Vec<f32> {
    let skip = values.len() % period;
    let mut sums = vec![0f32; period];
    for cycle in values[skip..].chunks_exact(period) {
        for (sum, value) in sums.iter_mut().zip(cycle) {
            *sum += value;
        }
    }
    let cycles = (values.len() / period).max(1) as f32;
    sums.iter_mut().for_each(|sum| *sum /= cycles);
    sums
}

/// Share of the variance that phases explain beyond chance (adjusted, may be negative).
fn explained(values: &[f32], period: usize) -> f32 {
    let cycles = values.len() / period;
    let used = &values[values.len() - cycles * period..];
    let n = used.len();
    if cycles < 2 || n <= period + 1 {
        return 0.0;
    }
    let means = phase_means(used, period);
    let mean = used.iter().sum::<f32>() / n as f32;
    let total: f32 = used.iter().map(|v| (v - mean) * (v - mean)).sum();
    let within: f32 = used
        .chunks_exact(period)
        .flat_map(|c| c.iter().zip(&means))
        .map(|(v, m)| (v - m) * (v - m))
        .sum();
    if total <= f32::EPSILON * n as f32 {
        return 0.0;
    }
    1.0 - (within / (n - period) as f32) / (total / (n - 1) as f32)
}

/// The first and the second half of the cycles tell the same story.
fn stable(values: &[f32], period: usize) -> bool {
    let cycles = values.len() / period;
    let used = &values[values.len() - cycles * period..];
    let half = (cycles / 2) * period;
    let (a, b) = (phase_means(&used[..half], period), phase_means(&used[half..], period));
    let n = period as f32;
    let (ma, mb) = (a.iter().sum::<f32>() / n, b.iter().sum::<f32>() / n);
    let (mut ab, mut aa, mut bb) = (0f32, 0f32, 0f32);
    for (x, y) in a.iter().zip(&b) {
        ab += (x - ma) * (y - mb);
        aa += (x - ma) * (x - ma);
        bb += (y - mb) * (y - mb);
    }
    ab > 0.0 && ab * ab >= 0.5 * aa * bb
}

/// The longest gap stands out among `means` (of logarithms).
fn contrast(means: &[f32]) -> bool {
    let mut sorted = means.to_vec();
    sorted.sort_by(f32::total_cmp);
    match sorted.as_slice() {
        [.., _, last] => last - sorted[(sorted.len() - 1) / 2] >= GAP_CONTRAST.ln(),
        _ => false,
    }
}

/// Whether the places of one `long` period that look alike to the `short` one have different
/// gaps, so that the short one is only a part of a step.
fn splits_phases(tokens: &[KindId], gaps: &[u32], short: usize, long: usize, run: usize) -> bool {
    let n = tokens.len();
    let cycles = (run / long).min(16);
    let values = log_gaps(&gaps[n - cycles * long..]);
    let means = phase_means(&values, long);
    let last = &tokens[n - long..];
    // Equal context: the place and up to 31 places before it, around the cycle.
    let mut groups: std::collections::HashMap<u64, Vec<f32>> = std::collections::HashMap::new();
    let mut keep = vec![false; long];
    let context = |place: usize| {
        (0..short.min(32)).fold(0u64, |hash, back| {
            super::hash::mix(hash, u64::from(last[(place + long - back) % long]))
        })
    };
    let contexts: Vec<u64> = (0..long).map(context).collect();
    for (place, hash) in contexts.iter().enumerate() {
        groups.entry(*hash).or_default().push(means[place]);
    }
    for (place, hash) in contexts.iter().enumerate() {
        keep[place] = groups[hash].len() > 1;
    }
    // Variance between places of equal context against variance within a place.
    let (mut between, mut between_df, mut within, mut within_df) = (0f32, 0f32, 0f32, 0f32);
    for group in groups.values().filter(|group| group.len() > 1) {
        let mean = group.iter().sum::<f32>() / group.len() as f32;
        between += group.iter().map(|m| (m - mean) * (m - mean)).sum::<f32>() * cycles as f32;
        between_df += group.len() as f32 - 1.0;
    }
    for cycle in values.chunks_exact(long) {
        for place in (0..long).filter(|&place| keep[place]) {
            within += (cycle[place] - means[place]) * (cycle[place] - means[place]);
            within_df += 1.0;
        }
    }
    within_df -= keep.iter().filter(|&&k| k).count() as f32;
    if between_df < 1.0 || within_df < 1.0 {
        return false;
    }
    let (total, total_df) = (between + within, between_df + within_df);
    let share = 1.0 - (within / within_df) / (total / total_df).max(f32::MIN_POSITIVE);
    share >= GAP_EXPLAINED && groups.values().any(|group| group.len() > 1 && contrast(group))
}

/// Multiple of `base` at which the gaps repeat much better than at `base` itself.
fn hidden_step(gaps: &[u32], base: usize) -> Option<usize> {
    let max_lag = (gaps.len() / MIN_GAP_CYCLES).min(MAX_GAP_LAG);
    if max_lag < 2 * base {
        return None;
    }
    let mut values = log_gaps(gaps);
    // What `base` explains is not hidden.
    let means = phase_means(&values, base);
    let skip = values.len() % base;
    for (place, value) in values.iter_mut().enumerate() {
        *value -= means[(place + base - skip) % base];
    }
    let energy: f32 = values.iter().map(|v| v * v).sum();
    if energy <= 1e-6 * values.len() as f32 {
        return None;
    }
    let lags: Vec<usize> = (2 * base..=max_lag).step_by(base).collect();
    let correlation: Vec<f32> = lags
        .iter()
        .map(|&lag| {
            let products = values.iter().zip(&values[lag..]).map(|(a, b)| a * b).sum::<f32>();
            products / energy * values.len() as f32 / (values.len() - lag) as f32
        })
        .collect();
    let best = correlation.iter().copied().fold(0f32, f32::max);
    if best < GAP_EXPLAINED {
        return None;
    }
    let lag = lags.iter().zip(&correlation).find(|(_, &c)| c >= 0.9 * best).map(|(&lag, _)| lag)?;
    let raw = log_gaps(gaps);
    let strong = explained(&values, lag) >= GAP_EXPLAINED && stable(&values, lag);
    (strong && contrast(&phase_means(&raw, lag))).then_some(lag)
}

/// Mean logarithmic gap before each of the last `len` collectives, over whole cycles.
pub(crate) fn gap_profile(gaps: &[u32], len: usize, max_cycles: usize) -> Vec<f32> {
    let cycles = (gaps.len() / len).clamp(1, max_cycles);
    let values = log_gaps(&gaps[gaps.len().saturating_sub(cycles * len)..]);
    phase_means(&values, len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeat(step: &[KindId], n: usize) -> Vec<KindId> {
        step.iter().copied().cycle().take(n).collect()
    }

    #[test]
    fn distinct_tokens_give_the_shortest_period_from_any_start() {
        let step = [1, 2, 3, 4, 5, 6, 7];
        for start in 0..7 {
            let tokens: Vec<KindId> = repeat(&step, 60)[start..].to_vec();
            let gaps = vec![1000; tokens.len()];
            assert_eq!(find(&tokens, &gaps, None), Some(Period { len: 7, tokens: 7 }));
        }
        assert_eq!(find(&repeat(&step, 20), &[0; 20], None), None, "fewer than three repetitions");
        let random: Vec<KindId> =
            (0..2000u64).map(|i| (super::super::hash::mix(7, i) % 50) as KindId).collect();
        assert_eq!(find(&random, &vec![0; 2000], None), None);
    }

    #[test]
    fn equal_tokens_with_one_long_gap_hide_a_step() {
        let noise = |i: usize| (super::super::hash::mix(3, i as u64) % 1000) as u32;
        let gaps: Vec<u32> =
            (0..200).map(|i| if i % 5 == 2 { 50_000 + 10 * noise(i) } else { noise(i) }).collect();
        assert_eq!(find(&[9; 200], &gaps, None), Some(Period { len: 5, tokens: 1 }));
        let even: Vec<u32> = (0..200).map(|i| 50_000 + 10 * noise(i)).collect();
        assert_eq!(find(&[9; 200], &even, None), Some(Period { len: 1, tokens: 1 }));
        // Every tenth step is somewhat slower (logging): still one collective a step.
        let logging: Vec<u32> = (0..400)
            .map(|i| 50_000 + 10 * noise(i) + if i % 10 == 0 { 30_000 } else { 0 })
            .collect();
        assert_eq!(find(&[9; 400], &logging, None), Some(Period { len: 1, tokens: 1 }));
    }

    #[test]
    fn a_break_of_the_short_period_is_judged_by_the_gaps() {
        // Twenty equal buckets and another one: a step of 21.
        let mut step = vec![1; 20];
        step.push(2);
        let tokens = repeat(&step, 21 * 8 + 15);
        let gaps: Vec<u32> =
            (0..tokens.len()).map(|i| if i % 21 == 0 { 90_000 } else { 500 }).collect();
        assert_eq!(find(&tokens, &gaps, None).map(|p| p.len), Some(21));
        // One collective a step and a logging one behind every twentieth: a step of 1.
        let gaps: Vec<u32> = (0..tokens.len())
            .map(|i| 90_000 + (super::super::hash::mix(5, i as u64) % 9000) as u32)
            .collect();
        assert_eq!(find(&tokens, &gaps, None).map(|p| p.len), Some(1));
        // Seven distinct ones with a logging one every tenth step.
        let mut long: Vec<KindId> = repeat(&[1, 2, 3, 4, 5, 6, 7], 70);
        long.push(8);
        let tokens = repeat(&long, 71 * 4 + 40);
        let gaps: Vec<u32> = tokens.iter().map(|&t| if t == 1 { 90_000 } else { 500 }).collect();
        assert_eq!(find(&tokens, &gaps, None).map(|p| p.len), Some(7));
    }

    #[test]
    fn the_longest_period_is_found() {
        let step: Vec<KindId> = (0..MAX_PERIOD as u64)
            .map(|i| (super::super::hash::mix(1, i) % 900) as KindId)
            .collect();
        let tokens = repeat(&step, HISTORY);
        assert_eq!(find(&tokens, &vec![0; HISTORY], None).map(|p| p.len), Some(MAX_PERIOD));
    }

    #[test]
    fn equal_layers_are_parts_of_a_step() {
        // Sharded: all-gathers forward, all-gather and reduce-scatter backward.
        let mut step = vec![1; 24];
        step.extend([1, 2].repeat(24));
        for skip in 0..step.len() {
            let tokens = repeat(&step, 72 * 5 + skip);
            let gaps = vec![700; tokens.len()];
            assert_eq!(find(&tokens, &gaps, None).map(|p| p.len), Some(72), "{skip}");
        }
        // Tensor parallel: equal all-reduces in every layer, then three of gradients.
        let mut step = vec![1; 96];
        step.extend([2, 3, 4]);
        let tokens = repeat(&step, 99 * 4 + 40);
        let gaps = vec![700; tokens.len()];
        assert_eq!(find(&tokens, &gaps, None).map(|p| p.len), Some(99));
        assert_eq!(find(&tokens, &gaps, Some(&[1])).map(|p| p.len), Some(99));
    }
}
