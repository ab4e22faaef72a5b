//! RankWindow: what one rank did in one window, and how steps become windows.

pub(crate) mod job;
pub(crate) mod log;
pub(crate) mod mean;
pub(crate) mod transfer;

/// Where a window's times come from (`RankWindow::source`).
pub mod source {
    /// Device clock, through the profiler plugin's ring.
    pub const DEVICE_RING: u32 = 1;
    /// Host probes on NCCL/RCCL: arrival of the host, no durations, so `own` is not known.
    pub const HOST_PROBE: u32 = 2;
    /// Start and end of gloo work in its worker threads.
    pub const GLOO: u32 = 3;
}

/// `RankWindow::flags`.
pub mod flag {
    /// Events of this rank's node were lost during the window.
    pub const EVENTS_LOST: u32 = 1;
    /// No stable period was found: the window is a slice of time, values are per window.
    pub const STEPS_NOT_INFERRED: u32 = 2;
    /// Closed early: the rank ended, or the job did.
    pub const PARTIAL: u32 = 4;
    /// `own`, `wait` and `comm` are not known; they are NaN. With a source of DEVICE_RING:
    /// RING_INCOMPLETE, or most steps have a collective without device time.
    pub const OWN_UNKNOWN: u32 = 8;
    /// The ring misses a stable share of what the host calls (see the coverage of the rank): the
    /// wait in there would pass for own time, so OWN_UNKNOWN comes with it.
    pub const RING_INCOMPLETE: u32 = 16;
    /// Times of the ring are of the poll by the host, not of the device's clock.
    pub const HOST_TIMED: u32 = 32;
    /// No ring, in a job of which other ranks have one.
    pub const NO_RING: u32 = 64;
    /// A tenth of a window, `window` counts these: for what is too gross to wait for whole ones.
    pub const TENTH: u32 = 128;
}

/// One row per rank and window. Times are nanoseconds per step (10 % trimmed means over the
/// window's steps; with STEPS_NOT_INFERRED: per window). `own + wait + comm` is `wall` before
/// trimming. The same layout is numpy's dtype and the exchange's wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct RankWindow {
    /// Opaque key of the job.
    pub job: u64,
    /// Hash of the repeating collective sequence; ranks that issue the same one are peers.
    pub signature: u64,
    /// Number of the window within the job, from 0.
    pub window: u64,
    pub first_step: u64,
    pub last_step: u64,
    /// CLOCK_MONOTONIC of the node, ns.
    pub start_ns: u64,
    pub end_ns: u64,
    /// CLOCK_REALTIME at `end_ns`, ns since the epoch.
    pub time_ns: u64,
    pub wall: f64,
    pub own: f64,
    pub wait: f64,
    pub comm: f64,
    /// Standard error of `own`.
    pub own_se: f64,
    /// Collectives per step.
    pub collectives: f64,
    /// Bytes per step.
    pub bytes: f64,
    pub rank: u32,
    pub world_size: u32,
    /// CRC-32 of the class's name, the same on every node.
    pub class_id: u32,
    pub steps: u32,
    pub source: u32,
    pub flags: u32,
}

impl RankWindow {
    /// CLOCK_REALTIME at `start_ns`, ns since the epoch: since when something holds that the
    /// whole window shows.
    #[must_use]
    pub fn start_time_ns(&self) -> u64 {
        self.time_ns.saturating_sub(self.end_ns.saturating_sub(self.start_ns))
    }
}

const _: () = assert!(std::mem::size_of::<RankWindow>() == 144);

/// (name, numpy type, offset) of every field, for the other side of the boundary.
pub const LAYOUT: &[(&str, &str, usize)] = &[
    ("job", "<u8", 0),
    ("signature", "<u8", 8),
    ("window", "<u8", 16),
    ("first_step", "<u8", 24),
    ("last_step", "<u8", 32),
    ("start_ns", "<u8", 40),
    ("end_ns", "<u8", 48),
    ("time_ns", "<u8", 56),
    ("wall", "<f8", 64),
    ("own", "<f8", 72),
    ("wait", "<f8", 80),
    ("comm", "<f8", 88),
    ("own_se", "<f8", 96),
    ("collectives", "<f8", 104),
    ("bytes", "<f8", 112),
    ("rank", "<u4", 120),
    ("world_size", "<u4", 124),
    ("class_id", "<u4", 128),
    ("steps", "<u4", 132),
    ("source", "<u4", 136),
    ("flags", "<u4", 140),
];
