//! What a file is: decided by the symbols it exports, not by its name.

use std::fs::File;
use std::io;

use super::elf::{Elf, Symbol};
use super::reader::Error;

/// A collective library stragd knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Nccl = 1,
    Rccl = 2,
    Gloo = 4,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Nccl, Kind::Rccl, Kind::Gloo];

    /// `nccl`, `rccl` or `gloo`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Nccl => "nccl",
            Kind::Rccl => "rccl",
            Kind::Gloo => "gloo",
        }
    }
}

/// A set of [`Kind`]s: PyTorch puts several into one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Kinds(u8);

impl Kinds {
    pub fn contains(self, kind: Kind) -> bool {
        self.0 & kind as u8 != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn insert(&mut self, kind: Kind) {
        self.0 |= kind as u8;
    }

    #[must_use]
    pub fn union(self, other: Kinds) -> Kinds {
        Kinds(self.0 | other.0)
    }

    /// Names of the kinds in the set.
    pub fn names(self) -> Vec<&'static str> {
        Kind::ALL.into_iter().filter(|k| self.contains(*k)).map(Kind::name).collect()
    }
}

/// Number of a library within one [`super::Discovery`]; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LibraryId(pub u32);

/// Names to look for: the probe table's symbols.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Symbols of NCCL and RCCL, which share most names.
    pub nccl: Vec<String>,
    /// Names that only RCCL has.
    pub rccl: Vec<String>,
    /// Mangled symbols of gloo and of PyTorch's work on top of it.
    pub gloo: Vec<String>,
}

/// A file with collectives in it, mapped by at least one process.
#[derive(Debug)]
pub struct Library {
    pub id: LibraryId,
    pub kinds: Kinds,
    /// Empty where the file has none.
    pub build_id: Vec<u8>,
    /// `2.32.3`, empty where unknown.
    pub version: String,
    /// As the first process mapped it, in its mount namespace.
    pub path: String,
    /// The mapped file itself, whatever its path says today: attach through `/proc/self/fd/N`.
    pub file: File,
    pub dev: u64,
    pub ino: u64,
    /// Bytes.
    pub size: u64,
    /// `e_machine`.
    pub machine: u16,
    /// The wanted symbols it exports. Empty: the library is inside, but not probeable.
    pub symbols: Vec<Symbol>,
    /// Another library of equal build-id and size: overlay mounts show one file as several.
    pub probably_same_as: Option<LibraryId>,
}

impl Library {
    /// False where the library is linked in with hidden symbols.
    pub fn is_probeable(&self) -> bool {
        !self.symbols.is_empty()
    }

    /// The build-id in hex.
    pub fn build_id_hex(&self) -> String {
        self.build_id.iter().map(|b| format!("{b:02x}")).collect()
    }
}

/// What a file's content says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    pub kinds: Kinds,
    pub build_id: Vec<u8>,
    pub version: String,
    pub machine: u16,
    pub symbols: Vec<Symbol>,
}

/// Looks into a file; `None` when there are no collectives in it. `likely` is that its name
/// suggests some, which earns it a search for texts even without GPU code.
///
/// # Errors
/// [`Error::Io`] and [`Error::Budget`]: worth another try later. A malformed or foreign file
/// is no error, there are simply no collectives in it.
pub fn inspect(file: &File, wanted: &Wanted, likely: bool) -> Result<Option<Content>, Error> {
    let retry = |e: Error| match e {
        Error::Io(_) | Error::Budget => Err(e),
        _ => Ok(None),
    };
    let elf = match Elf::open(file) {
        Ok(elf) => elf,
        Err(e) => return retry(e),
    };
    match read(&elf, wanted, likely) {
        Ok(content) => Ok(content),
        Err(e) => retry(e),
    }
}

fn read(elf: &Elf<'_>, wanted: &Wanted, likely: bool) -> Result<Option<Content>, Error> {
    let find =
        |names: &[String]| elf.find_symbols(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (nccl, rccl, gloo) = (find(&wanted.nccl)?, find(&wanted.rccl)?, find(&wanted.gloo)?);
    let mut kinds = Kinds::default();
    let mut version = String::new();
    if !gloo.is_empty() {
        kinds.insert(Kind::Gloo);
    }
    if !nccl.is_empty() || !rccl.is_empty() {
        let amd = version_text(elf, Kind::Rccl);
        if amd.is_some() || !rccl.is_empty() {
            kinds.insert(Kind::Rccl);
            version = amd.unwrap_or_default();
        } else {
            kinds.insert(Kind::Nccl);
            version = version_text(elf, Kind::Nccl).unwrap_or_default();
        }
    } else if likely || elf.has_gpu_code() {
        // Linked in statically with hidden symbols: only its texts tell.
        for kind in [Kind::Nccl, Kind::Rccl] {
            if let Some(text) = version_text(elf, kind) {
                kinds.insert(kind);
                version = text;
                break;
            }
        }
    }
    if kinds.is_empty() {
        return Ok(None);
    }
    let mut symbols: Vec<Symbol> = Vec::with_capacity(nccl.len() + rccl.len() + gloo.len());
    for symbol in nccl.into_iter().chain(rccl).chain(gloo) {
        if !symbols.contains(&symbol) {
            symbols.push(symbol);
        }
    }
    let build_id = elf.build_id().unwrap_or_default();
    Ok(Some(Content { kinds, build_id, version, machine: elf.machine(), symbols }))
}

/// `2.32.3` out of `NCCL version 2.32.3+cuda12.9` or `RCCL version 2.13.4+hip5.7`. Users of the
/// library say "NCCL version 2.x" too, so the toolkit suffix is required.
fn version_text(elf: &Elf<'_>, kind: Kind) -> Option<String> {
    let needle: &[u8] = if kind == Kind::Rccl { b"RCCL version " } else { b"NCCL version " };
    let text = elf.find_text_where(needle, 64, |t| parse_version(&t[needle.len()..]).is_some())?;
    parse_version(&text[needle.len()..])
}

fn parse_version(text: &str) -> Option<String> {
    let text = text.trim_start_matches([':', ' ']);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (version, rest) = text.split_at(end);
    let numbers: Vec<&str> = version.split('.').collect();
    let plain = numbers.len() == 3 && numbers.iter().all(|n| (1..=5).contains(&n.len()));
    let suffix = ["+cuda", "+hip", "-"].iter().any(|s| rest.starts_with(s));
    (plain && suffix).then(|| version.to_owned())
}

/// Identity and age of a file; equal stamps mean equal content, as far as the kernel knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub dev: u64,
    pub ino: u64,
    pub size: u64,
    modified: (i64, u32),
    changed: (i64, u32),
    pub regular: bool,
}

impl Stamp {
    /// Of an open file, from what the kernel has at hand: a network or FUSE server that does
    /// not answer is not asked.
    ///
    /// # Errors
    /// What statx says.
    pub fn of(file: &File) -> io::Result<Stamp> {
        use std::os::fd::AsRawFd;
        // SAFETY: statx is plain data, all zeroes is a value of it.
        let mut raw: libc::statx = unsafe { std::mem::zeroed() };
        let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
        // SAFETY: the path is a C string, `raw` is writable for the call.
        let rc = unsafe {
            libc::statx(
                file.as_raw_fd(),
                c"".as_ptr(),
                flags,
                libc::STATX_BASIC_STATS,
                &raw mut raw,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Stamp {
            dev: super::maps::device_number(raw.stx_dev_major.into(), raw.stx_dev_minor.into()),
            ino: raw.stx_ino,
            size: raw.stx_size,
            modified: (raw.stx_mtime.tv_sec, raw.stx_mtime.tv_nsec),
            changed: (raw.stx_ctime.tv_sec, raw.stx_ctime.tv_nsec),
            regular: u32::from(raw.stx_mode) & libc::S_IFMT == libc::S_IFREG,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_libraries_write_them() {
        assert_eq!(parse_version("2.32.3+cuda12.9").as_deref(), Some("2.32.3"));
        assert_eq!(parse_version("2.13.4+hip5.7").as_deref(), Some("2.13.4"));
        assert_eq!(parse_version(": 2.22.3-develop:abc").as_deref(), Some("2.22.3"));
        for no in ["information", "%s", "2.14 or later", "2.10.3", "2..3+cuda", "", "+cuda"] {
            assert_eq!(parse_version(no), None, "{no}");
        }
    }

    #[test]
    fn kinds_are_a_set() {
        let mut kinds = Kinds::default();
        kinds.insert(Kind::Gloo);
        kinds.insert(Kind::Nccl);
        assert_eq!(kinds.names(), ["nccl", "gloo"]);
        assert!(!kinds.contains(Kind::Rccl) && !kinds.is_empty());
    }
}
