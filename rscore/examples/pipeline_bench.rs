//! Events per second of the pipeline, and microseconds per scored window, on one core.
//!
//! `cargo run --release --example pipeline_bench [million events]`
#![allow(clippy::print_stdout)]

use std::time::Instant;

use rscore::score::Scorer;
use rscore::steps::{Config, Pipeline};
use rscore::window::RankWindow;
use rscore::wire::{what, Event};

const RANKS: u32 = 8;
/// Elements of the buckets of one step.
const BUCKETS: [u64; 8] = [700, 6400, 6300, 6200, 6100, 6000, 5900, 9000];
const STEP_NS: u64 = 16_000_000;

/// Two events a collective, two workers a rank, all ranks interleaved.
fn gloo_step() -> Vec<Event> {
    let mut events = Vec::new();
    for rank in 0..RANKS {
        for (place, &count) in BUCKETS.iter().enumerate() {
            let place = place as u64;
            let issue = 6_000_000 + place * 900_000 + u64::from(rank) * 1000;
            let base = Event {
                tgid: 100 + rank,
                tid: 1000 * (rank + 1),
                datatype: 255,
                ..Event::default()
            };
            let worker = Event { tid: base.tid + 1 + (place % 2) as u32, ..base };
            let start = issue + 10_000;
            events.push(Event {
                time_ns: start,
                what: what::DETAIL,
                function: 1,
                count,
                id: 4,
                comm: 0xc0,
                peer: place as i32,
                aux: u64::from(rank) | u64::from(RANKS) << 32,
                ..worker
            });
            events.push(Event { time_ns: start + 1_500_000, what: what::DONE, ..worker });
        }
    }
    events.sort_by_key(|event| event.time_ns);
    events
}

/// One event a collective.
fn nccl_step() -> Vec<Event> {
    let mut events = Vec::new();
    for rank in 0..RANKS {
        for (place, &count) in BUCKETS.iter().enumerate() {
            events.push(Event {
                time_ns: 6_000_000 + place as u64 * 900_000 + u64::from(rank) * 1000,
                tgid: 100 + rank,
                tid: 100 + rank,
                what: what::ENTER,
                function: 1,
                datatype: 7,
                count,
                comm: 0xc000 + u64::from(rank) * 64,
                ..Event::default()
            });
        }
    }
    events.sort_by_key(|event| event.time_ns);
    events
}

fn measure(name: &str, step: &[Event], total: usize) -> Vec<Vec<RankWindow>> {
    let mut pipeline = Pipeline::new(Config::default());
    for rank in 0..RANKS {
        pipeline.assign(100 + rank, 1, 7, rank, RANKS, 1);
    }
    let steps = (total / step.len()).max(400);
    let (mut base, mut windows) = (1_000_000_000u64, Vec::new());
    let started = Instant::now();
    for number in 0..steps {
        for event in step {
            let mut event = Event { time_ns: base + event.time_ns, ..*event };
            if event.what == what::DETAIL {
                event.peer = event.peer.wrapping_add((number * BUCKETS.len()) as i32);
            }
            pipeline.on_event(&event);
        }
        base += STEP_NS;
        if number % 12 == 0 {
            pipeline.tick(base, base, 0);
            windows.append(&mut pipeline.take_windows());
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let events = (steps * step.len()) as f64;
    let ranks = pipeline.ranks();
    println!(
        "{name}: {:.1} M events/s, {:.1} ns per event, {} windows, period {}, irregular {}",
        events / seconds / 1e6,
        seconds * 1e9 / events,
        windows.len(),
        ranks[0].period,
        ranks[0].irregular,
    );
    windows
}

fn main() {
    let millions = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(20usize);
    let windows = measure("gloo, 8 ranks", &gloo_step(), millions * 1_000_000);
    measure("nccl, 8 ranks", &nccl_step(), millions * 1_000_000);
    match Scorer::new(rscore::score::Config::default()) {
        Ok(mut scorer) => {
            let started = Instant::now();
            for rows in &windows {
                scorer.update(rows);
            }
            let micros = started.elapsed().as_secs_f64() * 1e6 / windows.len().max(1) as f64;
            println!("score, 8 ranks: {micros:.1} us per window ({} windows)", windows.len());
        }
        Err(error) => println!("{error}"),
    }
}
