//! Bounded parser of `/proc/PID/maps`: the files that a process runs code from or shares memory
//! through.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

/// Bytes of one `maps` file that are read; 65,530 mappings of usual length are 7 MB.
const MAX_BYTES: u64 = 16 << 20;
/// Longest line kept; a path may be 4096 bytes, four times that when every byte is escaped.
const MAX_LINE: usize = 17 << 10;
/// Different executable files of one process that are looked at.
const MAX_FILES: usize = 8192;
/// Bytes of a path that are kept.
const MAX_PATH: usize = 4096;

/// Libraries that usually carry collectives: looked at before everything else, nothing more.
const LIKELY: [&str; 10] = [
    "libnccl",
    "librccl",
    "libtorch_cuda",
    "libtorch_hip",
    "libtorch_cpu",
    "libgloo",
    "xla_cuda",
    "xla_rocm",
    "pjrt",
    "jaxlib",
];

/// A mapping of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    pub start: u64,
    pub end: u64,
    pub dev: u64,
    pub ino: u64,
    /// As the process mapped it, in its mount namespace; only a hint. No control characters.
    pub path: String,
    pub deleted: bool,
}

impl Mapping {
    /// Whether the file's name is one that collective libraries usually have.
    pub fn is_likely(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or("");
        LIKELY.iter().any(|l| name.contains(l))
    }
}

/// Executable file mappings of a process, one per file, likely libraries first.
///
/// # Errors
/// What the kernel says; ENOENT and ESRCH mean that the process ended.
pub fn executable_mappings(pid: u32) -> io::Result<Vec<Mapping>> {
    parse(File::open(format!("/proc/{pid}/maps"))?)
}

/// Mappings of files with this path as the kernel writes it, the first of each file.
///
/// # Errors
/// As [`executable_mappings`].
pub fn mappings_of(pid: u32, path: &str) -> io::Result<Vec<Mapping>> {
    let text = File::open(format!("/proc/{pid}/maps"))?;
    collect(text, |_, found| found == path.as_bytes())
}

/// As [`executable_mappings`], from any text; lines that are no mapping are skipped.
///
/// # Errors
/// What `text` says.
pub fn parse(text: impl Read) -> io::Result<Vec<Mapping>> {
    let mut found = collect(text, |permissions, _| permissions.get(2) == Some(&b'x'))?;
    found.sort_by_key(|m| !m.is_likely());
    Ok(found)
}

/// The first mapping of each file whose permissions and path, as written, are `wanted`.
fn collect(text: impl Read, wanted: impl Fn(&[u8], &[u8]) -> bool) -> io::Result<Vec<Mapping>> {
    let mut reader = BufReader::with_capacity(32 << 10, text.take(MAX_BYTES));
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    let mut line = Vec::with_capacity(256);
    while found.len() < MAX_FILES && next_line(&mut reader, &mut line)? {
        if let Some(mapping) = parse_line(&line, &wanted) {
            if seen.insert((mapping.dev, mapping.ino)) {
                found.push(mapping);
            }
        }
    }
    Ok(found)
}

/// Next line without its end, cut at `MAX_LINE`; false at the end of the text.
fn next_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut any = false;
    loop {
        let (used, ended) = {
            let chunk = match reader.fill_buf() {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            if chunk.is_empty() {
                return Ok(any);
            }
            any = true;
            let end = chunk.iter().position(|&b| b == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            let room = MAX_LINE - line.len();
            line.extend_from_slice(&part[..part.len().min(room)]);
            (part.len() + usize::from(end.is_some()), end.is_some())
        };
        reader.consume(used);
        if ended {
            return Ok(true);
        }
    }
}

/// `start-end perms offset major:minor inode   path`
fn parse_line(line: &[u8], wanted: impl Fn(&[u8], &[u8]) -> bool) -> Option<Mapping> {
    let mut rest = line;
    let range = field(&mut rest)?;
    let permissions = field(&mut rest)?;
    let _offset = field(&mut rest)?;
    let device = field(&mut rest)?;
    let ino = number(field(&mut rest)?, 10)?;
    let path = rest.iter().position(|&b| b != b' ').map_or(&[][..], |at| &rest[at..]);
    if ino == 0 || path.first() != Some(&b'/') || !wanted(permissions, path) {
        return None;
    }
    let (start, end) = pair(range, b'-')?;
    let (major, minor) = pair(device, b':')?;
    if start >= end || major > u64::from(u32::MAX) || minor > u64::from(u32::MAX) {
        return None;
    }
    let path = unescape(&path[..path.len().min(4 * MAX_PATH)]);
    let (path, deleted) = match path.strip_suffix(" (deleted)") {
        Some(before) => (before.to_owned(), true),
        None => (path, false),
    };
    Some(Mapping { start, end, dev: device_number(major, minor), ino, path, deleted })
}

/// One number for a device, comparable between `maps`, statx and perf records.
pub(crate) fn device_number(major: u64, minor: u64) -> u64 {
    major << 32 | minor
}

fn field<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text: &'a [u8] = rest;
    let start = text.iter().position(|&b| b != b' ')?;
    let end = text[start..].iter().position(|&b| b == b' ').map_or(text.len(), |n| start + n);
    *rest = &text[end..];
    Some(&text[start..end])
}

fn number(text: &[u8], radix: u32) -> Option<u64> {
    let digits = std::str::from_utf8(text).ok()?;
    (!digits.starts_with('+')).then(|| u64::from_str_radix(digits, radix).ok())?
}

fn pair(text: &[u8], separator: u8) -> Option<(u64, u64)> {
    let at = text.iter().position(|&b| b == separator)?;
    Some((number(&text[..at], 16)?, number(&text[at + 1..], 16)?))
}

/// The kernel writes a newline in a path as `\012`. Control characters stay out of what we keep:
/// the path is shown on terminals and in the journal.
fn unescape(path: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(path.len().min(MAX_PATH));
    let mut rest = path;
    while let (Some(&byte), true) = (rest.first(), bytes.len() < MAX_PATH) {
        let octal = |b: &u8| (b'0'..=b'7').contains(b);
        if byte == b'\\' && rest.len() >= 4 && rest[1..4].iter().all(octal) {
            let value = rest[1..4].iter().fold(0u32, |v, b| v * 8 + u32::from(b - b'0'));
            bytes.push((value & 0xff) as u8);
            rest = &rest[4..];
        } else {
            bytes.push(byte);
            rest = &rest[1..];
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_spaces_newlines_and_deleted() {
        let text = b"7f00-7f10 r-xp 00001000 fe:00 12   /a b/lib nccl.so\n\
            7f20-7f30 r--p 00001000 fe:00 13   /lib/data.so\n\
            7f40-7f50 r-xp 00001000 00:2a 14   /x\\012y (deleted)\n\
            7f60-7f70 r-xp 00000000 00:00 0    [vdso]\n\
            7f80-7f90 r-xp 00000000 fe:00 12   /a b/lib nccl.so\n\
            7fa0-7fb0 r-xp 00000000 fe:01 9    /opt/libnccl.so.2\n\
            garbage\n\
            7fc0-7fb0 r-xp 00000000 fe:01 10   /backwards\n\
            7fc0-7fd0 r-xp 00000000 fe:01 11";
        let found = parse(&text[..]).unwrap();
        let paths: Vec<_> = found.iter().map(|m| (m.path.as_str(), m.deleted)).collect();
        assert_eq!(
            paths,
            [("/opt/libnccl.so.2", false), ("/a b/lib nccl.so", false), ("/x?y", true)]
        );
        assert_eq!((found[1].start, found[1].end, found[1].ino), (0x7f00, 0x7f10, 12));
        assert_eq!(found[2].dev, 0x2a);
        assert_eq!(found[1].dev, 0xfe << 32);
    }

    #[test]
    fn a_line_without_end_does_not_grow_memory() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                buf.fill(b'x');
                self.0 += buf.len() as u64;
                Ok(buf.len())
            }
        }
        let mut endless = Endless(0);
        assert!(parse(&mut endless).unwrap().is_empty());
        assert!(endless.0 <= MAX_BYTES + (64 << 10));
    }

    #[test]
    fn own_maps_hold_the_own_executable() {
        let exe = std::env::current_exe().unwrap();
        let found = executable_mappings(std::process::id()).unwrap();
        assert!(found.iter().any(|m| std::path::Path::new(&m.path) == exe), "{found:?}");
    }

    #[test]
    fn mutated_text_never_panics() {
        let good = std::fs::read("/proc/self/maps").unwrap();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..20_000 {
            let start = random() as usize % good.len();
            let mut text = good[start..(start + 600).min(good.len())].to_vec();
            for _ in 0..random() % 16 {
                let at = random() as usize % text.len();
                text[at] = match random() % 4 {
                    0 => b' ',
                    1 => b'\\',
                    2 => b'\n',
                    _ => random() as u8,
                };
            }
            for mapping in parse(&text[..]).unwrap() {
                assert!(mapping.start < mapping.end && mapping.ino != 0);
                assert!(!mapping.path.chars().any(char::is_control));
            }
        }
    }
}
