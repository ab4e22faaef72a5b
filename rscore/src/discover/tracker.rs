//! Which process uses which library: pure bookkeeping, every rule of discovery in one place.

use std::collections::HashMap;

use super::library::{Kinds, LibraryId};
use super::process::{ProcessKey, Stat};

/// What the bookkeeping tells the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Seen(ProcessKey, Kinds),
    Gone(ProcessKey),
    Unused(LibraryId),
}

struct Process {
    /// `None` for a forked child that nobody has looked at yet.
    stat: Option<Stat>,
    /// When the look began, or the fork was: CLOCK_MONOTONIC ns. Older records are old news.
    since: u64,
    libraries: Vec<(LibraryId, Kinds)>,
    kinds: Kinds,
}

/// Processes with libraries, and how many processes each library has.
pub(super) struct Tracker {
    processes: HashMap<u32, Process>,
    users: HashMap<LibraryId, usize>,
    max_processes: usize,
    refused: u64,
    events: Vec<Event>,
}

impl Tracker {
    pub(super) fn new(max_processes: usize) -> Self {
        Tracker {
            processes: HashMap::new(),
            users: HashMap::new(),
            max_processes,
            refused: 0,
            events: Vec::new(),
        }
    }

    /// What happened since the last call, in order.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn is_tracked(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Whether a process of this pid was looked at; forked children were not.
    pub(super) fn is_examined(&self, pid: u32) -> bool {
        self.key(pid).is_some()
    }

    /// Key of a process that was looked at.
    pub(super) fn key(&self, pid: u32) -> Option<ProcessKey> {
        self.processes.get(&pid)?.stat.map(|s| s.key)
    }

    pub(super) fn is_used(&self, library: LibraryId) -> bool {
        self.users.contains_key(&library)
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.processes.keys().copied().collect()
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Processes left out because there are too many.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Pids by library, forked children included.
    pub(super) fn pids_of(&self, library: LibraryId) -> Vec<u32> {
        let uses = |p: &Process| p.libraries.iter().any(|(id, _)| *id == library);
        let mut pids: Vec<u32> =
            self.processes.iter().filter(|(_, p)| uses(p)).map(|(pid, _)| *pid).collect();
        pids.sort_unstable();
        pids
    }

    /// A process was looked at from `since` on and maps exactly `libraries`.
    pub(super) fn examined(&mut self, stat: Stat, since: u64, libraries: Vec<(LibraryId, Kinds)>) {
        let pid = stat.key.pid;
        if libraries.is_empty() {
            return self.gone(pid);
        }
        if !self.has_room_for(pid) {
            return;
        }
        let kinds = libraries.iter().fold(Kinds::default(), |all, (_, k)| all.union(*k));
        for (id, _) in &libraries {
            *self.users.entry(*id).or_default() += 1;
        }
        // Another start time is another process; another image is an exec that we missed. Only
        // after the count above: what both use is never unused in between.
        let known = self.processes.get(&pid).and_then(|p| p.stat);
        if known.is_some_and(|k| k != stat) {
            self.gone(pid);
        }
        let new = Process { stat: Some(stat), since, libraries, kinds };
        let old = self.processes.insert(pid, new);
        let same = old.as_ref().is_some_and(|o| o.stat.is_some() && o.kinds == kinds);
        if !same {
            self.events.push(Event::Seen(stat.key, kinds));
        }
        if let Some(old) = old {
            self.release(old);
        }
    }

    /// A process ended, or has no library any more.
    pub(super) fn gone(&mut self, pid: u32) {
        if let Some(process) = self.processes.remove(&pid) {
            if let Some(stat) = process.stat {
                self.events.push(Event::Gone(stat.key));
            }
            self.release(process);
        }
    }

    /// A process became another program at `time`; what the new one maps is yet to be seen.
    pub(super) fn exec(&mut self, pid: u32, time: u64) {
        if self.processes.get(&pid).is_some_and(|p| p.since < time) {
            self.gone(pid);
        }
    }

    /// A child has its parent's mappings without any record of them. It is no news until it is
    /// looked at, but its libraries are in use from now on.
    pub(super) fn forked(&mut self, parent: u32, child: u32, time: u64) {
        let Some(from) = self.processes.get(&parent) else { return };
        if self.processes.get(&child).is_some_and(|c| c.since >= time) {
            return;
        }
        let (libraries, kinds) = (from.libraries.clone(), from.kinds);
        let new = Process { stat: None, since: time, libraries, kinds };
        if !self.has_room_for(child) {
            return;
        }
        for (id, _) in &new.libraries {
            *self.users.entry(*id).or_default() += 1;
        }
        // An old process of that pid is gone, whether or not we saw it go.
        self.gone(child);
        self.processes.insert(child, new);
    }

    fn has_room_for(&mut self, pid: u32) -> bool {
        let room = self.processes.contains_key(&pid) || self.processes.len() < self.max_processes;
        self.refused += u64::from(!room);
        room
    }

    fn release(&mut self, process: Process) {
        for (id, _) in process.libraries {
            if let Some(users) = self.users.get_mut(&id) {
                *users -= 1;
                if *users == 0 {
                    self.users.remove(&id);
                    self.events.push(Event::Unused(id));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::library::Kind;

    fn stat(pid: u32, start_time: u64, image: u64) -> Stat {
        Stat { key: ProcessKey { pid, start_time }, image }
    }

    fn library(id: u32, kind: Kind) -> (LibraryId, Kinds) {
        let mut kinds = Kinds::default();
        kinds.insert(kind);
        (LibraryId(id), kinds)
    }

    fn nccl(id: u32) -> Vec<(LibraryId, Kinds)> {
        vec![library(id, Kind::Nccl)]
    }

    #[test]
    fn seen_once_gone_once_unused_with_the_last() {
        let mut t = Tracker::new(10);
        for pid in [4, 5] {
            t.examined(stat(pid, 1, 1), 10, nccl(0));
            t.examined(stat(pid, 1, 1), 10, nccl(0));
        }
        assert_eq!(t.take().len(), 2);
        t.gone(4);
        assert_eq!(t.take(), [Event::Gone(stat(4, 1, 1).key)]);
        t.gone(5);
        t.gone(5);
        assert_eq!(t.take(), [Event::Gone(stat(5, 1, 1).key), Event::Unused(LibraryId(0))]);
        assert_eq!(t.len(), 0);
    }

    #[test]
    fn a_reused_pid_and_a_missed_exec_are_new_processes() {
        let mut t = Tracker::new(10);
        for (start, image) in [(1, 1), (2, 9), (2, 10)] {
            t.examined(stat(4, start, image), 10, nccl(start as u32));
            assert!(t.is_used(LibraryId(start as u32)));
        }
        let events = t.take();
        let seen = events.iter().filter(|e| matches!(e, Event::Seen(..))).count();
        let gone = events.iter().filter(|e| matches!(e, Event::Gone(..))).count();
        assert_eq!((seen, gone), (3, 2), "{events:?}");
        let unused: Vec<_> = events.iter().filter(|e| matches!(e, Event::Unused(_))).collect();
        assert_eq!(unused, [&Event::Unused(LibraryId(1))]);
        assert_eq!(t.key(4).unwrap().start_time, 2);
    }

    #[test]
    fn a_second_library_is_seen_with_both_kinds_and_a_closed_one_leaves() {
        let mut t = Tracker::new(10);
        t.examined(stat(4, 1, 1), 10, vec![library(0, Kind::Gloo)]);
        t.examined(stat(4, 1, 1), 10, vec![library(0, Kind::Gloo), library(1, Kind::Nccl)]);
        let both = library(0, Kind::Gloo).1.union(library(1, Kind::Nccl).1);
        assert_eq!(t.take()[1], Event::Seen(stat(4, 1, 1).key, both));
        t.examined(stat(4, 1, 1), 10, Vec::new());
        assert_eq!(
            t.take(),
            [
                Event::Gone(stat(4, 1, 1).key),
                Event::Unused(LibraryId(0)),
                Event::Unused(LibraryId(1))
            ]
        );
    }

    #[test]
    fn a_forked_worker_holds_the_library_and_is_news_only_when_looked_at() {
        let mut t = Tracker::new(10);
        t.examined(stat(4, 1, 1), 10, nccl(0));
        t.take();
        t.forked(4, 5, 20);
        t.forked(99, 100, 20);
        assert!(t.is_tracked(5) && !t.is_examined(5) && !t.is_tracked(100));
        t.gone(4);
        assert_eq!(t.take(), [Event::Gone(stat(4, 1, 1).key)]);
        assert_eq!(t.pids_of(LibraryId(0)), [5]);
        t.examined(stat(5, 3, 1), 10, nccl(0));
        assert_eq!(t.take(), [Event::Seen(stat(5, 3, 1).key, nccl(0)[0].1)]);
        t.gone(5);
        assert_eq!(t.take().len(), 2);
    }

    #[test]
    fn the_limit_holds_and_is_counted() {
        let mut t = Tracker::new(3);
        for pid in 1..=5 {
            t.examined(stat(pid, 1, 1), 10, nccl(0));
        }
        t.forked(1, 50, 20);
        assert_eq!((t.len(), t.refused()), (3, 3));
        t.gone(1);
        t.examined(stat(9, 1, 1), 10, nccl(0));
        assert_eq!(t.len(), 3);
    }

    #[test]
    fn records_older_than_the_look_change_nothing() {
        let mut t = Tracker::new(10);
        t.examined(stat(4, 1, 1), 10, nccl(0));
        t.examined(stat(5, 1, 1), 10, nccl(0));
        t.take();
        t.exec(4, 9);
        t.forked(4, 5, 8);
        assert_eq!(t.take(), []);
        assert!(t.is_examined(4) && t.is_examined(5));
        t.exec(4, 11);
        assert_eq!(t.take(), [Event::Gone(stat(4, 1, 1).key)]);
    }
}
