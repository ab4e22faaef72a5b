//! Scores: which rank is slow, compared with its peers and with its own past.
//!
//! ```text
//! rows (refuse) ─► groups (peers, references) ─► rank (change, level) ─┐
//!                                            ├► whole (job, network) ──┼► case (suspect ... cleared)
//!                                            └► compare (class, stage) ┘
//! ```
//!
//! `quiet` judges the ranks of which nothing is said, eight at a time, and leaves `rank` the others.
//! `estimate` and `series` hold the mathematics and know no findings. `docs/scoring.md` has the
//! derivations, and `stragd/scoring` the same text in plain Python, which this equals bit for bit.

mod block;
mod case;
mod compare;
mod estimate;
mod fast;
mod finding;
mod groups;
mod identities;
mod inherit;
mod job;
mod lanes;
mod members;
mod middle;
mod past;
mod pool;
mod quiet;
mod rank;
mod ranks;
mod rescan;
mod rows;
mod scan;
mod select;
mod series;
mod state;
mod vector;
mod whole;

use std::collections::HashMap;

use crate::window::{flag, RankWindow};

/// Most jobs that are scored at a time; the one that was silent longest goes first.
const MAX_JOBS: usize = 4096;

/// How sure a score must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// False alarms per million windows of healthy ranks.
    pub false_alarms_per_million: f64,
    /// Least slowdown that is worth a finding (0.03: 3 %).
    pub min_slowdown: f64,
    /// Windows that a slow run needs to be confirmed.
    pub confirm_windows: u32,
    /// Windows in a row without it, until a finding is cleared.
    pub clear_windows: u32,
    /// Memory of a rank's baseline, windows.
    pub history_windows: u32,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            false_alarms_per_million: 0.01,
            min_slowdown: 0.005,
            confirm_windows: 2,
            clear_windows: 3,
            history_windows: 200,
        }
    }
}

impl Config {
    /// One line that names the value, the reason and the way out.
    pub fn check(&self) -> Result<(), String> {
        let rate = self.false_alarms_per_million;
        if !(rate.is_finite() && rate > 0.0 && rate <= 1e5) {
            return Err(format!(
                "false_alarms_per_million is {rate}: give a number above 0, at most 100000"
            ));
        }
        let least = self.min_slowdown;
        if !(least.is_finite() && (0.001..=1.0).contains(&least)) {
            return Err(format!("min_slowdown is {least}: give a number from 0.001 to 1"));
        }
        for (name, value, low, high) in [
            ("confirm_windows", self.confirm_windows, 2, 100),
            ("clear_windows", self.clear_windows, 1, 1000),
            ("history_windows", self.history_windows, 10, 100_000),
        ] {
            if !(low..=high).contains(&value) {
                return Err(format!("{name} is {value}: give a number from {low} to {high}"));
            }
        }
        Ok(())
    }
}

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// One rank.
    Straggler,
    /// One rank, in some windows.
    Intermittent,
    /// A class of hardware against another.
    Imbalance,
    /// A signature (pipeline stage) against the others.
    UnevenWork,
    /// Everybody, against the job's past.
    JobWide,
    /// The transfers, against the job's past.
    Network,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Straggler => "straggler",
            Kind::Intermittent => "intermittent",
            Kind::Imbalance => "imbalance",
            Kind::UnevenWork => "uneven-work",
            Kind::JobWide => "job-wide",
            Kind::Network => "network",
        }
    }
}

/// Life of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Suspect,
    Confirmed,
    Recovering,
    Cleared,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            State::Suspect => "suspect",
            State::Confirmed => "confirmed",
            State::Recovering => "recovering",
            State::Cleared => "cleared",
        }
    }
}

/// What a finding compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Basis {
    Peers,
    History,
}

impl Basis {
    pub fn name(self) -> &'static str {
        match self {
            Basis::Peers => "peers",
            Basis::History => "history",
        }
    }
}

/// One finding; the fields of `Finding` in `stragd/_rscore.pyi`. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub id: u64,
    pub job: u64,
    pub kind: Kind,
    pub state: State,
    pub rank: Option<u32>,
    pub class_id: Option<u32>,
    pub signature: Option<u64>,
    pub since_window: u64,
    /// CLOCK_REALTIME.
    pub since_time_ns: u64,
    /// Last window that was scored.
    pub window: u64,
    /// Own time over the peers' median (history: over its own past), minus one.
    pub slowdown: f64,
    /// Per step; `None` when steps are not inferred.
    pub cost_ns: Option<f64>,
    pub cost_low_ns: Option<f64>,
    pub cost_high_ns: Option<f64>,
    /// Of wall.
    pub cost_fraction: f64,
    pub confidence: f64,
    pub basis: Basis,
    pub own_ns: f64,
    /// Median; NaN without peers.
    pub peers_own_ns: f64,
    pub peers: u32,
    /// Bytes per step over the peers' median, minus one: what the job itself gives a rank to do.
    pub work: f64,
    /// Ranks of the group that were named within the last 64 windows and are healthy again.
    pub moved: u32,
}

/// A rank that was not judged, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abstention {
    pub job: u64,
    pub rank: u32,
    pub window: u64,
    pub reason: &'static str,
}

/// Reasons of an abstention.
pub mod reason {
    pub const HOST_PROBES: &str = "host probes only: no device time";
    pub const LEARNING: &str = "learning";
    pub const EVENTS_LOST: &str = "events lost in this window";
    pub const ALONE: &str = "no other rank to compare with";
    pub const STEPS_DISAGREE: &str = "steps of the ranks disagree";
}

/// What one window brought.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Update {
    /// Open findings, and those that this window cleared.
    pub findings: Vec<Finding>,
    pub abstentions: Vec<Abstention>,
    /// Rows with values that cannot be.
    pub refused_rows: u64,
}

/// Where a job's numbers have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    pub window: u64,
    pub tenth: Option<u64>,
    pub step: u64,
}

/// Scores of every job. One call per window and job.
#[derive(Debug)]
pub struct Scorer {
    config: Config,
    jobs: HashMap<u64, job::JobScore>,
    calls: u64,
    next_id: u64,
    accepted: rows::Accepted,
}

impl Scorer {
    /// Errors name the bad value of `config`.
    pub fn new(config: Config) -> Result<Scorer, String> {
        config.check()?;
        Ok(Scorer {
            config,
            jobs: HashMap::new(),
            calls: 0,
            next_id: 1,
            accepted: rows::Accepted::default(),
        })
    }

    /// Scores one window of one job; rows of several jobs are scored one job after another.
    pub fn update(&mut self, rows: &[RankWindow]) -> Update {
        let mut update = Update::default();
        let mut rest = rows;
        while let Some(first) = rest.first() {
            let same = rest.iter().take_while(|row| row.job == first.job).count();
            let (rows, later) = rest.split_at(same);
            rest = later;
            self.update_job(rows, &mut update);
        }
        update
    }

    /// The whole state but for the configuration, for `restore`; the format is that of
    /// `stragd/scoring/state.py`.
    pub fn save(&mut self) -> Vec<u8> {
        state::save(self)
    }

    /// Takes a state over. On an error, which names the reason, nothing changes.
    pub fn restore(&mut self, data: &[u8]) -> Result<(), String> {
        state::restore(self, data)
    }

    /// Last window, tenth of a window and step that were scored of a job.
    #[must_use]
    pub fn ends(&self, job: u64) -> Option<Ends> {
        let job = self.jobs.get(&job)?;
        let step = job.ranks.identities.last_steps.iter().copied().max().unwrap_or_default();
        Some(Ends { window: job.window?, tenth: job.fast.last, step })
    }

    /// Every job that is known.
    pub fn jobs(&self) -> impl Iterator<Item = u64> + '_ {
        self.jobs.keys().copied()
    }

    /// Forgets a job.
    pub fn forget(&mut self, job: u64) {
        self.jobs.remove(&job);
    }

    fn update_job(&mut self, rows: &[RankWindow], update: &mut Update) {
        let Some(first) = rows.first() else { return };
        self.calls += 1;
        if let Some(job) = self.jobs.get_mut(&first.job) {
            if job.update_at_once(rows, &self.config, &mut self.next_id, update) {
                job.last_call = self.calls;
                return;
            }
        }
        let known = self.jobs.get(&first.job);
        let (last, tenth) = (known.and_then(|job| job.window), known.and_then(|job| job.fast.last));
        self.accepted.choose(rows, last, tenth);
        update.refused_rows += (rows.len() - self.accepted.places.len()) as u64;
        let Some(&accepted) = self.accepted.places.first() else { return };
        if rows[accepted as usize].flags & flag::TENTH != 0 {
            // Tenths of a job without a window tell nothing.
            if let Some(job) = self.jobs.get_mut(&first.job).filter(|_| last.is_some()) {
                job.last_call = self.calls;
                job.update_tenth(rows, &self.accepted, &self.config, &mut self.next_id, update);
            }
            return;
        }
        if !self.jobs.contains_key(&first.job) && self.jobs.len() >= MAX_JOBS {
            let silent = self.jobs.iter().min_by_key(|(_, job)| job.last_call).map(|(key, _)| *key);
            silent.map(|key| self.jobs.remove(&key));
        }
        let job = self.jobs.entry(first.job).or_default();
        job.last_call = self.calls;
        job.update(rows, &self.accepted, &self.config, &mut self.next_id, update);
    }
}
