//! The BPF program itself: what it keeps, what it loses, what it needs of the kernel.

use std::ffi::CStr;
use std::process::Command;

use libbpf_rs::{AsRawLibbpf, ObjectBuilder};
use rscore::probes::{missing_capabilities, Method, Options, OBJECT};
use rscore::wire::what;

use crate::support::*;

/// Values after a word at the beginning of a line.
fn said<'t>(output: &'t str, word: &str) -> Vec<&'t str> {
    let lines = output.lines().filter_map(|l| l.strip_prefix(word));
    lines.map(str::trim).collect()
}

#[test]
fn a_communicator_is_bound_at_its_first_use() {
    let scratch = Scratch::new();
    let (library, _) = build_stub(&scratch);
    let bind = scratch.path().join("bind");
    compile("bind.c", &bind, &["-O2"]);
    let mut rig = Rig::new(&Options::default());
    rig.attach(&library, NCCL);
    let output = run(Command::new(&bind).arg(&library));
    let tgid: u32 = said(&output, "pid ")[0].parse().unwrap();
    rig.collect();
    let bound = rig.bound(tgid);
    let found: Vec<String> = bound.iter().map(|e| format!("{} {}", e.comm, e.id)).collect();
    assert_eq!(found, said(&output, "bound "));
    // The binding comes before the use that found it.
    for binding in &bound {
        let at = rig.events.iter().position(|e| e == binding).unwrap();
        let next = rig.events[at + 1..].iter().find(|e| e.what == what::ENTER);
        assert_eq!(next.map(|e| e.comm), Some(binding.comm));
    }
    println!("{} bindings, each once and in front of its first collective", bound.len());
}

#[test]
fn a_full_ring_counts_what_it_loses() {
    let scratch = Scratch::new();
    let (library, _) = build_stub(&scratch);
    let flood = scratch.path().join("flood");
    compile("flood.c", &flood, &["-O2"]);
    let mut rig = Rig::new(&Options { bulk_bytes: 64 << 10, ..Options::default() });
    rig.attach(&library, NCCL);
    let calls = 5_000u64;
    run(Command::new(&flood).arg(&library).arg(calls.to_string()));
    rig.collect();
    let counters = rig.probes.counters().unwrap();
    let enter = usize::from(what::ENTER);
    let delivered = rig.events.iter().filter(|e| e.what == what::ENTER).count() as u64;
    assert_eq!(counters.events[enter], delivered);
    assert_eq!(delivered + counters.lost[enter], calls);
    assert!(delivered > 800 && counters.lost[enter] > 4_000, "{counters:?}");
    // The ring works on.
    let tail = run(Command::new(&flood).arg(&library).arg("100"));
    rig.collect();
    let tgid: u32 = said(&tail, "pid ")[0].parse().unwrap();
    assert_eq!(rig.of(tgid).len(), 100);
    println!("{calls} calls = {delivered} delivered + {} lost", counters.lost[enter]);
}

#[test]
fn an_ignored_process_is_dropped_in_the_kernel() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::new(&Options::default());
    rig.attach(&library, NCCL);
    let mut job = Paused::start(&driver, &library);
    rig.probes.ignore(job.pid(), true).unwrap();
    let calls = job.call();
    rig.collect();
    assert_eq!(rig.of(job.pid()), []);
    let probed = rig.probes.counters().unwrap().ignored;
    assert!(probed > 30 && probed <= calls.len() as u64, "{probed} ignored");
    rig.probes.ignore(job.pid(), false).unwrap();
    job.call();
    rig.collect();
    assert_eq!(rig.of(job.pid()).len() as u64, probed);
}

#[test]
fn purging_a_process_forgets_its_communicators() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::new(&Options::default());
    let (_, plan) = rig.attach(&library, NCCL);
    let mut job = Paused::start(&driver, &library);
    for round in 1..=3 {
        job.call();
        rig.collect();
        assert_eq!(rig.of(job.pid()).len(), round * plan.sites.len());
        rig.probes.purge(job.pid());
    }
}

#[test]
fn the_stack_stays_under_64_bytes() {
    let mut open = ObjectBuilder::default().open_memory(OBJECT).unwrap();
    let mut log = vec![0u8; 1 << 16];
    for mut program in open.progs_mut() {
        program.set_log_level(4);
        let raw = program.as_libbpf_object().as_ptr();
        // SAFETY: `log` outlives the load below, and libbpf writes no more than its length.
        let error = unsafe {
            libbpf_sys::bpf_program__set_log_buf(raw, log.as_mut_ptr().cast(), log.len() as _)
        };
        assert_eq!(error, 0);
    }
    let object = open.load().unwrap();
    let log = CStr::from_bytes_until_nul(&log).unwrap().to_str().unwrap();
    let depth = said(log, "stack depth ");
    // The kernel gives a private stack by function, so each frame counts alone.
    let frames: Vec<u32> = depth[0].split('+').map(|d| d.parse().unwrap()).collect();
    println!("stack depth {}; {}", depth[0], said(log, "processed ")[0]);
    assert!(frames.iter().all(|bytes| *bytes < 64) && frames[0] > 0, "{log}");
    assert_eq!(object.progs().count(), 1);
}

#[test]
fn the_kernels_type_information_is_not_needed() {
    let script = "mount -t tmpfs none /sys/kernel/btf && test -z \"$(ls /sys/kernel/btf)\" && \
                  exec \"$0\" --exact stub::every_row_decodes_its_arguments_with_multi_links";
    let itself = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    let output = run(command.args(["--mount", "sh", "-c", script]).arg(itself));
    assert!(output.contains("1 passed"), "{output}");
}

#[test]
fn a_refusal_names_the_missing_capability() {
    if !missing_capabilities().is_empty() {
        // The child of this test, below.
        let error = rscore::probes::Probes::load(&Options::default()).err().unwrap();
        println!("{error}");
        assert!(error.is_permission());
        assert!(error.to_string().contains("missing CAP_PERFMON, CAP_BPF"), "{error}");
        return;
    }
    let itself = std::env::current_exe().unwrap();
    let name = "program::a_refusal_names_the_missing_capability";
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--clear-groups", "--inh-caps=-all"]).arg(itself);
    let output = run(command.args(["--exact", name, "--nocapture"]));
    assert!(output.contains("1 passed") && output.contains("missing CAP_"), "{output}");
}

#[test]
fn what_cannot_be_attached_is_an_error_and_life_goes_on() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::new(&Options::default());
    let file = std::fs::File::open(&library).unwrap();
    let mut sites = plan_of(&file, NCCL).sites;
    sites[0].offset = 1 << 40;
    let error = rig.probes.attach(&file, &sites).unwrap_err();
    println!("{error}");
    assert!(rig.probes.attach(&std::fs::File::open("/").unwrap(), &sites).is_err());
    assert!(rig.probes.attach(&file, &[]).is_err());
    let (_, plan) = rig.attach(&library, NCCL);
    let (calls, _) = parse_calls(&run(Command::new(driver).arg(&library)));
    rig.collect();
    assert_eq!(rig.of(calls[0].tgid).len(), plan.sites.len());
}

#[test]
fn rows_of_the_site_table_are_used_again() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::with_method(Method::Multi);
    let file = std::fs::File::open(&library).unwrap();
    let real = plan_of(&file, NCCL).sites;
    let stacked = real.iter().find(|s| s.symbol == "ncclReduce").unwrap();
    // 3,000 different sites, more than the table holds, but never so many at once; every
    // tenth attempt fails at the kernel.
    for round in 0..30 {
        let mut sites = vec![stacked.clone(); 100];
        for (number, site) in sites.iter_mut().enumerate() {
            let bytes = 8 * (1 + round * 100 + number as i32);
            site.spec.places = site.spec.places.map(|p| p.after_push(bytes));
        }
        if round % 10 == 0 {
            sites[99].offset = 1 << 40;
            assert!(rig.probes.attach(&file, &sites).is_err());
        } else {
            let link = rig.probes.attach(&file, &sites).unwrap_or_else(|e| panic!("{e}"));
            rig.probes.detach(link);
        }
    }
    rig.attach(&library, NCCL);
    let (calls, _) = parse_calls(&run(Command::new(driver).arg(&library)));
    rig.collect();
    let probed = |c: &Call| real.iter().any(|s| s.symbol == c.symbol);
    let calls: Vec<Call> = calls.into_iter().filter(probed).collect();
    assert_delivered(&calls, &rig.of(calls[0].tgid));
}
