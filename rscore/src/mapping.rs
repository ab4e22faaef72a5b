//! A shared memory mapping that is unmapped when it is dropped.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// One memory mapping of a file, shared with whoever else maps it.
pub(crate) struct Mapping {
    pub(crate) address: NonNull<u8>,
    pub(crate) bytes: usize,
}

// SAFETY: the mapping belongs to this value alone in this process and is not tied to a thread;
// what it points to is reached through atomics or by the one owner.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared reference gives out an address, nothing else.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn new(
        fd: BorrowedFd<'_>,
        bytes: usize,
        writable: bool,
        offset: usize,
    ) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = NonNull::new(address.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Mapping { address, bytes })
    }

    /// Takes the pages out of this process's resident set; what is in them stays, and they come
    /// back when they are touched.
    pub(crate) fn release(&self) {
        // SAFETY: address and length are those of a mapping this value owns; of a shared one the
        // advice drops no data.
        unsafe {
            libc::madvise(self.address.as_ptr().cast(), self.bytes, libc::MADV_DONTNEED);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of a mapping this value owns.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.bytes) };
    }
}
