//! One look at one process: which of the files it runs code from are libraries.

use std::io;
use std::sync::Arc;

use super::cache::Verdict;
use super::library::{Content, Kinds, Library, LibraryId, Stamp};
use super::maps::{self, Mapping};
use super::reader::Error;
use super::{monotonic_ns, mounts, process, Change, Discovery};

/// Libraries open at once: each holds a file descriptor.
const MAX_LIBRARIES: usize = 256;
/// Files that may hang before unknown ones are opened on local filesystems only: one user's
/// dead mounts must not blind us to everybody's libraries.
const MAX_HUNG: usize = 4;
/// Times that `maps` is read again because it changed under the look.
const MAX_ROUNDS: usize = 4;

/// How a look ended.
pub(super) enum Look {
    /// The executable mappings, all with a verdict.
    Done(Vec<(Mapping, Verdict)>),
    /// The process ended or became another program meanwhile, or may not be looked at.
    Nothing,
}

impl Discovery {
    /// Looks at a process and books what it maps.
    pub(super) fn examine(&mut self, pid: u32) -> Look {
        self.counters.examined += 1;
        let look = self.look_at(pid);
        let failed = |v: &(Mapping, Verdict)| matches!(v.1, Verdict::Failed(_));
        let complete = matches!(&look, Look::Done(found) if !found.iter().any(failed));
        if !complete {
            self.swept.remove(&pid);
        }
        // What was found in a process that is gone by now is nobody's library.
        for library in std::mem::take(&mut self.unannounced) {
            self.drop_library(library.id);
        }
        look
    }

    fn look_at(&mut self, pid: u32) -> Look {
        let since = monotonic_ns();
        let before = match process::stat(pid) {
            Ok(Some(stat)) => stat,
            Ok(None) => {
                self.tracker.gone(pid);
                return Look::Nothing;
            }
            Err(_) => {
                self.counters.denied += 1;
                return Look::Nothing;
            }
        };
        let Some(found) = self.verdicts(pid) else { return Look::Nothing };
        match process::stat(pid) {
            Ok(Some(after)) if after == before => {}
            // Exec while we looked: its own record or the next sweep brings us back.
            Ok(Some(_)) => return Look::Nothing,
            _ => {
                self.tracker.gone(pid);
                return Look::Nothing;
            }
        }
        let mut used: Vec<(LibraryId, Kinds)> = Vec::new();
        for (_, verdict) in &found {
            if let Verdict::Library(id) = verdict {
                if let Some(library) = self.libraries.get(id) {
                    if !used.iter().any(|(known, _)| known == id) {
                        used.push((*id, library.kinds));
                    }
                }
            }
        }
        self.collect();
        self.tracker.examined(before, since, used);
        for library in std::mem::take(&mut self.unannounced) {
            if self.tracker.is_used(library.id) {
                self.changes.push(Change::Library(library));
            } else {
                self.drop_library(library.id);
            }
        }
        self.collect();
        Look::Done(found)
    }

    fn verdicts(&mut self, pid: u32) -> Option<Vec<(Mapping, Verdict)>> {
        for _ in 0..MAX_ROUNDS {
            let mappings = match maps::executable_mappings(pid) {
                Ok(mappings) => mappings,
                Err(e) => {
                    self.counters.denied += u64::from(!process::is_gone(&e));
                    return None;
                }
            };
            let mut found = Vec::with_capacity(mappings.len());
            let mut changed = false;
            for mapping in mappings {
                match self.verdict(pid, &mapping) {
                    Ok(Some(verdict)) => found.push((mapping, verdict)),
                    Ok(None) => {}
                    Err(e) if process::is_gone(&e) => changed = true,
                    Err(e) => {
                        if e.kind() == io::ErrorKind::TimedOut {
                            self.counters.unresponsive += 1;
                        } else {
                            self.counters.denied += 1;
                        }
                        // A library does not vanish because its server is slow today.
                        let last = self.files.last(mapping.dev, mapping.ino);
                        found.push((mapping, last.unwrap_or(Verdict::Failed(0))));
                    }
                }
            }
            if !changed {
                return Some(found);
            }
            // ld.so splits mappings while it loads; or the process has ended.
            if !matches!(process::stat(pid), Ok(Some(_))) {
                self.tracker.gone(pid);
                return None;
            }
        }
        self.counters.restless += 1;
        None
    }

    fn verdict(&mut self, pid: u32, mapping: &Mapping) -> io::Result<Option<Verdict>> {
        if let Some(verdict) = self.files.fresh(mapping.dev, mapping.ino, self.sweeps) {
            return Ok(Some(verdict));
        }
        let hung = self.resolver.hung();
        if hung > 0 && self.hung_devices.contains(&mapping.dev)
            || hung >= MAX_HUNG && !mounts::is_local(pid, mapping.dev)
        {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let answer = self.open_and_inspect(pid, mapping);
        if answer.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::TimedOut) {
            self.hung_devices.insert(mapping.dev);
        }
        answer
    }

    fn open_and_inspect(&mut self, pid: u32, mapping: &Mapping) -> io::Result<Option<Verdict>> {
        let (file, stamp) = self.resolver.open(pid, mapping.start, mapping.end)?;
        if !stamp.regular {
            return Ok(Some(Verdict::Nothing));
        }
        if let Some(verdict) = self.files.confirm(&stamp, self.sweeps) {
            return Ok(Some(verdict));
        }
        self.counters.inspected += 1;
        match self.resolver.inspect(file, mapping.is_likely()) {
            Ok((_, stamp, None)) => {
                self.files.insert(stamp, Verdict::Nothing, self.sweeps);
                Ok(Some(Verdict::Nothing))
            }
            Ok((file, stamp, Some(content))) => Ok(self.admit(file, stamp, content, mapping)),
            Err(Error::Io(e)) if e.kind() == io::ErrorKind::TimedOut => {
                self.files.failed(stamp, self.sweeps);
                Err(e)
            }
            Err(_) => {
                self.counters.unreadable += 1;
                self.files.failed(stamp, self.sweeps);
                Ok(self.files.last(stamp.dev, stamp.ino))
            }
        }
    }

    fn admit(
        &mut self,
        file: std::fs::File,
        stamp: Stamp,
        content: Content,
        mapping: &Mapping,
    ) -> Option<Verdict> {
        // A touched or hard-linked file has a new stamp and its old content.
        if let Some(Verdict::Library(id)) = self.files.last(stamp.dev, stamp.ino) {
            let old = self.libraries.get(&id);
            if old.is_some_and(|l| has_content(l, &content) && l.size == stamp.size) {
                self.files.insert(stamp, Verdict::Library(id), self.sweeps);
                return Some(Verdict::Library(id));
            }
        }
        if self.libraries.len() >= MAX_LIBRARIES {
            self.counters.refused_libraries += 1;
            return None;
        }
        let id = LibraryId(self.next_library);
        self.next_library += 1;
        let twin = self.libraries.values().filter(|l| {
            !content.build_id.is_empty() && has_content(l, &content) && l.size == stamp.size
        });
        let library = Arc::new(Library {
            id,
            probably_same_as: twin.map(|l| l.id).min(),
            kinds: content.kinds,
            build_id: content.build_id,
            version: content.version,
            path: mapping.path.clone(),
            file,
            dev: stamp.dev,
            ino: stamp.ino,
            size: stamp.size,
            machine: content.machine,
            symbols: content.symbols,
        });
        self.libraries.insert(id, Arc::clone(&library));
        self.unannounced.push(library);
        self.files.insert(stamp, Verdict::Library(id), self.sweeps);
        Some(Verdict::Library(id))
    }

    pub(super) fn drop_library(&mut self, id: LibraryId) {
        self.libraries.remove(&id);
        self.files.forget(id);
    }
}

fn has_content(library: &Library, content: &Content) -> bool {
    library.build_id == content.build_id
        && library.kinds == content.kinds
        && library.symbols == content.symbols
}
