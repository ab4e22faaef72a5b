//! What the BPF program counts, for self-measurement.

use std::time::Duration;

use super::layout::RawCounters;
use super::loader::LinkId;
use crate::wire::what;

/// Counts since the program was loaded; indices of the arrays are `what`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events put into a ring.
    pub events: [u64; what::NAMES.len()],
    /// Events lost because a ring was full.
    pub lost: [u64; what::NAMES.len()],
    /// Reads of a job's memory that failed; the event came with READ_FAILED.
    pub read_failed: u64,
    /// Hits of ignored processes.
    pub ignored: u64,
    /// Hits let through without an owner, because the claim map was full.
    pub claim_full: u64,
    /// Communicators not remembered, because their maps were full.
    pub comm_full: u64,
    /// Hits of a site that is not in the table.
    pub bad_site: u64,
    /// Hits that another link of the same real file owns, per open link.
    pub duplicates: Vec<(LinkId, u64)>,
    /// Time and runs of the program while it was measured.
    pub run_time: Duration,
    pub run_count: u64,
}

impl Counters {
    pub(super) fn new(
        raw: &RawCounters,
        duplicates: Vec<(LinkId, u64)>,
        run_time: Duration,
        run_count: u64,
    ) -> Counters {
        Counters {
            events: std::array::from_fn(|what| raw.events[what]),
            lost: std::array::from_fn(|what| raw.lost[what]),
            read_failed: raw.read_failed,
            ignored: raw.ignored,
            claim_full: raw.claim_full,
            comm_full: raw.comm_full,
            bad_site: raw.bad_site,
            duplicates,
            run_time,
            run_count,
        }
    }

    /// Events of all kinds lost.
    pub fn lost_total(&self) -> u64 {
        self.lost.iter().sum()
    }
}
