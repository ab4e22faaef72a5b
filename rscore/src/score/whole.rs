//! Series of the whole job: everybody's own time, and the transfers.

use super::case::{suspect, Case, Evidence};
use super::finding::finding;
use super::rank::since;
use super::scan::{scan, Test, Widths};
use super::series::{Noise, Series, Spread};
use super::{Basis, Config, Finding, Kind};
use crate::window::RankWindow;

/// Noise of a window below which none is believed (ln).
const FLOOR: f64 = 0.004;
/// Least run of a slow job: bursts hit everybody at once.
const SHORTEST: usize = 5;

/// What is seen of the whole job.
#[derive(Debug, Default)]
pub(super) struct WholeScore {
    /// Which of the job's last 64 windows are in the series; bit 0 is the newest.
    pub present: u64,
    pub series: Series,
    pub spread: Spread,
    pub case: Option<Box<Case>>,
}

/// What judging the whole needs.
pub(super) struct Whole<'a> {
    pub kind: Kind,
    /// Least lasting slowdown (ln).
    pub least: f64,
    /// Another finding explains it.
    pub doubtful: bool,
    pub limit: f64,
    pub row: &'a RankWindow,
    pub recent: &'a [(u64, u64)],
    pub config: &'a Config,
}

impl WholeScore {
    /// Nothing is known any more.
    pub fn reset(&mut self) {
        (self.series, self.spread, self.present) = (Series::default(), Spread::default(), 0);
    }

    /// One window; `value` is a logarithm.
    pub fn judge(&mut self, value: f64, whole: &Whole<'_>, widths: &mut Widths, next_id: &mut u64) {
        let (config, series) = (whole.config, &mut self.series);
        let noise = Noise::of_one(&self.spread, FLOOR);
        let (deviation, degrees) = self.spread.deviation(&noise);
        self.present <<= 1;
        if let Some(case) = self.case.as_mut().filter(|case| case.is_proven()) {
            let excess = value - series.anchor - case.base;
            case.follow(excess, deviation, 0.0, config);
            return;
        }
        if series.count() == 0 {
            series.anchor = value;
        }
        let history = config.history_windows;
        series.push(value - series.anchor, deviation, &mut self.spread, &noise, history);
        self.present |= 1;
        let test = Test {
            deviation,
            degrees,
            long_run: noise.long_run(),
            limit: whole.limit,
            least: whole.least.max((1.0 + config.min_slowdown).ln()),
            shortest: SHORTEST,
            share: 1.0,
        };
        let change = scan(series, series.center(), &test, widths);
        let doubtful = whole.doubtful && change.evidence >= Evidence::Weak;
        let evidence = if doubtful { Evidence::Open } else { change.evidence };
        let since = since(self.present, change.windows, whole.recent);
        suspect(&mut self.case, evidence, whole.row.window, since, config, next_id);
        let Some(case) = &mut self.case else { return };
        case.deviate = case.deviate.max(change.deviate);
        if case.is_proven() {
            series.forget_run(change.before, change.windows, history);
            (case.base, case.shift) = (change.before, change.shift);
            case.windows = change.windows as u32;
        } else if evidence >= Evidence::Weak {
            case.base = change.before;
        }
    }

    /// The finding of an open case; `own` is the present time per step, ns.
    pub fn show(&mut self, value: f64, own: f64, whole: &Whole<'_>) {
        let Some(case) = &mut self.case else { return };
        let difference = value - self.series.anchor - case.base;
        let noise = Noise::of_one(&self.spread, FLOOR);
        let (deviation, _) = self.spread.deviation(&noise);
        let before = own * (-difference).exp();
        let shown = finding(case, whole.kind, whole.row, difference, own, before, deviation, 1.0);
        case.finding = Some(Finding { basis: Basis::History, ..shown });
    }
}
