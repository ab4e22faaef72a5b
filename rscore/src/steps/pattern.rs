//! A period that was found, cut where every rank of the job cuts it.

use super::hash::{mix, Map};
use super::kinds::{KindId, Kinds};
use super::period::{borders, gap_profile, Period};

/// Rotations with equal contents that are compared by their communicators.
const MAX_TIES: usize = 64;
/// Cycles that the gap profile looks back.
const PROFILE_CYCLES: usize = 16;

/// One step as it repeats.
#[derive(Debug)]
pub(crate) struct Pattern {
    /// Tokens from the first collective of a step to the last.
    pub tokens: Vec<KindId>,
    /// For a matched prefix of each length, the longest border of it (Knuth-Morris-Pratt).
    pub borders: Vec<u16>,
    /// Sizes are left out: they differ from step to step.
    pub coarse: bool,
    /// Hash of the sequence, equal on every rank that issues it.
    pub signature: u64,
    /// Hash of the shortest sequence that repeats, whatever multiple of it the step is.
    pub base: u64,
    /// Where tokens do not show where a step begins: the least gap (ns) that does.
    pub step_gap: Option<u32>,
}

impl Pattern {
    /// Cuts the period that `tokens` and `gaps` end with. Returns the pattern and how many
    /// collectives of a step the sequence ends with.
    ///
    /// Every rank has to cut at the same collective without asking the others: at the smallest
    /// rotation of the contents, which know no pointer; where several are equal, before the
    /// longest gap.
    pub fn cut(
        tokens: &[KindId],
        gaps: &[u32],
        period: Period,
        kinds: &Kinds,
        coarse: bool,
    ) -> (Pattern, usize) {
        let len = period.len;
        let last = &tokens[tokens.len() - len..];
        let contents: Vec<u64> = last.iter().map(|&token| kinds.get(token).content).collect();
        let profile = gap_profile(gaps, len, PROFILE_CYCLES);
        let smallest = smallest_rotation(&contents);
        let repeats = cycle_of(&contents);
        let hidden = len > period.tokens;
        let labels = |start: usize| communicator_labels(last, start, kinds);
        let longest_gap = |places: &mut dyn Iterator<Item = usize>| {
            places.max_by(|&a, &b| profile[a].total_cmp(&profile[b]).then(b.cmp(&a)))
        };
        let mut ties = (0..len / repeats).map(|n| (smallest + n * repeats) % len);
        let start = if hidden {
            longest_gap(&mut (0..len)).unwrap_or(0)
        } else if len / repeats > MAX_TIES {
            longest_gap(&mut ties).unwrap_or(0)
        } else {
            let rotations: Vec<usize> = ties.collect();
            let least = rotations.iter().map(|&r| labels(r)).min().unwrap_or_default();
            longest_gap(&mut rotations.into_iter().filter(|&r| labels(r) == least)).unwrap_or(0)
        };
        let rotated: Vec<KindId> = last[start..].iter().chain(&last[..start]).copied().collect();
        let mut signature = mix(len as u64, u64::from(coarse));
        for (place, label) in labels(start).into_iter().enumerate() {
            signature = mix(signature, contents[(start + place) % len]);
            signature = mix(signature, u64::from(label));
        }
        let shortest = (0..repeats).map(|place| contents[(smallest + place) % len]);
        let base = shortest.fold(mix(u64::from(coarse), 0), mix);
        let step_gap = hidden.then(|| between_longest_and_next(&profile));
        let borders = borders(&rotated);
        let done = (len - start) % len;
        let signature = signature.max(1);
        (Pattern { tokens: rotated, borders, coarse, signature, base, step_gap }, done)
    }

    /// Collectives per step.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }
}

/// Start of the lexicographically smallest rotation (two candidates that overtake each other).
fn smallest_rotation(values: &[u64]) -> usize {
    let n = values.len();
    let (mut a, mut b, mut same) = (0, 1, 0);
    while a < n && b < n && same < n {
        match values[(a + same) % n].cmp(&values[(b + same) % n]) {
            std::cmp::Ordering::Equal => same += 1,
            std::cmp::Ordering::Less => {
                b += same + 1;
                same = 0;
            }
            std::cmp::Ordering::Greater => {
                a += same + 1;
                same = 0;
            }
        }
        if a == b {
            b += 1;
        }
    }
    a.min(b)
}

/// Smallest divisor d of the length with `values` repeating after d.
fn cycle_of(values: &[u64]) -> usize {
    let n = values.len();
    (1..=n).find(|d| n % d == 0 && values[*d..] == values[..n - d]).unwrap_or(n)
}

/// Communicators numbered by first appearance from `start` on: pointers and creation order
/// differ between ranks, this does not.
fn communicator_labels(tokens: &[KindId], start: usize, kinds: &Kinds) -> Vec<u16> {
    let mut labels: Map<u64, u16> = Map::default();
    (0..tokens.len())
        .map(|place| {
            let kind = kinds.get(tokens[(start + place) % tokens.len()]);
            let next = labels.len() as u16;
            *labels.entry(u64::from(kind.communicator)).or_insert(next)
        })
        .collect()
}

/// Geometric middle between the longest mean gap and the next one, ns.
fn between_longest_and_next(profile: &[f32]) -> u32 {
    let mut sorted = profile.to_vec();
    sorted.sort_by(f32::total_cmp);
    let (Some(&longest), Some(&next)) = (sorted.last(), sorted.get(sorted.len().wrapping_sub(2)))
    else {
        return 0;
    };
    ((longest + next) / 2.0).exp() as u32
}

#[cfg(test)]
mod tests {
    use super::super::kinds::Shape;
    use super::*;

    #[test]
    fn ranks_that_see_other_pointers_and_start_elsewhere_cut_alike() {
        let step = [(0u16, 100u64), (0, 300), (1, 300), (0, 200), (1, 300)];
        let cut = |swap: bool, skip: usize| {
            let mut kinds = Kinds::default();
            let tokens: Vec<KindId> = step
                .iter()
                .cycle()
                .skip(skip)
                .take(40)
                .map(|&(communicator, bytes)| {
                    let communicator = if swap { 1 - communicator } else { communicator };
                    kinds.find(&Shape { communicator, function: 1, datatype: 7, bytes }, None)
                })
                .collect();
            let (pattern, done) =
                Pattern::cut(&tokens, &[5; 40], Period { len: 5, tokens: 5 }, &kinds, false);
            let first = kinds.get(pattern.tokens[0]).content;
            (pattern.signature, first, (skip + 40 - done) % 5)
        };
        let reference = cut(false, 0);
        for skip in 0..5 {
            assert_eq!(cut(false, skip), reference);
            assert_eq!(cut(true, skip), reference);
        }
    }

    #[test]
    fn rotation_and_cycle_agree_with_the_plain_definition() {
        for seed in 0..500u64 {
            let n = 1 + (mix(seed, 1) % 12) as usize;
            let values: Vec<u64> = (0..n as u64).map(|i| mix(seed, i + 2) % 3).collect();
            let rotation = |s: usize| -> Vec<u64> { (0..n).map(|i| values[(s + i) % n]).collect() };
            let least = (0..n).map(rotation).min().unwrap();
            assert_eq!(rotation(smallest_rotation(&values)), least, "{values:?}");
            let cycle = cycle_of(&values);
            assert!((0..n).all(|i| values[i] == values[i % cycle]));
        }
    }
}
