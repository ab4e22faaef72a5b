//! A job that was started anew goes on with what was learnt of its ranks.

use super::block::RankScore;
use super::case::How;
use super::identities::Identity;
use super::scan::Ceiling;
use super::{Scorer, MAX_JOBS};

impl Scorer {
    /// Ranks of job `to` that have no past take over that of the same ranks of job `from`, for
    /// when they run where they ran; how many there were. Findings, and which windows were
    /// slow, stay with the job that was. The text is `stragd/scoring/reference.py`.
    pub fn inherit(&mut self, from: u64, to: u64, ranks: &[u32]) -> usize {
        let room = self.jobs.contains_key(&to) || self.jobs.len() < MAX_JOBS;
        let Some(old) = self.jobs.get(&from).filter(|_| room && from != to) else { return 0 };
        let mut wanted = ranks.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let known = self.jobs.get(&to);
        let new =
            |rank: &u32| known.is_none_or(|job| job.ranks.numbers.binary_search(rank).is_err());
        let taken: Vec<(u32, Identity, RankScore)> = wanted
            .into_iter()
            .filter(new)
            .filter_map(|rank| {
                let slot = old.ranks.numbers.binary_search(&rank).ok()?;
                let case = &old.ranks.cases[slot].case;
                if case.as_ref().is_some_and(|case| case.is_proven() && case.how == How::Level) {
                    return None; // its past is slow too
                }
                let score = old.ranks.scores.load(slot).without_windows();
                (score.series.count() > 0).then(|| (rank, *old.ranks.identities.get(slot), score))
            })
            .collect();
        if taken.is_empty() {
            return 0;
        }
        let job = self.jobs.entry(to).or_default();
        job.last_call = self.calls;
        let numbers: Vec<u32> = taken.iter().map(|(rank, ..)| *rank).collect();
        job.ranks.add(&numbers);
        for (rank, identity, score) in &taken {
            let Ok(slot) = job.ranks.numbers.binary_search(rank) else { continue };
            job.ranks.identities.set(slot, *identity);
            job.ranks.scores.store(slot, score);
        }
        taken.len()
    }
}

impl RankScore {
    /// What it says of a rank, and nothing of the windows that it was learnt in.
    fn without_windows(self) -> RankScore {
        let usual = match self.series.count() {
            0 => f64::NAN,
            _ => self.series.anchor + self.series.center(),
        };
        RankScore { present: 0, high: 0, gross: 0, usual, ceiling: Ceiling::UNKNOWN, ..self }
    }
}
