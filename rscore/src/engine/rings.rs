//! The rings of a node: found by the discovery thread, read by the drain thread.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::discover::process::ProcessKey;
use crate::ring::control::Control;
use crate::ring::layout::DROP_NAMES;
use crate::ring::source::{Refusal, Source};
use crate::ring::status::{Figures, RingStatus};
use crate::ring::{Counts, Memory, Reader};
use crate::steps::Pipeline;

use super::clock;

/// Rings read at a time. What was read is given back after each turn, so that they add little to
/// the daemon's resident memory.
const MAX_RINGS: usize = 256;
/// Refused ones that are named.
const MAX_REFUSED: usize = 256;
/// Last states kept of rings whose process has gone, and for how long.
const MAX_ENDED: usize = 64;
const KEEP_ENDED: Duration = Duration::from_secs(1800);
/// The ring comes with the first communicator, some time after the library. A process is looked
/// at again after a share of the time it has been known, so a late ring is found in time and
/// nobody is looked at all the time: a look costs up to a millisecond.
const LOOK_SHARE: u32 = 8;
const LOOK_LEAST: Duration = Duration::from_millis(250);
const LOOK_MOST: Duration = Duration::from_secs(10);
/// A ring that is still being made after this time is refused.
const EARLY: Duration = Duration::from_secs(10);
/// Turns in which the ring of an ended process is read to its end: more than its slots take.
const LAST_TURNS: usize = 16;

/// A process whose ring was not found yet.
struct Candidate {
    since: Instant,
    due: Instant,
}

/// Looks for rings; belongs to the discovery thread.
pub(super) struct Finder {
    source: Result<Source, String>,
    candidates: HashMap<ProcessKey, Candidate>,
}

impl Finder {
    pub(super) fn new() -> Finder {
        let refused = |e| format!("memfds are refused ({e}), so rings cannot be told from others");
        Finder { source: Source::new().map_err(refused), candidates: HashMap::new() }
    }

    /// A process uses NCCL or RCCL.
    pub(super) fn seen(&mut self, process: ProcessKey) {
        let now = Instant::now();
        self.candidates.entry(process).or_insert(Candidate { since: now, due: now });
    }

    pub(super) fn gone(&mut self, process: ProcessKey) {
        self.candidates.remove(&process);
    }

    /// Looks at the processes whose time has come. `take` gets what is known now and says whether
    /// that is the end of looking.
    pub(super) fn look(&mut self, mut take: impl FnMut(ProcessKey, Sight) -> bool) {
        let now = Instant::now();
        let due: Vec<ProcessKey> =
            self.candidates.iter().filter(|(_, c)| c.due <= now).map(|(key, _)| *key).collect();
        for process in due {
            let Some(candidate) = self.candidates.get_mut(&process) else { continue };
            let age = now.saturating_duration_since(candidate.since);
            candidate.due = now + (age / LOOK_SHARE).clamp(LOOK_LEAST, LOOK_MOST);
            let sight = match &self.source {
                Ok(source) => sight(source, process, age),
                Err(why) => Sight::Refused(why.clone()),
            };
            if take(process, sight) {
                self.candidates.remove(&process);
            }
        }
    }
}

/// What one look at a process found.
pub(super) enum Sight {
    Nothing,
    /// A ring, and how many others the process has.
    Ring(Box<Memory>, usize),
    /// There is one, and why it is not read.
    Refused(String),
}

fn sight(source: &Source, process: ProcessKey, age: Duration) -> Sight {
    let Ok(found) = source.find(process.pid) else { return Sight::Nothing };
    match (found.ring, found.refusal) {
        (Some(ring), _) => Sight::Ring(Box::new(ring), found.others),
        (None, Some(Refusal::Never(why))) => Sight::Refused(why),
        (None, Some(Refusal::Early)) if age > EARLY => {
            Sight::Refused("it was never finished: its header is empty".into())
        }
        _ => Sight::Nothing,
    }
}

/// A ring that is read.
struct Open {
    process: ProcessKey,
    reader: Reader,
    others: usize,
    /// What the pipeline was told last: the plugin records every collective.
    full: bool,
}

impl Open {
    fn status(&self) -> RingStatus {
        let figures = Figures::of(&self.reader);
        RingStatus::of(self.process, self.reader.memory(), &figures, self.others)
    }

    /// One turn; tells the pipeline what there is. True when there is more to do.
    fn turn(&mut self, pipeline: &mut Pipeline, ended: bool) -> bool {
        let pid = self.process.pid;
        let memory = Arc::clone(self.reader.memory());
        let full = memory.is_full();
        if full != self.full {
            self.full = full;
            pipeline.ring_mode(pid, full);
        }
        let now = clock::monotonic_ns();
        let turn = self.reader.turn(now, ended, |record| pipeline.on_record(pid, record));
        if turn.lost > 0 {
            pipeline.ring_lost(pid, turn.lost);
        }
        turn.more
    }
}

/// All rings. Lock order: before the pipeline.
#[derive(Default)]
pub(super) struct Rings {
    open: Vec<Open>,
    refused: HashMap<ProcessKey, String>,
    ended: VecDeque<(Instant, RingStatus)>,
    /// What rings that are found later are asked for; nothing while nobody has asked.
    wish: Option<Control>,
    /// Counts of rings that were closed.
    closed: Counts,
}

/// A ring to be described without holding the lock.
pub(super) struct Handle(ProcessKey, Arc<Memory>, Figures, usize);

impl Rings {
    /// Takes what was found of a process; true when it need not be looked at again.
    pub(super) fn found(
        &mut self,
        process: ProcessKey,
        sight: Sight,
        pipeline: &mut Pipeline,
    ) -> bool {
        // Its libraries changed, so it was looked at again.
        if self.open.iter().any(|open| open.process == process) {
            return true;
        }
        self.refused.remove(&process);
        let why = match sight {
            Sight::Nothing => return false,
            Sight::Refused(why) => why,
            Sight::Ring(memory, others) => match self.obstacle(&memory) {
                Some(why) => why,
                None => {
                    self.open(process, *memory, others, pipeline);
                    return true;
                }
            },
        };
        if self.refused.len() < MAX_REFUSED {
            self.refused.insert(process, why);
        }
        false
    }

    /// Why this node does not read another ring, or not this one.
    fn obstacle(&self, memory: &Memory) -> Option<String> {
        let same = |open: &&Open| open.reader.memory().inode == memory.inode;
        if let Some(owner) = self.open.iter().find(same) {
            return Some(format!("it is read as that of process {}", owner.process.pid));
        }
        let full = self.open.len() >= MAX_RINGS;
        full.then(|| format!("{MAX_RINGS} rings are read already"))
    }

    fn open(
        &mut self,
        process: ProcessKey,
        memory: Memory,
        others: usize,
        pipeline: &mut Pipeline,
    ) {
        if let Some(wish) = self.wish {
            memory.ask(wish);
        }
        let full = memory.is_full();
        let reader = Reader::new(Arc::new(memory));
        self.open.push(Open { process, reader, others, full });
        pipeline.ring_opened(process.pid);
        pipeline.ring_mode(process.pid, full);
    }

    /// Reads every ring for one turn; true when one of them has more.
    pub(super) fn turn(&mut self, pipeline: &mut Pipeline) -> bool {
        let mut more = false;
        for open in &mut self.open {
            more |= open.turn(pipeline, false);
        }
        more
    }

    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The process has gone: its ring is read to its end, and its last state kept.
    pub(super) fn gone(&mut self, process: ProcessKey, pipeline: &mut Pipeline) {
        self.refused.remove(&process);
        let Some(place) = self.open.iter().position(|open| open.process == process) else { return };
        let mut open = self.open.swap_remove(place);
        for _ in 0..LAST_TURNS {
            if !open.turn(pipeline, true) {
                break;
            }
        }
        pipeline.ring_closed(process.pid);
        add(&mut self.closed, &open.reader.counts());
        let mut last = open.status();
        last.state = "ended";
        self.ended.push_back((Instant::now(), last));
        while self.ended.len() > MAX_ENDED {
            self.ended.pop_front();
        }
    }

    /// Asks the rings of `pid`, or all and those that are found later; how many obey is up to
    /// their plugins. Returns how many could be asked.
    pub(super) fn ask(&mut self, control: Control, pid: Option<u32>) -> usize {
        if pid.is_none() {
            self.wish = Some(control);
        }
        let asked = self.open.iter().filter(|open| pid.is_none_or(|pid| open.process.pid == pid));
        asked.filter(|open| open.reader.memory().ask(control)).count()
    }

    /// What is needed to describe the open rings, and the ended and refused ones.
    pub(super) fn handles(&mut self) -> (Vec<Handle>, Vec<RingStatus>) {
        self.ended.retain(|(at, _)| at.elapsed() < KEEP_ENDED);
        let handle = |open: &Open| {
            let figures = Figures::of(&open.reader);
            Handle(open.process, Arc::clone(open.reader.memory()), figures, open.others)
        };
        let mut others: Vec<_> = self.ended.iter().map(|(_, status)| status.clone()).collect();
        let refused =
            |(process, why): (&ProcessKey, &String)| RingStatus::refused(*process, why.clone());
        others.extend(self.refused.iter().map(refused));
        (self.open.iter().map(handle).collect(), others)
    }

    /// Figures under flat names.
    pub(super) fn counters(&self) -> Vec<(String, f64)> {
        let mut all = self.closed;
        for open in &self.open {
            add(&mut all, &open.reader.counts());
        }
        let mut figures = vec![
            ("rings".into(), self.open.len() as f64),
            ("ring_records".into(), all.records as f64),
            ("lost.ring".into(), all.lost as f64),
            ("ring_refused".into(), self.refused.len() as f64),
        ];
        for (cause, count) in DROP_NAMES.iter().zip(all.dropped) {
            figures.push((format!("ring_dropped.{cause}"), count as f64));
        }
        figures
    }
}

/// The state of every ring: open, ended and refused, by process.
pub(super) fn statuses(handles: Vec<Handle>, others: Vec<RingStatus>) -> Vec<RingStatus> {
    let describe = |handle: Handle| {
        let Handle(process, memory, figures, others) = handle;
        RingStatus::of(process, &memory, &figures, others)
    };
    let mut all: Vec<_> = handles.into_iter().map(describe).chain(others).collect();
    all.sort_by_key(|status| (status.pid, status.start_time));
    all
}

fn add(all: &mut Counts, more: &Counts) {
    all.records += more.records;
    all.lost = all.lost.saturating_add(more.lost);
    all.invalid += more.invalid;
    all.implausible += more.implausible;
    all.jumps += more.jumps;
    for (sum, count) in all.dropped.iter_mut().zip(more.dropped) {
        *sum = sum.saturating_add(count);
    }
}
