//! Rows of one window that can be judged, in groups of peers, and each rank's reference.

use std::collections::HashMap;

use super::estimate::{level_limit, spread};
use super::members::{Member, Members, Place};
use super::middle::{itself, Middle, Near};
use super::pool::Pool;
use super::rank::{Around, Beside};
use super::rows::Accepted;
use super::{reason, Abstention};
use crate::window::{flag, source, RankWindow};

/// Steps of a rank may differ from the others' by this share, or by `STEPS_SLACK`.
const STEPS_SHARE: f64 = 0.2;
const STEPS_SLACK: f64 = 3.0;
/// Peers that can outvote a rank.
pub(super) const MIN_PEERS: usize = 3;
/// Groups in which one member counts for the spread.
pub(super) const SMALL_GROUP: usize = 16;
/// Spread of the values below which none is believed when it is a unit of confidence (ln).
const LEAST_SPREAD: f64 = 0.03;

/// (signature, STEPS_NOT_INFERRED or 0, class): ranks of one key are peers.
pub(super) type Key = (u64, u32, u32);

/// Ranks that are peers of each other, by rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub key: Key,
    /// Range of `Groups::order`.
    from: usize,
    to: usize,
    /// Of the values.
    pub middle: Middle,
    pub median: f64,
    pub spread: f64,
    /// `level_limit` of that.
    pub level_limit: f64,
    /// What references are taken of.
    peers: Pool,
    /// Median of the bytes per step, when all are alike or once somebody asked.
    usual_bytes: Option<f64>,
}

impl Group {
    pub fn len(&self) -> usize {
        self.to - self.from
    }
}

/// Groups of one window; reused, so that a steady job allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Groups {
    pub members: Members,
    pub groups: Vec<Group>,
    /// Numbers of the members, by group and rank; empty when there is one group.
    order: Vec<u32>,
    /// The two largest own times of each signature, ns, in any class: what bounds a step.
    pub slowest: HashMap<u64, (f64, f64)>,
    /// Excesses of the healthy that have a past, where those are not all members.
    everybody: Vec<f64>,
    all_healthy: bool,
    /// Transfer times that are known, ns.
    transfers: Vec<f64>,
    /// Keys in the order in which they were met, and each one's place.
    keys: Vec<Key>,
    /// Of each key, the bytes per step that all of its members have.
    bytes: Vec<Option<f64>>,
    places: HashMap<Key, u32>,
    all: Pool,
    scratch: Vec<f64>,
    near: Near,
}

pub(super) fn key(row: &RankWindow) -> Key {
    (row.signature, row.flags & flag::STEPS_NOT_INFERRED, row.class_id)
}

impl Groups {
    /// The judgeable ones of the `accepted` rows, by rank, and says why the others are not judged.
    /// `slots` are the places of their ranks; `look_back` compares a member with the past of its
    /// rank, and says whether it can be.
    pub fn select(
        &mut self,
        rows: &[RankWindow],
        accepted: &Accepted,
        slots: &[u32],
        abstentions: &mut Vec<Abstention>,
        mut look_back: impl FnMut(&mut Member, &RankWindow) -> bool,
    ) {
        let usual = self.usual_steps(rows, accepted);
        self.members.start(slots.len());
        self.keys.clear();
        self.bytes.clear();
        self.places.clear();
        self.transfers.clear();
        self.transfers.reserve_exact(slots.len());
        let mut group = 0;
        for (&place, &slot) in accepted.places.iter().zip(slots) {
            let row = &rows[place as usize];
            let partial = row.flags & flag::PARTIAL != 0;
            let off = (f64::from(row.steps) - usual).abs();
            let reason = if row.flags & flag::OWN_UNKNOWN != 0 {
                Some(reason::HOST_PROBES)
            } else if row.flags & flag::EVENTS_LOST != 0 {
                Some(reason::EVENTS_LOST)
            } else if row.steps > 0 && !partial && off > (STEPS_SHARE * usual).max(STEPS_SLACK) {
                Some(reason::STEPS_DISAGREE)
            } else {
                None
            };
            if let Some(reason) = reason {
                let (job, rank, window) = (row.job, row.rank, row.window);
                abstentions.push(Abstention { job, rank, window, reason });
            } else if !partial {
                let value = match row.flags & flag::STEPS_NOT_INFERRED {
                    0 => row.own.ln(),
                    _ => (row.own / row.wall).ln(),
                };
                let own = row.own;
                let stated = if row.own_se > 0.0 { row.own_se / own } else { 0.0 };
                let host = row.source == source::GLOO;
                let place = Place { row: place, slot, host, ..Place::default() };
                let (excess, others) = (f64::NAN, 0);
                let mut member = Member { place, own, stated, value, excess, others };
                if !look_back(&mut member, row) {
                    continue;
                }
                if row.comm > 0.0 {
                    self.transfers.push(row.comm);
                }
                let key = key(row);
                if self.keys.get(group as usize) != Some(&key) {
                    let new = self.keys.len() as u32;
                    group = *self.places.entry(key).or_insert(new);
                    if group == new {
                        self.keys.push(key);
                        self.bytes.push(Some(row.bytes));
                    }
                }
                if self.bytes[group as usize] != Some(row.bytes) {
                    self.bytes[group as usize] = None;
                }
                member.place.group = group;
                self.members.push(&member);
            }
        }
    }

    /// Puts what was selected into groups, by key.
    pub fn arrange(&mut self) {
        self.groups.clear();
        self.slowest.clear();
        self.order.clear();
        if self.keys.len() <= 1 {
            if let Some(key) = self.keys.first() {
                self.add(*key, self.bytes[0], 0, self.members.len());
            }
            return;
        }
        let mut sorted: Vec<usize> = (0..self.keys.len()).collect();
        sorted.sort_unstable_by_key(|met| self.keys[*met]);
        let mut group_of = vec![0; sorted.len()];
        (0..).zip(&sorted).for_each(|(group, met)| group_of[*met] = group);
        let mut ends = vec![0; sorted.len()];
        for place in &mut self.members.places {
            place.group = group_of[place.group as usize];
            ends[place.group as usize] += 1;
        }
        let mut begin = 0;
        for end in &mut ends {
            (*end, begin) = (begin, begin + *end);
        }
        self.order.resize(self.members.len(), 0);
        for (number, place) in (0..).zip(&self.members.places) {
            let end = &mut ends[place.group as usize];
            self.order[*end] = number;
            *end += 1;
        }
        let mut from = 0;
        for (met, to) in sorted.into_iter().zip(ends) {
            self.add(self.keys[met], self.bytes[met], from, to);
            from = to;
        }
    }

    /// Number of a group's member, by rank.
    pub fn number(&self, group: &Group, member: usize) -> usize {
        let place = group.from + member;
        self.order.get(place).map_or(place, |number| *number as usize)
    }

    /// The first member of the first group; there must be one.
    pub fn first(&self) -> Place {
        self.members.places[self.order.first().map_or(0, |number| *number as usize)]
    }

    /// Numbers of the members of a group, by rank.
    pub fn of(&self, group: &Group) -> impl Iterator<Item = usize> + Clone + use<'_> {
        numbers(&self.order, group.from, group.to)
    }

    /// Median of the steps in whole windows; 0 without any.
    fn usual_steps(&mut self, rows: &[RankWindow], accepted: &Accepted) -> f64 {
        if let Some(steps) = accepted.steps {
            return f64::from(steps);
        }
        let whole = |row: &&RankWindow| row.flags & flag::PARTIAL == 0 && row.steps > 0;
        let steps = accepted.places.iter().map(|place| &rows[*place as usize]).filter(whole);
        self.scratch.clear();
        self.scratch.extend(steps.map(|row| f64::from(row.steps)));
        match self.scratch.is_empty() {
            true => 0.0,
            false => Middle::of(&self.scratch, &mut self.near).median(),
        }
    }

    fn add(&mut self, key: Key, usual_bytes: Option<f64>, from: usize, to: usize) {
        let Groups { members, order, scratch, near, .. } = self;
        let slowest = self.slowest.entry(key.0).or_default();
        for own in numbers(order, from, to).map(|number| members.owns[number]) {
            if own > slowest.1 {
                *slowest = if own > slowest.0 { (own, slowest.0) } else { (slowest.0, own) };
            }
        }
        let values = match order.is_empty() {
            true => &members.values[from..to],
            false => {
                scratch.clear();
                scratch.extend(numbers(order, from, to).map(|number| members.values[number]));
                &scratch[..]
            }
        };
        let middle = Middle::of(values, near);
        let median = middle.median();
        let spread = spread(values, median, near);
        self.groups.push(Group {
            key,
            from,
            to,
            middle,
            median,
            spread,
            level_limit: level_limit(spread, (to - from).saturating_sub(1).max(1)),
            peers: Pool::default(),
            usual_bytes,
        });
    }

    /// Takes together what happened to whom; `member` has what happened to the others of each.
    pub fn set_references(&mut self) {
        let Groups { members, groups, order, everybody, near, .. } = self;
        let slow = members.places.iter().any(|place| place.proven);
        let all = numbers(&[], 0, members.len());
        if groups.len() > 1 {
            let scratch = &mut self.scratch;
            for group in groups.iter_mut() {
                let numbers = numbers(order, group.from, group.to);
                group.peers = Pool::of(members, numbers, slow, everybody, scratch, near);
            }
        }
        self.all_healthy = !slow && members.known == members.len();
        self.all = match self.all_healthy {
            true => Pool::of_healthy(&members.excesses, near),
            false => Pool::of(members, all, slow, everybody, &mut self.scratch, near),
        };
        if let [group] = &mut groups[..] {
            group.peers = self.all;
        }
    }

    /// Value of the fastest quarter of the healthy, over their own past; none of fewer than two.
    pub fn fastest_quarter(&mut self) -> Option<f64> {
        let everybody = match self.all_healthy {
            true => &self.members.excesses,
            false => &self.everybody,
        };
        if everybody.len() < 2 {
            return None;
        }
        let place = (everybody.len() - 1) / 4;
        Some(Middle::around(everybody, itself, place, &mut self.near).at)
    }

    /// Median of the transfer times, ns; none of fewer than two.
    pub fn usual_transfer(&mut self) -> Option<f64> {
        let known = self.transfers.len() >= 2;
        known.then(|| Middle::of(&self.transfers, &mut self.near).median())
    }

    /// Of the values; there must be one.
    pub fn median(&mut self) -> f64 {
        Middle::of(&self.members.values, &mut self.near).median()
    }

    /// What the references of a group's known (or unknown) members are taken of.
    fn pool(&self, group: &Group, known: bool) -> Pool {
        match group.peers.known.count >= MIN_PEERS + usize::from(known) {
            true => group.peers,
            false => self.all,
        }
    }

    /// The healthy whose median is the reference of a group's known and healthy members, when
    /// their peers can outvote them.
    pub fn healthy(&self, group: &Group) -> Option<Middle> {
        let healthy = self.pool(group, true).healthy;
        (healthy.count > 1 && group.len() > MIN_PEERS).then_some(healthy)
    }

    /// A member, and what happened to the others (median): of its peers, or of the whole job
    /// where they are fewer than three.
    pub fn member(&self, number: usize) -> (Member, f64) {
        let mut member = self.members.get(number);
        let pool = self.pool(&self.groups[member.place.group as usize], member.is_known());
        member.others = (pool.known.count - usize::from(member.is_known())) as u32;
        (member, pool.reference(&member))
    }

    /// What a finding of a member of `group` needs of it.
    pub fn around(&self, group: &Group, moved: u32) -> Around {
        let slowest = self.slowest.get(&group.key.0).copied().unwrap_or_default();
        Around { peers: group.len() - 1, slowest, moved }
    }

    /// Median of the standard errors that the windows state (ln); 0 where none does.
    pub fn stated_error(&mut self) -> f64 {
        let Groups { members, scratch, near, .. } = self;
        if members.stating == 0 {
            return 0.0;
        }
        if members.stating == members.len() {
            return Middle::of(&members.stated, near).median();
        }
        scratch.clear();
        scratch.extend(members.stated.iter().filter(|stated| **stated > 0.0));
        Middle::of(scratch, near).median()
    }

    /// Bytes per step of a member over the median of its group, minus one; NaN where that says
    /// nothing.
    pub fn work(&mut self, place: usize, rows: &[RankWindow], row: &RankWindow) -> f64 {
        let group = &mut self.groups[place];
        if group.len() <= MIN_PEERS {
            return f64::NAN;
        }
        let members = numbers(&self.order, group.from, group.to);
        let (places, scratch, near) = (&self.members.places, &mut self.scratch, &mut self.near);
        let usual = *group.usual_bytes.get_or_insert_with(|| {
            scratch.clear();
            scratch.extend(members.map(|number| rows[places[number].row as usize].bytes));
            Middle::of(scratch, near).median()
        });
        if usual > 0.0 {
            row.bytes / usual - 1.0
        } else {
            f64::NAN
        }
    }

    /// A member of a group of more than one beside the others.
    pub fn beside(&mut self, member: &Member) -> Beside {
        let group = self.groups[member.place.group as usize];
        let others = group.middle.median_without(member.value);
        let (mut natural, mut limit) = (group.spread, group.level_limit);
        if group.len() <= SMALL_GROUP {
            let Members { places, values, .. } = &self.members;
            let peers = numbers(&self.order, group.from, group.to);
            let peers = peers.filter(|peer| places[*peer].slot != member.place.slot);
            self.scratch.clear();
            self.scratch.extend(peers.map(|peer| values[peer]));
            natural = spread(&self.scratch, others, &mut self.near);
            limit = level_limit(natural, group.len() - 1);
        }
        let level = member.value - others;
        Beside { others, level, limit, spread: natural.max(LEAST_SPREAD) }
    }
}

/// The numbers at these places of `order`; the places themselves where that is empty.
fn numbers(order: &[u32], from: usize, to: usize) -> impl Iterator<Item = usize> + Clone + use<'_> {
    let (all, some) = match order.is_empty() {
        true => (from..to, order),
        false => (0..0, &order[from..to]),
    };
    all.chain(some.iter().map(|number| *number as usize))
}
