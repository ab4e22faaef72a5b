//! Finds the processes that use a collective library, and the library files themselves.
//!
//! ```text
//! perf side-band ─► records ─┐
//!                            ├─► examine (maps ─► map_files ─► ELF) ─► tracker ─► changes
//! /proc sweep ─► pids ───────┘
//! ```
//!
//! The side-band tells at once, the sweep is always right in the end.

mod cache;
pub mod elf;
mod examine;
mod headers;
pub mod library;
pub mod maps;
mod mounts;
mod perf_ring;
pub mod process;
mod reader;
mod records;
mod resolver;
pub mod sideband;
mod text;
mod tracker;

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use self::cache::{FileCache, Verdict};
use self::examine::Look;
use self::library::{Kinds, Library, LibraryId, Wanted};
use self::process::ProcessKey;
use self::resolver::Resolver;
use self::sideband::{FileKey, Record, Sideband};
use self::tracker::{Event, Tracker};

/// Time between two reads of the side-band: a busy node must not wake us for every record.
const COALESCE: Duration = Duration::from_millis(5);
/// Work done in one go before the side-band is read again.
const SLICE: Duration = Duration::from_millis(50);
/// Work done in the first call, which sweeps.
const FIRST_SLICE: Duration = Duration::from_secs(20);
/// While the side-band loses nothing, only every so many sweeps looks at processes that an
/// earlier one has looked at: a look costs some 200 us of CPU time.
const FULL_SWEEP_EVERY: u64 = 8;
/// Sweeps that lost records may cause: one a second.
const EARLY_SWEEP: Duration = Duration::from_secs(1);
/// Processes waiting for a look, files known to be quiet, exits waiting for a check.
const MAX_PENDING: usize = 65_536;

/// What to look for and how often.
#[derive(Clone, Debug)]
pub struct Config {
    /// Time between two sweeps of `/proc`.
    pub sweep: Duration,
    /// Processes tracked at most, forked workers included.
    pub max_processes: usize,
    pub wanted: Wanted,
    /// Time that a library without processes is kept: short jobs one after the other should
    /// not cost a detach and an attach each.
    pub linger: Duration,
    /// False: sweep only.
    pub sideband: bool,
}

/// News for the engine, in order: a library comes before its first process, and is unused
/// after its last.
#[derive(Clone, Debug)]
pub enum Change {
    /// First mapping of a library: attach now.
    Library(Arc<Library>),
    /// A process uses libraries of these kinds; said again when the kinds change.
    Seen { process: ProcessKey, kinds: Kinds },
    /// It ended, became another program, or closed its last library.
    Gone { process: ProcessKey },
    /// No process maps the library any more: close its links.
    LibraryUnused(LibraryId),
}

/// A library and the processes that map it.
#[derive(Clone, Debug)]
pub struct LibraryUse {
    pub library: Arc<Library>,
    /// Forked workers included.
    pub pids: Vec<u32>,
}

/// Self-measurement; everything counts from the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Looks at processes.
    pub examined: u64,
    /// Looks into files.
    pub inspected: u64,
    /// Files and processes that the kernel did not let us see.
    pub denied: u64,
    /// Files whose filesystem did not answer in time.
    pub unresponsive: u64,
    /// Files that could not be read, or cost too much to read.
    pub unreadable: u64,
    /// Looks given up because the process changed its mappings all the time.
    pub restless: u64,
    /// Processes beyond `max_processes`.
    pub refused_processes: u64,
    /// Libraries beyond the limit of open files.
    pub refused_libraries: u64,
    /// Sweeps of `/proc`.
    pub sweeps: u64,
    /// Time spent in the last whole sweep, ns.
    pub sweep_ns: u64,
    /// Records of the side-band, and their bytes.
    pub records: u64,
    pub record_bytes: u64,
    /// Processes tracked and files remembered now.
    pub processes: u64,
    pub files: u64,
    /// Threads left behind in reads of filesystems that do not answer.
    pub hung_threads: u64,
}

struct Waiting {
    /// CLOCK_MONOTONIC ns of the record that asked for the look; 0 where none did.
    since: u64,
    files: Vec<FileKey>,
}

/// Discovery of one node; belongs to one thread.
pub struct Discovery {
    config: Config,
    resolver: Resolver,
    tracker: Tracker,
    files: FileCache,
    libraries: HashMap<LibraryId, Arc<Library>>,
    unannounced: Vec<Arc<Library>>,
    /// Devices with a file that did not answer; left alone until the threads there are back.
    hung_devices: HashSet<u64>,
    /// Libraries without processes, and when they are given up.
    idle: HashMap<LibraryId, Instant>,
    next_library: u32,
    sideband: Option<Sideband>,
    sideband_error: String,
    records: Vec<Record>,
    /// Files that the side-band need not mention again until the next sweep.
    quiet: HashSet<FileKey>,
    waiting: HashMap<u32, Waiting>,
    queue: VecDeque<u32>,
    exits: HashMap<u32, (Instant, usize)>,
    sweep_queue: VecDeque<u32>,
    /// Pids that the last sweep found and that need no other look until a full one.
    swept: HashSet<u32>,
    lost_at_sweep: u64,
    sweep_due: Instant,
    sweep_spent: Duration,
    sweeps: u64,
    read_at: Instant,
    lost: u64,
    changes: Vec<Change>,
    counters: Counters,
    lag: f64,
    own_pid: u32,
}

impl Discovery {
    /// Opens the side-band; where the kernel refuses, discovery sweeps only and
    /// [`Discovery::sideband_error`] says why.
    pub fn new(config: Config) -> Self {
        let opened = if config.sideband {
            Sideband::open().map_err(|e| e.to_string())
        } else {
            Err("perf side-band: off".to_owned())
        };
        let (sideband, sideband_error) = match opened {
            Ok(sideband) => (Some(sideband), String::new()),
            Err(error) => (None, error),
        };
        let now = Instant::now();
        Discovery {
            resolver: Resolver::new(config.wanted.clone()),
            tracker: Tracker::new(config.max_processes),
            config,
            files: FileCache::default(),
            libraries: HashMap::new(),
            unannounced: Vec::new(),
            hung_devices: HashSet::new(),
            idle: HashMap::new(),
            next_library: 0,
            sideband,
            sideband_error,
            records: Vec::new(),
            quiet: HashSet::new(),
            waiting: HashMap::new(),
            queue: VecDeque::new(),
            exits: HashMap::new(),
            sweep_queue: VecDeque::new(),
            swept: HashSet::new(),
            lost_at_sweep: 0,
            sweep_due: now,
            sweep_spent: Duration::ZERO,
            sweeps: 0,
            read_at: now,
            lost: 0,
            changes: Vec::new(),
            counters: Counters::default(),
            lag: 0.0,
            own_pid: std::process::id(),
        }
    }

    /// Waits for news, `timeout` at most. The first call sweeps the whole of `/proc` and takes
    /// as long as that takes.
    pub fn poll(&mut self, timeout: Duration) -> Vec<Change> {
        let end = Instant::now() + timeout;
        let slice = if self.sweeps == 0 { FIRST_SLICE } else { SLICE };
        loop {
            self.read_sideband();
            self.check_exits();
            self.start_sweep_when_due();
            self.work(slice);
            self.collect();
            self.give_up_idle_libraries();
            if !self.changes.is_empty() {
                return std::mem::take(&mut self.changes);
            }
            let now = Instant::now();
            if now >= end {
                return Vec::new();
            }
            if self.queue.is_empty() && self.sweep_queue.is_empty() {
                let exits = self.exits.values().map(|(due, _)| *due);
                let dues = exits.chain(self.idle.values().copied());
                let next = dues.fold(end.min(self.sweep_due), Instant::min);
                self.wait(next.saturating_duration_since(now));
            }
        }
    }

    /// Look at a process soon: an event came from one that is not known yet, as the first
    /// collective of a forked worker does.
    pub fn touch(&mut self, pid: u32) {
        if !self.tracker.is_examined(pid) {
            self.enqueue(pid, 0, None);
        }
    }

    /// Libraries in use and who uses them.
    pub fn statuses(&self) -> Vec<LibraryUse> {
        let mut all: Vec<LibraryUse> = self
            .libraries
            .values()
            .map(|l| LibraryUse { library: Arc::clone(l), pids: self.tracker.pids_of(l.id) })
            .collect();
        all.sort_by_key(|u| u.library.id);
        all
    }

    /// Seconds from the last record that brought news to that news.
    pub fn lag(&self) -> f64 {
        self.lag
    }

    /// Records that the kernel could not hand over; each loss brings an early sweep.
    pub fn sideband_lost(&self) -> u64 {
        self.lost
    }

    /// Why there is no side-band, empty where there is one.
    pub fn sideband_error(&self) -> &str {
        &self.sideband_error
    }

    /// Self-measurement.
    pub fn counters(&self) -> Counters {
        let (records, record_bytes) = self.sideband.as_ref().map_or((0, 0), Sideband::volume);
        Counters {
            refused_processes: self.tracker.refused(),
            sweeps: self.sweeps,
            records,
            record_bytes,
            processes: self.tracker.len() as u64,
            files: self.files.len() as u64,
            hung_threads: self.resolver.hung() as u64,
            ..self.counters
        }
    }

    fn wait(&mut self, time: Duration) {
        let Some(sideband) = &mut self.sideband else {
            thread::sleep(time);
            return;
        };
        let since_read = self.read_at.elapsed();
        if since_read < COALESCE {
            thread::sleep((COALESCE - since_read).min(time));
        }
        let left = time.saturating_sub(COALESCE.saturating_sub(since_read));
        if let Err(e) = sideband.wait(left) {
            self.sideband_error = format!("perf side-band: poll: {e}");
            self.sideband = None;
        }
    }

    fn start_sweep_when_due(&mut self) {
        let now = Instant::now();
        if now < self.sweep_due || !self.sweep_queue.is_empty() {
            return;
        }
        self.sweep_due = now + self.config.sweep.max(EARLY_SWEEP);
        self.sweeps += 1;
        self.quiet.clear();
        if let Some(sideband) = &mut self.sideband {
            if let Err(e) = sideband.follow_cpus() {
                self.sideband_error = e.to_string();
            }
        }
        let Ok(pids) = process::pids() else {
            self.counters.denied += 1;
            return;
        };
        let present: HashSet<u32> = pids.iter().copied().collect();
        for pid in self.tracker.pids() {
            if !present.contains(&pid) {
                self.tracker.gone(pid);
            }
        }
        let trusted = self.sideband.is_some() && self.lost == self.lost_at_sweep;
        let full = !trusted || self.sweeps % FULL_SWEEP_EVERY == 1;
        self.lost_at_sweep = self.lost;
        let (tracker, swept) = (&self.tracker, &self.swept);
        let worker = |pid| tracker.is_tracked(pid) && !tracker.is_examined(pid);
        self.sweep_queue =
            pids.into_iter().filter(|pid| full || !swept.contains(pid) || worker(*pid)).collect();
        self.swept = present;
        if self.resolver.hung() == 0 {
            self.hung_devices.clear();
        }
        self.counters.sweep_ns = now.elapsed().as_nanos() as u64;
        self.sweep_spent = now.elapsed();
    }

    /// Looks at the processes that records named, then at those of the sweep.
    fn work(&mut self, slice: Duration) {
        let start = Instant::now();
        while start.elapsed() < slice {
            if let Some(pid) = self.queue.pop_front() {
                self.look(pid);
            } else if let Some(pid) = self.sweep_queue.pop_front() {
                let began = Instant::now();
                if pid != self.own_pid {
                    self.examine(pid);
                }
                self.sweep_spent += began.elapsed();
                if self.sweep_queue.is_empty() {
                    self.counters.sweep_ns = self.sweep_spent.as_nanos() as u64;
                }
            } else {
                return;
            }
        }
    }

    fn look(&mut self, pid: u32) {
        let Some(waiting) = self.waiting.remove(&pid) else { return };
        let before = self.changes.len();
        let look = self.examine(pid);
        if self.changes.len() > before && waiting.since != 0 {
            self.lag = monotonic_ns().saturating_sub(waiting.since) as f64 / 1e9;
        }
        let Look::Done(found) = look else { return };
        for file in waiting.files {
            let quiet = found.iter().any(|(mapping, verdict)| {
                (mapping.dev, mapping.ino) == (file.dev, file.ino) && *verdict == Verdict::Nothing
            });
            if quiet && self.quiet.len() < MAX_PENDING {
                self.quiet.insert(file);
            }
        }
    }

    /// Turns the tracker's events into changes.
    fn collect(&mut self) {
        for event in self.tracker.take() {
            match event {
                Event::Seen(process, kinds) => self.changes.push(Change::Seen { process, kinds }),
                Event::Gone(process) => self.changes.push(Change::Gone { process }),
                Event::Unused(id) => {
                    self.idle.insert(id, Instant::now() + self.config.linger);
                }
            }
        }
    }

    fn give_up_idle_libraries(&mut self) {
        let now = Instant::now();
        let tracker = &self.tracker;
        self.idle.retain(|id, _| !tracker.is_used(*id));
        let due: Vec<LibraryId> =
            self.idle.iter().filter(|(_, at)| **at <= now).map(|(id, _)| *id).collect();
        for id in due {
            self.idle.remove(&id);
            self.drop_library(id);
            self.changes.push(Change::LibraryUnused(id));
        }
    }
}

fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
