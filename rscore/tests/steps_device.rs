//! Device records of whole jobs through the pipeline and the scorer: who is named.
#![allow(clippy::print_stdout)]

mod device_sim;

use device_sim::{patterns, Sim, Slow, PHASES, RANKS};
use rscore::score::{Config, Kind, Scorer, State};
use rscore::window::{source, RankWindow};

/// Windows that the job is healthy, and in which the slow rank must be named.
const HEALTHY: usize = 25;
const WITHIN: usize = 3;
/// Of the rank's own work of a whole step.
const SHARE: f64 = 0.05;

fn scored(scorer: &mut Scorer, windows: &[Vec<RankWindow>]) -> Vec<(Kind, Option<u32>)> {
    let mut named = Vec::new();
    for rows in windows {
        assert_eq!(rows.len(), RANKS);
        for row in rows {
            assert_eq!((row.source, row.flags), (source::DEVICE_RING, 0), "{row:?}");
        }
        let update = scorer.update(rows);
        if std::env::var("DEBUG_OWN").is_ok() {
            let own: Vec<_> = rows.iter().map(|r| (r.own / 1e5).round() / 10.0).collect();
            println!(
                "{} {:?} se {:.2} steps {} {:?} {:?}",
                rows[0].window,
                own,
                rows[3].own_se / 1e6,
                rows[3].steps,
                update.abstentions.len(),
                update.findings.iter().map(|f| (f.state, f.rank, f.confidence)).collect::<Vec<_>>()
            );
        }
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
        let mut scorer = Scorer::new(Config::default()).unwrap();
        job.begin();
        let named = scored(&mut scorer, &job.windows(HEALTHY));
        assert!(named.is_empty(), "{phase:?}: {named:?} before anything was slow");
        job.slow = Some(Slow { rank, phase, share: SHARE });
        let windows = job.windows(WITHIN);
        let named = scored(&mut scorer, &windows);
        let own = |rank: usize| windows[WITHIN - 1][rank].own / 1e6;
        let all: Vec<_> = (0..RANKS).map(|rank| (own(rank) * 10.0).round() / 10.0).collect();
        println!("{phase:?} of rank {rank}: own {all:?} ms, named {named:?}");
        assert!(named.contains(&(Kind::Straggler, Some(rank as u32))), "{phase:?}: {named:?}");
        let others = named.iter().filter(|n| **n != (Kind::Straggler, Some(rank as u32)));
        assert_eq!(others.count(), 0, "{phase:?}: {named:?}");
    }
}

fn names_nobody(pattern: fn(u64) -> Sim) {
    let mut job = pattern(77);
    let mut scorer = Scorer::new(Config::default()).unwrap();
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
