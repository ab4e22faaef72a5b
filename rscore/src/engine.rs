//! The threads of one node: discovery and attach, drain and windows.
//!
//! Lock order, where two are held: `attacher` or `rings` before `pipeline`. No lock is held while a probe is
//! detached except `attacher` itself, so the drain never waits for the kernel's detach.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::discover;
use crate::discover::library::{Kinds, Wanted};
use crate::discover::process::ProcessKey;
use crate::probes::{self, Drain, Probes};
use crate::ring::control::Control;
use crate::ring::status::RingStatus;
use crate::steps::{self, Pipeline};
use crate::window::RankWindow;

mod attach;
mod clock;
mod discovery;
mod rings;
mod timing;

use attach::Attacher;
pub use attach::{LibraryState, LibraryStatus};
use rings::Rings;
use timing::RunTiming;

/// Windows kept for the caller; beyond it the oldest is dropped and counted.
const MAX_WINDOWS: usize = 4_096;
/// How often windows are closed by time and losses are read.
const TICK: Duration = Duration::from_millis(200);
/// How long the drain sleeps unless the ring fills up meanwhile, which wakes it.
const PAUSE: Duration = Duration::from_millis(100);
/// How long it sleeps while a ring of a job has more than one turn may cost: no job may keep it
/// busy all the time.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// Everything the engine needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    pub probes: probes::Options,
    pub allow_single_step: bool,
    /// Let the kernel measure the BPF program's run time now and then.
    pub measure_run_time: bool,
    /// Time between two sweeps of `/proc`.
    pub sweep: Duration,
    pub max_processes: usize,
    pub windows: steps::Config,
}

/// A library without processes is kept attached this long: short jobs in a row share a link.
const LINGER: Duration = Duration::from_secs(10);

impl Config {
    fn discovery(&self) -> discover::Config {
        let names = |nccl, rccl, gloo| probes::names(&probes::Kinds { nccl, rccl, gloo });
        let nccl = names(true, false, false);
        let only_rccl = |name: &String| !nccl.contains(name);
        let rccl = names(false, true, false).into_iter().filter(only_rccl).collect();
        let wanted = Wanted { rccl, gloo: names(false, false, true), nccl };
        let (sweep, max_processes) = (self.sweep, self.max_processes);
        discover::Config { sweep, max_processes, wanted, linger: LINGER, sideband: true }
    }
}

/// A process uses libraries of these kinds, or (`None`) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessChange {
    pub process: ProcessKey,
    pub kinds: Option<Kinds>,
}

/// One line that names the thing, the reason and the way out.
#[derive(Debug)]
pub struct Error(pub String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

struct Shared {
    stop: AtomicBool,
    /// Turns of the drain thread.
    progress: AtomicU64,
    pipeline: Mutex<Pipeline>,
    attacher: Mutex<Attacher>,
    rings: Mutex<Rings>,
    changes: Mutex<VecDeque<ProcessChange>>,
    windows: Mutex<VecDeque<Vec<RankWindow>>>,
    windows_ready: Condvar,
    discovery: Mutex<discovery::Figures>,
    dropped_changes: AtomicU64,
    dropped_windows: AtomicU64,
    /// The kernel lets us measure the BPF program's run time.
    measurable: AtomicBool,
}

/// Discovery, probes, drain and windows of one node.
pub struct Engine {
    config: Config,
    shared: Arc<Shared>,
    /// Until the drain thread takes it; in a mutex because a Drain is for one thread.
    drain: Mutex<Option<Drain>>,
    threads: Vec<JoinHandle<()>>,
}

/// A poisoned lock means that another thread panicked; its data is still whole events and rows,
/// and a monitor that goes on is worth more than one that follows it down.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Engine {
    /// Loads the BPF object; attaches nothing yet.
    ///
    /// # Errors
    /// Where the kernel refuses, with the missing capability or feature named.
    pub fn new(config: Config) -> Result<Self, Error> {
        let failed = |e: probes::Error| Error(e.to_string());
        let (mut probes, drain) = Probes::load(&config.probes).map_err(failed)?;
        // A refusal costs one figure, not the daemon.
        let measurable = config.measure_run_time && probes.measure_run_time(true).is_ok();
        probes.measure_run_time(false).map_err(failed)?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            pipeline: Mutex::new(Pipeline::new(config.windows)),
            attacher: Mutex::new(Attacher::new(probes, config.allow_single_step)),
            rings: Mutex::default(),
            changes: Mutex::default(),
            windows: Mutex::default(),
            windows_ready: Condvar::new(),
            discovery: Mutex::default(),
            dropped_changes: AtomicU64::new(0),
            dropped_windows: AtomicU64::new(0),
            measurable: AtomicBool::new(measurable),
        });
        Ok(Self { config, shared, drain: Mutex::new(Some(drain)), threads: Vec::new() })
    }

    /// Starts the threads; a second call does nothing.
    ///
    /// # Errors
    /// Where a thread cannot be started.
    pub fn start(&mut self) -> Result<(), Error> {
        let Some(drain) = lock(&self.drain).take() else { return Ok(()) };
        let shared = Arc::clone(&self.shared);
        self.spawn("stragd-drain", move || drain_loop(&shared, drain))?;
        let shared = Arc::clone(&self.shared);
        let config = self.config.discovery();
        self.spawn("stragd-discover", move || discovery::run(&shared, config))
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Error> {
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(body)
            .map_err(|e| Error(format!("cannot start thread {name}: {e}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Stops the threads and detaches everything; safe to call twice.
    pub fn close(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.windows_ready.notify_all();
        // While the threads come to their end; nothing is attached from now on.
        lock(&self.shared.attacher).close();
        for thread in self.threads.drain(..) {
            // A thread that panicked has already said so on stderr.
            let _ = thread.join();
        }
    }

    /// Changes of processes since the last call, oldest first.
    #[must_use]
    pub fn take_changes(&self) -> Vec<ProcessChange> {
        lock(&self.shared.changes).drain(..).collect()
    }

    /// Says who a process is; false when it is already gone.
    pub fn assign(
        &self,
        pid: u32,
        start_time: u64,
        job: u64,
        rank: u32,
        world_size: u32,
        class_id: u32,
    ) -> bool {
        lock(&self.shared.pipeline).assign(pid, start_time, job, rank, world_size, class_id)
    }

    /// Waits for closed windows at most `timeout`; one vector of rows per window.
    #[must_use]
    pub fn take_windows(&self, timeout: Duration) -> Vec<Vec<RankWindow>> {
        let deadline = Instant::now() + timeout;
        let mut windows = lock(&self.shared.windows);
        while windows.is_empty() && !self.shared.stop.load(Ordering::Relaxed) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            windows = match self.shared.windows_ready.wait_timeout(windows, left) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        windows.drain(..).collect()
    }

    /// What is known of every process that issues collectives.
    #[must_use]
    pub fn ranks(&self) -> Vec<steps::RankStatus> {
        lock(&self.shared.pipeline).ranks()
    }

    /// Every library seen, attached or not.
    #[must_use]
    pub fn libraries(&self) -> Vec<LibraryStatus> {
        let uses = lock(&self.shared.discovery).uses.clone();
        lock(&self.shared.attacher).statuses(&uses)
    }

    /// Every ring: read, ended or refused.
    #[must_use]
    pub fn rings(&self) -> Vec<RingStatus> {
        let (handles, others) = lock(&self.shared.rings).handles();
        rings::statuses(handles, others)
    }

    /// Asks the plugins of `pid`, or of all processes and those to come; returns how many rings
    /// could be asked.
    pub fn set_ring(&self, control: Control, pid: Option<u32>) -> usize {
        lock(&self.shared.rings).ask(control, pid)
    }

    /// Kill switch: off detaches every probe before it returns, on attaches them again.
    pub fn set_probes(&self, on: bool) {
        lock(&self.shared.attacher).set_enabled(on);
    }

    /// Grows while the drain thread lives.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.shared.progress.load(Ordering::Relaxed)
    }

    /// Self-measurement under flat names.
    #[must_use]
    pub fn counters(&self) -> Vec<(String, f64)> {
        let mut figures = lock(&self.shared.attacher).counters();
        figures.extend(lock(&self.shared.rings).counters());
        let pipeline = lock(&self.shared.pipeline).counters();
        let discovery = lock(&self.shared.discovery).clone();
        let mut put = |name: &str, value: f64| figures.push((name.into(), value));
        let measurable = self.shared.measurable.load(Ordering::Relaxed);
        put("bpf_run_measured", f64::from(u8::from(measurable)));
        put("discovery_lag_seconds", discovery.lag_seconds);
        put("sideband", f64::from(u8::from(discovery.sideband_error.is_empty())));
        put("sideband_lost", discovery.sideband_lost as f64);
        put("processes", discovery.counters.processes as f64);
        put("lost.process_limit", discovery.counters.refused_processes as f64);
        put("lost.pipeline", pipeline.dropped_events as f64);
        let dropped = self.shared.dropped_windows.load(Ordering::Relaxed);
        put("lost.windows", (dropped + pipeline.dropped_windows) as f64);
        put("lost.changes", self.shared.dropped_changes.load(Ordering::Relaxed) as f64);
        put("windows", pipeline.windows as f64);
        figures
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.close();
    }
}

fn drain_loop(shared: &Shared, mut drain: Drain) {
    let mut next_tick = Instant::now();
    let mut timing = RunTiming::default();
    let (mut lost, mut since_tick) = (0, 0);
    while !shared.stop.load(Ordering::Relaxed) {
        let drained = {
            let mut pipeline = lock(&shared.pipeline);
            drain.drain(|event| pipeline.on_event(event))
        };
        since_tick += drained;
        let more = read_rings(shared);
        let now = Instant::now();
        if now >= next_tick {
            next_tick = now + TICK;
            tick(shared, &mut lost);
            time_runs(shared, &mut timing, since_tick > 0, now);
            since_tick = 0;
        }
        shared.progress.fetch_add(1, Ordering::Relaxed);
        if drained == 0 || drain.fill() < 0.25 {
            drain.wait(if more { SHORT_PAUSE } else { PAUSE });
        }
    }
}

/// One turn of every ring; true when there is more.
fn read_rings(shared: &Shared) -> bool {
    let mut rings = lock(&shared.rings);
    !rings.is_empty() && rings.turn(&mut lock(&shared.pipeline))
}

/// Starts and stops the kernel's measurement; while somebody attaches, the next tick will do.
fn time_runs(shared: &Shared, timing: &mut RunTiming, busy: bool, now: Instant) {
    if !shared.measurable.load(Ordering::Relaxed) {
        return;
    }
    let Some(on) = timing.due(busy, now) else { return };
    if let Ok(mut attacher) = shared.attacher.try_lock() {
        if attacher.measure(on) {
            timing.switched(on, now);
        } else {
            shared.measurable.store(false, Ordering::Relaxed);
        }
    }
}

fn tick(shared: &Shared, lost: &mut u64) {
    // While somebody attaches or detaches, the last known figure will do.
    if let Ok(attacher) = shared.attacher.try_lock() {
        *lost = attacher.lost_events();
    }
    let closed = {
        let mut pipeline = lock(&shared.pipeline);
        pipeline.tick(clock::monotonic_ns(), clock::realtime_ns(), *lost);
        pipeline.take_windows()
    };
    if closed.is_empty() {
        return;
    }
    let mut windows = lock(&shared.windows);
    windows.extend(closed);
    while windows.len() > MAX_WINDOWS {
        windows.pop_front();
        shared.dropped_windows.fetch_add(1, Ordering::Relaxed);
    }
    shared.windows_ready.notify_all();
}
