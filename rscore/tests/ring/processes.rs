//! Rings of other processes, written in C by `ring.h`.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rscore::discover::process::ProcessKey;
use rscore::ring::source::{open_file, Refusal, Source};
use rscore::ring::status::{Figures, RingStatus};
use rscore::ring::{Reader, Record};

use crate::support::{now_ns, Writer, LIMIT};

fn open(writer: &Writer) -> Reader {
    let found = Source::new().unwrap().find(writer.pid).unwrap();
    Reader::new(Arc::new(found.ring.unwrap_or_else(|| panic!("{:?}", found.refusal))))
}

fn read_to_the_end(reader: &mut Reader) -> Vec<Record> {
    let mut records = Vec::new();
    while reader.turn(now_ns(), true, |record| records.push(*record)).more {}
    records
}

fn refusal(writer: &Writer) -> String {
    let found = Source::new().unwrap().find(writer.pid).unwrap();
    assert!(found.ring.is_none());
    match found.refusal.unwrap() {
        Refusal::Never(why) => why,
        Refusal::Early => "early".into(),
    }
}

/// Sixteen threads against one reader; `SLOTS` decides whether they overtake it.
fn sixteen_threads(slots: u32, each: u64) -> (u64, u64) {
    let mut writer = Writer::start();
    writer.tell(&format!("ring {slots} 16 1 0"));
    writer.tell("comm 0 abcdef 3 8 tensor");
    let mut reader = open(&writer);
    let mut last: HashMap<u64, u64> = HashMap::new();
    let mut read = |reader: &mut Reader, ended: bool| {
        reader.turn(now_ns(), ended, |record| {
            let (thread, number) = (record.bytes >> 32, record.bytes & 0xffff_ffff);
            // A torn copy would contradict itself.
            assert_eq!(u64::from(record.sequence), number);
            assert_eq!(record.peer as u64, thread + number);
            assert_eq!(record.communicator, 0xabcdef);
            assert!(record.stop_ns == 0 || record.stop_ns - record.start_ns == 500);
            let before = last.insert(thread, number);
            assert!(before.is_none_or(|before| before < number), "{thread}: twice, or backward");
        })
    };
    writer.order(&format!("write 16 {each}"));
    let end = Instant::now() + LIMIT;
    while reader.counts().records + reader.counts().lost < 16 * each {
        assert!(Instant::now() < end, "{:?}", reader.counts());
        read(&mut reader, false);
    }
    let answer = writer.answer();
    let counts = reader.counts();
    assert_eq!(answer[0], 16 * each);
    assert_eq!(counts.records + counts.lost, answer[0]);
    assert_eq!((counts.invalid, counts.jumps), (0, 0));
    (counts.records, counts.lost)
}

#[test]
fn sixteen_threads_and_one_reader_account_for_every_ticket() {
    let (records, lost) = sixteen_threads(64, 100_000);
    println!("64 slots: {records} records, {lost} lost");
    assert!(records > 0 && lost > 0);
}

#[test]
fn a_ring_in_namespaces_of_its_own_is_read_and_outlives_its_process() {
    let mut writer = Writer::contained();
    assert_eq!(writer.tell("ring 1024 16 2 100000000"), [1], "it has a pid namespace of its own");
    writer.tell("comm 2 77aa 1 4 dp");
    let mut reader = open(&writer);
    writer.tell("write 2 100");
    writer.kill();
    let end = Instant::now() + LIMIT;
    while std::path::Path::new(&format!("/proc/{}", writer.pid)).exists() {
        assert!(Instant::now() < end, "the contained process does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    let records = read_to_the_end(&mut reader);
    assert_eq!((records.len(), reader.counts().lost), (200, 0));
    let process = ProcessKey { pid: writer.pid, start_time: 9 };
    let status = RingStatus::of(process, reader.memory(), &Figures::of(&reader), 0);
    assert_eq!((status.vendor, status.api, &*status.library), ("nvidia", 5, "2.28.3"));
    assert_eq!((status.clock, status.clock_hz, status.mode), ("ticks", 100_000_000, "full"));
    let known = &status.communicators[0];
    assert_eq!((known.hash, known.rank, known.nranks, &*known.name), (0x77aa, 1, 4, "dp"));
    assert_eq!(known.state, "live");
}

#[test]
fn the_table_and_the_control_word_are_shared_with_the_process() {
    let mut writer = Writer::start();
    writer.tell("ring 64 16 1 0");
    writer.tell("comm 0 99 0 2 x");
    let reader = open(&writer);
    writer.tell("write 1 10");
    let process = ProcessKey { pid: writer.pid, start_time: 9 };
    let status = || RingStatus::of(process, reader.memory(), &Figures::of(&reader), 0);
    let functions = status().communicators[0].functions.clone();
    assert_eq!((functions.len(), functions[0].function), (1, "all_reduce"));
    assert_eq!(functions[0].progress.enqueued, 10);
    assert!(reader.memory().is_full() && reader.memory().is_controllable());
    let thin = rscore::ring::control::Control {
        mode: rscore::ring::control::Mode::Full,
        sample: 10,
        floor_log2: 0,
    };
    assert!(reader.memory().ask(thin));
    assert_eq!(writer.tell("control"), [thin.word()]);
    assert!(reader.memory().is_full(), "asked, and not obeyed yet");
    writer.tell("mode 3");
    assert!(!reader.memory().is_full());
    let status = status();
    assert_eq!((status.mode, status.sample, status.wanted), ("full", 10, "full"));
}

#[test]
fn pretenders_are_refused_with_a_reason() {
    let expected = [
        ("unsealed", "size is not sealed"),
        ("huge", "own tmpfs"),
        ("short", "early"),
        ("big", "more than any ring"),
        ("nomagic", "early"),
        ("layout", "layout is 9"),
        ("cut", "contradicts"),
    ];
    for (kind, reason) in expected {
        let mut writer = Writer::start();
        writer.tell(&format!("raw {kind}"));
        let why = refusal(&writer);
        assert!(why.contains(reason), "{kind}: {why}");
    }
}

#[test]
fn the_first_valid_ring_counts_and_the_others_are_counted() {
    let mut writer = Writer::start();
    writer.tell("raw unsealed");
    for _ in 0..3 {
        writer.tell("ring 64 16 1 0");
    }
    let found = Source::new().unwrap().find(writer.pid).unwrap();
    assert!(found.ring.is_some());
    assert_eq!(found.others, 2);
    assert!(matches!(found.refusal, Some(Refusal::Never(_))));
}

#[test]
fn a_ring_that_cannot_be_written_is_read_all_the_same() {
    let mut writer = Writer::start();
    writer.tell("raw locked");
    let mut reader = open(&writer);
    writer.tell("write 1 10");
    assert_eq!(read_to_the_end(&mut reader).len(), 10);
    assert!(!reader.memory().is_controllable());
    assert!(!reader.memory().ask(rscore::ring::control::Control::default()));
}

#[test]
fn nothing_is_lost_of_what_fits() {
    let mut writer = Writer::start();
    writer.tell("ring 16384 16 1 0");
    let mut reader = open(&writer);
    assert_eq!(writer.tell("write 16 1024"), [16384, 0]);
    let records = read_to_the_end(&mut reader);
    assert_eq!((records.len(), reader.counts().lost), (16384, 0));
    let orders: std::collections::HashSet<u64> = records.iter().map(|r| r.order).collect();
    assert_eq!(orders, (0..16384).collect());
}

/// A file of that very name on a detached filesystem of the job's own shows the same path in `maps`.
#[test]
fn a_file_of_that_name_on_another_filesystem_is_not_opened() {
    let script = "mount -t tmpfs none /mnt && cd /mnt && exec python3 -c \"
import mmap, os, sys
f = open('/mnt/memfd:stragd-ring (deleted)', 'w+b')
f.truncate(1 << 20)
m = mmap.mmap(f.fileno(), 1 << 20)
os.system('umount -l /mnt')
print('ok', flush=True)
sys.stdin.read()\"";
    let mut child = Command::new("unshare")
        .args(["--mount", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let out = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    assert_eq!(line, "ok\n");
    let found = Source::new().unwrap().find(child.id()).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(found.ring.is_none());
    assert!(matches!(found.refusal, Some(Refusal::Never(why)) if why.contains("own tmpfs")));
}

#[test]
fn what_is_no_sealed_shared_memory_is_refused_before_it_is_read() {
    let directory = std::env::temp_dir().join(format!("stragd-ring-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("stragd-ring");
    std::fs::write(&path, vec![0u8; 1 << 20]).unwrap();
    let plain = File::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    let pipe = std::fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let shared = std::path::Path::new("/dev/shm").join(format!("ring-{}", std::process::id()));
    std::fs::write(&shared, vec![0u8; 1 << 20]).unwrap();
    let on_tmpfs = File::open(&shared).unwrap();
    std::fs::remove_file(&shared).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let reasons = [(plain, "tmpfs"), (pipe, "regular"), (on_tmpfs, "seal")];
    for (file, reason) in reasons {
        let number = file.as_raw_fd();
        match open_file(&file) {
            Err(Refusal::Never(why)) => assert!(why.contains(reason), "{number}: {why}"),
            Err(Refusal::Early) => panic!("{reason}: not refused for good"),
            Ok(_) => panic!("{reason}: opened"),
        }
    }
}
