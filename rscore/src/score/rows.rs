//! Rows that may be scored: a bad one is refused alone and changes nobody's verdict.

use crate::window::{flag, RankWindow};

/// Most ranks of one job.
const MAX_WORLD: u32 = 1 << 20;

/// Copies the rows that can be true into `accepted`, sorted by rank; returns how many cannot.
/// `last` is the job's last scored window.
pub(super) fn accept(
    rows: &[RankWindow],
    last: Option<u64>,
    accepted: &mut Vec<RankWindow>,
) -> u64 {
    accepted.clear();
    let later = |row: &&RankWindow| last.is_none_or(|last| row.window > last);
    let Some(window) = rows.iter().filter(|r| plausible(r)).find(later).map(|row| row.window)
    else {
        return rows.len() as u64;
    };
    accepted.extend(rows.iter().filter(|row| plausible(row) && row.window == window));
    accepted.sort_by_key(|row| row.rank);
    accepted.dedup_by_key(|row| row.rank);
    (rows.len() - accepted.len()) as u64
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
