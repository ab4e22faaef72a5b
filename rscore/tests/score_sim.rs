//! Simulated jobs through the scorer: who is named, who is not, and how soon.
#![allow(clippy::print_stdout)]

use rscore::score::{Basis, Config, Finding, Kind, Scorer, State, Update};
use rscore::window::{flag, source, RankWindow};

/// Seeded generator with the distributions that matter.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678);
        for _ in 0..4 {
            random.uniform();
        }
        random
    }
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + 1e-17
    }
    fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
    fn student3(&mut self) -> f64 {
        let chi: f64 = (0..3).map(|_| self.normal().powi(2)).sum();
        self.normal() / (chi / 3.0).sqrt()
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Noise {
    Gaussian,
    Student,
    /// Steps resemble their neighbours (0.7), and so do windows.
    Correlated,
    /// Everybody at once, 30 % in one window of ten.
    Bursts,
    /// One step in twenty takes twice as long.
    Outliers,
    /// A shared box: windows of a rank wander by 2 %, heavy tails, bursts and outliers.
    SharedBox,
}

const NOISES: [Noise; 6] = [
    Noise::Gaussian,
    Noise::Student,
    Noise::Correlated,
    Noise::Bursts,
    Noise::Outliers,
    Noise::SharedBox,
];

struct Job {
    random: Random,
    noise: Noise,
    natural: Vec<f64>,
    state: Vec<f64>,
    window: u64,
    source: u32,
    /// (rank, factor).
    slow: Option<(usize, f64)>,
    all: f64,
    class_of: fn(usize) -> u32,
    signature_of: fn(usize) -> u64,
    class_factor: fn(usize) -> f64,
}

impl Job {
    fn new(ranks: usize, noise: Noise, seed: u64) -> Job {
        let mut random = Random::new(seed);
        let natural = (0..ranks).map(|_| (0.03 * random.normal()).exp()).collect();
        Job {
            random,
            noise,
            natural,
            state: vec![0.0; ranks],
            window: 0,
            source: source::GLOO,
            slow: None,
            all: 1.0,
            class_of: |_| 1,
            signature_of: |_| 9,
            class_factor: |_| 1.0,
        }
    }

    /// 10 % trimmed mean of 50 steps of 5 % noise, as `window` makes it.
    fn own(&mut self, rank: usize, burst: f64) -> (f64, f64) {
        let mut steps = [0.0f64; 50];
        let shared = self.noise == Noise::SharedBox;
        if self.noise == Noise::Correlated || shared {
            let (keep, size) = if shared { (0.3, 0.02) } else { (0.7, 0.01) };
            let fresh = self.random.normal() * size * f64::sqrt(1.0 - keep * keep);
            self.state[rank] = keep * self.state[rank] + fresh;
        }
        let mut inner = 0.0;
        for step in &mut steps {
            let deviate = match self.noise {
                Noise::Student | Noise::SharedBox => self.random.student3() / 3f64.sqrt(),
                Noise::Correlated => {
                    inner = 0.7 * inner + self.random.normal() * (1.0f64 - 0.49).sqrt();
                    inner
                }
                _ => self.random.normal(),
            };
            let outlier = matches!(self.noise, Noise::Outliers | Noise::SharedBox)
                && self.random.uniform() < 0.05;
            let value = (1.0 + 0.05 * deviate).max(0.2) * if outlier { 2.0 } else { 1.0 };
            *step = value;
        }
        steps.sort_by(f64::total_cmp);
        let kept = &steps[5..45];
        let mean = kept.iter().sum::<f64>() / 40.0;
        let clamp = |v: f64| v.clamp(kept[0], kept[39]);
        let center = steps.iter().map(|&v| clamp(v)).sum::<f64>() / 50.0;
        let squares = steps.iter().map(|&v| (clamp(v) - center).powi(2)).sum::<f64>();
        let slow = self.slow.filter(|s| s.0 == rank).map_or(1.0, |s| s.1);
        let scale = 1e8
            * self.natural[rank]
            * self.state[rank].exp()
            * slow
            * burst
            * self.all
            * (self.class_factor)(rank);
        (mean * scale, (squares / (40.0 * 39.0)).sqrt() * scale)
    }

    fn rows(&mut self) -> Vec<RankWindow> {
        let bursty = matches!(self.noise, Noise::Bursts | Noise::SharedBox);
        let burst = if bursty && self.random.uniform() < 0.1 { 1.3 } else { 1.0 };
        let n = self.natural.len();
        let own: Vec<(f64, f64)> = (0..n).map(|rank| self.own(rank, burst)).collect();
        let wall = own.iter().map(|o| o.0).fold(0.0, f64::max) + 5e6;
        let window = self.window;
        self.window += 1;
        (0..n)
            .map(|rank| RankWindow {
                job: 5,
                signature: (self.signature_of)(rank),
                class_id: (self.class_of)(rank),
                window,
                time_ns: 1_000_000 * (window + 1),
                wall,
                own: own[rank].0,
                own_se: own[rank].1,
                wait: (wall - own[rank].0 - 5e6).max(0.0),
                comm: 5e6,
                collectives: 4.0,
                bytes: 100.0,
                rank: rank as u32,
                world_size: n as u32,
                steps: 50,
                source: self.source,
                ..RankWindow::default()
            })
            .collect()
    }
}

fn scorer() -> Scorer {
    Scorer::new(Config::default()).unwrap()
}

fn confirmed(update: &Update) -> Vec<&Finding> {
    update.findings.iter().filter(|f| f.state == State::Confirmed).collect()
}

#[test]
fn healthy_jobs_name_nobody() {
    let (mut total, mut failures) = (0, Vec::new());
    for noise in NOISES {
        for (ranks, jobs, windows) in [(4, 60, 60), (8, 30, 60), (64, 3, 60)] {
            let mut named = Vec::new();
            for seed in 0..jobs {
                let mut job = Job::new(ranks, noise, seed * 31 + ranks as u64);
                // Nothing of a crowded machine is in device times.
                if seed % 2 == 1 && noise != Noise::SharedBox {
                    job.source = source::DEVICE_RING;
                }
                let mut scorer = scorer();
                for _ in 0..windows {
                    let update = scorer.update(&job.rows());
                    named.extend(confirmed(&update).iter().map(|f| (seed, (*f).clone())));
                    assert_eq!(update.refused_rows, 0);
                    total += ranks;
                }
            }
            let mut jobs: Vec<_> = named.iter().map(|n| (n.0, n.1.kind, n.1.rank)).collect();
            jobs.dedup();
            println!("{noise:?} {ranks} ranks: {} confirmed windows {jobs:?}", named.len());
            failures.extend(named);
        }
    }
    println!("{total} healthy rank-windows, {} confirmed windows", failures.len());
    assert!(total >= 100_000);
    assert!(failures.is_empty(), "{:#?}", failures[0]);
}

/// Windows until the slow rank is confirmed, over many jobs.
fn delays(ranks: usize, noise: Noise, factor: f64, jobs: u64, healthy: usize) -> Vec<u64> {
    (0..jobs)
        .map(|seed| {
            let mut job = Job::new(ranks, noise, 7000 + seed);
            let culprit = seed as usize % ranks;
            // Naturally faster by as much, it would cost nobody anything.
            job.natural[culprit] = job.natural[culprit].max(0.99);
            let mut scorer = scorer();
            for _ in 0..healthy {
                scorer.update(&job.rows());
            }
            job.slow = Some((culprit, factor));
            for delay in 1..=20 {
                let update = scorer.update(&job.rows());
                for finding in confirmed(&update) {
                    assert_eq!(finding.rank, Some(culprit as u32), "{noise:?} {finding:#?}");
                }
                if !confirmed(&update).is_empty() {
                    return delay;
                }
            }
            99
        })
        .collect()
}

#[test]
fn a_rank_that_becomes_a_fifth_slower_is_confirmed_soon() {
    for noise in NOISES {
        for ranks in [4, 8, 64] {
            for healthy in [4, 10] {
                let jobs = if ranks == 64 { 10 } else { 40 };
                let mut found = delays(ranks, noise, 1.2, jobs, healthy);
                found.sort_unstable();
                let (median, worst) = (found[found.len() / 2], found[found.len() - 1]);
                let most = found[found.len() * 9 / 10];
                println!("{noise:?} {ranks} ranks, slow after {healthy}: {median}, worst {worst}");
                // Where windows resemble each other, four healthy ones of four ranks tell little.
                let alike = matches!(noise, Noise::Correlated | Noise::SharedBox);
                let soon = match alike && ranks == 4 {
                    true => median <= 5 && most <= 20,
                    false => median <= 3 && most <= 10 && worst <= 20,
                };
                assert!(soon, "{noise:?} {ranks} {healthy}: {found:?}");
            }
        }
    }
}

#[test]
fn two_slow_ranks_of_four_are_both_named_and_stay_so() {
    for noise in NOISES {
        let mut late = Vec::new();
        for seed in 0..20 {
            let mut job = Job::new(4, noise, 9000 + seed);
            // One naturally fast would be no slower than the others.
            (1..4).step_by(2).for_each(|rank| job.natural[rank] = job.natural[rank].max(0.99));
            let mut scorer = scorer();
            for _ in 0..6 {
                scorer.update(&job.rows());
            }
            job.natural[1] *= 1.2;
            job.natural[3] *= 1.2;
            let named = |update: &Update| -> Vec<Option<u32>> {
                let mut ranks: Vec<_> = confirmed(update).iter().map(|f| f.rank).collect();
                ranks.sort_unstable();
                ranks
            };
            let mut delay = 0;
            for window in 1..=30 {
                let ranks = named(&scorer.update(&job.rows()));
                // Half of the job slow may also be the job (None); the other two ranks are not.
                assert!(ranks.iter().all(|r| !matches!(r, Some(0 | 2))), "{noise:?} {ranks:?}");
                if !(ranks.contains(&Some(1)) && ranks.contains(&Some(3))) {
                    delay = window;
                }
            }
            late.push(delay);
        }
        late.sort_unstable();
        println!("{noise:?}: both of two named for good after {late:?} windows");
        // Where windows resemble each other, six healthy ones of four ranks tell little of noise.
        let alike = matches!(noise, Noise::Correlated | Noise::SharedBox);
        let soon = if alike { late[5] <= 16 } else { late[10] <= 4 && late[12] <= 8 };
        assert!(soon, "{noise:?} {late:?}");
    }
}

#[test]
fn five_percent_of_sixty_four_are_found_in_gaussian_noise() {
    let mut found = delays(64, Noise::Gaussian, 1.05, 20, 12);
    found.sort_unstable();
    println!("5 % of 64 ranks: median {}, worst {}", found[10], found[19]);
    assert!(found[10] <= 5 && found[19] <= 10, "{found:?}");
}

#[test]
fn a_finding_has_its_start_its_cost_and_its_end() {
    let mut job = Job::new(4, Noise::Gaussian, 3);
    let mut scorer = scorer();
    for _ in 0..10 {
        scorer.update(&job.rows());
    }
    job.slow = Some((2, 1.2));
    let mut last = None;
    for _ in 0..10 {
        let update = scorer.update(&job.rows());
        last = confirmed(&update).first().map(|f| (*f).clone());
    }
    let finding = last.expect("confirmed");
    assert_eq!((finding.kind, finding.basis), (Kind::Straggler, Basis::Peers));
    assert_eq!((finding.rank, finding.peers), (Some(2), 3));
    assert_eq!(finding.since_window, 10);
    assert_eq!(finding.since_time_ns, 11_000_000);
    let others = (0..4).filter(|&r| r != 2).map(|r| job.natural[r]).fold(0.0, f64::max);
    let truth = 1e8 * (1.2 * job.natural[2] - others);
    let (cost, low, high) =
        (finding.cost_ns.unwrap(), finding.cost_low_ns.unwrap(), finding.cost_high_ns.unwrap());
    assert!((cost / truth - 1.0).abs() < 0.15, "{cost} {truth}");
    assert!(low < truth && truth < high, "{low} {truth} {high}");
    assert!(finding.confidence > 0.99);
    job.slow = None;
    let mut states = Vec::new();
    for _ in 0..6 {
        let update = scorer.update(&job.rows());
        states.extend(update.findings.iter().filter(|f| f.rank == Some(2)).map(|f| f.state));
    }
    let recovering = State::Recovering;
    assert_eq!(states, vec![recovering, recovering, State::Cleared]);
    // It comes again, and is found again under a new id.
    job.slow = Some((2, 1.2));
    let mut again = None;
    for _ in 0..5 {
        let update = scorer.update(&job.rows());
        again = again.or(confirmed(&update).first().map(|f| f.id));
    }
    assert!(again.expect("found again") > finding.id);
}

#[test]
fn slow_from_the_first_window_is_a_straggler_if_it_is_gross() {
    for ranks in [4, 8, 64] {
        let mut job = Job::new(ranks, Noise::Gaussian, 11);
        job.natural[1] = 1.0;
        job.slow = Some((1, 1.25));
        let mut scorer = scorer();
        let mut at = None;
        for window in 0..6 {
            let update = scorer.update(&job.rows());
            if let Some(finding) = confirmed(&update).first() {
                assert_eq!((finding.rank, finding.since_window), (Some(1), 0));
                at = at.or(Some(window));
            }
        }
        assert!(at.is_some_and(|window| window <= 3), "{ranks} {at:?}");
    }
}

#[test]
fn everybody_slower_is_the_job_and_no_rank() {
    for ranks in [2, 4, 8] {
        let mut job = Job::new(ranks, Noise::Gaussian, 12);
        let mut scorer = scorer();
        for _ in 0..15 {
            scorer.update(&job.rows());
        }
        job.all = 1.2;
        let mut kinds = Vec::new();
        for _ in 0..8 {
            let update = scorer.update(&job.rows());
            kinds.extend(confirmed(&update).iter().map(|f| f.kind));
        }
        assert!(!kinds.is_empty(), "{ranks}");
        assert!(kinds.iter().all(|kind| *kind == Kind::JobWide), "{ranks} {kinds:?}");
    }
}

#[test]
fn a_slow_class_is_imbalance_and_a_slow_stage_uneven_work() {
    let mut job = Job::new(16, Noise::Gaussian, 13);
    job.class_of = |rank| u32::from(rank >= 8);
    job.class_factor = |rank| if rank >= 8 { 1.4 } else { 1.0 };
    let mut scorer = scorer();
    let mut last = Update::default();
    for _ in 0..6 {
        last = scorer.update(&job.rows());
    }
    let found: Vec<_> = confirmed(&last).iter().map(|f| (f.kind, f.class_id)).collect();
    assert_eq!(found, vec![(Kind::Imbalance, Some(1))]);
    assert!((confirmed(&last)[0].slowdown - 0.4).abs() < 0.06);

    let mut job = Job::new(16, Noise::Gaussian, 14);
    job.signature_of = |rank| 100 + rank as u64 / 8;
    job.class_factor = |rank| if rank >= 8 { 1.6 } else { 1.0 };
    let mut scorer = self::scorer();
    for _ in 0..6 {
        last = scorer.update(&job.rows());
    }
    let found: Vec<_> = confirmed(&last).iter().map(|f| (f.kind, f.signature)).collect();
    assert_eq!(found, vec![(Kind::UnevenWork, Some(101))]);
    // A slow rank of the slow stage is still found among its own.
    job.slow = Some((12, 1.2));
    for _ in 0..4 {
        last = scorer.update(&job.rows());
    }
    assert!(confirmed(&last).iter().any(|f| f.rank == Some(12)));
}

#[test]
fn two_ranks_have_only_their_past() {
    let mut job = Job::new(2, Noise::Gaussian, 15);
    let mut scorer = scorer();
    let first = scorer.update(&job.rows());
    assert_eq!(first.abstentions.len(), 2);
    assert_eq!(first.abstentions[0].reason, "learning");
    for _ in 0..14 {
        scorer.update(&job.rows());
    }
    job.slow = Some((1, 1.25));
    let mut last = Update::default();
    for _ in 0..5 {
        last = scorer.update(&job.rows());
    }
    let found = confirmed(&last);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!((found[0].rank, found[0].basis), (Some(1), Basis::History));
    assert!(found[0].peers_own_ns.is_nan());
}

#[test]
fn bad_rows_are_refused_alone() {
    let mut job = Job::new(6, Noise::Gaussian, 16);
    let (mut clean, mut dirty) = (scorer(), scorer());
    for window in 0..12 {
        if window == 6 {
            job.slow = Some((3, 1.2));
        }
        let rows = job.rows();
        let mut bad = rows.clone();
        type Spoil = fn(&mut RankWindow);
        let spoils: [Spoil; 10] = [
            |r| r.own = f64::NAN,
            |r| r.own = f64::INFINITY,
            |r| r.own = 0.0,
            |r| r.own = -1.0,
            |r| r.wall = f64::NAN,
            |r| r.wait = f64::NEG_INFINITY,
            |r| r.own_se = -1.0,
            |r| r.rank = 6,
            |r| r.window += 1_000_000,
            |r| r.steps = 0,
        ];
        for spoil in spoils {
            let mut row = rows[1];
            spoil(&mut row);
            bad.push(row);
        }
        bad.push(rows[2]);
        let (a, b) = (clean.update(&rows), dirty.update(&bad));
        assert_eq!(b.refused_rows, 11);
        assert_eq!((&a.findings, &a.abstentions), (&b.findings, &b.abstentions));
        // The same window once more, and an older one, change nothing.
        assert_eq!(dirty.update(&rows).refused_rows, 6);
        assert!(dirty.update(&rows).findings.is_empty());
    }
    assert_eq!(dirty.update(&[]), Update::default());
}

#[test]
fn what_cannot_be_judged_says_why() {
    let mut job = Job::new(5, Noise::Gaussian, 17);
    let mut scorer = scorer();
    let learning = scorer.update(&job.rows());
    assert!(learning.abstentions.iter().all(|a| a.reason == "learning"));
    let mut rows = job.rows();
    rows[0].flags = flag::OWN_UNKNOWN;
    (rows[0].own, rows[0].wait, rows[0].comm) = (f64::NAN, f64::NAN, f64::NAN);
    rows[1].flags = flag::EVENTS_LOST;
    rows[2].steps = 20;
    let update = scorer.update(&rows);
    let reasons: Vec<_> = update.abstentions.iter().map(|a| (a.rank, a.reason)).collect();
    assert!(reasons.contains(&(0, "host probes only: no device time")), "{reasons:?}");
    assert!(reasons.contains(&(1, "events lost in this window")));
    assert!(reasons.contains(&(2, "steps of the ranks disagree")));
    // Slices of time have a share and no milliseconds.
    let mut job = Job::new(5, Noise::Gaussian, 18);
    job.slow = Some((4, 1.4));
    let mut last = Update::default();
    let mut scorer = self::scorer();
    for _ in 0..6 {
        let mut rows = job.rows();
        rows.iter_mut().for_each(|row| (row.flags, row.steps) = (flag::STEPS_NOT_INFERRED, 0));
        last = scorer.update(&rows);
    }
    let found = confirmed(&last);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].rank, found[0].cost_ns), (Some(4), None));
    assert!(found[0].cost_fraction > 0.2);
}

#[test]
fn bad_configurations_are_named() {
    for (config, name) in [
        (Config { false_alarms_per_million: 0.0, ..Config::default() }, "false_alarms_per_million"),
        (Config { min_slowdown: f64::NAN, ..Config::default() }, "min_slowdown"),
        (Config { confirm_windows: 1, ..Config::default() }, "confirm_windows"),
        (Config { history_windows: 0, ..Config::default() }, "history_windows"),
    ] {
        assert!(Scorer::new(config).unwrap_err().starts_with(name));
    }
}
