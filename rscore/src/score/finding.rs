//! How a case is shown: what it costs, with an interval, and how sure it is.

use super::case::Case;
use super::estimate::confidence;
use super::groups::MIN_PEERS;
use super::members::Member;
use super::rank::{Around, Beside};
use super::{Basis, Finding, Kind};
use crate::window::{flag, RankWindow};

/// The finding of a straggler. A synchronous job gains no more than the next slowest rank allows,
/// which bounds the cost.
pub(super) fn straggler(
    case: &Case,
    member: &Member,
    row: &RankWindow,
    around: &Around,
    beside: Beside,
    difference: f64,
    deviation: f64,
) -> Finding {
    let unit = if row.flags & flag::STEPS_NOT_INFERRED == 0 { 1.0 } else { row.wall };
    let against_peers = around.peers >= MIN_PEERS;
    let usual = if against_peers { beside.others } else { member.value - difference };
    let reference = usual.exp() * unit;
    let (first, second) = around.slowest;
    let next = if row.own >= first { second } else { first };
    let bound = reference.max(if member.others > 0 { next.min(row.own) } else { 0.0 });
    let slower = if against_peers { beside.level } else { difference };
    let mut shown = finding(case, Kind::Straggler, row, slower, row.own, bound, deviation, 1.0);
    of_rank(&mut shown, row);
    shown.basis = if against_peers { Basis::Peers } else { Basis::History };
    shown.peers = around.peers as u32;
    shown.peers_own_ns = if against_peers { reference } else { f64::NAN };
    shown.moved = around.moved;
    shown
}

pub(super) fn of_rank(shown: &mut Finding, row: &RankWindow) {
    shown.rank = Some(row.rank);
    shown.class_id = Some(row.class_id);
    shown.signature = Some(row.signature);
}

/// A finding whose cost is `own - bound` ns in `share` of the steps. The interval is 95 % of one
/// window's noise.
#[allow(clippy::too_many_arguments)]
pub(super) fn finding(
    case: &Case,
    kind: Kind,
    row: &RankWindow,
    difference: f64,
    own: f64,
    bound: f64,
    deviation: f64,
    share: f64,
) -> Finding {
    let cost = (own - bound).max(0.0) * share;
    let error = 1.96 * own * deviation * share;
    let inferred = row.flags & flag::STEPS_NOT_INFERRED == 0;
    let known = |value: f64| inferred.then_some(value);
    Finding {
        id: case.id,
        job: row.job,
        kind,
        state: case.state,
        rank: None,
        class_id: None,
        signature: None,
        since_window: case.since.0,
        since_time_ns: case.since.1,
        window: row.window,
        slowdown: difference.exp() - 1.0,
        cost_ns: known(cost),
        cost_low_ns: known((cost - error).max(0.0)),
        cost_high_ns: known(cost + error),
        cost_fraction: (cost / row.wall).clamp(0.0, 1.0),
        confidence: confidence(case.deviate),
        basis: Basis::Peers,
        own_ns: own,
        peers_own_ns: bound,
        peers: 0,
        work: f64::NAN,
        moved: 0,
    }
}
