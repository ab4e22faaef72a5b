//! A window that says nothing of a rank of which nothing was said before, eight ranks at a time:
//! what `One::judge` does then, operation for operation, without branches.

use super::block::{Block, Scores, Spreads, Values, Wide, WIDE};
use super::estimate::RUN;
use super::lanes::{Lanes, Terms};
use super::members::Members;
use super::rank::{FASTER, HIGH_LEAST, HIGH_SIGMAS, TRUSTED};
use super::rescan::Pushed;
use super::scan::{Ceiling, Widths, LEAST_PAST};
use super::series::{DIFFERENCES, JUMP, LIKE_PEERS, MOST, NOISE_KEEP, OWN_MOST};
#[cfg(target_arch = "x86_64")]
use super::vector::avx::Four;
use super::vector::Vector;

/// Blocks ahead of which memory is asked for.
const AHEAD: usize = 3;

/// One window of every rank that stays quiet; `members` are in the order of their slots. The
/// numbers of the other members are left in `rest`.
pub(super) fn judge_quiet(
    scores: &mut Scores,
    members: &Members,
    terms: &[Terms],
    history: u32,
    widths: &mut Widths,
    rest: &mut Vec<u32>,
) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX.
        return unsafe { with_avx(scores, members, terms, history, widths, rest) };
    }
    judge_with::<f64>(scores, members, terms, history, widths, rest);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn with_avx(
    scores: &mut Scores,
    members: &Members,
    terms: &[Terms],
    history: u32,
    widths: &mut Widths,
    rest: &mut Vec<u32>,
) {
    judge_with::<Four>(scores, members, terms, history, widths, rest);
}

#[inline(always)]
fn judge_with<V: Vector>(
    scores: &mut Scores,
    members: &Members,
    terms: &[Terms],
    history: u32,
    widths: &mut Widths,
    rest: &mut Vec<u32>,
) {
    rest.clear();
    let (mut lanes, mut first) = (Lanes::new(), 0);
    for place in 0..scores.blocks.len() {
        scores.fetch(place + AHEAD, scores.blocks[place].newest[0]);
        let number = first;
        let count = lanes.fill(members, terms, place, first);
        first += count;
        let quiet = judge_block::<V>(scores, place, &lanes, history, widths);
        if quiet.count_ones() as usize == count {
            continue;
        }
        for (number, one) in (number..).zip(&members.places[number..first]) {
            if quiet >> (one.slot as usize % WIDE) & 1 == 0 {
                rest.push(number as u32);
            }
        }
    }
}

/// `Middle::median_without`.
#[inline(always)]
fn median_without<V: Vector>(middle: [V; 4], value: V) -> V {
    let [below, at, above, odd] = middle;
    let upper = above.or(value.up_to(at), at);
    let lower = at.or(value.up_to(below), below);
    upper.or(odd.up_to(V::splat(0.0)), (lower + upper) / V::splat(2.0))
}

/// Which of the eight were quiet, a bit for each. Of the others only the window is counted. A
/// figure that is no number makes a rank one of the others: every comparison with it is false.
#[inline(always)]
fn judge_block<V: Vector>(
    scores: &mut Scores,
    place: usize,
    lanes: &Lanes,
    history: u32,
    widths: &mut Widths,
) -> u32 {
    let wide = [0.0; WIDE];
    let (mut last, mut second, mut oldest, mut pushed) = (wide, wide, wide, wide);
    let (mut known, mut length, mut past_count) = (wide, wide, wide);
    let (block, kept) = (&mut scores.blocks[place], &mut scores.values[place]);
    for (values, window) in [(&mut last, 0), (&mut second, 1), (&mut oldest, RUN - 1)] {
        // Nearly always it is one row.
        *values = kept.of(block.newest[0], window).map(f64::from);
        for (lane, value) in values.iter_mut().enumerate() {
            if block.newest[lane] != block.newest[0] {
                *value = f64::from(kept.of(block.newest[lane], window)[lane]);
            }
        }
    }
    for lane in 0..WIDE {
        // As i32, which they fit: registers of four convert those.
        known[lane] = f64::from(block.known[lane] as i32);
        length[lane] = f64::from(block.length[lane]);
        past_count[lane] = f64::from(block.past_count[lane] as i32);
    }
    let mut quiet = 0;
    for lane in (0..WIDE).step_by(V::LANES) {
        let window = Counted {
            last: V::read(&last, lane),
            second: V::read(&second, lane),
            oldest: V::read(&oldest, lane),
            known: V::read(&known, lane),
            length: V::read(&length, lane),
            past_count: V::read(&past_count, lane),
            history: V::splat(f64::from(history)),
        };
        let (usual, spreads) = (&mut scores.usual[place], &mut scores.spreads[place]);
        let (ok, newest) = judge_lanes(block, usual, spreads, kept, lanes, lane, window, widths);
        newest.write(&mut pushed, lane);
        quiet |= ok << lane;
    }
    if quiet == ALL && block.newest == [block.newest[0]; WIDE] && block.length == [RUN as u8; WIDE]
    {
        let newest = (block.newest[0] + 1) % RUN as u8;
        kept.0[usize::from(newest)] = pushed.map(|value| value as f32);
        block.newest = [newest; WIDE];
        block.known = block.known.map(|known| (known + 1).min(history));
        block.past_count = block.past_count.map(|count| count.saturating_add(1).min(history));
        block.present = block.present.map(|present| present << 1 | 1);
        block.high = block.high.map(|high| high << 1);
        block.gross = [0; WIDE];
        return quiet;
    }
    for (lane, pushed) in pushed.into_iter().enumerate() {
        let ok = quiet >> lane & 1;
        block.present[lane] = block.present[lane] << 1 | u64::from(ok);
        if ok == 0 {
            continue;
        }
        let newest = (block.newest[lane] + 1) % RUN as u8;
        kept.0[usize::from(newest)][lane] = pushed as f32;
        block.newest[lane] = newest;
        if usize::from(block.length[lane]) == RUN {
            block.known[lane] = (block.known[lane] + 1).min(history);
        } else {
            block.length[lane] += 1;
        }
        block.past_count[lane] = block.past_count[lane].saturating_add(1).min(history);
        block.high[lane] <<= 1;
        block.gross[lane] = 0;
    }
    quiet
}

/// Bits of all eight.
const ALL: u32 = (1 << WIDE) - 1;

/// What is kept as counts and single-precision values.
struct Counted<V> {
    last: V,
    second: V,
    oldest: V,
    known: V,
    length: V,
    past_count: V,
    history: V,
}

/// Those from `lane` on: which were quiet, and the values that are to be kept of them.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn judge_lanes<V: Vector>(
    block: &mut Block,
    usual: &mut Wide<f64>,
    spreads: &mut Spreads,
    kept: &Values,
    lanes: &Lanes,
    lane: usize,
    window: Counted<V>,
    widths: &mut Widths,
) -> (u32, V) {
    let Counted { last, second, oldest, known, length, past_count, history } = window;
    let (zero, one, two) = (V::splat(0.0), V::splat(1.0), V::splat(2.0));
    let [a, b, c, d, e, f, g, h, differences, variance, alike, natural, threshold] =
        std::array::from_fn(|term| V::read(&lanes.terms[term], lane));
    let value = V::read(&lanes.value, lane);
    let excess = V::read(&lanes.excess, lane);
    let stated = V::read(&lanes.stated, lane);

    // `Spread::deviation`.
    let (near, near_weight) = (V::read(&spreads.near, lane), V::read(&spreads.near_weight, lane));
    let own = near_weight / V::splat(DIFFERENCES);
    let ratio = (near / near_weight / differences).min(V::splat(OWN_MOST));
    let ratio = ratio.or(zero.below(near_weight), one);
    let deviation = (variance * ((alike + own * ratio) / (alike + own))).sqrt();
    let believed = V::splat(TRUSTED) * deviation;
    let trust = (believed / stated).or(believed.below(stated), one);

    let excess = (excess - median_without([a, b, c, d], excess)) * trust;
    let level = value - median_without([e, f, g, h], value);
    let mut ok = level.below(natural);
    ok =
        ok & (excess.below(V::splat(HIGH_LEAST)) | excess.below(V::splat(HIGH_SIGMAS) * deviation));
    let (base, total) = (V::read(&block.base, lane), V::read(&block.total, lane));
    let center = (known * base + total) / (known + length);
    let pushed = center + excess.max(V::splat(-FASTER) * deviation);

    // `Spread::learn`; a jump that may be taken back is none of this.
    ok = ok & two.up_to(length);
    let known_noise = near + V::splat(LIKE_PEERS) * differences;
    let noise = differences.max(known_noise / (near_weight + V::splat(LIKE_PEERS)));
    let jump = V::splat(JUMP) * noise;
    let (error, before, both) = (pushed - last, last - second, pushed - second);
    let (error, before, both) = (error * error, before * before, both * both / two);
    ok = ok & before.below(jump);
    let keep = V::splat(NOISE_KEEP);
    let learnt = error.below(jump);
    let more = near * keep + error.min(V::splat(MOST) * noise) / two;
    let near = more.or(learnt, near);
    let near_weight = (near_weight * keep + one).or(learnt, near_weight);
    let learnt = error.max(before).max(both).below(jump);
    let (far, far_weight) = (V::read(&spreads.far, lane), V::read(&spreads.far_weight, lane));
    let far = (far * keep + both).or(learnt, far);
    let far_weight = (far_weight * keep + one).or(learnt, far_weight);

    // `Series::push`.
    let full = V::splat(RUN as f64).up_to(length);
    let total = (total - oldest).or(full, total);
    let (step, most) = (oldest - base, V::splat(3.0) * deviation);
    let limited = step.max(V::splat(-3.0) * deviation).min(most);
    let step = limited.or(V::splat(4.0).below(known), step);
    let more = (known + one).min(history);
    let base = (base + one / more * step).or(full, base);
    let known = more.or(full, known);
    let length = length.or(full, length + one);
    let newest = pushed.round();
    let total = total + newest;
    let count = known + length;
    let center = (known * base + total) / count;

    // The scan finds nothing where this is so.
    let longest = length.min(count - V::splat(LEAST_PAST as f64));
    let ceiling =
        Ceiling { slope: V::read(&block.slope, lane), height: V::read(&block.height, lane) };
    let ceiling = ceiling.push(newest);
    ok = ok & one.up_to(longest);
    let threshold = threshold * deviation;
    let below = ok & ceiling.is_below(threshold, center, count, longest);
    let mut height = ceiling.height;
    let unsure = V::bits(ok) & !V::bits(below);
    ok = below;
    if unsure != 0 {
        let mut all = Pushed::default();
        newest.write(&mut all.newest, lane);
        known.write(&mut all.known, lane);
        length.write(&mut all.length, lane);
        center.write(&mut all.center, lane);
        threshold.write(&mut all.threshold, lane);
        height.write(&mut all.height, lane);
        let calm = all.rescan(unsure << lane, block, kept, widths);
        ok = V::mask(V::bits(ok) | calm >> lane);
        height = V::read(&all.height, lane);
    }

    let past = V::read(&block.past, lane);
    let past = past + one / (past_count + one).min(history) * (value - past);
    let center = V::read(&block.anchor, lane) + center;
    let put = |wide: &mut Wide<f64>, new: V| new.or(ok, V::read(wide, lane)).write(wide, lane);
    put(&mut spreads.near, near);
    put(&mut spreads.near_weight, near_weight);
    put(&mut spreads.far, far);
    put(&mut spreads.far_weight, far_weight);
    put(&mut block.base, base);
    put(&mut block.total, total);
    put(&mut block.past, past);
    put(usual, center);
    put(&mut block.height, height);
    (V::bits(ok), newest)
}

#[cfg(test)]
mod tests {
    use super::super::block::RankScore;
    use super::super::members::{Flags, Place};
    use super::super::series::Spread;
    use super::*;

    /// Sums of uniform numbers, about Gaussian.
    fn noise(seed: &mut u64) -> f64 {
        let mut uniform = || {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (*seed >> 11) as f64 / (1u64 << 53) as f64
        };
        (0..6).map(|_| uniform() - 0.5).sum::<f64>() * 0.01
    }

    #[test]
    fn wide_registers_change_no_bit() {
        let (ranks, mut seed, mut widths) = (21, 5, Widths::default());
        let mut wide = Scores::default();
        wide.resize(ranks);
        for slot in 0..ranks {
            let mut score = RankScore { newest: slot as u8, ..RankScore::default() };
            score.spread = Spread { near: 4e-4, near_weight: 8.0, far: 4e-4, far_weight: 7.0 };
            score.series.known = 3 * slot as u32;
            score.series.length = 2 + slot as u32 % 31;
            for window in 0..score.series.length as usize {
                *score.series.value_mut(window) = noise(&mut seed) as f32;
                score.series.total += f64::from(score.series.value(window));
            }
            score.ceiling = Ceiling::of(&score.series, score.series.center(), 0.03);
            wide.store(slot, &score);
        }
        let mut plain = wide.clone();
        let terms =
            [[-0.001, 0.0, 0.001, 1.0, 17.998, 18.0, 18.001, 0.0, 5e-5, 5e-5, 60.0, 0.06, 4.3]];
        let (mut quiet, mut others) = (0, 0);
        for _ in 0..60 {
            let mut members = Members::default();
            for slot in (0..ranks).filter(|slot| slot % 9 != 4) {
                let excess = noise(&mut seed) + if seed % 50 == 0 { 0.05 } else { 0.0 };
                let stated = if seed % 3 == 0 { 0.01 } else { 0.0 };
                let place = Place { slot: slot as u32, ..Place::default() };
                members.places.push(place);
                members.flags.push(Flags::default());
                members.stated.push(stated);
                members.values.push(18.0 + excess);
                members.excesses.push(excess);
            }
            let (mut rest, mut rest_of_plain) = (Vec::new(), Vec::new());
            judge_quiet(&mut wide, &members, &terms, 40, &mut widths, &mut rest);
            judge_with::<f64>(&mut plain, &members, &terms, 40, &mut widths, &mut rest_of_plain);
            assert_eq!(format!("{wide:?}"), format!("{plain:?}"));
            assert_eq!(rest, rest_of_plain);
            for slot in rest.iter().map(|number| members.places[*number as usize].slot as usize) {
                let mut score = wide.load(slot);
                score.ceiling = Ceiling::of(&score.series, score.series.center(), 0.03);
                wide.store(slot, &score);
                plain.store(slot, &score);
            }
            others += rest.len();
            quiet += members.len() - rest.len();
        }
        assert!(quiet > 300 && others > 50, "{quiet} quiet, {others} not");
    }
}
