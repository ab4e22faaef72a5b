//! The shared-memory ring as the plugin writes it: the `#[repr(C)]` twin of `ncclring/ring.h`.
//!
//! The structs say where things are; nothing of a job's memory is ever borrowed as one of them.

/// The memfd's name.
pub const NAME: &str = "stragd-ring";
pub const MAGIC: u64 = 0x676e_6972_6461_7274;
pub const LAYOUT: u32 = 1;

/// Communicators and slots of a ring at most; both are powers of two.
pub const COMMS: u32 = 256;
pub const SLOTS: u32 = 16_384;
pub const FUNCTIONS: usize = 16;
pub const DROPS: usize = 8;

/// The stamp of a slot that is being written for a ticket.
pub const fn writing(ticket: u64) -> u64 {
    ticket.wrapping_mul(2).wrapping_add(1)
}

/// The stamp of a slot that is whole.
pub const fn written(ticket: u64) -> u64 {
    ticket.wrapping_mul(2).wrapping_add(2)
}

/// Values of `enum stragd_ring_vendor`, by value.
pub const VENDORS: [&str; 3] = ["unknown", "nvidia", "amd"];

/// Values of `enum stragd_ring_clock`.
pub mod clock {
    pub const HOST: u32 = 0;
    pub const NS: u32 = 1;
    pub const TICKS: u32 = 2;
    /// Names by value.
    pub const NAMES: [&str; 3] = ["host", "ns", "ticks"];
}

/// Causes of `dropped`, by value of `enum stragd_ring_drop`.
pub const DROP_NAMES: [&str; 4] = ["pool", "communicator", "claim", "stale"];

/// `flags` of a slot and of a [`super::Record`].
pub mod flag {
    pub const NO_START: u16 = 1;
    pub const NO_STOP: u16 = 2;
    pub const HOST_TIME: u16 = 4;
    pub const GRAPH: u16 = 8;
    pub const FEW_CHANNELS: u16 = 16;
    pub const GROUPED: u16 = 32;
    pub const SYMMETRIC: u16 = 64;
    pub const AFTER_GAP: u16 = 128;
    pub const COPY_ENGINE: u16 = 256;
    /// All that this version knows.
    pub const ALL: u16 = 511;
}

/// Values of `enum stragd_ring_comm_state`.
pub mod comm_state {
    pub const FREE: u32 = 0;
    pub const LIVE: u32 = 1;
    pub const ENDED: u32 = 2;
    /// Names by value.
    pub const NAMES: [&str; 3] = ["free", "live", "ended"];
}

/// Function of a name that the plugin does not know.
pub const OTHER: u8 = 15;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Header {
    pub magic: u64,
    pub layout: u32,
    pub header_bytes: u32,
    pub comm_bytes: u32,
    pub comm_count: u32,
    pub slot_bytes: u32,
    pub slot_count: u32,
    pub comms_offset: u64,
    pub slots_offset: u64,
    pub total_bytes: u64,
    /// CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// As the process sees it.
    pub pid: u32,
    pub vendor: u32,
    pub clock: u32,
    pub api: u32,
    pub clock_hz: u64,
    pub library: u32,
    pub quirk: u32,
    pub chained: u32,
    pub mode: u32,
    pub control: u64,
    pub control_seen: u64,
    pub chained_name: [u8; 64],
    pub reserved: [u8; 72],
    pub head: u64,
    pub head_line: [u8; 56],
    pub order: u64,
    pub order_line: [u8; 56],
    pub dropped: [u64; DROPS],
    pub page: [u8; 3648],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Progress {
    pub enqueued: u64,
    pub started: u64,
    pub completed: u64,
    /// CLOCK_MONOTONIC ns, as the two that follow.
    pub enqueued_ns: u64,
    pub started_ns: u64,
    pub completed_ns: u64,
    pub sequence: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Comm {
    pub hash: u64,
    pub rank: i32,
    pub nranks: i32,
    pub nnodes: i32,
    pub state: u32,
    pub generation: u32,
    pub reserved: u32,
    pub born_ns: u64,
    pub ended_ns: u64,
    pub name: [u8; 80],
    pub progress: [Progress; FUNCTIONS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Slot {
    pub stamp: u64,
    pub device_start: u64,
    pub device_stop: u64,
    /// CLOCK_MONOTONIC ns.
    pub host_ns: u64,
    pub bytes: u64,
    pub sequence: u32,
    pub peer: i32,
    pub order: u32,
    /// In units of 64 ns; saturates; 0 where unknown.
    pub poll_delta: u32,
    pub comm: u16,
    pub flags: u16,
    pub function: u8,
    pub datatype: u8,
    pub channels: u8,
    pub algorithm: u8,
}

pub const HEADER_BYTES: usize = std::mem::size_of::<Header>();
pub const COMM_BYTES: usize = std::mem::size_of::<Comm>();
pub const SLOT_BYTES: usize = std::mem::size_of::<Slot>();
/// 64-bit words of a slot.
pub const SLOT_WORDS: usize = SLOT_BYTES / 8;

const _: () = assert!(HEADER_BYTES == 4096 && COMM_BYTES == 1152 && SLOT_BYTES == 64);

/// Bytes of the largest ring.
pub const BYTES: usize = HEADER_BYTES + COMMS as usize * COMM_BYTES + SLOTS as usize * SLOT_BYTES;
