//! Garbage, by a fuzzer and by a process that scribbles over its own ring.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rscore::discover::process::ProcessKey;
use rscore::ring::layout::{self, clock, Slot, COMM_BYTES, HEADER_BYTES};
use rscore::ring::source::{open_file, Source};
use rscore::ring::status::{Figures, RingStatus};
use rscore::ring::{flag, Reader, Record};

use crate::support::{now_ns, slot, Random, Ring, Writer};

const SLOTS: u64 = 64;
const SECOND: u64 = 1_000_000_000;

fn check(record: &Record, now: u64) {
    assert!((1..=10).contains(&record.function) || record.function == 15, "{record:?}");
    assert!(record.flags & !flag::ALL == 0);
    assert!(record.host_ns <= now + SECOND && record.stop_ns <= now + SECOND, "{record:?}");
    let both = record.start_ns > 0 && record.stop_ns > 0;
    assert!(!both || record.start_ns <= record.stop_ns, "{record:?}");
    assert_eq!(record.start_ns == 0, record.flags & flag::NO_START != 0, "{record:?}");
    assert_eq!(record.stop_ns == 0, record.flags & flag::NO_STOP != 0, "{record:?}");
}

fn check_status(status: &RingStatus) {
    assert!(status.communicators.len() <= layout::COMMS as usize);
    let names = status.communicators.iter().map(|known| &known.name);
    for text in names.chain([&status.chained, &status.library]) {
        assert!(text.len() <= 240 && !text.chars().any(char::is_control), "{text:?}");
    }
}

/// A value that hurts where it is believed.
fn value(random: &mut Random, head: u64, now: u64) -> u64 {
    let any = random.next();
    match any % 8 {
        0 => any,
        1 => any >> (random.next() % 64),
        2 => u64::MAX >> (any % 64),
        3 => layout::written(head.wrapping_sub(any % SLOTS)),
        4 => layout::writing(head.wrapping_add(any % 3)),
        5 => now.wrapping_add(any % 4_000_000_000).wrapping_sub(2_000_000_000),
        6 => head.wrapping_add(any % 200),
        _ => 0,
    }
}

/// Seconds and cases of the fuzzer; both are reached. Long runs: STRAGD_FUZZ_SECONDS=60.
fn extent() -> (Duration, u64) {
    let read = |name| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = read("STRAGD_FUZZ_SECONDS").unwrap_or(3);
    (Duration::from_secs(seconds), read("STRAGD_FUZZ_CASES").unwrap_or(0))
}

#[test]
fn a_fuzzer_over_header_table_and_slots() {
    let (time, least) = extent();
    let seed = std::env::var("STRAGD_SEED").ok().map(|text| text.parse().unwrap());
    let seed = seed.unwrap_or_else(now_ns) | 1;
    println!("STRAGD_SEED={seed}");
    let mut random = Random(seed);
    let ring = Ring::new(SLOTS as u32, 4, clock::NS);
    let pristine: Vec<u64> = (0..ring.bytes / 8).map(|i| load(&ring, i)).collect();
    let mut reader = ring.reader();
    let (mut cases, mut refused, mut records, mut lost) = (0u64, 0u64, 0u64, 0u64);
    let begin = Instant::now();
    while cases < least || begin.elapsed() < time {
        for _ in 0..256 {
            cases += 1;
            let now = now_ns();
            let head = ring.head();
            for _ in 0..1 + random.next() % 6 {
                let place = match random.next() % 8 {
                    0..=1 => random.next() % 64,                 // header
                    2 => (HEADER_BYTES + COMM_BYTES) as u64 / 8, // a communicator
                    3 => random.next() % pristine.len() as u64,  // anywhere
                    4 => 32,                                     // head
                    _ => pristine.len() as u64 - 1 - random.next() % (8 * SLOTS),
                };
                ring.set(place as usize * 8, value(&mut random, head, now));
            }
            if random.next() % 4 == 0 {
                // Otherwise nearly nothing would be delivered.
                let any = random.next();
                let ticket = ring.head();
                ring.set_head(ticket.wrapping_add(1));
                let torn = Slot {
                    device_start: value(&mut random, head, now),
                    device_stop: value(&mut random, head, now),
                    flags: (any >> 8) as u16,
                    poll_delta: (any >> 32) as u32 >> (any % 32),
                    comm: any as u16,
                    ..slot(any)
                };
                ring.fill(ticket, torn);
            }
            let turn = reader.turn(now, any_bit(&mut random), |record| check(record, now));
            assert!(turn.records <= 2 * SLOTS && turn.lost <= 1 << 29, "{turn:?}");
            records += turn.records;
            lost += turn.lost;
            match random.next() % 64 {
                0 => match open_file(&ring.file) {
                    Ok(memory) => reader = Reader::new(Arc::new(memory)),
                    Err(_) => refused += 1,
                },
                1 => check_status(&RingStatus::of(
                    ProcessKey { pid: 1, start_time: 1 },
                    reader.memory(),
                    &Figures::of(&reader),
                    0,
                )),
                2 => {
                    for (index, word) in pristine.iter().enumerate() {
                        ring.set(index * 8, *word);
                    }
                }
                _ => {}
            }
        }
    }
    println!("{cases} cases: {records} records, {lost} lost, {refused} headers refused");
    assert!(records > 0 && refused > 0);
}

fn load(ring: &Ring, index: usize) -> u64 {
    ring.word(index * 8).load(std::sync::atomic::Ordering::Relaxed)
}

fn any_bit(random: &mut Random) -> bool {
    random.next() % 2 == 0
}

#[test]
fn a_process_that_scribbles_over_its_ring_while_it_is_read() {
    let mut writer = Writer::start();
    writer.tell("ring 1024 16 1 0");
    let found = Source::new().unwrap().find(writer.pid).unwrap();
    let mut reader = Reader::new(Arc::new(found.ring.unwrap()));
    writer.tell("scribble");
    let begin = Instant::now();
    let (mut turns, mut records) = (0u64, 0u64);
    while begin.elapsed() < extent().0 {
        for _ in 0..1000 {
            let now = now_ns();
            let turn = reader.turn(now, false, |record| check(record, now));
            assert!(turn.records <= 4096);
            records += turn.records;
            turns += 1;
        }
        check_status(&RingStatus::of(
            ProcessKey { pid: 1, start_time: 1 },
            reader.memory(),
            &Figures::of(&reader),
            0,
        ));
    }
    println!("{turns} turns, {records} records, {:?}", reader.counts());
    assert!(records > 0 && reader.counts().jumps > 0 && reader.counts().lost > 0);
}
