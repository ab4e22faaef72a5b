//! Joins the events of one collective and hands collectives on in issue order.
//!
//! A gloo work is its DETAILs and then DONE or FAILED, all in one worker thread. Several threads
//! serve the queue of one process group, so works overtake one another between the queue and the
//! first event; the tag, which the group counts at issue, says how they were issued.

use std::collections::VecDeque;

use super::turns::Turns;
use crate::wire::{datatype_bytes, function, what, Event, NO_TYPE};

/// Most collectives that wait for an earlier one; then the earliest is given up.
const MAX_IN_FLIGHT: usize = 256;
/// Finished collectives behind one that runs, from which on its end counts as lost.
const MAX_BEHIND_RUNNING: usize = 64;
/// The same behind a tag that did not come; so many workers cannot have been overtaken.
const MAX_BEHIND_ABSENT: usize = 16;
/// How long a finished collective may wait for one that runs, ns.
const MAX_WAIT_NS: u64 = 30_000_000_000;
/// The same for a tag that did not come: longer than a thread that is ready stays off the
/// processor on a busy machine.
const MAX_ABSENT_NS: u64 = 500_000_000;

/// One collective with everything that its events said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collective {
    /// Communicator or gloo context; 0 where the work said nothing of itself.
    pub communicator: u64,
    pub bytes: u64,
    /// CLOCK_MONOTONIC ns; equal where only the host's call was seen.
    pub start_ns: u64,
    pub end_ns: u64,
    pub function: u8,
    pub datatype: u8,
    /// An event of it is missing, or the work failed: its times prove nothing.
    pub broken: bool,
    /// Start and end of the work itself were seen.
    pub timed: bool,
}

impl Collective {
    /// A host call, of which no end is seen.
    #[inline]
    pub fn from_enter(event: &Event) -> Collective {
        Collective {
            communicator: event.comm,
            bytes: event.count.saturating_mul(datatype_bytes(event.datatype)),
            start_ns: event.time_ns,
            end_ns: event.time_ns,
            function: event.function,
            datatype: event.datatype,
            broken: false,
            timed: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    tid: u32,
    running: bool,
    /// Place among the works of its context; of what was not queued, none.
    tag: Option<u32>,
    collective: Collective,
}

/// Reorder window of one process.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: VecDeque<Slot>,
    finished: usize,
    turns: Turns,
    /// Events that belong to no known work, or that gave one up.
    pub stray: u64,
}

impl InFlight {
    /// Collectives that are running.
    pub fn unfinished(&self) -> usize {
        self.slots.len() - self.finished
    }

    /// Nothing waits, so a host call may pass by.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes DETAIL, DONE, FAILED, or an ENTER that has to keep its place.
    #[inline]
    pub fn on_event(&mut self, event: &Event) {
        match event.what {
            what::DETAIL => self.detail(event),
            what::DONE => self.done(event, false),
            what::FAILED => self.done(event, true),
            what::ENTER => self.insert(finished(event.tid, Collective::from_enter(event))),
            _ => {}
        }
    }

    /// A thread works on one thing at a time.
    #[inline]
    fn running(&mut self, tid: u32) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.running && slot.tid == tid)
    }

    fn detail(&mut self, event: &Event) {
        let tag = Some(event.tag());
        let bytes = event.count.saturating_mul(event.id);
        if let Some(slot) = self.running(event.tid) {
            if slot.tag == tag && slot.collective.communicator == event.comm {
                // One work may call gloo several times: the first names it, the sizes add up.
                slot.collective.bytes = slot.collective.bytes.saturating_add(bytes);
                return;
            }
            // Its end was lost, or the thread is the caller's own, which announces none.
            give_up(slot, event.time_ns);
            self.finished += 1;
            self.stray += 1;
        }
        self.insert(Slot {
            tid: event.tid,
            running: true,
            tag,
            collective: Collective {
                communicator: event.comm,
                bytes,
                start_ns: event.time_ns,
                end_ns: event.time_ns,
                function: event.function,
                datatype: event.datatype,
                broken: false,
                timed: true,
            },
        });
    }

    fn done(&mut self, event: &Event, failed: bool) {
        if let Some(slot) = self.running(event.tid) {
            slot.collective.broken |= failed;
            slot.collective.end_ns = event.time_ns;
            slot.running = false;
            self.finished += 1;
            return;
        }
        // It began before the probes were attached, or its beginning was lost, or it calls no
        // collective of gloo's. Some time before now was spent in it, and nobody knows how much.
        self.stray += 1;
        self.insert(finished(
            event.tid,
            Collective {
                communicator: 0,
                bytes: 0,
                start_ns: event.time_ns,
                end_ns: event.time_ns,
                function: function::NONE,
                datatype: NO_TYPE,
                broken: failed,
                timed: false,
            },
        ));
    }

    /// Events of several threads come nearly in the order of time; works of one context stand in
    /// the order of their tags.
    #[inline]
    fn insert(&mut self, slot: Slot) {
        self.finished += usize::from(!slot.running);
        let mut place = self.slots.len();
        while place > 0 && self.slots[place - 1].collective.start_ns > slot.collective.start_ns {
            place -= 1;
        }
        if let Some(tag) = slot.tag {
            let later = |other: &Slot| {
                other.collective.communicator == slot.collective.communicator
                    && other.tag.is_some_and(|t| (t.wrapping_sub(tag) as i32) > 0)
            };
            place = self.slots.iter().take(place).position(later).unwrap_or(place);
        }
        self.slots.insert(place, slot);
    }

    /// The next collective in issue order, once its end is known or given up.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Collective> {
        let head = self.slots.front()?;
        let (finished, full) = (self.finished, self.slots.len() >= MAX_IN_FLIGHT);
        let since = |time_ns: u64| now_ns.saturating_sub(time_ns);
        if head.running {
            let waited = finished > 0 && since(head.collective.start_ns) > MAX_WAIT_NS;
            if finished < MAX_BEHIND_RUNNING && !full && !waited {
                return None;
            }
            let head = &mut self.slots[0];
            give_up(head, head.collective.start_ns);
            self.finished += 1;
            self.stray += 1;
        }
        let head = self.slots[0];
        if let Some(tag) = head.tag {
            let waited = since(head.collective.end_ns) > MAX_ABSENT_NS;
            let patient = finished < MAX_BEHIND_ABSENT && !full && !waited;
            if !self.turns.take(head.collective.communicator, tag, patient) {
                return None;
            }
        }
        self.finished -= 1;
        self.slots.pop_front().map(|slot| slot.collective)
    }
}

fn finished(tid: u32, collective: Collective) -> Slot {
    Slot { tid, running: false, tag: None, collective }
}

fn give_up(slot: &mut Slot, end_ns: u64) {
    slot.running = false;
    slot.collective.broken = true;
    slot.collective.end_ns = end_ns.max(slot.collective.start_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTEXT: u64 = 0xc0;

    fn detail(time_ns: u64, tid: u32, tag: u32) -> Event {
        let work = Event { function: 1, datatype: 255, count: 10, id: 4, ..Event::default() };
        Event { what: what::DETAIL, time_ns, tid, comm: CONTEXT, peer: tag as i32, ..work }
    }

    fn done(time_ns: u64, tid: u32) -> Event {
        Event { what: what::DONE, time_ns, tid, ..Event::default() }
    }

    fn feed(flight: &mut InFlight, events: &[Event]) {
        events.iter().for_each(|event| flight.on_event(event));
    }

    fn drain(flight: &mut InFlight, now: u64) -> Vec<(u64, u64, bool)> {
        std::iter::from_fn(|| flight.pop(now)).map(|c| (c.start_ns, c.end_ns, c.broken)).collect()
    }

    #[test]
    fn two_workers_finish_out_of_order_and_leave_in_issue_order() {
        let mut flight = InFlight::default();
        feed(&mut flight, &[detail(20, 2, 7), detail(21, 3, 8), done(30, 3)]);
        assert!(drain(&mut flight, 31).is_empty());
        assert_eq!(flight.unfinished(), 1);
        feed(&mut flight, &[detail(32, 3, 9), done(40, 2)]);
        assert_eq!(drain(&mut flight, 41), vec![(20, 40, false), (21, 30, false)]);
        assert_eq!((flight.unfinished(), flight.stray), (1, 0));
    }

    #[test]
    fn a_work_that_was_overtaken_keeps_its_place() {
        // At every place of the counter, its wrap included.
        for first in [0, 5, u32::MAX - 1, u32::MAX] {
            let tag = |n| u32::wrapping_add(first, n);
            let mut flight = InFlight::default();
            feed(&mut flight, &[detail(10, 2, tag(0)), done(11, 2)]);
            assert_eq!(drain(&mut flight, 11).len(), 1);
            // Taken from the queue first and begun second, while the other runs.
            feed(&mut flight, &[detail(20, 3, tag(2)), detail(21, 2, tag(1))]);
            feed(&mut flight, &[done(30, 3), done(31, 2)]);
            assert_eq!(drain(&mut flight, 31), vec![(21, 31, false), (20, 30, false)]);
            // And begun only after the other has ended.
            feed(&mut flight, &[detail(40, 3, tag(4)), done(41, 3)]);
            assert!(drain(&mut flight, 42).is_empty());
            feed(&mut flight, &[detail(50, 2, tag(3)), done(60, 2)]);
            assert_eq!(drain(&mut flight, 60), vec![(50, 60, false), (40, 41, false)]);
            assert_eq!(flight.stray, 0);
        }
    }

    #[test]
    fn groups_count_for_themselves() {
        let mut flight = InFlight::default();
        let other = |event: Event| Event { comm: 0xd0, ..event };
        feed(&mut flight, &[detail(10, 2, 90), other(detail(11, 5, 4)), other(detail(12, 4, 3))]);
        feed(&mut flight, &[done(20, 5), done(21, 4), done(22, 2), detail(30, 2, 91), done(31, 2)]);
        let order: Vec<u64> = drain(&mut flight, 31).iter().map(|c| c.0).collect();
        assert_eq!(order, [10, 12, 11, 30]);
    }

    #[test]
    fn details_of_one_work_add_up() {
        let mut flight = InFlight::default();
        let second = Event { function: 9, count: 1, time_ns: 23, ..detail(0, 2, 4) };
        feed(&mut flight, &[detail(20, 2, 4), detail(21, 3, 5), second, done(30, 2)]);
        let first = flight.pop(30).unwrap();
        assert_eq!((first.function, first.bytes, first.communicator), (1, 44, CONTEXT));
        assert_eq!((first.start_ns, first.end_ns), (20, 30));
    }

    #[test]
    fn an_end_without_a_beginning_is_seen_and_not_timed() {
        let mut flight = InFlight::default();
        feed(&mut flight, &[done(20, 2), detail(30, 2, 8), done(40, 2)]);
        let first = flight.pop(40).unwrap();
        assert_eq!((first.start_ns, first.timed, first.broken), (20, false, false));
        assert!(flight.pop(40).unwrap().timed);
    }

    #[test]
    fn a_failed_work_is_broken() {
        let mut flight = InFlight::default();
        feed(&mut flight, &[detail(20, 2, 0), Event { what: what::FAILED, ..done(30, 2) }]);
        assert_eq!(drain(&mut flight, 30), vec![(20, 30, true)]);
    }

    #[test]
    fn a_lost_event_never_blocks_for_ever() {
        // The end is lost; the thread begins something else.
        let mut flight = InFlight::default();
        feed(&mut flight, &[detail(20, 2, 0), detail(50, 2, 1)]);
        assert_eq!(drain(&mut flight, 50), vec![(20, 50, true)]);
        // The end is lost, its thread is dead, the others go on.
        let mut flight = InFlight::default();
        feed(&mut flight, &[detail(20, 2, 0)]);
        for n in 0..MAX_BEHIND_RUNNING as u32 {
            feed(&mut flight, &[detail(30, 3, 1 + n), done(31, 3)]);
        }
        assert_eq!(drain(&mut flight, 100).len(), 1 + MAX_BEHIND_RUNNING);
        // Time alone is enough once something waits.
        feed(&mut flight, &[detail(200, 2, 65), detail(201, 3, 66), done(202, 3)]);
        assert!(drain(&mut flight, 300).is_empty());
        assert_eq!(drain(&mut flight, 300 + MAX_WAIT_NS).len(), 2);
        // Beginnings without end, each in a thread of its own.
        for n in 0..10_000 {
            feed(&mut flight, &[detail(u64::from(n), n, n)]);
            drain(&mut flight, u64::from(n));
            assert!(flight.slots.len() <= MAX_IN_FLIGHT);
        }
    }

    #[test]
    fn a_tag_that_never_comes_is_given_up() {
        let mut flight = InFlight::default();
        feed(&mut flight, &[detail(10, 2, 0), done(11, 2), detail(20, 2, 2), done(30, 2)]);
        assert_eq!(drain(&mut flight, 31).len(), 1);
        assert!(drain(&mut flight, 30 + MAX_ABSENT_NS).is_empty());
        assert_eq!(drain(&mut flight, 31 + MAX_ABSENT_NS).len(), 1);
        feed(&mut flight, &[detail(40, 2, 4), done(41, 2)]);
        for n in 1..MAX_BEHIND_ABSENT as u32 {
            assert!(drain(&mut flight, 50).is_empty());
            feed(&mut flight, &[detail(42, 2, 4 + n), done(43, 2)]);
        }
        assert_eq!(drain(&mut flight, 50).len(), MAX_BEHIND_ABSENT);
    }
}
