//! The floor under every probe: a program that does nothing, where stragd would probe.
//!
//! `empty_probe LIBRARY`: attaches to LIBRARY (NCCL's or gloo's names), says "ready" and holds the
//! probes until a line comes on stdin. `bench/cost.py` measures what a call costs meanwhile.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use libbpf_sys::{bpf_insn, bpf_link_create_opts, bpf_prog_load_opts};
use rscore::discover::elf::Elf;
use rscore::probes::{names, plan, Kinds};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: empty_probe LIBRARY")?;
    let file = File::open(&path)?;
    let kinds = Kinds { nccl: true, gloo: true, ..Kinds::default() };
    let wanted = names(&kinds);
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let symbols = Elf::open(&file)?.find_symbols(&wanted)?;
    let plan = plan(&kinds, &symbols, |offset, buffer| file.read_at(buffer, offset), false);
    let offsets: Vec<libc::c_ulong> = plan.sites.iter().map(|s| s.offset).collect();
    let program = load()?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    let mut options = bpf_link_create_opts::default();
    options.sz = std::mem::size_of_val(&options) as _;
    options.__bindgen_anon_1.uprobe_multi.path = path.as_ptr().cast();
    options.__bindgen_anon_1.uprobe_multi.offsets = offsets.as_ptr();
    options.__bindgen_anon_1.uprobe_multi.cnt = offsets.len() as u32;
    // SAFETY: the options and what they point at live through the call.
    let link = unsafe {
        libbpf_sys::bpf_link_create(program, -1, libbpf_sys::BPF_TRACE_UPROBE_MULTI, &options)
    };
    if link < 0 {
        return Err(std::io::Error::from_raw_os_error(-link).into());
    }
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;
    Ok(())
}

/// `return 0`, as a program for uprobe_multi; its descriptor lives as long as the process.
fn load() -> Result<i32, std::io::Error> {
    let code = |code: u32| bpf_insn { code: code as u8, ..bpf_insn::default() };
    let program = [
        code(libbpf_sys::BPF_ALU64 | libbpf_sys::BPF_MOV | libbpf_sys::BPF_K),
        code(libbpf_sys::BPF_JMP | libbpf_sys::BPF_EXIT),
    ];
    let mut options = bpf_prog_load_opts::default();
    options.sz = std::mem::size_of_val(&options) as _;
    options.expected_attach_type = libbpf_sys::BPF_TRACE_UPROBE_MULTI;
    // SAFETY: the program and the options live through the call; the strings are constants.
    let fd = unsafe {
        libbpf_sys::bpf_prog_load(
            libbpf_sys::BPF_PROG_TYPE_KPROBE,
            c"empty".as_ptr(),
            c"GPL".as_ptr(),
            program.as_ptr(),
            program.len() as _,
            &mut options,
        )
    };
    match fd {
        0.. => Ok(fd),
        _ => Err(std::io::Error::from_raw_os_error(-fd)),
    }
}
