//! What every window of a rank changes, eight ranks beside each other. A way through all ranks
//! goes through memory in its order, and through no more of it than it needs.

use super::estimate::RUN;
use super::scan::Ceiling;
use super::series::{Series, Spread};

/// Ranks of a block.
pub(super) const WIDE: usize = 8;
/// One figure of each.
pub(super) type Wide<T> = [T; WIDE];

/// `Spread`, of each rank.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Spreads {
    pub near: Wide<f64>,
    pub near_weight: Wide<f64>,
    pub far: Wide<f64>,
    pub far_weight: Wide<f64>,
}

impl Spreads {
    #[inline(always)]
    pub fn get(&self, lane: usize) -> Spread {
        Spread {
            near: self.near[lane],
            near_weight: self.near_weight[lane],
            far: self.far[lane],
            far_weight: self.far_weight[lane],
        }
    }

    pub fn each(&self) -> [&Wide<f64>; 4] {
        [&self.near, &self.near_weight, &self.far, &self.far_weight]
    }
}

/// The other fields of `RankScore`, of each rank.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Block {
    pub anchor: Wide<f64>,
    pub base: Wide<f64>,
    pub total: Wide<f64>,
    pub past: Wide<f64>,
    pub slope: Wide<f64>,
    pub height: Wide<f64>,
    pub present: Wide<u64>,
    pub known: Wide<u32>,
    pub past_count: Wide<u32>,
    pub high: Wide<u32>,
    pub gross: Wide<u32>,
    pub newest: Wide<u8>,
    pub length: Wide<u8>,
}

/// The newest values, of each rank; that of window `w` (0 is the newest) is in the row of
/// `(newest - w) % RUN`.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
pub(super) struct Values(pub [Wide<f32>; RUN]);

impl Values {
    pub fn of(&self, newest: u8, window: usize) -> &Wide<f32> {
        &self.0[row(newest, window)]
    }
}

/// `RankScore` of every rank of a job, apart by which of the ways through all ranks reads it. A
/// rank's slot is its place in all of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Scores {
    pub usual: Vec<Wide<f64>>,
    pub spreads: Vec<Spreads>,
    pub blocks: Vec<Block>,
    pub values: Vec<Values>,
}

/// What every window of a rank changes.
#[derive(Clone, Debug)]
pub(super) struct RankScore {
    pub series: Series,
    /// Which column has the newest value.
    pub newest: u8,
    pub spread: Spread,
    /// What is usual: center of the series, or what was before a proven run; NaN without a past.
    pub usual: f64,
    /// Mean of the values themselves, not compared with anybody.
    pub past: f64,
    pub past_count: u32,
    /// Which of the job's last 64 windows are in the series; bit 0 is the newest.
    pub present: u64,
    /// Which of the rank's last 32 windows were slow; bit 0 is the newest.
    pub high: u32,
    pub gross: u32,
    pub ceiling: Ceiling<f64>,
}

impl Default for RankScore {
    fn default() -> RankScore {
        RankScore {
            series: Series::default(),
            newest: 0,
            spread: Spread::default(),
            usual: f64::NAN,
            past: 0.0,
            past_count: 0,
            present: 0,
            high: 0,
            gross: 0,
            ceiling: Ceiling::UNKNOWN,
        }
    }
}

impl RankScore {
    pub fn learn_past(&mut self, value: f64, history: u32) {
        self.past_count = self.past_count.saturating_add(1).min(history);
        self.past += 1.0 / f64::from(self.past_count) * (value - self.past);
    }
}

impl Scores {
    /// Makes room for so many ranks and no more: they are large, and stay.
    pub fn reserve(&mut self, ranks: usize) {
        let more = ranks.div_ceil(WIDE).saturating_sub(self.blocks.len());
        self.usual.reserve_exact(more);
        self.spreads.reserve_exact(more);
        self.blocks.reserve_exact(more);
        self.values.reserve_exact(more);
    }

    /// So many ranks; new ones have no past.
    pub fn resize(&mut self, ranks: usize) {
        let (before, blocks) = (self.blocks.len(), ranks.div_ceil(WIDE));
        self.usual.resize_with(blocks, Wide::default);
        self.spreads.resize_with(blocks, Spreads::default);
        self.blocks.resize_with(blocks, Block::default);
        self.values.resize_with(blocks, Values::default);
        for slot in before * WIDE..blocks * WIDE {
            self.store(slot, &RankScore::default());
        }
    }

    /// Has a block brought near, and of its values those that the next one is judged by, when it is
    /// in the row of `newest`.
    #[inline(always)]
    pub fn fetch(&self, place: usize, newest: u8) {
        if place >= self.blocks.len() {
            return;
        }
        fetch_all(&self.blocks[place]);
        fetch_all(&self.spreads[place]);
        fetch_all(&self.usual[place]);
        let values = &self.values[place];
        [0, 1, RUN - 1].into_iter().for_each(|window| fetch(values.of(newest, window)));
    }

    /// What is usual for a rank; NaN without a past.
    pub fn usual(&self, slot: usize) -> f64 {
        self.usual[slot / WIDE][slot % WIDE]
    }

    /// Windows that its series remembers.
    pub fn count(&self, slot: usize) -> usize {
        let (block, lane) = (&self.blocks[slot / WIDE], slot % WIDE);
        block.known[lane] as usize + usize::from(block.length[lane])
    }

    pub fn load(&self, slot: usize) -> RankScore {
        let (place, lane) = (slot / WIDE, slot % WIDE);
        let block = &self.blocks[place];
        let newest = block.newest[lane];
        let mut series = Series {
            anchor: block.anchor[lane],
            base: block.base[lane],
            total: block.total[lane],
            known: block.known[lane],
            length: u32::from(block.length[lane]),
            ..Series::default()
        };
        for window in 0..series.length as usize {
            *series.value_mut(window) = self.values[place].of(newest, window)[lane];
        }
        RankScore {
            series,
            newest,
            spread: self.spreads[place].get(lane),
            usual: self.usual(slot),
            past: block.past[lane],
            past_count: block.past_count[lane],
            present: block.present[lane],
            high: block.high[lane],
            gross: block.gross[lane],
            ceiling: Ceiling { slope: block.slope[lane], height: block.height[lane] },
        }
    }

    pub fn store(&mut self, slot: usize, score: &RankScore) {
        for window in 0..score.series.length as usize {
            let values = &mut self.values[slot / WIDE].0[row(score.newest, window)];
            values[slot % WIDE] = score.series.value(window);
        }
        self.store_change(slot, score);
    }

    /// Stores what was loaded from there, changed by one window at most.
    pub fn store_change(&mut self, slot: usize, score: &RankScore) {
        let (place, lane) = (slot / WIDE, slot % WIDE);
        let RankScore { series, newest, spread, .. } = score;
        self.values[place].0[usize::from(*newest)][lane] = series.value(0);
        let spreads = &mut self.spreads[place];
        spreads.near[lane] = spread.near;
        spreads.near_weight[lane] = spread.near_weight;
        spreads.far[lane] = spread.far;
        spreads.far_weight[lane] = spread.far_weight;
        self.usual[place][lane] = score.usual;
        let block = &mut self.blocks[place];
        block.newest[lane] = *newest;
        block.anchor[lane] = series.anchor;
        block.base[lane] = series.base;
        block.total[lane] = series.total;
        block.known[lane] = series.known;
        block.length[lane] = series.length as u8;
        block.past[lane] = score.past;
        block.past_count[lane] = score.past_count;
        block.present[lane] = score.present;
        block.high[lane] = score.high;
        block.gross[lane] = score.gross;
        (block.slope[lane], block.height[lane]) = (score.ceiling.slope, score.ceiling.height);
    }
}

/// Has the processor bring memory near that is read soon; it need not be there.
#[inline(always)]
pub(super) fn fetch<T>(place: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        // SAFETY: it faults nowhere and changes nothing but what the caches hold.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(place.cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

#[inline(always)]
fn fetch_all<T>(one: &T) {
    let begin = std::ptr::from_ref(one);
    (0..size_of::<T>()).step_by(64).for_each(|line| fetch(begin.wrapping_byte_add(line)));
}

/// Which row of `Values` has a window.
#[inline(always)]
pub(super) fn row(newest: u8, window: usize) -> usize {
    (usize::from(newest) + RUN - window) % RUN
}
