//! The real plugin in a CPU simulation of NCCL, against the simulation's own account of what its
//! devices did (`tests/cpunccl/dump.c`).

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rscore::ring::source::Source;
use rscore::ring::{Reader, Record};

use crate::support::{now_ns, repository, LIMIT};

const RANKS: usize = 2;

/// Makes plugin and simulation, once.
fn build(root: &Path) {
    static BUILT: OnceLock<()> = OnceLock::new();
    BUILT.get_or_init(|| {
        for folder in ["ncclring", "tests/cpunccl"] {
            let mut make = Command::new("make");
            let status = make.arg("--silent").arg("-C").arg(root.join(folder)).status().unwrap();
            assert!(status.success(), "make -C {folder}");
        }
    });
}

struct Training {
    child: Child,
    directory: PathBuf,
}

impl Training {
    fn start(name: &str, arguments: &[&str]) -> Training {
        let root = repository();
        build(&root);
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let child = Command::new("python3")
            .arg(root.join("tests/cpunccl/trainer.py"))
            .args(["--pattern", "ddp", "--ranks", "2", "--steps", "150"])
            .arg("--plugin")
            .arg(root.join("target/ncclring/libnccl-profiler-stragd.so"))
            .arg("--record")
            .arg(directory.join("record"))
            .arg("--dump")
            .arg(directory.join("dump"))
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Training { child, directory }
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.join(name)).unwrap_or_default()
    }

    /// Pids by rank, as far as they have said so.
    fn pids(&self) -> HashMap<usize, u32> {
        let number = |line: &str, key: &str| {
            let rest = line.split(&format!("\"{key}\": ")).nth(1)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        let text = self.text("record");
        let started = text.lines().filter(|line| line.contains("\"started\""));
        started.filter_map(|l| Some((number(l, "rank")? as usize, number(l, "pid")?))).collect()
    }

    /// (start, stop) by communicator, in the order of its collectives, ns.
    fn truth(&self, rank: usize) -> HashMap<u64, Vec<(i64, i64)>> {
        let mut found: HashMap<u64, Vec<_>> = HashMap::new();
        for line in self.text(&format!("dump.{rank}")).lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            if let ["task", hash, _, _, start, stop] = words[..] {
                let times = (start.parse().unwrap(), stop.parse().unwrap());
                found.entry(u64::from_str_radix(hash, 16).unwrap()).or_default().push(times);
            }
        }
        found
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Every record of every rank, and how often the offset of its clock was moved.
fn read(training: &mut Training) -> Vec<(Vec<Record>, u64)> {
    let source = Source::new().unwrap();
    let mut readers: HashMap<usize, (Reader, Vec<Record>)> = HashMap::new();
    let end = Instant::now() + 4 * LIMIT;
    loop {
        assert!(Instant::now() < end, "the job does not end: {}", training.text("record"));
        let ended = training.child.try_wait().unwrap().is_some();
        for (rank, pid) in training.pids() {
            if let std::collections::hash_map::Entry::Vacant(place) = readers.entry(rank) {
                if let Some(ring) = source.find(pid).ok().and_then(|found| found.ring) {
                    place.insert((Reader::new(Arc::new(ring)), Vec::new()));
                }
            }
        }
        for (reader, records) in readers.values_mut() {
            while reader.turn(now_ns(), ended, |record| records.push(*record)).more {}
        }
        if ended {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(readers.len(), RANKS);
    let read = |rank| {
        let (reader, records) = readers.remove(&rank).unwrap();
        let counts = reader.counts();
        assert_eq!((counts.lost, counts.implausible, counts.dropped), (0, 0, [0; 8]), "{counts:?}");
        (records, reader.clock_moved())
    };
    (0..RANKS).map(read).collect()
}

/// `step` is the device clock's own, ns.
fn agrees(name: &str, arguments: &[&str], step: i64) {
    let mut training = Training::start(name, arguments);
    for (rank, (mut records, moved)) in read(&mut training).into_iter().enumerate() {
        let truth = training.truth(rank);
        let expected: usize = truth.values().map(Vec::len).sum();
        assert!(expected > 1000 && records.len() == expected, "{} of {expected}", records.len());
        let orders: HashSet<u64> = records.iter().map(|record| record.order).collect();
        assert_eq!(orders.len(), expected);
        records.sort_by_key(|record| (record.communicator, record.sequence));
        let (mut errors, mut jumps, mut untimed) = (Vec::new(), 0, 0);
        for group in records.chunk_by(|a, b| a.communicator == b.communicator) {
            let planned = &truth[&group[0].communicator];
            assert_eq!(group.len(), planned.len());
            let mut before = None;
            for (record, (start, stop)) in group.iter().zip(planned) {
                if record.start_ns == 0 || record.stop_ns == 0 {
                    untimed += 1;
                    continue;
                }
                let error = record.stop_ns as i64 - stop;
                // Both ends are cut to the clock's step, and the clock drifts a little.
                let took = (record.stop_ns - record.start_ns) as i64 - (stop - start);
                assert!(took.abs() <= step + 1_000, "{took} ns off: {record:?}");
                if before.is_some_and(|before: i64| (error - before).abs() > step + 100_000) {
                    jumps += 1;
                }
                before = Some(error);
                errors.push(error);
            }
        }
        let (least, most) = (errors.iter().min().unwrap(), errors.iter().max().unwrap());
        println!("{name}, rank {rank}: {expected} collectives, {untimed} untimed, stops {least} to {most} ns off, moved {moved} times");
        // Between two moves of the offset, differences are exact.
        assert!(jumps <= moved * truth.len() as u64, "{jumps} jumps, {moved} moves");
        assert!(errors.len() > expected / 2);
    }
}

#[test]
fn the_real_plugin_with_a_nanosecond_clock() {
    agrees("plugin-ns", &[], 1024);
}

#[test]
fn the_real_plugin_with_ticks_of_unknown_rate() {
    agrees("plugin-ticks", &["--amd"], 10);
}
