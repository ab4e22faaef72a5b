//! Reading the slots of one ring: every ticket is delivered or counted as lost.

use std::sync::Arc;

use super::clock::DeviceClock;
use super::layout::{flag, Slot, DROPS, OTHER};
use super::memory::Look;
use super::{Memory, Record};
use crate::wire::function;

/// Tickets dealt with in one turn at most.
const BUDGET: u64 = 4096;
/// Slots copied before the clock is told and they are converted.
const BATCH: usize = 256;
/// How long a ticket may be taken and not written, ns: a thread that was preempted in between
/// comes back, one that found its place occupied never does.
const PATIENCE_NS: u64 = 100_000_000;
/// More tickets than this between two turns are a lie, as are more drops.
const MAX_STEP: u64 = 1 << 28;
/// A time this far before the enqueue, ns, or after the present is none.
const PAST_NS: u64 = 86_400_000_000_000;
const FUTURE_NS: u64 = 1_000_000_000;

/// What became of a ring's tickets; `records + lost` are all tickets since the ring was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub records: u64,
    /// Overwritten before they were read, never written, or not valid.
    pub lost: u64,
    /// Of the lost: read, and no plugin would have written them.
    pub invalid: u64,
    /// Of the records: with device times that cannot be, which were left out.
    pub implausible: u64,
    /// Times that the count of tickets jumped and reading began anew.
    pub jumps: u64,
    /// Left out by the plugin itself, by cause.
    pub dropped: [u64; DROPS],
}

/// What one turn did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    pub records: u64,
    pub lost: u64,
    /// There was more to do than one turn may cost.
    pub more: bool,
}

/// Follows one ring; one reader at a time.
pub struct Reader {
    memory: Arc<Memory>,
    /// The next ticket.
    next: u64,
    /// Tickets below `.0` have until `.1`, CLOCK_MONOTONIC ns, to be written.
    patience: Option<(u64, u64)>,
    clock: DeviceClock,
    counts: Counts,
    dropped_seen: [u64; DROPS],
    batch: Vec<Slot>,
}

impl Reader {
    /// Begins with the oldest record that is still there.
    #[must_use]
    pub fn new(memory: Arc<Memory>) -> Reader {
        let next = memory.head().saturating_sub(memory.slot_count());
        let clock = DeviceClock::new(memory.clock(), memory.clock_hz());
        Reader {
            next,
            patience: None,
            clock,
            counts: Counts::default(),
            dropped_seen: [0; DROPS],
            batch: Vec::with_capacity(BATCH),
            memory,
        }
    }

    /// What became of the tickets so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The ring itself.
    #[must_use]
    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    /// Ticks per second that device times are converted by, 0 while not known.
    #[must_use]
    pub fn clock_hz(&self) -> u64 {
        self.clock.hz()
    }

    /// Times that the offset between the clocks was moved.
    #[must_use]
    pub fn clock_moved(&self) -> u64 {
        self.clock.moved()
    }

    /// Hands what is there, up to a bound, to `deliver`, in ticket order. `ended`: nobody writes
    /// any more, so nothing is waited for. `now_ns` is CLOCK_MONOTONIC.
    pub fn turn(&mut self, now_ns: u64, ended: bool, mut deliver: impl FnMut(&Record)) -> Turn {
        let before = self.counts;
        let (kind, hz) = (self.memory.clock(), self.memory.clock_hz());
        if !self.clock.is(kind, hz) {
            self.clock = DeviceClock::new(kind, hz);
        }
        self.read_dropped();
        let order = self.memory.order();
        let head = self.memory.head();
        self.catch_up(head);
        let end = head.min(self.next.saturating_add(BUDGET));
        let mut waiting = false;
        while self.next < end && !waiting {
            while self.next < end && self.batch.len() < BATCH {
                match self.memory.slot(self.next) {
                    Look::Whole(slot) => self.batch.push(slot),
                    Look::Overwritten => self.counts.lost += 1,
                    Look::Unfinished if !ended && self.must_wait(head, now_ns) => {
                        waiting = true;
                        break;
                    }
                    Look::Unfinished => self.counts.lost += 1,
                }
                self.next += 1;
            }
            self.deliver_batch(order, now_ns, &mut deliver);
        }
        let turn = Turn {
            records: self.counts.records - before.records,
            lost: self.counts.lost.wrapping_sub(before.lost),
            more: self.next < head && !waiting,
        };
        // A ring is 1.3 MB, and a node may have hundreds.
        if turn.records > 0 || turn.lost > 0 {
            self.memory.release();
        }
        turn
    }

    /// Leaves behind what was overwritten; a count that goes back, or further than any writer
    /// could, is where reading begins anew.
    fn catch_up(&mut self, head: u64) {
        if head < self.next || head - self.next > MAX_STEP {
            self.counts.jumps += 1;
            self.next = head;
            self.patience = None;
            return;
        }
        let oldest = head.saturating_sub(self.memory.slot_count());
        if self.next < oldest {
            self.counts.lost += oldest - self.next;
            self.next = oldest;
        }
    }

    /// Whether the next ticket may still be written: all that are given out have the same time
    /// from when the first of them was missed, and none while the ring is about to run over.
    fn must_wait(&mut self, head: u64, now_ns: u64) -> bool {
        if head - self.next > self.memory.slot_count() / 2 {
            return false;
        }
        match self.patience {
            Some((below, until)) if self.next < below => now_ns < until,
            _ => {
                self.patience = Some((head, now_ns.saturating_add(PATIENCE_NS)));
                true
            }
        }
    }

    fn deliver_batch(&mut self, order: u64, now_ns: u64, deliver: &mut impl FnMut(&Record)) {
        // All stops first: the offset is as good as this batch makes it before it is used.
        for slot in &self.batch {
            if slot.flags & (flag::NO_STOP | flag::HOST_TIME) == 0 {
                let known = slot.poll_delta != 0 && slot.poll_delta != u32::MAX;
                let delta = u64::from(slot.poll_delta) * 64;
                let seen = if known { slot.host_ns.saturating_add(delta) } else { now_ns };
                self.clock.observe(slot.device_stop, seen);
            }
        }
        self.clock.settle();
        for slot in &self.batch {
            if !is_valid(slot, now_ns) {
                self.counts.lost += 1;
                self.counts.invalid += 1;
                continue;
            }
            let times = self.times(slot, now_ns);
            self.counts.implausible += u64::from(times.is_none());
            let missing = flag::NO_START | flag::NO_STOP;
            let (start_ns, stop_ns, more) = times.unwrap_or((0, 0, missing));
            self.counts.records += 1;
            deliver(&Record {
                communicator: self.memory.communicator(slot.comm),
                order: widen(slot.order, order),
                sequence: slot.sequence,
                function: slot.function,
                datatype: slot.datatype,
                channels: slot.channels,
                algorithm: slot.algorithm,
                peer: slot.peer,
                flags: (slot.flags & flag::ALL) | more,
                bytes: slot.bytes,
                host_ns: slot.host_ns,
                start_ns,
                stop_ns,
            });
        }
        self.batch.clear();
    }

    /// Start and stop on the host's axis and the flags of what is missing; `None` where they
    /// contradict each other or the host's own time.
    #[inline]
    fn times(&self, slot: &Slot, now_ns: u64) -> Option<(u64, u64, u16)> {
        let mut missing = slot.flags & (flag::NO_START | flag::NO_STOP);
        let on_host = slot.flags & flag::HOST_TIME != 0;
        let mut convert = |ticks, without| {
            let time = if slot.flags & without != 0 {
                None
            } else if on_host {
                Some(ticks)
            } else {
                self.clock.host_ns(ticks)
            };
            missing |= if time.is_none() { without } else { 0 };
            time
        };
        let start = convert(slot.device_start, flag::NO_START);
        let stop = convert(slot.device_stop, flag::NO_STOP);
        let past = slot.host_ns.saturating_sub(PAST_NS).max(1);
        let possible = |time: u64| time >= past && time <= now_ns.saturating_add(FUTURE_NS);
        if !start.is_none_or(possible) || !stop.is_none_or(possible) {
            return None;
        }
        if let (Some(start), Some(stop)) = (start, stop) {
            if start > stop {
                return None;
            }
        }
        Some((start.unwrap_or(0), stop.unwrap_or(0), missing))
    }

    fn read_dropped(&mut self) {
        for cause in 0..DROPS {
            let seen = self.memory.dropped(cause);
            let more = seen.wrapping_sub(self.dropped_seen[cause]);
            if more < MAX_STEP {
                self.counts.dropped[cause] += more;
            }
            self.dropped_seen[cause] = seen;
        }
    }
}

/// Whether a plugin could have written this.
#[inline]
fn is_valid(slot: &Slot, now_ns: u64) -> bool {
    let known = (function::ALL_REDUCE..=function::RECV).contains(&slot.function);
    (known || slot.function == OTHER) && slot.host_ns <= now_ns.saturating_add(FUTURE_NS)
}

/// The number with these low bits that is nearest to `near`.
#[inline]
fn widen(low: u32, near: u64) -> u64 {
    let distance = low.wrapping_sub(near as u32) as i32;
    near.saturating_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::widen;

    #[test]
    fn orders_are_widened_across_the_border() {
        for near in [0u64, 5, 1 << 31, (1 << 32) - 1, 1 << 32, (9 << 32) + 3] {
            for distance in [-3i64, -1, 0, 1, 1 << 20] {
                let order = near.saturating_add_signed(distance);
                assert_eq!(widen(order as u32, near), order, "{near} {distance}");
            }
        }
    }
}
