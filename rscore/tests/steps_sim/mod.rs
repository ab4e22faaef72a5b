//! Jobs that emit the events real ones emit, with known truth.
#![allow(dead_code)]

use rscore::steps::{Config, Pipeline};
use rscore::window::RankWindow;
use rscore::wire::{what, Event};

/// A seeded generator (PCG-like); tests must repeat.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let x = self.0 ^ (self.0 >> 31);
        x.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (x >> 29)
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.next() >> 33) as usize) % n
    }
}

/// One collective of a step.
#[derive(Clone, Debug)]
pub struct Call {
    /// Compute of the application thread before it issues this one, ns.
    pub before_ns: u64,
    pub function: u8,
    pub count: u64,
    pub element: u64,
    /// Time it takes once all ranks are in it, ns.
    pub transfer_ns: u64,
    pub group: u64,
}

pub fn all_reduce(count: u64, before_us: u64, transfer_ns: u64) -> Call {
    Call { before_ns: before_us * 1000, function: 1, count, element: 4, transfer_ns, group: 0 }
}

/// One step: the calls, then the application waits for all of them and goes on.
#[derive(Clone, Debug)]
pub struct Step {
    pub collectives: Vec<Call>,
    /// Compute after the last collective ended (optimizer), ns.
    pub after_ns: u64,
}

/// What a noise-free rank must show, ns per step.
#[derive(Clone, Copy, Debug)]
pub struct Truth {
    pub wall: f64,
    pub own: f64,
    pub collectives: f64,
    pub bytes: f64,
}

impl Step {
    pub fn with(mut self, call: Call) -> Step {
        self.collectives.push(call);
        self
    }

    /// Runs alone on two workers in a loop and measures with a grid, not with the code under
    /// test.
    pub fn truth(&self) -> Truth {
        let spans = self.spans(2);
        let wall = spans.iter().map(|s| s.1).max().unwrap_or(0) + self.after_ns;
        let mut busy = 0;
        let mut points: Vec<u64> = spans.iter().flat_map(|s| [s.0, s.1]).collect();
        points.sort_unstable();
        for pair in points.windows(2) {
            if spans.iter().any(|s| s.0 <= pair[0] && s.1 >= pair[1]) {
                busy += pair[1] - pair[0];
            }
        }
        Truth {
            wall: wall as f64,
            own: (wall - busy) as f64,
            collectives: self.collectives.len() as f64,
            bytes: self.collectives.iter().map(|c| c.count * c.element).sum::<u64>() as f64,
        }
    }

    /// (start, end) of every collective of a rank that waits for nobody, ns from the step's
    /// begin.
    fn spans(&self, workers: usize) -> Vec<(u64, u64)> {
        let mut free = vec![0u64; workers];
        let mut now = 0;
        self.collectives
            .iter()
            .map(|call| {
                now += call.before_ns;
                let worker = (0..workers).min_by_key(|&w| free[w]).unwrap();
                let start = now.max(free[worker]);
                free[worker] = start + call.transfer_ns;
                (start, free[worker])
            })
            .collect()
    }
}

/// Backward with buckets of the given sizes that overlap each other.
pub fn ddp(counts: &[u64]) -> Step {
    let mut collectives: Vec<Call> = counts
        .iter()
        .enumerate()
        // The second ends before the first: out of order.
        .map(|(n, &count)| all_reduce(count, 4000, if n == 0 { 9_000_000 } else { 2_500_000 }))
        .collect();
    collectives[0].before_ns = 60_000_000;
    Step { collectives, after_ns: 7_000_000 }
}

/// Buckets one behind another, with short gaps.
pub fn ddp_sequential(counts: &[u64]) -> Step {
    let mut collectives: Vec<Call> =
        counts.iter().map(|&count| all_reduce(count, 3000, 2_000_000)).collect();
    collectives[0].before_ns = 60_000_000;
    Step { collectives, after_ns: 7_000_000 }
}

/// Sharded data parallel: all-gathers forward, all-gather and reduce-scatter backward.
pub fn fsdp(layers: usize) -> Step {
    let gather = Call { function: 5, ..all_reduce(1000, 1000, 700_000) };
    let scatter = Call { function: 4, ..all_reduce(1000, 2000, 600_000) };
    let mut collectives = vec![gather.clone(); layers];
    for _ in 0..layers {
        collectives.push(gather.clone());
        collectives.push(scatter.clone());
    }
    Step { collectives, after_ns: 9_000_000 }
}

fn config() -> Config {
    Config { max_processes: 64, ..Config::default() }
}

/// A synchronous gloo job on one node.
pub struct Gloo {
    pub pipeline: Pipeline,
    pub skip_collectives: usize,
    /// (rank, factor) on its compute.
    pub slow: Option<(usize, f64)>,
    pub drop_every: Option<u64>,
    pub assign: bool,
    /// How late a worker begins after it took a work from the queue, ns at most.
    pub late_ns: usize,
    random: Random,
    ranks: usize,
    workers: usize,
    now: u64,
    work: u64,
    emitted: u64,
    lost: u64,
}

impl Gloo {
    pub fn new(ranks: usize, workers: usize) -> Gloo {
        Gloo {
            pipeline: Pipeline::new(config()),
            skip_collectives: 0,
            slow: None,
            drop_every: None,
            assign: true,
            late_ns: 0,
            random: Random::new(11),
            ranks,
            workers,
            now: 1_000_000_000_000,
            work: 0,
            emitted: 0,
            lost: 0,
        }
    }

    pub fn pid(&self, rank: usize) -> u32 {
        1000 + rank as u32
    }

    /// Runs the script `times` over; returns the windows that closed, and lets the rest settle.
    pub fn run(&mut self, script: &[Step], times: usize) -> Vec<Vec<RankWindow>> {
        let mut windows = Vec::new();
        if self.assign {
            for rank in 0..self.ranks {
                let world = self.ranks as u32;
                assert!(self.pipeline.assign(self.pid(rank), 1, 77, rank as u32, world, 5));
            }
        }
        for _ in 0..times {
            for step in script {
                self.step(step);
                self.tick(0);
                windows.extend(self.pipeline.take_windows());
            }
        }
        windows.extend(self.settle());
        windows
    }

    /// Lets the grace time of a window pass.
    pub fn settle(&mut self) -> Vec<Vec<RankWindow>> {
        self.tick(2_000_000_000);
        self.pipeline.take_windows()
    }

    fn tick(&mut self, later: u64) {
        let now = self.now + later;
        self.pipeline.tick(now, now + 1_700_000_000_000_000_000, self.lost);
    }

    /// All ranks enter each collective; it ends for all when the last has been in it for the
    /// transfer time.
    fn step(&mut self, step: &Step) {
        let n = step.collectives.len();
        let mut events: Vec<Event> = Vec::new();
        let factor = |rank: usize| match self.slow {
            Some((slow, factor)) if slow == rank => factor,
            _ => 1.0,
        };
        let mut issue = vec![self.now; self.ranks];
        let mut free = vec![vec![(self.now, 0usize); self.workers]; self.ranks];
        let mut ends = vec![0u64; n];
        for (index, call) in step.collectives.iter().enumerate() {
            let mut starts = Vec::new();
            for rank in 0..self.ranks {
                issue[rank] += (call.before_ns as f64 * factor(rank)) as u64;
                let worker = (0..self.workers).min_by_key(|&w| free[rank][w].0).unwrap();
                let late = self.random.below(self.late_ns + 1) as u64;
                starts.push((issue[rank].max(free[rank][worker].0) + late, worker));
            }
            let end = starts.iter().map(|s| s.0).max().unwrap() + call.transfer_ns;
            ends[index] = end;
            for rank in 0..self.ranks {
                let (start, worker) = starts[rank];
                free[rank][worker].0 = end;
                if self.skip_collectives > 0 {
                    continue;
                }
                let (tgid, tid) = (self.pid(rank), self.pid(rank) * 16);
                let context = 0xc000 + rank as u64 * 512 + call.group;
                let base = Event { tgid, tid, datatype: 255, reduction: 255, ..Event::default() };
                let worker_tid = tid + 1 + worker as u32;
                let run = Event { tid: worker_tid, ..base };
                events.push(Event {
                    time_ns: start,
                    what: what::DETAIL,
                    function: call.function,
                    count: call.count,
                    id: call.element,
                    comm: context,
                    peer: (self.work + index as u64) as i32,
                    aux: rank as u64 | (self.ranks as u64) << 32,
                    ..run
                });
                events.push(Event { time_ns: end, what: what::DONE, ..run });
            }
            self.skip_collectives = self.skip_collectives.saturating_sub(1);
        }
        self.work += n as u64;
        // Stable: events of one thread keep their order. Ends come before starts at one time.
        events.sort_by_key(|e| (e.time_ns, e.what != what::DONE));
        for event in &events {
            self.emitted += 1;
            if self.drop_every.is_some_and(|every| self.emitted % every == 0) {
                self.lost += 1;
                continue;
            }
            self.pipeline.on_event(event);
        }
        let end = ends.iter().copied().max().unwrap_or(self.now);
        self.now = end + step.after_ns;
    }
}

/// Host calls of an NCCL job.
pub struct Nccl {
    pub pipeline: Pipeline,
    ranks: usize,
}

impl Nccl {
    pub fn new(ranks: usize) -> Nccl {
        Nccl { pipeline: Pipeline::new(config()), ranks }
    }

    /// `calls(rank)`: (communicator, call) of one step of 50 ms.
    pub fn run(
        &mut self,
        steps: u64,
        calls: impl Fn(u32) -> Vec<(u64, Call)>,
    ) -> Vec<Vec<RankWindow>> {
        for rank in 0..self.ranks as u32 {
            assert!(self.pipeline.assign(1000 + rank, 1, 78, rank, self.ranks as u32, 5));
        }
        let mut windows = Vec::new();
        let script: Vec<_> = (0..self.ranks as u32).map(calls).collect();
        let mut now = 1_000_000_000_000u64;
        for _ in 0..steps {
            for (rank, calls) in script.iter().enumerate() {
                for (place, (comm, call)) in calls.iter().enumerate() {
                    self.pipeline.on_event(&Event {
                        time_ns: now + 20_000_000 + 100_000 * place as u64,
                        tgid: 1000 + rank as u32,
                        tid: 1000 + rank as u32,
                        what: what::ENTER,
                        function: call.function,
                        datatype: 7,
                        reduction: 0,
                        count: call.count,
                        comm: *comm,
                        ..Event::default()
                    });
                }
            }
            now += 50_000_000;
            self.pipeline.tick(now, now, 0);
            windows.extend(self.pipeline.take_windows());
        }
        self.pipeline.tick(now + 2_000_000_000, now, 0);
        windows.extend(self.pipeline.take_windows());
        windows
    }
}
