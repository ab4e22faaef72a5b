//! From events to steps to windows: everything between the drain and the scorer.
//!
//! ```text
//! event ──► inflight (join, issue order) ─┐
//! record ─► device, reorder (issue order) ┴► lane: timeline (own, busy), tracker (period, place)
//!                                                   │ step ended
//!                                                   └► window::job (close, one row a rank)
//! ```
//!
//! A process has a lane of what its host shows and, where it has a ring, one of what its device
//! timed. A window takes all steps of a rank from one of the two.
//!
//! A process is known by its pid. Nothing here allocates once a job runs steadily, and every
//! table has a bound, because a job can make its process emit whatever it likes.

mod agreement;
mod communicators;
mod coverage;
pub(crate) mod device;
mod hash;
mod inflight;
mod kinds;
pub(crate) mod lane;
mod overlap;
mod pairs;
mod pattern;
mod period;
pub(crate) mod process;
mod reorder;
mod timeline;
mod tracker;
mod turns;

use std::collections::HashMap;

pub use communicators::CommunicatorStatus;
use hash::Map;
use process::{Assignment, Process};

use crate::ring::Record;
use crate::window::job::Job;
use crate::window::RankWindow;
use crate::wire::{what, Event};

/// Jobs without processes that are remembered, so that their window numbers go on.
const MAX_IDLE_JOBS: usize = 256;
/// A process that nobody announced is forgotten after so long without an event, ns.
const STRANGER_NS: u64 = 60_000_000_000;
/// How often the ranks of a job are asked whether they agree on the step, ns.
const AGREE_NS: u64 = 5_000_000_000;
/// Steps that are kept per rank, in windows.
const KEPT_WINDOWS: usize = 4;
/// Windows that wait for `take_windows`.
const MAX_WAITING_WINDOWS: usize = 4096;

/// How windows are cut and how much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Steps after which a window closes; at least 1.
    pub window_steps: usize,
    /// Time after which a window closes, ns.
    pub window_ns: u64,
    /// Processes that are followed at a time; events of others are counted and dropped.
    pub max_processes: usize,
    /// Whether the tenths of a window come out too (`window::flag::TENTH`), before it.
    pub tenths: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config { window_steps: 100, window_ns: 30_000_000_000, max_processes: 256, tenths: false }
    }
}

/// State of one process, as `stragd/_rscore.pyi` has it.
#[derive(Clone, Debug, PartialEq)]
pub struct RankStatus {
    pub pid: u32,
    pub start_time: u64,
    /// 0 while nobody assigned it.
    pub job: u64,
    pub rank: u32,
    pub world_size: u32,
    pub events: u64,
    /// Records of its ring.
    pub records: u64,
    /// Share of the host's calls that the ring saw too; `None` without a ring, or not yet known.
    pub coverage: Option<f64>,
    /// Functions (bit by `wire::function`) of which the ring misses a stable share.
    pub missed: u32,
    pub collectives: u64,
    /// Collectives outside the repeating sequence.
    pub irregular: u64,
    pub steps: u64,
    /// Collectives per step, 0 while no period is known.
    pub period: u64,
    pub signature: u64,
    /// `window::source`, 0 before the first collective.
    pub source: u32,
    /// CLOCK_MONOTONIC ns.
    pub last_event_ns: u64,
    pub in_flight: u64,
    pub communicators: Vec<CommunicatorStatus>,
}

/// Counts of the pipeline itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events of processes beyond `max_processes`.
    pub dropped_events: u64,
    /// Windows that were closed.
    pub windows: u64,
    /// Windows that nobody took in time.
    pub dropped_windows: u64,
}

/// Follows all processes of a node. Owned by the drain thread.
#[derive(Debug)]
pub struct Pipeline {
    config: Config,
    processes: Vec<Process>,
    places: Map<u32, usize>,
    last: (u32, usize),
    jobs: HashMap<u64, Job>,
    waiting: Vec<Vec<RankWindow>>,
    lost_events: u64,
    agreed_ns: u64,
    /// Time of the last tick, CLOCK_MONOTONIC ns; 0 before it.
    now_ns: u64,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC, ns.
    realtime_offset: i64,
    counters: Counters,
}

impl Pipeline {
    pub fn new(config: Config) -> Pipeline {
        let window_steps = config.window_steps.max(1);
        Pipeline {
            config: Config { window_steps, ..config },
            processes: Vec::new(),
            places: Map::default(),
            last: (0, usize::MAX),
            jobs: HashMap::new(),
            waiting: Vec::new(),
            lost_events: 0,
            agreed_ns: 0,
            now_ns: 0,
            realtime_offset: 0,
            counters: Counters::default(),
        }
    }

    /// Takes one event; the hot path.
    #[inline]
    pub fn on_event(&mut self, event: &Event) {
        let place = if self.last.0 == event.tgid && self.last.1 < self.processes.len() {
            self.last.1
        } else {
            match self.places.get(&event.tgid) {
                Some(&place) => {
                    self.last = (event.tgid, place);
                    place
                }
                None if event.what == 0 || event.what > what::FAILED => return,
                None => match self.insert(event.tgid, 0) {
                    Some(place) => place,
                    None => {
                        self.counters.dropped_events += 1;
                        return;
                    }
                },
            }
        };
        let process = &mut self.processes[place];
        if process.on_event(event) {
            // Nobody ticks: windows close here, late but not never.
            let steps = process.lane().steps.len();
            let due = 2 * self.config.window_steps;
            if steps >= due && steps % self.config.window_steps == 0 {
                if let Some(assignment) = process.assignment {
                    self.close_windows(assignment.job, event.time_ns, true);
                }
            }
        }
    }

    /// A ring of process `pid` was found: its records follow. Until [`Pipeline::ring_mode`] says
    /// otherwise it records everything.
    pub fn ring_opened(&mut self, pid: u32) {
        if let Some(place) = self.find_or_insert(pid, 0) {
            self.processes[place].ring_opened();
        }
    }

    /// Takes one record of the ring of `pid`, in any order. Windows close in `tick` only: one
    /// ring is read behind the other, so some ranks are always ahead.
    pub fn on_record(&mut self, pid: u32, record: &Record) {
        if let Some(&place) = self.places.get(&pid) {
            self.processes[place].on_record(record, self.now_ns);
        }
    }

    /// `lost` records of `pid` since the last call were overwritten before they were read.
    pub fn ring_lost(&mut self, pid: u32, lost: u64) {
        if let Some(&place) = self.places.get(&pid) {
            self.processes[place].ring_lost(lost);
        }
    }

    /// Whether the ring of `pid` records everything from now on. Where records are off, thinned
    /// or floored, the host probes have to do.
    pub fn ring_mode(&mut self, pid: u32, full: bool) {
        if let Some(&place) = self.places.get(&pid) {
            self.processes[place].ring_mode(full);
        }
    }

    /// The ring of `pid` is gone.
    pub fn ring_closed(&mut self, pid: u32) {
        if let Some(&place) = self.places.get(&pid) {
            self.processes[place].ring_closed();
        }
    }

    /// To be called every few hundred milliseconds: closes windows, forgets strangers.
    /// `lost_events` is cumulative for the node.
    pub fn tick(&mut self, now_ns: u64, realtime_ns: u64, lost_events: u64) {
        self.now_ns = self.now_ns.max(now_ns);
        self.lost_events = lost_events;
        self.realtime_offset = realtime_ns.wrapping_sub(now_ns) as i64;
        for process in &mut self.processes {
            process.settle(now_ns);
        }
        if now_ns.saturating_sub(self.agreed_ns) >= AGREE_NS {
            self.agreed_ns = now_ns;
            self.agree();
        }
        self.share_overlap();
        let jobs: Vec<u64> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.close_windows(job, now_ns, false);
        }
        let stranger = |p: &Process| {
            p.start_time == 0
                && p.assignment.is_none()
                && now_ns.saturating_sub(p.last_event_ns) > STRANGER_NS
        };
        if self.processes.iter().any(stranger) {
            self.processes.retain(|p| !stranger(p));
            self.index();
        }
    }

    /// Sends ranks back to searching whose step most of their job cut otherwise.
    fn agree(&mut self) {
        let voters = self.processes.iter().enumerate();
        let (places, votes): (Vec<_>, Vec<_>) =
            voters.filter_map(|(place, process)| Some((place, process.vote()?))).unzip();
        for vote in agreement::outvoted(&votes) {
            self.processes[places[vote]].look_again();
        }
    }

    /// Ranks with one sequence tell each other beside what of it they work.
    fn share_overlap(&mut self) {
        let mut groups: HashMap<(u64, u64), Vec<&mut overlap::Overlap>> = HashMap::new();
        for (job, signature, overlap) in self.processes.iter_mut().filter_map(Process::overlap) {
            groups.entry((job, signature)).or_default().push(overlap);
        }
        groups.values_mut().for_each(|ranks| overlap::share(ranks));
    }

    /// Registers a process before its first event.
    pub fn seen(&mut self, pid: u32, start_time: u64) {
        self.find_or_insert(pid, start_time);
    }

    /// Says who a process is. False when there is no room for it.
    pub fn assign(
        &mut self,
        pid: u32,
        start_time: u64,
        job: u64,
        rank: u32,
        world_size: u32,
        class_id: u32,
    ) -> bool {
        let Some(place) = self.find_or_insert(pid, start_time) else { return false };
        let assignment = Assignment { job, rank, world_size, class_id };
        self.processes[place].assignment = Some(assignment);
        if !self.jobs.contains_key(&job) {
            self.forget_idle_jobs();
            self.jobs.insert(job, Job::new(job));
        }
        true
    }

    /// The process ended. Its steps still count when there are enough of them.
    pub fn gone(&mut self, pid: u32, start_time: u64) {
        let Some(&place) = self.places.get(&pid) else { return };
        let process = &mut self.processes[place];
        if process.start_time != 0 && process.start_time != start_time {
            return; // The pid belongs to somebody else by now.
        }
        process.ended = true;
        process.settle(u64::MAX);
        let job = process.assignment.map(|assignment| assignment.job);
        let keep = job.and_then(|job| self.jobs.get(&job)).is_some_and(|job| job.keeps(process));
        if !keep {
            self.processes.swap_remove(place);
        }
        self.index();
    }

    /// Closed windows, oldest first: one per job and window, rows sorted by rank.
    pub fn take_windows(&mut self) -> Vec<Vec<RankWindow>> {
        std::mem::take(&mut self.waiting)
    }

    /// State of every living process.
    pub fn ranks(&self) -> Vec<RankStatus> {
        self.processes.iter().filter(|p| !p.ended).map(Process::status).collect()
    }

    /// Living processes that have events and that nobody has announced.
    pub fn strangers(&self) -> Vec<u32> {
        let unknown = |p: &&Process| !p.ended && p.start_time == 0;
        self.processes.iter().filter(unknown).map(|p| p.pid).collect()
    }

    /// Counts of the pipeline itself.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn find_or_insert(&mut self, pid: u32, start_time: u64) -> Option<usize> {
        if let Some(&place) = self.places.get(&pid) {
            let known = self.processes[place].start_time;
            if known == 0 || start_time == 0 || known == start_time {
                self.processes[place].start_time = known.max(start_time);
                return Some(place);
            }
            self.gone(pid, known);
        }
        self.insert(pid, start_time)
    }

    #[cold]
    fn insert(&mut self, pid: u32, start_time: u64) -> Option<usize> {
        if self.processes.len() >= self.config.max_processes {
            return None;
        }
        let limit = KEPT_WINDOWS * self.config.window_steps;
        self.processes.push(Process::new(pid, start_time, limit));
        self.places.insert(pid, self.processes.len() - 1);
        Some(self.processes.len() - 1)
    }

    /// Places changed: rebuilds the table.
    fn index(&mut self) {
        self.last = (0, usize::MAX);
        self.places.clear();
        for (place, process) in self.processes.iter().enumerate().filter(|(_, p)| !p.ended) {
            self.places.insert(process.pid, place);
        }
    }

    fn forget_idle_jobs(&mut self) {
        if self.jobs.len() < MAX_IDLE_JOBS + self.config.max_processes {
            return;
        }
        let processes = &self.processes;
        let busy = |key: u64| {
            processes.iter().any(|p| p.assignment.is_some_and(|assignment| assignment.job == key))
        };
        let oldest = self
            .jobs
            .values()
            .filter(|job| !busy(job.key()))
            .min_by_key(|job| job.last_close_ns())
            .map(Job::key);
        if let Some(key) = oldest {
            self.jobs.remove(&key);
        }
    }

    #[cold]
    fn close_windows(&mut self, key: u64, now_ns: u64, overdue: bool) {
        let Some(job) = self.jobs.get_mut(&key) else { return };
        loop {
            let tenth = job.close_tenth(&self.processes, &self.config, now_ns, self.lost_events);
            let whole = tenth.is_none();
            let closed = tenth.or_else(|| {
                job.close(&mut self.processes, &self.config, now_ns, overdue, self.lost_events)
            });
            let Some(mut rows) = closed else { break };
            for row in &mut rows {
                row.time_ns = row.end_ns.wrapping_add_signed(self.realtime_offset);
            }
            if rows.is_empty() {
                continue;
            }
            self.counters.windows += u64::from(whole);
            if self.waiting.len() >= MAX_WAITING_WINDOWS {
                self.waiting.remove(0);
                self.counters.dropped_windows += 1;
            }
            self.waiting.push(rows);
        }
        let of_job = |p: &Process| p.assignment.is_some_and(|a| a.job == key);
        if self.processes.iter().any(|p| p.ended && of_job(p) && p.lane().steps.len() == 0) {
            self.processes.retain(|p| !(p.ended && of_job(p) && p.lane().steps.len() == 0));
            self.index();
        }
    }
}
