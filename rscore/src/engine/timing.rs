//! When the kernel measures the BPF program's run time.
//!
//! It then reads the clock twice more at every run of every BPF program of the machine: some
//! 5 % of a probe's cost. A second in thirty, while events come, tells as much.

use std::time::{Duration, Instant};

const MEASURE: Duration = Duration::from_secs(1);
const REST: Duration = Duration::from_secs(29);

/// State of the measurement; off at first.
#[derive(Debug, Default)]
pub struct RunTiming {
    on: bool,
    /// When to switch next; `None` before the first time.
    at: Option<Instant>,
}

impl RunTiming {
    /// What to switch to now, if anything; `busy` while events come.
    pub fn due(&self, busy: bool, now: Instant) -> Option<bool> {
        let due = self.at.is_none_or(|at| now >= at);
        (due && (self.on || busy)).then_some(!self.on)
    }

    /// The kernel has switched.
    pub fn switched(&mut self, on: bool, now: Instant) {
        self.on = on;
        self.at = Some(now + if on { MEASURE } else { REST });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_second_in_thirty_and_never_while_nothing_comes() {
        let start = Instant::now();
        let mut timing = RunTiming::default();
        assert_eq!(timing.due(false, start), None);
        let (mut on, mut switches) = (0, 0);
        for tick in 0..600u32 {
            let now = start + tick * Duration::from_millis(200);
            if let Some(next) = timing.due(tick < 450, now) {
                timing.switched(next, now);
                switches += 1;
            }
            on += u32::from(timing.on);
        }
        // 120 s, busy for 90: three measurements of 1 s, and none is left on.
        assert_eq!((on, switches, timing.on), (15, 6, false));
    }
}
