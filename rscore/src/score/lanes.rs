//! What the ranks of a block bring to a window, eight beside each other.

use super::block::{Wide, WIDE};
use super::groups::Group;
use super::members::{Flags, Members};
use super::middle::Middle;
use super::rank::GROSS_ENDS;
use super::scan::SUSPECT_SHARE;
use super::series::Noise;

/// Of a group: `below`, `at`, `above` of what references are taken of, and whether their number is
/// odd (1 or 0); the same of the values; noise; the level below which one is natural; what a scan
/// must reach to be looked at, in standard deviations.
pub(super) type Terms = [f64; 13];

/// Of a group in which each rank is judged by itself.
const ONE_BY_ONE: Terms = [f64::NAN; 13];

/// `healthy`: what the reference of a known member is taken of, with more than that member;
/// `limit`: of a scan.
pub(super) fn terms(group: &Group, healthy: Option<Middle>, noise: &Noise, limit: f64) -> Terms {
    let Some(healthy) = healthy else { return ONE_BY_ONE };
    let middle = |m: Middle| (m.below, m.at, m.above, (m.count % 2) as f64);
    let (a, b, c, d) = middle(healthy);
    let (e, f, g, h) = middle(group.middle);
    let (natural, threshold) = (GROSS_ENDS * group.level_limit, SUSPECT_SHARE * limit);
    let (i, j, k) = (noise.differences, noise.variance, noise.alike);
    [a, b, c, d, e, f, g, h, i, j, k, natural, threshold * noise.long_run()]
}

/// What eight ranks bring to a window; an excess of NaN where one is not to be judged here.
pub(super) struct Lanes {
    pub value: Wide<f64>,
    pub excess: Wide<f64>,
    pub stated: Wide<f64>,
    pub terms: [Wide<f64>; 13],
    /// Whose terms these are.
    groups: Wide<u32>,
}

impl Lanes {
    pub fn new() -> Lanes {
        let wide = [0.0; WIDE];
        Lanes {
            value: wide,
            excess: wide,
            stated: wide,
            terms: [wide; 13],
            groups: [u32::MAX; WIDE],
        }
    }

    /// Takes the members of a block, which are those from `number` on; how many they are.
    #[inline(always)]
    pub fn fill(
        &mut self,
        members: &Members,
        terms: &[Terms],
        block: usize,
        number: usize,
    ) -> usize {
        let places = &members.places[number..];
        let first = (block * WIDE) as u32;
        if let Some(eight) = places.first_chunk::<WIDE>() {
            // Slots rise.
            let all = eight[0].slot == first && eight[WIDE - 1].slot == first + WIDE as u32 - 1;
            if all && !members.any.has(Flags::OPEN) {
                let groups = eight.map(|one| one.group);
                if groups != self.groups {
                    (0..WIDE).for_each(|lane| self.take_terms(lane, groups[lane], terms));
                }
                let eight = |figures: &[f64], wide: &mut Wide<f64>| {
                    wide.copy_from_slice(&figures[number..number + WIDE]);
                };
                eight(&members.values, &mut self.value);
                eight(&members.stated, &mut self.stated);
                eight(&members.excesses, &mut self.excess);
                return WIDE;
            }
        }
        self.excess = [f64::NAN; WIDE];
        let here = places.iter().take_while(|one| one.slot < first + WIDE as u32);
        let mut count = 0;
        for (number, one) in (number..).zip(here) {
            let lane = one.slot as usize % WIDE;
            self.take_terms(lane, one.group, terms);
            self.value[lane] = members.values[number];
            self.stated[lane] = members.stated[number];
            if !members.flags[number].has(Flags::OPEN) {
                self.excess[lane] = members.excesses[number];
            }
            count += 1;
        }
        count
    }

    fn take_terms(&mut self, lane: usize, group: u32, terms: &[Terms]) {
        if self.groups[lane] != group {
            self.groups[lane] = group;
            let of_group = &terms[group as usize];
            self.terms.iter_mut().zip(of_group).for_each(|(wide, one)| wide[lane] = *one);
        }
    }
}
