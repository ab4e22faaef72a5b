//! Medians that leave one out, of many values. The text is `stragd/scoring/estimate.py`.

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
/// Values that are looked at between two looks at the room that is left.
const CHUNK: usize = 64;

/// For values that are taken as they are.
pub(super) fn itself(value: f64) -> f64 {
    value
}

/// Room for the values near a middle; reused.
#[derive(Debug, Default)]
pub(super) struct Near(Vec<f64>);

impl Near {
    /// For so many values. Of many, a sixth is near, and a sixth of those.
    fn room(&mut self, values: usize) -> &mut [f64] {
        let room = if values < MANY { values } else { values / 4 + values / 16 };
        if self.0.len() < room {
            self.0 = Vec::new();
            self.0.reserve_exact(room);
            self.0.resize(room, 0.0);
        }
        &mut self.0
    }
}

impl Middle {
    /// Of `values`, in time linear in their number.
    pub fn of(values: &[f64], near: &mut Near) -> Middle {
        Middle::of_each(values, itself, near)
    }

    /// Of what `each` makes of the values.
    pub fn of_each(values: &[f64], each: impl Fn(f64) -> f64 + Copy, near: &mut Near) -> Middle {
        match values.len() {
            0 => Middle::default(),
            count => Middle::around(values, each, (count - 1) / 2, near),
        }
    }

    /// The value with so many below it, and its neighbours.
    pub fn around(
        values: &[f64],
        each: impl Fn(f64) -> f64 + Copy,
        place: usize,
        near: &mut Near,
    ) -> Middle {
        let found = Middle::narrow(values, each, place, near.room(values.len()));
        found.unwrap_or_else(|| {
            let mut all: Vec<f64> = values.iter().map(|value| each(*value)).collect();
            Middle::select(&mut all, place)
        })
    }

    /// Few of many values are near the middle: a sample says between which two it is (Floyd and
    /// Rivest 1975), and of those the same is done again. None when the sample was wrong.
    fn narrow(
        values: &[f64],
        each: impl Fn(f64) -> f64 + Copy,
        place: usize,
        near: &mut [f64],
    ) -> Option<Middle> {
        let count = values.len();
        if count < MANY {
            let near = near.get_mut(..count)?;
            near.iter_mut().zip(values).for_each(|(free, value)| *free = each(*value));
            return Some(Middle::select(near, place));
        }
        let mut sample: [f64; SAMPLE] = std::array::from_fn(|n| each(values[n * count / SAMPLE]));
        let expected = place * SAMPLE / count;
        let (low, high) = (expected.saturating_sub(AROUND), (expected + AROUND).min(SAMPLE - 1));
        let (_, most, _) = sample.select_nth_unstable_by(high, f64::total_cmp);
        let most = *most;
        let (_, least, _) = sample[..high].select_nth_unstable_by(low, f64::total_cmp);
        let least = *least;
        if least == most {
            return Middle::of_alike(values, each, place, least);
        }
        let (mut below, mut kept) = (0, 0);
        for chunk in values.chunks(CHUNK) {
            let free = near.get_mut(kept..kept + chunk.len())?;
            let mut taken = 0;
            for value in chunk {
                let value = each(*value);
                free[taken] = value;
                below += usize::from(value < least);
                taken += usize::from((value >= least) & (value <= most));
            }
            kept += taken;
        }
        if place <= below || place + 1 >= below + kept {
            return None;
        }
        let (kept, free) = near.split_at_mut(kept);
        let middle = Middle::narrow(kept, itself, place - below, free)?;
        Some(Middle { count, ..middle })
    }

    /// When the middle is `value`, and those beside it are too.
    fn of_alike(
        values: &[f64],
        each: impl Fn(f64) -> f64 + Copy,
        place: usize,
        value: f64,
    ) -> Option<Middle> {
        let (mut below, mut alike) = (0, 0);
        for one in values {
            below += usize::from(each(*one) < value);
            alike += usize::from(each(*one) == value);
        }
        let found = place > below && place + 1 < below + alike;
        found.then_some(Middle { count: values.len(), below: value, at: value, above: value })
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
        let mut near = Near::default();
        for n in 1..=all.len() {
            let middle = Middle::of(&all[..n], &mut near);
            assert_eq!(middle.median(), plain(&all[..n]));
            for place in 0..n {
                let mut others = all[..n].to_vec();
                others.remove(place);
                if !others.is_empty() {
                    assert_eq!(middle.median_without(all[place]), plain(&others), "{n} {place}");
                }
            }
        }
    }

    #[test]
    fn a_sample_finds_the_same_middle() {
        let (mut seed, mut near) = (9u64, Near::default());
        for (count, values) in [(2048, 1e6), (2049, 4.0), (50_000, 1e9), (50_001, 1.0)] {
            let many: Vec<f64> = (0..count)
                .map(|_| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ((seed >> 33) as f64 / (1u64 << 31) as f64 * values).floor()
                })
                .collect();
            let mut sorted = many.clone();
            sorted.sort_by(f64::total_cmp);
            for place in [1, count / 4, (count - 1) / 2, count - 2] {
                let middle = Middle::around(&many, itself, place, &mut near);
                let found = [middle.below, middle.at, middle.above];
                assert_eq!(found, sorted[place - 1..place + 2], "{place} of {count}");
                assert_eq!(middle.count, count);
            }
        }
    }
}
