//! Events of whole jobs through the pipeline: steps, own, busy and windows against the truth.

mod steps_sim;

use rscore::steps::Config;
use rscore::window::{flag, source, RankWindow};
use steps_sim::*;

/// Every row of a noise-free job shows exactly the truth.
fn assert_exact(rows: &[RankWindow], truth: &Truth) {
    for row in rows {
        assert_eq!(row.flags, 0, "{row:?}");
        assert_eq!((row.wall, row.own), (truth.wall, truth.own), "{row:?}");
        assert_eq!(row.wait + row.comm, truth.wall - truth.own, "{row:?}");
        assert_eq!(row.own_se, 0.0);
        assert_eq!(row.collectives, truth.collectives);
        assert_eq!(row.bytes, truth.bytes);
    }
}

#[test]
fn overlapped_buckets_on_two_workers_come_out_exact() {
    let mut job = Gloo::new(1, 2);
    let step = ddp(&[400, 300, 300, 80]);
    let truth = step.truth();
    let windows = job.run(&[step], 250);
    assert_eq!(windows.len(), 2);
    for (number, rows) in windows.iter().enumerate() {
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].window, number as u64);
        assert_eq!(rows[0].steps, 100);
        assert_eq!(rows[0].source, source::GLOO);
        assert_exact(rows, &truth);
    }
    assert_eq!(windows[1][0].first_step, windows[0][0].last_step + 1);
    assert_eq!(job.pipeline.ranks()[0].period, 4);
    assert_eq!(job.pipeline.ranks()[0].irregular, 0);
}

#[test]
fn equal_buckets_are_cut_at_the_long_gap() {
    for start in 0..5 {
        let mut job = Gloo::new(1, 1);
        let step = ddp_sequential(&[300; 5]);
        let truth = step.truth();
        job.skip_collectives = start;
        let windows = job.run(&[step], 250);
        assert_eq!(job.pipeline.ranks()[0].period, 5);
        assert!(windows.len() >= 2, "{}", windows.len());
        for rows in &windows {
            assert_exact(rows, &truth);
        }
    }
}

#[test]
fn one_collective_a_step_is_a_step() {
    let mut job = Gloo::new(1, 1);
    let step = ddp_sequential(&[300]);
    let truth = step.truth();
    let windows = job.run(&[step], 300);
    assert_eq!(job.pipeline.ranks()[0].period, 1);
    assert_eq!(windows.len(), 2);
    assert_exact(&windows[1], &truth);
}

#[test]
fn logging_every_tenth_step_spoils_no_mean() {
    let plain = ddp(&[400, 300, 200]);
    let truth = plain.truth();
    let logging = plain.clone().with(all_reduce(8, 5, 50_000));
    let mut script = vec![plain; 9];
    script.push(logging);
    for start in 0..30 {
        let mut job = Gloo::new(1, 2);
        job.skip_collectives = start;
        let windows = job.run(&script, 60);
        let status = &job.pipeline.ranks()[0];
        assert_eq!(status.period, 3, "start {start}");
        assert!(status.irregular > 0);
        assert!(windows.len() >= 2, "{}", windows.len());
        for rows in &windows {
            assert_exact(rows, &truth);
        }
    }
}

#[test]
fn an_evaluation_is_skipped_and_training_goes_on() {
    let train = ddp(&[400, 300, 200]);
    let truth = train.truth();
    let mut job = Gloo::new(1, 2);
    job.run(std::slice::from_ref(&train), 150);
    let evaluation = Step { collectives: vec![all_reduce(8, 3, 20_000); 11], ..train.clone() };
    job.run(&[evaluation], 1);
    let windows = job.run(&[train], 300);
    assert_eq!(job.pipeline.ranks()[0].period, 3);
    let irregular = job.pipeline.ranks()[0].irregular;
    assert!((11..=11 + 6).contains(&irregular), "{irregular}");
    for rows in &windows {
        assert_exact(rows, &truth);
    }
}

#[test]
fn buckets_that_are_rebuilt_after_the_first_step_give_the_later_steps() {
    let mut job = Gloo::new(1, 2);
    job.run(&[ddp(&[100, 700, 180])], 1);
    let step = ddp(&[400, 300, 280]);
    let truth = step.truth();
    let windows = job.run(&[step], 220);
    assert_eq!(job.pipeline.ranks()[0].period, 3);
    assert_exact(&windows[0], &truth);
}

#[test]
fn a_new_step_shape_is_learnt_and_starts_new_windows() {
    let mut job = Gloo::new(1, 2);
    let first = job.run(&[ddp(&[100, 700, 180])], 250);
    let step = ddp(&[400, 300, 280, 10]);
    let truth = step.truth();
    let second = job.run(&[step], 400);
    assert_eq!(job.pipeline.ranks()[0].period, 4);
    assert_ne!(first[0][0].signature, second.last().unwrap()[0].signature);
    assert_exact(second.last().unwrap(), &truth);
    let numbers: Vec<u64> = first.iter().chain(&second).map(|rows| rows[0].window).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
}

#[test]
fn sharded_steps_of_equal_layers_are_found_from_any_start() {
    let step = fsdp(24);
    let truth = step.truth();
    for start in (0..72).step_by(7) {
        let mut job = Gloo::new(1, 2);
        job.skip_collectives = start;
        let windows = job.run(std::slice::from_ref(&step), 230);
        assert_eq!(job.pipeline.ranks()[0].period, 72, "start {start}");
        assert!(!windows.is_empty());
        assert_exact(windows.last().unwrap(), &truth);
    }
}

#[test]
fn eight_ranks_share_windows_signature_and_the_wait_is_with_the_fast() {
    let mut job = Gloo::new(8, 2);
    job.slow = Some((2, 1.2));
    let windows = job.run(&[ddp(&[400, 300, 300, 80])], 330);
    assert!(windows.len() >= 3);
    for rows in &windows {
        assert_eq!(rows.iter().map(|r| r.rank).collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(rows.iter().all(|r| r.signature == rows[0].signature && r.steps >= 99));
        let slow = rows[2];
        for row in rows {
            assert!((row.wall / slow.wall - 1.0).abs() < 1e-6, "everybody shares the wall");
            assert!((row.own + row.wait + row.comm - row.wall).abs() < 1e-6 * row.wall);
            if row.rank != 2 {
                assert!((1.15..1.25).contains(&(slow.own / row.own)), "{slow:?} {row:?}");
                assert!(row.wait > slow.wait + 0.15 * row.own, "{slow:?} {row:?}");
                // What the slow rank spends in collectives is what they cost; the rest is wait.
                let (cost, excess) = (slow.wait + slow.comm, slow.own - row.own);
                assert!((row.comm / cost - 1.0).abs() < 0.1, "{slow:?} {row:?}");
                assert!((row.wait / excess - 1.0).abs() < 0.15, "{slow:?} {row:?}");
            }
        }
    }
}

#[test]
fn workers_that_overtake_one_another_do_not_spoil_the_steps() {
    // Five buckets at once, of 0.1 ms each, for workers that may lose the processor for 2 ms
    // between the queue and the collective.
    let mut step = ddp_sequential(&[500, 400, 300, 200, 100]);
    for call in &mut step.collectives[1..] {
        (call.before_ns, call.transfer_ns) = (10_000, 100_000);
    }
    // Told apart by more than their sizes, which are not compared where they change.
    for (call, function) in step.collectives.iter_mut().zip(1..) {
        call.function = function;
    }
    for workers in [2, 4] {
        let mut job = Gloo::new(2, workers);
        job.late_ns = 2_000_000;
        let windows = job.run(std::slice::from_ref(&step), 320);
        for rank in job.pipeline.ranks() {
            assert_eq!((rank.period, rank.irregular), (5, 0), "{rank:?}");
        }
        assert!(windows.len() >= 2);
        assert!(windows.iter().flatten().all(|row| row.flags == 0 && row.steps >= 99));
    }
}

#[test]
fn pipeline_stages_have_signatures_of_their_own() {
    let mut job = Nccl::new(4);
    let windows = job.run(250, |rank| {
        // Stages 0 and 1 with two data-parallel ranks each; pointers differ in every process.
        let world = 0x1000 * (u64::from(rank) + 1);
        let gradients = all_reduce(1 << 20, 0, 0);
        let mut calls = vec![(world, gradients.clone())];
        for _ in 0..4 {
            let mut p2p = gradients.clone();
            p2p.function = if rank < 2 { 9 } else { 10 };
            p2p.count = 4096;
            calls.insert(0, (world + 8, p2p));
        }
        calls
    });
    assert!(windows.len() >= 2);
    let rows = &windows[1];
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0].signature, rows[1].signature);
    assert_eq!(rows[2].signature, rows[3].signature);
    assert_ne!(rows[0].signature, rows[2].signature);
    for row in rows {
        assert_eq!(row.source, source::HOST_PROBE);
        assert_eq!(row.flags, flag::OWN_UNKNOWN);
        assert!(row.own.is_nan() && row.wait.is_nan() && row.comm.is_nan());
        assert_eq!(row.wall, 50_000_000.0);
        assert_eq!(row.collectives, 5.0);
    }
}

#[test]
fn lost_events_are_flagged_and_cost_only_their_steps() {
    let mut job = Gloo::new(1, 2);
    let step = ddp(&[400, 300, 300, 80]);
    let truth = step.truth();
    job.drop_every = Some(97);
    let windows = job.run(&[step], 450);
    assert!(windows.len() >= 2, "{}", windows.len());
    let last = windows.last().unwrap()[0];
    assert_eq!(last.flags, flag::EVENTS_LOST);
    // One event in 97 hits about one step in six and its neighbours; the rest stays right.
    assert!((last.wall / truth.wall - 1.0).abs() < 0.02, "{last:?} {truth:?}");
    assert!((last.own / truth.own - 1.0).abs() < 0.05, "{last:?} {truth:?}");
}

#[test]
fn a_job_without_rhythm_gets_slices_of_time() {
    let mut job = Gloo::new(2, 2);
    let mut random = Random::new(5);
    let script: Vec<Step> = (0..2000)
        .map(|_| {
            let n = 1 + random.below(6);
            let mut step = ddp(&[300, 200, 100, 50, 30, 20][..n]);
            for collective in &mut step.collectives {
                collective.function = 1 + random.below(5) as u8;
                collective.count = 1 + random.below(1000) as u64;
            }
            step
        })
        .collect();
    let windows = job.run(&script, 1);
    assert!(windows.len() >= 2, "{}", windows.len());
    for row in windows.iter().flatten() {
        assert_eq!(row.flags, flag::STEPS_NOT_INFERRED);
        assert_eq!(row.steps, 0);
        assert!(row.wall > 25e9 && row.wall < 35e9, "{row:?}");
        assert!((row.own + row.wait + row.comm - row.wall).abs() < 1.0);
        let share = row.own / row.wall;
        assert!(share > 0.3 && share < 0.99, "{row:?}");
    }
}

#[test]
fn sizes_that_change_in_every_step_are_left_out_of_the_comparison() {
    let mut job = Gloo::new(1, 1);
    let mut random = Random::new(6);
    let script: Vec<Step> = (0..500)
        .map(|_| {
            let mut step = ddp_sequential(&[300, 200, 100]);
            step.collectives[0].function = 6;
            step.collectives[0].count = 1 + random.below(1_000_000) as u64;
            step
        })
        .collect();
    let windows = job.run(&script, 1);
    assert_eq!(job.pipeline.ranks()[0].period, 3);
    assert!(windows.len() >= 2);
}

#[test]
fn rows_need_an_owner_and_earlier_steps_still_count() {
    let mut job = Gloo::new(1, 2);
    job.assign = false;
    let step = ddp(&[400, 300, 300, 80]);
    let truth = step.truth();
    assert!(job.run(std::slice::from_ref(&step), 180).is_empty());
    job.assign = true;
    let windows = job.run(&[step], 60);
    assert_eq!(windows.len(), 2, "the steps before were kept");
    assert_exact(&windows[0], &truth);
}

#[test]
fn a_rank_that_ends_leaves_a_partial_row_or_none() {
    for (extra, rows) in [(40, 1), (5, 0)] {
        let mut job = Gloo::new(1, 2);
        let step = ddp(&[400, 300, 300, 80]);
        let mut before = job.run(std::slice::from_ref(&step), 150).len();
        // Up to the border of a window, then some more.
        while before == 0 || before == 1 {
            before += job.run(std::slice::from_ref(&step), 1).len();
        }
        before += job.run(std::slice::from_ref(&step), extra).len();
        job.pipeline.gone(job.pid(0), 1);
        let last = job.settle();
        assert_eq!(last.len(), rows, "{before} {extra}");
        for row in last.iter().flatten() {
            assert_eq!(row.flags, flag::PARTIAL);
            assert!(row.steps >= 10);
        }
        assert!(job.pipeline.ranks().is_empty());
        // The next life of the job goes on with its window numbers.
        let next = job.run(&[step], 150);
        assert_eq!(next[0][0].window, (before + rows) as u64);
    }
}

#[test]
fn tables_stay_bounded_whatever_a_job_does() {
    let config = Config { max_processes: 8, ..Config::default() };
    let mut pipeline = rscore::steps::Pipeline::new(config);
    let mut random = Random::new(9);
    for n in 0..400_000u64 {
        let event = rscore::wire::Event {
            time_ns: random.next() >> random.below(64),
            tgid: 1 + random.below(20) as u32,
            tid: random.below(30) as u32,
            what: random.below(256) as u8,
            function: random.next() as u8,
            datatype: random.next() as u8,
            peer: random.next() as i32,
            count: random.next() >> random.below(64),
            comm: random.next() % 2000,
            id: random.next() >> random.below(64),
            aux: random.next() % 600,
            ..Default::default()
        };
        pipeline.on_event(&event);
        if n % 1000 == 0 {
            let pid = 1 + random.below(20) as u32;
            pipeline.assign(pid, random.below(3) as u64, random.next() % 4000, 0, 1, 0);
            pipeline.gone(1 + random.below(20) as u32, random.below(3) as u64);
            pipeline.tick(random.next() >> random.below(64), random.next(), n);
            pipeline.take_windows();
        }
    }
    assert!(pipeline.ranks().len() <= 8);
    assert!(pipeline.counters().dropped_events > 0);
}

#[test]
fn tenths_of_a_window_come_before_it_and_make_it_up() {
    let mut job = Gloo::new(2, 2);
    job.pipeline = rscore::steps::Pipeline::new(Config { tenths: true, ..Config::default() });
    let step = ddp(&[400, 300, 300, 80]);
    let truth = step.truth();
    let closed = job.run(&[step], 350);
    let (mut tenths, mut last_step, mut number) = (0, None, 0);
    let mut windows = 0;
    for rows in &closed {
        assert_eq!(rows.iter().map(|row| row.rank).collect::<Vec<_>>(), [0, 1]);
        if rows[0].flags & flag::TENTH == 0 {
            assert_eq!((rows[0].window, rows[0].steps, tenths), (windows, 100, 10));
            assert_eq!(Some(rows[0].last_step), last_step, "the last tenth ends with its window");
            (windows, tenths) = (windows + 1, 0);
            continue;
        }
        for row in rows {
            assert_eq!((row.flags, row.window, row.steps), (flag::TENTH, number, 10));
            assert_eq!((row.wall, row.own), (truth.wall, truth.own), "{row:?}");
            assert!(last_step.is_none_or(|last| row.first_step == last + 1));
        }
        last_step = Some(rows[0].last_step);
        (tenths, number) = (tenths + 1, number + 1);
    }
    assert!(windows >= 2 && tenths > 0, "{windows} windows, {tenths} tenths of the next");
}
