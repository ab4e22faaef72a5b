//! Perf side-band: the kernel's own account of mappings, execs, forks and exits, from a dummy
//! event on every CPU. That is how a `dlopen` minutes after start is seen without polling.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::perf_ring::Ring;

/// Records taken in one turn; the rest waits in the rings.
const MAX_BATCH: usize = 32_768;
/// Data pages of a ring where there are few CPUs, and where there are many.
const RING_PAGES: [usize; 2] = [64, 16];
const MANY_CPUS: usize = 64;
const MAX_CPUS: u32 = 8192;
/// No record is longer than its 16-bit size says.
const MAX_RECORD: usize = 1 << 16;

const RECORD_LOST: u32 = 2;
const RECORD_COMM: u32 = 3;
const RECORD_EXIT: u32 = 4;
const RECORD_FORK: u32 = 7;
const RECORD_MMAP2: u32 = 10;
const MISC_COMM_EXEC: u16 = 1 << 13;
const PROT_EXEC: u32 = 4;

/// A mapped file as perf names it: device, inode, inode generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileKey {
    pub dev: u64,
    pub ino: u64,
    pub generation: u64,
}

/// One record; times are CLOCK_MONOTONIC ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// An executable mapping of a file.
    Map { time: u64, pid: u32, address: u64, file: FileKey },
    /// A new program in an old process.
    Exec { time: u64, pid: u32 },
    /// A new process (threads are left out).
    Fork { time: u64, pid: u32, parent: u32 },
    /// A thread ended; maybe the last one of its process.
    Exit { time: u64, pid: u32 },
}

impl Record {
    pub fn time(&self) -> u64 {
        match *self {
            Record::Map { time, .. }
            | Record::Exec { time, .. }
            | Record::Fork { time, .. }
            | Record::Exit { time, .. } => time,
        }
    }
}

/// The rings of all online CPUs.
pub struct Sideband {
    rings: Vec<Ring>,
    scratch: Vec<u8>,
    lost: u64,
    seen: u64,
    seen_bytes: u64,
}

impl Sideband {
    /// Opens a dummy event on every online CPU, for all processes.
    ///
    /// # Errors
    /// One line that names the missing capability or setting.
    pub fn open() -> io::Result<Self> {
        let mut sideband = Sideband {
            rings: Vec::new(),
            scratch: vec![0; MAX_RECORD],
            lost: 0,
            seen: 0,
            seen_bytes: 0,
        };
        sideband.follow_cpus()?;
        Ok(sideband)
    }

    /// Opens rings for CPUs that came online, closes those of CPUs that went.
    ///
    /// # Errors
    /// As [`Sideband::open`]; the rings that are open stay.
    pub fn follow_cpus(&mut self) -> io::Result<()> {
        let online = online_cpus()?;
        self.rings.retain(|r| online.contains(&r.cpu));
        let pages = RING_PAGES[usize::from(online.len() > MANY_CPUS)];
        for cpu in online {
            if !self.rings.iter().any(|r| r.cpu == cpu) {
                match Ring::open(cpu, pages) {
                    Ok(ring) => self.rings.push(ring),
                    // It went offline between the list and the call.
                    Err(e) if e.raw_os_error() == Some(libc::ENODEV) => {}
                    Err(e) => return Err(explain(&e)),
                }
            }
        }
        Ok(())
    }

    /// Records that the kernel could not write because a ring was full, and unreadable ones.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// (records, bytes) read so far, uninteresting ones counted.
    pub fn volume(&self) -> (u64, u64) {
        (self.seen, self.seen_bytes)
    }

    /// Waits until a ring has records, `timeout` at most.
    ///
    /// # Errors
    /// What poll says, other than that a signal came.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let mut fds: Vec<libc::pollfd> = self
            .rings
            .iter()
            .map(|r| libc::pollfd { fd: r.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 })
            .collect();
        let ms = timeout.as_millis().min(60_000) as libc::c_int;
        // SAFETY: `fds` is a valid array of its length for the call.
        let rc = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ms) };
        if rc < 0 {
            let e = io::Error::last_os_error();
            if e.kind() != io::ErrorKind::Interrupted {
                return Err(e);
            }
        }
        // A ring whose CPU is gone would end every wait at once.
        let dead = libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        let mut states = fds.iter();
        self.rings.retain(|_| states.next().is_none_or(|f| f.revents & dead == 0));
        Ok(())
    }

    /// Puts what is in the rings and what `keep` wants into `batch`, oldest first.
    pub fn read(&mut self, batch: &mut Vec<Record>, keep: impl Fn(&Record) -> bool) {
        batch.clear();
        for ring in &mut self.rings {
            ring.drain(&mut self.scratch, |raw, bad| {
                self.seen += 1;
                self.seen_bytes += raw.len() as u64;
                match parse(raw) {
                    _ if bad => self.lost += 1,
                    Parsed::Record(record) if keep(&record) => batch.push(record),
                    Parsed::Lost(n) => self.lost += n,
                    Parsed::Record(_) | Parsed::Other => {}
                }
                batch.len() < MAX_BATCH
            });
        }
        // Each ring is in order; a fork and its child's exec may be in two.
        batch.sort_by_key(Record::time);
    }
}

fn explain(error: &io::Error) -> io::Error {
    let paranoid = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let hint = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => format!(
            "needs CAP_PERFMON (or CAP_SYS_ADMIN where kernel.perf_event_paranoid is above 2; \
             it is {})",
            paranoid.trim()
        ),
        Some(libc::ENOSYS) => "this kernel has no perf events".to_owned(),
        Some(libc::EMFILE | libc::ENFILE) => "raise LimitNOFILE".to_owned(),
        _ => "libraries loaded late are found by the slow sweep only".to_owned(),
    };
    io::Error::new(error.kind(), format!("perf side-band: {error}: {hint}"))
}

fn online_cpus() -> io::Result<BTreeSet<u32>> {
    let text = fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(&text).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "/sys/devices/system/cpu/online: not a list")
    })
}

fn parse_cpus(text: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        cpus.extend(first..=last.min(MAX_CPUS));
    }
    Some(cpus)
}

enum Parsed {
    Record(Record),
    Lost(u64),
    Other,
}

/// `raw` begins with the record's header and ends with its time (sample_id_all).
fn parse(raw: &[u8]) -> Parsed {
    let u32_at =
        |at: usize| raw.get(at..at + 4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
    let u64_at = |at: usize| {
        let b = raw.get(at..at + 8)?;
        Some(u64::from_ne_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
    };
    let parsed = || -> Option<Parsed> {
        let kind = u32_at(0)?;
        let misc = (u32_at(4)? & 0xffff) as u16;
        let pid = u32_at(8)?;
        let time = u64_at(raw.len().checked_sub(8)?)?;
        let record = match kind {
            RECORD_LOST => return Some(Parsed::Lost(u64_at(16)?)),
            RECORD_MMAP2 => {
                let device = super::maps::device_number(u32_at(40)?.into(), u32_at(44)?.into());
                let file = FileKey { dev: device, ino: u64_at(48)?, generation: u64_at(56)? };
                if u32_at(64)? & PROT_EXEC == 0 || file.ino == 0 {
                    return None;
                }
                Record::Map { time, pid, address: u64_at(16)?, file }
            }
            RECORD_COMM if misc & MISC_COMM_EXEC != 0 => Record::Exec { time, pid },
            RECORD_FORK if u32_at(12)? != pid => Record::Fork { time, pid, parent: u32_at(12)? },
            RECORD_EXIT => Record::Exit { time, pid },
            _ => return None,
        };
        // Processes of another pid namespace than ours have no number here.
        (pid != 0 && pid != u32::MAX).then_some(Parsed::Record(record))
    };
    parsed().unwrap_or(Parsed::Other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u32, misc: u16, body: &[u8], time: u64) -> Vec<u8> {
        let size = (8 + body.len() + 8) as u16;
        let mut raw = kind.to_ne_bytes().to_vec();
        raw.extend(misc.to_ne_bytes());
        raw.extend(size.to_ne_bytes());
        raw.extend(body);
        raw.extend(time.to_ne_bytes());
        raw
    }

    fn words(values: &[u32]) -> Vec<u8> {
        values.iter().flat_map(|v| v.to_ne_bytes()).collect()
    }

    fn parsed(raw: &[u8]) -> Option<Record> {
        match parse(raw) {
            Parsed::Record(record) => Some(record),
            _ => None,
        }
    }

    #[test]
    fn threads_are_not_processes() {
        let thread = record(RECORD_FORK, 0, &words(&[5, 5, 6, 5, 0, 0]), 3);
        assert_eq!(parsed(&thread), None);
        let process = record(RECORD_FORK, 0, &words(&[7, 5, 7, 5, 0, 0]), 3);
        assert_eq!(parsed(&process), Some(Record::Fork { time: 3, pid: 7, parent: 5 }));
    }

    #[test]
    fn only_exec_names_and_executable_mappings_count() {
        assert_eq!(parsed(&record(RECORD_COMM, 0, &words(&[5, 5, 0, 0]), 1)), None);
        let exec = record(RECORD_COMM, MISC_COMM_EXEC, &words(&[5, 5, 0, 0]), 1);
        assert_eq!(parsed(&exec), Some(Record::Exec { time: 1, pid: 5 }));
        let map =
            |prot| words(&[5, 5, 0x1000, 0, 0x2000, 0, 0, 0, 8, 1, 77, 0, 9, 0, prot, 2, 0, 0]);
        assert_eq!(parsed(&record(RECORD_MMAP2, 0, &map(1), 4)), None);
        let file = FileKey { dev: 8 << 32 | 1, ino: 77, generation: 9 };
        assert_eq!(
            parsed(&record(RECORD_MMAP2, 0, &map(5), 4)),
            Some(Record::Map { time: 4, pid: 5, address: 0x1000, file })
        );
    }

    #[test]
    fn short_and_random_records_never_panic() {
        let mut state = 88_172_645_463_325_252u64;
        for round in 0..50_000usize {
            let mut raw = vec![0u8; round % 90];
            for byte in &mut raw {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *byte = state as u8;
            }
            if raw.len() >= 4 {
                raw[0] %= 12;
                raw[1..4].fill(0);
            }
            parse(&raw);
        }
    }

    #[test]
    fn cpu_lists() {
        let list = |text| parse_cpus(text).map(|c| c.into_iter().collect::<Vec<_>>());
        assert_eq!(list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(list("0"), Some(vec![0]));
        assert_eq!(list("x"), None);
        assert!(list("0-4000000000").unwrap().len() < 10_000);
    }
}
