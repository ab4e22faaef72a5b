//! State of a scorer as bytes, little-endian; `stragd/scoring/state.py` writes the same ones.
//! What is read is checked: a bad file costs the baselines and nothing else.

use super::case::{Case, How};
use super::compare::Compared;
use super::estimate::RUN;
use super::fast::FastScore;
use super::identities::Identities;
use super::job::JobScore;
use super::ranks::One;
use super::series::{Series, Spread};
use super::whole::WholeScore;
use super::{Basis, Finding, Kind, Scorer, State, MAX_JOBS};

const MAGIC: &[u8] = b"stragd score";
const VERSION: u32 = 3;
/// Windows whose numbers a job keeps, at most.
const RECENT: u32 = 64;
const KINDS: [Kind; 6] = [
    Kind::Straggler,
    Kind::Intermittent,
    Kind::Imbalance,
    Kind::UnevenWork,
    Kind::JobWide,
    Kind::Network,
];
const EMPTY: Finding = Finding {
    id: 0,
    job: 0,
    kind: Kind::Straggler,
    state: State::Suspect,
    rank: None,
    class_id: None,
    signature: None,
    since_window: 0,
    since_time_ns: 0,
    window: 0,
    slowdown: 0.0,
    cost_ns: None,
    cost_low_ns: None,
    cost_high_ns: None,
    cost_fraction: 0.0,
    confidence: 0.0,
    basis: Basis::Peers,
    own_ns: 0.0,
    peers_own_ns: 0.0,
    peers: 0,
    work: f64::NAN,
    moved: 0,
};
const STATES: [State; 4] = [State::Suspect, State::Confirmed, State::Recovering, State::Cleared];

/// One way through the state for writing and reading, so that the two cannot differ.
trait Pass {
    fn bytes<const N: usize>(&mut self, value: &mut [u8; N]) -> Result<(), String>;
    /// True when values are read.
    fn reads(&self) -> bool;

    fn u8(&mut self, value: &mut u8) -> Result<(), String> {
        let mut bytes = [*value];
        self.bytes(&mut bytes)?;
        *value = bytes[0];
        Ok(())
    }
    fn u32(&mut self, value: &mut u32) -> Result<(), String> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = u32::from_le_bytes(bytes);
        Ok(())
    }
    fn u64(&mut self, value: &mut u64) -> Result<(), String> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = u64::from_le_bytes(bytes);
        Ok(())
    }
    fn f32(&mut self, value: &mut f32) -> Result<(), String> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = f32::from_le_bytes(bytes);
        finite(f64::from(*value))
    }
    fn f64(&mut self, value: &mut f64) -> Result<(), String> {
        self.any_f64(value)?;
        finite(*value)
    }
    /// A figure that may be NaN: it is shown and never computed with.
    fn any_f64(&mut self, value: &mut f64) -> Result<(), String> {
        let mut bytes = value.to_le_bytes();
        self.bytes(&mut bytes)?;
        *value = f64::from_le_bytes(bytes);
        Ok(())
    }
    /// How many of something follow.
    fn count(&mut self, count: usize, most: u32) -> Result<usize, String> {
        let mut number = count as u32;
        self.u32(&mut number)?;
        match number <= most {
            true => Ok(number as usize),
            false => Err(format!("state: {number} where at most {most} can be")),
        }
    }
    fn is_some(&mut self, some: bool) -> Result<bool, String> {
        let mut byte = u8::from(some);
        self.u8(&mut byte)?;
        Ok(byte != 0)
    }
    fn one_of<T: Copy + PartialEq>(&mut self, value: &mut T, all: &[T]) -> Result<(), String> {
        let mut number = all.iter().position(|one| one == value).unwrap_or_default() as u8;
        self.u8(&mut number)?;
        *value = *all.get(usize::from(number)).ok_or_else(|| format!("state: no {number} here"))?;
        Ok(())
    }
}

fn finite(value: f64) -> Result<(), String> {
    match value.is_finite() {
        true => Ok(()),
        false => Err("state: a figure is not finite".into()),
    }
}

struct Writer(Vec<u8>);

impl Pass for Writer {
    fn bytes<const N: usize>(&mut self, value: &mut [u8; N]) -> Result<(), String> {
        self.0.extend_from_slice(value);
        Ok(())
    }
    fn reads(&self) -> bool {
        false
    }
}

struct Reader<'a>(&'a [u8]);

impl Pass for Reader<'_> {
    fn bytes<const N: usize>(&mut self, value: &mut [u8; N]) -> Result<(), String> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or("state: it is cut off")?;
        (*value, self.0) = (*first, rest);
        Ok(())
    }
    fn reads(&self) -> bool {
        true
    }
}

/// Needs `&mut` only because reading shares the way; nothing is changed.
pub(super) fn save(scorer: &mut Scorer) -> Vec<u8> {
    let mut out = Writer(MAGIC.to_vec());
    // A writer never fails, and the bounds hold of what the scorer keeps.
    let _ = pass_scorer(&mut out, scorer);
    out.0
}

pub(super) fn restore(scorer: &mut Scorer, data: &[u8]) -> Result<(), String> {
    let rest = data.strip_prefix(MAGIC).ok_or("state: not a scorer's")?;
    let mut read = Scorer::new(scorer.config)?;
    let mut reader = Reader(rest);
    pass_scorer(&mut reader, &mut read)?;
    if !reader.0.is_empty() {
        return Err(format!("state: {} bytes too many", reader.0.len()));
    }
    *scorer = read;
    Ok(())
}

fn pass_scorer(pass: &mut impl Pass, scorer: &mut Scorer) -> Result<(), String> {
    let mut version = VERSION;
    pass.u32(&mut version)?;
    if version != VERSION {
        return Err(format!("state: of version {version}, this is {VERSION}"));
    }
    pass.u64(&mut scorer.calls)?;
    pass.u64(&mut scorer.next_id)?;
    let count = pass.count(scorer.jobs.len(), MAX_JOBS as u32)?;
    let mut keys: Vec<u64> = scorer.jobs.keys().copied().collect();
    keys.sort_unstable();
    keys.resize(count, 0);
    for mut key in keys {
        pass.u64(&mut key)?;
        pass_job(pass, scorer.jobs.entry(key).or_default())?;
    }
    Ok(())
}

fn pass_job(pass: &mut impl Pass, job: &mut JobScore) -> Result<(), String> {
    pass.u64(&mut job.last_call)?;
    let mut window = job.window.unwrap_or_default();
    pass.u64(&mut window)?;
    pass.u64(&mut job.key)?;
    let count = pass.count(job.recent.len(), RECENT)?;
    job.window = (count > 0).then_some(window);
    job.recent.resize(count, (0, 0));
    for (number, begin) in &mut job.recent {
        pass.u64(number)?;
        pass.u64(begin)?;
    }
    pass_fast(pass, &mut job.fast)?;
    let count = pass.count(job.ranks.numbers.len(), super::rows::MAX_WORLD)?;
    for place in 0..count {
        if pass.reads() {
            job.ranks.push(0);
        }
        let ranks = &mut job.ranks;
        pass.u32(&mut ranks.numbers[place])?;
        pass_identity(pass, &mut ranks.identities, place)?;
        let mut missing = ranks.missing(place as u32);
        pass.u32(&mut missing)?;
        ranks.seen[place] = ranks.clock.wrapping_sub(missing);
        let score = ranks.change(place as u32, |one| {
            pass_rank(pass, one)?;
            Ok::<_, String>(one.score.clone())
        })?;
        ranks.scores.store(place, &score);
        if place > 0 && ranks.numbers[place - 1] >= ranks.numbers[place] {
            return Err("state: ranks are not in order".into());
        }
    }
    for whole in [&mut job.wide, &mut job.network] {
        pass_whole(pass, whole)?;
    }
    let count = pass.count(job.compared.len(), u32::MAX)?;
    let mut keys: Vec<_> = job.compared.keys().copied().collect();
    keys.resize(count.min(1 << 21), (Kind::Imbalance, 0));
    for (mut kind, mut key) in keys {
        pass.one_of(&mut kind, &KINDS)?;
        pass.u64(&mut key)?;
        pass_compared(pass, job.compared.entry((kind, key)).or_default())?;
    }
    Ok(())
}

fn pass_identity(
    pass: &mut impl Pass,
    identities: &mut Identities,
    slot: usize,
) -> Result<(), String> {
    let mut one = *identities.get(slot);
    pass.u64(&mut one.key.0)?;
    pass.u32(&mut one.key.1)?;
    pass.u32(&mut one.key.2)?;
    pass.u32(&mut one.world_size)?;
    if pass.reads() {
        identities.set(slot, one);
    }
    pass.u64(&mut identities.last_steps[slot])
}

fn pass_rank(pass: &mut impl Pass, one: &mut One<'_>) -> Result<(), String> {
    let One { fast, score, .. } = one;
    let mut cases = one.cases.take();
    pass.u64(&mut score.present)?;
    pass.u32(&mut score.high)?;
    pass.u32(&mut score.gross)?;
    pass.u64(&mut cases.gross_since.0)?;
    pass.u64(&mut cases.gross_since.1)?;
    pass.f64(&mut cases.balance)?;
    pass.f64(&mut score.past)?;
    pass.u32(&mut score.past_count)?;
    pass.f64(fast)?;
    pass.u64(&mut cases.fast_since.0)?;
    pass.u64(&mut cases.fast_since.1)?;
    pass.u64(&mut cases.named)?;
    pass_series(pass, &mut score.series, &mut score.spread)?;
    pass_case(pass, &mut cases.case)?;
    pass_case(pass, &mut cases.sometimes)?;
    one.cases.put(cases);
    one.tell();
    Ok(())
}

fn pass_fast(pass: &mut impl Pass, fast: &mut FastScore) -> Result<(), String> {
    let some = pass.is_some(fast.last.is_some())?;
    let mut last = fast.last.unwrap_or_default();
    pass.u64(&mut last)?;
    fast.last = some.then_some(last);
    pass.f64(&mut fast.squares)?;
    pass.f64(&mut fast.weight)?;
    pass.f64(&mut fast.tail)?;
    pass.f64(&mut fast.window_variance)
}

fn pass_whole(pass: &mut impl Pass, whole: &mut WholeScore) -> Result<(), String> {
    pass.u64(&mut whole.present)?;
    pass_series(pass, &mut whole.series, &mut whole.spread)?;
    pass_case(pass, &mut whole.case)
}

fn pass_compared(pass: &mut impl Pass, score: &mut Compared) -> Result<(), String> {
    pass.u32(&mut score.run)?;
    pass.u64(&mut score.since.0)?;
    pass.u64(&mut score.since.1)?;
    pass_case(pass, &mut score.case)
}

fn pass_series(
    pass: &mut impl Pass,
    series: &mut Series,
    spread: &mut Spread,
) -> Result<(), String> {
    pass.f64(&mut series.anchor)?;
    pass.f64(&mut series.base)?;
    pass.u32(&mut series.known)?;
    if series.known > 100_000 {
        return Err("state: a past is too long".into());
    }
    series.length = pass.count(series.length as usize, RUN as u32)? as u32;
    for window in 0..series.length as usize {
        pass.f32(series.value_mut(window))?;
    }
    pass.f64(&mut series.total)?;
    pass.f64(&mut spread.near)?;
    pass.f64(&mut spread.near_weight)?;
    pass.f64(&mut spread.far)?;
    pass.f64(&mut spread.far_weight)
}

fn pass_case(pass: &mut impl Pass, slot: &mut Option<Box<Case>>) -> Result<(), String> {
    if !pass.is_some(slot.is_some())? {
        return Ok(());
    }
    let case = slot.get_or_insert_with(|| Box::new(Case::new(0, State::Suspect, (0, 0))));
    pass.u64(&mut case.id)?;
    pass.one_of(&mut case.state, &STATES)?;
    pass.u64(&mut case.since.0)?;
    pass.u64(&mut case.since.1)?;
    pass.u32(&mut case.quiet)?;
    pass.one_of(&mut case.how, &[How::Change, How::Level, How::Fast])?;
    pass.f64(&mut case.base)?;
    pass.f64(&mut case.shift)?;
    pass.u32(&mut case.windows)?;
    pass.f64(&mut case.recovery)?;
    pass.f64(&mut case.deviate)?;
    pass_finding(pass, &mut case.finding)
}

fn pass_finding(pass: &mut impl Pass, slot: &mut Option<Finding>) -> Result<(), String> {
    if !pass.is_some(slot.is_some())? {
        return Ok(());
    }
    let one = slot.get_or_insert(EMPTY);
    pass.u64(&mut one.id)?;
    pass.u64(&mut one.job)?;
    pass.one_of(&mut one.kind, &KINDS)?;
    pass.one_of(&mut one.state, &STATES)?;
    for number in [&mut one.rank, &mut one.class_id] {
        let mut wide = number.map(u64::from);
        pass_number(pass, &mut wide)?;
        *number = wide.map(|wide| wide as u32);
    }
    pass_number(pass, &mut one.signature)?;
    pass.u64(&mut one.since_window)?;
    pass.u64(&mut one.since_time_ns)?;
    pass.u64(&mut one.window)?;
    pass.any_f64(&mut one.slowdown)?;
    for figure in [&mut one.cost_ns, &mut one.cost_low_ns, &mut one.cost_high_ns] {
        let some = pass.is_some(figure.is_some())?;
        let mut value = figure.unwrap_or_default();
        pass.any_f64(&mut value)?;
        *figure = some.then_some(value);
    }
    pass.any_f64(&mut one.cost_fraction)?;
    pass.any_f64(&mut one.confidence)?;
    pass.one_of(&mut one.basis, &[Basis::Peers, Basis::History])?;
    pass.any_f64(&mut one.own_ns)?;
    pass.any_f64(&mut one.peers_own_ns)?;
    pass.u32(&mut one.peers)?;
    pass.any_f64(&mut one.work)?;
    pass.u32(&mut one.moved)
}

fn pass_number(pass: &mut impl Pass, number: &mut Option<u64>) -> Result<(), String> {
    let some = pass.is_some(number.is_some())?;
    let mut value = number.unwrap_or_default();
    pass.u64(&mut value)?;
    *number = some.then_some(value);
    Ok(())
}
