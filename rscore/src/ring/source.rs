//! Finds the ring of a process and decides whether it can be read safely.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};

use super::layout::{self, Header, HEADER_BYTES};
use super::memory::{Geometry, Memory};
use crate::discover::maps::{self, Mapping};
use crate::mapping;

/// Files named like a ring that are looked at in one process.
const MAX_TRIED: usize = 8;
/// A file beyond this is no ring of ours.
const MAX_BYTES: u64 = 16 << 20;

/// Why a file that is named like a ring is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not yet: it is being made, or the process changed its mappings.
    Early,
    /// One line, with the way out where there is one.
    Never(String),
}

/// What a process has.
pub struct Found {
    /// The first ring that can be read.
    pub ring: Option<Memory>,
    /// Others that could be read too, and are not.
    pub others: usize,
    /// Why the first of those that cannot be read is refused.
    pub refusal: Option<Refusal>,
}

/// Opens rings; knows which device memfds are on.
pub struct Source {
    device: u64,
}

impl Source {
    /// Makes a memfd to learn the device: a file of any other may have a server that never
    /// answers, and is not opened at all.
    ///
    /// # Errors
    /// Where the kernel refuses memfds.
    pub fn new() -> io::Result<Source> {
        // SAFETY: the name is a C string that lives through the call.
        let fd = unsafe { libc::memfd_create(c"stragd-device".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let own = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        Ok(Source { device: device_of(own.metadata()?.dev()) })
    }

    /// Looks through the mappings of a process.
    ///
    /// # Errors
    /// What the kernel says; ENOENT and ESRCH mean that the process ended.
    pub fn find(&self, pid: u32) -> io::Result<Found> {
        let path = format!("/memfd:{} (deleted)", layout::NAME);
        let mut found = Found { ring: None, others: 0, refusal: None };
        for mapping in maps::mappings_of(pid, &path)?.into_iter().take(MAX_TRIED) {
            match self.open(pid, &mapping) {
                Ok(_) if found.ring.is_some() => found.others += 1,
                Ok(ring) => found.ring = Some(ring),
                Err(why) => found.refusal = found.refusal.or(Some(why)),
            }
        }
        Ok(found)
    }

    fn open(&self, pid: u32, mapping: &Mapping) -> Result<Memory, Refusal> {
        if mapping.dev != self.device {
            return never("it is not on the kernel's own tmpfs (huge pages, or not a memfd)");
        }
        let path = format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.start, mapping.end);
        let open = |path: &str, options: &mut OpenOptions| match options.open(path) {
            Err(e) if matches!(e.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                Err(Refusal::Early)
            }
            other => other.map_err(|e| Refusal::Never(format!("it cannot be opened: {e}"))),
        };
        let path_only = libc::O_PATH;
        let place = open(&path, OpenOptions::new().read(true).custom_flags(path_only))?;
        // Not the file that `maps` named: the process changed its mappings in between.
        match place.metadata() {
            Ok(m) if (device_of(m.dev()), m.ino()) == (mapping.dev, mapping.ino) => {}
            _ => return Err(Refusal::Early),
        }
        let path = format!("/proc/self/fd/{}", place.as_raw_fd());
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = open(&path, OpenOptions::new().read(true).write(true).custom_flags(flags))
            .or_else(|_| open(&path, OpenOptions::new().read(true).custom_flags(flags)))?;
        open_file(&file)
    }
}

/// Checks a file and maps it.
///
/// # Errors
/// Why it is not read.
pub fn open_file(file: &File) -> Result<Memory, Refusal> {
    let failed = |what: &str| Refusal::Never(format!("{what}: {}", io::Error::last_os_error()));
    let facts = file.metadata().map_err(|e| Refusal::Never(format!("no facts about it: {e}")))?;
    if !facts.is_file() {
        return never("it is not a regular file");
    }
    // SAFETY: all-zero is a valid statfs, which the call fills in.
    let mut system: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and a statfs that is writable for the call.
    if unsafe { libc::fstatfs(file.as_raw_fd(), &mut system) } != 0 {
        return Err(failed("its filesystem is unknown"));
    }
    if system.f_type != libc::TMPFS_MAGIC {
        return never("it is not shared memory (tmpfs)");
    }
    // SAFETY: no pointers are passed.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        return never("it has no seals: not a memfd");
    }
    let size = facts.len();
    if size < HEADER_BYTES as u64 {
        return Err(Refusal::Early);
    }
    if size > MAX_BYTES {
        return Err(Refusal::Never(format!("{size} bytes are more than any ring has")));
    }
    let fixed = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    if seals & fixed != fixed {
        // Cut under our mapping it would kill the daemon.
        return never("its size is not sealed; a plugin of this version seals it");
    }
    let geometry = geometry(file, size)?;
    let map = |bytes, writable| mapping::Mapping::new(file.as_fd(), bytes, writable, 0);
    let memory = map(geometry.bytes(), false)
        .map_err(|e| Refusal::Never(format!("it cannot be mapped: {e}")))?;
    let header = map(HEADER_BYTES, true).ok();
    Ok(Memory::new(memory, header, geometry, facts.ino()))
}

/// Reads the places of things once, and checks them against the layout and the file's size.
fn geometry(file: &File, size: u64) -> Result<Geometry, Refusal> {
    let mut raw = [0u8; HEADER_BYTES];
    file.read_exact_at(&mut raw, 0)
        .map_err(|e| Refusal::Never(format!("its header cannot be read: {e}")))?;
    // SAFETY: `raw` has the size of a Header, which is repr(C) and takes any bits; the read is
    // unaligned.
    let header = unsafe { raw.as_ptr().cast::<Header>().read_unaligned() };
    if header.magic == 0 {
        return Err(Refusal::Early);
    }
    if header.magic != layout::MAGIC {
        return never("its header is not a ring's");
    }
    if header.layout != layout::LAYOUT {
        return Err(Refusal::Never(format!(
            "its layout is {}, this stragd reads {}: install plugin and stragd of one version",
            header.layout,
            layout::LAYOUT
        )));
    }
    let sizes = (header.header_bytes, header.comm_bytes, header.slot_bytes);
    let ours = (HEADER_BYTES as u32, layout::COMM_BYTES as u32, layout::SLOT_BYTES as u32);
    let counted = |count: u32, most: u32| count.is_power_of_two() && count <= most;
    let fits = |offset: u64, count: u32, each: usize| {
        let end = offset.checked_add(u64::from(count) * each as u64);
        offset >= HEADER_BYTES as u64 && offset % 64 == 0 && end.is_some_and(|end| end <= size)
    };
    if sizes != ours
        || header.total_bytes > size
        || !counted(header.comm_count, layout::COMMS)
        || !counted(header.slot_count, layout::SLOTS)
        || !fits(header.comms_offset, header.comm_count, layout::COMM_BYTES)
        || !fits(header.slots_offset, header.slot_count, layout::SLOT_BYTES)
    {
        return never("its header contradicts its layout or its size");
    }
    Ok(Geometry {
        comms_offset: header.comms_offset as usize,
        comm_count: header.comm_count as usize,
        slots_offset: header.slots_offset as usize,
        slot_count: header.slot_count as usize,
    })
}

fn never<T>(reason: &str) -> Result<T, Refusal> {
    Err(Refusal::Never(reason.into()))
}

fn device_of(dev: u64) -> u64 {
    maps::device_number(libc::major(dev).into(), libc::minor(dev).into())
}
