//! The mapped memory of one ring, and the only place that reads or writes it.

use std::mem::offset_of;
use std::sync::atomic::{fence, AtomicU32, AtomicU64, Ordering};

use super::control::{Control, Mode};
use super::layout::{Comm, Header, Progress, Slot, COMM_BYTES, SLOT_BYTES, SLOT_WORDS};
use crate::mapping::Mapping;

/// Where things are, checked against the file when the ring was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) comms_offset: usize,
    pub(super) comm_count: usize,
    pub(super) slots_offset: usize,
    /// A power of two.
    pub(super) slot_count: usize,
}

impl Geometry {
    /// Bytes from the start of the file to the end of what is read.
    pub(super) fn bytes(&self) -> usize {
        let comms = self.comms_offset + self.comm_count * COMM_BYTES;
        let slots = self.slots_offset + self.slot_count * SLOT_BYTES;
        comms.max(slots)
    }
}

/// What one look at a slot found.
pub(super) enum Look {
    /// The record of the ticket.
    Whole(Slot),
    /// Nobody has finished writing it.
    Unfinished,
    /// A later record has taken its place.
    Overwritten,
}

/// A ring's memory; outlives the process that made it.
pub struct Memory {
    mapping: Mapping,
    /// The header once more, writable, for the control word; none where the job sealed it off.
    header: Option<Mapping>,
    geometry: Geometry,
    /// Inode of the memfd, which is unique among memfds.
    pub inode: u64,
}

impl Memory {
    /// `mapping` holds all of `geometry`, which lies in multiples of 64 bytes.
    pub(super) fn new(
        mapping: Mapping,
        header: Option<Mapping>,
        geometry: Geometry,
        inode: u64,
    ) -> Memory {
        assert!(geometry.bytes() <= mapping.bytes && geometry.slot_count.is_power_of_two());
        assert!(geometry.comms_offset % 64 == 0 && geometry.slots_offset % 64 == 0);
        Memory { mapping, header, geometry, inode }
    }

    /// The pages that were read count as the daemon's no longer.
    pub(super) fn release(&self) {
        self.mapping.release();
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset % 8 == 0 && offset + 8 <= self.mapping.bytes);
        // SAFETY: all callers pass multiples of 8 inside the header, a communicator or a slot of
        // the geometry, all of which `new` has found to lie inside the mapping; the file cannot
        // shrink (its size is sealed) and the mapping lives as long as self.
        unsafe { &*self.mapping.address.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    fn half(&self, offset: usize) -> u32 {
        debug_assert!(offset % 4 == 0 && offset + 4 <= self.mapping.bytes);
        // SAFETY: as for `word`, with multiples of 4.
        let half = unsafe { &*self.mapping.address.as_ptr().add(offset).cast::<AtomicU32>() };
        half.load(Ordering::Relaxed)
    }

    fn load(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// Text of at most `N` bytes at a multiple of 8, without control characters.
    fn text<const N: usize>(&self, offset: usize) -> String {
        let words = (offset..offset + N).step_by(8).map(|at| self.load(at).to_ne_bytes());
        let bytes: Vec<u8> = words.flatten().take_while(|byte| *byte != 0).collect();
        let text = String::from_utf8_lossy(&bytes);
        text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
    }

    pub(super) fn slot_count(&self) -> u64 {
        self.geometry.slot_count as u64
    }

    /// Tickets given out.
    pub(super) fn head(&self) -> u64 {
        self.word(offset_of!(Header, head)).load(Ordering::Acquire)
    }

    /// Collectives and messages enqueued.
    pub(super) fn order(&self) -> u64 {
        self.load(offset_of!(Header, order))
    }

    pub(super) fn dropped(&self, cause: usize) -> u64 {
        self.load(offset_of!(Header, dropped) + cause * 8)
    }

    pub(super) fn vendor(&self) -> u32 {
        self.half(offset_of!(Header, vendor))
    }

    pub(super) fn clock(&self) -> u32 {
        self.half(offset_of!(Header, clock))
    }

    pub(super) fn clock_hz(&self) -> u64 {
        self.load(offset_of!(Header, clock_hz))
    }

    pub(super) fn api(&self) -> u32 {
        self.half(offset_of!(Header, api))
    }

    pub(super) fn library(&self) -> u32 {
        self.half(offset_of!(Header, library))
    }

    pub(super) fn quirk(&self) -> u32 {
        self.half(offset_of!(Header, quirk))
    }

    /// Name of the chained plugin, empty where there is none.
    pub(super) fn chained(&self) -> String {
        match self.half(offset_of!(Header, chained)) {
            0 => String::new(),
            _ => self.text::<64>(offset_of!(Header, chained_name)),
        }
    }

    /// The mode in force.
    pub(super) fn mode(&self) -> u32 {
        self.half(offset_of!(Header, mode))
    }

    /// What was asked last, by us or by an earlier daemon.
    #[must_use]
    pub fn wanted(&self) -> Control {
        Control::of_word(self.load(offset_of!(Header, control)))
    }

    /// What the plugin obeys.
    #[must_use]
    pub fn obeyed(&self) -> Control {
        Control::of_word(self.load(offset_of!(Header, control_seen)))
    }

    /// Whether the plugin records every collective now.
    #[must_use]
    pub fn is_full(&self) -> bool {
        Mode::numbered(self.mode().into()) == Some(Mode::Full) && !self.obeyed().thins()
    }

    /// Whether the control word can be written.
    #[must_use]
    pub fn is_controllable(&self) -> bool {
        self.header.is_some()
    }

    /// Asks the plugin; false where the job does not let us.
    pub fn ask(&self, control: Control) -> bool {
        let Some(header) = &self.header else { return false };
        // SAFETY: inside the header's page, aligned, mapped writable as long as self.
        let word = unsafe {
            let word = header.address.as_ptr().add(offset_of!(Header, control));
            &*word.cast::<AtomicU64>()
        };
        word.store(control.word(), Ordering::Release);
        true
    }

    /// The slot of a ticket.
    #[inline]
    pub(super) fn slot(&self, ticket: u64) -> Look {
        let place = ticket as usize & (self.geometry.slot_count - 1);
        let at = self.geometry.slots_offset + place * SLOT_BYTES;
        let stamp = self.word(at).load(Ordering::Acquire);
        let whole = super::layout::written(ticket);
        if stamp != whole {
            // Signed, as the writer compares: stamps may run over.
            let newer = stamp.wrapping_sub(whole) as i64 > 0;
            return if newer { Look::Overwritten } else { Look::Unfinished };
        }
        let mut words = [0u64; SLOT_WORDS];
        for (index, word) in words.iter_mut().enumerate() {
            *word = self.load(at + index * 8);
        }
        // The copy is whole when the stamp has not changed meanwhile.
        fence(Ordering::Acquire);
        if self.load(at) != whole {
            return Look::Overwritten;
        }
        // SAFETY: Slot is repr(C), 64 bytes of integers without padding.
        Look::Whole(unsafe { std::mem::transmute::<[u64; SLOT_WORDS], Slot>(words) })
    }

    fn comm_at(&self, place: usize) -> usize {
        self.geometry.comms_offset + (place & (self.geometry.comm_count - 1)) * COMM_BYTES
    }

    /// Hash of the communicator that `comm` of a slot means; 0 where the place has another by now.
    #[inline]
    pub(super) fn communicator(&self, comm: u16) -> u64 {
        let place = usize::from(comm & 0xff);
        if place >= self.geometry.comm_count {
            return 0;
        }
        let at = self.comm_at(place);
        let generation = || self.half(at + offset_of!(Comm, generation)) & 0xff;
        if generation() != u32::from(comm >> 8) {
            return 0;
        }
        let hash = self.load(at + offset_of!(Comm, hash));
        fence(Ordering::Acquire);
        if generation() == u32::from(comm >> 8) {
            hash
        } else {
            0
        }
    }

    pub(super) fn comm_count(&self) -> usize {
        self.geometry.comm_count
    }

    /// (state, generation) of a place of the table.
    pub(super) fn comm_state(&self, place: usize) -> (u32, u32) {
        let at = self.comm_at(place);
        fence(Ordering::Acquire);
        (self.half(at + offset_of!(Comm, state)), self.half(at + offset_of!(Comm, generation)))
    }

    /// Hash, rank, ranks, nodes, born and ended (CLOCK_MONOTONIC ns) and name of a place.
    pub(super) fn comm(&self, place: usize) -> (u64, [i32; 3], [u64; 2], String) {
        let at = self.comm_at(place);
        let integer = |offset| self.half(at + offset) as i32;
        (
            self.load(at + offset_of!(Comm, hash)),
            [
                integer(offset_of!(Comm, rank)),
                integer(offset_of!(Comm, nranks)),
                integer(offset_of!(Comm, nnodes)),
            ],
            [self.load(at + offset_of!(Comm, born_ns)), self.load(at + offset_of!(Comm, ended_ns))],
            self.text::<80>(at + offset_of!(Comm, name)),
        )
    }

    /// Progress of one function of a place; `function` below `FUNCTIONS`.
    pub(super) fn progress(&self, place: usize, function: usize) -> Progress {
        let at = self.comm_at(place) + offset_of!(Comm, progress) + function * 64;
        let word = |offset| self.load(at + offset);
        Progress {
            enqueued: word(offset_of!(Progress, enqueued)),
            started: word(offset_of!(Progress, started)),
            completed: word(offset_of!(Progress, completed)),
            enqueued_ns: word(offset_of!(Progress, enqueued_ns)),
            started_ns: word(offset_of!(Progress, started_ns)),
            completed_ns: word(offset_of!(Progress, completed_ns)),
            sequence: word(offset_of!(Progress, sequence)),
            bytes: word(offset_of!(Progress, bytes)),
        }
    }
}
