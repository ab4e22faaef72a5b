//! What the device timed: the records of a process's ring as a sequence of collectives.
//!
//! Messages that one batch carries (an all-to-all is sends and receives, in an order that
//! differs between ranks, and without those that happen to be empty) are one collective here.
//! Sends are in flight like everything else: one that is blocked waits for its receiver, and one
//! that runs is no work of the rank's own.

use super::communicators::Communicators;
use super::coverage::Coverage;
use super::inflight::Collective;
use super::lane::Lane;
use super::overlap::{Neighbours, Overlap};
use super::reorder::Reorder;
use crate::ring::{flag, Record};
use crate::wire::function;

/// Device times later than this behind the last tick are not believed, ns.
const MAX_AHEAD_NS: u64 = 10_000_000_000;

/// Communicators whose ends are kept.
const MAX_STREAMS: usize = 512;

/// One process, through its ring.
#[derive(Debug)]
pub(crate) struct Device {
    pub lane: Lane,
    pub coverage: Coverage,
    communicators: Communicators,
    reorder: Reorder,
    /// Messages of one batch, while more of it may follow.
    batch: Option<Collective>,
    /// The latest one, with the ordinal of its communicator: the next one shows what it hid.
    latest: Option<(u16, Collective)>,
    pub overlap: Overlap,
    /// End of the latest collective of each communicator, ns, by ordinal.
    stream_ends: Vec<u64>,
    full: bool,
    /// The ring was closed while it recorded everything.
    closed: bool,
    /// Since when every record counts; `None` before the first.
    since_ns: Option<u64>,
    /// Until when, once there are no more.
    until_ns: Option<u64>,
    records: u64,
    /// Records that the reader lost, and until the window before.
    lost: u64,
    lost_before: u64,
    records_before: u64,
    host_timed: bool,
}

impl Device {
    pub fn new(step_limit: usize) -> Device {
        Device {
            lane: Lane::new(step_limit),
            coverage: Coverage::default(),
            communicators: Communicators::default(),
            reorder: Reorder::default(),
            batch: None,
            latest: None,
            overlap: Overlap::default(),
            stream_ends: Vec::new(),
            full: true,
            closed: false,
            since_ns: None,
            until_ns: None,
            records: 0,
            lost: 0,
            lost_before: 0,
            records_before: 0,
            host_timed: false,
        }
    }

    /// Takes one record, in any order.
    pub fn on_record(&mut self, record: &Record, now_ns: u64) {
        if self.full {
            self.reorder.push(record);
            self.settle(now_ns);
        }
    }

    /// Hands on what is next in issue order, and gives up what is missing for too long.
    pub fn settle(&mut self, now_ns: u64) {
        while let Some((record, gap)) = self.reorder.pop(now_ns) {
            self.take(&record, gap, now_ns);
        }
    }

    fn take(&mut self, record: &Record, gap: bool, now_ns: u64) {
        self.records += 1;
        if record.flags & flag::GRAPH == 0 {
            let lost = self.lost.saturating_add(self.reorder.missing());
            self.coverage.record(record, lost);
        }
        self.host_timed |= record.flags & flag::HOST_TIME != 0;
        let mut collective = timed(record, now_ns);
        collective.broken = gap || record.flags & flag::AFTER_GAP != 0;
        self.since_ns.get_or_insert(collective.end_ns);
        if !is_message(record.function) {
            self.end_batch();
            self.follow(&collective);
            return;
        }
        let grouped = record.flags & flag::GROUPED != 0 && !gap;
        match &mut self.batch {
            Some(batch) if grouped && batch.communicator == record.communicator => {
                join(batch, &collective);
            }
            _ => {
                self.end_batch();
                self.batch = Some(collective);
            }
        }
    }

    /// Hands the messages on that wait for more of their batch.
    fn end_batch(&mut self) {
        if let Some(batch) = self.batch.take() {
            self.follow(&batch);
        }
    }

    /// Takes the next collective in issue order, and hands the one before it on.
    fn follow(&mut self, collective: &Collective) {
        let ordinal = self.communicators.count(collective.communicator);
        let place = usize::from(ordinal);
        if place >= self.stream_ends.len() && place < MAX_STREAMS {
            self.stream_ends.resize(place + 1, 0);
        }
        let stream_end_ns = self.stream_ends.get(place).copied().unwrap_or(0);
        if let Some(end) = self.stream_ends.get_mut(place).filter(|_| collective.timed) {
            *end = collective.end_ns;
        }
        self.hand_on(collective.start_ns, stream_end_ns, collective.timed && !collective.broken);
        self.latest = Some((ordinal, *collective));
    }

    fn hand_on(&mut self, next_start_ns: u64, stream_end_ns: u64, next_timed: bool) {
        let Some((ordinal, mut collective)) = self.latest.take() else { return };
        if let (Some(place), true) = (self.lane.next_place(), next_timed && collective.timed) {
            let (start_ns, end_ns) = (collective.start_ns, collective.end_ns);
            self.overlap.follow(self.lane.period(), self.lane.signature(), start_ns);
            if place == 0 {
                self.overlap.begin_step(start_ns);
                self.lane.counting = self.overlap.is_settled();
            }
            let n = Neighbours { start_ns, end_ns, next_start_ns, stream_end_ns };
            collective.start_ns += self.overlap.own_within(place, &n);
        }
        match collective.function {
            // Sizes of messages may be others in every step.
            function::SEND | function::RECV | function::ALL_TO_ALL => {
                self.lane.take_message(ordinal, &collective)
            }
            _ => self.lane.take(ordinal, &collective),
        };
    }

    /// `lost` more records were overwritten before they were read.
    pub fn on_lost(&mut self, lost: u64) {
        self.lost = self.lost.saturating_add(lost);
        self.reorder.expect_missing(lost);
    }

    /// No more records: the ring is closed, or they are off, thinned or floored.
    pub fn stop(&mut self, closed: bool) {
        if self.until_ns.is_none() {
            self.settle(u64::MAX);
            self.end_batch();
            self.hand_on(0, 0, false);
            self.until_ns = Some(self.lane.covered_ns());
        }
        self.closed |= closed && self.full;
        self.full = false;
    }

    /// Whether records are made at all.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether steps are made of its records now.
    pub fn is_live(&self) -> bool {
        self.full && self.since_ns.is_some() && !self.coverage.is_silent()
    }

    /// Whether records tell of the whole time until `end_ns`, since `start_ns`.
    pub fn covers(&self, start_ns: u64, end_ns: u64) -> bool {
        self.since_ns.is_some_and(|since| since <= start_ns)
            && self.until_ns.is_none_or(|until| until >= end_ns)
            && !self.coverage.is_silent()
    }

    /// Whether the ring ended together with its process, as far as one can tell.
    pub fn was_live(&self) -> bool {
        self.since_ns.is_some() && (self.full || self.closed)
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// More than a tenth of the records since the last window were lost.
    pub fn is_lossy(&self) -> bool {
        let lost = self.lost.max(self.reorder.missing()) - self.lost_before;
        lost > (self.records - self.records_before) / 9
    }

    /// Some times since the last window are of the host's poll.
    pub fn is_host_timed(&self) -> bool {
        self.host_timed
    }

    /// A window closed at `end_ns`.
    pub fn close(&mut self, end_ns: u64) {
        let steps = self.lane.steps.count_until(end_ns) as u64;
        self.coverage.close(steps);
        self.lane.close(end_ns);
        self.lost_before = self.lost.max(self.reorder.missing());
        self.records_before = self.records;
        self.host_timed = false;
    }
}

fn is_message(function: u8) -> bool {
    matches!(function, function::SEND | function::RECV)
}

/// The interval of a record. Where a time is missing or cannot be, the collective has none.
fn timed(record: &Record, now_ns: u64) -> Collective {
    let latest = if now_ns == 0 { u64::MAX } else { now_ns.saturating_add(MAX_AHEAD_NS) };
    let missing = record.flags & (flag::NO_START | flag::NO_STOP) != 0
        || record.start_ns == 0
        || record.stop_ns < record.start_ns
        || record.stop_ns > latest;
    let (start_ns, end_ns) = match missing {
        true => (record.host_ns.min(latest), record.host_ns.min(latest)),
        false => (record.start_ns, record.stop_ns),
    };
    Collective {
        communicator: record.communicator,
        bytes: record.bytes,
        start_ns,
        end_ns,
        function: record.function,
        datatype: record.datatype,
        broken: false,
        timed: !missing,
    }
}

/// Adds a message to its batch.
fn join(batch: &mut Collective, message: &Collective) {
    batch.bytes = batch.bytes.saturating_add(message.bytes);
    batch.broken |= message.broken;
    batch.timed &= message.timed;
    if message.timed {
        batch.start_ns = batch.start_ns.min(message.start_ns);
        batch.end_ns = batch.end_ns.max(message.end_ns);
    }
    if batch.function != message.function {
        batch.function = function::ALL_TO_ALL;
    }
}
