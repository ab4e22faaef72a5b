//! Rows that may be scored: a bad one is refused alone and changes nobody's verdict.

use crate::window::{flag, RankWindow};

/// Most ranks of one job.
pub(super) const MAX_WORLD: u32 = 1 << 20;
const MAX_WINDOW: u64 = 1 << 63;
/// Least own time over wall, and longest wall, whose logarithms can be computed with.
const LEAST_SHARE: f64 = 1e-12;
const LONGEST: f64 = 1e200;

/// Puts the places of the rows that may be scored into `accepted`, one of each rank, by rank: those
/// of the window that most of the plausible rows name. `last` and `last_tenth` are the job's last
/// scored window and tenth of one; nothing up to them is accepted again.
pub(super) fn accept(
    rows: &[RankWindow],
    last: Option<u64>,
    last_tenth: Option<u64>,
    accepted: &mut Vec<u32>,
) {
    accepted.clear();
    let good = |row: &RankWindow| {
        let last = if row.flags & flag::TENTH == 0 { last } else { last_tenth };
        plausible(row) && last.is_none_or(|last| row.window > last)
    };
    accepted.extend((0..rows.len() as u32).filter(|&place| good(&rows[place as usize])));
    let row = |place: &u32| &rows[*place as usize];
    let of = |place: &u32| (row(place).flags & flag::TENTH, row(place).window);
    let Some(first) = accepted.first().map(of) else { return };
    if accepted.iter().any(|place| of(place) != first) {
        let most = most_named(accepted.iter().map(of).collect());
        accepted.retain(|place| of(place) == most);
    }
    if !accepted.is_sorted_by(|a, b| row(a).rank < row(b).rank) {
        // Stable: the first row of a rank counts.
        accepted.sort_by_key(|place| row(place).rank);
        accepted.dedup_by_key(|place| row(place).rank);
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

fn plausible(row: &RankWindow) -> bool {
    let positive = |value: f64| value.is_finite() && value > 0.0;
    let not_negative = |value: f64| value.is_finite() && value >= 0.0;
    let own_known = row.flags & flag::OWN_UNKNOWN == 0;
    let times = !own_known
        || positive(row.own)
            && row.own >= row.wall * LEAST_SHARE
            && row.own <= row.wall * 1.001
            && not_negative(row.wait)
            && not_negative(row.comm)
            && (row.own_se.is_nan() || not_negative(row.own_se));
    let steps = row.flags & flag::STEPS_NOT_INFERRED != 0 || row.steps > 0;
    let rank = row.rank < row.world_size && row.world_size <= MAX_WORLD;
    let wall = positive(row.wall) && row.wall <= LONGEST;
    times && steps && rank && wall && not_negative(row.bytes) && row.window < MAX_WINDOW
}
