//! Device records of whole jobs through the pipeline and the scorer: who is named.
#![allow(clippy::print_stdout)]

mod device_sim;

use device_sim::{patterns, Sim, Slow, PHASES, RANKS};
use rscore::score::{Config, Kind, Scorer, State};
use rscore::window::{source, RankWindow};

/// Windows that the job is healthy, and in which the slow rank must be named.
const HEALTHY: usize = 16;
const WITHIN: usize = 3;
/// Of the rank's own work of a whole step.
const SHARE: f64 = 0.05;

/// At one false alarm per million windows the CUSUM alone takes four windows for 5 %.
fn scorer() -> Scorer {
    Scorer::new(Config { false_alarms_per_million: 100.0, ..Config::default() }).unwrap()
}

fn scored(scorer: &mut Scorer, windows: &[Vec<RankWindow>]) -> Vec<(Kind, Option<u32>)> {
    let mut named = Vec::new();
    for rows in windows {
        assert_eq!(rows.len(), RANKS);
        for row in rows {
            assert_eq!((row.source, row.flags), (source::DEVICE_RING, 0), "{row:?}");
        }
        let update = scorer.update(rows);
        assert_eq!(update.refused_rows, 0);
        let open = update.findings.iter().filter(|f| f.state == State::Confirmed);
        named.extend(open.map(|f| (f.kind, f.rank)));
    }
    named
}

/// A job that becomes slow in one phase of one rank: that rank is named, and nobody else.
fn names_the_slow_rank(pattern: fn(u64) -> Sim) {
    for (seed, phase) in PHASES.into_iter().enumerate() {
        let rank = (3 + 2 * seed) % RANKS;
        let mut job = pattern(seed as u64);
        let mut scorer = scorer();
        job.begin();
        let before = job.windows(HEALTHY);
        let named = scored(&mut scorer, &before);
        assert!(named.is_empty(), "{phase:?}: {named:?} before anything was slow");
        job.slow = Some(Slow { rank, phase, share: SHARE });
        let windows = job.windows(WITHIN);
        let named = scored(&mut scorer, &windows);
        // What the witness says, whatever the scorer makes of it.
        let change = |rank: usize| windows[WITHIN - 1][rank].own / before[HEALTHY - 1][rank].own;
        let changes: Vec<f64> = (0..RANKS).map(change).collect();
        println!("{phase:?} of rank {rank}: own by {changes:.3?}, named {named:?}");
        for (other, change) in changes.iter().enumerate() {
            let expected = if other == rank { 1.0 + SHARE } else { 1.0 };
            assert!((change - expected).abs() < 0.01, "{phase:?} of rank {rank}: {changes:.3?}");
        }
        assert!(named.contains(&(Kind::Straggler, Some(rank as u32))), "{phase:?}: {named:?}");
        let others = named.iter().filter(|n| **n != (Kind::Straggler, Some(rank as u32)));
        assert_eq!(others.count(), 0, "{phase:?}: {named:?}");
    }
}

fn names_nobody(pattern: fn(u64) -> Sim) {
    let mut job = pattern(77);
    let mut scorer = scorer();
    job.begin();
    let named = scored(&mut scorer, &job.windows(HEALTHY + 3 * WITHIN));
    assert!(named.is_empty(), "{named:?}");
}

#[test]
fn data_parallel_with_overlapped_buckets() {
    names_the_slow_rank(patterns::ddp);
    names_nobody(patterns::ddp);
}

#[test]
fn fully_sharded() {
    names_the_slow_rank(patterns::fsdp);
    names_nobody(patterns::fsdp);
}

#[test]
fn tensor_by_two_and_data_by_four() {
    names_the_slow_rank(patterns::tensor);
    names_nobody(patterns::tensor);
}

#[test]
fn pipeline_by_two_and_data_by_four() {
    names_the_slow_rank(patterns::pipeline);
    names_nobody(patterns::pipeline);
}

#[test]
fn mixture_of_experts() {
    names_the_slow_rank(patterns::experts);
    names_nobody(patterns::experts);
}
