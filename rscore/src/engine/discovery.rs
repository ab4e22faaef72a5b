//! The discovery thread: processes, libraries and rings that come and go.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::discover::library::Kind;
use crate::discover::{self, Change, Discovery};

use super::rings::Finder;
use super::{lock, ProcessChange, Shared};

/// How often the discovery thread looks for processes that only their events tell of.
const LOOK: Duration = Duration::from_millis(250);
/// How often its figures are made anew although nothing is known to have changed.
const PUBLISH: Duration = Duration::from_secs(1);
/// Changes of processes kept for the caller; beyond it the oldest is dropped and counted.
const MAX_CHANGES: usize = 65_536;

/// What the discovery thread publishes of itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Figures {
    pub(super) lag_seconds: f64,
    pub(super) sideband_lost: u64,
    /// Empty where there is a side-band.
    pub(super) sideband_error: String,
    pub(super) counters: discover::Counters,
    pub(super) uses: Vec<discover::LibraryUse>,
}

/// Discovery's loop.
pub(super) fn run(shared: &Shared, config: discover::Config) {
    let mut discovery = Discovery::new(config);
    let mut finder = Finder::new();
    let mut publish_at = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let mut gone = Vec::new();
        let changes = discovery.poll(LOOK);
        let changed = !changes.is_empty();
        for change in changes {
            apply(shared, change, &mut finder, &mut gone);
        }
        if !gone.is_empty() {
            lock(&shared.attacher).forget(&gone);
        }
        finder.look(|process, sight| {
            let mut rings = lock(&shared.rings);
            rings.found(process, sight, &mut lock(&shared.pipeline))
        });
        // A forked worker maps nothing anew, so only its events tell of it.
        let strangers = lock(&shared.pipeline).strangers();
        strangers.into_iter().for_each(|pid| discovery.touch(pid));
        let now = Instant::now();
        if changed || now >= publish_at {
            publish_at = now + PUBLISH;
            *lock(&shared.discovery) = Figures {
                lag_seconds: discovery.lag(),
                sideband_lost: discovery.sideband_lost(),
                sideband_error: discovery.sideband_error().into(),
                counters: discovery.counters(),
                uses: discovery.statuses(),
            };
        }
    }
}

fn apply(shared: &Shared, change: Change, finder: &mut Finder, gone: &mut Vec<u32>) {
    match change {
        Change::Library(library) => lock(&shared.attacher).add(library),
        Change::LibraryUnused(id) => lock(&shared.attacher).remove(id),
        Change::Seen { process, kinds } => {
            lock(&shared.pipeline).seen(process.pid, process.start_time);
            if kinds.contains(Kind::Nccl) || kinds.contains(Kind::Rccl) {
                finder.seen(process);
            }
            push_change(shared, ProcessChange { process, kinds: Some(kinds) });
        }
        Change::Gone { process } => {
            gone.push(process.pid);
            finder.gone(process);
            {
                // What its ring still holds comes before its end.
                let mut rings = lock(&shared.rings);
                rings.gone(process, &mut lock(&shared.pipeline));
            }
            lock(&shared.pipeline).gone(process.pid, process.start_time);
            push_change(shared, ProcessChange { process, kinds: None });
        }
    }
}

fn push_change(shared: &Shared, change: ProcessChange) {
    let mut changes = lock(&shared.changes);
    if changes.len() >= MAX_CHANGES {
        changes.pop_front();
        shared.dropped_changes.fetch_add(1, Ordering::Relaxed);
    }
    changes.push_back(change);
}
