//! What is kept of the ranks of a job, apart by when it is read: memory is what a window of many
//! ranks costs, and a quiet one reads nothing of `Cases`.

use std::collections::{BTreeSet, HashSet};
use std::ops::{Deref, DerefMut};

use super::block::{RankScore, Scores};
use super::case::Case;
use super::identities::Identities;
use super::members::Flags;
use super::{Finding, State};

/// What only a rank that is or was slow has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cases {
    pub case: Option<Box<Case>>,
    pub sometimes: Option<Box<Case>>,
    pub gross_since: (u64, u64),
    /// Of the windows since then: sum of their levels' shares of the limit, less one each.
    pub balance: f64,
    /// First of the tenths that are excursions.
    pub fast_since: (u64, u64),
    /// Window after the one in which it was confirmed to be slow the last time; 0: never.
    pub named: u64,
}

/// The cases of a rank, made when they are changed.
#[derive(Clone, Debug, Default)]
pub(super) struct Seldom(Option<Box<Cases>>);

static NO_CASES: Cases = Cases {
    case: None,
    sometimes: None,
    gross_since: (0, 0),
    balance: 0.0,
    fast_since: (0, 0),
    named: 0,
};

impl Seldom {
    pub fn take(&mut self) -> Cases {
        self.0.take().map(|cases| *cases).unwrap_or_default()
    }

    pub fn put(&mut self, cases: Cases) {
        self.0 = (cases != NO_CASES).then(|| Box::new(cases));
    }
}

impl Deref for Seldom {
    type Target = Cases;

    fn deref(&self) -> &Cases {
        self.0.as_deref().unwrap_or(&NO_CASES)
    }
}

impl DerefMut for Seldom {
    fn deref_mut(&mut self) -> &mut Cases {
        self.0.get_or_insert_default()
    }
}

/// The ranks of a job, by rank: tables in which a rank's place is its slot.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    pub numbers: Vec<u32>,
    /// The job's clock at the last row of each.
    pub seen: Vec<u32>,
    pub identities: Identities,
    /// What is said of each.
    pub flags: Vec<Flags>,
    /// Excursion of the last tenth of a window (ln), 0 when there was none.
    pub fast: Vec<f64>,
    pub scores: Scores,
    pub cases: Vec<Seldom>,
    /// Slots of those with a finding.
    open: BTreeSet<u32>,
    /// Windows of the job; only differences count.
    pub clock: u32,
}

/// One rank, to be changed.
pub(super) struct One<'a> {
    pub slot: u32,
    pub flags: &'a mut Flags,
    pub fast: &'a mut f64,
    pub score: RankScore,
    pub cases: &'a mut Seldom,
    open: &'a mut BTreeSet<u32>,
}

impl Cases {
    pub fn is_proven(&self) -> bool {
        self.case.as_ref().is_some_and(|case| case.is_proven())
    }

    /// Whether it was slow within the `recent` windows before `window`, and is not now.
    pub fn has_moved(&self, window: u64, recent: u64) -> bool {
        let slow = self.is_proven() || self.sometimes.is_some();
        self.named > 0 && window.saturating_sub(self.named - 1) < recent && !slow
    }

    /// The work that the job gives the rank, over its peers'; for its findings.
    pub fn tell_work(&mut self, work: f64) {
        for case in [&mut self.case, &mut self.sometimes].into_iter().flatten() {
            if let Some(finding) = &mut case.finding {
                finding.work = work;
            }
        }
    }
}

impl One<'_> {
    /// Forgets the past. Its findings end.
    pub fn renew(&mut self, farewells: &mut Vec<Finding>) {
        let Cases { case, sometimes, .. } = self.cases.take();
        for case in [case, sometimes].into_iter().flatten() {
            farewells.extend(case.finding.map(|f| Finding { state: State::Cleared, ..f }));
        }
        self.open.remove(&self.slot);
        (*self.flags, *self.fast) = (Flags::default(), 0.0);
        self.score = RankScore::default();
    }

    /// Writes into the flags what the rest says.
    pub fn tell(&mut self) {
        let (series, cases) = (&self.score.series, &**self.cases);
        self.score.usual = match &cases.case {
            Some(case) if case.is_proven() => series.anchor + case.base,
            _ if series.count() == 0 => f64::NAN,
            _ => series.anchor + series.center(),
        };
        let open = cases.case.is_some() || cases.sometimes.is_some();
        let was_open = self.flags.has(Flags::OPEN);
        *self.flags = Flags::PROVEN.when(cases.is_proven())
            | Flags::OPEN.when(open)
            | Flags::NAMED.when(cases.named > 0);
        if open == was_open {
            return;
        }
        if open {
            self.open.insert(self.slot);
        } else {
            self.open.remove(&self.slot);
        }
    }
}

impl Ranks {
    /// Changes one rank, by one window at most.
    pub fn change<T>(&mut self, slot: u32, how: impl FnOnce(&mut One<'_>) -> T) -> T {
        let place = slot as usize;
        let mut one = One {
            slot,
            flags: &mut self.flags[place],
            fast: &mut self.fast[place],
            score: self.scores.load(place),
            cases: &mut self.cases[place],
            open: &mut self.open,
        };
        let result = how(&mut one);
        self.scores.store_change(place, &one.score);
        result
    }

    /// Windows since the last row of a rank.
    pub fn missing(&self, slot: u32) -> u32 {
        self.clock.wrapping_sub(self.seen[slot as usize])
    }

    /// Slots of the ranks with a finding, in order.
    pub fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.iter().copied()
    }

    /// Makes room for so many more ranks and no more: they are large, and stay.
    pub fn reserve(&mut self, more: usize) {
        self.numbers.reserve_exact(more);
        self.seen.reserve_exact(more);
        self.identities.reserve(more);
        self.flags.reserve_exact(more);
        self.fast.reserve_exact(more);
        self.cases.reserve_exact(more);
        self.scores.reserve(self.numbers.len() + more);
    }

    /// A rank behind all that are known.
    pub fn push(&mut self, rank: u32) {
        self.numbers.push(rank);
        self.seen.push(self.clock);
        self.identities.push();
        self.flags.push(Flags::default());
        self.fast.push(0.0);
        self.cases.push(Seldom::default());
        self.scores.resize(self.numbers.len());
    }

    /// The places of `wanted`, which is in order; `u32::MAX` for who is not known.
    pub fn find(&self, wanted: &[u32], slots: &mut Vec<u32>) {
        slots.clear();
        if wanted == self.numbers {
            slots.extend(0..wanted.len() as u32);
            return;
        }
        let mut slot = 0;
        slots.extend(wanted.iter().map(|rank| {
            while self.numbers.get(slot).is_some_and(|number| number < rank) {
                slot += 1;
            }
            if self.numbers.get(slot) == Some(rank) {
                slot as u32
            } else {
                u32::MAX
            }
        }));
    }

    /// The same for some of them, from the place `next` on, which goes on: false, when one is not
    /// known.
    pub fn find_next(
        &self,
        wanted: impl Iterator<Item = u32>,
        next: &mut usize,
        slots: &mut Vec<u32>,
    ) -> bool {
        for rank in wanted {
            while self.numbers.get(*next).is_some_and(|number| *number < rank) {
                *next += 1;
            }
            if self.numbers.get(*next) != Some(&rank) {
                return false;
            }
            slots.push(*next as u32);
            *next += 1;
        }
        true
    }

    /// One window more, with rows of the ranks of these slots; of all ranks, where there are none.
    pub fn see(&mut self, slots: &[u32]) {
        self.clock = self.clock.wrapping_add(1);
        if slots.is_empty() {
            self.seen.fill(self.clock);
        }
        let (clock, seen) = (self.clock, &mut self.seen[..]);
        slots.iter().for_each(|slot| seen[*slot as usize] = clock);
    }

    /// Makes the ranks that are not known yet.
    pub fn add(&mut self, ranks: &[u32]) {
        let known: HashSet<u32> = self.numbers.iter().copied().collect();
        let new = || ranks.iter().filter(|rank| !known.contains(rank));
        self.reserve(new().count());
        new().for_each(|rank| self.push(*rank));
        if !self.numbers.is_sorted() {
            let mut order: Vec<u32> = (0..self.numbers.len() as u32).collect();
            order.sort_by_key(|slot| self.numbers[*slot as usize]);
            self.arrange(&order);
        }
    }

    /// Forgets the ranks that were missing for more windows than that.
    pub fn forget_missing(&mut self, windows: u32) {
        let here = |slot: &u32| self.missing(*slot) <= windows;
        let order: Vec<u32> = (0..self.numbers.len() as u32).filter(here).collect();
        if order.len() < self.numbers.len() {
            self.arrange(&order);
        }
    }

    /// Keeps the ranks of these slots, in this order.
    fn arrange(&mut self, order: &[u32]) {
        fn pick<T: Default>(all: &mut Vec<T>, order: &[u32]) {
            let taken = order.iter().map(|slot| std::mem::take(&mut all[*slot as usize]));
            *all = taken.collect();
        }
        pick(&mut self.numbers, order);
        pick(&mut self.seen, order);
        pick(&mut self.identities.of, order);
        pick(&mut self.identities.last_steps, order);
        pick(&mut self.flags, order);
        pick(&mut self.fast, order);
        pick(&mut self.cases, order);
        let old = std::mem::take(&mut self.scores);
        self.scores.reserve(order.len());
        self.scores.resize(order.len());
        for (slot, from) in order.iter().enumerate() {
            self.scores.store(slot, &old.load(*from as usize));
        }
        let slots = (0..).zip(&self.flags).filter(|(_, flags)| flags.has(Flags::OPEN));
        self.open = slots.map(|(slot, _)| slot).collect();
    }
}
