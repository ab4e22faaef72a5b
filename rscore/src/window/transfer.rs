//! Transfer time of a step: what its collectives cost once every rank is there.
//!
//! Two bounds from above, of which the smaller one counts. The shortest duration among the ranks
//! at every place of the step, added up: exact where the ranks are late in different collectives,
//! too long where collectives overlap. And the shortest busy time of each step: in a synchronous
//! job the rank that everybody waits for has hardly any wait in it, also where noise makes it
//! another rank in every step, which no mean over a rank's steps can show.

use super::mean::trimmed;

/// Steps of one rank in one window.
#[derive(Debug)]
pub(crate) struct RankSteps {
    /// (end, busy) of every step, ns, oldest first.
    pub steps: Vec<(u64, u64)>,
    /// Mean wall time of a step, ns.
    pub wall: f64,
    /// Mean duration of the collective at each place of the step, ns.
    pub durations: Vec<f64>,
}

/// Transfer time per step of ranks with one signature, ns.
pub(crate) fn transfer(ranks: &[RankSteps]) -> f64 {
    shortest_collectives(ranks).min(shortest_busy(ranks))
}

fn shortest_collectives(ranks: &[RankSteps]) -> f64 {
    let places = ranks.iter().map(|rank| rank.durations.len()).max().unwrap_or(0);
    let shortest = |place: usize| {
        ranks.iter().filter_map(|rank| rank.durations.get(place)).copied().reduce(f64::min)
    };
    (0..places).filter_map(shortest).sum()
}

/// Trimmed mean over the steps of the shortest busy time among the ranks. A collective ends nearly
/// at once everywhere, so steps belong together whose ends are closer than half a step.
fn shortest_busy(ranks: &[RankSteps]) -> f64 {
    let Some(reference) = ranks.iter().min_by_key(|rank| rank.steps.len()) else {
        return f64::INFINITY;
    };
    let reach = (reference.wall / 2.0) as u64;
    let mut places = vec![0usize; ranks.len()];
    let mut shortest = Vec::with_capacity(reference.steps.len());
    for &(end, busy) in &reference.steps {
        let mut least = busy;
        for (rank, place) in ranks.iter().zip(&mut places) {
            let distance = |place: usize| rank.steps.get(place).map(|s| s.0.abs_diff(end));
            while distance(*place + 1).is_some_and(|next| Some(next) <= distance(*place)) {
                *place += 1;
            }
            if distance(*place).is_some_and(|here| here <= reach) {
                least = least.min(rank.steps[*place].1);
            }
        }
        shortest.push(least as f64);
    }
    let mean = trimmed(&mut shortest).mean;
    if mean.is_nan() {
        f64::INFINITY
    } else {
        mean
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(steps: &[(u64, u64)], durations: &[f64]) -> RankSteps {
        RankSteps { steps: steps.to_vec(), wall: 100.0, durations: durations.to_vec() }
    }

    #[test]
    fn overlapping_collectives_count_once() {
        // Two collectives of 10 that run side by side: the slow rank is busy for 12 only.
        let slow = rank(&[(100, 12), (200, 12)], &[10.0, 10.0]);
        let fast = rank(&[(101, 30), (201, 30)], &[28.0, 29.0]);
        assert_eq!(transfer(&[fast, slow]), 12.0);
    }

    #[test]
    fn ranks_that_are_late_in_turn_do_not_hide_their_waits() {
        // Every second step the other one is late: the means are equal, the transfer is 5.
        let one = rank(&[(100, 5), (200, 25), (300, 5), (400, 25)], &[15.0]);
        let two = rank(&[(100, 25), (200, 5), (300, 25), (400, 5)], &[15.0]);
        assert_eq!(transfer(&[one, two]), 5.0);
    }

    #[test]
    fn late_in_different_collectives_of_a_step() {
        let one = rank(&[(100, 22), (200, 22)], &[2.0, 20.0]);
        let two = rank(&[(100, 22), (200, 22)], &[20.0, 2.0]);
        assert_eq!(transfer(&[one, two]), 4.0);
    }

    #[test]
    fn steps_are_matched_by_their_ends() {
        // The second rank's window begins one step later and has one step too many at its end.
        let one = rank(&[(100, 3), (200, 30), (300, 40)], &[1e9]);
        let two = rank(&[(203, 20), (301, 20), (402, 1), (503, 1)], &[1e9]);
        assert_eq!(transfer(&[one, two]), (3.0 + 20.0 + 20.0) / 3.0);
        assert_eq!(transfer(&[]), 0.0);
    }
}
