//! The reading half of the two BPF ring buffers.
//!
//! Records are read where the kernel wrote them. libbpf's reader costs an indirect call and
//! two atomics a record; here a record costs one load and the consumer position is published
//! once per batch.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::mapping::Mapping;
use crate::wire::Event;

const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;
const HEADER: u64 = 8;
/// Records after which the kernel is told that there is room again.
const BATCH: usize = 512;
/// How far ahead of the reader the next records are fetched, bytes: what the program has written
/// on another core is in no cache of ours.
const AHEAD: usize = 16 * 72;

/// One ring: the consumer's page, and the producer's page followed by the data, mapped twice
/// in a row so that no record is torn.
struct Ring {
    consumer: Mapping,
    producer: Mapping,
    page: usize,
    mask: u64,
    /// Our position; published to the kernel in batches.
    position: u64,
}

impl Ring {
    /// Map the ring `fd` with `bytes` of data.
    fn new(fd: BorrowedFd<'_>, bytes: u32) -> io::Result<Ring> {
        if !bytes.is_power_of_two() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: sysconf reads a constant.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        let page = usize::try_from(page).map_err(|_| io::Error::last_os_error())?;
        let consumer = Mapping::new(fd, page, true, 0)?;
        let producer = Mapping::new(fd, page + 2 * bytes as usize, false, page)?;
        let mut ring = Ring { consumer, producer, page, mask: u64::from(bytes) - 1, position: 0 };
        ring.position = ring.consumer_word().load(Ordering::Acquire);
        Ok(ring)
    }

    fn consumer_word(&self) -> &AtomicU64 {
        // SAFETY: the first word of the consumer page, aligned, alive as long as self.
        unsafe { &*self.consumer.address.as_ptr().cast::<AtomicU64>() }
    }

    /// How far the kernel has reserved.
    fn produced(&self) -> u64 {
        // SAFETY: the first word of the producer page, aligned, alive as long as self.
        let word = unsafe { &*self.producer.address.as_ptr().cast::<AtomicU64>() };
        word.load(Ordering::Acquire)
    }

    /// The next finished record before `end`, and where the one after it begins.
    #[inline]
    fn peek(&mut self, end: u64) -> Option<(&Event, u64)> {
        while self.position < end {
            let at = self.page + (self.position & self.mask) as usize;
            // SAFETY: `at` is below page + data size and a multiple of 8 (the kernel rounds
            // records up to 8), the data is mapped twice, so header and record lie inside.
            let header = unsafe { &*self.producer.address.as_ptr().add(at).cast::<AtomicU32>() };
            let header = header.load(Ordering::Acquire);
            // SAFETY: never more than AHEAD, less than a page, behind a place in the first of the
            // two mappings of the data.
            prefetch(unsafe { self.producer.address.as_ptr().add(at + AHEAD) });
            if header & BUSY != 0 {
                return None;
            }
            let length = header & !(BUSY | DISCARDED);
            let next = self.position + ((u64::from(length) + HEADER + 7) & !7);
            if header & DISCARDED != 0 || length as usize != std::mem::size_of::<Event>() {
                self.position = next;
                continue;
            }
            // SAFETY: as above; the record is 64 bytes of integers, finished (not BUSY, seen
            // with Acquire), and the kernel does not reuse it before `publish`.
            let event = unsafe {
                let record = self.producer.address.as_ptr().add(at + HEADER as usize);
                &*record.cast::<Event>()
            };
            return Some((event, next));
        }
        None
    }

    fn publish(&self) {
        self.consumer_word().store(self.position, Ordering::Release);
    }
}

/// The reading half of the probes; lives in a thread of its own.
pub struct Drain {
    lifecycle: Ring,
    bulk: Ring,
    /// Becomes ready when the program wakes us: edges, since the ring is hardly ever empty.
    wakeups: OwnedFd,
}

impl Drain {
    pub(super) fn new(
        lifecycle: (BorrowedFd<'_>, u32),
        bulk: (BorrowedFd<'_>, u32),
    ) -> io::Result<Drain> {
        Ok(Drain {
            lifecycle: Ring::new(lifecycle.0, lifecycle.1)?,
            bulk: Ring::new(bulk.0, bulk.1)?,
            wakeups: wakeups(bulk.0)?,
        })
    }

    /// Sleep for `time`, or until a quarter of the bulk ring is in use.
    pub fn wait(&self, time: Duration) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        let millis = i32::try_from(time.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `event` has room for the one event that is asked for. A signal ends the sleep
        // early, which does no harm.
        unsafe { libc::epoll_wait(self.wakeups.as_raw_fd(), &mut event, 1, millis) };
    }

    /// How full the bulk ring is, 0 to 1.
    pub fn fill(&self) -> f64 {
        let waiting = self.bulk.produced().saturating_sub(self.bulk.position);
        waiting as f64 / (self.bulk.mask + 1) as f64
    }

    /// Hand every finished event to `f`, both rings merged by time; returns how many.
    ///
    /// A communicator's COMM_* and COMM_BOUND events come before its collectives: the program
    /// submits them first, and the bulk ring's end is read before the lifecycle ring's.
    /// Never waits: call it when [`Drain::wait`] returns.
    pub fn drain<F: FnMut(&Event)>(&mut self, mut f: F) -> usize {
        let bulk_end = self.bulk.produced();
        let lifecycle_end = self.lifecycle.produced();
        let mut events = 0;
        while let Some((first, next)) = self.lifecycle.peek(lifecycle_end) {
            let time = first.time_ns;
            match self.bulk.peek(bulk_end) {
                Some((event, next)) if event.time_ns < time => {
                    f(event);
                    self.bulk.position = next;
                }
                _ => {
                    f(first);
                    self.lifecycle.position = next;
                }
            }
            events += 1;
        }
        self.lifecycle.publish();
        while let Some((event, next)) = self.bulk.peek(bulk_end) {
            f(event);
            self.bulk.position = next;
            events += 1;
            if events % BATCH == 0 {
                self.bulk.publish();
            }
        }
        self.bulk.publish();
        events
    }
}

/// A hint; nothing where the compiler offers none.
#[inline]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing and cannot fault.
    unsafe {
        use core::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

fn wakeups(ring: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: no pointers are passed.
    let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let epoll = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 0 };
    // SAFETY: both descriptors are open and `event` is read during the call only.
    let error = unsafe {
        libc::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.as_raw_fd(), &mut event)
    };
    if error != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(epoll)
}
