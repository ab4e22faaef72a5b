//! Rows that may be scored: a bad one is refused alone and changes nobody's verdict.

use crate::window::{flag, RankWindow};

/// Most ranks of one job.
pub(super) const MAX_WORLD: u32 = 1 << 20;

/// Puts the places of the rows that may be scored into `accepted`, one of each rank, by rank: those
/// of the window that most of the plausible rows name. `last` is the job's last scored window;
/// nothing up to it is accepted again.
pub(super) fn accept(rows: &[RankWindow], last: Option<u64>, accepted: &mut Vec<u32>) {
    accepted.clear();
    let good = |row: &RankWindow| plausible(row) && last.is_none_or(|last| row.window > last);
    accepted.extend((0..rows.len() as u32).filter(|&place| good(&rows[place as usize])));
    let row = |place: &u32| &rows[*place as usize];
    let Some(first) = accepted.first().map(|place| row(place).window) else { return };
    if accepted.iter().any(|place| row(place).window != first) {
        let window = most_named(accepted.iter().map(|place| row(place).window).collect());
        accepted.retain(|place| row(place).window == window);
    }
    // Stable: the first row of a rank counts.
    accepted.sort_by_key(|place| row(place).rank);
    accepted.dedup_by_key(|place| row(place).rank);
}

/// The number that occurs most often, the smallest of several.
fn most_named(mut windows: Vec<u64>) -> u64 {
    windows.sort_unstable();
    let (mut best, mut most) = (0, 0);
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
            && row.own <= row.wall * 1.001
            && not_negative(row.wait)
            && not_negative(row.comm)
            && (row.own_se.is_nan() || not_negative(row.own_se));
    let steps = row.flags & flag::STEPS_NOT_INFERRED != 0 || row.steps > 0;
    let rank = row.rank < row.world_size && row.world_size <= MAX_WORLD;
    times && steps && rank && positive(row.wall)
}
