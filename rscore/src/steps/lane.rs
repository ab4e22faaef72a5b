//! One sequence of collectives of a process, as one witness saw it, cut into steps.

use super::agreement::Vote;
use super::hash::mix;
use super::inflight::Collective;
use super::kinds::{KindId, Kinds, Shape};
use super::timeline::Timeline;
use super::tracker::Tracker;
use crate::window::log::{StepLog, StepRecord};
use crate::wire::function;

/// Collectives or time without a period, after which windows are slices of time.
const UNSTEADY_COLLECTIVES: usize = 2000;
const UNSTEADY_NS: u64 = 30_000_000_000;
/// How often a rank looks again because most others cut the same sequence otherwise.
const MAX_OUTVOTED: u32 = 8;

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

/// Collectives in issue order in, steps out.
#[derive(Debug)]
pub(crate) struct Lane {
    pub steps: StepLog,
    pub slice: Slice,
    kinds: Kinds,
    timeline: Timeline,
    tracker: Tracker,
    step: Step,
    signature: u64,
    collectives: u64,
    irregular: u64,
    completed: u64,
    untimed: u64,
    outvoted: u32,
    /// Steps count; off while it is not yet known what is own time.
    pub counting: bool,
}

impl Lane {
    /// Keeps `step_limit` steps for windows.
    pub fn new(step_limit: usize) -> Lane {
        Lane {
            steps: StepLog::new(step_limit),
            slice: Slice::default(),
            kinds: Kinds::default(),
            timeline: Timeline::default(),
            tracker: Tracker::default(),
            step: Step::default(),
            signature: 0,
            collectives: 0,
            irregular: 0,
            completed: 0,
            untimed: 0,
            outvoted: 0,
            counting: true,
        }
    }

    /// Takes the next collective, on the communicator with ordinal `communicator`; true when a
    /// step that counts ended with it.
    // Always: a host call then never passes through memory as a Collective.
    #[inline(always)]
    pub fn take(&mut self, communicator: u16, collective: &Collective) -> bool {
        let shape = Shape {
            communicator,
            function: collective.function,
            datatype: collective.datatype,
            bytes: collective.bytes,
        };
        let kind = self.kinds.find(&shape, self.tracker.expected());
        self.place(kind, collective)
    }

    /// The same for a message, whose size may be another one in every step.
    pub fn take_message(&mut self, communicator: u16, collective: &Collective) -> bool {
        let (function, datatype) = (collective.function, collective.datatype);
        let shape = Shape::of_any_size(communicator, function, datatype);
        let kind = self.kinds.find(&shape, self.tracker.expected());
        self.place(kind, collective)
    }

    #[inline(always)]
    fn place(&mut self, kind: KindId, collective: &Collective) -> bool {
        let before = self.timeline.covered();
        let added = self.timeline.add(collective.start_ns, collective.end_ns, self.step.start_ns);
        let place =
            self.tracker.push(kind, added.gap, collective.end_ns, collective.broken, &self.kinds);
        self.collectives += 1;
        // Not the end of a work whose beginning nobody saw.
        self.untimed += u64::from(!collective.timed && collective.function != function::NONE);
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
            if place.regular && self.counting {
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

    /// Something else that the process waited in, outside the sequence.
    pub fn also_busy(&mut self, start_ns: u64, end_ns: u64) {
        if self.collectives == 0 {
            return;
        }
        let added = self.timeline.add(start_ns, end_ns, self.step.start_ns);
        self.step.own_ns = (self.step.own_ns + added.gap).saturating_sub(added.filled);
        self.steps.take_back(added.filled_before);
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

    /// Place in the step of the next collective, as far as one can tell.
    pub fn next_place(&self) -> Option<usize> {
        self.tracker.next_place()
    }

    /// What this lane takes for the step of `job`; `None` without a pattern.
    pub fn vote(&self, job: u64) -> Option<Vote> {
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

    /// Time without a collective in flight since the first one, ns.
    pub fn own_total_ns(&self) -> u64 {
        self.timeline.own_total()
    }

    /// Steps that were completed, counted or not.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// Collectives so far.
    pub fn collectives(&self) -> u64 {
        self.collectives
    }

    /// Those without times of their own.
    pub fn untimed(&self) -> u64 {
        self.untimed
    }

    /// Those that belong to no step.
    pub fn irregular(&self) -> u64 {
        self.irregular
    }

    /// A window closed at `end_ns`: the next slice of time begins.
    pub fn close(&mut self, end_ns: u64) {
        self.steps.close(end_ns);
        self.next_slice();
    }

    /// The next slice of time begins.
    pub fn next_slice(&mut self) {
        self.slice = Slice {
            start_ns: self.timeline.covered(),
            own_at_start_ns: self.timeline.own_total(),
            ..Slice::default()
        };
    }
}
