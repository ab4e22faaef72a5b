//! Ranks of a job that issue the same sequence must cut it into the same steps.
//!
//! Where tokens do not show the step (buckets of one size), every rank decides from its own gaps.
//! One that decided unlike most of those with the same sequence looks again.

use std::collections::HashMap;

/// What one rank found: the job, its repeating sequence however often it is taken, its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vote {
    pub job: u64,
    pub base: u64,
    pub signature: u64,
}

/// Places of the votes that are outvoted: more than half of the job's ranks with the same
/// sequence agree on another step.
pub(crate) fn outvoted(votes: &[Vote]) -> Vec<usize> {
    let mut counts: HashMap<(u64, u64), HashMap<u64, usize>> = HashMap::new();
    for vote in votes {
        *counts.entry((vote.job, vote.base)).or_default().entry(vote.signature).or_default() += 1;
    }
    let loses = |vote: &Vote| {
        counts.get(&(vote.job, vote.base)).is_some_and(|group| {
            let all: usize = group.values().sum();
            group.iter().any(|(&signature, &n)| signature != vote.signature && 2 * n > all)
        })
    };
    (0..votes.len()).filter(|&place| loses(&votes[place])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vote(job: u64, base: u64, signature: u64) -> Vote {
        Vote { job, base, signature }
    }

    #[test]
    fn only_a_minority_of_the_same_job_and_sequence_is_outvoted() {
        let votes = [vote(1, 7, 2), vote(1, 7, 2), vote(1, 7, 4), vote(1, 8, 4), vote(2, 7, 4)];
        assert_eq!(outvoted(&votes), [2]);
    }

    #[test]
    fn a_tie_outvotes_nobody() {
        assert!(outvoted(&[vote(1, 7, 2), vote(1, 7, 4)]).is_empty());
    }
}
