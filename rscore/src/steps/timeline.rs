//! Union of the in-flight intervals of one process, built as they come.

use std::collections::VecDeque;

/// Gaps that an interval which comes late may still fill.
const GAPS: usize = 64;

/// How one interval changed the union.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Added {
    /// New time without a collective in flight, before this interval, ns.
    pub gap: u64,
    /// Earlier gap time at or after `boundary` that this interval covers after all, ns.
    pub filled: u64,
    /// The same before `boundary`.
    pub filled_before: u64,
}

/// Intervals arrive in issue order, which is start order as long as one queue feeds the
/// workers. Then everything up to `covered` is settled and the union needs one number. Several
/// process groups or device streams have several queues: an interval that starts before
/// `covered` may lie in a gap that was counted as own time, so the last gaps are remembered.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    covered: u64,
    /// Disjoint, oldest first.
    gaps: VecDeque<(u64, u64)>,
    total: u64,
}

impl Timeline {
    /// End of the last interval so far, CLOCK_MONOTONIC ns; 0 before the first.
    #[inline]
    pub fn covered(&self) -> u64 {
        self.covered
    }

    /// Time without a collective in flight since the first interval, ns.
    pub fn own_total(&self) -> u64 {
        self.total
    }

    /// Takes one interval; `boundary` divides `filled` from `filled_before`.
    #[inline]
    pub fn add(&mut self, start: u64, end: u64, boundary: u64) -> Added {
        let end = end.max(start);
        if self.covered == 0 {
            self.covered = end;
            return Added::default();
        }
        if start >= self.covered {
            let gap = start - self.covered;
            if gap > 0 {
                self.remember(self.gaps.len(), (self.covered, start));
                self.total += gap;
            }
            self.covered = end;
            return Added { gap, ..Added::default() };
        }
        let late = self.gaps.back().is_some_and(|newest| start < newest.1);
        let added = if late { self.fill(start, end, boundary) } else { Added::default() };
        self.covered = self.covered.max(end);
        added
    }

    #[inline]
    fn remember(&mut self, place: usize, gap: (u64, u64)) {
        self.gaps.insert(place, gap);
        if self.gaps.len() > GAPS {
            self.gaps.pop_front();
        }
    }

    #[cold]
    fn fill(&mut self, start: u64, end: u64, boundary: u64) -> Added {
        let mut added = Added::default();
        let mut place = self.gaps.len();
        while place > 0 && self.gaps[place - 1].1 > start {
            place -= 1;
            let gap = self.gaps[place];
            let (from, to) = (gap.0.max(start), gap.1.min(end));
            if from >= to {
                continue;
            }
            if gap.0 >= boundary {
                added.filled += to - from;
            } else {
                added.filled_before += to - from;
            }
            self.total = self.total.saturating_sub(to - from);
            self.gaps.remove(place);
            if to < gap.1 {
                self.gaps.insert(place, (to, gap.1));
            }
            if gap.0 < from {
                self.remember(place, (gap.0, from));
            }
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_nesting_and_late_intervals_make_one_union() {
        let mut line = Timeline::default();
        assert_eq!(line.add(100, 200, 0).gap, 0);
        assert_eq!(line.add(150, 180, 0), Added::default());
        assert_eq!(line.add(190, 260, 0), Added::default());
        assert_eq!(line.add(300, 400, 0).gap, 40);
        assert_eq!(line.covered(), 400);
        // Comes late and covers 270..300 of the gap 260..300.
        assert_eq!(line.add(270, 310, 0).filled, 30);
        assert_eq!(line.add(262, 272, 300).filled_before, 8);
        assert_eq!(line.own_total(), 2);
        assert_eq!(line.add(500, 450, 0).gap, 100, "an end before its start counts as no length");
        assert_eq!(line.covered(), 500);
    }

    #[test]
    fn many_late_intervals_in_one_gap_leave_exactly_what_they_do_not_cover() {
        let mut line = Timeline::default();
        line.add(0, 100, 0);
        line.add(10_100, 10_200, 0);
        let filled: u64 = (0..40).map(|n| line.add(200 + 200 * n, 300 + 200 * n, 0).filled).sum();
        assert_eq!(filled, 40 * 100);
        assert_eq!(line.own_total(), 10_000 - 4000);
        // One more over all of them takes the rest of their range.
        assert_eq!(line.add(200, 8100, 0).filled, 39 * 100);
        // Gaps without end stay bounded.
        for n in 0..10_000u64 {
            line.add(20_000 + 10 * n, 20_005 + 10 * n, 0);
        }
        assert!(line.gaps.len() <= GAPS);
    }
}
