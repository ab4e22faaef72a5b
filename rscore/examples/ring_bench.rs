//! How fast slots are read on one core.
//!
//! `ring_bench [million slots]`: fills a plugin-sized ring, reads it, and so on; prints slots and
//! ns of CPU time of the reading, first with nothing behind it, then with the pipeline.
//! `bench/ring.py` runs it and says what comes out.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use rscore::ring::layout::{self, clock, written, Comm, Header, Slot, SLOTS};
use rscore::ring::source::open_file;
use rscore::ring::{Reader, Record};
use rscore::steps::{Config, Pipeline};

const PID: u32 = 100;
/// Collectives of one step, and its length.
const STEP: u64 = 32;
const STEP_NS: u64 = 16_000_000;

/// The job's side of a ring, in this process.
struct Ring {
    file: File,
    base: *mut u8,
}

impl Ring {
    fn new() -> std::io::Result<Ring> {
        // SAFETY: the name is a C string; the descriptor is fresh and nobody else's; the mapping
        // is new and as long as the file.
        let (file, base) = unsafe {
            let fd = libc::memfd_create(c"stragd-ring".as_ptr(), libc::MFD_ALLOW_SEALING);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            let file = File::from_raw_fd(fd);
            file.set_len(layout::BYTES as u64)?;
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW);
            let (null, access) = (std::ptr::null_mut(), libc::PROT_READ | libc::PROT_WRITE);
            let fd = file.as_raw_fd();
            (file, libc::mmap(null, layout::BYTES, access, libc::MAP_SHARED, fd, 0))
        };
        if base == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        let slots_offset = layout::HEADER_BYTES + layout::COMMS as usize * layout::COMM_BYTES;
        let header = Header {
            magic: layout::MAGIC,
            layout: layout::LAYOUT,
            header_bytes: layout::HEADER_BYTES as u32,
            comm_bytes: layout::COMM_BYTES as u32,
            comm_count: layout::COMMS,
            slot_bytes: layout::SLOT_BYTES as u32,
            slot_count: SLOTS,
            comms_offset: layout::HEADER_BYTES as u64,
            slots_offset: slots_offset as u64,
            total_bytes: layout::BYTES as u64,
            clock: clock::NS,
            mode: 3,
            // SAFETY: integers only.
            ..unsafe { std::mem::zeroed() }
        };
        // SAFETY: nobody reads yet, and the mapping is longer than a header.
        unsafe { base.cast::<Header>().write(header) };
        let ring = Ring { file, base: base.cast() };
        let comm = layout::HEADER_BYTES;
        ring.word(comm + offset_of!(Comm, hash)).store(0xfeed, Ordering::Relaxed);
        Ok(ring)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: all offsets here are multiples of 8 inside the ring.
        unsafe { &*self.base.add(offset).cast::<AtomicU64>() }
    }

    /// Writes the slots of the tickets from `first` on, as many as there are.
    fn fill(&self, first: u64) {
        let slots = layout::BYTES - SLOTS as usize * layout::SLOT_BYTES;
        for ticket in first..first + u64::from(SLOTS) {
            let host = 1_000_000_000 + ticket * STEP_NS / STEP;
            let slot = Slot {
                stamp: written(ticket),
                device_start: (1 << 60) + host + 2_000,
                device_stop: (1 << 60) + host + 302_000,
                host_ns: host,
                bytes: 1 << (10 + ticket % STEP % 16),
                sequence: ticket as u32,
                peer: -1,
                order: ticket as u32,
                poll_delta: 310_000 / 64,
                function: 1,
                datatype: 7,
                channels: 2,
                ..Slot::default()
            };
            let at = slots + (ticket % u64::from(SLOTS)) as usize * layout::SLOT_BYTES;
            // SAFETY: Slot is 64 bytes of integers.
            let words = unsafe { std::mem::transmute::<Slot, [u64; 8]>(slot) };
            for (index, word) in words.iter().enumerate() {
                self.word(at + index * 8).store(*word, Ordering::Relaxed);
            }
        }
        let end = first + u64::from(SLOTS);
        self.word(offset_of!(Header, order)).store(end, Ordering::Relaxed);
        self.word(offset_of!(Header, head)).store(end, Ordering::Release);
    }
}

/// (slots read, ns of CPU time); `after` gets the time at the end of each round.
fn measure<T>(
    total: u64,
    behind: &mut T,
    deliver: impl Fn(&mut T, &Record),
    after: impl Fn(&mut T, u64),
) -> Result<(u64, u64), Box<dyn Error>> {
    let ring = Ring::new()?;
    let memory = open_file(&ring.file).map_err(|why| format!("{why:?}"))?;
    let mut reader = Reader::new(Arc::new(memory));
    let (mut ticket, mut ns) = (0, 0);
    while ticket < total {
        ring.fill(ticket);
        ticket += u64::from(SLOTS);
        let now = 1_000_000_000 + ticket * STEP_NS / STEP;
        let begin = cpu_ns();
        while reader.turn(now, false, |record| deliver(behind, record)).more {}
        after(behind, now);
        ns += cpu_ns() - begin;
    }
    let counts = reader.counts();
    assert_eq!((counts.records, counts.lost, counts.implausible), (ticket, 0, 0));
    Ok((counts.records, ns))
}

fn main() -> Result<(), Box<dyn Error>> {
    let millions: u64 = std::env::args().nth(1).map_or(Ok(20), |text| text.parse())?;
    let total = millions * 1_000_000;
    let mut sum = 0u64;
    let add = |sum: &mut u64, record: &Record| *sum = sum.wrapping_add(record.stop_ns);
    let (slots, ns) = measure(total, &mut sum, add, |_, _| ())?;
    println!("reading {slots} {ns}");
    let mut pipeline = Pipeline::new(Config::default());
    pipeline.assign(PID, 1, 7, 0, 1, 1);
    pipeline.ring_opened(PID);
    pipeline.ring_mode(PID, true);
    let (slots, ns) = measure(
        total,
        &mut pipeline,
        |pipeline, record| pipeline.on_record(PID, record),
        |pipeline, now| {
            pipeline.tick(now, now, 0);
            pipeline.take_windows();
        },
    )?;
    println!("pipeline {slots} {ns}");
    let rank = &pipeline.ranks()[0];
    assert!(rank.steps > total / STEP / 2, "no steps were found: {rank:?}");
    std::hint::black_box(sum);
    Ok(())
}

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
