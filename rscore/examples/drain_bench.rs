//! How fast a full ring of real events is drained, step inference included.
//!
//! `drain_bench LIBRARY`: attaches to LIBRARY (NCCL's or gloo's names), says "ready", waits for a line on
//! stdin while somebody calls it, then drains what is in the ring and prints events and ns of
//! CPU time, which other work on the machine does not lengthen by its own.
//! `bench/drain.py` runs it and says what comes out.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;

use rscore::discover::elf::Elf;
use rscore::probes::{names, plan, Kinds, Options, Probes};
use rscore::steps::{Config, Pipeline};

const RING_BYTES: u32 = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: drain_bench LIBRARY")?;
    let file = File::open(&path)?;
    let kinds = Kinds { nccl: true, gloo: true, ..Kinds::default() };
    let wanted = names(&kinds);
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    let symbols = Elf::open(&file)?.find_symbols(&wanted)?;
    let plan = plan(&kinds, &symbols, |offset, buffer| file.read_at(buffer, offset), false);
    let options = Options { bulk_bytes: RING_BYTES, ..Options::default() };
    let (mut probes, mut drain) = Probes::load(&options)?;
    probes.attach(&file, &plan.sites)?;
    println!("ready");
    std::io::stdin().read_line(&mut String::new())?;

    let mut pipeline = Pipeline::new(Config::default());
    let begin = cpu_ns();
    let events = drain.drain(|event| pipeline.on_event(event));
    let ns = cpu_ns() - begin;
    let steps: u64 = pipeline.ranks().iter().map(|rank| rank.steps).sum();
    println!("{events} {ns} {steps}");
    Ok(())
}

/// CPU time of this thread, ns.
fn cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
