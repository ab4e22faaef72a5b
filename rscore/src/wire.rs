//! The record that BPF writes and the drain reads: the `#[repr(C)]` twin of `bpf/events.h`.

/// What happened; values of `enum stragd_what`.
pub mod what {
    pub const ENTER: u8 = 1;
    pub const DETAIL: u8 = 4;
    pub const DONE: u8 = 5;
    pub const GROUP_START: u8 = 6;
    pub const GROUP_END: u8 = 7;
    pub const COMM_INIT: u8 = 8;
    pub const COMM_SPLIT: u8 = 9;
    pub const COMM_SHRINK: u8 = 10;
    pub const COMM_GROW: u8 = 11;
    pub const COMM_BOUND: u8 = 12;
    pub const COMM_FINALIZE: u8 = 13;
    pub const COMM_DESTROY: u8 = 14;
    pub const COMM_ABORT: u8 = 15;
    pub const COMM_REVOKE: u8 = 16;
    pub const COMM_SUSPEND: u8 = 17;
    pub const COMM_RESUME: u8 = 18;
    pub const COMM_INIT_ALL: u8 = 19;
    pub const UNIQUE_ID: u8 = 20;
    pub const FAILED: u8 = 21;

    /// Names by value, as metrics and tests print them; empty where a value has no meaning.
    pub const NAMES: [&str; 22] = [
        "none",
        "enter",
        "",
        "",
        "detail",
        "done",
        "group_start",
        "group_end",
        "comm_init",
        "comm_split",
        "comm_shrink",
        "comm_grow",
        "comm_bound",
        "comm_finalize",
        "comm_destroy",
        "comm_abort",
        "comm_revoke",
        "comm_suspend",
        "comm_resume",
        "comm_init_all",
        "unique_id",
        "failed",
    ];
}

/// Which collective; values of `enum stragd_function`.
pub mod function {
    pub const NONE: u8 = 0;
    pub const ALL_REDUCE: u8 = 1;
    pub const REDUCE: u8 = 2;
    pub const BROADCAST: u8 = 3;
    pub const REDUCE_SCATTER: u8 = 4;
    pub const ALL_GATHER: u8 = 5;
    pub const ALL_TO_ALL: u8 = 6;
    pub const GATHER: u8 = 7;
    pub const SCATTER: u8 = 8;
    pub const SEND: u8 = 9;
    pub const RECV: u8 = 10;
    pub const PUT_SIGNAL: u8 = 11;
    pub const SIGNAL: u8 = 12;
    pub const WAIT_SIGNAL: u8 = 13;
    pub const BARRIER: u8 = 14;

    /// Names by value.
    pub const NAMES: [&str; 15] = [
        "none",
        "all_reduce",
        "reduce",
        "broadcast",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "gather",
        "scatter",
        "send",
        "recv",
        "put_signal",
        "signal",
        "wait_signal",
        "barrier",
    ];
}

/// An argument in user memory could not be read.
pub const READ_FAILED: u16 = 1;
/// `peer` of a call that has none.
pub const NO_PEER: i32 = -1;
/// `datatype` or `reduction` of a call that has none.
pub const NO_TYPE: u8 = 255;

/// One event, 64 bytes; the meaning of each field by `what` stands in `bpf/events.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Event {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    pub tgid: u32,
    pub tid: u32,
    pub what: u8,
    pub function: u8,
    pub datatype: u8,
    pub reduction: u8,
    pub peer: i32,
    pub count: u64,
    pub comm: u64,
    pub id: u64,
    pub aux: u64,
    pub site: u32,
    pub link: u16,
    pub flags: u16,
}

impl Event {
    /// Of DETAIL: the place of the work among those of its process group.
    #[inline]
    pub fn tag(&self) -> u32 {
        self.peer as u32
    }

    /// Of DETAIL: rank and size of the context; size 0 where they were not read.
    #[inline]
    pub fn rank_and_size(&self) -> (i32, u64) {
        (self.aux as i32, self.aux >> 32)
    }
}

const _: () = assert!(std::mem::size_of::<Event>() == 64);

/// (field, byte offset) of [`Event`], compared with the BPF object's types at load.
pub const LAYOUT: &[(&str, usize)] = &[
    ("time_ns", std::mem::offset_of!(Event, time_ns)),
    ("tgid", std::mem::offset_of!(Event, tgid)),
    ("tid", std::mem::offset_of!(Event, tid)),
    ("what", std::mem::offset_of!(Event, what)),
    ("function", std::mem::offset_of!(Event, function)),
    ("datatype", std::mem::offset_of!(Event, datatype)),
    ("reduction", std::mem::offset_of!(Event, reduction)),
    ("peer", std::mem::offset_of!(Event, peer)),
    ("count", std::mem::offset_of!(Event, count)),
    ("comm", std::mem::offset_of!(Event, comm)),
    ("id", std::mem::offset_of!(Event, id)),
    ("aux", std::mem::offset_of!(Event, aux)),
    ("site", std::mem::offset_of!(Event, site)),
    ("link", std::mem::offset_of!(Event, link)),
    ("flags", std::mem::offset_of!(Event, flags)),
];

/// Bytes of one element of an `ncclDataType_t`; 0 where unknown.
pub fn datatype_bytes(datatype: u8) -> u64 {
    match datatype {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => 0,
    }
}
