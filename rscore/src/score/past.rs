//! What the ranks of a group bring from before a window.

use std::ops::Range;

use super::block::{fetch, Scores, Spreads, WIDE};
use super::groups::{Group, Groups};
use super::members::Flags;
use super::ranks::Ranks;
use super::series::{ratio, Likeness, Noise, Prior, Sums};
use super::Finding;
use crate::window::RankWindow;

/// Noise of a window below which none is believed (ln).
const HOST_FLOOR: f64 = 0.004;
const DEVICE_FLOOR: f64 = 0.001;
/// Blocks ahead of which memory is asked for.
const AHEAD: usize = 2;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Past {
    sums: Sums,
    /// Ranks that were named lately and are healthy again.
    pub moved: u32,
    /// Whether one is timed on CPUs.
    host: bool,
}

impl Past {
    /// Of a group. Ranks whose past does not count any more forget it; their findings end.
    pub fn of(
        groups: &Groups,
        group: &Group,
        rows: &[RankWindow],
        recent: u64,
        ranks: &mut Ranks,
        farewells: &mut Vec<Finding>,
    ) -> Past {
        let mut past = Past::default();
        let members = &groups.members;
        if members.any.has(Flags::ANEW | Flags::NAMED | Flags::HOST) {
            for number in groups.of(group) {
                let (place, flags) = (&members.places[number], members.flags[number]);
                if flags.has(Flags::ANEW) {
                    ranks.change(place.slot, |one| one.renew(farewells));
                }
                if flags.has(Flags::NAMED) {
                    let window = rows[place.row as usize].window;
                    let cases = &ranks.cases[place.slot as usize];
                    past.moved += u32::from(cases.has_moved(window, recent));
                }
                past.host |= flags.has(Flags::HOST);
            }
        }
        past
    }

    /// Adds up what the group, and with it the job, has seen of noise.
    pub fn add(&mut self, groups: &Groups, group: &Group, scores: &Scores, prior: &mut Prior) {
        each_spread(groups, group, scores, |spreads, lanes| {
            for lane in lanes {
                let spread = spreads.get(lane);
                self.sums.add(&spread);
                prior.add(&spread);
            }
        });
    }

    pub fn noise(&self, groups: &Groups, group: &Group, scores: &Scores, prior: Prior) -> Noise {
        let floor = if self.host { HOST_FLOOR } else { DEVICE_FLOOR };
        Noise::of(&self.sums, floor, prior, |differences| {
            let mut likeness = Likeness::default();
            each_spread(groups, group, scores, |spreads, lanes| {
                let ratios: [f64; WIDE] =
                    std::array::from_fn(|lane| ratio(spreads.get(lane).own(), differences));
                ratios[lanes].iter().for_each(|ratio| likeness.add(*ratio));
            });
            likeness
        })
    }
}

/// The members of a group by rank, those of a block together where all between are of the group.
#[inline(always)]
fn each_spread(
    groups: &Groups,
    group: &Group,
    scores: &Scores,
    mut take: impl FnMut(&Spreads, Range<usize>),
) {
    let slot = |number: usize| groups.members.places[number].slot as usize;
    let count = group.len();
    let (first, last) = (slot(groups.number(group, 0)), slot(groups.number(group, count - 1)));
    if last - first + 1 != count {
        for slot in groups.of(group).map(slot) {
            take(&scores.spreads[slot / WIDE], slot % WIDE..slot % WIDE + 1);
        }
        return;
    }
    for block in first / WIDE..=last / WIDE {
        if let Some(later) = scores.spreads.get(block + AHEAD) {
            later.each().into_iter().for_each(|figures| fetch(figures));
        }
        let begin = first.saturating_sub(block * WIDE);
        let end = (last + 1 - block * WIDE).min(WIDE);
        take(&scores.spreads[block], begin..end);
    }
}
