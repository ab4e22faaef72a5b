//! Device records of whole jobs through the pipeline and the scorer: who is named.
#![allow(clippy::print_stdout)]

mod device_sim;

use device_sim::{patterns, Random, Sim, Slow, PHASES, RANKS};
use rscore::ring::{flag as record_flag, Record};
use rscore::score::{Config, Kind, Scorer, State};
use rscore::steps::{CommunicatorStatus, Pipeline};
use rscore::window::{flag, source, RankWindow};
use rscore::wire::function::REDUCE_SCATTER;

/// Windows that the job is healthy, and in which the slow rank must be named.
const HEALTHY: usize = 8;
const WITHIN: usize = 3;
/// Of the rank's own work of a whole step.
const SHARE: f64 = 0.05;

fn scorer() -> Scorer {
    Scorer::new(Config::default()).unwrap()
}

/// One of `patterns`, by seed.
type Pattern = fn(u64) -> Sim;

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
fn names_the_slow_rank(pattern: Pattern) {
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
            assert!(
                (change - expected).abs() < SHARE / 4.0,
                "{phase:?} of rank {rank}: {changes:.3?}"
            );
        }
        assert!(named.contains(&(Kind::Straggler, Some(rank as u32))), "{phase:?}: {named:?}");
        let others = named.iter().filter(|n| **n != (Kind::Straggler, Some(rank as u32)));
        assert_eq!(others.count(), 0, "{phase:?}: {named:?}");
    }
}

fn names_nobody(pattern: Pattern) {
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

/// Rows of the last of `windows` windows.
fn last(job: &mut Sim, windows: usize) -> Vec<RankWindow> {
    job.begin();
    job.windows(windows).pop().unwrap()
}

#[test]
fn own_is_what_the_ranks_worked_whatever_their_collectives_hide() {
    // Per step: what the pattern computes. A rank's natural speed is within 4 % of it.
    let jobs: [(Pattern, f64); 4] = [
        (patterns::ddp, 77e6),
        (patterns::fsdp, 92e6),
        (patterns::tensor, 80e6),
        (patterns::pipeline, 98e6),
    ];
    for (pattern, work) in jobs {
        for row in last(&mut pattern(3), 3) {
            assert!((row.own / work - 1.0).abs() < 0.05, "{row:?}");
            assert!((row.own + row.wait + row.comm - row.wall).abs() < 0.01 * row.wall);
        }
    }
}

#[test]
fn a_rank_without_a_ring_is_shown_as_such_and_not_judged() {
    let mut job = patterns::ddp(1);
    job.quirks.without_ring = vec![4];
    for row in last(&mut job, 4) {
        let (witness, flags) = match row.rank {
            4 => (source::HOST_PROBE, flag::OWN_UNKNOWN | flag::NO_RING),
            _ => (source::DEVICE_RING, 0),
        };
        assert_eq!((row.source, row.flags), (witness, flags), "{row:?}");
    }
    let status = job.pipeline.ranks();
    assert_eq!(status[4].source, source::HOST_PROBE);
    assert_eq!((status[4].coverage, status[4].records), (None, 0));
    assert_eq!(status[0].source, source::DEVICE_RING);
    assert_eq!((status[0].coverage, status[0].missed), (Some(1.0), 0));
}

#[test]
fn a_function_that_the_library_hides_makes_own_unknown() {
    let mut job = patterns::fsdp(1);
    job.quirks.hidden_function = Some(REDUCE_SCATTER);
    for row in last(&mut job, 5) {
        let flags = flag::OWN_UNKNOWN | flag::RING_INCOMPLETE;
        assert_eq!((row.source, row.flags), (source::DEVICE_RING, flags), "{row:?}");
        assert!(row.own.is_nan() && row.wall > 0.0);
    }
    let status = &job.pipeline.ranks()[0];
    assert_eq!(status.missed, 1 << REDUCE_SCATTER);
    // 12 gathers and 6 scatters a step.
    assert!((status.coverage.unwrap() - 12.0 / 18.0).abs() < 0.02, "{status:?}");
}

#[test]
fn lost_records_cost_their_steps_and_nothing_else() {
    let mut whole = patterns::tensor(5);
    let truth = last(&mut whole, 4);
    let mut job = patterns::tensor(5);
    job.quirks.lose_every = Some(331);
    for (row, truth) in last(&mut job, 4).iter().zip(&truth) {
        assert_eq!((row.source, row.flags), (source::DEVICE_RING, 0), "{row:?}");
        assert!((row.own / truth.own - 1.0).abs() < 0.01, "{row:?} {truth:?}");
    }
    for rank in job.pipeline.ranks() {
        // Two groups with all-reduces of one size: the pairs come from the order alone.
        let joined = |known: &CommunicatorStatus| known.hash != 0 && known.coverage > Some(0.99);
        assert_eq!(rank.communicators.iter().filter(|known| joined(known)).count(), 2, "{rank:?}");
    }
    assert!(job.pipeline.ranks().iter().all(|rank| rank.irregular > 0), "steps with a hole");
}

#[test]
fn replays_without_host_calls_are_whole() {
    let mut job = patterns::ddp(2);
    job.quirks.no_host_calls = true;
    job.quirks.flags = record_flag::GRAPH;
    for row in last(&mut job, 3) {
        assert_eq!((row.source, row.flags), (source::DEVICE_RING, 0), "{row:?}");
    }
    assert_eq!(job.pipeline.ranks()[0].coverage, None);
}

#[test]
fn times_of_the_poll_are_used_and_flagged_and_missing_ones_are_not() {
    let mut job = patterns::ddp(2);
    job.quirks.flags = record_flag::HOST_TIME;
    assert!(last(&mut job, 2).iter().all(|row| row.flags == flag::HOST_TIMED && row.own > 0.0));
    let mut job = patterns::ddp(2);
    job.quirks.flags = record_flag::NO_STOP;
    for row in last(&mut job, 2) {
        assert_eq!((row.source, row.flags), (source::DEVICE_RING, flag::OWN_UNKNOWN), "{row:?}");
    }
}

#[test]
fn the_source_changes_between_windows_only() {
    let mut job = patterns::ddp(4);
    job.begin();
    let mut windows = job.windows(2);
    // Thinned by the operator in the middle of a window, and full again later.
    (0..10).for_each(|_| windows.extend(job.step()));
    (0..RANKS).for_each(|rank| job.pipeline.ring_mode(Sim::pid(rank), false));
    windows.extend(job.windows(2));
    (0..10).for_each(|_| windows.extend(job.step()));
    (0..RANKS).for_each(|rank| job.pipeline.ring_mode(Sim::pid(rank), true));
    windows.extend(job.windows(6));
    let sources: Vec<u32> = windows.iter().map(|rows| rows[0].source).collect();
    for rows in &windows {
        assert!(rows.iter().all(|row| row.source == rows[0].source), "{rows:?}");
        assert!(rows.iter().all(|row| row.steps >= 25), "{rows:?}");
        let known = rows[0].source == source::DEVICE_RING;
        assert!(rows.iter().all(|row| row.own.is_nan() != known));
    }
    let mut runs = sources.clone();
    runs.dedup();
    assert_eq!(runs, [source::DEVICE_RING, source::HOST_PROBE, source::DEVICE_RING], "{sources:?}");
    let numbers: Vec<u64> = windows.iter().map(|rows| rows[0].window).collect();
    assert_eq!(numbers, (0..windows.len() as u64).collect::<Vec<_>>(), "no window is left out");
}

#[test]
fn a_ring_that_ends_with_its_process_leaves_its_last_steps() {
    let mut job = patterns::ddp(6);
    job.begin();
    job.windows(1);
    (0..20).for_each(|_| drop(job.step()));
    for rank in 0..RANKS {
        job.pipeline.ring_closed(Sim::pid(rank));
        job.pipeline.gone(Sim::pid(rank), 1);
    }
    let rows = job.later(2_000_000_000).pop().unwrap();
    assert_eq!(rows.len(), RANKS);
    for row in rows {
        assert_eq!((row.source, row.flags), (source::DEVICE_RING, flag::PARTIAL), "{row:?}");
    }
}

#[test]
fn whatever_a_ring_says_the_pipeline_goes_on() {
    let mut pipeline = Pipeline::new(rscore::steps::Config::default());
    let mut random = Random::new(11);
    let mut wild = move || {
        let bits = (random.uniform() * 2f64.powi(53)) as u64;
        bits.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> random.below(64)
    };
    for n in 0..300_000u64 {
        let pid = 1 + (wild() % 5) as u32;
        match wild() % 2000 {
            0 => pipeline.ring_opened(pid),
            1 => pipeline.ring_mode(pid, wild() % 2 == 0),
            2 => pipeline.ring_lost(pid, wild()),
            3 => pipeline.ring_closed(pid),
            4 => pipeline.gone(pid, wild() % 2),
            5 => drop(pipeline.assign(pid, wild() % 2, wild() % 3, 0, 4, 1)),
            6..60 => pipeline.tick(wild(), wild(), n),
            _ => pipeline.on_record(
                pid,
                &Record {
                    communicator: wild() % 700,
                    order: if wild() % 100 == 0 { wild() } else { n },
                    function: wild() as u8,
                    flags: wild() as u16,
                    bytes: wild(),
                    host_ns: wild(),
                    start_ns: wild(),
                    stop_ns: wild(),
                    ..Record::default()
                },
            ),
        }
        for row in pipeline.take_windows().iter().flatten() {
            assert!(row.own.is_nan() || row.own >= 0.0, "{row:?}");
        }
    }
    assert!(pipeline.ranks().len() <= 5);
}
