//! gloo inside real PyTorch: a two-rank job of collectives of known sizes.
//!
//! `STRAGD_TEST_PYTORCH`: Python interpreters that import torch, separated by colons.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rscore::wire::{function, what, Event};

use crate::support::*;

struct Rank {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Rank {
    fn start(python: &str, rank: u32, store: &Path) -> Rank {
        let job = repository().join("rscore/tests/probes/gloo_job.py");
        let mut child = Command::new(python)
            .args([job.as_os_str(), rank.to_string().as_ref(), store.as_os_str()])
            .env("OMP_NUM_THREADS", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{python}: {e}"));
        let output = BufReader::new(child.stdout.take().unwrap());
        Rank { child, output }
    }

    fn until(&mut self, word: &str) -> Vec<String> {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the job ended: {lines:?}");
            if line.trim_end() == word {
                return lines;
            }
            lines.push(line.trim_end().to_owned());
        }
    }

    fn go(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Executable mappings of libraries whose path contains one of `names`, once per file.
fn mapped(pid: u32, names: &[&str]) -> Vec<(String, File)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let mut found: HashMap<String, File> = HashMap::new();
    for line in maps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [range, permissions, .., path] = words[..] else { continue };
        if permissions.contains('x') && names.iter().any(|n| path.contains(n)) {
            let file = File::open(format!("/proc/{pid}/map_files/{range}")).unwrap();
            found.insert(path.to_owned(), file);
        }
    }
    found.into_iter().collect()
}

fn job(python: &str) {
    let scratch = Scratch::new();
    let mut rig = Rig::new(&Default::default());
    let store = scratch.path().join("store");
    let mut ranks: Vec<Rank> = (0..2).map(|r| Rank::start(python, r, &store)).collect();
    for rank in &mut ranks {
        rank.until("ready");
    }
    let mut sites = 0;
    for (path, file) in mapped(ranks[0].child.id(), &["libtorch_cpu", "libgloo"]) {
        let (_, plan) = rig.attach_file(&file, GLOO);
        println!("{path}: {} sites, refused {:?}", plan.sites.len(), plan.refused);
        assert_eq!(plan.refused, []);
        sites += plan.sites.len();
    }
    assert!(sites >= 14, "{sites} sites");
    ranks.iter_mut().for_each(Rank::go);
    for (number, rank) in ranks.iter_mut().enumerate() {
        let said = rank.until("called");
        rig.collect();
        let events = rig.of(rank.child.id());
        assert_work(&events);
        let details: Vec<&Event> = events.iter().filter(|e| e.what == what::DETAIL).collect();
        let decoded: Vec<String> = details
            .iter()
            .map(|e| format!("{} {} {}", function::NAMES[e.function as usize], e.count, e.id))
            .collect();
        assert_eq!(decoded, said, "{python}, rank {number}");
        for event in details {
            assert_eq!((event.peer, event.aux, event.flags), (number as i32, 2, 0), "{event:?}");
            assert_ne!(event.comm, 0);
        }
        println!("{python}, rank {number}: {} collectives decoded right", said.len());
    }
}

/// Each work is issued, started, detailed and done, in that order; the last three by one
/// thread and with nothing of that thread in between.
fn assert_work(events: &[Event]) {
    let issued: Vec<&Event> = events.iter().filter(|e| e.what == what::ISSUE).collect();
    assert!(!issued.is_empty());
    let group = issued[0].comm;
    let mut done = 0;
    for issue in &issued {
        assert_eq!((issue.comm, issue.flags), (group, 0));
        let after = |w: u8| {
            let mut later = events.iter().filter(|e| e.what == w && e.time_ns >= issue.time_ns);
            later.find(|e| e.aux == issue.aux).unwrap_or_else(|| panic!("no {w} of {issue:?}"))
        };
        let (start, end) = (after(what::START), after(what::DONE));
        assert_eq!(start.tid, end.tid);
        assert!(issue.time_ns <= start.time_ns && start.time_ns < end.time_ns);
        let between: Vec<u8> = events
            .iter()
            .filter(|e| e.tid == start.tid)
            .filter(|e| start.time_ns < e.time_ns && e.time_ns < end.time_ns)
            .map(|e| e.what)
            .collect();
        assert_eq!(between, [what::DETAIL]);
        done += 1;
    }
    assert_eq!(done, events.iter().filter(|e| e.what == what::DONE).count());
}

#[test]
fn collectives_of_real_pytorch_are_decoded() {
    let list = std::env::var("STRAGD_TEST_PYTORCH")
        .expect("STRAGD_TEST_PYTORCH is not set: run the tests with `make test`");
    for python in list.split(':') {
        job(python);
    }
}
