//! Steps of one rank that wait for their window to close.

use std::collections::VecDeque;

use super::mean::trimmed;

/// One step that counts, ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StepRecord {
    pub number: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub own_ns: u64,
    pub bytes: u64,
    /// Every collective had a start and an end of its own.
    pub timed: bool,
}

/// Means over the steps of one window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measure {
    pub steps: u32,
    pub first_step: u64,
    pub last_step: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub wall: f64,
    pub own: f64,
    pub busy: f64,
    pub own_error: f64,
    pub bytes: f64,
    pub timed: bool,
}

/// Bounded log of steps, and the durations of the collectives at each place of the step.
#[derive(Debug, Default)]
pub(crate) struct StepLog {
    records: VecDeque<StepRecord>,
    limit: usize,
    durations: Vec<f64>,
    current: Vec<u64>,
    summed: u64,
}

impl StepLog {
    /// Keeps `limit` steps, the oldest go first.
    pub fn new(limit: usize) -> StepLog {
        StepLog { limit, ..StepLog::default() }
    }

    /// Steps of `period` collectives follow; what was logged belongs to another pattern.
    pub fn restart(&mut self, period: usize) {
        self.records.clear();
        self.durations.clear();
        self.durations.resize(period, 0.0);
        self.current.clear();
        self.current.resize(period, 0);
        self.summed = 0;
    }

    /// Duration of the collective at `place` of the step under way, ns.
    #[inline]
    pub fn duration(&mut self, place: usize, ns: u64) {
        if let Some(current) = self.current.get_mut(place) {
            *current = ns;
        }
    }

    /// The step under way ended and counts.
    #[inline]
    pub fn push(&mut self, record: StepRecord) {
        if self.records.len() >= self.limit {
            self.records.pop_front();
        }
        self.records.push_back(record);
        for (sum, ns) in self.durations.iter_mut().zip(&self.current) {
            *sum += *ns as f64;
        }
        self.summed += 1;
    }

    /// A collective that came late covers `ns` of what the last step has as own time.
    #[inline]
    pub fn take_back(&mut self, ns: u64) {
        if let Some(last) = self.records.back_mut() {
            last.own_ns = last.own_ns.saturating_sub(ns);
        }
    }

    /// Collectives per step.
    pub fn period(&self) -> usize {
        self.durations.len()
    }

    /// Steps in the log.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Start of the first step in the log, ns.
    pub fn first_start_ns(&self) -> Option<u64> {
        self.records.front().map(|record| record.start_ns)
    }

    /// End of the last step in the log, ns.
    pub fn last_end_ns(&self) -> Option<u64> {
        self.records.back().map(|record| record.end_ns)
    }

    /// End of the `count`-th step that ended after `start_ns`, once there are so many.
    pub fn end_of(&self, count: usize, start_ns: u64) -> Option<u64> {
        if self.records.len() < count {
            return None;
        }
        let skip = self.records.partition_point(|record| record.end_ns <= start_ns);
        self.records.get(skip + count - 1).map(|record| record.end_ns)
    }

    /// Steps that ended after `start_ns`.
    pub fn count_after(&self, start_ns: u64) -> usize {
        self.records.len() - self.records.partition_point(|record| record.end_ns <= start_ns)
    }

    /// Steps that ended until `end_ns`.
    pub fn count_until(&self, end_ns: u64) -> usize {
        self.records.partition_point(|record| record.end_ns <= end_ns)
    }

    /// Mean duration of the collective at each place of the step, ns.
    pub fn mean_durations(&self) -> Option<Vec<f64>> {
        let steps = self.summed as f64;
        (self.summed > 0).then(|| self.durations.iter().map(|sum| sum / steps).collect())
    }

    /// (end, busy) of the steps that ended after `start_ns` and until `end_ns`, ns.
    pub fn busy(&self, start_ns: u64, end_ns: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let inside = move |r: &&StepRecord| r.end_ns > start_ns && r.end_ns <= end_ns;
        let busy = |r: &StepRecord| (r.end_ns - r.start_ns).saturating_sub(r.own_ns);
        self.records.iter().filter(inside).map(move |r| (r.end_ns, busy(r)))
    }

    /// Means over the steps that ended after `start_ns` and until `end_ns`. Where less than half
    /// of them could not be timed, over the others.
    pub fn measure(&self, start_ns: u64, end_ns: u64) -> Option<Measure> {
        let all = || self.records.iter().filter(|r| r.end_ns > start_ns && r.end_ns <= end_ns);
        let (first, last) = (all().next()?, all().next_back()?);
        let (steps, timed_steps) = (all().count(), all().filter(|r| r.timed).count());
        let timed = 2 * timed_steps > steps;
        let inside = || all().filter(|r| r.timed || !timed);
        let mut wall: Vec<f64> = inside().map(|r| (r.end_ns - r.start_ns) as f64).collect();
        let mut own: Vec<f64> = inside().map(|r| r.own_ns as f64).collect();
        let mut busy: Vec<f64> =
            inside().map(|r| (r.end_ns - r.start_ns).saturating_sub(r.own_ns) as f64).collect();
        let own = trimmed(&mut own);
        Some(Measure {
            steps: steps as u32,
            first_step: first.number,
            last_step: last.number,
            start_ns: first.start_ns,
            end_ns: last.end_ns,
            wall: trimmed(&mut wall).mean,
            own: own.mean,
            busy: trimmed(&mut busy).mean,
            own_error: own.error,
            bytes: all().map(|r| r.bytes as f64).sum::<f64>() / steps as f64,
            timed,
        })
    }

    /// Forgets the steps that ended until `end_ns`, and the durations so far.
    pub fn close(&mut self, end_ns: u64) {
        while self.records.front().is_some_and(|record| record.end_ns <= end_ns) {
            self.records.pop_front();
        }
        self.durations.iter_mut().for_each(|sum| *sum = 0.0);
        self.summed = 0;
    }
}
