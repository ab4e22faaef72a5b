//! What a reader makes of a ring: records, losses, holes, jumps, times.

use std::mem::offset_of;
use std::sync::Arc;

use rscore::discover::process::ProcessKey;
use rscore::ring::layout::{clock, Header, Slot, SLOTS};
use rscore::ring::status::{Figures, RingStatus};
use rscore::ring::{flag, Record};

use crate::support::{now_ns, slot, turn, Random, Ring};

/// Longer than a reader waits for a ticket that nobody writes, ns.
const PATIENCE: u64 = 200_000_000;

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().map(|record| record.bytes).collect()
}

#[test]
fn every_record_arrives_once_in_order_with_what_was_written() {
    let ring = Ring::new(64, 4, clock::HOST);
    ring.communicator(3, 0xfeed, 0x105);
    let mut reader = ring.reader();
    assert!(turn(&mut reader, now_ns()).is_empty());
    for number in 0..40 {
        ring.write(Slot { comm: 0x0503, ..slot(number) });
    }
    let records = turn(&mut reader, now_ns());
    assert_eq!(numbers(&records), (0..40).collect::<Vec<_>>());
    let one = records[7];
    assert_eq!(one.stop_ns - one.start_ns, 500);
    assert_eq!((one.start_ns - one.host_ns, one.flags), (200, 0));
    assert_eq!((one.communicator, one.order, one.sequence), (0xfeed, 7, 7));
    assert_eq!((one.function, one.datatype, one.channels, one.peer), (1, 7, 2, -1));
    // The place has another communicator by now, or never had one.
    for comm in [0x0603, 0x0502, 0x05ff] {
        ring.write(Slot { comm, ..slot(0) });
    }
    let records = turn(&mut reader, now_ns());
    assert!(records.iter().all(|record| record.communicator == 0), "{records:?}");
    assert_eq!((reader.counts().records, reader.counts().lost), (43, 0));
}

#[test]
fn what_was_overwritten_is_lost_and_counted_exactly() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    let (mut random, mut written, mut seen) = (Random(7), 0, Vec::new());
    for _ in 0..200 {
        for _ in 0..random.next() % 200 {
            ring.write(slot(written));
            written += 1;
        }
        seen.extend(numbers(&turn(&mut reader, now_ns())));
        let counts = reader.counts();
        assert_eq!(counts.records + counts.lost, written);
    }
    assert!(seen.windows(2).all(|pair| pair[0] < pair[1]));
    assert_eq!(reader.counts().records, seen.len() as u64);
    assert!(reader.counts().lost > 0 && seen.len() > 1000);
}

#[test]
fn a_reader_that_comes_late_begins_with_what_is_left() {
    let ring = Ring::new(64, 4, clock::HOST);
    for number in 0..1000 {
        ring.write(slot(number));
    }
    let mut reader = ring.reader();
    assert_eq!(numbers(&turn(&mut reader, now_ns())), (936..1000).collect::<Vec<_>>());
    assert_eq!(reader.counts().lost, 0);
}

#[test]
fn a_ticket_that_is_written_late_is_waited_for_and_one_that_never_is_given_up() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    let late = ring.hole();
    ring.write(slot(1));
    let now = now_ns();
    assert!(turn(&mut reader, now).is_empty());
    ring.fill(late, slot(0));
    assert_eq!(numbers(&turn(&mut reader, now + 1)), [0, 1]);
    ring.hole();
    ring.hole();
    ring.write(slot(4));
    assert!(turn(&mut reader, now + 2).is_empty());
    let abandoned = ring.hole();
    assert_eq!(numbers(&turn(&mut reader, now + 2 + PATIENCE)), [4]);
    assert_eq!(reader.counts().lost, 2);
    // Taken after the first was missed, so it has a time of its own.
    ring.fill(abandoned, slot(5));
    assert_eq!(numbers(&turn(&mut reader, now + 3 + PATIENCE)), [5]);
    let counts = reader.counts();
    assert_eq!((counts.records, counts.lost), (4, 2));
}

#[test]
fn a_ring_about_to_run_over_waits_for_nobody_and_an_ended_one_neither() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    ring.hole();
    for number in 1..40 {
        ring.write(slot(number));
    }
    assert_eq!(numbers(&turn(&mut reader, now_ns())), (1..40).collect::<Vec<_>>());
    ring.hole();
    ring.write(slot(41));
    let mut last = Vec::new();
    let turn = reader.turn(now_ns(), true, |record| last.push(record.bytes));
    assert_eq!((last, turn.lost, turn.more), (vec![41], 1, false));
}

#[test]
fn a_count_that_jumps_costs_what_was_there_and_nothing_after() {
    for jump in [1u64 << 60, u64::MAX - 5, (1 << 62) + 17] {
        let ring = Ring::new(64, 4, clock::HOST);
        let mut reader = ring.reader();
        ring.write(slot(0));
        assert_eq!(turn(&mut reader, now_ns()).len(), 1);
        ring.set_head(jump);
        assert!(turn(&mut reader, now_ns()).is_empty());
        // Backward again, and the plugin goes on.
        ring.set_head(5);
        assert!(turn(&mut reader, now_ns()).is_empty());
        ring.write(slot(9));
        assert_eq!(numbers(&turn(&mut reader, now_ns())), [9]);
        assert_eq!((reader.counts().jumps, reader.counts().lost), (2, 0));
    }
}

#[test]
fn one_turn_has_a_bound() {
    let ring = Ring::new(16384, 4, clock::HOST);
    let mut reader = ring.reader();
    for number in 0..16384 {
        ring.write(slot(number));
    }
    let mut turns = Vec::new();
    while reader.counts().records < 16384 {
        let turn = reader.turn(now_ns(), false, |_| {});
        turns.push((turn.records, turn.more));
    }
    assert_eq!(turns, [(4096, true), (4096, true), (4096, true), (4096, false)]);
}

#[test]
fn orders_go_on_beyond_32_bits() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    let border = 7u64 << 32;
    for order in border - 2..border + 2 {
        ring.write(Slot { order: order as u32, ..slot(order) });
        ring.set(offset_of!(Header, order), border + 1);
    }
    let orders: Vec<_> = turn(&mut reader, now_ns()).iter().map(|r| r.order).collect();
    assert_eq!(orders, (border - 2..border + 2).collect::<Vec<_>>());
}

#[test]
fn times_that_are_missing_or_cannot_be_are_left_out_and_said() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    let good = slot(0);
    let day = 100_000_000_000_000;
    ring.write(Slot { flags: flag::NO_START, device_start: 0, ..good });
    ring.write(Slot { flags: flag::NO_STOP | flag::GRAPH, device_stop: 0, ..good });
    ring.write(Slot { device_start: good.device_stop + 1, ..good });
    ring.write(Slot { device_stop: good.device_stop + day, ..good });
    ring.write(Slot { device_start: 5, host_ns: good.host_ns, ..good });
    ring.write(Slot { flags: !flag::ALL, ..good });
    let records = turn(&mut reader, now_ns());
    let got: Vec<_> = records.iter().map(|r| (r.start_ns > 0, r.stop_ns > 0, r.flags)).collect();
    let neither = flag::NO_START | flag::NO_STOP;
    let expected = [
        (false, true, flag::NO_START),
        (true, false, flag::NO_STOP | flag::GRAPH),
        (false, false, neither),
        (false, false, neither),
        (false, false, neither),
        (true, true, 0),
    ];
    // A machine that has been up for less than a day knows no time that is too old.
    let young = now_ns() < day;
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert!(got == &expected || (young && index == 4), "{index}: {got:?} {expected:?}");
    }
    assert!(reader.counts().implausible >= 2);
}

/// KiB of a memfd that this process holds resident through mappings it cannot write.
fn resident_kib(inode: u64) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut ours, mut kib) = (false, 0);
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [_, access, _, _, ino, ..] if access.len() == 4 => {
                ours = access == "r--s" && ino == inode.to_string();
            }
            ["Rss:", size, "kB"] if ours => kib += size.parse::<u64>().unwrap(),
            _ => {}
        }
    }
    kib
}

#[test]
fn what_was_read_does_not_stay_resident() {
    let ring = Ring::new(SLOTS, 256, clock::HOST);
    let mut reader = ring.reader();
    (0..SLOTS.into()).for_each(|number| ring.write(slot(number)));
    let mut records = Vec::new();
    while records.len() < SLOTS as usize {
        let more = turn(&mut reader, now_ns());
        assert!(!more.is_empty());
        records.extend(more);
    }
    let memory = Arc::clone(reader.memory());
    assert_eq!(resident_kib(memory.inode), 0);
    let process = ProcessKey { pid: 1, start_time: 1 };
    let status = RingStatus::of(process, &memory, &Figures::of(&reader), 0);
    assert_eq!((status.counts.records, resident_kib(memory.inode)), (SLOTS.into(), 0));
    assert!(memory.is_full() && resident_kib(memory.inode) > 0, "else nothing was measured");
}

#[test]
fn what_no_plugin_writes_is_no_record() {
    let ring = Ring::new(64, 4, clock::HOST);
    let mut reader = ring.reader();
    for function in [0, 11, 14, 16, 255] {
        ring.write(Slot { function, ..slot(0) });
    }
    ring.write(Slot { host_ns: now_ns() + 10_000_000_000, ..slot(0) });
    ring.write(Slot { function: 15, ..slot(6) });
    assert_eq!(numbers(&turn(&mut reader, now_ns())), [6]);
    assert_eq!((reader.counts().invalid, reader.counts().lost), (6, 6));
}

#[test]
fn device_times_come_out_on_the_hosts_axis() {
    // (kind, declared rate, real rate)
    let clocks = [(clock::NS, 0, 1e9), (clock::TICKS, 100_000_000, 1e8), (clock::TICKS, 0, 2.5e7)];
    for (kind, declared, hz) in clocks {
        let ring = Ring::new(1024, 4, kind);
        ring.set(offset_of!(Header, clock_hz), declared);
        let mut reader = ring.reader();
        let begin = now_ns() - 2_000_000_000;
        let epoch = 1u64 << 60;
        let device = |host: u64| epoch + ((host - begin) as f64 * hz / 1e9) as u64;
        // A collective every 10 ms, 3 ms long; the host hears of it 5 to 60 us later.
        let mut records = Vec::new();
        for number in 0..200 {
            let stop = begin + number * 10_000_000;
            let delay = 5_000 + number * 7_919 % 55_000;
            let host = stop.saturating_sub(3_100_000).max(begin);
            ring.write(Slot {
                host_ns: host,
                device_start: device(stop.saturating_sub(3_000_000).max(begin)),
                device_stop: device(stop),
                poll_delta: ((stop + delay - host) / 64) as u32,
                ..slot(number)
            });
            records.extend(turn(&mut reader, now_ns()));
        }
        let timed: Vec<_> = records.iter().filter(|record| record.stop_ns > 0).collect();
        let unmeasured = if declared == 0 && kind == clock::TICKS { 25 } else { 0 };
        assert_eq!(timed.len(), 200 - unmeasured, "clock {kind}");
        for record in timed.iter().skip(1) {
            let off = record.stop_ns.abs_diff(begin + record.bytes * 10_000_000);
            assert!(off < 1_100_000, "clock {kind}: {off} ns off");
            let took = record.stop_ns - record.start_ns;
            assert!(took.abs_diff(3_000_000) <= 200, "clock {kind}: {took}");
        }
    }
}
