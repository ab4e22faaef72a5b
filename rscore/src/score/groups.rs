//! Peers: rows of one job with the same class and signature, in the order of their own time.

use super::estimate::{median, spread};
use super::{reason, Abstention};
use crate::window::{flag, RankWindow};

/// Steps of a rank may differ from the others' by this share, or by `STEPS_SLACK`.
const STEPS_SHARE: f64 = 0.2;
const STEPS_SLACK: f64 = 3.0;

/// One row that can be judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    /// Index into the window's rows.
    pub row: usize,
    /// ln of own time; of its share of wall where steps are not inferred.
    pub value: f64,
}

/// Ranks that are peers of each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub signature: u64,
    pub class_id: u32,
    /// Range of `Groups::members`.
    pub from: usize,
    pub to: usize,
    pub median: f64,
    pub spread: f64,
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
    /// `members[i].value`, for the estimators.
    pub values: Vec<f64>,
    pub groups: Vec<Group>,
    steps: Vec<f64>,
    scratch: Vec<f64>,
}

impl Groups {
    /// Sorts the judgeable rows into groups, and says why the others are not judged.
    pub fn build(&mut self, rows: &[RankWindow], abstentions: &mut Vec<Abstention>) {
        self.steps.clear();
        let whole = |row: &&RankWindow| row.flags & flag::PARTIAL == 0 && row.steps > 0;
        self.steps.extend(rows.iter().filter(whole).map(|row| f64::from(row.steps)));
        self.steps.sort_unstable_by(f64::total_cmp);
        let usual = median(&self.steps);
        self.members.clear();
        for (place, row) in rows.iter().enumerate() {
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
                self.members.push(Member { row: place, value });
            }
        }
        let key = |m: &Member| {
            let row = &rows[m.row];
            (row.signature, row.flags & flag::STEPS_NOT_INFERRED, row.class_id)
        };
        self.members.sort_unstable_by(|a, b| {
            key(a).cmp(&key(b)).then(a.value.total_cmp(&b.value)).then(a.row.cmp(&b.row))
        });
        self.values.clear();
        self.values.extend(self.members.iter().map(|m| m.value));
        self.groups.clear();
        let mut from = 0;
        while from < self.members.len() {
            let same = |m: &&Member| key(m) == key(&self.members[from]);
            let to = from + self.members[from..].iter().take_while(same).count();
            let values = &self.values[from..to];
            let row = &rows[self.members[from].row];
            self.groups.push(Group {
                signature: row.signature,
                class_id: row.class_id,
                from,
                to,
                median: median(values),
                spread: spread(values, &mut self.scratch),
            });
            from = to;
        }
    }

    /// The two largest own times of a signature, ns, in any class: what bounds a step.
    pub fn slowest_two(&self, rows: &[RankWindow], signature: u64) -> (f64, f64) {
        let mut top = (0.0, 0.0);
        // The last of a group is its slowest, the one before it the next.
        for group in self.groups.iter().filter(|group| group.signature == signature) {
            for member in self.members[group.from..group.to].iter().rev().take(2) {
                let own = rows[member.row].own;
                if own > top.0 {
                    top = (own, top.0);
                } else if own > top.1 {
                    top.1 = own;
                }
            }
        }
        top
    }
}
