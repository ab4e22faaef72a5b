//! Whether the ring sees what the host calls: what it does not see takes time all the same.
//!
//! Calls and records are joined by communicator (see `pairs`) and counted by function; where the
//! reader lost records, the library's sequence numbers say how many of them were of which. What
//! has no pair is compared by function alone.

use super::hash::Map;
use super::pairs::{Call, Pairs};
use crate::ring::Record;
use crate::wire::function;

/// Functions that are told apart.
const FUNCTIONS: usize = 16;
/// Fewest calls of a function that count as missed; of messages, and where no steps are known, one
/// in so many as well.
const MISSED_LEAST: u64 = 4;
const MISSED_SHARE: u64 = 20;
/// Most communicators of one process that are joined.
const MAX_JOINED: usize = 64;
/// Place of everything that has no pair.
const UNPAIRED: usize = 0;

type Counts = [u64; FUNCTIONS];

/// Both sides of one communicator, or of all that have no pair.
#[derive(Clone, Debug, Default)]
struct Tally {
    /// 0 where it is no pair's, or the communicator is gone.
    pointer: u64,
    hash: u64,
    host: Counts,
    ring: Counts,
    /// The library's, of the last record.
    sequence: [Option<u32>; FUNCTIONS],
    /// Where the interval under way began on both sides, and where it ended on the host.
    host_begin: Counts,
    host_end: Counts,
    ring_begin: Counts,
    sequence_begin: [Option<u32>; FUNCTIONS],
    share: Option<f64>,
}

impl Tally {
    /// Calls of the interval, and those that the ring knows of: at least `lost` less were read.
    fn interval(&self, lost: u64) -> (Counts, Counts) {
        let host = std::array::from_fn(|f| self.host_end[f].saturating_sub(self.host_begin[f]));
        let seen = std::array::from_fn(|f| {
            let read = self.ring[f].saturating_sub(self.ring_begin[f]);
            let most = read.saturating_add(lost);
            let collective = !matches!(f as u8, function::SEND | function::RECV);
            match (self.sequence_begin[f], self.sequence[f]) {
                (Some(begin), Some(end)) if collective && self.hash != 0 => {
                    let counted = u64::from(end.wrapping_sub(begin));
                    if (read..=most).contains(&counted) {
                        counted
                    } else {
                        most
                    }
                }
                _ => most,
            }
        });
        (host, seen)
    }

    fn next_interval(&mut self) {
        self.host_begin = self.host_end;
        self.ring_begin = self.ring;
        self.sequence_begin = self.sequence;
    }
}

/// Calls of one process on both sides. Interval by interval they are compared once the ring has
/// come to where the host was: the host runs ahead of the device.
#[derive(Debug)]
pub(crate) struct Coverage {
    /// The first is of everything without a pair.
    tallies: Vec<Tally>,
    pairs: Pairs,
    by_pointer: Map<u64, usize>,
    by_hash: Map<u64, usize>,
    /// Pairs whose host side counts already: the ring's follows at the end of the interval.
    joining: Vec<(u64, usize)>,
    last_host_ns: u64,
    /// Steps until the last close.
    steps: u64,
    /// Records lost and steps until the interval under way began.
    begin: Option<(u64, u64)>,
    /// When it ended on the host, and steps until then.
    end: Option<(u64, u64)>,
    share: Option<f64>,
    missed: u32,
    silent: bool,
}

impl Default for Coverage {
    fn default() -> Coverage {
        Coverage {
            tallies: vec![Tally::default()],
            pairs: Pairs::default(),
            by_pointer: Map::default(),
            by_hash: Map::default(),
            joining: Vec::new(),
            last_host_ns: 0,
            steps: 0,
            begin: None,
            end: None,
            share: None,
            missed: 0,
            silent: false,
        }
    }
}

impl Coverage {
    /// A call that the device will carry out.
    #[inline]
    pub fn host_call(&mut self, call: Call) {
        let place = self.by_pointer.get(&call.pointer).copied().unwrap_or(UNPAIRED);
        self.tallies[place].host[usize::from(call.function) % FUNCTIONS] += 1;
        self.last_host_ns = self.last_host_ns.max(call.time_ns);
        if place == UNPAIRED {
            self.pairs.call(call);
        }
    }

    /// A record of a call, in issue order; not of a replay. `lost`: records lost so far.
    #[inline]
    pub fn record(&mut self, record: &Record, lost: u64) {
        self.silent = false;
        if self.end.is_some_and(|(end_ns, _)| record.host_ns > end_ns) {
            self.compare(lost);
        }
        let place = self.by_hash.get(&record.communicator).copied().unwrap_or(UNPAIRED);
        let tally = &mut self.tallies[place];
        tally.ring[usize::from(record.function) % FUNCTIONS] += 1;
        tally.sequence[usize::from(record.function) % FUNCTIONS] = Some(record.sequence);
        if place == UNPAIRED {
            self.pairs.record(record);
        }
    }

    /// The host's communicator is no more: another may get its pointer.
    pub fn communicator_ended(&mut self, pointer: u64) {
        self.pairs.forget(pointer);
        if let Some(place) = self.by_pointer.remove(&pointer) {
            self.tallies[place].pointer = 0;
        }
    }

    /// A window closed, of `steps` steps.
    pub fn close(&mut self, steps: u64) {
        self.steps += steps;
        match self.end {
            None => {
                self.end = Some((self.last_host_ns, self.steps));
                for tally in &mut self.tallies {
                    tally.host_end = tally.host;
                }
                self.join();
            }
            // Since the close before not one record has come, and the host went on.
            Some((end_ns, _)) => self.silent = self.last_host_ns > end_ns,
        }
    }

    /// Gives new pairs a tally. Both sides begin at the same call: the end of the interval.
    fn join(&mut self) {
        for (pointer, hash) in self.pairs.take() {
            let free = |tally: &Tally| tally.pointer == 0 && tally.hash == 0;
            let place = match self.tallies.iter().skip(1).position(free) {
                Some(place) => place + 1,
                None if self.tallies.len() > MAX_JOINED => continue,
                None => {
                    self.tallies.push(Tally::default());
                    self.tallies.len() - 1
                }
            };
            self.tallies[place] = Tally { pointer, hash, ..Tally::default() };
            self.by_pointer.insert(pointer, place);
            self.joining.push((hash, place));
        }
    }

    #[cold]
    fn compare(&mut self, lost: u64) {
        let Some((_, steps)) = self.end.take() else { return };
        if let Some((lost_before, steps_before)) = self.begin.replace((lost, steps)) {
            self.weigh(lost.saturating_sub(lost_before), steps - steps_before);
        }
        for tally in &mut self.tallies {
            tally.next_interval();
        }
        self.by_hash.extend(self.joining.drain(..));
    }

    fn weigh(&mut self, lost: u64, steps: u64) {
        self.missed = 0;
        let (mut unpaired_host, unpaired_seen) = self.tallies[UNPAIRED].interval(lost);
        let (mut all, mut missed_calls) = (0, 0);
        for place in 1..self.tallies.len() {
            let (host, seen) = self.tallies[place].interval(lost);
            let calls: u64 = host.iter().sum();
            let tally = &mut self.tallies[place];
            if calls > 0 && tally.ring == tally.ring_begin {
                // The ring stopped to see it, or this is no pair any more.
                for f in 0..FUNCTIONS {
                    unpaired_host[f] += host[f];
                }
                self.part(place);
            } else if calls > 0 {
                let (missed, functions) = missed(&host, &seen, steps);
                tally.share = Some(1.0 - missed as f64 / calls as f64);
                self.missed |= functions;
                (all, missed_calls) = (all + calls, missed_calls + missed);
            } else if tally.pointer == 0 && tally.ring == tally.ring_begin {
                self.part(place);
            }
        }
        let calls: u64 = unpaired_host.iter().sum();
        let (missed, functions) = missed(&unpaired_host, &unpaired_seen, steps);
        self.missed |= functions;
        (all, missed_calls) = (all + calls, missed_calls + missed);
        self.share = (all > 0).then(|| 1.0 - missed_calls as f64 / all as f64);
    }

    /// Frees the place of a pair; calls of the interval to come are compared without it.
    fn part(&mut self, place: usize) {
        for f in 0..FUNCTIONS {
            let to_come = self.tallies[place].host[f] - self.tallies[place].host_end[f];
            self.tallies[UNPAIRED].host[f] += to_come;
        }
        self.by_pointer.retain(|_, other| *other != place);
        self.by_hash.retain(|_, other| *other != place);
        self.joining.retain(|&(_, other)| other != place);
        self.tallies[place] = Tally::default();
    }

    /// Share of the host's calls that the ring saw too; `None` while nothing is known.
    pub fn share(&self) -> Option<f64> {
        if self.silent {
            return Some(0.0);
        }
        self.share
    }

    /// Functions that the ring misses in a stable share, as bits.
    pub fn missed(&self) -> u32 {
        self.missed
    }

    /// The host goes on calling, and the ring says nothing any more.
    pub fn is_silent(&self) -> bool {
        self.silent
    }

    /// Hash of the ring's records of the communicator that the host knows by `pointer`, and the
    /// share of its calls that the ring saw; `None` while it has no pair.
    pub fn joined(&self, pointer: u64) -> Option<(u64, Option<f64>)> {
        let tally = &self.tallies[*self.by_pointer.get(&pointer)?];
        Some((tally.hash, tally.share))
    }
}

/// Calls that the ring did not see, and functions of which that is a stable share, as bits.
fn missed(host: &Counts, seen: &Counts, steps: u64) -> (u64, u32) {
    // An all-to-all may come as the messages that it is made of.
    let messages =
        |counts: &Counts| counts[usize::from(function::SEND)] + counts[usize::from(function::RECV)];
    let mut surplus = messages(seen).saturating_sub(messages(host));
    let (mut calls, mut functions) = (0, 0);
    for function in 0..FUNCTIONS {
        let mut missed = host[function].saturating_sub(seen[function]);
        if matches!(function as u8, function::ALL_TO_ALL..=function::SCATTER) {
            let made_of_messages = missed.min(surplus);
            surplus -= made_of_messages;
            missed -= made_of_messages;
        }
        calls += missed;
        // What is missed in fewer than every second step is trimmed away with those steps.
        // One collective a step is no small share, however many others there are: the wait
        // for a slow rank may be in that one. Of messages the others of a batch tell.
        let message = matches!(function as u8, function::SEND | function::RECV);
        let small = (message || steps == 0) && missed * MISSED_SHARE <= host[function];
        if missed >= MISSED_LEAST.max(steps / 2) && !small {
            functions |= 1 << function;
        }
    }
    (calls, functions)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, VecDeque};

    use super::*;
    use function::*;

    /// One call of a step: pointer of its communicator (its hash is 100 more), function, and
    /// whether the ring sees it.
    type Step<'a> = &'a [(u64, u8, bool)];

    fn call(pointer: u64, function: u8, time_ns: u64) -> Call {
        Call { pointer, time_ns, bytes: 64, function }
    }

    fn record(pointer: u64, function: u8, host_ns: u64, sequence: u32) -> Record {
        Record {
            communicator: pointer + 100,
            function,
            host_ns,
            sequence,
            bytes: 64,
            ..Record::default()
        }
    }

    /// Windows of 20 steps; the device is `behind` calls behind the host.
    #[derive(Default)]
    struct Run {
        coverage: Coverage,
        now: u64,
        queue: VecDeque<Record>,
        calls: HashMap<(u64, u8), u32>,
    }

    impl Run {
        fn new(windows: usize, step: Step, behind: usize) -> Run {
            let mut run = Run::default();
            run.windows(windows, step, behind);
            run
        }

        fn windows(&mut self, windows: usize, step: Step, behind: usize) {
            for _ in 0..windows {
                for _ in 0..20 {
                    for &(pointer, function, seen) in step {
                        self.now += 10;
                        self.coverage.host_call(call(pointer, function, self.now));
                        let sequence = self.calls.entry((pointer, function)).or_default();
                        if seen {
                            self.queue.push_back(record(
                                pointer,
                                function,
                                self.now + 1,
                                *sequence,
                            ));
                            *sequence += 1;
                        }
                    }
                    while self.queue.len() > behind {
                        self.coverage.record(&self.queue.pop_front().unwrap(), 0);
                    }
                }
                self.coverage.close(20);
            }
        }

        fn verdict(&self) -> (Option<f64>, u32) {
            (self.coverage.share(), self.coverage.missed())
        }
    }

    #[test]
    fn a_device_that_is_behind_misses_nothing() {
        for behind in [0, 1, 7, 30] {
            let run = Run::new(6, &[(1, ALL_REDUCE, true), (2, ALL_GATHER, true)], behind);
            assert_eq!(run.verdict(), (Some(1.0), 0), "{behind}");
            assert!(!run.coverage.is_silent());
            assert_eq!(run.coverage.joined(1), Some((101, Some(1.0))), "{behind}");
            assert_eq!(run.coverage.joined(2), Some((102, Some(1.0))), "{behind}");
        }
    }

    #[test]
    fn a_function_that_is_never_seen_is_named() {
        let (seen, hidden) = ((1, ALL_REDUCE, true), (1, BROADCAST, false));
        for windows in [4, 8] {
            let run = Run::new(windows, &[seen, hidden, seen], 3);
            assert!((run.verdict().0.unwrap() - 2.0 / 3.0).abs() < 0.03);
            assert_eq!(run.verdict().1, 1 << BROADCAST);
        }
        let silent = Run::new(4, &[(1, ALL_REDUCE, false)], 0);
        assert!(silent.coverage.is_silent());
        assert_eq!(silent.coverage.share(), Some(0.0));
    }

    #[test]
    fn one_call_a_step_that_is_never_seen_is_named_among_many_that_are() {
        let mut step = vec![(1, ALL_REDUCE, true); 60];
        step[59].2 = false;
        let run = Run::new(4, &step, 5);
        assert_eq!(run.verdict().1, 1 << ALL_REDUCE);
        assert!((run.verdict().0.unwrap() - 59.0 / 60.0).abs() < 0.01);
    }

    #[test]
    fn messages_of_one_communicator_are_missed_among_those_of_another() {
        let mut step = vec![(1, SEND, true); 40];
        step.push((2, SEND, true));
        let mut run = Run::new(6, &step, 5);
        assert_eq!(run.verdict(), (Some(1.0), 0));
        // One in 41 is a small share of all messages, and each one of this communicator's.
        step[40].2 = false;
        step.push((2, SEND, true));
        run.windows(6, &step, 5);
        assert_eq!(run.coverage.joined(2), Some((102, Some(0.5))));
        assert_eq!(run.verdict().1, 1 << SEND);
    }

    #[test]
    fn a_communicator_that_the_ring_no_longer_sees_is_missed() {
        let mut step = [(1, ALL_REDUCE, true), (2, ALL_REDUCE, true)];
        let mut run = Run::new(6, &step, 2);
        step[1].2 = false;
        run.windows(4, &step, 2);
        assert_eq!(run.coverage.joined(2), None);
        assert_eq!(run.verdict().1, 1 << ALL_REDUCE);
        assert!((run.verdict().0.unwrap() - 0.5).abs() < 0.03, "{:?}", run.verdict());
    }

    #[test]
    fn a_pointer_that_another_communicator_gets_is_paired_anew() {
        let mut run = Run::new(6, &[(1, ALL_REDUCE, true), (2, ALL_REDUCE, true)], 2);
        run.coverage.communicator_ended(2);
        assert_eq!(run.coverage.joined(2), None);
        for _ in 0..6 * 20 {
            for (pointer, hash) in [(1, 1), (2, 7)] {
                run.now += 10;
                run.coverage.host_call(call(pointer, ALL_REDUCE, run.now));
                run.coverage.record(&record(hash, ALL_REDUCE, run.now + 1, 0), 0);
            }
            if run.now % 400 == 0 {
                run.coverage.close(20);
            }
        }
        assert_eq!(run.coverage.joined(2).map(|(hash, _)| hash), Some(107));
        assert_eq!(run.verdict(), (Some(1.0), 0));
    }

    #[test]
    fn communicators_that_are_used_alike_in_a_group_stay_together() {
        let mut coverage = Coverage::default();
        for step in 0..400u64 {
            let now = 100 * step;
            for pointer in [1, 2] {
                coverage.host_call(call(pointer, ALL_REDUCE, now + pointer));
            }
            for pointer in [1, 2] {
                coverage.record(&record(pointer, ALL_REDUCE, now + 9, step as u32), 0);
            }
            if step % 20 == 19 {
                coverage.close(20);
            }
        }
        assert_eq!((coverage.joined(1), coverage.joined(2)), (None, None));
        assert_eq!((coverage.share(), coverage.missed()), (Some(1.0), 0));
    }

    #[test]
    fn an_all_to_all_that_comes_as_messages_is_seen() {
        let mut coverage = Coverage::default();
        for window in 0..6u64 {
            for step in 0..20u64 {
                let now = 1000 * window + 10 * step;
                coverage.host_call(call(1, ALL_TO_ALL, now));
                for function in [SEND, RECV, SEND, RECV] {
                    coverage.record(&record(1, function, now + 1, 0), 0);
                }
            }
            coverage.close(20);
        }
        assert_eq!((coverage.share(), coverage.missed()), (Some(1.0), 0));
        assert_eq!(coverage.joined(1), Some((101, Some(1.0))));
    }

    /// 100 calls a window of each of two communicators; of the first, the reader loses every
    /// fourth record, of the second, the library hides every `hidden`th call.
    fn with_losses(hidden: u32) -> Coverage {
        let mut coverage = Coverage::default();
        let (mut lost, mut told) = (0, 0);
        for step in 0..1000 {
            let now = 10 * u64::from(step);
            coverage.host_call(call(1, ALL_REDUCE, now));
            if step % 4 == 0 {
                lost += 1;
            } else {
                coverage.record(&record(1, ALL_REDUCE, now + 1, step), lost);
            }
            coverage.host_call(call(2, ALL_GATHER, now + 2));
            if step % hidden != 0 {
                coverage.record(&record(2, ALL_GATHER, now + 3, told), lost);
                told += 1;
            }
            if step % 100 == 99 {
                coverage.close(20);
            }
        }
        coverage
    }

    #[test]
    fn what_the_reader_lost_is_not_what_the_library_hides() {
        let nothing = with_losses(u32::MAX);
        assert_eq!((nothing.share(), nothing.missed()), (Some(1.0), 0));
        // As many as were lost: only their sequence numbers tell that they are not the same.
        let some = with_losses(4);
        assert_eq!(some.missed(), 1 << ALL_GATHER);
        assert_eq!(some.joined(1), Some((101, Some(1.0))));
        assert!((some.joined(2).unwrap().1.unwrap() - 0.75).abs() < 0.02);
    }
}
