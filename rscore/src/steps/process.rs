//! One process: events in, steps out.

use super::agreement::Vote;
use super::communicators::Communicators;
use super::hash::mix;
use super::inflight::{Collective, InFlight};
use super::kinds::{Kinds, Shape};
use super::timeline::Timeline;
use super::tracker::Tracker;
use super::RankStatus;
use crate::window::log::{StepLog, StepRecord};
use crate::window::source;
use crate::wire::{function, what, Event};

/// Collectives or time without a period, after which windows are slices of time.
const UNSTEADY_COLLECTIVES: usize = 2000;
const UNSTEADY_NS: u64 = 30_000_000_000;

/// Who a process is within its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assignment {
    pub job: u64,
    pub rank: u32,
    pub world_size: u32,
    pub class_id: u32,
}

/// What happened since the last window closed, for ranks without steps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    pub start_ns: u64,
    pub own_at_start_ns: u64,
    pub collectives: u64,
    pub bytes: u64,
    pub functions: u32,
    pub untimed: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Step {
    start_ns: u64,
    own_ns: u64,
    bytes: u64,
    untimed: bool,
}

/// Everything that is kept of one process.
#[derive(Debug)]
pub(crate) struct Process {
    pub pid: u32,
    /// Clock ticks after boot; 0 while nobody said it.
    pub start_time: u64,
    pub assignment: Option<Assignment>,
    /// The process ended; its steps wait for the window to close.
    pub ended: bool,
    pub steps: StepLog,
    pub slice: Slice,
    pub last_event_ns: u64,
    communicators: Communicators,
    kinds: Kinds,
    flight: InFlight,
    timeline: Timeline,
    tracker: Tracker,
    step: Step,
    signature: u64,
    events: u64,
    collectives: u64,
    irregular: u64,
    completed: u64,
    host_calls: u64,
    outvoted: u32,
}

/// How often a rank looks again because most others cut the same sequence otherwise.
const MAX_OUTVOTED: u32 = 8;

impl Process {
    pub fn new(pid: u32, start_time: u64, step_limit: usize) -> Process {
        Process {
            pid,
            start_time,
            assignment: None,
            ended: false,
            steps: StepLog::new(step_limit),
            slice: Slice::default(),
            last_event_ns: 0,
            communicators: Communicators::default(),
            kinds: Kinds::default(),
            flight: InFlight::default(),
            timeline: Timeline::default(),
            tracker: Tracker::default(),
            step: Step::default(),
            signature: 0,
            events: 0,
            collectives: 0,
            irregular: 0,
            completed: 0,
            host_calls: 0,
            outvoted: 0,
        }
    }

    /// Takes one event; true when a step that counts ended with it.
    #[inline]
    pub fn on_event(&mut self, event: &Event) -> bool {
        self.events += 1;
        self.last_event_ns = self.last_event_ns.max(event.time_ns);
        match event.what {
            what::ENTER if self.flight.is_empty() => self.take(&Collective::from_enter(event)),
            what::DETAIL => {
                self.flight.on_event(event);
                let (rank, nranks) = event.rank_and_size();
                if nranks > 0 {
                    self.communicators.learn(event.comm, rank, nranks);
                }
                self.settle(event.time_ns)
            }
            what::ENTER | what::DONE | what::FAILED => {
                self.flight.on_event(event);
                self.settle(event.time_ns)
            }
            what::COMM_INIT..=what::COMM_ABORT | what::COMM_INIT_ALL => {
                self.communicators.on_event(event);
                false
            }
            _ => false,
        }
    }

    /// Hands on what is finished or given up by `now_ns`; true when a step ended.
    #[inline]
    pub fn settle(&mut self, now_ns: u64) -> bool {
        let mut ended = false;
        while let Some(collective) = self.flight.pop(now_ns) {
            ended |= self.take(&collective);
        }
        ended
    }

    // Always: a host call then never passes through memory as a Collective.
    #[inline(always)]
    fn take(&mut self, collective: &Collective) -> bool {
        let communicator = self.communicators.count(collective.communicator);
        let shape = Shape {
            communicator,
            function: collective.function,
            datatype: collective.datatype,
            bytes: collective.bytes,
        };
        let kind = self.kinds.find(&shape, self.tracker.expected());
        let before = self.timeline.covered();
        let added = self.timeline.add(collective.start_ns, collective.end_ns, self.step.start_ns);
        let place =
            self.tracker.push(kind, added.gap, collective.end_ns, collective.broken, &self.kinds);
        self.collectives += 1;
        // Not the end of a work whose beginning nobody saw.
        self.host_calls += u64::from(!collective.timed && collective.function != function::NONE);
        self.irregular += u64::from(place.irregular);
        self.slice.collectives += 1;
        self.slice.bytes = self.slice.bytes.saturating_add(collective.bytes);
        self.slice.functions |= 1 << (collective.function & 31);
        self.slice.untimed |= !collective.timed;
        if self.slice.start_ns == 0 {
            self.slice.start_ns = self.timeline.covered();
            self.slice.own_at_start_ns = self.timeline.own_total();
        }
        if place.changed {
            self.on_pattern();
            return false;
        }
        if place.first {
            // The new step begins where the one before ended, so nothing of it is settled yet.
            self.steps.take_back(added.filled + added.filled_before);
            self.step = Step { start_ns: before, own_ns: added.gap, ..Step::default() };
        } else {
            self.step.own_ns = (self.step.own_ns + added.gap).saturating_sub(added.filled);
            if added.filled_before > 0 {
                self.steps.take_back(added.filled_before);
            }
        }
        self.step.bytes = self.step.bytes.saturating_add(collective.bytes);
        self.step.untimed |= !collective.timed;
        self.steps.duration(place.index, collective.end_ns.saturating_sub(collective.start_ns));
        if place.last {
            self.completed += 1;
            if place.regular {
                self.steps.push(StepRecord {
                    number: self.completed,
                    start_ns: self.step.start_ns,
                    end_ns: self.timeline.covered(),
                    own_ns: self.step.own_ns,
                    bytes: self.step.bytes,
                    timed: !self.step.untimed,
                });
                return true;
            }
        }
        false
    }

    #[cold]
    fn on_pattern(&mut self) {
        if let Some(pattern) = self.tracker.pattern() {
            if pattern.signature != self.signature || self.steps.period() != pattern.len() {
                self.steps.restart(pattern.len());
            }
            self.signature = pattern.signature;
        }
    }

    /// A pattern is in force.
    pub fn has_pattern(&self) -> bool {
        self.tracker.pattern().is_some()
    }

    /// What this rank takes for the job's step; `None` without a job or a pattern.
    pub fn vote(&self) -> Option<Vote> {
        let job = self.assignment.filter(|_| !self.ended)?.job;
        let pattern = self.tracker.pattern()?;
        Some(Vote { job, base: pattern.base, signature: pattern.signature })
    }

    /// Most ranks cut the same sequence otherwise: searches anew, a bounded number of times.
    pub fn look_again(&mut self) {
        if self.outvoted < MAX_OUTVOTED {
            self.outvoted += 1;
            self.tracker.reset();
        }
    }

    /// No period for so long that windows have to be slices of time.
    pub fn is_unsteady(&self, now_ns: u64) -> bool {
        let tracker = &self.tracker;
        !self.has_pattern()
            && tracker.searched() > 0
            && (tracker.searched() >= UNSTEADY_COLLECTIVES
                || now_ns.saturating_sub(tracker.searched_since_ns()) >= UNSTEADY_NS)
    }

    /// Collectives per step, 0 without a pattern.
    pub fn period(&self) -> usize {
        self.tracker.pattern().map_or(0, |pattern| pattern.len())
    }

    /// Hash of the sequence; without a pattern of the functions that were called.
    pub fn signature(&self) -> u64 {
        match self.tracker.pattern() {
            Some(_) => self.signature,
            None => mix(0, u64::from(self.slice.functions)),
        }
    }

    /// Signature of the steps in the log.
    pub fn logged_signature(&self) -> u64 {
        self.signature
    }

    /// End of the last collective, ns.
    pub fn covered_ns(&self) -> u64 {
        self.timeline.covered()
    }

    /// Time without a collective in flight since the process was seen, ns.
    pub fn own_total_ns(&self) -> u64 {
        self.timeline.own_total()
    }

    /// Steps that were completed, counted or not.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// A window closed: the next slice of time begins.
    pub fn next_slice(&mut self) {
        self.slice = Slice {
            start_ns: self.timeline.covered(),
            own_at_start_ns: self.timeline.own_total(),
            ..Slice::default()
        };
    }

    /// What `stragctl ranks` shows.
    pub fn status(&self) -> RankStatus {
        let assignment =
            self.assignment.unwrap_or(Assignment { job: 0, rank: 0, world_size: 0, class_id: 0 });
        let source = match (self.host_calls, self.collectives) {
            (_, 0) => 0,
            (0, _) => source::GLOO,
            _ => source::HOST_PROBE,
        };
        RankStatus {
            pid: self.pid,
            start_time: self.start_time,
            job: assignment.job,
            rank: assignment.rank,
            world_size: assignment.world_size,
            events: self.events,
            collectives: self.collectives,
            irregular: self.irregular,
            steps: self.completed,
            period: self.period() as u64,
            signature: if self.has_pattern() { self.signature } else { 0 },
            source,
            last_event_ns: self.last_event_ns,
            in_flight: self.flight.unfinished() as u64,
            communicators: self.communicators.status(),
        }
    }
}
