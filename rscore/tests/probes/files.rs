//! Which file is probed: overlay mounts, deleted and replaced libraries, links that close.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rscore::probes::{Kinds, Method, Options};

use crate::support::*;

const BOTH: Kinds = Kinds { nccl: true, rccl: true, gloo: false };

/// Mounts that go with the value.
struct Mounts(Vec<PathBuf>);

impl Mounts {
    fn add(&mut self, kind: &str, options: &str, at: &Path) {
        std::fs::create_dir_all(at).unwrap();
        run(Command::new("mount").args(["-t", kind, "none", "-o", options]).arg(at));
        self.0.push(at.to_owned());
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        for at in self.0.iter().rev() {
            let _ = Command::new("umount").arg("-l").arg(at).status();
        }
    }
}

fn one_file_under_two_overlays(method: Method) {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut mounts = Mounts(Vec::new());
    let memory = scratch.path().join("memory");
    mounts.add("tmpfs", "size=8m", &memory);
    std::fs::create_dir(memory.join("lower")).unwrap();
    std::fs::copy(&library, memory.join("lower/libnccl.so.2")).unwrap();
    let mut paths = Vec::new();
    for name in ["a", "b"] {
        let part = |kind: &str| {
            let path = memory.join(format!("{kind}-{name}"));
            std::fs::create_dir(&path).unwrap();
            path.display().to_string()
        };
        let lower = memory.join("lower").display().to_string();
        let options =
            format!("lowerdir={lower},upperdir={},workdir={}", part("upper"), part("work"));
        let at = scratch.path().join(name);
        mounts.add("overlay", &options, &at);
        paths.push(at.join("libnccl.so.2"));
    }
    let mut rig = Rig::with_method(method);
    let links: Vec<_> = paths.iter().map(|p| rig.attach(p, BOTH).0).collect();
    let mut total = 0;
    for path in &paths {
        let (calls, _) = parse_calls(&run(Command::new(&driver).arg(path)));
        rig.collect();
        assert_delivered(&calls, &rig.of(calls[0].tgid));
        total += calls.len() as u64;
    }
    let duplicates = rig.probes.counters().unwrap().duplicates;
    assert_eq!(duplicates.iter().map(|(link, _)| *link).collect::<Vec<_>>(), links);
    assert_eq!(duplicates.iter().map(|(_, n)| n).sum::<u64>(), total);
    println!(
        "{}: {total} calls through two overlays, {total} events, {total} dropped",
        method.name()
    );

    // The owner closes under a running process: the other link takes over.
    let mut job = Paused::start(&driver, &paths[0]);
    let first = job.call();
    rig.collect();
    let owner = rig.of(job.pid())[0].link;
    let (owner, other) =
        if owner == links[0].0 { (links[0], links[1]) } else { (links[1], links[0]) };
    rig.probes.detach(owner);
    let second = job.call();
    rig.collect();
    let events = rig.of(job.pid());
    assert_delivered(&first, &events[..first.len()]);
    assert_delivered(&second, &events[first.len()..]);
    assert!(events[first.len()..].iter().all(|e| e.link == other.0));
    rig.probes.detach(other);
    job.call();
    rig.collect();
    assert_eq!(rig.of(job.pid()).len(), first.len() + second.len(), "detached is silent");
}

#[test]
fn one_file_under_two_overlays_is_not_doubled_with_multi_links() {
    one_file_under_two_overlays(Method::Multi);
}

#[test]
fn one_file_under_two_overlays_is_not_doubled_with_perf_events() {
    one_file_under_two_overlays(Method::Perf);
}

/// The file that a process maps executable from `path`, whatever has become of the path.
fn mapped_file(pid: u32, path: &Path) -> File {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let path = path.display().to_string();
    let line = maps.lines().find(|l| l.contains("r-xp") && l.contains(&path)).unwrap();
    let range = line.split(' ').next().unwrap();
    File::open(format!("/proc/{pid}/map_files/{range}")).unwrap()
}

#[test]
fn a_library_deleted_while_mapped_still_delivers() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut job = Paused::start(&driver, &library);
    std::fs::remove_file(&library).unwrap();
    let mut rig = Rig::new(&Options::default());
    rig.attach_file(&mapped_file(job.pid(), &library), BOTH);
    let calls = job.call();
    rig.collect();
    assert_delivered(&calls, &rig.of(job.pid()));
}

#[test]
fn a_library_replaced_while_mapped_still_delivers() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut job = Paused::start(&driver, &library);
    let fresh = scratch.path().join("fresh.so");
    std::fs::copy(&library, &fresh).unwrap();
    std::fs::rename(&fresh, &library).unwrap();
    let mut rig = Rig::new(&Options::default());
    rig.attach_file(&mapped_file(job.pid(), &library), BOTH);
    // By its path one would probe a file that the job never maps.
    let mut wrong = Rig::new(&Options::default());
    wrong.attach(&library, BOTH);
    let calls = job.call();
    rig.collect();
    wrong.collect();
    assert_delivered(&calls, &rig.of(job.pid()));
    assert_eq!(wrong.of(job.pid()), []);
}

#[test]
fn attached_first_and_mapped_later_delivers() {
    let scratch = Scratch::new();
    let (library, driver) = build_stub(&scratch);
    let mut rig = Rig::new(&Options::default());
    rig.attach(&library, BOTH);
    let mut job = Paused::start(&driver, &library);
    let calls = job.call();
    rig.collect();
    assert_delivered(&calls, &rig.of(job.pid()));
}
