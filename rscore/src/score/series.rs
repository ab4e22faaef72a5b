//! One series of logarithms: its past and its noise. The text
//! is `stragd/scoring/series.py`; both sides do the same operations in the same order.

use super::estimate::RUN;

/// Noise of a window before anything was learnt (ln), and how many differences that is worth.
const NOISE_PRIOR: f64 = 0.02;
const PRIOR_WEIGHT: f64 = 2.0;
/// Noise of a window over the standard error that it states: steps resemble each other.
const STATED: f64 = 3.0;
/// Differences that the rest of the job is worth to a group, at most.
const LENT: f64 = 24.0;
/// Memory of the noise: 200 windows.
pub(super) const NOISE_KEEP: f64 = 0.995;
/// Differences of neighbours that tell as much of a variance as one value does.
pub(super) const DIFFERENCES: f64 = 1.5;
/// Degrees of freedom that machines of a kind share before anything was learnt of how alike their
/// noise is, and how many ranks that is worth.
const ALIKE: f64 = 60.0;
const ALIKE_RANKS: f64 = 4.0;
/// Twice the squared standard deviations that a difference counts at most (3), and from which it
/// may be no noise (4.5).
pub(super) const MOST: f64 = 18.0;
pub(super) const JUMP: f64 = 40.0;
/// Differences that the group is worth in what is usual for one of its members.
pub(super) const LIKE_PEERS: f64 = 8.0;
/// A member's noise is so many times the group's at most.
pub(super) const OWN_MOST: f64 = 9.0;
/// Differences that speak for no correlation before anything was learnt.
const UNCORRELATED: f64 = 10.0;
/// Standard errors, and the factor, by which a correlation is believed to be larger than its
/// estimate: it is the group's, and one rank's may be above it.
const MARGIN: f64 = 0.5;
const RELATIVE: f64 = 1.1;

/// What the members of a group say about the noise of one window (ln).
#[derive(Clone, Copy, Debug)]
pub(super) struct Noise {
    /// Half the mean squared difference of neighbouring windows.
    pub differences: f64,
    pub variance: f64,
    /// Of a window with the next one, as it is believed: a little above the estimate.
    correlation: f64,
    /// Degrees of freedom of a member that the group lends it.
    pub alike: f64,
    degrees: f64,
}

impl Noise {
    /// How much wider a mean of many windows is than if they did not resemble their neighbours.
    pub fn long_run(&self) -> f64 {
        ((1.0 + self.correlation) / (1.0 - self.correlation)).sqrt()
    }
}

/// Chains that sums of a series are taken in, beside each other, and windows of each.
pub(super) const CHAINS: usize = 4;
pub(super) const CHAIN: usize = RUN / CHAINS;

/// One figure of each of the newest windows: that of window `w` (0 is the newest) is at
/// `[w % CHAIN][w / CHAIN]`.
pub(super) type Lanes<T> = [[T; CHAINS]; CHAIN];

/// State of one series. `values` are relative to `anchor`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    pub values: Lanes<f32>,
    pub anchor: f64,
    pub base: f64,
    /// Sum of the newest `length` values.
    pub total: f64,
    pub known: u32,
    pub length: u32,
}

impl Series {
    /// Windows that it remembers.
    pub fn count(&self) -> usize {
        (self.known + self.length) as usize
    }

    /// Mean of all that it remembers, relative to the anchor.
    pub fn center(&self) -> f64 {
        (f64::from(self.known) * self.base + self.total) / self.count() as f64
    }

    /// The newest value is that of window 0.
    pub fn value(&self, window: usize) -> f32 {
        self.values[window % CHAIN][window / CHAIN]
    }

    pub fn value_mut(&mut self, window: usize) -> &mut f32 {
        &mut self.values[window % CHAIN][window / CHAIN]
    }

    /// Takes the value of one window; the oldest of the newest becomes past.
    #[inline(always)]
    pub fn push(
        &mut self,
        value: f64,
        deviation: f64,
        spread: &mut Spread,
        noise: &Noise,
        history: u32,
    ) {
        if self.length > 0 {
            let second = (self.length > 1).then(|| f64::from(self.value(1)));
            spread.learn(value, f64::from(self.value(0)), second, noise);
        }
        if self.length as usize == RUN {
            let oldest = f64::from(self.value(RUN - 1));
            self.total -= oldest;
            let mut step = oldest - self.base;
            if self.known > 4 {
                step = step.max(-3.0 * deviation).min(3.0 * deviation);
            }
            self.base += 1.0 / f64::from((self.known + 1).min(history)) * step;
            self.known = (self.known + 1).min(history);
        }
        let last = self.values[CHAIN - 1];
        self.values.copy_within(..CHAIN - 1, 1);
        self.values[0] = [value as f32, last[0], last[1], last[2]];
        self.total += f64::from(self.value(0));
        self.length = (self.length + 1).min(RUN as u32);
    }

    /// A run is proven slow: only what was `before` it stays.
    pub fn forget_run(&mut self, before: f64, windows: usize, history: u32) {
        self.base = before;
        self.known = ((self.count() - windows) as u32).min(history);
        (self.length, self.total) = (0, 0.0);
    }
}

/// What the differences of a series say about its noise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub near: f64,
    pub near_weight: f64,
    pub far: f64,
    pub far_weight: f64,
}

impl Spread {
    /// Noise comes and goes: a jump is learnt when the next window takes it back, and never when it
    /// lasts.
    #[inline(always)]
    fn learn(&mut self, value: f64, last: f64, second: Option<f64>, noise: &Noise) {
        let usual = self.near + LIKE_PEERS * noise.differences;
        let usual = noise.differences.max(usual / (self.near_weight + LIKE_PEERS));
        let (jump, error) = (JUMP * usual, value - last);
        let (mut before, mut both) = (0.0, 0.0);
        if let Some(second) = second {
            (before, both) = (last - second, value - second);
            if before * before >= jump && both * before < before * before / 2.0 {
                self.add(before * before, usual);
            }
        }
        if error * error < jump {
            self.add(error * error, usual);
        }
        // A jump is in two of these and in one of the others, and would look like correlation.
        let largest = (error * error).max(before * before).max(both * both / 2.0);
        if second.is_some() && largest < jump {
            self.far = self.far * NOISE_KEEP + both * both / 2.0;
            self.far_weight = self.far_weight * NOISE_KEEP + 1.0;
        }
    }

    #[inline(always)]
    fn add(&mut self, squared: f64, usual: f64) {
        self.near = self.near * NOISE_KEEP + squared.min(MOST * usual) / 2.0;
        self.near_weight = self.near_weight * NOISE_KEEP + 1.0;
    }

    /// Half its mean squared difference; NaN before the first.
    pub fn own(&self) -> f64 {
        match self.near_weight > 0.0 {
            true => self.near / self.near_weight,
            false => f64::NAN,
        }
    }

    /// Standard deviation of one window, and the degrees of freedom behind it. The group's
    /// variance is a prior (scaled inverse chi-square) of `noise.alike` degrees.
    pub fn deviation(&self, noise: &Noise) -> (f64, f64) {
        let own = self.near_weight / DIFFERENCES;
        let share =
            (noise.alike + own * ratio(self.own(), noise.differences)) / (noise.alike + own);
        ((noise.variance * share).sqrt(), (noise.alike + own).min(noise.degrees))
    }
}

/// What the differences of several series say together, added in the order of their ranks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    near: f64,
    near_weight: f64,
    far: f64,
    far_weight: f64,
}

impl Sums {
    pub fn add(&mut self, one: &Spread) {
        self.near += one.near;
        self.near_weight += one.near_weight;
        self.far += one.far;
        self.far_weight += one.far_weight;
    }
}

/// What is believed of a group's noise before it is looked at, and what its job has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prior {
    near: f64,
    weight: f64,
    /// Whether the group is among those that it was made of.
    inside: bool,
}

impl Default for Prior {
    fn default() -> Prior {
        let near = PRIOR_WEIGHT * NOISE_PRIOR * NOISE_PRIOR;
        Prior { near, weight: PRIOR_WEIGHT, inside: false }
    }
}

impl Prior {
    /// What a whole job says about the noise of its groups, but for its members, which are added.
    /// `stated` is the median of the standard errors that its windows state (ln), 0 where none
    /// does.
    pub fn of_job(stated: f64) -> Prior {
        let start = if stated > 0.0 { (STATED * stated).min(NOISE_PRIOR) } else { NOISE_PRIOR };
        Prior { near: PRIOR_WEIGHT * start * start, weight: PRIOR_WEIGHT, inside: true }
    }

    pub fn add(&mut self, one: &Spread) {
        self.near += one.near;
        self.weight += one.near_weight;
    }

    /// (Sum, weight) without a group that has these.
    fn rest(&self, near: f64, near_weight: f64) -> (f64, f64) {
        if !self.inside {
            return (self.near, self.weight);
        }
        ((self.near - near).max(0.0), (self.weight - near_weight).max(PRIOR_WEIGHT))
    }
}

/// A series' own noise (`Spread::own`) over its group's; 1 where nothing is known of it.
#[inline(always)]
pub(super) fn ratio(own: f64, differences: f64) -> f64 {
    match own.is_nan() {
        true => 1.0,
        false => (own / differences).min(OWN_MOST),
    }
}

impl Noise {
    /// Of a group: the sums of its members, and `likeness`, which is told `differences`.
    pub fn of(
        sums: &Sums,
        floor: f64,
        prior: Prior,
        likeness: impl FnOnce(f64) -> Likeness,
    ) -> Noise {
        let Sums { mut near, mut near_weight, far, far_weight } = *sums;
        // An AR(1) has lag-1 differences of (1 - rho) and lag-2 ones of (1 - rho^2) variances.
        let mut correlation = 0.0;
        if far_weight > 0.0 && near > 0.0 {
            correlation = (far / far_weight / (near / near_weight) - 1.0).clamp(0.0, 0.9);
            correlation *= far_weight / (far_weight + UNCORRELATED);
        }
        let (rest, rest_weight) = prior.rest(near, near_weight);
        let lent = rest_weight.min(LENT);
        near += lent * (rest / rest_weight);
        near_weight += lent;
        let differences = (near / near_weight).max(1e-12);
        let variance = (differences / (1.0 - correlation)).max(floor * floor);
        let degrees = near_weight / DIFFERENCES;
        let believed = (RELATIVE * correlation + MARGIN / degrees.sqrt()).min(0.9);
        let alike = likeness(differences).degrees(sums.near_weight);
        Noise { differences, variance, correlation: believed, alike, degrees }
    }

    /// Of one series.
    pub fn of_one(spread: &Spread, floor: f64) -> Noise {
        let mut sums = Sums::default();
        sums.add(spread);
        Noise::of(&sums, floor, Prior::default(), |differences| {
            let mut alone = Likeness::default();
            alone.add(ratio(spread.own(), differences));
            alone
        })
    }
}

/// How alike the members' noise is: what their variances, over the group's, differ beyond what the
/// estimates themselves do (2 / degrees each).
#[derive(Default)]
pub(super) struct Likeness {
    count: f64,
    total: f64,
    squares: f64,
}

impl Likeness {
    #[inline(always)]
    pub fn add(&mut self, ratio: f64) {
        self.count += 1.0;
        self.total += ratio;
        self.squares += ratio * ratio;
    }

    /// In degrees of freedom; `weight` is the sum of the members' `near_weight`.
    fn degrees(&self, weight: f64) -> f64 {
        let count = self.count;
        let mean = self.total / count;
        let differ = self.squares / count - mean * mean;
        let extra = (differ - 2.0 * DIFFERENCES / f64::max(weight / count, 1.0)).max(0.0);
        let between = (ALIKE_RANKS * (2.0 / ALIKE) + count * extra) / (ALIKE_RANKS + count);
        (2.0 / between).clamp(8.0, 1000.0)
    }
}
