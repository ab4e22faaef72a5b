//! What a rank is compared with: medians of what happened to others.

use super::members::{Flags, Member, Members};
use super::middle::{Middle, Near};

/// Ranks that a reference is taken of: those that are known, and of them the healthy ones.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pool {
    pub known: Middle,
    pub healthy: Middle,
}

impl Pool {
    /// Leaves the excesses of the healthy in `healthy`. Whether any member is `slow` already.
    pub fn of(
        members: &Members,
        numbers: impl Iterator<Item = usize> + Clone,
        slow: bool,
        healthy: &mut Vec<f64>,
        scratch: &mut Vec<f64>,
        near: &mut Near,
    ) -> Pool {
        let Members { flags, excesses, .. } = members;
        let known = |excess: &f64| !excess.is_nan();
        healthy.clear();
        if !slow {
            healthy.extend(numbers.map(|number| excesses[number]).filter(known));
            return Pool::of_healthy(healthy, near);
        }
        let fast = numbers.clone().filter(|number| !flags[*number].has(Flags::PROVEN));
        healthy.extend(fast.map(|number| excesses[number]).filter(known));
        scratch.clear();
        scratch.extend(numbers.map(|number| excesses[number]).filter(known));
        Pool { known: Middle::of(scratch, near), healthy: Middle::of(healthy, near) }
    }

    /// Of nobody else.
    pub fn of_healthy(excesses: &[f64], near: &mut Near) -> Pool {
        let middle = Middle::of(excesses, near);
        Pool { known: middle, healthy: middle }
    }

    /// Median of the healthy others' excess, of all others' where there is no healthy one.
    pub fn reference(&self, member: &Member) -> f64 {
        let among = member.is_known() && !member.is_proven();
        if self.healthy.count > usize::from(among) {
            return match among {
                true => self.healthy.median_without(member.excess),
                false => self.healthy.median(),
            };
        }
        let itself = member.is_known();
        if self.known.count > usize::from(itself) {
            return match itself {
                true => self.known.median_without(member.excess),
                false => self.known.median(),
            };
        }
        0.0
    }
}
