//! Search for a text in the read-only data of an ELF file, GPU code left out.

use super::elf::Elf;
use super::headers::{u32_at, u64_at};

/// Section headers that are looked at; CUDA libraries have about fifty.
const MAX_SECTIONS: u16 = 512;
/// Bytes that one search reads at most.
const MAX_BYTES: u64 = 48 << 20;
/// Bytes of one segment that a search reads where the file has no section headers.
const MAX_SEGMENT_BYTES: u64 = 16 << 20;
const CHUNK: usize = 256 << 10;

const SHF_WRITE: u64 = 1;
const SHF_ALLOC: u64 = 2;
const SHF_EXECINSTR: u64 = 4;

struct Section {
    name: [u8; 32],
    kind: u32,
    flags: u64,
    offset: u64,
    bytes: u64,
}

impl Section {
    fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(self.name.len());
        &self.name[..end]
    }
}

impl Elf<'_> {
    /// First text in the read-only data that starts with `needle`, up to `max` bytes, its line
    /// or string end, or its first unprintable byte.
    pub fn find_text(&self, needle: &[u8], max: usize) -> Option<String> {
        self.find_text_where(needle, max, |_| true)
    }

    /// As [`Elf::find_text`], the first one that `accept` takes.
    pub fn find_text_where(
        &self,
        needle: &[u8],
        max: usize,
        accept: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let max = max.clamp(needle.len(), 1024);
        if needle.is_empty() || needle.len() > 256 {
            return None;
        }
        let mut left = MAX_BYTES;
        for (offset, bytes) in self.read_only_data() {
            let bytes = bytes.min(left);
            left -= bytes;
            if let Some(text) = self.search(offset, bytes, needle, max, &accept) {
                return Some(text);
            }
        }
        None
    }

    /// Whether the file carries GPU code: a section that CUDA's or HIP's compiler makes.
    pub fn has_gpu_code(&self) -> bool {
        const NAMES: [&[u8]; 4] =
            [b".nv_fatbin", b"__nv_relfatbin", b".hip_fatbin", b".hipFatBinSegment"];
        self.sections().is_some_and(|all| all.iter().any(|s| NAMES.contains(&s.name())))
    }

    /// (offset, bytes) of what may hold texts.
    fn read_only_data(&self) -> Vec<(u64, u64)> {
        if let Some(sections) = self.sections() {
            let found: Vec<_> = sections
                .iter()
                .filter(|s| {
                    s.kind == 1
                        && s.flags & SHF_ALLOC != 0
                        && s.flags & (SHF_WRITE | SHF_EXECINSTR) == 0
                        && s.name().windows(6).any(|w| w == b"rodata")
                })
                .map(|s| (s.offset, s.bytes))
                .collect();
            if !found.is_empty() {
                return found;
            }
        }
        let loads = self.segments.iter().filter(|s| s.is_load() && !s.is_writable());
        let mut found: Vec<_> =
            loads.map(|s| (s.is_executable(), s.offset, s.bytes.min(MAX_SEGMENT_BYTES))).collect();
        found.sort_unstable();
        found.into_iter().map(|(_, offset, bytes)| (offset, bytes)).collect()
    }

    fn sections(&self) -> Option<Vec<Section>> {
        let table = self.sections;
        if table.count == 0 || table.count > MAX_SECTIONS || table.entry_bytes != 64 {
            return None;
        }
        let header = |index: u16| -> Option<[u8; 64]> {
            let mut raw = [0u8; 64];
            let at = table.offset.checked_add(u64::from(index) * 64)?;
            self.reader.exact(at, &mut raw).ok()?;
            Some(raw)
        };
        let names = header(table.names)?;
        let (names, names_bytes) = (u64_at(&names, 24), u64_at(&names, 32));
        let mut sections = Vec::with_capacity(usize::from(table.count));
        for index in 0..table.count {
            let raw = header(index)?;
            let mut name = [0u8; 32];
            let name_index = u64::from(u32_at(&raw, 0));
            let room = names_bytes.saturating_sub(name_index).min(name.len() as u64) as usize;
            self.reader.exact(names.checked_add(name_index)?, &mut name[..room]).ok()?;
            let (kind, offset, bytes) = (u32_at(&raw, 4), u64_at(&raw, 24), u64_at(&raw, 32));
            let inside = offset.checked_add(bytes).is_some_and(|end| end <= self.reader.size());
            if inside {
                sections.push(Section { name, kind, flags: u64_at(&raw, 8), offset, bytes });
            }
        }
        Some(sections)
    }

    fn search(
        &self,
        offset: u64,
        bytes: u64,
        needle: &[u8],
        max: usize,
        accept: &impl Fn(&str) -> bool,
    ) -> Option<String> {
        let mut buf = vec![0u8; CHUNK.min(bytes as usize)];
        let mut at = 0u64;
        while at < bytes {
            let want = buf.len().min((bytes - at) as usize);
            let got = self.reader.raw(offset + at, &mut buf[..want]).ok()?;
            let last = got <= max || got < want || at + got as u64 >= bytes;
            let mut rest = &buf[..got];
            while let Some(place) = find(rest, needle) {
                // A text that starts in the last `max` bytes is read again, whole.
                if !last && rest.len() - place < max {
                    break;
                }
                let text = printable(&rest[place..], max);
                if text.len() >= needle.len() && accept(text) {
                    return Some(text.to_owned());
                }
                rest = &rest[place + 1..];
            }
            if last {
                return None;
            }
            at += (got - max) as u64;
        }
        None
    }
}

fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    // SAFETY: both pointers are valid for their lengths; memmem only reads.
    let hit = unsafe {
        libc::memmem(hay.as_ptr().cast(), hay.len(), needle.as_ptr().cast(), needle.len())
    };
    (!hit.is_null()).then(|| hit as usize - hay.as_ptr() as usize)
}

fn printable(bytes: &[u8], max: usize) -> &str {
    let end = bytes.iter().take(max).take_while(|b| (0x20..0x7f).contains(*b)).count();
    std::str::from_utf8(&bytes[..end]).unwrap_or("")
}
