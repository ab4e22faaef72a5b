//! Program headers and dynamic section of an ELF file, each field checked against the file.

use super::elf::SYMBOL_BYTES;
use super::reader::{Error, Reader};

/// Program headers that are looked at; linkers write about ten.
const MAX_SEGMENTS: usize = 64;
/// Dynamic entries that are looked at; large C++ libraries have under a hundred.
const MAX_DYNAMIC: u64 = 1024;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_NOTE: u32 = 4;
const PF_X: u32 = 1;
const PF_W: u32 = 2;

/// A `PT_LOAD`, `PT_NOTE` or `PT_DYNAMIC` program header, checked against the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    kind: u32,
    flags: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) align: u64,
}

impl Segment {
    pub(super) fn is_load(&self) -> bool {
        self.kind == PT_LOAD
    }

    pub(super) fn is_note(&self) -> bool {
        self.kind == PT_NOTE
    }

    pub(super) fn is_writable(&self) -> bool {
        self.flags & PF_W != 0
    }

    pub(super) fn is_executable(&self) -> bool {
        self.flags & PF_X != 0
    }
}

/// Where the section headers are, as the file header says; checked when they are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct SectionTable {
    pub(super) offset: u64,
    pub(super) count: u16,
    pub(super) entry_bytes: u16,
    pub(super) names: u16,
}

/// What the dynamic section says about symbols; addresses, not yet checked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Dynamic {
    pub(super) symtab: Option<u64>,
    pub(super) strtab: Option<u64>,
    pub(super) strtab_bytes: u64,
    pub(super) gnu_hash: Option<u64>,
    pub(super) hash: Option<u64>,
    pub(super) soname: Option<u64>,
}

pub(super) fn load_of(segments: &[Segment], address: u64) -> Option<&Segment> {
    segments.iter().find(|s| s.is_load() && address >= s.address && address - s.address < s.bytes)
}

pub(super) fn read_segments(reader: &Reader<'_>, head: &[u8; 64]) -> Result<Vec<Segment>, Error> {
    let (table, entry, count) = (u64_at(head, 32), u16_at(head, 54), u16_at(head, 56));
    if entry != 56 {
        return Err(Error::Malformed("size of a program header"));
    }
    let mut segments = Vec::new();
    for index in 0..usize::from(count).min(MAX_SEGMENTS) {
        let mut raw = [0u8; 56];
        let at = table
            .checked_add(index as u64 * 56)
            .ok_or(Error::Malformed("place of the program headers"))?;
        reader.exact(at, &mut raw)?;
        let segment = Segment {
            kind: u32_at(&raw, 0),
            flags: u32_at(&raw, 4),
            offset: u64_at(&raw, 8),
            address: u64_at(&raw, 16),
            bytes: u64_at(&raw, 32),
            align: u64_at(&raw, 48),
        };
        if !matches!(segment.kind, PT_LOAD | PT_DYNAMIC | PT_NOTE) {
            continue;
        }
        let end = segment.offset.checked_add(segment.bytes);
        if end.is_none_or(|end| end > reader.size())
            || segment.address.checked_add(segment.bytes).is_none()
        {
            return Err(Error::Malformed("a segment lies beyond the end of the file"));
        }
        segments.push(segment);
    }
    Ok(segments)
}

pub(super) fn read_dynamic(reader: &Reader<'_>, segments: &[Segment]) -> Result<Dynamic, Error> {
    let Some(segment) = segments.iter().find(|s| s.kind == PT_DYNAMIC) else {
        return Err(Error::Unsupported("no dynamic section"));
    };
    let mut dynamic = Dynamic::default();
    for index in 0..(segment.bytes / 16).min(MAX_DYNAMIC) {
        let at = segment.offset + index * 16;
        let (tag, value) = (reader.u64(at)?, reader.u64(at + 8)?);
        match tag {
            0 => break,
            4 => dynamic.hash = Some(value),
            5 => dynamic.strtab = Some(value),
            6 => dynamic.symtab = Some(value),
            10 => dynamic.strtab_bytes = value,
            11 if value != SYMBOL_BYTES => return Err(Error::Malformed("size of a symbol")),
            14 => dynamic.soname = Some(value),
            0x6fff_fef5 => dynamic.gnu_hash = Some(value),
            _ => {}
        }
    }
    Ok(dynamic)
}

pub(super) fn u16_at(raw: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([raw[at], raw[at + 1]])
}

pub(super) fn u32_at(raw: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]])
}

pub(super) fn u64_at(raw: &[u8], at: usize) -> u64 {
    u64::from(u32_at(raw, at)) | u64::from(u32_at(raw, at + 4)) << 32
}
