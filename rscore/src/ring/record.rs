//! What the pipeline gets of a ring.

/// One collective or message as its process's device timed it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Hash of the communicator, the same on all its ranks; 0 where the table does not know it.
    pub communicator: u64,
    /// Enqueue order within the process, widened from 32 bits.
    pub order: u64,
    /// The library's sequence number by communicator and function (messages: by peer and
    /// direction), low half.
    pub sequence: u32,
    /// `wire::function`.
    pub function: u8,
    pub datatype: u8,
    pub channels: u8,
    /// As `ncclring/ring.h` has it.
    pub algorithm: u8,
    /// Root or peer; -1 where there is none.
    pub peer: i32,
    /// `ring::flag`.
    pub flags: u16,
    pub bytes: u64,
    /// CLOCK_MONOTONIC ns of the host's enqueue.
    pub host_ns: u64,
    /// Device times on the host's CLOCK_MONOTONIC axis, ns; 0 where NO_START / NO_STOP.
    pub start_ns: u64,
    pub stop_ns: u64,
}
