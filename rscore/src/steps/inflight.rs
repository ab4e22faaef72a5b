//! Joins the events of one collective and hands collectives on in issue order.

use std::collections::VecDeque;

use crate::wire::{datatype_bytes, what, Event};

/// Most collectives that wait for an earlier one; then the earliest is given up.
const MAX_IN_FLIGHT: usize = 256;
/// Finished collectives behind one that runs, from which on its end counts as lost.
const MAX_BEHIND_RUNNING: usize = 64;
/// The same behind one that was issued and never began; workers take work in issue order.
const MAX_BEHIND_ISSUED: usize = 16;
/// How long a finished collective may wait for an earlier one, ns.
const MAX_WAIT_NS: u64 = 30_000_000_000;

/// One collective with everything that its events said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Collective {
    /// Communicator, gloo context, or process group: the most exact one that was seen.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Issued,
    Running,
    Finished,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    work: u64,
    tid: u32,
    state: State,
    details: u32,
    /// Issue time, or start time where the issue was not seen.
    order_ns: u64,
    collective: Collective,
}

/// Reorder window of one process. Works are known by their pointer, which malloc hands out
/// again: only a work that has not finished can be meant.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    slots: VecDeque<Slot>,
    finished: usize,
    /// Events that belong to no known work, or that gave one up.
    pub stray: u64,
}

impl InFlight {
    /// Collectives that are issued or running.
    pub fn unfinished(&self) -> usize {
        self.slots.len() - self.finished
    }

    /// Nothing waits, so a host call may pass by.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes ISSUE, START, DETAIL, DONE, FAILED, or an ENTER that has to keep its place.
    #[inline]
    pub fn on_event(&mut self, event: &Event) {
        match event.what {
            what::ISSUE => self.issue(event),
            what::START => self.start(event),
            what::DETAIL => self.detail(event),
            what::DONE => self.done(event, false),
            what::FAILED => self.done(event, true),
            what::ENTER => {
                let slot = Slot {
                    state: State::Finished,
                    collective: Collective::from_enter(event),
                    ..new_slot(event)
                };
                self.finished += 1;
                self.insert(Slot { work: 0, ..slot });
            }
            _ => {}
        }
    }

    #[inline]
    fn find(&mut self, work: u64) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|s| s.work == work && s.state != State::Finished)
    }

    fn issue(&mut self, event: &Event) {
        if let Some(slot) = self.find(event.aux) {
            if slot.state == State::Running && slot.order_ns >= event.time_ns {
                return; // Its own issue, overtaken on the way.
            }
            // The pointer was handed out again, so the end of the earlier work was lost.
            give_up(slot, event.time_ns);
            self.finished += 1;
            self.stray += 1;
        }
        self.insert(new_slot(event));
    }

    fn start(&mut self, event: &Event) {
        let running = |s: &&mut Slot| s.state == State::Running && s.tid == event.tid;
        if let Some(slot) = self.slots.iter_mut().find(running) {
            // A thread works on one thing at a time.
            give_up(slot, event.time_ns);
            self.finished += 1;
            self.stray += 1;
        }
        match self.find(event.aux) {
            Some(slot) => {
                slot.state = State::Running;
                slot.tid = event.tid;
                slot.collective.start_ns = event.time_ns;
            }
            None => self.insert(Slot { state: State::Running, ..new_slot(event) }),
        }
    }

    fn detail(&mut self, event: &Event) {
        let running = |s: &&mut Slot| s.state == State::Running && s.tid == event.tid;
        let Some(slot) = self.slots.iter_mut().find(running) else {
            self.stray += 1;
            return;
        };
        // One work may call gloo several times: the first names it, the sizes add up.
        let collective = &mut slot.collective;
        collective.bytes = collective.bytes.saturating_add(event.count.saturating_mul(event.id));
        if slot.details == 0 {
            collective.function = event.function;
            collective.datatype = event.datatype;
            collective.communicator = event.comm;
        }
        slot.details = slot.details.saturating_add(1);
    }

    fn done(&mut self, event: &Event, failed: bool) {
        let Some(slot) = self.find(event.aux) else {
            self.stray += 1;
            return;
        };
        if slot.state == State::Issued {
            slot.collective.start_ns = event.time_ns;
            slot.collective.broken = true;
        }
        slot.collective.broken |= failed;
        slot.collective.end_ns = event.time_ns;
        slot.state = State::Finished;
        self.finished += 1;
    }

    /// Events of several threads come nearly in the order of time.
    #[inline]
    fn insert(&mut self, slot: Slot) {
        self.slots.push_back(slot);
        let mut place = self.slots.len() - 1;
        while place > 0 && self.slots[place - 1].order_ns > slot.order_ns {
            self.slots.swap(place - 1, place);
            place -= 1;
        }
    }

    /// The next collective in issue order, once its end is known or given up.
    #[inline]
    pub fn pop(&mut self, now_ns: u64) -> Option<Collective> {
        let head = self.slots.front_mut()?;
        if head.state != State::Finished {
            let limit = match head.state {
                State::Issued => MAX_BEHIND_ISSUED,
                _ => MAX_BEHIND_RUNNING,
            };
            let waits = self.finished > 0 && now_ns.saturating_sub(head.order_ns) > MAX_WAIT_NS;
            if self.finished < limit && self.slots.len() < MAX_IN_FLIGHT && !waits {
                return None;
            }
            let head = &mut self.slots[0];
            give_up(head, head.collective.start_ns);
            self.finished += 1;
            self.stray += 1;
        }
        self.finished -= 1;
        self.slots.pop_front().map(|slot| slot.collective)
    }
}

fn new_slot(event: &Event) -> Slot {
    Slot {
        work: event.aux,
        tid: event.tid,
        state: State::Issued,
        details: 0,
        order_ns: event.time_ns,
        collective: Collective {
            communicator: event.comm,
            bytes: 0,
            start_ns: event.time_ns,
            end_ns: event.time_ns,
            function: event.function,
            datatype: event.datatype,
            broken: false,
            timed: true,
        },
    }
}

fn give_up(slot: &mut Slot, end_ns: u64) {
    if slot.state == State::Issued {
        slot.collective.start_ns = end_ns;
    }
    slot.state = State::Finished;
    slot.collective.broken = true;
    slot.collective.end_ns = end_ns.max(slot.collective.start_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: u8, time_ns: u64, tid: u32, work: u64) -> Event {
        Event { what, time_ns, tid, aux: work, tgid: 1, ..Event::default() }
    }

    fn drain(flight: &mut InFlight, now: u64) -> Vec<(u64, u64, bool)> {
        std::iter::from_fn(|| flight.pop(now)).map(|c| (c.start_ns, c.end_ns, c.broken)).collect()
    }

    #[test]
    fn two_workers_finish_out_of_order_and_leave_in_issue_order() {
        let mut flight = InFlight::default();
        for (what, time, tid, work) in [
            (what::ISSUE, 10, 1, 0xa),
            (what::ISSUE, 11, 1, 0xb),
            (what::START, 20, 2, 0xa),
            (what::START, 21, 3, 0xb),
            (what::DONE, 30, 3, 0xb),
        ] {
            flight.on_event(&event(what, time, tid, work));
        }
        assert!(drain(&mut flight, 31).is_empty());
        // malloc hands b's address to the next work while a still runs.
        flight.on_event(&event(what::ISSUE, 32, 1, 0xb));
        flight.on_event(&event(what::DONE, 40, 2, 0xa));
        assert_eq!(drain(&mut flight, 41), vec![(20, 40, false), (21, 30, false)]);
        assert_eq!(flight.unfinished(), 1);
        assert_eq!(flight.stray, 0);
    }

    #[test]
    fn details_belong_to_the_work_of_their_thread() {
        let mut flight = InFlight::default();
        flight.on_event(&event(what::START, 20, 2, 0xa));
        flight.on_event(&event(what::START, 21, 3, 0xb));
        let detail = |tid, function, count, comm| Event {
            function,
            count,
            comm,
            id: 4,
            datatype: 255,
            ..event(what::DETAIL, 22, tid, 2)
        };
        flight.on_event(&detail(3, 5, 10, 0xc3));
        flight.on_event(&detail(2, 1, 7, 0xc2));
        flight.on_event(&detail(2, 9, 1, 0xc9));
        flight.on_event(&detail(9, 1, 1, 0xc1));
        flight.on_event(&event(what::DONE, 30, 2, 0xa));
        let first = flight.pop(30).unwrap();
        assert_eq!((first.function, first.bytes, first.communicator), (1, 32, 0xc2));
        assert_eq!(flight.stray, 1, "no work runs in thread 9");
    }

    #[test]
    fn a_lost_event_never_blocks_for_ever() {
        // The end is lost; the thread begins something else.
        let mut flight = InFlight::default();
        flight.on_event(&event(what::START, 20, 2, 0xa));
        flight.on_event(&event(what::START, 50, 2, 0xb));
        assert_eq!(drain(&mut flight, 50), vec![(20, 50, true)]);
        // The end is lost, its thread is dead, the others go on.
        let mut flight = InFlight::default();
        flight.on_event(&event(what::START, 20, 2, 0xa));
        for n in 0..MAX_BEHIND_RUNNING as u64 {
            flight.on_event(&event(what::START, 30 + n, 3, 0xb));
            flight.on_event(&event(what::DONE, 31 + n, 3, 0xb));
        }
        assert_eq!(drain(&mut flight, 100).len(), 1 + MAX_BEHIND_RUNNING);
        // Time alone is enough once something waits.
        flight.on_event(&event(what::START, 200, 2, 0xa));
        flight.on_event(&event(what::START, 201, 3, 0xb));
        flight.on_event(&event(what::DONE, 202, 3, 0xb));
        assert!(drain(&mut flight, 300).is_empty());
        assert_eq!(drain(&mut flight, 300 + MAX_WAIT_NS).len(), 2);
        // Issues without end.
        for n in 0..10_000u64 {
            flight.on_event(&event(what::ISSUE, n, 1, n));
            drain(&mut flight, n);
            assert!(flight.slots.len() <= MAX_IN_FLIGHT);
        }
    }
}
