//! Rows of one window that can be judged, in groups of peers, and each rank's reference.

use std::collections::HashMap;

use super::estimate::{level_limit, spread};
use super::identities::Identities;
use super::members::{Flags, Member, Members, Place};
use super::middle::{itself, Middle, Near};
use super::pool::Pool;
use super::rank::{Around, Beside, HOST_LEVEL};
use super::rows::Accepted;
use crate::window::{flag, RankWindow};

/// Peers that can outvote a rank.
pub(super) const MIN_PEERS: usize = 3;
/// Groups in which one member counts for the spread.
pub(super) const SMALL_GROUP: usize = 16;

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
    /// `level_limit` of that; the least one where each member of a small group has its own.
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
    pub(super) transfers: Vec<f64>,
    /// In the order in which they were met; the place of each key, and of that of each of
    /// `Identities::all` (`u32::MAX`: not met).
    pub(super) met: Vec<Met>,
    by_key: HashMap<Key, u32>,
    pub(super) met_by: Vec<u32>,
    all: Pool,
    scratch: Vec<f64>,
    near: Near,
}

/// What is seen of a group while its members are met.
#[derive(Clone, Copy, Debug)]
pub(super) struct Met {
    key: Key,
    /// Per step.
    bytes: Bytes,
    /// The two largest own times, ns.
    slowest: (f64, f64),
}

/// Bytes per step of a group's members.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bytes {
    Unknown,
    Alike(f64),
    Differ,
}

impl Met {
    /// One more row, and others.
    #[inline(always)]
    pub fn add(&mut self, rows: &[RankWindow]) {
        for row in rows {
            add_slowest(&mut self.slowest, row.own);
        }
        let bytes = match self.bytes {
            Bytes::Unknown => rows[0].bytes,
            Bytes::Alike(bytes) => bytes,
            Bytes::Differ => return,
        };
        let alike = rows.iter().fold(true, |alike, row| alike & (row.bytes == bytes));
        self.bytes = if alike { Bytes::Alike(bytes) } else { Bytes::Differ };
    }
}

/// Keeps the two largest.
fn add_slowest(slowest: &mut (f64, f64), own: f64) {
    if own > slowest.1 {
        *slowest = if own > slowest.0 { (own, slowest.0) } else { (slowest.0, own) };
    }
}

pub(super) fn key(row: &RankWindow) -> Key {
    (row.signature, row.flags & flag::STEPS_NOT_INFERRED, row.class_id)
}

impl Groups {
    /// Nobody, and room for so many.
    pub fn start(&mut self, most: usize, identities: &Identities) {
        self.members.start(most);
        self.transfers.clear();
        self.transfers.reserve_exact(most);
        self.met.clear();
        self.by_key.clear();
        self.met_by.clear();
        self.met_by.resize(identities.all.len(), u32::MAX);
    }

    /// Place of a key in `met`.
    pub fn group_of_key(&mut self, key: Key) -> u32 {
        *self.by_key.entry(key).or_insert_with(|| {
            self.met.push(Met { key, bytes: Bytes::Unknown, slowest: (0.0, 0.0) });
            self.met.len() as u32 - 1
        })
    }

    /// Puts what was selected into groups, by key.
    pub fn arrange(&mut self) {
        self.groups.clear();
        self.slowest.clear();
        self.order.clear();
        if self.met.len() <= 1 {
            if let Some(met) = self.met.first() {
                self.add(*met, 0, self.members.len());
            }
            return;
        }
        let mut sorted: Vec<usize> = (0..self.met.len()).collect();
        sorted.sort_unstable_by_key(|met| self.met[*met].key);
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
            self.add(self.met[met], from, to);
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
    pub fn usual_steps(&mut self, rows: &[RankWindow], accepted: &Accepted) -> f64 {
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

    fn add(&mut self, met: Met, from: usize, to: usize) {
        let Groups { members, order, scratch, near, .. } = self;
        let slowest = self.slowest.entry(met.key.0).or_default();
        add_slowest(slowest, met.slowest.0);
        add_slowest(slowest, met.slowest.1);
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
        let seen = if to - from > SMALL_GROUP { spread } else { 0.0 };
        let usual_bytes = match met.bytes {
            Bytes::Alike(bytes) => Some(bytes),
            _ => None,
        };
        self.groups.push(Group {
            key: met.key,
            from,
            to,
            middle,
            median,
            spread,
            level_limit: level_limit(seen, (to - from).saturating_sub(1).max(1)),
            peers: Pool::default(),
            usual_bytes,
        });
    }

    /// Takes together what happened to whom; `member` has what happened to the others of each.
    pub fn set_references(&mut self) {
        let Groups { members, groups, order, everybody, near, .. } = self;
        let slow = members.any.has(Flags::PROVEN);
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
        let mut limit = group.level_limit;
        if group.len() <= SMALL_GROUP {
            let Members { places, values, .. } = &self.members;
            let peers = numbers(&self.order, group.from, group.to);
            let peers = peers.filter(|peer| places[*peer].slot != member.place.slot);
            self.scratch.clear();
            self.scratch.extend(peers.map(|peer| values[peer]));
            limit = level_limit(spread(&self.scratch, others, &mut self.near), group.len() - 1);
        }
        if member.flags.has(Flags::HOST) {
            limit = limit.max(HOST_LEVEL);
        }
        Beside { others, level: member.value - others, limit }
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
