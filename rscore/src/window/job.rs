//! Windows of one job on this node: all its ranks close together.

use std::collections::HashMap;

use super::log::Measure;
use super::transfer::{transfer, RankSteps};
use super::{flag, source, RankWindow};
use crate::steps::device::Device;
use crate::steps::lane::Lane;
use crate::steps::process::{Assignment, Process};
use crate::steps::Config;

/// How long a window waits for ranks whose last step has not come through yet, ns.
const GRACE_NS: u64 = 500_000_000;
/// How long the first window waits for ranks that have no pattern yet, ns.
const START_WAIT_NS: u64 = 10_000_000_000;
/// Tenths of a window come out only of steps so long, ns: whole windows of shorter ones are soon.
const MIN_TENTH_NS: u64 = 50_000_000;
const TENTHS: usize = 10;
/// Fewest steps of a rank that ended, for a row of its own.
const MIN_PARTIAL_STEPS: usize = 10;

/// Windows of one job.
#[derive(Debug)]
pub(crate) struct Job {
    key: u64,
    next_window: u64,
    /// End of the window before, ns; `None` until the ranks have a pattern.
    start_ns: Option<u64>,
    next_tenth: u64,
    /// End of the tenth before, ns; `None` where the window begins.
    tenth_ns: Option<u64>,
    first_ready_ns: Option<u64>,
    last_close_ns: u64,
    lost_events: u64,
}

impl Job {
    pub fn new(key: u64) -> Job {
        Job {
            key,
            next_window: 0,
            start_ns: None,
            next_tenth: 0,
            tenth_ns: None,
            first_ready_ns: None,
            last_close_ns: 0,
            lost_events: 0,
        }
    }

    pub fn key(&self) -> u64 {
        self.key
    }

    pub fn last_close_ns(&self) -> u64 {
        self.last_close_ns
    }

    /// Whether a process that ended has steps enough to wait for the window.
    pub fn keeps(&self, process: &Process) -> bool {
        let steps = process.lane().steps.count_after(self.start_ns.unwrap_or(0));
        steps >= MIN_PARTIAL_STEPS
    }

    fn member(&self, process: &Process) -> Option<Assignment> {
        process.assignment.filter(|assignment| assignment.job == self.key)
    }

    /// Closes the window when it is time. `overdue`: without waiting for slower ranks. Rows may
    /// be empty (nothing ended in the window); then no number is used up.
    pub fn close(
        &mut self,
        processes: &mut [Process],
        config: &Config,
        now_ns: u64,
        overdue: bool,
        lost_events: u64,
    ) -> Option<Vec<RankWindow>> {
        let started = self.start_ns.is_some();
        let start = self.start(processes, now_ns, lost_events)?;
        if !started {
            processes.iter_mut().filter(|p| self.member(p).is_some()).for_each(Process::next_slice);
        }
        let members = || processes.iter().filter(|p| self.member(p).is_some());
        let all_ended = members().all(|p| p.ended);
        let full =
            members().filter_map(|p| p.lane().steps.end_of(config.window_steps, start)).min();
        let timeout = start.saturating_add(config.window_ns);
        let end = match full {
            Some(full) => full.min(timeout),
            None if all_ended => members().filter_map(|p| p.lane().steps.last_end_ns()).max()?,
            None if now_ns >= timeout => timeout,
            None => return None,
        };
        let behind = |p: &Process| {
            let lane = p.lane();
            !p.ended && lane.has_pattern() && lane.covered_ns() < end
        };
        let wait = !overdue && now_ns < end.saturating_add(GRACE_NS);
        if wait && (members().any(behind) || full.is_none() && !all_ended) {
            return None;
        }
        let lost = lost_events > self.lost_events;
        let mut rows = self.rows(processes, start, end, lost);
        rows.sort_unstable_by_key(|row| row.rank);
        if !rows.is_empty() {
            self.next_window += 1;
        }
        for process in processes.iter_mut().filter(|p| self.member(p).is_some()) {
            process.close(end);
        }
        // Empty windows of a long silence are not closed one by one.
        let next =
            if rows.is_empty() { end.max(now_ns.saturating_sub(config.window_ns)) } else { end };
        self.start_ns = if all_ended { None } else { Some(next) };
        self.tenth_ns = self.tenth_ns.filter(|tenth| *tenth > next);
        self.first_ready_ns = None;
        self.last_close_ns = now_ns;
        self.lost_events = lost_events;
        Some(rows)
    }

    /// Closes a tenth of the window under way when it is time. Nothing of the window changes.
    pub fn close_tenth(
        &mut self,
        processes: &[Process],
        config: &Config,
        now_ns: u64,
        lost_events: u64,
    ) -> Option<Vec<RankWindow>> {
        let steps = config.window_steps / TENTHS;
        if !config.tenths || steps == 0 {
            return None;
        }
        let start = self.tenth_ns.or(self.start_ns)?;
        let members = || processes.iter().filter(|p| self.member(p).is_some() && !p.ended);
        let end = members().filter_map(|p| p.lane().steps.end_of(steps, start)).min()?;
        let behind = |p: &Process| p.lane().has_pattern() && p.lane().covered_ns() < end;
        if now_ns < end.saturating_add(GRACE_NS) && members().any(behind) {
            return None;
        }
        self.tenth_ns = Some(end);
        if end - start < MIN_TENTH_NS {
            return Some(Vec::new());
        }
        let mut rows = self.rows(processes, start, end, lost_events > self.lost_events);
        rows.retain(|row| row.flags & (flag::STEPS_NOT_INFERRED | flag::PARTIAL) == 0);
        rows.sort_unstable_by_key(|row| row.rank);
        for row in &mut rows {
            (row.window, row.flags) = (self.next_tenth, row.flags | flag::TENTH);
        }
        self.next_tenth += u64::from(!rows.is_empty());
        Some(rows)
    }

    /// Start of the window, set once the ranks are ready: where the last of them has its first
    /// step.
    fn start(&mut self, processes: &[Process], now_ns: u64, lost_events: u64) -> Option<u64> {
        let (mut ready, mut waiting, mut start) = (0, 0, 0);
        for process in processes.iter().filter(|p| self.member(p).is_some()) {
            let lane = process.lane();
            match lane.steps.first_start_ns() {
                Some(first) => {
                    ready += 1;
                    start = start.max(first);
                }
                None if lane.is_unsteady(now_ns) => {
                    ready += 1;
                    start = start.max(lane.covered_ns());
                }
                None if !process.ended => waiting += 1,
                None => {}
            }
        }
        if self.start_ns.is_some() {
            if ready + waiting == 0 {
                self.start_ns = None;
            }
            return self.start_ns;
        }
        if ready == 0 {
            return None;
        }
        let since = *self.first_ready_ns.get_or_insert(now_ns);
        if waiting > 0 && now_ns.saturating_sub(since) < START_WAIT_NS {
            return None;
        }
        self.lost_events = lost_events;
        self.start_ns = Some(start);
        self.start_ns
    }

    fn rows(&self, processes: &[Process], start: u64, end: u64, lost: bool) -> Vec<RankWindow> {
        let mut rows = Vec::new();
        let mut peers: HashMap<u64, Vec<RankSteps>> = HashMap::new();
        for process in processes {
            let Some(who) = self.member(process) else { continue };
            let (lane, device) = process.lane_for(start, end);
            let mut row = RankWindow {
                job: self.key,
                window: self.next_window,
                start_ns: start,
                end_ns: end,
                rank: who.rank,
                world_size: who.world_size,
                class_id: who.class_id,
                flags: window_flags(process, device, lost),
                source: device.map_or(source::GLOO, |_| source::DEVICE_RING),
                ..RankWindow::default()
            };
            match lane.steps.measure(start, end) {
                Some(measure) if process.ended && (measure.steps as usize) < MIN_PARTIAL_STEPS => {}
                Some(measure) => {
                    fill_steps(&mut row, &measure, lane);
                    if let Some(durations) = lane.steps.mean_durations() {
                        let steps = lane.steps.busy(start, end).collect();
                        let steps = RankSteps { steps, wall: row.wall, durations };
                        peers.entry(row.signature).or_default().push(steps);
                    }
                    rows.push(row);
                }
                None if lane.is_unsteady(end) && lane.slice.collectives > 0 => {
                    fill_slice(&mut row, lane);
                    // Of a slice only the whole is known: the shortest of the ranks.
                    let (steps, durations) = (vec![(end, row.wait as u64)], vec![row.wait]);
                    let steps = RankSteps { steps, wall: row.wall, durations };
                    peers.entry(row.signature).or_default().push(steps);
                    rows.push(row);
                }
                None => {}
            }
        }
        let some_ring = rows.iter().any(|row| row.source == source::DEVICE_RING);
        for row in rows.iter_mut().filter(|row| row.source == source::HOST_PROBE && some_ring) {
            row.flags |= flag::NO_RING;
        }
        let transfers: HashMap<u64, f64> =
            peers.iter().map(|(signature, ranks)| (*signature, transfer(ranks))).collect();
        for row in rows.iter_mut().filter(|row| row.flags & flag::OWN_UNKNOWN == 0) {
            let busy = row.wait;
            row.comm = transfers.get(&row.signature).copied().unwrap_or(0.0).min(busy);
            row.wait = busy - row.comm;
        }
        rows
    }
}

/// Flags of a row whatever is in it.
fn window_flags(process: &Process, device: Option<&Device>, lost: bool) -> u32 {
    let when = |set: bool, flag: u32| if set { flag } else { 0 };
    let partial = when(process.ended, flag::PARTIAL);
    // What a ring lost is known to the record, and spoils no more than its step.
    match device {
        None => partial | when(lost, flag::EVENTS_LOST),
        Some(device) => {
            let incomplete = flag::RING_INCOMPLETE | flag::OWN_UNKNOWN;
            partial
                | when(device.is_lossy(), flag::EVENTS_LOST)
                | when(device.coverage.missed() != 0, incomplete)
                | when(device.is_host_timed(), flag::HOST_TIMED)
        }
    }
}

/// Fills a row from steps; `wait` holds the whole busy time until `comm` is known.
fn fill_steps(row: &mut RankWindow, measure: &Measure, lane: &Lane) {
    row.signature = lane.logged_signature();
    row.first_step = measure.first_step;
    row.last_step = measure.last_step;
    row.steps = measure.steps;
    row.start_ns = measure.start_ns;
    row.end_ns = measure.end_ns;
    row.wall = measure.wall;
    row.own = measure.own;
    row.wait = measure.busy;
    row.own_se = measure.own_error;
    row.collectives = lane.steps.period() as f64;
    row.bytes = measure.bytes;
    hide_unknown(row, measure.timed);
}

/// Fills a row from a slice of time; values are per window.
fn fill_slice(row: &mut RankWindow, lane: &Lane) {
    let slice = &lane.slice;
    let wall = lane.covered_ns().saturating_sub(slice.start_ns);
    let own = lane.own_total_ns().saturating_sub(slice.own_at_start_ns).min(wall);
    row.flags |= flag::STEPS_NOT_INFERRED;
    row.signature = lane.signature();
    row.first_step = lane.completed();
    row.last_step = lane.completed();
    row.wall = wall as f64;
    row.own = own as f64;
    row.wait = (wall - own) as f64;
    row.own_se = f64::NAN;
    row.collectives = slice.collectives as f64;
    row.bytes = slice.bytes as f64;
    hide_unknown(row, !slice.untimed);
}

/// Without times of every collective, only their order and rate are known.
fn hide_unknown(row: &mut RankWindow, timed: bool) {
    if !timed {
        row.flags |= flag::OWN_UNKNOWN;
        if row.source == source::GLOO {
            row.source = source::HOST_PROBE;
        }
    }
    if row.flags & flag::OWN_UNKNOWN != 0 {
        row.own = f64::NAN;
        row.wait = f64::NAN;
        row.comm = f64::NAN;
        row.own_se = f64::NAN;
    }
}
