//! Whether the ring sees what the host calls: what it does not see takes time all the same.

use crate::wire::function;

/// Functions that are told apart.
const FUNCTIONS: usize = 16;
/// Fewest calls of a function that count as missed; of messages, and where no steps are known, one
/// in so many as well.
const MISSED_LEAST: u64 = 4;
const MISSED_SHARE: u64 = 20;

type Counts = [u64; FUNCTIONS];

/// Calls of one process on both sides. Interval by interval they are compared once the ring has
/// come to where the host was: the host runs ahead of the device.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    host: Counts,
    ring: Counts,
    last_host_ns: u64,
    /// Steps until the last close.
    steps: u64,
    /// Where the interval under way began: counts of both sides, records lost and steps until
    /// then.
    begin: Option<(Counts, Counts, u64, u64)>,
    /// Where it ended on the host: its time and counts, and steps until then.
    end: Option<(u64, Counts, u64)>,
    share: Option<f64>,
    missed: u32,
    silent: bool,
}

impl Coverage {
    /// A call that the device will carry out.
    #[inline]
    pub fn host_call(&mut self, function: u8, time_ns: u64) {
        self.host[usize::from(function) % FUNCTIONS] += 1;
        self.last_host_ns = self.last_host_ns.max(time_ns);
    }

    /// A record of a call, in issue order; not of a replay. `lost`: records lost so far.
    #[inline]
    pub fn record(&mut self, function: u8, host_ns: u64, lost: u64) {
        self.silent = false;
        if self.end.is_some_and(|(end_ns, ..)| host_ns > end_ns) {
            self.compare(lost);
        }
        self.ring[usize::from(function) % FUNCTIONS] += 1;
    }

    /// A window closed, of `steps` steps.
    pub fn close(&mut self, steps: u64) {
        self.steps += steps;
        match self.end {
            None => self.end = Some((self.last_host_ns, self.host, self.steps)),
            // Since the close before not one record has come, and the host went on.
            Some((end_ns, ..)) => self.silent = self.last_host_ns > end_ns,
        }
    }

    #[cold]
    fn compare(&mut self, lost: u64) {
        let Some((_, host_end, steps)) = self.end.take() else { return };
        let begin = self.begin.replace((host_end, self.ring, lost, steps));
        let Some((host_begin, ring_begin, lost_before, steps_before)) = begin else { return };
        let steps = steps - steps_before;
        let lost = lost.saturating_sub(lost_before);
        let host: Counts = std::array::from_fn(|f| host_end[f].saturating_sub(host_begin[f]));
        let ring: Counts = std::array::from_fn(|f| self.ring[f].saturating_sub(ring_begin[f]));
        let all: u64 = host.iter().sum();
        // An all-to-all may come as the messages that it is made of.
        let messages = |counts: &Counts| {
            counts[usize::from(function::SEND)] + counts[usize::from(function::RECV)]
        };
        let mut surplus = messages(&ring).saturating_sub(messages(&host));
        let mut missed_calls = 0;
        self.missed = 0;
        for function in 0..FUNCTIONS {
            let mut missed = host[function].saturating_sub(ring[function]).saturating_sub(lost);
            if matches!(function as u8, function::ALL_TO_ALL..=function::SCATTER) {
                let made_of_messages = missed.min(surplus);
                surplus -= made_of_messages;
                missed -= made_of_messages;
            }
            missed_calls += missed;
            // What is missed in fewer than every second step is trimmed away with those steps.
            // One collective a step is no small share, however many others there are: the wait
            // for a slow rank may be in that one. Of messages the others of a batch tell.
            let message = matches!(function as u8, function::SEND | function::RECV);
            let small = (message || steps == 0) && missed * MISSED_SHARE <= host[function];
            if missed >= MISSED_LEAST.max(steps / 2) && !small {
                self.missed |= 1 << function;
            }
        }
        self.share = (all > 0).then(|| 1.0 - missed_calls as f64 / all as f64);
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use function::*;

    /// Windows of 20 steps; the device is `behind` calls behind the host.
    fn run(step: &[(u8, bool)], behind: usize) -> Coverage {
        let mut coverage = Coverage::default();
        let (mut now, mut queue) = (0, std::collections::VecDeque::new());
        for _ in 0..4 {
            for _ in 0..20 {
                for &(function, seen) in step {
                    now += 10;
                    coverage.host_call(function, now);
                    if seen {
                        queue.push_back((function, now + 1));
                    }
                }
                while queue.len() > behind {
                    let (function, host_ns) = queue.pop_front().unwrap();
                    coverage.record(function, host_ns, 0);
                }
            }
            coverage.close(20);
        }
        coverage
    }

    #[test]
    fn a_device_that_is_behind_misses_nothing() {
        for behind in [0, 1, 7, 30] {
            let coverage = run(&[(ALL_REDUCE, true), (ALL_GATHER, true)], behind);
            assert_eq!((coverage.share(), coverage.missed()), (Some(1.0), 0), "{behind}");
            assert!(!coverage.is_silent());
        }
    }

    #[test]
    fn a_function_that_is_never_seen_is_named() {
        let coverage = run(&[(ALL_REDUCE, true), (BROADCAST, false), (ALL_REDUCE, true)], 3);
        assert!((coverage.share().unwrap() - 2.0 / 3.0).abs() < 0.03);
        assert_eq!(coverage.missed(), 1 << BROADCAST);
        assert!(run(&[(ALL_REDUCE, false)], 0).is_silent());
        assert_eq!(run(&[(ALL_REDUCE, false)], 0).share(), Some(0.0));
    }

    #[test]
    fn one_call_a_step_that_is_never_seen_is_named_among_many_that_are() {
        let mut step = vec![(ALL_REDUCE, true); 60];
        step[59].1 = false;
        let coverage = run(&step, 5);
        assert_eq!(coverage.missed(), 1 << ALL_REDUCE);
        assert!((coverage.share().unwrap() - 59.0 / 60.0).abs() < 0.01);
    }

    #[test]
    fn an_all_to_all_that_comes_as_messages_is_seen() {
        let mut coverage = Coverage::default();
        for window in 0..3u64 {
            for call in 0..20u64 {
                let now = 1000 * window + 10 * call;
                coverage.host_call(ALL_TO_ALL, now);
                for function in [SEND, RECV, SEND, RECV] {
                    coverage.record(function, now + 1, 0);
                }
            }
            coverage.close(20);
        }
        assert_eq!((coverage.share(), coverage.missed()), (Some(1.0), 0));
    }

    #[test]
    fn what_the_reader_lost_is_not_what_the_library_hides() {
        let mut coverage = Coverage::default();
        let mut lost = 0;
        for window in 0..3u64 {
            for call in 0..100u64 {
                let now = 1000 * window + 10 * call;
                coverage.host_call(ALL_REDUCE, now);
                if call % 4 == 0 {
                    lost += 1;
                } else {
                    coverage.record(ALL_REDUCE, now + 1, lost);
                }
            }
            coverage.close(100);
        }
        assert_eq!(coverage.missed(), 0);
    }
}
