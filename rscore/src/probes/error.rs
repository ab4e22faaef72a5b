//! Errors of the probes, one line each, with what to do about it.

use std::fmt;

/// Why the program could not be loaded or a library not be probed.
#[derive(Debug)]
pub struct Error {
    message: String,
    errno: Option<i32>,
}

impl Error {
    pub(super) fn new(message: impl Into<String>) -> Error {
        Error { message: message.into(), errno: None }
    }

    /// `doing` failed with `error`; a refusal names the capabilities that are missing.
    pub(super) fn from_bpf(doing: &str, error: &libbpf_rs::Error) -> Error {
        let io = match error.kind() {
            libbpf_rs::ErrorKind::PermissionDenied => Some(libc::EPERM),
            _ => None,
        };
        let mut message = format!("{doing}: {}", plain(error));
        if io.is_some() || message.contains("ermission denied") {
            message.push_str(&advice(&missing_capabilities()));
        }
        Error { message, errno: io }
    }

    pub(super) fn from_io(doing: &str, error: &std::io::Error) -> Error {
        Error { message: format!("{doing}: {error}"), errno: error.raw_os_error() }
    }

    /// The same error with libbpf's reason behind it.
    pub(super) fn because(mut self, reason: &str) -> Error {
        self.message = format!("{}; libbpf: {reason}", self.message);
        self
    }

    /// The kernel's error number, where one is known.
    pub fn errno(&self) -> Option<i32> {
        self.errno
    }

    /// Whether the kernel refused for lack of privilege.
    pub fn is_permission(&self) -> bool {
        matches!(self.errno, Some(libc::EPERM | libc::EACCES))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// The causes of a libbpf error in one line.
fn plain(error: &libbpf_rs::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text.replace('\n', " ")
}

fn advice(missing: &[&str]) -> String {
    if missing.is_empty() {
        return " (all capabilities are there: a security module, kernel lockdown or \
                kernel.perf_event_paranoid refuses)"
            .into();
    }
    format!(" (missing {}: run stragd as root or with these capabilities)", missing.join(", "))
}

/// Capabilities for BPF tracing that this process does not have in effect.
pub fn missing_capabilities() -> Vec<&'static str> {
    const CAP_SYS_ADMIN: u32 = 21;
    const WANTED: [(&str, u32); 2] = [("CAP_PERFMON", 38), ("CAP_BPF", 39)];
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).unwrap_or_default();
    let effective = u64::from_str_radix(line.trim(), 16).unwrap_or(0);
    let has = |bit: u32| effective & (1 << bit) != 0 || effective & (1 << CAP_SYS_ADMIN) != 0;
    WANTED.iter().filter(|(_, bit)| !has(*bit)).map(|(name, _)| *name).collect()
}
