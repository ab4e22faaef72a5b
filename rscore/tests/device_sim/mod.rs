//! A discrete-event simulation of eight ranks on eight devices: what their rings would record,
//! with planned times. Streams are in order, a collective ends when its last rank has been in it
//! for the transfer time, a receive when its message is there; nothing else couples the ranks.
#![allow(dead_code)]

pub mod patterns;

use std::collections::{HashMap, VecDeque};

use rscore::ring::{flag, Record};
use rscore::steps::{Config, Pipeline};
use rscore::window::RankWindow;
use rscore::wire::{function, what, Event};

pub const RANKS: usize = 8;

/// A part of the step that can be slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Data,
    Forward,
    Backward,
    Optimizer,
}

pub const PHASES: [Phase; 4] = [Phase::Data, Phase::Forward, Phase::Backward, Phase::Optimizer];

/// A message to or from `peer` (a rank of the job); of no bytes: there is none.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub send: bool,
    pub peer: usize,
    pub bytes: u64,
}

/// What a rank does next.
#[derive(Clone, Debug)]
pub enum Op {
    /// Computes.
    Work(Phase, u64),
    /// Puts a collective on `stream`: communicator, function, bytes, transfer time.
    Collective { stream: usize, comm: u64, function: u8, bytes: u64, transfer_ns: u64 },
    /// Puts one batch of messages on `stream`.
    Messages { stream: usize, comm: u64, messages: Vec<Message>, transfer_ns: u64 },
    /// Waits for what is on `stream`, but for the last `leave`.
    Wait { stream: usize, leave: usize },
}

/// A seeded generator.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }
    pub fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) >> 11) as f64 / (1u64 << 53) as f64 + 1e-17
    }
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
    pub fn below(&mut self, n: usize) -> usize {
        ((self.uniform() * n as f64) as usize).min(n - 1)
    }
}

#[derive(Clone, Debug)]
enum What {
    Collective { function: u8, bytes: u64, sequence: u32 },
    Messages(Vec<(Message, u32)>),
}

/// One kernel of one rank.
#[derive(Clone, Debug)]
struct Kernel {
    rank: usize,
    comm: u64,
    what: What,
    transfer_ns: u64,
    launch_ns: u64,
    start_ns: Option<u64>,
    end_ns: Option<u64>,
    order: u64,
}

type Script = Box<dyn FnMut(usize, &mut Random) -> Vec<Op>>;

/// Who is slow, and in what: by a share of its work of a whole step.
#[derive(Clone, Copy, Debug)]
pub struct Slow {
    pub rank: usize,
    pub phase: Phase,
    pub share: f64,
}

/// What the job does beside computing; all off by default.
#[derive(Clone, Debug, Default)]
pub struct Quirks {
    /// The rings of these ranks do not exist.
    pub without_ring: Vec<usize>,
    /// A function that the library does not report.
    pub hidden_function: Option<u8>,
    /// One record in so many is lost.
    pub lose_every: Option<u64>,
    /// Bits that every record has too.
    pub flags: u16,
    /// No host calls are seen: graph replays, or no probes.
    pub no_host_calls: bool,
}

pub struct Sim {
    pub pipeline: Pipeline,
    pub slow: Option<Slow>,
    pub quirks: Quirks,
    /// Ranks of each communicator.
    groups: HashMap<u64, usize>,
    script: Script,
    random: Random,
    natural: Vec<f64>,
    offset: Vec<i64>,
    /// Device time of each rank.
    time: Vec<u64>,
    host: Vec<u64>,
    stream_end: Vec<Vec<u64>>,
    order: Vec<u64>,
    sequences: HashMap<(usize, u64, u8, usize), u32>,
    emitted: u64,
}

const WINDOW_STEPS: usize = 100;
const STREAMS: usize = 3;
/// How far the host runs ahead of the device, ns.
const LEAD_NS: u64 = 2_000_000;
const BEGIN_NS: u64 = 1_000_000_000_000;

impl Sim {
    /// `groups`: how many ranks each communicator has. `script`: what a rank does in a step.
    pub fn new(seed: u64, groups: HashMap<u64, usize>, script: Script) -> Sim {
        let mut random = Random::new(seed);
        let natural = (0..RANKS).map(|_| 1.0 + 0.01 * random.normal()).collect();
        let offset = (0..RANKS).map(|_| (4e6 * (random.uniform() - 0.5)) as i64).collect();
        Sim {
            pipeline: Pipeline::new(Config { window_steps: WINDOW_STEPS, ..Config::default() }),
            slow: None,
            quirks: Quirks::default(),
            groups,
            script,
            random,
            natural,
            offset,
            time: vec![BEGIN_NS; RANKS],
            host: vec![BEGIN_NS - LEAD_NS; RANKS],
            stream_end: vec![vec![0; STREAMS]; RANKS],
            order: vec![0; RANKS],
            sequences: HashMap::new(),
            emitted: 0,
        }
    }

    pub fn pid(rank: usize) -> u32 {
        100 + rank as u32
    }

    /// Announces the ranks and opens their rings.
    pub fn begin(&mut self) {
        for rank in 0..RANKS {
            let world = RANKS as u32;
            assert!(self.pipeline.assign(Sim::pid(rank), 1, 5, rank as u32, world, 9));
            if !self.quirks.without_ring.contains(&rank) {
                self.pipeline.ring_opened(Sim::pid(rank));
                self.pipeline.ring_mode(Sim::pid(rank), true);
            }
        }
    }

    /// One step of all ranks; the windows that it closed.
    pub fn step(&mut self) -> Vec<Vec<RankWindow>> {
        let programs = self.programs();
        let kernels = self.run(&programs);
        self.emit(&kernels);
        self.later(3_000_000)
    }

    /// Steps until `windows` windows have closed.
    pub fn windows(&mut self, windows: usize) -> Vec<Vec<RankWindow>> {
        let mut closed = Vec::new();
        for _ in 0..200 * windows {
            closed.extend(self.step());
            if closed.len() >= windows {
                break;
            }
        }
        closed
    }

    /// Lets time pass; the windows that it closed.
    pub fn later(&mut self, ns: u64) -> Vec<Vec<RankWindow>> {
        let now = *self.time.iter().max().unwrap_or(&BEGIN_NS) + ns;
        self.pipeline.tick(now, now, 0);
        self.pipeline.take_windows()
    }

    /// The scripts of all ranks with noise, natural differences and the slow rank in them.
    fn programs(&mut self) -> Vec<Vec<Op>> {
        (0..RANKS)
            .map(|rank| {
                let mut ops = (self.script)(rank, &mut self.random);
                let work = |ops: &[Op], phase: Option<Phase>| -> f64 {
                    let ns = |op: &Op| match op {
                        Op::Work(p, ns) if phase.is_none_or(|phase| phase == *p) => *ns,
                        _ => 0,
                    };
                    ops.iter().map(ns).sum::<u64>() as f64
                };
                let slow = self.slow.filter(|slow| slow.rank == rank);
                let extra = slow.map(|slow| {
                    let factor = 1.0 + slow.share * work(&ops, None) / work(&ops, Some(slow.phase));
                    (slow.phase, factor)
                });
                for op in &mut ops {
                    match op {
                        Op::Work(phase, ns) => {
                            let factor = extra.filter(|e| e.0 == *phase).map_or(1.0, |e| e.1);
                            let noise = 1.0 + 0.02 * self.random.normal();
                            *ns = (*ns as f64 * factor * noise * self.natural[rank]) as u64;
                        }
                        Op::Collective { transfer_ns, .. } | Op::Messages { transfer_ns, .. } => {
                            let noise = 1.0 + 0.05 * self.random.normal();
                            *transfer_ns = (*transfer_ns as f64 * noise.max(0.5)) as u64;
                        }
                        Op::Wait { .. } => {}
                    }
                }
                ops
            })
            .collect()
    }

    fn next_sequence(&mut self, rank: usize, comm: u64, function: u8, peer: usize) -> u32 {
        let sequence = self.sequences.entry((rank, comm, function, peer)).or_default();
        *sequence += 1;
        *sequence - 1
    }

    fn launch(&mut self, rank: usize, op: &Op, launch_ns: u64) -> Kernel {
        let order = self.order[rank];
        let (comm, transfer_ns, what) = match op {
            Op::Collective { comm, function, bytes, transfer_ns, .. } => {
                let sequence = self.next_sequence(rank, *comm, *function, 0);
                let what = What::Collective { function: *function, bytes: *bytes, sequence };
                (*comm, *transfer_ns, what)
            }
            Op::Messages { comm, messages, transfer_ns, .. } => {
                let there = messages.iter().filter(|message| message.bytes > 0);
                let list: Vec<_> = there
                    .map(|message| {
                        let function = if message.send { function::SEND } else { function::RECV };
                        (*message, self.next_sequence(rank, *comm, function, message.peer))
                    })
                    .collect();
                (*comm, *transfer_ns, What::Messages(list))
            }
            Op::Work(..) | Op::Wait { .. } => unreachable!("launches nothing"),
        };
        self.order[rank] += match &what {
            What::Collective { function, .. } if self.quirks.hidden_function == Some(*function) => {
                0
            }
            What::Collective { .. } => 1,
            What::Messages(list) => list.len() as u64,
        };
        Kernel { rank, comm, what, transfer_ns, launch_ns, start_ns: None, end_ns: None, order }
    }

    /// Runs the programs of one step to their ends.
    fn run(&mut self, programs: &[Vec<Op>]) -> Vec<Kernel> {
        let mut kernels: Vec<Kernel> = Vec::new();
        let mut launched = vec![vec![Vec::<usize>::new(); STREAMS]; RANKS];
        let mut queues = vec![vec![VecDeque::<usize>::new(); STREAMS]; RANKS];
        let mut sent = HashMap::new();
        let mut next = [0usize; RANKS];
        loop {
            let mut progress = false;
            for rank in 0..RANKS {
                while let Some(op) = programs[rank].get(next[rank]) {
                    match op {
                        Op::Work(_, ns) => self.time[rank] += ns,
                        Op::Collective { stream, .. } | Op::Messages { stream, .. } => {
                            let kernel = self.launch(rank, op, self.time[rank]);
                            launched[rank][*stream].push(kernels.len());
                            queues[rank][*stream].push_back(kernels.len());
                            kernels.push(kernel);
                        }
                        Op::Wait { stream, leave } => {
                            let all = &launched[rank][*stream];
                            let of = &all[..all.len().saturating_sub(*leave)];
                            let ends: Option<Vec<u64>> =
                                of.iter().map(|&kernel| kernels[kernel].end_ns).collect();
                            let Some(ends) = ends else { break };
                            let last = ends.into_iter().max().unwrap_or(0);
                            self.time[rank] = self.time[rank].max(last);
                        }
                    }
                    next[rank] += 1;
                    progress = true;
                }
            }
            progress |= self.advance(&mut kernels, &mut queues, &mut sent);
            let done = (0..RANKS).all(|rank| next[rank] == programs[rank].len());
            if done && kernels.iter().all(|kernel| kernel.end_ns.is_some()) {
                return kernels;
            }
            assert!(progress, "the pattern deadlocks");
        }
    }

    /// Starts what is first on its stream, and ends what can end. `sent`: (communicator, from, to,
    /// sequence) -> when the message is there.
    fn advance(
        &mut self,
        kernels: &mut [Kernel],
        queues: &mut [Vec<VecDeque<usize>>],
        sent: &mut HashMap<(u64, usize, usize, u32), u64>,
    ) -> bool {
        // (communicator, function, sequence) -> ranks that are there, last start, transfer.
        let mut meetings: HashMap<(u64, u8, u32), (usize, u64, u64)> = HashMap::new();
        let streams = (0..RANKS).flat_map(|rank| (0..STREAMS).map(move |stream| (rank, stream)));
        let fronts: Vec<_> = streams
            .filter_map(|(rank, stream)| Some((rank, stream, *queues[rank][stream].front()?)))
            .collect();
        for &(rank, stream, front) in &fronts {
            let kernel = &mut kernels[front];
            let free = self.stream_end[rank][stream];
            let start = *kernel.start_ns.get_or_insert(kernel.launch_ns.max(free));
            match &kernel.what {
                What::Collective { function, sequence, .. } => {
                    let meeting = meetings.entry((kernel.comm, *function, *sequence)).or_default();
                    meeting.0 += 1;
                    meeting.1 = meeting.1.max(start);
                    meeting.2 = meeting.2.max(kernel.transfer_ns);
                }
                What::Messages(list) => {
                    for (message, sequence) in list.iter().filter(|(message, _)| message.send) {
                        let key = (kernel.comm, rank, message.peer, *sequence);
                        sent.insert(key, start + kernel.transfer_ns);
                    }
                }
            }
        }
        let mut progress = false;
        for (rank, stream, front) in fronts {
            let kernel = &mut kernels[front];
            let Some(start) = kernel.start_ns else { continue };
            kernel.end_ns = match &kernel.what {
                What::Collective { function, sequence, .. } => {
                    let meeting = meetings.get(&(kernel.comm, *function, *sequence));
                    let ranks = self.groups[&kernel.comm];
                    meeting.filter(|m| m.0 == ranks).map(|m| m.1 + m.2)
                }
                What::Messages(list) => {
                    let mut end = Some(start + kernel.transfer_ns);
                    for (message, sequence) in list.iter().filter(|(message, _)| !message.send) {
                        let key = (kernel.comm, message.peer, rank, *sequence);
                        end = end.zip(sent.get(&key)).map(|(end, there)| end.max(*there));
                    }
                    end
                }
            };
            if let Some(end) = kernel.end_ns {
                self.stream_end[rank][stream] = end;
                queues[rank][stream].pop_front();
                progress = true;
            }
        }
        progress
    }

    /// Hands the records of a step over: rank by rank, as a reader does, in the order of
    /// completion; the host's calls before them.
    fn emit(&mut self, kernels: &[Kernel]) {
        let mut records: Vec<Vec<Record>> = vec![Vec::new(); RANKS];
        for kernel in kernels {
            let (Some(start), Some(end)) = (kernel.start_ns, kernel.end_ns) else { continue };
            let rank = kernel.rank;
            let host = kernel.launch_ns.saturating_sub(LEAD_NS).max(self.host[rank] + 1000);
            self.host[rank] = host;
            let base = Record {
                communicator: kernel.comm,
                order: kernel.order,
                host_ns: host,
                start_ns: start.wrapping_add_signed(self.offset[rank]),
                stop_ns: end.wrapping_add_signed(self.offset[rank]),
                channels: 8,
                datatype: 7,
                peer: -1,
                flags: self.quirks.flags,
                ..Record::default()
            };
            match &kernel.what {
                What::Collective { function, bytes, sequence } => {
                    let (function, bytes, sequence) = (*function, *bytes, *sequence);
                    records[rank].push(Record { function, bytes, sequence, ..base });
                }
                What::Messages(list) => {
                    for (place, (message, sequence)) in list.iter().enumerate() {
                        let grouped = if place > 0 { flag::GROUPED } else { 0 };
                        records[rank].push(Record {
                            order: kernel.order + place as u64,
                            function: if message.send { function::SEND } else { function::RECV },
                            bytes: message.bytes,
                            peer: message.peer as i32,
                            sequence: *sequence,
                            flags: base.flags | grouped,
                            ..base
                        });
                    }
                }
            }
        }
        for (rank, mut records) in records.into_iter().enumerate() {
            let pid = Sim::pid(rank);
            for record in records.iter().filter(|_| !self.quirks.no_host_calls) {
                self.pipeline.on_event(&Event {
                    time_ns: record.host_ns - 500,
                    tgid: pid,
                    tid: pid,
                    what: what::ENTER,
                    function: record.function,
                    datatype: 7,
                    count: record.bytes / 4,
                    comm: record.communicator ^ (rank as u64) << 40,
                    ..Event::default()
                });
            }
            records.sort_by_key(|record| (record.stop_ns, record.order));
            for record in &records {
                if self.quirks.hidden_function == Some(record.function) {
                    // The library does not tell the plugin, so it takes no place either.
                    continue;
                }
                self.emitted += 1;
                if self.quirks.lose_every.is_some_and(|every| self.emitted % every == 0) {
                    self.pipeline.ring_lost(pid, 1);
                    continue;
                }
                self.pipeline.on_record(pid, record);
            }
        }
    }
}
