//! Which collectives the rank waits for, and which run beside its own work.
//!
//! The device tells when a collective ran, not what else ran meanwhile. Gradient buckets run
//! beside the backward pass; time in them that counted as busy would hide work, and hide less of
//! it with a rank that comes late, be it the slow one or its victim. From the start of one
//! collective to the start of the next, D, with L the duration of the one and C the work
//! in between:
//!
//! ```text
//! the rank waits for it:      D = L + C      slope of D over L: 1
//! it runs beside the work:    D = C          slope 0, where C > L
//! queued behind it:           D = L          says nothing of C but that it is shorter
//! ```
//!
//! So each place of the step is asked for its slope, over the steps in which the next collective
//! was not queued. A rank whose whole step is slower comes later, so waits less, and takes longer
//! behind the collective as well: L and C hang together through the rank's own pace, which would
//! take a wait for work. The pace shows in L and D of the place before, so the slope is the
//! partial one, those two held fixed. Where it is 0, own work counts to D, or, in a step where it
//! is hidden because the collective waited for somebody, to its usual C. What a place is lies in
//! the program and not in the rank, so ranks with one signature share what they know.

/// A start so shortly behind the end of the stream's collective before was queued for it, ns.
const QUEUED_NS: u64 = 20_000;
/// Steps until a place is judged, and the memory of its figures in steps.
const LEAST: f64 = 16.0;
const MEMORY: f64 = 512.0;
const MEMORY_OF_WORK: f64 = 64.0;
/// Slopes beyond which a place is judged, standard errors that must lie between, and the largest
/// standard error that proves anything: every step is a new chance to err.
const BESIDE: f64 = 0.4;
const WAITED: f64 = 0.6;
const ERRORS: f64 = 3.0;
const LARGEST_ERROR: f64 = 0.15;
/// Changes of D that L does not explain, over changes of L, beyond which no slope proves overlap:
/// so small a wait beside so much work hangs together with it by the least of causes, and many
/// steps make that look certain.
const MOST_REST: f64 = 5.0;
/// Durations that differ less (ns, root mean square) teach nothing: so coarse are device clocks.
const LEAST_CHANGE_NS: f64 = 10_000.0;
/// Share of its squares that a figure must keep when others are held fixed; less is rounding.
const LEAST_SHARE: f64 = 1e-3;
/// Share of steps in which the next collective is queued, of one that cannot be waited for.
const QUEUED_SHARE: f64 = 0.1;
/// A collective this long (ns) is a stall, and none that teaches anything.
const STALL_NS: f64 = 1e10;
/// Steps and time after which windows begin although some places are not judged.
const SETTLE_STEPS: u32 = 64;
const SETTLE_NS: u64 = 120_000_000_000;

/// L and D of the place before, then L and D of this one, ns.
type Figure = [f64; 4];
const DURATION: usize = 2;
const DISTANCE: usize = 3;

/// One place of the step. The slope is one of changes from step to step: a rank that becomes
/// slow moves D and L once, which says nothing of how they hang together.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    before: Option<Figure>,
    weight: f64,
    /// Sums of products of changes.
    products: [Figure; 4],
    /// Steps behind `distance`, its mean.
    steps: f64,
    distance: f64,
    /// Steps in which the next collective was queued (a share), and the mean time behind this
    /// one in the others, ns.
    queued: f64,
    gap: f64,
    /// Whether it runs beside work; `None` while that is open.
    beside: Option<bool>,
    /// The same, and the mean of `distance`, over the ranks with this signature.
    shared: Shared,
}

/// What ranks with one signature know of one place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Shared {
    beside: Option<bool>,
    /// Median, ns.
    distance: Option<f64>,
}

impl Figures {
    /// Work behind a collective that is waited for is never no time at all: where the next one
    /// is queued in some steps and comes late in others, it is beside.
    fn learn_queued(&mut self, queued: bool, gap: f64) {
        self.queued += (f64::from(u8::from(queued)) - self.queued) / MEMORY_OF_WORK;
        if queued {
            self.before = None;
        } else {
            self.gap += (gap - self.gap) / (self.steps + 1.0).min(MEMORY_OF_WORK);
            let often = self.queued > QUEUED_SHARE && self.steps >= LEAST;
            if often && self.gap > 5.0 * QUEUED_NS as f64 {
                self.beside = Some(true);
            }
        }
    }

    fn learn(&mut self, figure: Figure) {
        self.steps = (self.steps + 1.0).min(MEMORY_OF_WORK);
        self.distance += (figure[DISTANCE] - self.distance) / self.steps;
        let Some(before) = self.before.replace(figure) else { return };
        let keep = 1.0 - 1.0 / MEMORY;
        self.weight = self.weight * keep + 1.0;
        for (row, sums) in self.products.iter_mut().enumerate() {
            for (column, sum) in sums.iter_mut().enumerate() {
                let product = (figure[row] - before[row]) * (figure[column] - before[column]);
                *sum = *sum * keep + product;
            }
        }
        self.beside = self.judge().or(self.beside);
    }

    fn judge(&self) -> Option<bool> {
        let (slope, error, rest) = self.slope().filter(|&(_, error, _)| error < LARGEST_ERROR)?;
        if slope + ERRORS * error < WAITED && slope < BESIDE {
            (rest < MOST_REST).then_some(true)
        } else if slope - ERRORS * error > BESIDE && slope > WAITED {
            Some(false)
        } else {
            None
        }
    }

    /// Adds what another rank has learnt at the same place.
    fn pool(&mut self, other: &Figures) {
        self.weight += other.weight;
        for (sums, others) in self.products.iter_mut().zip(&other.products) {
            sums.iter_mut().zip(others).for_each(|(sum, other)| *sum += other);
        }
    }

    /// Partial slope of D over L, its standard error, and the changes of D that it leaves over
    /// those of L.
    fn slope(&self) -> Option<(f64, f64, f64)> {
        let least = self.weight * LEAST_CHANGE_NS * LEAST_CHANGE_NS;
        if self.weight < LEAST || self.products[DURATION][DURATION] < least {
            return None;
        }
        let mut rest = self.products;
        for held in 0..DURATION {
            if rest[held][held] > LEAST_SHARE * self.products[held][held] {
                let of = rest[held];
                for row in held + 1..rest.len() {
                    let share = of[row] / of[held];
                    (held + 1..rest.len())
                        .for_each(|column| rest[row][column] -= share * of[column]);
                }
            }
        }
        let squares = rest[DURATION][DURATION];
        if squares < LEAST_SHARE * self.products[DURATION][DURATION] {
            return None;
        }
        let slope = rest[DURATION][DISTANCE] / squares;
        let residual = (rest[DISTANCE][DISTANCE] - slope * rest[DURATION][DISTANCE]).max(0.0);
        let freedom = self.weight - DISTANCE as f64;
        let rest = (residual / squares).sqrt();
        Some((slope, rest / freedom.sqrt(), rest))
    }

    fn is_beside(&self) -> Option<bool> {
        self.shared.beside.or(self.beside)
    }

    /// Usual work up to the next collective, ns.
    fn usual(&self) -> Option<f64> {
        if self.steps >= LEAST {
            return Some(self.distance);
        }
        self.shared.distance
    }

    /// All is known that it takes to tell own work from waiting.
    fn is_settled(&self) -> bool {
        self.is_beside().is_some_and(|beside| !beside || self.usual().is_some())
    }
}

/// One collective beside the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbours {
    pub start_ns: u64,
    pub end_ns: u64,
    pub next_start_ns: u64,
    /// End of what was on the next one's stream before it.
    pub stream_end_ns: u64,
}

/// The places of one process's step.
#[derive(Debug, Default)]
pub(crate) struct Overlap {
    places: Vec<Figures>,
    signature: u64,
    since_ns: u64,
    steps: u32,
    settled: bool,
    /// L and D of the collective before, ns.
    latest: (f64, f64),
}

impl Overlap {
    /// The step has `period` places and this signature; of another one nothing is known.
    pub fn follow(&mut self, period: usize, signature: u64, now_ns: u64) {
        if self.places.len() != period || self.signature != signature {
            let places = std::mem::take(&mut self.places);
            *self = Overlap { places, signature, since_ns: now_ns, ..Overlap::default() };
            self.places.clear();
            self.places.resize(period, Figures::default());
        }
    }

    /// A step began: whether what is known is enough to count it.
    pub fn begin_step(&mut self, now_ns: u64) {
        self.steps = self.steps.saturating_add(1);
        self.settled = self.settled
            || self.steps > SETTLE_STEPS
            || now_ns.saturating_sub(self.since_ns) > SETTLE_NS
            || self.places.iter().all(Figures::is_settled);
    }

    /// Whether steps count from now on.
    pub fn is_settled(&self) -> bool {
        self.settled
    }

    /// Own work at the begin of the collective at `place`, beside which it ran, ns; learns from
    /// it, too.
    pub fn own_within(&mut self, place: usize, n: &Neighbours) -> u64 {
        let Some(figures) = self.places.get_mut(place) else { return 0 };
        let duration = n.end_ns.saturating_sub(n.start_ns);
        if n.next_start_ns < n.start_ns {
            return 0; // Streams overtook each other.
        }
        let queued = n.next_start_ns <= n.stream_end_ns.saturating_add(QUEUED_NS);
        let distance = (n.next_start_ns - n.start_ns) as f64;
        let before = std::mem::replace(&mut self.latest, (duration as f64, distance));
        figures.learn_queued(queued, distance - duration as f64);
        let figure = [before.0, before.1, duration as f64, distance];
        if !queued && figure.iter().all(|&time| time < STALL_NS) {
            figures.learn(figure);
        }
        match (figures.is_beside(), queued) {
            (Some(true), false) => duration,
            (Some(true), true) => duration.min(figures.usual().unwrap_or(0.0) as u64),
            _ => 0,
        }
    }
}

/// Ranks with one signature tell each other what they know of their places.
pub(crate) fn share(ranks: &mut [&mut Overlap]) {
    let places = ranks.iter().map(|rank| rank.places.len()).min().unwrap_or(0);
    let mut distances = Vec::with_capacity(ranks.len());
    for place in 0..places {
        let figures = || ranks.iter().map(|rank| &rank.places[place]);
        let votes = |beside: bool| figures().filter(|f| f.beside == Some(beside)).count();
        let (beside, waited) = (votes(true), votes(false));
        distances.clear();
        distances.extend(figures().filter(|f| f.steps >= LEAST).map(|f| f.distance));
        distances.sort_unstable_by(f64::total_cmp);
        let mut together = Figures::default();
        figures().for_each(|figures| together.pool(figures));
        let majority = (beside != waited).then_some(beside > waited);
        let shared = Shared {
            beside: together.judge().or(majority),
            distance: distances.get(distances.len() / 2).copied(),
        };
        ranks.iter_mut().for_each(|rank| rank.places[place].shared = shared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of one place whose collective takes 4 ms and waits for others up to `wait_us` more;
    /// 6 ms of work behind or beside it. Own work within of a last one that waits 5 ms.
    fn own_within(waited_for: bool, wait_us: u64) -> u64 {
        let mut overlap = Overlap::default();
        overlap.follow(1, 5, 0);
        let mut step = |random: u64, wait: u64| {
            let (start, work) = (1_000_000_000, 6_000_000 + random % 200_000);
            let end = start + 4_000_000 + wait;
            let next = if waited_for { end + work } else { (start + work).max(end) };
            let n = Neighbours {
                start_ns: start,
                end_ns: end,
                next_start_ns: next,
                stream_end_ns: end,
            };
            overlap.own_within(0, &n)
        };
        for n in 0..100u64 {
            let random = super::super::hash::mix(3, n);
            step(random, (random >> 20) % (1000 * wait_us));
        }
        step(0, 5_000_000)
    }

    #[test]
    fn what_is_waited_for_hides_nothing() {
        assert_eq!(own_within(true, 3000), 0);
        assert_eq!(own_within(true, 300), 0);
    }

    /// Each step has a pace of its own, and works of the same length before and behind the
    /// collective: a rank that comes late has waited less and works longer afterwards.
    fn own_within_of_a_pace(waited_for: bool) -> u64 {
        let mut overlap = Overlap::default();
        overlap.follow(2, 5, 0);
        let mut clock = 1_000_000_000;
        let mut own = 0;
        for n in 0..300u64 {
            let random = super::super::hash::mix(3, n);
            let work = 6_000_000 + random % 400_000;
            let others = 6_300_000 + (random >> 20) % 200_000;
            // Place 0 waits for nobody; what is asked for is place 1.
            let first = (clock, clock + 500_000);
            let start = first.1 + work;
            let end = first.1 + others.max(work) + 1_000_000;
            clock = if waited_for { end + work } else { (start + work).max(end) };
            overlap.own_within(
                0,
                &Neighbours {
                    start_ns: first.0,
                    end_ns: first.1,
                    next_start_ns: start,
                    stream_end_ns: first.1,
                },
            );
            own = overlap.own_within(
                1,
                &Neighbours {
                    start_ns: start,
                    end_ns: end,
                    next_start_ns: clock,
                    stream_end_ns: end,
                },
            );
        }
        own
    }

    /// Durations that hardly differ, and work that differs much: any slope is chance.
    #[test]
    fn a_slope_that_nothing_holds_judges_nobody() {
        for seed in 0..200 {
            let mut overlap = Overlap::default();
            overlap.follow(1, 5, 0);
            for n in 0..200 {
                let random = super::super::hash::mix(seed, n);
                let end_ns = 4_000_000 + random % 60_000;
                let next_start_ns = end_ns + 6_000_000 + (random >> 20) % 1_000_000;
                overlap.own_within(
                    0,
                    &Neighbours { start_ns: 0, end_ns, next_start_ns, stream_end_ns: end_ns },
                );
            }
            assert_ne!(overlap.places[0].is_beside(), Some(true), "{seed}");
        }
    }

    /// A short wait at the end of the backward pass and half a step of work behind it, which hang
    /// together a little through the rank's pace; many ranks are sure of the slope that this makes.
    #[test]
    fn a_short_wait_beside_much_work_is_no_overlap_however_many_ranks_say_so() {
        let mut ranks: Vec<Overlap> = (0..8).map(|_| Overlap::default()).collect();
        for (rank, overlap) in ranks.iter_mut().enumerate() {
            overlap.follow(1, 5, 0);
            for n in 0..500 {
                let random = super::super::hash::mix(rank as u64, n);
                let pace = random % 1_000_000;
                let end_ns = 1_000_000 + (random >> 20) % 170_000 - pace / 20;
                let next_start_ns = end_ns + 18_000_000 + pace;
                overlap.own_within(
                    0,
                    &Neighbours { start_ns: 0, end_ns, next_start_ns, stream_end_ns: end_ns },
                );
            }
        }
        share(&mut ranks.iter_mut().collect::<Vec<_>>());
        let together = ranks[0].places[0].shared;
        assert_ne!(together.beside, Some(true));
        let mut figures = Figures::default();
        ranks.iter().for_each(|rank| figures.pool(&rank.places[0]));
        let (slope, error, _) = figures.slope().expect("a slope");
        assert!(slope + ERRORS * error < WAITED, "else this test proves nothing: {slope} {error}");
    }

    #[test]
    fn the_pace_of_a_step_is_not_taken_for_overlap() {
        assert_eq!(own_within_of_a_pace(true), 0);
        assert!(own_within_of_a_pace(false) > 900_000);
    }

    #[test]
    fn work_beside_a_collective_is_own_work_and_the_wait_behind_it_is_not() {
        for wait_us in [300, 1500, 3000] {
            let own = own_within(false, wait_us);
            assert!((6_000_000..6_200_000).contains(&own), "{own}");
        }
    }

    #[test]
    fn ranks_share_what_they_know() {
        let mut knows = Overlap::default();
        knows.follow(1, 5, 0);
        for n in 0..100u64 {
            let random = super::super::hash::mix(3, n);
            let end_ns = 4_000_000 + random % 500_000;
            let next_start_ns = 6_000_000 + (random >> 20) % 200_000;
            knows.own_within(
                0,
                &Neighbours { start_ns: 0, end_ns, next_start_ns, stream_end_ns: end_ns },
            );
        }
        // This one always waits so long that its work is hidden.
        let hidden = Neighbours {
            start_ns: 0,
            end_ns: 9_000_000,
            next_start_ns: 9_000_000,
            stream_end_ns: 9_000_000,
        };
        let mut waits = Overlap::default();
        waits.follow(1, 5, 0);
        assert_eq!(waits.own_within(0, &hidden), 0);
        share(&mut [&mut knows, &mut waits]);
        assert!((6_000_000..6_200_000).contains(&waits.own_within(0, &hidden)));
        waits.begin_step(0);
        assert!(waits.is_settled());
        waits.follow(1, 6, 0);
        assert_eq!(waits.own_within(0, &hidden), 0, "another step");
    }

    #[test]
    fn times_that_cannot_be_do_no_harm() {
        let mut overlap = Overlap::default();
        overlap.follow(1, 5, 0);
        for n in 0..100u64 {
            let n = Neighbours {
                start_ns: n,
                end_ns: if n % 2 == 0 { u64::MAX } else { 0 },
                next_start_ns: u64::MAX - n,
                stream_end_ns: n * 7,
            };
            assert!(overlap.own_within(0, &n) <= n.end_ns.saturating_sub(n.start_ns));
        }
        assert_eq!(
            overlap.own_within(
                9,
                &Neighbours { start_ns: 0, end_ns: 1, next_start_ns: 2, stream_end_ns: 0 }
            ),
            0
        );
    }
}
