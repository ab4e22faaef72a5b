//! Ranks of a block whose ceilings have come too near: their values are scanned, and those in which
//! nothing is found get new ceilings.

use super::block::{Block, Values, Wide, WIDE};
use super::scan::{ceiling_of_calm, Widths};
use super::series::Series;

/// A block's ranks with one more value.
#[derive(Default)]
pub(super) struct Pushed {
    pub newest: Wide<f64>,
    pub known: Wide<f64>,
    pub length: Wide<f64>,
    pub center: Wide<f64>,
    /// What a scan is held against.
    pub threshold: Wide<f64>,
    /// Of the ceilings.
    pub height: Wide<f64>,
}

impl Pushed {
    /// Which of these ranks are calm, a bit for each. `kept` are the values before.
    #[cold]
    pub fn rescan(
        &mut self,
        ranks: u32,
        block: &mut Block,
        kept: &Values,
        widths: &mut Widths,
    ) -> u32 {
        let mut calm = 0;
        for lane in (0..WIDE).filter(|lane| ranks >> lane & 1 == 1) {
            let series = self.series(lane, block.newest[lane], kept);
            let (center, threshold) = (self.center[lane], self.threshold[lane]);
            if let Some(ceiling) = ceiling_of_calm(&series, center, threshold, widths) {
                (block.slope[lane], self.height[lane]) = (ceiling.slope, ceiling.height);
                calm |= 1 << lane;
            }
        }
        calm
    }

    fn series(&self, lane: usize, newest: u8, kept: &Values) -> Series {
        let (known, length) = (self.known[lane] as u32, self.length[lane] as u32);
        let mut series = Series { known, length, ..Series::default() };
        *series.value_mut(0) = self.newest[lane] as f32;
        for window in 1..length as usize {
            *series.value_mut(window) = kept.of(newest, window - 1)[lane];
        }
        series
    }
}
