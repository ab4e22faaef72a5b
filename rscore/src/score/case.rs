//! Life of a finding: suspect, confirmed, recovering, cleared.

use super::{Config, Finding, State};

/// Log likelihood ratio of "as before" against "still slow" that ends a finding: a slow rank is
/// declared well once in about exp(11) windows.
const CLEAR: f64 = 11.0;
/// The same, for the state `recovering`.
const DOUBT: f64 = 4.0;
/// Windows over which the size of a slowdown is averaged.
pub(super) const MEMORY: u32 = 16;
/// Most that one window says about recovery.
const CLIP: f64 = 8.0;
/// Deviations of the least slowdown that counts as still slow: at half of it noise is rare.
const LASTS: f64 = 5.0;

/// How a window speaks for a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Evidence {
    /// As usual.
    Calm,
    /// Neither for nor against.
    Open,
    /// Slow, not yet proven.
    Weak,
    /// Proven.
    Strong,
}

/// What proved a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// A change against the rank's own past.
    Change,
    /// The level above the peers, which show what is usual.
    Level,
    /// The fast lane.
    Fast,
}

/// A finding that is open.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Case {
    pub id: u64,
    pub state: State,
    /// Number and begin of the first slow window.
    pub since: (u64, u64),
    pub quiet: u32,
    pub how: How,
    /// What was usual, relative to the series' anchor.
    pub base: f64,
    pub shift: f64,
    pub windows: u32,
    pub recovery: f64,
    /// Largest deviate so far, in standard deviations.
    pub deviate: f64,
    pub finding: Option<Finding>,
}

impl Case {
    pub fn new(id: u64, state: State, since: (u64, u64)) -> Case {
        Case {
            id,
            state,
            since,
            quiet: 0,
            how: How::Change,
            base: 0.0,
            shift: 0.0,
            windows: 0,
            recovery: 0.0,
            deviate: 0.0,
            finding: None,
        }
    }

    /// Confirmed once, and not cleared yet.
    pub fn is_proven(&self) -> bool {
        matches!(self.state, State::Confirmed | State::Recovering)
    }

    /// One window of a proven case: a sequential test of recovery (Wald 1947). `value` is relative
    /// to `base`; `limit` is the least unnatural level, which counts for a case that never had a
    /// past.
    pub fn follow(&mut self, value: f64, deviation: f64, limit: f64, config: &Config) {
        let mut least = self.shift.min((LASTS * deviation).max(self.shift / 4.0));
        if self.how == How::Level {
            least = least.max(self.shift.min(limit));
        }
        let middle = least / 2.0;
        self.windows = (self.windows + 1).min(MEMORY);
        if value >= middle {
            self.shift += (value - self.shift) / f64::from(self.windows);
        }
        let term = (least / deviation) * ((middle - value) / deviation);
        self.recovery = (self.recovery + term.clamp(-CLIP, CLIP)).max(0.0);
        if self.recovery == 0.0 {
            self.quiet = 0;
            self.state = State::Confirmed;
            return;
        }
        self.quiet += 1;
        if self.recovery >= CLEAR && self.quiet >= config.clear_windows {
            self.state = State::Cleared;
        } else if self.recovery >= DOUBT {
            self.state = State::Recovering;
        }
    }

    /// One window of a proven case that is counted only.
    pub fn count(&mut self, evidence: Evidence, config: &Config) {
        if evidence >= Evidence::Weak {
            self.quiet = 0;
            self.state = State::Confirmed;
        } else if evidence == Evidence::Calm {
            self.quiet += 1;
            let over = self.quiet >= config.clear_windows;
            self.state = if over { State::Cleared } else { State::Recovering };
        }
    }
}

/// One window of what is not proven yet. A new case takes `next_id`.
pub(super) fn suspect(
    slot: &mut Option<Box<Case>>,
    evidence: Evidence,
    window: u64,
    since: (u64, u64),
    config: &Config,
    next_id: &mut u64,
) {
    if evidence >= Evidence::Weak {
        let case = slot.get_or_insert_with(|| {
            let id = *next_id;
            *next_id += 1;
            Box::new(Case::new(id, State::Suspect, since))
        });
        let long_enough = window.saturating_sub(since.0) + 1 >= u64::from(config.confirm_windows);
        case.since = since;
        let proven = evidence == Evidence::Strong && long_enough;
        case.state = if proven { State::Confirmed } else { State::Suspect };
    } else if let (Some(case), true) = (slot, evidence == Evidence::Calm) {
        case.state = State::Cleared;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_suspected_confirmed_doubted_and_cleared() {
        let (config, mut id, mut slot) = (Config::default(), 1, None);
        suspect(&mut slot, Evidence::Calm, 0, (0, 0), &config, &mut id);
        assert_eq!(slot, None);
        suspect(&mut slot, Evidence::Strong, 1, (1, 0), &config, &mut id);
        assert_eq!(
            slot.as_ref().map(|c| c.state),
            Some(State::Suspect),
            "one window proves nothing"
        );
        suspect(&mut slot, Evidence::Strong, 2, (1, 0), &config, &mut id);
        let case = slot.as_mut().expect("a case");
        assert!(case.is_proven());
        case.shift = 0.02;
        let mut states = Vec::new();
        // Slow, one window as before, slow again, and then as before.
        for value in [0.021, 0.0, 0.022, 0.02, 0.0, 0.001, -0.001] {
            case.follow(value, 0.005, 0.1, &config);
            states.push(case.state);
        }
        use State::{Cleared, Confirmed, Recovering};
        let (yes, doubt) = (Confirmed, Recovering);
        assert_eq!(states, [yes, doubt, yes, yes, doubt, doubt, Cleared]);
        assert!((case.shift - 0.02).abs() < 0.001);
    }

    #[test]
    fn a_suspicion_that_came_to_nothing_is_over_at_once() {
        let (config, mut id, mut slot) = (Config::default(), 7, None);
        suspect(&mut slot, Evidence::Weak, 1, (1, 0), &config, &mut id);
        suspect(&mut slot, Evidence::Open, 2, (1, 0), &config, &mut id);
        assert_eq!(slot.as_ref().map(|c| (c.id, c.state)), Some((7, State::Suspect)));
        suspect(&mut slot, Evidence::Calm, 3, (1, 0), &config, &mut id);
        assert_eq!(slot.map(|c| c.state), Some(State::Cleared));
        assert_eq!(id, 8);
    }
}
