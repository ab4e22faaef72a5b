//! The ELF reader on real NCCL and RCCL files and on mutated small ones.
//!
//! STRAGD_TEST_NCCL (colon-separated) and STRAGD_TEST_RCCL name real library files.

#![allow(clippy::print_stdout)] // the figures are part of a test run

use std::collections::BTreeSet;
use std::fs::File;
use std::process::Command;
use std::time::Instant;

use rscore::discover::elf::{Elf, EM_X86_64};

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
