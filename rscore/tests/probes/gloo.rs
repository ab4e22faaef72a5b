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
    assert!(sites >= 11, "{sites} sites");
    ranks.iter_mut().for_each(Rank::go);
    for (number, rank) in ranks.iter_mut().enumerate() {
        let said = rank.until("called");
        rig.collect();
        let events = rig.of(rank.child.id());
        let works = works(&events);
        assert_eq!(in_issue_order(&works), said, "{python}, rank {number}");
        for details in works.iter().map(|work| &work.details) {
            for detail in details {
                let known = detail.tag() % 128 < 8;
                let (rank, size) = if known { (number as i32, 2) } else { (0, 0) };
                assert_eq!(detail.rank_and_size(), (rank, size), "{detail:?}");
            }
            // The all-gathers of sparse tensors work in place, with no input to take a size from.
            assert!(details.len() > 1 || details[0].flags == 0, "{details:?}");
        }
        let messages = events.iter().filter(|e| e.what == what::ENTER).count();
        assert!(messages > 0, "the monitored barrier sends messages");
        println!("{python}, rank {number}: {} works decoded right", said.len());
    }
}

/// What one worker thread did from the beginning of a work to its end.
struct Work {
    details: Vec<Event>,
    end: Event,
}

/// The works of a process; every event of theirs belongs to one.
fn works(events: &[Event]) -> Vec<Work> {
    let mut open: HashMap<u32, Vec<Event>> = HashMap::new();
    let mut works = Vec::new();
    for event in events {
        match event.what {
            what::DETAIL => open.entry(event.tid).or_default().push(*event),
            what::DONE | what::FAILED => {
                let details = open.remove(&event.tid).unwrap_or_default();
                works.push(Work { details, end: *event });
            }
            _ => {}
        }
    }
    assert!(open.is_empty(), "a work without an end: {open:?}");
    works
}

/// The works as the job names them, group by group, by tag. All that a work does has one
/// context and one tag, which no other work has; only the two messages of the monitored barrier
/// take tags and are no works.
fn in_issue_order(works: &[Work]) -> Vec<String> {
    let mut groups: Vec<u64> = Vec::new();
    let mut named = Vec::new();
    for Work { details, end } in works {
        let first =
            details.first().unwrap_or_else(|| panic!("a work without a beginning: {end:?}"));
        assert_ne!(first.comm, 0);
        assert!(first.time_ns <= end.time_ns);
        let same = |d: &Event| (d.comm, d.tag()) == (first.comm, first.tag());
        assert!(details.iter().all(same), "{details:?}");
        if !groups.contains(&first.comm) {
            groups.push(first.comm);
        }
        let group = groups.iter().position(|group| *group == first.comm);
        let function = function::NAMES[first.function as usize];
        let name = match details.len() {
            _ if end.what == what::FAILED => format!("failed {function}"),
            1 => format!("{function} {} {}", first.count, first.id),
            _ => "several".to_owned(),
        };
        named.push((group, first.tag(), name));
    }
    named.sort();
    let mut holes = 0;
    for pair in named.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        assert!(pair[0].1 < pair[1].1, "{pair:?}");
        holes += pair[1].1 - pair[0].1 - 1;
    }
    assert_eq!(holes, 2);
    named.into_iter().map(|(_, _, name)| name).collect()
}

#[test]
fn collectives_of_real_pytorch_are_decoded() {
    let list = std::env::var("STRAGD_TEST_PYTORCH")
        .expect("STRAGD_TEST_PYTORCH is not set: run the tests with `make test`");
    for python in list.split(':') {
        job(python);
    }
}
