//! The ELF reader on real NCCL and RCCL files and on mutated small ones.
//!
//! STRAGD_TEST_NCCL (colon-separated) and STRAGD_TEST_RCCL name real library files.

#![allow(clippy::print_stdout)] // the figures are part of a test run

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use rscore::discover::elf::{Elf, EM_X86_64};
use rscore::discover::library::{inspect, Wanted};

fn files(variable: &str) -> Vec<String> {
    let list = std::env::var(variable)
        .unwrap_or_else(|_| panic!("set {variable} to the path of a real library"));
    list.split(':').filter(|s| !s.is_empty()).map(String::from).collect()
}

/// name → value of every defined function that binutils sees.
fn readelf_functions(path: &str) -> Vec<(String, u64)> {
    let out = Command::new("readelf").args(["--dyn-syms", "-W", path]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let mut found = Vec::new();
    for line in text.lines() {
        let f: Vec<&str> = line.split_whitespace().collect();
        if f.len() >= 8 && f[3] == "FUNC" && f[6] != "UND" && matches!(f[4], "GLOBAL" | "WEAK") {
            let name = f[7].split('@').next().unwrap().to_owned();
            found.push((name, u64::from_str_radix(f[1], 16).unwrap()));
        }
    }
    found
}

fn check_real(path: &str, prefix: &str) {
    let expected: Vec<_> =
        readelf_functions(path).into_iter().filter(|(n, _)| n.starts_with(prefix)).collect();
    assert!(expected.len() > 15, "{path}: readelf sees {} {prefix} functions", expected.len());
    let file = File::open(path).unwrap();
    // Once to bring the pages in, then the measured one.
    Elf::open(&file).unwrap().find_symbols(&["ncclAllReduce"]).unwrap();
    let start = Instant::now();
    let elf = Elf::open(&file).unwrap();
    let mut names: Vec<&str> = expected.iter().map(|(n, _)| n.as_str()).collect();
    names.extend(["ncclNoSuchThing", "", "printf", "main"]);
    let found = elf.find_symbols(&names).unwrap();
    let (reads, bytes) = elf.cost();
    let build_id = elf.build_id().unwrap();
    let took = start.elapsed();
    println!(
        "{path}: {} symbols, {reads} preads, {bytes} bytes of {}, {took:?}, soname {:?}",
        found.len(),
        elf.size(),
        elf.soname()
    );
    assert_eq!(elf.machine(), EM_X86_64);
    let as_set = |list: Vec<(String, u64)>| list.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(as_set(found.iter().map(|s| (s.name.clone(), s.value)).collect()), as_set(expected));
    assert!(bytes < 2 << 20, "{bytes} bytes read");
    let notes = Command::new("readelf").args(["-n", path]).output().unwrap();
    let hex: String = build_id.iter().map(|b| format!("{b:02x}")).collect();
    assert!(String::from_utf8_lossy(&notes.stdout).contains(&hex), "build-id {hex}");
    for symbol in &found {
        let mut code = [0u8; 4];
        assert_eq!(elf.read_at(symbol.offset, &mut code).unwrap(), 4);
        assert_ne!(code, [0; 4], "{} points at nothing", symbol.name);
    }
}

#[test]
fn real_nccl() {
    for path in files("STRAGD_TEST_NCCL") {
        check_real(&path, "nccl");
        check_real(&path, "pnccl");
        let file = File::open(&path).unwrap();
        let elf = Elf::open(&file).unwrap();
        let start = Instant::now();
        let text = elf
            .find_text_where(b"NCCL version ", 64, |t| t.as_bytes()[13].is_ascii_digit())
            .unwrap();
        println!("{path}: {text:?} in {:?}", start.elapsed());
        assert!(elf.has_gpu_code());
    }
}

#[test]
fn real_rccl() {
    for path in files("STRAGD_TEST_RCCL") {
        check_real(&path, "nccl");
        let file = File::open(&path).unwrap();
        let elf = Elf::open(&file).unwrap();
        let text = elf.find_text(b"RCCL version ", 64).unwrap();
        println!("{path}: {text:?}");
        assert!(elf.has_gpu_code());
    }
}

#[test]
fn real_libraries_are_known_by_content() {
    let wanted = Wanted {
        nccl: vec!["ncclAllReduce".into(), "ncclCommInitRank".into()],
        rccl: vec!["ncclAllToAllv".into()],
        gloo: Vec::new(),
    };
    for (variable, kind) in [("STRAGD_TEST_NCCL", "nccl"), ("STRAGD_TEST_RCCL", "rccl")] {
        for path in files(variable) {
            let start = Instant::now();
            let content = inspect(&File::open(&path).unwrap(), &wanted, false).unwrap().unwrap();
            println!("{path}: {kind} {} in {:?}", content.version, start.elapsed());
            assert_eq!(content.kinds.names(), [kind]);
            let in_path =
                path.split(['/', '-']).find(|p| p.split('.').count() == 3 && p.starts_with("2."));
            assert_eq!(content.version.split('.').count(), 3);
            assert!(in_path.is_none_or(|v| v == content.version), "{}", content.version);
        }
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn stub(flags: &[&str]) -> Vec<u8> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let base = std::env::temp_dir().join(format!("stragd-elf-{}-{number}", std::process::id()));
    let (c, so) = (base.with_extension("c"), base.with_extension("so"));
    let source = "const char v[] = \"NCCL version 2.99.1+cuda12.9\";\
        int ncclAllReduce(void) { return v[3]; } int ncclGroupEnd(void) { return 2; }";
    std::fs::write(&c, source).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-Wl,--build-id", "-Wl,-soname,libstub.so.1"]).args(flags);
    assert!(cc.arg(&c).arg("-o").arg(&so).status().unwrap().success());
    let bytes = std::fs::read(&so).unwrap();
    std::fs::remove_file(c).unwrap();
    std::fs::remove_file(so).unwrap();
    bytes
}

fn as_file(bytes: &[u8]) -> File {
    // SAFETY: the name is a C string; the descriptor is new and ours.
    let file = unsafe {
        let fd = libc::memfd_create(c"elf".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// Everything that the daemon would ask a file.
fn ask_everything(file: &File) -> usize {
    let Ok(elf) = Elf::open(file) else { return 0 };
    let found = elf.find_symbols(&["ncclAllReduce", "ncclGroupEnd", "nope"]);
    let (_, bytes) = elf.cost();
    assert!(bytes <= 8 << 20);
    elf.build_id();
    elf.soname();
    elf.has_gpu_code();
    elf.find_text(b"NCCL version ", 64);
    for symbol in found.as_deref().unwrap_or(&[]) {
        let mut code = [0; 16];
        elf.read_at(symbol.offset, &mut code).unwrap();
        assert!(symbol.offset < elf.size());
    }
    found.map_or(0, |f| f.len())
}

#[test]
fn both_hash_kinds_find_the_same() {
    for style in ["-Wl,--hash-style=gnu", "-Wl,--hash-style=sysv", "-Wl,--hash-style=both"] {
        let file = as_file(&stub(&[style]));
        let elf = Elf::open(&file).unwrap();
        let found = elf.find_symbols(&["ncclGroupEnd", "nope", "ncclAllReduce"]).unwrap();
        let names: Vec<_> = found.iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["ncclGroupEnd", "ncclAllReduce"], "{style}");
        assert_eq!(elf.soname().as_deref(), Some("libstub.so.1"));
        assert_eq!(
            elf.find_text(b"NCCL version ", 64).as_deref(),
            Some("NCCL version 2.99.1+cuda12.9")
        );
    }
}

#[test]
fn without_hash_tables_or_section_headers_it_still_finds() {
    let mut bytes = stub(&["-Wl,--hash-style=gnu"]);
    // No section headers, as sstrip leaves a file.
    bytes[40..48].fill(0);
    bytes[58..64].fill(0);
    // DT_GNU_HASH becomes a tag that nobody knows.
    let tag = 0x6fff_fef5u64.to_le_bytes();
    let at = bytes.windows(8).position(|w| w == tag).unwrap();
    bytes[at..at + 8].copy_from_slice(&0x6fff_fe00u64.to_le_bytes());
    let file = as_file(&bytes);
    let elf = Elf::open(&file).unwrap();
    assert_eq!(elf.find_symbols(&["ncclAllReduce", "ncclGroupEnd"]).unwrap().len(), 2);
    assert!(elf.find_text(b"NCCL version ", 64).is_some());
}

/// 200,000 files (60,000 in a debug build): bytes of the headers and tables replaced by boundary
/// values and noise, from a fixed seed.
#[test]
fn mutated_files_never_panic_and_never_take_long() {
    let originals = [
        stub(&["-Wl,--hash-style=gnu"]),
        stub(&["-Wl,--hash-style=sysv"]),
        stub(&["-Wl,-z,separate-code", "-s"]),
    ];
    let mut random = Random(0x5eed_0000_0000_0001);
    let (mut opened, mut found, mut worst) = (0u32, 0usize, std::time::Duration::ZERO);
    let rounds = if cfg!(debug_assertions) { 20_000 } else { 66_667 };
    let started = Instant::now();
    for original in &originals {
        let file = as_file(original);
        let tables = original.len().min(0x1000);
        let dynamic = dynamic_range(original);
        for round in 0..rounds {
            let mut undo = Vec::new();
            for _ in 0..1 + random.below(4) {
                let at = match random.below(4) {
                    0 => random.below(64),
                    1 => 64 + random.below(56 * 12),
                    2 => dynamic.start + random.below(dynamic.len()),
                    _ => random.below(tables),
                };
                let (mut at, mut value) = (at, random.next().to_le_bytes().to_vec());
                match random.below(5) {
                    0 => value.truncate(1),
                    1 => value = u64::MAX.to_le_bytes()[..4].to_vec(),
                    2 => {
                        at &= !7;
                        let edges = [0, 1, u64::MAX, i64::MAX as u64, original.len() as u64];
                        value = edges[random.below(edges.len())].to_le_bytes().to_vec();
                    }
                    3 => {
                        at &= !7;
                        value = (random.next() % 0x5000).to_le_bytes().to_vec();
                    }
                    _ => {}
                }
                value.truncate(original.len() - at);
                undo.push((at, value.len()));
                file.write_all_at(&value, at as u64).unwrap();
            }
            if round % 64 == 0 {
                file.set_len(random.below(original.len()) as u64).unwrap();
            }
            let start = Instant::now();
            let symbols = ask_everything(&file);
            worst = worst.max(start.elapsed());
            opened += u32::from(symbols > 0);
            found += symbols;
            if round % 64 == 0 {
                file.write_all_at(original, 0).unwrap();
            }
            for (at, bytes) in undo {
                file.write_all_at(&original[at..at + bytes], at as u64).unwrap();
            }
        }
    }
    println!(
        "{} files in {:?}, {opened} still had symbols ({found}), the slowest took {worst:?}",
        3 * rounds,
        started.elapsed()
    );
    assert!(worst.as_secs() < 10, "one file took {worst:?}");
    assert!(opened > 10_000, "the mutations leave nothing to read: {opened}");
}

/// Where `PT_DYNAMIC` lies in a file that the linker wrote.
fn dynamic_range(bytes: &[u8]) -> std::ops::Range<usize> {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
    let header =
        (0..12).map(|i| 64 + i * 56).find(|at| bytes[*at..*at + 4] == [2, 0, 0, 0]).unwrap();
    word(header + 8)..word(header + 8) + word(header + 32)
}

/// A hash chain without an end, and counts that ask for the whole address space.
#[test]
fn endless_chains_and_huge_counts_end_in_an_error_or_nothing() {
    for style in ["gnu", "sysv"] {
        let original = stub(&[&format!("-Wl,--hash-style={style}")]);
        let range = dynamic_range(&original);
        let tag: u64 = if style == "gnu" { 0x6fff_fef5 } else { 4 };
        let entry = range.step_by(16).find(|at| original[*at..*at + 8] == tag.to_le_bytes());
        let value = entry.unwrap() + 8;
        let table = u64::from_le_bytes(original[value..value + 8].try_into().unwrap()) as usize;
        for fill in [0u8, 1, 2, 0xfe, 0xff] {
            for skip in [0usize, 4, 8, 12, 16, 24] {
                let mut bytes = original.clone();
                bytes[table + skip..table + 256].fill(fill);
                let file = as_file(&bytes);
                let start = Instant::now();
                ask_everything(&file);
                assert!(start.elapsed().as_secs() < 60, "{style} {fill} {skip}");
            }
        }
    }
}
