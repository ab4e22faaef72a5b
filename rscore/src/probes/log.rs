//! libbpf's messages: kept for the error that follows them, never written to stderr.

use std::sync::{Mutex, Once, PoisonError};

use libbpf_rs::{set_print, PrintLevel};

use super::error::Error;

const KEPT: usize = 4096;
static LAST: Mutex<String> = Mutex::new(String::new());

/// Take libbpf's warnings from now on.
pub(super) fn capture() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Warn, keep)));
    });
    LAST.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

fn keep(_level: PrintLevel, text: String) {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.len() + text.len() <= KEPT {
        last.push_str(&text);
    }
}

/// The last line that libbpf said, as the reason behind `error`.
pub(super) fn explain(error: Error) -> Error {
    let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    match last.lines().rfind(|l| !l.trim().is_empty()) {
        Some(line) => error.because(line.trim()),
        None => error,
    }
}
