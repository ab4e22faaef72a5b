//! Union of the in-flight intervals of one process, built as they come.

/// Gaps that an interval which comes late may still fill.
const GAPS: usize = 16;

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
/// process groups have several queues: an interval that starts before `covered` may lie in a
/// gap that was counted as own time, so the last gaps are remembered.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    covered: u64,
    gaps: [(u64, u64); GAPS],
    next: usize,
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
                self.gaps[self.next] = (self.covered, start);
                self.next = (self.next + 1) % GAPS;
                self.total += gap;
            }
            self.covered = end;
            return Added { gap, ..Added::default() };
        }
        let newest = self.gaps[(self.next + GAPS - 1) % GAPS];
        let added =
            if start < newest.1 { self.fill(start, end, boundary) } else { Added::default() };
        self.covered = self.covered.max(end);
        added
    }

    #[cold]
    fn fill(&mut self, start: u64, end: u64, boundary: u64) -> Added {
        let mut added = Added::default();
        for gap in &mut self.gaps {
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
            // One remainder can still be filled; the smaller one stays own time for good.
            *gap = if from - gap.0 > gap.1 - to { (gap.0, from) } else { (to, gap.1) };
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
}
