//! The rows of one window that can be judged, as figures.

/// Whose row can be judged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    /// Index into the window's rows.
    pub row: u32,
    /// Index into the job's ranks.
    pub slot: u32,
    /// Index into `Groups::groups`.
    pub group: u32,
    /// Confirmed to be slow already: then it says nothing about everybody.
    pub proven: bool,
    /// There is a finding; there ever was one.
    pub open: bool,
    pub named: bool,
    /// Its past does not count any more.
    pub anew: bool,
    /// Timed on CPUs, which it may share.
    pub host: bool,
}

/// One row that can be judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Member {
    pub place: Place,
    /// Of the row, ns.
    pub own: f64,
    /// Standard error of `own` that the row states, over that (ln); 0 where it states none.
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
}

/// The members by rank, apart by what reads them: fields of `Member`.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub places: Vec<Place>,
    pub owns: Vec<f64>,
    pub stated: Vec<f64>,
    pub values: Vec<f64>,
    pub excesses: Vec<f64>,
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
        self.places.clear();
        self.places.reserve_exact(most);
        (self.stating, self.known) = (0, 0);
        for figures in [&mut self.owns, &mut self.stated, &mut self.values, &mut self.excesses] {
            figures.clear();
            figures.reserve_exact(most);
        }
    }

    #[inline(always)]
    pub fn push(&mut self, member: &Member) {
        self.places.push(member.place);
        self.owns.push(member.own);
        self.stated.push(member.stated);
        self.values.push(member.value);
        self.excesses.push(member.excess);
        self.stating += usize::from(member.stated > 0.0);
        self.known += usize::from(member.is_known());
    }

    pub fn get(&self, number: usize) -> Member {
        Member {
            place: self.places[number],
            own: self.owns[number],
            stated: self.stated[number],
            value: self.values[number],
            excess: self.excesses[number],
            others: 0,
        }
    }
}
