//! Follows the sequence of one process: searches a period, then checks every collective.

use super::kinds::{KindId, Kinds};
use super::pattern::Pattern;
use super::period::{find, HISTORY, MIN_COLLECTIVES, SHORT_PERIOD};

/// Collectives without a period, after which sizes are left out of the comparison.
const COARSE_AFTER: usize = 512;
/// A short period may be a part of a step, so it waits for more collectives or time.
const SHORT_PERIOD_COLLECTIVES: usize = 64;
const SHORT_PERIOD_NS: u64 = 20_000_000_000;
/// Fewest collectives over which the irregular ones are weighed.
const MIN_SCOPE: u32 = 64;
/// Steps that began with too short a gap, one after another, until the place is looked for anew.
const MAX_SHORT_GAPS: u8 = 3;
/// Steps after a lock that are not counted.
const WARM_UP: u32 = 3;

/// What one collective meant for the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// First collective of a step.
    pub first: bool,
    /// Last collective of a step.
    pub last: bool,
    /// With `last`: the step counts.
    pub regular: bool,
    /// Collectives that now turn out to belong to no step.
    pub irregular: u32,
    /// Place in the step.
    pub index: usize,
    /// The pattern is new, or was given up.
    pub changed: bool,
}

/// State of one process's sequence.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    tokens: Vec<KindId>,
    gaps: Vec<u32>,
    /// The latest collective.
    last: KindId,
    first_ns: u64,
    /// Length of `tokens` at which to look again; `usize::MAX` once it is never needed.
    next_search: usize,
    pattern: Option<Pattern>,
    index: usize,
    /// The step under way does not count.
    dirty: bool,
    /// A step broke off in the middle; what follows up to the next whole one is its rest.
    broken_off: bool,
    /// Hidden steps: the next step starts at a long gap, and not before.
    lost_place: bool,
    short_gaps: u8,
    warm_up: u32,
    scope: u32,
    scope_irregular: u32,
}

impl Tracker {
    /// Pattern in force.
    pub fn pattern(&self) -> Option<&Pattern> {
        self.pattern.as_ref()
    }

    /// Collectives since the search began.
    pub fn searched(&self) -> usize {
        self.tokens.len()
    }

    /// Time of the first collective of the search, ns; 0 before it.
    pub fn searched_since_ns(&self) -> u64 {
        self.first_ns
    }

    /// Kind that comes next if the step goes on as expected.
    #[inline]
    pub fn expected(&self) -> Option<KindId> {
        let pattern = self.pattern.as_ref()?;
        // A coarse pattern holds kinds that no collective has: the latest size is a better guess.
        if pattern.coarse {
            return Some(self.last);
        }
        pattern.tokens.get(self.index).copied()
    }

    /// Place in the step of the next collective if it goes on as expected.
    pub fn next_place(&self) -> Option<usize> {
        self.pattern.as_ref().map(|_| self.index)
    }

    /// Takes the next collective: its kind, the own time before it (ns), when, and whether its
    /// times are worth nothing.
    #[inline]
    pub fn push(
        &mut self,
        kind: KindId,
        gap_ns: u64,
        time_ns: u64,
        broken: bool,
        kinds: &Kinds,
    ) -> Place {
        let gap = u32::try_from(gap_ns).unwrap_or(u32::MAX);
        self.last = kind;
        // What no search will look at is not kept.
        if self.next_search != usize::MAX {
            self.remember(kind, gap, time_ns);
        }
        let mut place = match self.pattern {
            Some(_) => self.follow(kind, gap, broken, kinds),
            None => Place::default(),
        };
        if self.tokens.len() >= self.next_search {
            place.changed |= self.search(time_ns, kinds);
        }
        place
    }

    fn remember(&mut self, kind: KindId, gap: u32, time_ns: u64) {
        if self.tokens.len() >= 2 * HISTORY {
            self.tokens.drain(..HISTORY);
            self.gaps.drain(..HISTORY);
        }
        if self.tokens.is_empty() {
            self.first_ns = time_ns;
        }
        self.tokens.push(kind);
        self.gaps.push(gap);
    }

    #[inline]
    fn follow(&mut self, kind: KindId, gap: u32, broken: bool, kinds: &Kinds) -> Place {
        let Some(pattern) = &self.pattern else { return Place::default() };
        let token = if pattern.coarse { kinds.get(kind).coarse } else { kind };
        self.scope += 1;
        let mut place = Place::default();
        let begins = match pattern.step_gap {
            Some(least) if self.index == 0 => {
                let long = gap >= least;
                self.short_gaps = if long { 0 } else { self.short_gaps.saturating_add(1) };
                self.lost_place |= self.short_gaps >= MAX_SHORT_GAPS;
                long || !self.lost_place
            }
            _ => true,
        };
        if begins && pattern.tokens[self.index] == token {
            self.lost_place = false;
            place.first = self.index == 0;
            place.index = self.index;
            self.dirty |= broken;
            self.index += 1;
        } else {
            place.irregular = self.mismatch(token);
            place.first = self.index == 1;
            self.dirty |= broken;
        }
        let len = self.pattern.as_ref().map_or(1, Pattern::len);
        if self.index == len {
            self.index = 0;
            place.last = true;
            place.regular = !self.dirty && self.warm_up == 0;
            self.broken_off = false;
            if self.dirty && self.warm_up == 0 {
                place.irregular += len as u32;
            }
            self.warm_up = self.warm_up.saturating_sub(1);
            self.dirty = false;
        }
        self.scope_irregular += place.irregular;
        if self.scope >= MIN_SCOPE.max(8 * len as u32) {
            place.changed = self.weigh();
        }
        place
    }

    /// An unexpected collective: goes back to the longest part of the pattern that still fits.
    #[cold]
    fn mismatch(&mut self, token: KindId) -> u32 {
        let Some(pattern) = &self.pattern else { return 1 };
        let before = self.index;
        if pattern.step_gap.is_some() {
            self.lost_place = true;
            self.index = 0;
        } else {
            while self.index > 0 && pattern.tokens[self.index] != token {
                self.index = usize::from(pattern.borders[self.index]);
            }
            if pattern.tokens[self.index] == token {
                self.index += 1;
            }
        }
        // Between two steps it spoils the next one. Within a step only that one is lost, unless
        // the next began somewhere in it, at a time that nobody noted.
        self.broken_off |= before > 0;
        self.dirty = !self.broken_off || self.index > 1;
        (before + 1 - self.index.min(before + 1)) as u32
    }

    /// Gives the pattern up when more than half of the collectives do not fit.
    #[cold]
    fn weigh(&mut self) -> bool {
        let lost = 2 * self.scope_irregular > self.scope;
        self.scope /= 2;
        self.scope_irregular /= 2;
        if lost {
            self.reset();
        }
        lost
    }

    /// Forgets everything and searches anew.
    pub fn reset(&mut self) {
        self.tokens.clear();
        self.gaps.clear();
        self.pattern = None;
        self.next_search = MIN_COLLECTIVES;
        self.scope = 0;
        self.scope_irregular = 0;
    }

    /// Looks for a period; lengths grow by a quarter, under a pattern by half as a second
    /// look, so that a collective pays for a constant number of looks.
    #[cold]
    fn search(&mut self, time_ns: u64, kinds: &Kinds) -> bool {
        let n = self.tokens.len();
        self.next_search = match self.pattern {
            _ if n < MIN_COLLECTIVES => MIN_COLLECTIVES,
            None if n < HISTORY => n + n / 4 + 1,
            Some(_) if n < HISTORY => n + n / 2,
            // Full length: the second half of the buffer is the next chance.
            None => n.min(HISTORY + HISTORY / 2) + HISTORY / 2,
            Some(_) => usize::MAX,
        };
        if n < MIN_COLLECTIVES {
            return false;
        }
        // A second look may only find that a step is longer than was thought.
        let known = self.pattern.as_ref().map(|pattern| pattern.tokens.as_slice());
        let mut coarse = self.pattern.as_ref().is_some_and(|pattern| pattern.coarse);
        let mut coarse_tokens = Vec::new();
        let mut found = None;
        if !coarse {
            found = find(&self.tokens, &self.gaps, known);
        }
        if coarse || found.is_none() && known.is_none() && n >= COARSE_AFTER {
            coarse = true;
            coarse_tokens = self.tokens.iter().map(|&token| kinds.get(token).coarse).collect();
            found = find(&coarse_tokens, &self.gaps, known);
        }
        let Some(period) = found else { return false };
        let early =
            n < SHORT_PERIOD_COLLECTIVES && time_ns.saturating_sub(self.first_ns) < SHORT_PERIOD_NS;
        if known.is_none() && period.len <= SHORT_PERIOD && early {
            return false;
        }
        let tokens = if coarse { &coarse_tokens } else { &self.tokens };
        let (pattern, done) = Pattern::cut(tokens, &self.gaps, period, kinds, coarse);
        self.pattern = Some(pattern);
        self.index = done;
        self.dirty = true;
        self.lost_place = false;
        self.short_gaps = 0;
        self.warm_up = WARM_UP;
        self.scope = 0;
        self.scope_irregular = 0;
        true
    }
}
