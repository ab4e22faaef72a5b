//! Life of a finding: suspect, confirmed, recovering, cleared.

use super::{Config, State};

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

/// State of one finding that may or may not exist.
#[derive(Clone, Debug, Default)]
pub(super) struct Life {
    state: Option<State>,
    id: u64,
    calm: u32,
    since: (u64, u64),
}

impl Life {
    pub fn state(&self) -> Option<State> {
        self.state
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// First window of the slow run and its time.
    pub fn since(&self) -> (u64, u64) {
        self.since
    }

    /// Confirmed once, and not cleared yet.
    pub fn is_proven(&self) -> bool {
        matches!(self.state, Some(State::Confirmed | State::Recovering))
    }

    /// Takes one window. `since` is the estimated start of the slow run, which may still move
    /// while it is only suspected. True when there is a finding to show.
    pub fn advance(
        &mut self,
        evidence: Evidence,
        window: u64,
        since: (u64, u64),
        config: &Config,
        next_id: &mut u64,
    ) -> bool {
        let long_enough = window.saturating_sub(since.0) + 1 >= u64::from(config.confirm_windows);
        let slow = match evidence {
            Evidence::Strong if long_enough => State::Confirmed,
            _ => State::Suspect,
        };
        match (self.state, evidence) {
            (None | Some(State::Cleared), Evidence::Weak | Evidence::Strong) => {
                self.id = *next_id;
                *next_id += 1;
                self.state = Some(slow);
                self.since = since;
            }
            (None | Some(State::Cleared), _) => self.state = None,
            (Some(State::Suspect), Evidence::Weak | Evidence::Strong) => {
                self.state = Some(slow);
                self.since = since;
            }
            // A suspicion that came to nothing needs no farewell of three windows.
            (Some(State::Suspect), Evidence::Calm) => self.state = Some(State::Cleared),
            (Some(State::Suspect), Evidence::Open) => {}
            (Some(_), Evidence::Calm) => {
                self.calm += 1;
                let cleared = self.calm >= config.clear_windows;
                self.state = Some(if cleared { State::Cleared } else { State::Recovering });
            }
            (Some(_), Evidence::Open) => {}
            (Some(_), _) => self.state = Some(State::Confirmed),
        }
        if evidence >= Evidence::Weak || self.state == Some(State::Cleared) {
            self.calm = 0;
        }
        self.state.is_some()
    }

    /// Nothing can be said any more: the rank or the comparison is gone.
    pub fn end(&mut self) -> bool {
        let open = matches!(self.state, Some(s) if s != State::Cleared);
        self.state = open.then_some(State::Cleared);
        open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_needs_windows_to_come_and_to_go() {
        let (config, mut id) = (Config::default(), 1);
        let mut life = Life::default();
        let mut go = |evidence, window, since| {
            life.advance(evidence, window, (since, 0), &config, &mut id);
            life.state()
        };
        assert_eq!(go(Evidence::Calm, 0, 0), None);
        assert_eq!(go(Evidence::Strong, 1, 1), Some(State::Suspect), "one window proves nothing");
        assert_eq!(go(Evidence::Strong, 2, 1), Some(State::Confirmed));
        assert_eq!(go(Evidence::Calm, 3, 1), Some(State::Recovering));
        assert_eq!(go(Evidence::Open, 4, 1), Some(State::Recovering));
        assert_eq!(go(Evidence::Strong, 5, 1), Some(State::Confirmed));
        for window in 6..8 {
            assert_eq!(go(Evidence::Calm, window, 1), Some(State::Recovering));
        }
        assert_eq!(go(Evidence::Calm, 8, 1), Some(State::Cleared));
        assert_eq!(go(Evidence::Calm, 9, 1), None);
        assert_eq!(go(Evidence::Weak, 10, 10), Some(State::Suspect));
        assert_eq!(go(Evidence::Calm, 11, 10), Some(State::Cleared));
        assert_eq!(life.id(), 2);
    }
}
