//! The rows of one window that can be judged, as figures.

use std::ops::BitOr;

/// Whose row can be judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Index into the window's rows.
    pub row: u32,
    /// Index into the job's ranks.
    pub slot: u32,
    /// Index into `Groups::groups`.
    pub group: u32,
}

/// What is said of a member, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    /// Confirmed to be slow already: then it says nothing about everybody.
    pub const PROVEN: Flags = Flags(1);
    /// There is a finding.
    pub const OPEN: Flags = Flags(2);
    /// There ever was one.
    pub const NAMED: Flags = Flags(4);
    /// Its past does not count any more.
    pub const ANEW: Flags = Flags(8);
    /// Timed on CPUs, which it may share.
    pub const HOST: Flags = Flags(16);

    /// Itself where something holds, else nothing.
    #[inline(always)]
    pub fn when(self, holds: bool) -> Flags {
        Flags(self.0 * u8::from(holds))
    }

    pub fn has(self, flag: Flags) -> bool {
        self.0 & flag.0 != 0
    }
}

impl BitOr for Flags {
    type Output = Flags;

    fn bitor(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}

/// One row that can be judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub place: Place,
    pub flags: Flags,
    /// Standard error of the own time that the row states, over that (ln); 0 where it states none.
    pub stated: f64,
    /// ln of own time; of its share of wall where steps are not inferred.
    pub value: f64,
    /// Value over the rank's own past; NaN while it has none.
    pub excess: f64,
    /// How many others there are to compare with. Of a copy by `Groups::member`.
    pub others: u32,
}

impl Member {
    pub fn is_known(&self) -> bool {
        !self.excess.is_nan()
    }

    pub fn is_proven(&self) -> bool {
        self.flags.has(Flags::PROVEN)
    }
}

/// The members by rank, apart by what reads them: fields of `Member`.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub places: Vec<Place>,
    pub flags: Vec<Flags>,
    pub stated: Vec<f64>,
    pub values: Vec<f64>,
    pub excesses: Vec<f64>,
    /// Of the rows.
    pub last_steps: Vec<u64>,
    /// All flags that one of them has.
    pub any: Flags,
    /// How many of `stated` are above 0, and of `excesses` a number.
    pub stating: usize,
    pub known: usize,
}

impl Members {
    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// No members, and room for so many.
    pub fn start(&mut self, most: usize) {
        fn start<T>(all: &mut Vec<T>, most: usize) {
            all.clear();
            all.reserve_exact(most);
        }
        start(&mut self.places, most);
        start(&mut self.flags, most);
        start(&mut self.stated, most);
        start(&mut self.values, most);
        start(&mut self.excesses, most);
        start(&mut self.last_steps, most);
        (self.any, self.stating, self.known) = (Flags::default(), 0, 0);
    }

    pub fn get(&self, number: usize) -> Member {
        Member {
            place: self.places[number],
            flags: self.flags[number],
            stated: self.stated[number],
            value: self.values[number],
            excess: self.excesses[number],
            others: 0,
        }
    }
}
