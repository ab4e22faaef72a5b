//! Who the ranks of a job are. Few differ in that, so each difference is kept once.

use std::collections::HashMap;

use super::groups::{key, Key};
use super::members::{Flags, Members};
use crate::window::RankWindow;

/// More of them than twice the ranks, and so many: then some are nobody's any more.
const SPARE: usize = 64;

/// Who a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub key: Key,
    pub world_size: u32,
}

impl Identity {
    pub fn of(row: &RankWindow) -> Identity {
        Identity { key: key(row), world_size: row.world_size }
    }
}

/// Of all ranks, by slot.
#[derive(Debug, Default)]
pub(super) struct Identities {
    /// Those that there are, and the place of each.
    pub all: Vec<Identity>,
    places: HashMap<Identity, u32>,
    /// Whose is which.
    pub of: Vec<u32>,
    pub last_steps: Vec<u64>,
}

impl Identities {
    pub fn get(&self, slot: usize) -> &Identity {
        &self.all[self.of[slot] as usize]
    }

    /// Whether a row goes on with what is known of the rank: not another peer group, another size
    /// of job, or a process that was started anew.
    pub fn goes_on(&self, slot: usize, row: &RankWindow) -> bool {
        *self.get(slot) == Identity::of(row) && row.first_step >= self.last_steps[slot]
    }

    pub fn set(&mut self, slot: usize, identity: Identity) {
        if self.all.len() > 2 * self.of.len() + SPARE {
            let used: Vec<_> = (0..self.of.len()).map(|slot| *self.get(slot)).collect();
            self.all.clear();
            self.places.clear();
            self.of.clear();
            for identity in used {
                let place = self.place(identity);
                self.of.push(place);
            }
        }
        self.of[slot] = self.place(identity);
    }

    /// Takes over who the members are now, and which step was their last.
    pub fn renew(&mut self, rows: &[RankWindow], members: &mut Members) {
        let Members { places, flags, last_steps, any, .. } = members;
        if any.has(Flags::ANEW) {
            let anew = places.iter().zip(flags.iter()).filter(|one| one.1.has(Flags::ANEW));
            for (place, _) in anew {
                self.set(place.slot as usize, Identity::of(&rows[place.row as usize]));
            }
        }
        if last_steps.len() == self.last_steps.len() {
            std::mem::swap(last_steps, &mut self.last_steps);
            return;
        }
        for (place, last_step) in places.iter().zip(last_steps) {
            self.last_steps[place.slot as usize] = *last_step;
        }
    }

    fn place(&mut self, identity: Identity) -> u32 {
        *self.places.entry(identity).or_insert_with(|| {
            self.all.push(identity);
            self.all.len() as u32 - 1
        })
    }

    pub fn reserve(&mut self, more: usize) {
        self.of.reserve_exact(more);
        self.last_steps.reserve_exact(more);
    }

    pub fn push(&mut self) {
        let place = self.place(Identity::default());
        self.of.push(place);
        self.last_steps.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_nobodys_any_more_are_forgotten() {
        let mut ranks = Identities::default();
        (0..3).for_each(|_| ranks.push());
        let identity = |signature: u64| Identity { key: (signature, 0, 1), world_size: 3 };
        ranks.set(2, identity(7));
        for signature in 0..10_000 {
            ranks.set(signature as usize % 2, identity(signature));
        }
        assert!(ranks.all.len() <= 2 * 3 + SPARE + 1, "{}", ranks.all.len());
        assert_eq!(ranks.places.len(), ranks.all.len());
        let found = [0, 1, 2].map(|slot| ranks.get(slot).key.0);
        assert_eq!(found, [9998, 9999, 7]);
    }
}
