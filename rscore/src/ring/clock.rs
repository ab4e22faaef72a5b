//! One process's device clock on the host's CLOCK_MONOTONIC axis.
//!
//! Every stop was seen by the host some time after it happened, so host time minus device time is
//! the offset plus a delay, and its minimum comes close to the offset. It is fixed at once and
//! moved only when it is off by more than a millisecond: differences between device times are
//! what matters, and they stay exact meanwhile. Nothing here compares two processes.

use super::layout::clock;

/// How far the offset may be off before it is moved, ns.
const SLACK_NS: i64 = 1_000_000;
/// Minima are taken over the present and the last epoch of this length, ns: clocks drift.
const EPOCH_NS: u64 = 8_000_000_000;
/// Samples after which a minimum of an epoch may move the offset upwards.
const ENOUGH: u32 = 16;
/// Rates that devices are known to have, ticks per second: MI300, older AMD boards, ns.
const KNOWN_HZ: [u64; 3] = [100_000_000, 25_000_000, 1_000_000_000];
/// A measured rate this close to a known one is that one.
const SNAP: f64 = 0.02;
/// Time after which a measured rate may be a known one, and after which it is taken as it is.
const SNAP_NS: u64 = 250_000_000;
const MEASURE_NS: u64 = 4_000_000_000;
/// A rate is measured anew, over ever longer times, up to this.
const MEASURE_MOST_NS: u64 = 1 << 40;
/// Rates outside are no clock's.
const MIN_HZ: u64 = 1_000_000;
const MAX_HZ: u64 = 10_000_000_000;

/// Smallest difference between host and device over one epoch.
#[derive(Clone, Copy, Debug)]
struct Minimum {
    ns: i64,
    samples: u32,
}

const NONE: Minimum = Minimum { ns: i64::MAX, samples: 0 };

/// Converts device times of one ring; told of every stop, asked for every time.
#[derive(Debug)]
pub(super) struct DeviceClock {
    kind: u32,
    declared_hz: u64,
    /// ns per tick, 32 bits of it behind the point; 0 while the rate is not known.
    ns_per_tick: u64,
    hz: u64,
    /// Ticks are counted from here, so that small numbers are multiplied.
    base: Option<u64>,
    /// (ticks, host ns) where measuring the rate began, and when it is measured next.
    first: (u64, u64),
    measure_ns: u64,
    offset: Option<i64>,
    present: Minimum,
    last: Minimum,
    epoch_end: u64,
    moved: u64,
}

impl DeviceClock {
    pub(super) fn new(kind: u32, declared_hz: u64) -> DeviceClock {
        let hz = match kind {
            clock::NS => 1_000_000_000,
            _ if (MIN_HZ..=MAX_HZ).contains(&declared_hz) => declared_hz,
            _ => 0,
        };
        let mut new = DeviceClock {
            kind,
            declared_hz,
            ns_per_tick: 0,
            hz: 0,
            base: None,
            first: (0, 0),
            measure_ns: SNAP_NS,
            offset: None,
            present: NONE,
            last: NONE,
            epoch_end: 0,
            moved: 0,
        };
        if hz != 0 {
            new.set_rate(hz);
        }
        new
    }

    /// Whether the header still says the same; a plugin fills it in at its first init.
    pub(super) fn is(&self, kind: u32, declared_hz: u64) -> bool {
        self.kind == kind && self.declared_hz == declared_hz
    }

    /// Ticks per second in use, 0 while not known.
    pub(super) fn hz(&self) -> u64 {
        self.hz
    }

    /// Times that the offset was moved after it had been fixed.
    pub(super) fn moved(&self) -> u64 {
        self.moved
    }

    /// The host saw at `host_ns` that the device had stopped at `stop`.
    pub(super) fn observe(&mut self, stop: u64, host_ns: u64) {
        if self.kind == clock::HOST {
            return;
        }
        if self.base.is_none() {
            self.base = Some(stop);
            self.first = (stop, host_ns);
        }
        if self.kind == clock::TICKS && !(MIN_HZ..=MAX_HZ).contains(&self.declared_hz) {
            self.measure(stop, host_ns);
        }
        if self.ns_per_tick == 0 {
            return;
        }
        if host_ns >= self.epoch_end {
            // After a pause the last epoch says nothing any more.
            let fresh = host_ns.saturating_sub(self.epoch_end) < EPOCH_NS;
            self.last = if fresh { self.present } else { NONE };
            self.present = NONE;
            self.epoch_end = host_ns.saturating_add(EPOCH_NS);
        }
        let difference = (host_ns as i64).wrapping_sub(self.ns(stop));
        self.present.ns = self.present.ns.min(difference);
        self.present.samples = self.present.samples.saturating_add(1);
    }

    /// Fixes or moves the offset by what was observed.
    pub(super) fn settle(&mut self) {
        let estimate = self.present.ns.min(self.last.ns);
        if estimate == i64::MAX {
            return;
        }
        let Some(offset) = self.offset else {
            self.offset = Some(estimate);
            return;
        };
        let error = estimate.wrapping_sub(offset);
        // A smaller one is a proof at once; that all are larger must be seen for a while.
        let seen = self.last.samples >= ENOUGH && self.present.samples >= ENOUGH;
        if error < -SLACK_NS || (error > SLACK_NS && seen) {
            self.offset = Some(estimate);
            self.moved += 1;
        }
    }

    /// Host time of a device time, CLOCK_MONOTONIC ns; `None` while the clock is not known, or
    /// where it would be before boot.
    #[inline]
    pub(super) fn host_ns(&self, ticks: u64) -> Option<u64> {
        if self.kind == clock::HOST {
            return Some(ticks);
        }
        let ns = self.ns(ticks).wrapping_add(self.offset?);
        u64::try_from(ns).ok().filter(|ns| *ns > 0)
    }

    #[inline]
    fn ns(&self, ticks: u64) -> i64 {
        let ticks = ticks.wrapping_sub(self.base.unwrap_or(0)) as i64;
        ((i128::from(ticks) * i128::from(self.ns_per_tick)) >> 32) as i64
    }

    fn set_rate(&mut self, hz: u64) {
        if hz == self.hz {
            return;
        }
        self.hz = hz;
        self.ns_per_tick = ((1_000_000_000u128 << 32) / u128::from(hz)) as u64;
        self.offset = None;
        (self.present, self.last, self.epoch_end) = (NONE, NONE, 0);
    }

    fn measure(&mut self, stop: u64, host_ns: u64) {
        let span = host_ns.wrapping_sub(self.first.1);
        if span > i64::MAX as u64 || span < self.measure_ns {
            return;
        }
        let ticks = stop.wrapping_sub(self.first.0);
        let measured = ticks as f64 * 1e9 / span as f64;
        let near = |hz: &&u64| (measured / **hz as f64 - 1.0).abs() < SNAP;
        if let Some(known) = KNOWN_HZ.iter().find(near) {
            self.set_rate(*known);
            self.measure_ns = span.saturating_mul(2).max(MEASURE_NS);
        } else if span >= MEASURE_NS {
            if (MIN_HZ as f64..=MAX_HZ as f64).contains(&measured) {
                self.set_rate(measured.round() as u64);
                self.measure_ns = span.saturating_mul(2);
            } else {
                self.first = (stop, host_ns);
                self.measure_ns = SNAP_NS;
            }
        }
        if self.measure_ns > MEASURE_MOST_NS {
            self.first = (stop, host_ns);
            self.measure_ns = MEASURE_MOST_NS / 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOOT: u64 = 5_000_000_000_000;

    /// A device with its own epoch and rate; the host learns of a stop `delay` ns later.
    fn feed(
        clock: &mut DeviceClock,
        hz: f64,
        epoch: u64,
        ms: std::ops::Range<u64>,
        delay: impl Fn(u64) -> u64,
    ) {
        for at in ms {
            let stop = epoch + (at as f64 * 1e-3 * hz) as u64;
            clock.observe(stop, BOOT + at * 1_000_000 + delay(at));
            clock.settle();
        }
    }

    #[test]
    fn a_nanosecond_clock_of_another_epoch_keeps_differences_exact() {
        let mut clock = DeviceClock::new(clock::NS, 0);
        let epoch = 1_790_000_000_000_000_000;
        assert_eq!(clock.host_ns(epoch), None);
        feed(&mut clock, 1e9, epoch, 0..20_000, |at| 2_000 + at * 7919 % 400_000);
        let (a, b) = (clock.host_ns(epoch + 5_000_000).unwrap(), clock.host_ns(epoch + 5_000_123));
        assert_eq!(b.unwrap() - a, 123);
        // The first sample's delay is all that the anchor is off by.
        assert!(a.abs_diff(BOOT + 5_000_000) < 500_000, "{a}");
        assert_eq!(clock.moved(), 0);
    }

    #[test]
    fn a_stop_seen_before_it_could_be_moves_the_offset_at_once() {
        let mut clock = DeviceClock::new(clock::NS, 0);
        feed(&mut clock, 1e9, 77, 0..1, |_| 50_000_000);
        feed(&mut clock, 1e9, 77, 1..2, |_| 3_000);
        assert_eq!(clock.moved(), 1);
        assert_eq!(clock.host_ns(77 + 1_000_000), Some(BOOT + 1_000_000 + 3_000));
    }

    #[test]
    fn a_drifting_clock_is_followed_within_a_few_milliseconds() {
        // 50 ppm, 200 s: 10 ms in all.
        for rate in [1e9 * (1.0 - 50e-6), 1e9 * (1.0 + 50e-6)] {
            let mut clock = DeviceClock::new(clock::NS, 0);
            feed(&mut clock, rate, 1_000, 0..200_000, |at| 5_000 + at * 31 % 100_000);
            let now = 1_000 + (200.0 * rate) as u64;
            let off = clock.host_ns(now).unwrap().abs_diff(BOOT + 200_000_000_000);
            assert!(off < 2_500_000, "{off}");
            assert!((3..=12).contains(&clock.moved()), "{}", clock.moved());
        }
    }

    #[test]
    fn declared_ticks_are_converted_by_their_rate() {
        for hz in [100_000_000u64, 25_000_000, 1_000_000_000, 99_123_457] {
            let mut clock = DeviceClock::new(clock::TICKS, hz);
            feed(&mut clock, hz as f64, 1 << 60, 0..2, |_| 0);
            let second = clock.host_ns((1 << 60) + hz).unwrap();
            let first = clock.host_ns(1 << 60).unwrap();
            assert!((second - first).abs_diff(1_000_000_000) <= 1, "{hz}");
        }
    }

    #[test]
    fn an_unknown_rate_is_measured_and_snapped() {
        for (hz, expected) in [(1.001e8, 100_000_000), (2.499e7, 25_000_000), (1e9, 1_000_000_000)]
        {
            let mut clock = DeviceClock::new(clock::TICKS, 0);
            feed(&mut clock, hz, 12345, 0..200, |at| at * 31 % 1_000_000);
            assert_eq!((clock.hz(), clock.host_ns(12345)), (0, None), "too early");
            feed(&mut clock, hz, 12345, 200..1_000, |at| at * 31 % 1_000_000);
            assert_eq!(clock.hz(), expected);
        }
        let mut clock = DeviceClock::new(clock::TICKS, 0);
        feed(&mut clock, 5.4e7, 0, 0..10_000, |at| at * 31 % 100_000);
        assert!(clock.hz().abs_diff(54_000_000) < 10_000, "{}", clock.hz());
    }

    #[test]
    fn a_pause_makes_no_false_move_and_a_reset_epoch_is_followed() {
        let mut clock = DeviceClock::new(clock::NS, 0);
        feed(&mut clock, 1e9, 10, 0..100, |_| 4_000);
        feed(&mut clock, 1e9, 10, 600_000..600_100, |_| 4_000);
        assert_eq!(clock.moved(), 0);
        let before = clock.host_ns(10 + 600_050_000_000).unwrap();
        assert_eq!(before, BOOT + 600_050_000_000 + 4_000);
    }

    #[test]
    fn hostile_times_never_panic() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..200_000 {
            let shape = random();
            let mut clock = DeviceClock::new((shape % 5) as u32, random() >> (shape % 64));
            for _ in 0..1 + round % 4 {
                clock.observe(random() >> (random() % 64), random() >> (random() % 64));
                clock.settle();
                clock.host_ns(random());
            }
        }
    }
}
