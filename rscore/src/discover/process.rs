//! Who a process is: pid and start time, because pids are reused.

use std::fs::File;
use std::io::{self, Read};

/// A process for as long as the node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    pub pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub start_time: u64,
}

/// What `/proc/PID/stat` says about a living process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub key: ProcessKey,
    /// Address of the stack's bottom: drawn anew by every exec, kept by fork.
    pub image: u64,
}

/// Reads `/proc/PID/stat`; `None` when the process is gone, a zombie included.
///
/// # Errors
/// What the kernel says, other than that there is no such process.
pub fn stat(pid: u32) -> io::Result<Option<Stat>> {
    let mut buf = [0u8; 1024];
    let read = File::open(format!("/proc/{pid}/stat")).and_then(|mut f| f.read(&mut buf));
    match read {
        Ok(n) => Ok(parse(pid, &buf[..n])),
        Err(e) if is_gone(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether an error of `/proc/PID/...` means that the process has ended.
pub(super) fn is_gone(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH))
}

/// The name in parentheses is the job's to choose, so fields count from its last ')'.
fn parse(pid: u32, raw: &[u8]) -> Option<Stat> {
    let after = raw.iter().rposition(|&b| b == b')')? + 1;
    let text = std::str::from_utf8(&raw[after..]).ok()?;
    // Fields from the third on: state, ppid, ...
    let mut fields = text.split_ascii_whitespace();
    let state = fields.next()?;
    let threads: i64 = fields.nth(16)?.parse().ok()?;
    // A leader that ended before its threads is a zombie in a living process.
    if matches!(state, "Z" | "X" | "x") && threads <= 1 {
        return None;
    }
    let start_time = fields.nth(1)?.parse().ok()?;
    let image = fields.nth(5)?.parse().ok()?;
    Some(Stat { key: ProcessKey { pid, start_time }, image })
}

/// Every process of this pid namespace, as `/proc` lists them.
///
/// # Errors
/// `/proc` cannot be read.
pub fn pids() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        if let Some(pid) = name.to_str().and_then(|n| n.parse().ok()) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, state: &str, threads: u32) -> Vec<u8> {
        // pid (name) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt
        // utime stime cutime cstime priority nice threads itreal start vsize rss rsslim
        // startcode endcode startstack
        format!(
            "7 ({name}) {state} 1 7 7 0 -1 4194560 1 0 0 0 3 4 0 0 20 0 {threads} 0 98765 1 2 3 4 5 \
             140722 0 0"
        )
        .into_bytes()
    }

    #[test]
    fn fields_are_counted_after_the_last_parenthesis() {
        for name in ["python", "a) R 1 (b", "((", ") Z 1 1 1", " "] {
            let stat = parse(7, &line(name, "S", 1)).unwrap();
            assert_eq!(stat.key, ProcessKey { pid: 7, start_time: 98765 }, "{name}");
            assert_eq!(stat.image, 140_722);
        }
        assert_eq!(parse(7, b"7 (x"), None);
        assert_eq!(parse(7, b"7 (x) R"), None);
        assert_eq!(parse(7, b""), None);
    }

    #[test]
    fn a_zombie_is_gone_unless_threads_live() {
        assert!(parse(7, &line("x", "Z", 1)).is_none());
        assert!(parse(7, &line("x", "Z", 3)).is_some());
    }

    #[test]
    fn this_process_has_its_own_start_time_and_stack() {
        let own = stat(std::process::id()).unwrap().unwrap();
        assert!(own.key.start_time > 0 && own.image > 0);
        assert!(pids().unwrap().contains(&std::process::id()));
        assert_eq!(stat(0x7fff_fff0).unwrap(), None);
    }
}
