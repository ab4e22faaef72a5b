//! What the side-band's records mean: who is to be looked at, who has gone.

use std::time::{Duration, Instant};

use super::sideband::{FileKey, Record};
use super::{process, Discovery, Waiting, EARLY_SWEEP, MAX_PENDING};

/// When a process whose thread ended is looked for again: EXIT comes before the end.
const EXIT_CHECKS_MS: [u64; 5] = [1, 5, 25, 125, 625];
/// Files remembered for one look; the others are named again by the next process.
const MAX_NAMED: usize = 64;

impl Discovery {
    /// Takes the records that there are.
    pub(super) fn read_sideband(&mut self) {
        let Some(sideband) = &mut self.sideband else { return };
        self.read_at = Instant::now();
        let (quiet, own) = (&self.quiet, self.own_pid);
        let mut records = std::mem::take(&mut self.records);
        sideband.read(&mut records, |record| match record {
            Record::Map { pid, file, .. } => *pid != own && !quiet.contains(file),
            _ => true,
        });
        let lost = sideband.lost();
        if lost > self.lost {
            self.sweep_due = self.sweep_due.min(Instant::now() + EARLY_SWEEP);
            self.lost = lost;
        }
        for record in records.drain(..) {
            match record {
                Record::Map { time, pid, file, .. } => self.enqueue(pid, time, Some(file)),
                Record::Exec { pid, time } => self.tracker.exec(pid, time),
                Record::Fork { pid, parent, time } => {
                    self.tracker.forked(parent, pid, time);
                    if self.waiting.contains_key(&parent) {
                        self.enqueue(pid, 0, None);
                    }
                }
                Record::Exit { pid, .. } if self.tracker.is_tracked(pid) => {
                    if self.exits.len() < MAX_PENDING {
                        self.exits.entry(pid).or_insert((Instant::now(), 0));
                    }
                }
                Record::Exit { .. } => {}
            }
        }
        self.records = records;
    }

    pub(super) fn enqueue(&mut self, pid: u32, since: u64, file: Option<FileKey>) {
        if let Some(waiting) = self.waiting.get_mut(&pid) {
            if waiting.files.len() < MAX_NAMED {
                waiting.files.extend(file);
            }
        } else if self.waiting.len() < MAX_PENDING {
            self.waiting.insert(pid, Waiting { since, files: file.into_iter().collect() });
            self.queue.push_back(pid);
        } else {
            self.sweep_due = self.sweep_due.min(Instant::now() + EARLY_SWEEP);
        }
    }

    /// A process is still there while its last thread ends, so an exit is checked some times.
    pub(super) fn check_exits(&mut self) {
        let now = Instant::now();
        let due: Vec<u32> =
            self.exits.iter().filter(|(_, (at, _))| *at <= now).map(|(pid, _)| *pid).collect();
        for pid in due {
            let alive = match process::stat(pid) {
                Ok(Some(stat)) => self.tracker.key(pid).is_none_or(|key| key == stat.key),
                Ok(None) => false,
                Err(_) => true,
            };
            if !alive {
                self.tracker.gone(pid);
            }
            let checks = self.exits.get(&pid).map_or(0, |(_, checks)| *checks);
            match EXIT_CHECKS_MS.get(checks) {
                Some(ms) if alive => {
                    self.exits.insert(pid, (now + Duration::from_millis(*ms), checks + 1));
                }
                _ => {
                    self.exits.remove(&pid);
                }
            }
        }
    }
}
