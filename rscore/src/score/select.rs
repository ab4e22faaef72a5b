//! Which rows of a window can be judged, and their figures. Rows are long, and a window of a large
//! job has many: some are looked at together, while they are near.

use super::block::fetch;
use super::fast;
use super::groups::{key, Groups, Key};
use super::identities::{Identities, Identity};
use super::members::{Flags, Place};
use super::ranks::Ranks;
use super::rows::Accepted;
use super::{reason, Abstention};
use crate::window::{flag, source, RankWindow};

/// Rows that are looked at together: the nearest cache holds them.
pub(super) const TILE: usize = 64;
/// Steps of a rank may differ from the others' by this share, or by `STEPS_SLACK`.
const STEPS_SHARE: f64 = 0.2;
const STEPS_SLACK: f64 = 3.0;

/// What rows are held against.
pub(super) struct Base<'a> {
    pub rows: &'a [RankWindow],
    pub ranks: &'a Ranks,
    /// Median of the steps.
    pub usual_steps: f64,
    /// Whether they are of tenths of a window.
    pub tenth: bool,
}

/// Of a row of which nothing can be said, or which is closed early.
const ODD: u32 = flag::OWN_UNKNOWN | flag::EVENTS_LOST | flag::PARTIAL;

impl Base<'_> {
    /// Whether a row can be judged; says why not where that is due.
    fn can_judge(&self, (place, slot): (u32, u32), abstentions: &mut Vec<Abstention>) -> bool {
        let row = &self.rows[place as usize];
        if row.flags & ODD == 0 && f64::from(row.steps) == self.usual_steps && !self.tenth {
            return true;
        }
        if let Some(reason) = self.reason(row) {
            let RankWindow { job, rank, window, .. } = *row;
            abstentions.push(Abstention { job, rank, window, reason });
            return false;
        }
        row.flags & flag::PARTIAL == 0 && (!self.tenth || fast::can_judge(row, slot, self.ranks))
    }

    /// Why nothing can be said of a row.
    fn reason(&self, row: &RankWindow) -> Option<&'static str> {
        if row.flags & flag::OWN_UNKNOWN != 0 {
            return Some(reason::HOST_PROBES);
        }
        if row.flags & flag::EVENTS_LOST != 0 {
            return Some(reason::EVENTS_LOST);
        }
        let off = (f64::from(row.steps) - self.usual_steps).abs();
        let whole = row.steps > 0 && row.flags & flag::PARTIAL == 0;
        let disagrees = whole && off > (STEPS_SHARE * self.usual_steps).max(STEPS_SLACK);
        disagrees.then_some(reason::STEPS_DISAGREE)
    }
}

/// Has memory of the row that is due a tile later brought near.
#[inline(always)]
fn fetch_next<T>(row: &RankWindow, field: impl Fn(&RankWindow) -> &T) {
    fetch(std::ptr::from_ref(field(row)).wrapping_byte_add(TILE * size_of::<RankWindow>()));
}

/// ln of own time; of its share of wall where steps are not inferred.
fn value(row: &RankWindow) -> f64 {
    match row.flags & flag::STEPS_NOT_INFERRED {
        0 => row.own.ln(),
        _ => (row.own / row.wall).ln(),
    }
}

impl Groups {
    /// Takes the `accepted` rows, whose ranks have these slots.
    pub fn take_all(
        &mut self,
        rows: &[RankWindow],
        accepted: &Accepted,
        slots: &[u32],
        ranks: &Ranks,
        tenth: bool,
        abstentions: &mut Vec<Abstention>,
    ) {
        let usual_steps = self.usual_steps(rows, accepted);
        let base = Base { rows, ranks, usual_steps, tenth };
        self.start(slots.len(), &ranks.identities);
        for (places, slots) in accepted.places.chunks(TILE).zip(slots.chunks(TILE)) {
            let places = places.iter().copied().zip(slots.iter().copied());
            self.take(&base, places, abstentions);
        }
    }

    /// Adds the judgeable ones of some rows, each with the slot of its rank and in the order of
    /// those; says why others are not judged.
    pub fn take(
        &mut self,
        base: &Base<'_>,
        places: impl Iterator<Item = (u32, u32)>,
        abstentions: &mut Vec<Abstention>,
    ) {
        let mut run = (0, 0, 0);
        for (place, slot) in places.filter(|one| base.can_judge(*one, abstentions)) {
            let (first_place, first_slot, length) = run;
            if (place, slot) == (first_place + length, first_slot + length) {
                run.2 += 1;
            } else {
                self.take_run(base, run);
                run = (place, slot, 1);
            }
        }
        self.take_run(base, run);
    }

    /// Adds rows beside each other, whose ranks are too: (place of the first, its slot, length).
    fn take_run(&mut self, base: &Base<'_>, (place, slot, length): (u32, u32, u32)) {
        if length == 0 {
            return;
        }
        let Base { rows, ranks, .. } = *base;
        let (from, to) = (slot as usize, (slot + length) as usize);
        let rows = &rows[place as usize..(place + length) as usize];
        let members = &mut self.members;
        let before = members.len();
        members.values.extend(rows.iter().map(|row| {
            fetch_next(row, |row| &row.job);
            value(row)
        }));
        members.stated.extend(rows.iter().map(|row| {
            fetch_next(row, |row| &row.wall);
            if row.own_se > 0.0 {
                row.own_se / row.own
            } else {
                0.0
            }
        }));
        members.last_steps.extend(rows.iter().map(|row| {
            fetch_next(row, |row| &row.flags);
            row.last_step
        }));
        let stated = &members.stated[before..];
        members.stating += stated.iter().filter(|stated| **stated > 0.0).count();
        if rows.iter().all(|row| row.comm > 0.0) {
            self.transfers.extend(rows.iter().map(|row| row.comm));
        } else {
            self.transfers.extend(rows.iter().map(|row| row.comm).filter(|comm| *comm > 0.0));
        }

        let Identities { all, of, last_steps, .. } = &ranks.identities;
        let number = of[from];
        let known = all[number as usize];
        let alike = rows
            .iter()
            .zip(&of[from..to])
            .fold(true, |alike, (row, of)| alike & (*of == number) & (Identity::of(row) == known));
        let steps = rows.iter().zip(&last_steps[from..to]);
        let goes_on = steps.map(|(row, last_step)| row.first_step >= *last_step);
        let host = |row: &RankWindow| Flags::HOST.when(row.source == source::GLOO);
        let figures = goes_on.zip(&ranks.flags[from..to]).zip(rows);
        members.flags.extend(figures.map(|((goes_on, flags), row)| {
            flags.when(goes_on) | Flags::ANEW.when(!goes_on) | host(row)
        }));
        let places = (place..).zip(slot..slot + length);
        if alike {
            let group = self.group_of(number, known.key);
            self.met[group as usize].add(rows);
            self.members.places.extend(places.map(|(row, slot)| Place { row, slot, group }));
        } else {
            for (row, (place, slot)) in rows.iter().zip(places) {
                let number = of[slot as usize];
                let group = if all[number as usize] == Identity::of(row) {
                    self.group_of(number, key(row))
                } else {
                    self.members.flags[self.members.places.len()] = Flags::ANEW | host(row);
                    self.group_of_key(key(row))
                };
                self.met[group as usize].add(std::slice::from_ref(row));
                self.members.places.push(Place { row: place, slot, group });
            }
        }
        let members = &mut self.members;
        let flags = &members.flags[before..];
        flags.iter().for_each(|flags| members.any = members.any | *flags);
        let usual = &ranks.scores.usual.as_flattened()[from..to];
        let figures = members.values[before..].iter().zip(usual).zip(flags);
        members.excesses.extend(figures.map(|((value, usual), flags)| {
            if flags.has(Flags::ANEW) {
                f64::NAN
            } else {
                value - usual
            }
        }));
        let known = |excess: &&f64| !excess.is_nan();
        members.known += members.excesses[before..].iter().filter(known).count();
    }

    /// Place in `met` of the group of ranks of an identity.
    #[inline(always)]
    fn group_of(&mut self, identity: u32, key: Key) -> u32 {
        let known = self.met_by[identity as usize];
        if known != u32::MAX {
            return known;
        }
        let group = self.group_of_key(key);
        self.met_by[identity as usize] = group;
        group
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, Scorer};
    use crate::window::{flag, RankWindow};

    fn rows(window: u64, seed: &mut u64) -> Vec<RankWindow> {
        let mut uniform = || {
            *seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (*seed >> 11) as f64 / (1u64 << 53) as f64
        };
        let row = |rank: u32| RankWindow {
            signature: u64::from(rank / 90),
            window,
            first_step: 100 * window,
            last_step: 100 * window + 99,
            wall: 2e6,
            own: 1e6 * (1.0 + 0.01 * uniform() + f64::from(rank % 7) / 100.0),
            comm: 1e5,
            own_se: 1e3,
            bytes: 8.0,
            rank,
            world_size: 300,
            steps: 100,
            flags: if rank == 133 { flag::EVENTS_LOST } else { 0 },
            ..RankWindow::default()
        };
        (0..300).map(row).collect()
    }

    #[test]
    fn rows_that_are_read_once_say_what_they_say_otherwise() {
        let scorer = || Scorer::new(Config::default()).expect("a good configuration");
        let (mut once, mut reversed, mut seed) = (scorer(), scorer(), 1);
        for window in 0..40 {
            let mut rows = rows(window, &mut seed);
            if window % 5 == 4 {
                // In the last tile: what was taken of the others counts for nothing.
                rows[290].own = f64::NAN;
            }
            if window % 7 == 6 {
                rows.remove(100);
            }
            let update = once.update(&rows);
            assert_eq!(update.refused_rows, u64::from(window % 5 == 4));
            let lost = update.abstentions.iter().filter(|one| one.rank == 133).count();
            assert_eq!(lost, 1);
            rows.reverse();
            assert_eq!(reversed.update(&rows).abstentions, update.abstentions);
            assert!(once.save() == reversed.save(), "window {window}");
        }
    }
}
