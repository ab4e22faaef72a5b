//! Which library files carry probes, and what became of each.

use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::discover::library::{Kind, Library, LibraryId};
use crate::discover::LibraryUse;
use crate::probes::{self, LinkId, Plan, Probes};
use crate::wire;

/// What became of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LibraryState {
    Attached,
    /// The code is there, its symbols are not (static and hidden).
    NotProbeable,
    Failed,
    /// The kill switch is off.
    Off,
}

impl LibraryState {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Attached => "attached",
            Self::NotProbeable => "not-probeable",
            Self::Failed => "failed",
            Self::Off => "off",
        }
    }
}

/// One library as `doctor` and the metrics show it.
#[derive(Clone, Debug)]
pub struct LibraryStatus {
    pub library: Arc<Library>,
    pub state: LibraryState,
    pub method: &'static str,
    pub probes: usize,
    pub refused: Vec<(String, String)>,
    pub missing: Vec<String>,
    pub error: String,
    pub processes: Vec<u32>,
}

struct Entry {
    library: Arc<Library>,
    plan: Plan,
    link: Option<LinkId>,
    error: String,
}

/// Owns the probes and the links; the one place that attaches and detaches.
pub struct Attacher {
    probes: Probes,
    allow_single_step: bool,
    enabled: bool,
    entries: HashMap<LibraryId, Entry>,
    /// Attach failures since start, by reason.
    failures: HashMap<&'static str, u64>,
}

impl Attacher {
    pub fn new(probes: Probes, allow_single_step: bool) -> Self {
        Self {
            probes,
            allow_single_step,
            enabled: true,
            entries: HashMap::new(),
            failures: HashMap::new(),
        }
    }

    /// A library is mapped for the first time: plan its probes and attach them.
    pub fn add(&mut self, library: Arc<Library>) {
        let kinds = probes::Kinds {
            nccl: library.kinds.contains(Kind::Nccl),
            rccl: library.kinds.contains(Kind::Rccl),
            gloo: library.kinds.contains(Kind::Gloo),
        };
        let code = |offset: u64, buffer: &mut [u8]| library.file.read_at(buffer, offset);
        let plan = probes::plan(&kinds, &library.symbols, code, self.allow_single_step);
        let id = library.id;
        let mut entry = Entry { library, plan, link: None, error: String::new() };
        if self.enabled {
            attach(&mut self.probes, &mut self.failures, &mut entry);
        }
        if let Some(old) = self.entries.insert(id, entry).and_then(|old| old.link) {
            self.probes.detach(old);
        }
    }

    /// The last process of a library is gone: close its link and forget it.
    pub fn remove(&mut self, id: LibraryId) {
        if let Some(link) = self.entries.remove(&id).and_then(|entry| entry.link) {
            self.probes.detach(link);
        }
    }

    /// Processes are gone: their claims must not meet the next owners of their pids.
    pub fn forget(&mut self, pids: &[u32]) {
        self.probes.purge_all(pids);
    }

    /// Detaches everything (before it returns), or attaches everything again.
    pub fn set_enabled(&mut self, on: bool) {
        self.enabled = on;
        for entry in self.entries.values_mut() {
            match (on, entry.link) {
                (true, None) => attach(&mut self.probes, &mut self.failures, entry),
                (false, Some(link)) => {
                    self.probes.detach(link);
                    entry.link = None;
                }
                _ => {}
            }
        }
    }

    /// Detaches everything for good.
    pub fn close(&mut self) {
        self.set_enabled(false);
        self.entries.clear();
    }

    pub fn statuses(&self, uses: &[LibraryUse]) -> Vec<LibraryStatus> {
        let mut all: Vec<_> = self.entries.values().map(|entry| self.status(entry)).collect();
        for status in &mut all {
            if let Some(found) = uses.iter().find(|u| u.library.id == status.library.id) {
                status.processes.clone_from(&found.pids);
            }
        }
        all.sort_by_key(|status| status.library.id);
        all
    }

    fn status(&self, entry: &Entry) -> LibraryStatus {
        let state = if entry.link.is_some() {
            LibraryState::Attached
        } else if entry.plan.sites.is_empty() {
            LibraryState::NotProbeable
        } else if self.enabled {
            LibraryState::Failed
        } else {
            LibraryState::Off
        };
        let attached = entry.link.is_some();
        LibraryStatus {
            library: Arc::clone(&entry.library),
            state,
            method: if attached { self.probes.method().name() } else { "" },
            probes: if attached { entry.plan.sites.len() } else { 0 },
            refused: entry.plan.refused.clone(),
            missing: entry.plan.missing.clone(),
            error: entry.error.clone(),
            processes: Vec::new(),
        }
    }

    /// Lets the kernel time the program, or stop; false where it refuses.
    pub fn measure(&mut self, on: bool) -> bool {
        self.probes.measure_run_time(on).is_ok()
    }

    /// Events that were lost in the kernel since the start.
    pub fn lost_events(&self) -> u64 {
        self.probes.lost_total().unwrap_or(0)
    }

    /// Counters of the BPF side and of attaching, under flat names.
    pub fn counters(&self) -> Vec<(String, f64)> {
        let counters = self.probes.counters().unwrap_or_default();
        let mut figures = Vec::with_capacity(64);
        let named = |(what, name): &(usize, &&str)| *what > 0 && !name.is_empty();
        for (what, name) in wire::what::NAMES.iter().enumerate().filter(named) {
            figures.push((format!("events.{name}"), counters.events[what] as f64));
            figures.push((format!("lost.{name}"), counters.lost[what] as f64));
        }
        for reason in ["permission", "kernel"] {
            let count = self.failures.get(reason).copied().unwrap_or(0);
            figures.push((format!("attach_failures.{reason}"), count as f64));
        }
        let mut put = |name: &str, value: f64| figures.push((name.into(), value));
        let duplicates: u64 = counters.duplicates.iter().map(|(_, hits)| hits).sum();
        put("duplicate_hits", duplicates as f64);
        put("ignored_hits", counters.ignored as f64);
        put("claims_full", counters.claim_full as f64);
        put("communicators_full", counters.comm_full as f64);
        put("read_failed", counters.read_failed as f64);
        put("bpf_run_seconds", counters.run_time.as_secs_f64());
        put("bpf_run_count", counters.run_count as f64);
        figures
    }
}

fn attach(probes: &mut Probes, failures: &mut HashMap<&'static str, u64>, entry: &mut Entry) {
    if entry.plan.sites.is_empty() {
        return;
    }
    match probes.attach(&entry.library.file, &entry.plan.sites) {
        Ok(link) => {
            entry.link = Some(link);
            entry.error.clear();
        }
        Err(error) => {
            let reason = if error.is_permission() { "permission" } else { "kernel" };
            *failures.entry(reason).or_default() += 1;
            entry.error = error.to_string();
        }
    }
}
