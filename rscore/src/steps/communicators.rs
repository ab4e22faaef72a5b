//! Communicators of one process: who they are and in which order they came into use.

use super::hash::{mix, Map};
use crate::wire::{what, Event};

/// Most communicators that one process may hold at a time.
const MAX_COMMUNICATORS: usize = 512;
/// Most communicators that are created but not yet seen in use.
const MAX_PENDING: usize = 128;
/// Ordinal of every communicator that found no place.
const OTHER: u16 = u16::MAX;

/// What is known of one communicator of one process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CommunicatorStatus {
    /// First 8 bytes of the unique id, 0 where unknown.
    pub id: u64,
    /// Rank of the process in it, -1 where unknown.
    pub rank: i32,
    /// Ranks in it, 0 where unknown.
    pub nranks: u64,
    /// Collectives seen on it.
    pub collectives: u64,
    /// Hash under which the ring records them, 0 where they are not joined.
    pub hash: u64,
    /// Share of them that the ring saw too; `None` where that is not known.
    pub coverage: Option<f64>,
}

const UNKNOWN: CommunicatorStatus =
    CommunicatorStatus { id: 0, rank: -1, nranks: 0, collectives: 0, hash: 0, coverage: None };

/// Bounded table of a process's communicators. An ordinal is the place in the order of first
/// use; the ordinal of a destroyed communicator is given to the next new one, so that a job
/// that makes and drops one in every step still repeats itself.
#[derive(Debug, Default)]
pub(crate) struct Communicators {
    ordinals: Map<u64, u16>,
    facts: Vec<CommunicatorStatus>,
    live: Vec<bool>,
    /// Address of the out pointer -> facts, oldest first.
    pending: Vec<(u64, CommunicatorStatus)>,
    last: Option<(u64, u16)>,
}

impl Communicators {
    /// Ordinal of communicator `pointer`, new where it was never seen; counts one collective.
    #[inline]
    pub fn count(&mut self, pointer: u64) -> u16 {
        let ordinal = match self.last {
            Some((last, ordinal)) if last == pointer => ordinal,
            _ => self.ordinal(pointer),
        };
        if let Some(facts) = self.facts.get_mut(usize::from(ordinal)) {
            facts.collectives += 1;
        }
        ordinal
    }

    fn ordinal(&mut self, pointer: u64) -> u16 {
        let ordinal = match self.ordinals.get(&pointer) {
            Some(&ordinal) => ordinal,
            None => self.insert(pointer),
        };
        self.last = Some((pointer, ordinal));
        ordinal
    }

    fn insert(&mut self, pointer: u64) -> u16 {
        let place = match self.live.iter().position(|live| !live) {
            Some(place) => place,
            None if self.facts.len() >= MAX_COMMUNICATORS => return OTHER,
            None => {
                self.facts.push(UNKNOWN);
                self.live.push(false);
                self.facts.len() - 1
            }
        };
        self.facts[place] = UNKNOWN;
        self.live[place] = true;
        self.ordinals.insert(pointer, place as u16);
        place as u16
    }

    fn remove(&mut self, pointer: u64) {
        if let Some(ordinal) = self.ordinals.remove(&pointer) {
            self.live[usize::from(ordinal)] = false;
        }
        self.last = None;
    }

    /// What a gloo context says about itself while it works.
    #[inline]
    pub fn learn(&mut self, pointer: u64, rank: i32, nranks: u64) {
        let ordinal = match self.last {
            Some((last, ordinal)) if last == pointer => ordinal,
            _ => self.ordinal(pointer),
        };
        if let Some(facts) = self.facts.get_mut(usize::from(ordinal)) {
            facts.rank = rank;
            facts.nranks = nranks;
        }
    }

    /// Ranks in communicator `pointer`; `None` where unknown.
    pub fn nranks(&self, pointer: u64) -> Option<u64> {
        let facts = self.facts.get(usize::from(*self.ordinals.get(&pointer)?))?;
        Some(facts.nranks).filter(|&nranks| nranks > 0)
    }

    /// One of the `COMM_*` events.
    pub fn on_event(&mut self, event: &Event) {
        let parent_id = || {
            let known = self.ordinals.get(&event.comm).map(|&o| self.facts[usize::from(o)].id);
            known.filter(|&id| id != 0)
        };
        match event.what {
            what::COMM_INIT => {
                let facts = CommunicatorStatus {
                    id: event.id,
                    rank: event.peer,
                    nranks: event.aux,
                    ..UNKNOWN
                };
                self.pend(event.comm, facts);
            }
            what::COMM_INIT_ALL => {
                for place in 0..event.aux.min(16) {
                    let facts =
                        CommunicatorStatus { rank: place as i32, nranks: event.aux, ..UNKNOWN };
                    self.pend(event.comm.wrapping_add(place * 8), facts);
                }
            }
            what::COMM_SPLIT => {
                // All ranks of one color share the parent and the color, so they share this id.
                let id = parent_id().map_or(0, |id| mix(id, event.peer as u32 as u64));
                self.pend(event.id, CommunicatorStatus { id, ..UNKNOWN });
            }
            what::COMM_SHRINK => {
                let id = parent_id().map_or(0, |id| mix(id, u64::from(what::COMM_SHRINK)));
                self.pend(event.id, CommunicatorStatus { id, ..UNKNOWN });
            }
            what::COMM_GROW => {
                let id = parent_id().map_or(0, |id| mix(id, u64::from(what::COMM_GROW)));
                let facts =
                    CommunicatorStatus { id, rank: event.peer, nranks: event.aux, ..UNKNOWN };
                self.pend(event.id, facts);
            }
            what::COMM_BOUND => {
                if let Some(place) = self.pending.iter().position(|(out, _)| *out == event.id) {
                    let (_, facts) = self.pending.remove(place);
                    let ordinal = self.ordinal(event.comm);
                    if let Some(known) = self.facts.get_mut(usize::from(ordinal)) {
                        *known = CommunicatorStatus { collectives: known.collectives, ..facts };
                    }
                }
            }
            what::COMM_DESTROY | what::COMM_ABORT => self.remove(event.comm),
            _ => {}
        }
    }

    fn pend(&mut self, out: u64, facts: CommunicatorStatus) {
        self.pending.retain(|(pointer, _)| *pointer != out);
        if self.pending.len() >= MAX_PENDING {
            self.pending.remove(0);
        }
        self.pending.push((out, facts));
    }

    /// The living ones in the order of their ordinals; `joined` gives hash and coverage of a
    /// pointer.
    pub fn status(
        &self,
        joined: impl Fn(u64) -> Option<(u64, Option<f64>)>,
    ) -> Vec<CommunicatorStatus> {
        let mut places: Vec<_> = self.ordinals.iter().map(|(&pointer, &o)| (o, pointer)).collect();
        places.sort_unstable();
        let status = |(ordinal, pointer)| {
            let (hash, coverage) = joined(pointer).unwrap_or((0, None));
            CommunicatorStatus { hash, coverage, ..self.facts[usize::from(ordinal)] }
        };
        places.into_iter().map(status).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: u8, comm: u64, id: u64, peer: i32, aux: u64) -> Event {
        Event { what, comm, id, peer, aux, ..Event::default() }
    }

    #[test]
    fn facts_travel_from_init_over_the_out_pointer_to_the_communicator() {
        let mut table = Communicators::default();
        table.on_event(&event(what::COMM_INIT, 0x1000, 77, 3, 8));
        assert!(table.status(|_| None).is_empty());
        table.on_event(&event(what::COMM_BOUND, 0xc0, 0x1000, 0, 0));
        assert_eq!(table.count(0xc0), 0);
        let expected = CommunicatorStatus { id: 77, rank: 3, nranks: 8, collectives: 1, ..UNKNOWN };
        assert_eq!(table.status(|_| None), vec![expected]);
        table.on_event(&event(what::COMM_SPLIT, 0xc0, 0x2000, 1, 3));
        table.on_event(&event(what::COMM_BOUND, 0xd0, 0x2000, 0, 0));
        assert_eq!(table.count(0xd0), 1);
        assert_eq!(table.status(|_| None)[1].id, mix(77, 1));
        table.on_event(&event(what::COMM_DESTROY, 0xc0, 0, 0, 0));
        assert_eq!(table.count(0xe0), 0, "a freed ordinal goes to the next new communicator");
        assert_eq!(table.status(|_| None)[0].id, 0);
    }

    #[test]
    fn a_job_that_makes_communicators_without_end_stays_bounded() {
        let mut table = Communicators::default();
        for pointer in 0..5_000u64 {
            table.on_event(&event(what::COMM_INIT, pointer, pointer, 0, u64::MAX));
            table.on_event(&event(what::COMM_INIT_ALL, pointer, 0, 0, u64::MAX));
            table.count(pointer);
        }
        assert_eq!(table.count(4_999), OTHER);
        assert!(table.ordinals.len() <= MAX_COMMUNICATORS);
        assert!(table.pending.len() <= MAX_PENDING);
    }
}
