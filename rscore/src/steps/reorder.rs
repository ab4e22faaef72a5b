//! Records come when they are complete; steps are made of them in the order of their issue.

use std::collections::VecDeque;

use crate::ring::{flag, Record};

/// Orders from the oldest that is missing to the newest that waits.
const WINDOW: usize = 4096;
/// Records behind a missing one, from which on it counts as lost.
const MAX_BEHIND: usize = 2048;
/// How long records wait for a missing one, and when some are known to be lost, ns.
const HOLE_NS: u64 = 2_000_000_000;
const LOST_NS: u64 = 300_000_000;
/// Records in a row from before the window, after which the count itself has begun anew.
const MAX_STALE: u32 = 256;

/// Reorder window of one process. What is pushed has to be popped before the next push.
#[derive(Debug, Default)]
pub(crate) struct Reorder {
    waiting: VecDeque<Option<Record>>,
    /// Order of the front.
    next: u64,
    started: bool,
    present: usize,
    /// The first record behind the missing front: when it was complete, and whether what comes
    /// before it was never recorded.
    behind: Option<(u64, bool)>,
    /// A record out of reach of the window: everything that waits goes before it.
    jump: Option<Record>,
    /// Records that the reader lost and that have not been given up yet.
    lost: u64,
    after_gap: bool,
    stale_run: u32,
    missing: u64,
}

impl Reorder {
    /// `lost` more records will never come.
    pub fn expect_missing(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
    }

    /// Orders that were given up so far.
    pub fn missing(&self) -> u64 {
        self.missing
    }

    pub fn push(&mut self, record: &Record) {
        if !self.started {
            self.started = true;
            self.next = record.order;
        }
        if record.order < self.next {
            self.stale_run += 1;
            if self.stale_run >= MAX_STALE {
                self.jump = Some(*record);
            }
            return;
        }
        self.stale_run = 0;
        let place = record.order - self.next;
        if place >= 2 * WINDOW as u64 {
            self.jump = Some(*record);
            return;
        }
        let place = place as usize;
        if self.waiting.len() <= place {
            self.waiting.resize(place + 1, None);
        }
        if self.waiting[place].is_none() {
            self.waiting[place] = Some(*record);
            self.present += 1;
        }
    }

    /// The next record in issue order, and whether records before it are missing.
    pub fn pop(&mut self, now_ns: u64) -> Option<(Record, bool)> {
        loop {
            match self.waiting.front() {
                Some(Some(_)) => {
                    let record = self.waiting.pop_front().flatten()?;
                    self.next = self.next.saturating_add(1);
                    self.present -= 1;
                    self.behind = None;
                    return Some((record, std::mem::take(&mut self.after_gap)));
                }
                Some(None) => {
                    if !self.is_lost(now_ns) {
                        return None;
                    }
                    self.waiting.pop_front();
                    self.next = self.next.saturating_add(1);
                    self.missing = self.missing.saturating_add(1);
                    self.lost = self.lost.saturating_sub(1);
                    self.after_gap = true;
                }
                None => {
                    let record = self.jump.take()?;
                    self.missing =
                        self.missing.saturating_add(record.order.saturating_sub(self.next));
                    self.next = record.order.saturating_add(1);
                    self.stale_run = 0;
                    self.after_gap = false;
                    return Some((record, true));
                }
            }
        }
    }

    /// Whether the front will not come any more.
    fn is_lost(&mut self, now_ns: u64) -> bool {
        if self.jump.is_some() || self.waiting.len() > WINDOW || self.present >= MAX_BEHIND {
            return true;
        }
        let waiting = &self.waiting;
        let (complete_ns, after_gap) = *self.behind.get_or_insert_with(|| {
            let first = waiting.iter().flatten().next();
            first.map_or((0, true), |r| (r.stop_ns.max(r.host_ns), r.flags & flag::AFTER_GAP != 0))
        });
        let patience = if self.lost > 0 { LOST_NS } else { HOLE_NS };
        after_gap || now_ns.saturating_sub(complete_ns) >= patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(order: u64) -> Record {
        Record { order, stop_ns: order.wrapping_mul(1000), ..Record::default() }
    }

    fn feed(reorder: &mut Reorder, record: &Record, now_ns: u64) -> Vec<(u64, bool)> {
        reorder.push(record);
        std::iter::from_fn(|| reorder.pop(now_ns)).map(|(r, gap)| (r.order, gap)).collect()
    }

    #[test]
    fn completion_order_becomes_issue_order() {
        let mut reorder = Reorder::default();
        let mut out = Vec::new();
        for order in [10, 13, 12, 11, 15, 14, 16] {
            out.extend(feed(&mut reorder, &record(order), 20_000));
        }
        assert_eq!(out, (10..17).map(|order| (order, false)).collect::<Vec<_>>());
        assert_eq!((reorder.missing(), reorder.stale_run), (0, 0));
    }

    #[test]
    fn a_missing_record_is_given_up_and_told() {
        let mut reorder = Reorder::default();
        feed(&mut reorder, &record(1), 0);
        assert_eq!(feed(&mut reorder, &record(3), 4000), []);
        assert_eq!(feed(&mut reorder, &record(4), 3000 + HOLE_NS), [(3, true), (4, false)]);
        assert_eq!(feed(&mut reorder, &record(2), 0), [], "too late");
        assert_eq!((reorder.missing(), reorder.stale_run), (1, 1));
        // What the reader says is lost is waited for less long.
        reorder.expect_missing(2);
        assert_eq!(feed(&mut reorder, &record(7), 8000), []);
        assert_eq!(feed(&mut reorder, &record(8), 7000 + LOST_NS), [(7, true), (8, false)]);
        // What was not recorded on purpose is not waited for.
        let after = Record { flags: flag::AFTER_GAP, ..record(4000) };
        assert_eq!(feed(&mut reorder, &after, 0), [(4000, true)]);
        // Nor is anything behind which too much waits.
        let late: usize =
            (4002..8000).map(|order| feed(&mut reorder, &record(order), 0).len()).sum();
        assert_eq!(late, 8000 - 4002);
    }

    #[test]
    fn whatever_a_job_writes_stays_bounded_and_goes_on() {
        let mut reorder = Reorder::default();
        let mut popped = 0;
        for n in 0..200_000u64 {
            let order = super::super::hash::mix(1, n);
            let order = order >> (order % 64);
            popped += feed(&mut reorder, &record(order), n).len();
            assert!(reorder.waiting.len() <= 2 * WINDOW && reorder.present <= WINDOW);
        }
        assert!(popped > 1000);
        // The count begins anew: some records are lost, the rest is not.
        let mut reorder = Reorder::default();
        feed(&mut reorder, &record(1 << 60), 0);
        let out: usize = (0..1000).map(|order| feed(&mut reorder, &record(order), 0).len()).sum();
        assert_eq!(out, 1000 - MAX_STALE as usize + 1);
        feed(&mut reorder, &record(u64::MAX), 0);
    }
}
