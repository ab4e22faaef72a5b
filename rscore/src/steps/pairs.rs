//! Which communicator of the host's calls is which one of the ring's records.
//!
//! The host's side is a pointer, the ring's a hash, and nothing that can be seen from outside holds
//! both. But the library enqueues a call while its caller is in it, or at the end of the group: the
//! last call before a record is mostly the one that it is of. A pair is what nearly all records of
//! both sides say; communicators that are always used alike in one group stay without.

use std::collections::VecDeque;

use crate::ring::Record;
use crate::wire::function;

/// Calls that are remembered: so far the host may be ahead of the device.
const MAX_CALLS: usize = 2048;
/// Calls before a record of which one may be its own.
const LOOK: usize = 64;
/// Most pairs that are weighed at a time.
const MAX_VOTES: usize = 64;
/// Records that make a pair, and the share of them that has to say so, in tenths.
const ENOUGH: u32 = 8;
const NEARLY_ALL: u32 = 9;
/// Records without a pair after which a communicator is weighed anew.
const TOO_MANY: u32 = 128;

/// A call of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub pointer: u64,
    pub time_ns: u64,
    pub bytes: u64,
    pub function: u8,
}

#[derive(Clone, Copy, Debug)]
struct Vote {
    pointer: u64,
    hash: u64,
    records: u32,
}

/// Calls and records that have no pair yet.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// Oldest first.
    calls: VecDeque<Call>,
    votes: Vec<Vote>,
    found: Vec<(u64, u64)>,
}

impl Pairs {
    /// A call of a communicator without a pair.
    pub fn call(&mut self, call: Call) {
        if self.calls.len() >= MAX_CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(call);
    }

    /// A record of a communicator without a pair, in issue order.
    pub fn record(&mut self, record: &Record) {
        let hash = record.communicator;
        let before = self.calls.partition_point(|call| call.time_ns <= record.host_ns);
        let old = before.saturating_sub(LOOK);
        let alike = |call: &&Call| may_be(call.function, record.function);
        let mut recent = self.calls.range(old..before).rev().filter(alike);
        let last = recent.clone().next();
        let call = recent.find(|call| call.bytes == record.bytes).or(last).copied();
        self.calls.drain(..old);
        if let Some(call) = call.filter(|_| hash != 0) {
            self.vote(call.pointer, hash);
        }
    }

    fn vote(&mut self, pointer: u64, hash: u64) {
        if self.found.iter().any(|&(p, h)| p == pointer || h == hash) {
            return;
        }
        let same = |vote: &&mut Vote| vote.pointer == pointer && vote.hash == hash;
        let records = match self.votes.iter_mut().find(same) {
            Some(vote) => {
                vote.records += 1;
                vote.records
            }
            None => {
                if self.votes.len() >= MAX_VOTES {
                    self.votes.clear();
                }
                self.votes.push(Vote { pointer, hash, records: 1 });
                1
            }
        };
        let sum = |of: &dyn Fn(&Vote) -> bool| -> u32 {
            self.votes.iter().filter(|vote| of(vote)).map(|vote| vote.records).sum()
        };
        let all = sum(&|vote| vote.pointer == pointer).max(sum(&|vote| vote.hash == hash));
        if records >= ENOUGH && 10 * records >= NEARLY_ALL * all {
            self.votes.retain(|vote| vote.pointer != pointer && vote.hash != hash);
            self.found.push((pointer, hash));
        } else if all >= TOO_MANY {
            self.votes.retain(|vote| vote.pointer != pointer && vote.hash != hash);
        }
    }

    /// Pairs (pointer, hash) that were found since the last call.
    pub fn take(&mut self) -> Vec<(u64, u64)> {
        let found = std::mem::take(&mut self.found);
        for &(pointer, _) in &found {
            self.calls.retain(|call| call.pointer != pointer);
        }
        found
    }

    /// The host's communicator is no more.
    pub fn forget(&mut self, pointer: u64) {
        self.calls.retain(|call| call.pointer != pointer);
        self.votes.retain(|vote| vote.pointer != pointer);
        self.found.retain(|&(known, _)| known != pointer);
    }
}

/// Whether a record of `recorded` can come of a call of `called`: an all-to-all and its like may
/// come as the messages that they are made of.
fn may_be(called: u8, recorded: u8) -> bool {
    called == recorded
        || matches!(called, function::ALL_TO_ALL..=function::SCATTER)
            && matches!(recorded, function::SEND | function::RECV)
}
