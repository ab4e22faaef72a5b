//! Five ways to train on eight ranks, as the collectives of one step.

use std::collections::HashMap;

use super::{Message, Op, Phase, Random, Sim, RANKS};
use rscore::wire::function::{ALL_GATHER, ALL_REDUCE, REDUCE_SCATTER};

const MS: u64 = 1_000_000;
const WORLD: u64 = 0xa0;
const MB: u64 = 1 << 20;

fn work(phase: Phase, ns: u64) -> Op {
    Op::Work(phase, ns)
}

fn collective(stream: usize, comm: u64, function: u8, bytes: u64, transfer_ns: u64) -> Op {
    Op::Collective { stream, comm, function, bytes, transfer_ns }
}

fn wait(stream: usize) -> Op {
    Op::Wait { stream, leave: 0 }
}

/// Data parallel: gradient buckets are reduced while the backward pass goes on.
pub fn ddp(seed: u64) -> Sim {
    let script = |_: usize, _: &mut Random| {
        let mut ops = vec![work(Phase::Data, 3 * MS), work(Phase::Forward, 32 * MS)];
        for bucket in 0..6 {
            ops.push(work(Phase::Backward, 6 * MS));
            ops.push(collective(1, WORLD, ALL_REDUCE, (25 - bucket) * MB, 4 * MS));
        }
        ops.extend([wait(1), work(Phase::Optimizer, 6 * MS)]);
        ops
    };
    Sim::new(seed, HashMap::from([(WORLD, RANKS)]), Box::new(script))
}

/// Sharded: parameters of the next layer are gathered while this one computes.
pub fn fsdp(seed: u64) -> Sim {
    const LAYERS: usize = 6;
    let script = |_: usize, _: &mut Random| {
        let gather = || collective(1, WORLD, ALL_GATHER, 30 * MB, 2 * MS);
        let mut ops = vec![work(Phase::Data, 3 * MS), gather()];
        for layer in 0..LAYERS {
            if layer + 1 < LAYERS {
                ops.extend([gather(), Op::Wait { stream: 1, leave: 1 }]);
            } else {
                ops.push(wait(1));
            }
            ops.push(work(Phase::Forward, 5 * MS));
        }
        ops.push(gather());
        for layer in 0..LAYERS {
            if layer + 1 < LAYERS {
                ops.extend([gather(), Op::Wait { stream: 1, leave: 1 }]);
            } else {
                ops.push(wait(1));
            }
            ops.push(work(Phase::Backward, 9 * MS));
            ops.push(collective(2, WORLD + 1, REDUCE_SCATTER, 30 * MB, 2 * MS));
        }
        ops.extend([wait(2), work(Phase::Optimizer, 5 * MS)]);
        ops
    };
    Sim::new(seed, HashMap::from([(WORLD, RANKS), (WORLD + 1, RANKS)]), Box::new(script))
}

/// Tensor parallel by two, data parallel by four.
pub fn tensor(seed: u64) -> Sim {
    let script = |rank: usize, _: &mut Random| {
        let (tensor, data) = (0xb0 + rank as u64 / 2, 0xc0 + rank as u64 % 2);
        let activations = || [collective(1, tensor, ALL_REDUCE, 8 * MB, MS / 2), wait(1)];
        let mut ops = vec![work(Phase::Data, 3 * MS)];
        for _ in 0..8 {
            ops.push(work(Phase::Forward, 3 * MS));
            ops.extend(activations());
        }
        for layer in 0..8 {
            ops.push(work(Phase::Backward, 6 * MS));
            ops.extend(activations());
            if layer % 2 == 1 {
                ops.push(collective(2, data, ALL_REDUCE, (20 + layer) * MB, 4 * MS));
            }
        }
        ops.extend([wait(2), work(Phase::Optimizer, 5 * MS)]);
        ops
    };
    let groups = (0..4).map(|n| (0xb0 + n, 2)).chain((0..2).map(|n| (0xc0 + n, 4))).collect();
    Sim::new(seed, groups, Box::new(script))
}

/// Two pipeline stages with one forward, one backward in turn; data parallel by four.
pub fn pipeline(seed: u64) -> Sim {
    const BATCHES: usize = 6;
    let script = |rank: usize, _: &mut Random| {
        let (stage, data) = (rank / 4, 0xd0 + rank as u64 / 4);
        let other = if stage == 0 { rank + 4 } else { rank - 4 };
        let pair = 0xe0 + rank as u64 % 4;
        let exchange = |send: usize, receive: usize| {
            let message = |send| Message { send, peer: other, bytes: 4 * MB };
            let mut messages = vec![message(true); send];
            messages.extend(vec![message(false); receive]);
            [Op::Messages { stream: 1, comm: pair, messages, transfer_ns: MS / 2 }, wait(1)]
        };
        let forward = || work(Phase::Forward, 5 * MS);
        let backward = || work(Phase::Backward, 10 * MS);
        let mut ops = vec![work(Phase::Data, 3 * MS)];
        if stage == 0 {
            ops.push(forward());
            ops.extend(exchange(1, 0));
            for _ in 1..BATCHES {
                ops.push(forward());
                ops.extend(exchange(1, 1));
                ops.push(backward());
            }
            ops.extend(exchange(0, 1));
            ops.push(backward());
        } else {
            ops.extend(exchange(0, 1));
            for batch in 0..BATCHES {
                ops.extend([forward(), backward()]);
                let more = usize::from(batch + 1 < BATCHES);
                ops.extend(exchange(1, more));
            }
        }
        for bucket in 0..3 {
            ops.push(collective(2, data, ALL_REDUCE, (30 + bucket) * MB, 3 * MS));
        }
        ops.extend([wait(2), work(Phase::Optimizer, 5 * MS)]);
        ops
    };
    // Pairs have messages only.
    let groups = (0..4).map(|n| (0xe0 + n, 2)).chain((0..2).map(|n| (0xd0 + n, 4))).collect();
    Sim::new(seed, groups, Box::new(script))
}

/// Mixture of experts: all-to-alls, as sends and receives whose sizes are others in every step
/// and which are left out when they are empty; experts get uneven work.
pub fn experts(seed: u64) -> Sim {
    let mut sizes: HashMap<(usize, usize), u64> = HashMap::new();
    let script = move |rank: usize, random: &mut Random| {
        if rank == 0 {
            for from in 0..RANKS {
                for to in 0..RANKS {
                    let empty = random.uniform() < 0.1;
                    let bytes = if empty { 0 } else { MB + 512 * random.below(2000) as u64 };
                    sizes.insert((from, to), bytes);
                }
            }
        }
        let all_to_all = || {
            // As the library orders them: each rank begins with another peer.
            let messages = (1..RANKS)
                .flat_map(|round| {
                    let (to, from) = ((rank + round) % RANKS, (rank + RANKS - round) % RANKS);
                    let send = Message { send: true, peer: to, bytes: sizes[&(rank, to)] };
                    let receive = Message { send: false, peer: from, bytes: sizes[&(from, rank)] };
                    [send, receive]
                })
                .collect();
            [Op::Messages { stream: 1, comm: WORLD, messages, transfer_ns: MS }, wait(1)]
        };
        let mut ops = vec![work(Phase::Data, 3 * MS)];
        for (phase, scale) in [(Phase::Forward, 1), (Phase::Backward, 2)] {
            for layer in 0..4 {
                let expert = 4.0 * (1.0 + 0.05 * random.normal());
                ops.push(work(phase, 4 * MS * scale));
                ops.extend(all_to_all());
                ops.push(work(phase, (expert * MS as f64) as u64 * scale));
                ops.extend(all_to_all());
                if phase == Phase::Backward {
                    ops.push(collective(2, WORLD + 1, ALL_REDUCE, (20 + layer) * MB, 3 * MS));
                }
            }
        }
        ops.extend([wait(2), work(Phase::Optimizer, 5 * MS)]);
        ops
    };
    Sim::new(seed, HashMap::from([(WORLD, RANKS), (WORLD + 1, RANKS)]), Box::new(script))
}
