//! The libraries that jobs really load.
//!
//! `STRAGD_TEST_NCCL`: paths of libnccl, separated by colons. `STRAGD_TEST_RCCL`: Debian 13's
//! librccl, in one directory with all that it links, its own libc and ld.so included.

use std::path::{Path, PathBuf};
use std::process::Command;

use rscore::probes::{Kinds, Options};
use rscore::wire::what;

use crate::support::*;

fn variable(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run the tests with `make test`"))
}

/// Attach to a library, let `driver` call everything with null communicators, and compare.
/// Some functions call one another inside, so the first event of each child is its call's.
fn every_call_arrives(library: &Path, kinds: Kinds, driver: &mut Command) -> Vec<String> {
    let mut rig = Rig::new(&Options::default());
    let (_, plan) = rig.attach(library, kinds);
    assert_eq!(plan.refused, [], "{}", library.display());
    let output = driver.arg("null").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{driver:?}: {stderr}");
    let (calls, absent) = parse_calls(&String::from_utf8_lossy(&output.stdout));
    rig.collect();
    let mut inner = 0;
    for call in &calls {
        let events = rig.of(call.tgid);
        let known = plan.sites.iter().any(|s| s.symbol == call.symbol);
        assert!(known, "{} is exported and not probed", call.symbol);
        assert!(!events.is_empty(), "{} did not arrive", call.symbol);
        assert_delivered(std::slice::from_ref(call), &events[..1]);
        inner += events.len() - 1;
        for event in &events[1..] {
            println!("  {} also called {}", call.symbol, what::NAMES[event.what as usize]);
        }
    }
    assert_eq!(calls.len(), plan.sites.len(), "every site was called");
    let mut missing = plan.missing.clone();
    missing.sort();
    assert!(missing.iter().all(|m| absent.contains(m)), "{missing:?}");
    println!(
        "{}: {} sites attached and decoded right, {} inner calls, {} symbols absent, {} stepped",
        library.display(),
        plan.sites.len(),
        inner,
        missing.len(),
        plan.sites.iter().filter(|s| s.single_step).count(),
    );
    plan.sites.into_iter().map(|s| s.symbol).collect()
}

#[test]
fn real_nccl_is_probed_whole() {
    let scratch = Scratch::new();
    let (_, driver) = build_stub(&scratch);
    let mut most = 0;
    for path in variable("STRAGD_TEST_NCCL").split(':') {
        let probed = every_call_arrives(Path::new(path), NCCL, Command::new(&driver).arg(path));
        for symbol in ["ncclAllReduce", "ncclSend", "ncclGroupEnd", "ncclCommInitRankConfig"] {
            assert!(probed.iter().any(|s| s == symbol), "{path}: {symbol}");
        }
        most = most.max(probed.len());
    }
    assert!(most >= 36, "the newest NCCL has {most} sites");
}

#[test]
fn real_rccl_is_probed_whole() {
    let library = PathBuf::from(variable("STRAGD_TEST_RCCL"));
    let scratch = Scratch::new();
    let (_, driver) = build_stub(&scratch);
    let libraries = library.parent().unwrap();
    // Its own dynamic linker: the library may need a newer libc than this system's.
    let linker = libraries.join("ld-linux-x86-64.so.2");
    let mut command = Command::new(linker);
    command.arg("--library-path").arg(libraries).arg(&driver).arg(&library);
    let probed = every_call_arrives(&library, RCCL, &mut command);
    for symbol in ["ncclAllReduce", "ncclAllToAll", "ncclAllToAllv", "ncclCommInitRankMulti"] {
        assert!(probed.iter().any(|s| s == symbol), "{symbol}");
    }
}
