//! Bounded reading of files that a job can write: every byte goes through `pread` and a budget.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Why a file could not be read as an ELF object.
#[derive(Debug)]
pub enum Error {
    /// The kernel refused a read.
    Io(io::Error),
    /// No ELF magic.
    NotElf,
    /// An ELF file that stragd does not read (32 bits, big endian, no dynamic section).
    Unsupported(&'static str),
    /// A header, size or offset that no linker writes.
    Malformed(&'static str),
    /// The file costs more bytes, steps or time than one look may cost.
    Budget,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io(e) => write!(f, "cannot be read: {e}"),
            Error::NotElf => f.write_str("is no ELF file"),
            Error::Unsupported(what) => write!(f, "is an unsupported ELF file: {what}"),
            Error::Malformed(what) => write!(f, "is a malformed ELF file: {what}"),
            Error::Budget => f.write_str("takes too long to read as an ELF file: given up"),
        }
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Self {
        Error::Io(e)
    }
}

const PAGE: usize = 4096;
/// Pages kept; a symbol table is walked in few places, so these are nearly all hits.
const MAX_PAGES: usize = 256;
/// Bytes that one open file may cost, text search not counted.
const MAX_BYTES: u64 = 8 << 20;
/// Small reads that one open file may cost, cached ones counted.
const MAX_STEPS: u64 = 2_000_000;
/// Wall clock that one open file may cost; a busy disk is the usual reason, so it is generous.
const MAX_TIME: Duration = Duration::from_secs(3);

/// Reads through a small page cache, within a budget of bytes, steps and time.
pub(super) struct Reader<'f> {
    file: &'f File,
    size: u64,
    pages: RefCell<HashMap<u64, Box<[u8]>>>,
    bytes: Cell<u64>,
    reads: Cell<u64>,
    steps: Cell<u64>,
    deadline: Instant,
}

impl<'f> Reader<'f> {
    pub(super) fn new(file: &'f File) -> io::Result<Self> {
        Ok(Reader {
            file,
            size: file.metadata()?.len(),
            pages: RefCell::new(HashMap::new()),
            bytes: Cell::new(0),
            reads: Cell::new(0),
            steps: Cell::new(0),
            deadline: Instant::now() + MAX_TIME,
        })
    }

    /// Size of the file in bytes, when it was opened.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// (calls of `pread`, bytes read) so far.
    pub(super) fn cost(&self) -> (u64, u64) {
        (self.reads.get(), self.bytes.get())
    }

    /// Fills `buf` from `offset`, through the cache.
    pub(super) fn exact(&self, offset: u64, buf: &mut [u8]) -> Result<(), Error> {
        let end = offset.checked_add(buf.len() as u64).ok_or(Error::Malformed("offset"))?;
        if end > self.size {
            return Err(Error::Malformed("an offset lies beyond the end of the file"));
        }
        self.step()?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE as u64, (at % PAGE as u64) as usize);
            let take = (PAGE - within).min(buf.len() - done);
            self.with_page(page, |bytes| {
                let part = bytes.get(within..within + take).ok_or(Error::Malformed("truncated"))?;
                buf[done..done + take].copy_from_slice(part);
                Ok(())
            })?;
            done += take;
        }
        Ok(())
    }

    pub(super) fn u32(&self, offset: u64) -> Result<u32, Error> {
        let mut buf = [0; 4];
        self.exact(offset, &mut buf)?;
        Ok(u32::from_le_bytes(buf))
    }

    pub(super) fn u64(&self, offset: u64) -> Result<u64, Error> {
        let mut buf = [0; 8];
        self.exact(offset, &mut buf)?;
        Ok(u64::from_le_bytes(buf))
    }

    /// One uncached `pread`; the caller keeps its own byte count.
    pub(super) fn raw(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.reads.set(self.reads.get() + 1);
        loop {
            match self.file.read_at(buf, offset) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => return other,
            }
        }
    }

    fn step(&self) -> Result<(), Error> {
        let steps = self.steps.get() + 1;
        self.steps.set(steps);
        let late = steps % 1024 == 0 && Instant::now() > self.deadline;
        if steps > MAX_STEPS || late {
            return Err(Error::Budget);
        }
        Ok(())
    }

    fn with_page<T>(
        &self,
        page: u64,
        then: impl FnOnce(&[u8]) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut pages = self.pages.borrow_mut();
        if let Some(bytes) = pages.get(&page) {
            return then(bytes);
        }
        if self.bytes.get() + PAGE as u64 > MAX_BYTES || Instant::now() > self.deadline {
            return Err(Error::Budget);
        }
        let mut bytes = vec![0; PAGE].into_boxed_slice();
        let mut filled = 0;
        while filled < PAGE {
            // `page` came from an offset inside the file: no overflow.
            match self.raw(page * PAGE as u64 + filled as u64, &mut bytes[filled..])? {
                0 => break,
                n => filled += n,
            }
        }
        self.bytes.set(self.bytes.get() + filled as u64);
        let result = then(&bytes[..filled]);
        if pages.len() >= MAX_PAGES {
            pages.clear();
        }
        pages.insert(page, bytes[..filled].into());
        result
    }
}
