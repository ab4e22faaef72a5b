//! One perf event without samples and its ring: the side-band of one CPU.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{fence, AtomicU64, Ordering};

/// The part of `struct perf_event_attr` that all supported kernels know (PERF_ATTR_SIZE_VER3).
#[derive(Default)]
#[repr(C)]
struct PerfEventAttr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_watermark: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
}

const _: () = assert!(std::mem::size_of::<PerfEventAttr>() == 96);

/// The kernel's ring of one CPU.
pub(super) struct Ring {
    pub(super) cpu: u32,
    pub(super) fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    data_offset: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and is not tied to a thread.
unsafe impl Send for Ring {}

impl Ring {
    /// Opens a dummy event for all processes on `cpu`, with about `pages` pages of 4 KB.
    pub(super) fn open(cpu: u32, pages: usize) -> io::Result<Ring> {
        const DUMMY: u64 = 9;
        const FLAGS: u64 = 1 << 5 // exclude_kernel: nothing is sampled, less privilege
            | 1 << 8 // mmap: executable mappings only
            | 1 << 9 // comm
            | 1 << 13 // task
            | 1 << 14 // watermark
            | 1 << 18 // sample_id_all
            | 1 << 23 // mmap2
            | 1 << 24 // comm_exec
            | 1 << 25; // use_clockid
        let attr = PerfEventAttr {
            kind: 1,
            size: std::mem::size_of::<PerfEventAttr>() as u32,
            config: DUMMY,
            sample_type: 1 << 2,
            flags: FLAGS,
            // Any record wakes: a mapping must not wait until the ring is half full.
            wakeup_watermark: 1,
            clockid: libc::CLOCK_MONOTONIC,
            ..PerfEventAttr::default()
        };
        const FD_CLOEXEC: libc::c_ulong = 8;
        let no_group: libc::c_int = -1;
        let every_process: libc::pid_t = -1;
        // SAFETY: `attr` is a valid perf_event_attr of the size that it states.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_perf_event_open,
                &raw const attr,
                every_process,
                cpu as libc::c_int,
                no_group,
                FD_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just gave us this descriptor, nobody else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) };
        // SAFETY: sysconf has no preconditions.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        // 4 KB pages are counted here; kernels with 64 KB pages get at least one.
        let data_bytes = (pages * 4096).max(page);
        let bytes = page + data_bytes;
        // SAFETY: a fresh shared mapping of a descriptor that we own.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Ring { cpu, fd, base, bytes, data_offset: page, data_bytes })
    }

    /// Places of `data_head` and `data_tail` in `struct perf_event_mmap_page`.
    fn position(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the first page is mapped as long as self lives; the field is 8-byte aligned
        // and shared with the kernel, which also treats it as atomic.
        unsafe { &*self.base.as_ptr().add(offset).cast::<AtomicU64>() }
    }

    /// Hands each whole record to `take` until that says stop. `bad` marks a header that
    /// cannot be: the rest of the ring is then given up.
    pub(super) fn drain(&mut self, scratch: &mut [u8], mut take: impl FnMut(&[u8], bool) -> bool) {
        let head = self.position(1024).load(Ordering::Acquire);
        let mut tail = self.position(1032).load(Ordering::Relaxed);
        while tail != head {
            let left = head.wrapping_sub(tail);
            let mut header = [0u8; 8];
            let mut size = 0;
            if left >= 8 {
                self.copy(tail, &mut header);
                size = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            }
            if size < 8 || size as u64 > left || left > self.data_bytes as u64 {
                take(&header, true);
                tail = head;
                break;
            }
            self.copy(tail, &mut scratch[..size]);
            tail = tail.wrapping_add(size as u64);
            if !take(&scratch[..size], false) {
                break;
            }
        }
        // Our reads of the data come before the kernel may overwrite it.
        fence(Ordering::SeqCst);
        self.position(1032).store(tail, Ordering::Release);
    }

    fn copy(&self, at: u64, out: &mut [u8]) {
        let start = (at % self.data_bytes as u64) as usize;
        let first = out.len().min(self.data_bytes - start);
        // SAFETY: start < data_bytes and first stops at the end of the data area; the rest is
        // at most one record, which is smaller than the area. The kernel does not write
        // between tail and head.
        unsafe {
            let data = self.base.as_ptr().add(self.data_offset);
            std::ptr::copy_nonoverlapping(data.add(start), out.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(data, out.as_mut_ptr().add(first), out.len() - first);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours and nothing borrows from it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
