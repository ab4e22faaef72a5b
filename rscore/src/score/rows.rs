//! Rows that may be scored: a bad one is refused alone and changes nobody's verdict.

use crate::window::{flag, RankWindow};

/// Most ranks of one job.
pub(super) const MAX_WORLD: u32 = 1 << 20;
const MAX_WINDOW: u64 = 1 << 63;
/// Least own time over wall, and longest wall, whose logarithms can be computed with.
const LEAST_SHARE: f64 = 1e-12;
const LONGEST: f64 = 1e200;

/// Rows that may be scored.
#[derive(Debug, Default)]
pub(super) struct Accepted {
    /// Their places, one of each rank, by rank.
    pub places: Vec<u32>,
    pub ranks: Vec<u32>,
    /// Their steps, when all are of whole windows with as many.
    pub steps: Option<u32>,
}

impl Accepted {
    /// Accepts rows of the window that most of the plausible ones name. `last` and `last_tenth`
    /// are the job's last scored window and tenth of one; nothing up to them is accepted again.
    pub fn choose(&mut self, rows: &[RankWindow], last: Option<u64>, last_tenth: Option<u64>) {
        let Accepted { places, ranks, steps } = self;
        let fresh = |row: &RankWindow| {
            let last = if row.flags & flag::TENTH == 0 { last } else { last_tenth };
            last.is_none_or(|last| row.window > last)
        };
        places.clear();
        places.extend(0..rows.len() as u32);
        *steps = rows.first().map(|row| row.steps);
        let Some(first) = rows.first() else { return };
        if fresh(first) && OneWindow::of(first).goes_on(rows) {
            ranks.clear();
            ranks.extend(rows.iter().map(|row| row.rank));
            return;
        }
        *steps = None;
        let good = |row: &RankWindow| plausible(row) && fresh(row);
        places.retain(|&place| good(&rows[place as usize]));
        let row = |place: &u32| &rows[*place as usize];
        let of = |place: &u32| (row(place).flags & flag::TENTH, row(place).window);
        let Some(first) = places.first().map(of) else { return };
        if places.iter().any(|place| of(place) != first) {
            let most = most_named(places.iter().map(of).collect());
            places.retain(|place| of(place) == most);
        }
        if !places.is_sorted_by(|a, b| row(a).rank < row(b).rank) {
            // Stable: the first row of a rank counts.
            places.sort_by_key(|place| row(place).rank);
            places.dedup_by_key(|place| row(place).rank);
        }
        ranks.clear();
        ranks.extend(places.iter().map(|place| row(place).rank));
    }
}

/// Rows that are plausible, of one window, of as many steps, whole, and in the order of their
/// ranks: as nearly always.
pub(super) struct OneWindow<'a> {
    first: &'a RankWindow,
    /// The least rank that may come.
    next: u32,
}

impl<'a> OneWindow<'a> {
    pub fn of(first: &'a RankWindow) -> OneWindow<'a> {
        OneWindow { first, next: 0 }
    }

    /// Whether it goes on with these rows.
    pub fn goes_on(&mut self, rows: &[RankWindow]) -> bool {
        let first = self.first;
        let (mut next, mut good) = (self.next, first.flags & flag::PARTIAL == 0 && first.steps > 0);
        for row in rows {
            good &= plausible(row) & (row.window == first.window) & (row.steps == first.steps);
            good &= ((row.flags ^ first.flags) & (flag::TENTH | flag::PARTIAL) == 0)
                & (row.rank >= next);
            next = row.rank.wrapping_add(1);
        }
        self.next = next;
        good
    }
}

/// The window that occurs most often, the first of several.
fn most_named(mut windows: Vec<(u32, u64)>) -> (u32, u64) {
    windows.sort_unstable();
    let (mut best, mut most) = ((0, 0), 0);
    for same in windows.chunk_by(|a, b| a == b) {
        if same.len() > most {
            (best, most) = (same[0], same.len());
        }
    }
    best
}

#[inline]
fn plausible(row: &RankWindow) -> bool {
    // Comparisons with NaN are false, and infinities are above MAX. Without branches.
    let not_negative = |value: f64| (0.0..=f64::MAX).contains(&value);
    let times = (row.own > 0.0)
        & (row.own >= row.wall * LEAST_SHARE)
        & (row.own <= row.wall * 1.001)
        & not_negative(row.wait)
        & not_negative(row.comm)
        & !((row.own_se < 0.0) | (row.own_se > f64::MAX));
    let unknown = row.flags & flag::OWN_UNKNOWN != 0;
    let steps = (row.flags & flag::STEPS_NOT_INFERRED != 0) | (row.steps > 0);
    let rank = (row.rank < row.world_size) & (row.world_size <= MAX_WORLD);
    let wall = (row.wall > 0.0) & (row.wall <= LONGEST);
    (times | unknown) & steps & rank & wall & not_negative(row.bytes) & (row.window < MAX_WINDOW)
}
