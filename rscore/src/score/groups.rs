//! Rows of one window that can be judged, in groups of peers, and each rank's reference.

use std::collections::HashMap;

use super::estimate::{level_limit, spread, Middle};
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
const SMALL_GROUP: usize = 16;
/// Spread of the values below which none is believed when it is a unit of confidence (ln).
const LEAST_SPREAD: f64 = 0.03;

/// (signature, STEPS_NOT_INFERRED or 0, class): ranks of one key are peers.
pub(super) type Key = (u64, u32, u32);

/// One row that can be judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Index into the window's rows.
    pub row: u32,
    /// Index into the job's ranks.
    pub slot: u32,
    /// Of the row, ns.
    pub own: f64,
    /// Standard error of `own` that the row states, over that (ln); 0 where it states none.
    pub stated: f64,
    /// ln of own time; of its share of wall where steps are not inferred.
    pub value: f64,
    /// Value over the rank's own past; NaN while it has none.
    pub excess: f64,
    /// How many others there are to compare with. Of a copy by `Groups::member`.
    pub others: u32,
    /// Confirmed to be slow already: then it says nothing about everybody.
    pub proven: bool,
    /// Its past does not count any more.
    pub anew: bool,
    /// Timed on CPUs, which it may share.
    pub host: bool,
}

impl Member {
    pub fn is_known(&self) -> bool {
        !self.excess.is_nan()
    }
}

/// Ranks that are peers of each other, by rank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub key: Key,
    /// Range of `Groups::members`.
    pub from: usize,
    pub to: usize,
    /// Of the values.
    pub middle: Middle,
    pub median: f64,
    pub spread: f64,
    /// `level_limit` of that.
    pub level_limit: f64,
    /// What references are taken of.
    peers: Pool,
    /// Median of the bytes per step, once somebody asked.
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
    pub members: Vec<Member>,
    pub groups: Vec<Group>,
    /// The two largest own times of each signature, ns, in any class: what bounds a step.
    pub slowest: HashMap<u64, (f64, f64)>,
    /// Excesses of the healthy that have a past, in no order.
    pub everybody: Vec<f64>,
    /// Transfer times that are known, ns, and the stated errors (`Member::stated`) of those who
    /// state one, in no order.
    pub transfers: Vec<f64>,
    stated: Vec<f64>,
    /// What all members share, when it is one key.
    alike: Option<Key>,
    all: Pool,
    scratch: Vec<f64>,
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
        self.members.clear();
        self.members.reserve_exact(slots.len());
        for values in [&mut self.transfers, &mut self.stated, &mut self.everybody] {
            values.clear();
            values.reserve_exact(slots.len());
        }
        let (mut first, mut alike) = (None, true);
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
                let (own, host) = (row.own, row.source == source::GLOO);
                let stated = if row.own_se > 0.0 { row.own_se / own } else { 0.0 };
                let (excess, others, proven, anew) = (f64::NAN, 0, false, false);
                let mut member = Member {
                    row: place,
                    slot,
                    own,
                    stated,
                    value,
                    excess,
                    others,
                    proven,
                    anew,
                    host,
                };
                if !look_back(&mut member, row) {
                    continue;
                }
                if row.own_se > 0.0 {
                    self.stated.push(stated);
                }
                if row.comm > 0.0 {
                    self.transfers.push(row.comm);
                }
                alike &= *first.get_or_insert(key(row)) == key(row);
                self.members.push(member);
            }
        }
        self.alike = first.filter(|_| alike);
    }

    /// Puts what was selected into groups.
    pub fn arrange(&mut self, rows: &[RankWindow]) {
        self.groups.clear();
        self.slowest.clear();
        if let Some(key) = self.alike {
            self.add(key, 0, self.members.len());
            return;
        }
        // Stable: by rank within a group.
        let of = |member: &Member| key(&rows[member.row as usize]);
        self.members.sort_by_key(of);
        let mut from = 0;
        while from < self.members.len() {
            let key = of(&self.members[from]);
            let same = self.members[from..].iter().take_while(|member| of(member) == key).count();
            self.add(key, from, from + same);
            from += same;
        }
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
            false => Middle::of(&mut self.scratch).median(),
        }
    }

    fn add(&mut self, key: Key, from: usize, to: usize) {
        let members = &self.members[from..to];
        let slowest = self.slowest.entry(key.0).or_default();
        self.scratch.clear();
        self.scratch.extend(members.iter().map(|member| {
            if member.own > slowest.1 {
                let first = member.own > slowest.0;
                *slowest = if first { (member.own, slowest.0) } else { (slowest.0, member.own) };
            }
            member.value
        }));
        let middle = Middle::of(&mut self.scratch);
        let median = middle.median();
        let spread = spread(&mut self.scratch, median);
        self.groups.push(Group {
            key,
            from,
            to,
            middle,
            median,
            spread,
            level_limit: level_limit(spread, (to - from).saturating_sub(1).max(1)),
            peers: Pool::default(),
            usual_bytes: None,
        });
    }

    /// Takes together what happened to whom; `member` has what happened to the others of each.
    pub fn set_references(&mut self) {
        let single = self.groups.len() == 1;
        if !single {
            for group in &mut self.groups {
                let members = &self.members[group.from..group.to];
                group.peers = Pool::of(members, &mut self.everybody, &mut self.scratch);
            }
        }
        self.all = Pool::of(&self.members, &mut self.everybody, &mut self.scratch);
        if let (true, Some(group)) = (single, self.groups.first_mut()) {
            group.peers = self.all;
        }
    }

    /// A member of a group, and what happened to the others (median): of its peers, or of the whole job where they are
    /// fewer than three.
    #[inline]
    pub fn member(&self, group: &Group, number: usize) -> (Member, f64) {
        let mut member = self.members[number];
        let itself = usize::from(member.is_known());
        let enough = group.peers.known.count >= MIN_PEERS + itself;
        let pool = if enough { &group.peers } else { &self.all };
        member.others = (pool.known.count - itself) as u32;
        (member, pool.reference(&member))
    }

    /// What a finding of a member of `group` needs of it.
    pub fn around(&self, group: &Group, moved: u32) -> Around {
        let slowest = self.slowest.get(&group.key.0).copied().unwrap_or_default();
        Around { peers: group.len() - 1, slowest, moved }
    }

    /// Median of the standard errors that the windows state (ln); 0 where none does.
    pub fn stated_error(&mut self) -> f64 {
        match self.stated.is_empty() {
            true => 0.0,
            false => Middle::of(&mut self.stated).median(),
        }
    }

    /// Bytes per step of a member over the median of its group, minus one; NaN where that says
    /// nothing.
    pub fn work(&mut self, place: usize, rows: &[RankWindow], row: &RankWindow) -> f64 {
        let group = &mut self.groups[place];
        if group.len() <= MIN_PEERS {
            return f64::NAN;
        }
        let members = &self.members[group.from..group.to];
        let scratch = &mut self.scratch;
        let usual = *group.usual_bytes.get_or_insert_with(|| {
            scratch.clear();
            scratch.extend(members.iter().map(|member| rows[member.row as usize].bytes));
            Middle::of(scratch).median()
        });
        if usual > 0.0 {
            row.bytes / usual - 1.0
        } else {
            f64::NAN
        }
    }

    /// A member of a group of more than one beside the others.
    pub fn beside(&self, group: &Group, member: usize, scratch: &mut Vec<f64>) -> Beside {
        let value = self.members[member].value;
        let others = group.middle.median_without(value);
        let (mut natural, mut limit) = (group.spread, group.level_limit);
        if group.len() <= SMALL_GROUP {
            let places = (group.from..group.to).filter(|place| *place != member);
            scratch.clear();
            scratch.extend(places.map(|place| self.members[place].value));
            natural = spread(scratch, others);
            limit = level_limit(natural, group.len() - 1);
        }
        Beside { others, level: value - others, limit, spread: natural.max(LEAST_SPREAD) }
    }
}

/// Ranks that a reference is taken of: those that are known, and of them the healthy ones.
#[derive(Clone, Copy, Debug, Default)]
struct Pool {
    known: Middle,
    healthy: Middle,
}

impl Pool {
    /// Leaves the excesses of the healthy in `healthy`.
    fn of(members: &[Member], healthy: &mut Vec<f64>, scratch: &mut Vec<f64>) -> Pool {
        let known = || members.iter().filter(|member| member.is_known());
        healthy.clear();
        healthy.extend(known().filter(|member| !member.proven).map(|member| member.excess));
        let middle = Middle::of(healthy);
        if !members.iter().any(|member| member.proven) {
            return Pool { known: middle, healthy: middle };
        }
        scratch.clear();
        scratch.extend(known().map(|member| member.excess));
        Pool { known: Middle::of(scratch), healthy: middle }
    }

    /// Median of the healthy others' excess, of all others' where there is no healthy one.
    fn reference(&self, member: &Member) -> f64 {
        let among = member.is_known() && !member.proven;
        if self.healthy.count > usize::from(among) {
            return match among {
                true => self.healthy.median_without(member.excess),
                false => self.healthy.median(),
            };
        }
        let itself = member.is_known();
        if self.known.count > usize::from(itself) {
            return match itself {
                true => self.known.median_without(member.excess),
                false => self.known.median(),
            };
        }
        0.0
    }
}
