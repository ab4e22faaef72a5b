//! What is known about files, so that each is looked into once.

use std::collections::HashMap;

use super::library::{LibraryId, Stamp};

/// Files remembered. A node with thousands of containers maps some ten thousand.
const MAX_FILES: usize = 65_536;
/// Looks into a file that could not be read before it counts as uninteresting.
const MAX_TRIES: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// No collectives inside.
    Nothing,
    Library(LibraryId),
    /// Could not be read; tried again at the next sweep.
    Failed(u8),
}

struct Entry {
    stamp: Stamp,
    verdict: Verdict,
    /// Sweep in which the stamp was last compared with the file.
    sweep: u64,
}

/// Verdicts by (device, inode) as statx gives them, each with the stamp that it holds for.
///
/// Deliberately not by build-id: a job could forge another library's build-id and have its own
/// symbol offsets used for everybody.
#[derive(Default)]
pub(super) struct FileCache {
    files: HashMap<(u64, u64), Entry>,
}

impl FileCache {
    /// The verdict on a file whose stamp was compared in this sweep, without opening it.
    pub(super) fn fresh(&self, dev: u64, ino: u64, sweep: u64) -> Option<Verdict> {
        self.files.get(&(dev, ino)).filter(|e| e.sweep == sweep).map(|e| e.verdict)
    }

    /// The verdict on a file with this very stamp; it is fresh for this sweep from now on.
    /// `None`: the file must be looked into.
    pub(super) fn confirm(&mut self, stamp: &Stamp, sweep: u64) -> Option<Verdict> {
        let entry = self.files.get_mut(&(stamp.dev, stamp.ino))?;
        if entry.stamp != *stamp {
            return None;
        }
        if matches!(entry.verdict, Verdict::Failed(_)) && entry.sweep != sweep {
            return None;
        }
        entry.sweep = sweep;
        Some(entry.verdict)
    }

    /// The last verdict on a file, whatever it looks like by now.
    pub(super) fn last(&self, dev: u64, ino: u64) -> Option<Verdict> {
        self.files.get(&(dev, ino)).map(|e| e.verdict)
    }

    pub(super) fn insert(&mut self, stamp: Stamp, verdict: Verdict, sweep: u64) {
        if self.files.len() >= MAX_FILES {
            self.files.retain(|_, e| matches!(e.verdict, Verdict::Library(_)));
        }
        self.files.insert((stamp.dev, stamp.ino), Entry { stamp, verdict, sweep });
    }

    /// A look into the file failed: remember to try again, but not for ever.
    pub(super) fn failed(&mut self, stamp: Stamp, sweep: u64) {
        let tries = match self.last(stamp.dev, stamp.ino) {
            Some(Verdict::Failed(tries)) => tries + 1,
            _ => 1,
        };
        let verdict = if tries < MAX_TRIES { Verdict::Failed(tries) } else { Verdict::Nothing };
        self.insert(stamp, verdict, sweep);
    }

    pub(super) fn forget(&mut self, library: LibraryId) {
        self.files.retain(|_, e| e.verdict != Verdict::Library(library));
    }

    pub(super) fn len(&self) -> usize {
        self.files.len()
    }
}
