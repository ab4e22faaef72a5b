//! What a ring says of itself: its header, and the communicator table (the flight recorder).

use super::control::Mode;
use super::layout::{clock, comm_state, Progress, DROP_NAMES, FUNCTIONS, OTHER, VENDORS};
use super::{Counts, Memory, Reader};
use crate::discover::process::ProcessKey;
use crate::wire::function;

/// Progress of one function of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionProgress {
    pub function: &'static str,
    /// Counts, and CLOCK_MONOTONIC ns of the last of each, as the job wrote them.
    pub progress: Progress,
}

/// One place of the communicator table that is or was in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommunicatorProgress {
    pub hash: u64,
    pub rank: i32,
    pub nranks: i32,
    pub nnodes: i32,
    pub name: String,
    /// `live` or `ended`.
    pub state: &'static str,
    /// CLOCK_MONOTONIC ns; `ended_ns` is 0 while it lives.
    pub born_ns: u64,
    pub ended_ns: u64,
    /// Functions with anything enqueued.
    pub functions: Vec<FunctionProgress>,
}

/// The counts of a reader at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    pub counts: Counts,
    pub clock_hz: u64,
    pub clock_moved: u64,
}

impl Figures {
    /// Those of `reader`, now.
    #[must_use]
    pub fn of(reader: &Reader) -> Figures {
        Figures {
            counts: reader.counts(),
            clock_hz: reader.clock_hz(),
            clock_moved: reader.clock_moved(),
        }
    }
}

/// One ring as `stragctl` and the metrics show it.
#[derive(Clone, Debug, Default)]
pub struct RingStatus {
    pub pid: u32,
    /// Clock ticks after boot, field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    /// `open`, `ended` (its process has gone; this is the last state) or `refused`.
    pub state: &'static str,
    /// Why it is not read; empty otherwise.
    pub refused: String,
    /// Other rings of the process, which are not read.
    pub others: usize,
    pub vendor: &'static str,
    /// Version of the profiler interface in use, 0 before the first communicator.
    pub api: u32,
    /// `2.32.3`, empty where unknown.
    pub library: String,
    /// In force.
    pub mode: &'static str,
    pub sample: u16,
    /// Bytes, 0 where there is none.
    pub floor: u64,
    /// Asked for, by whoever asked last.
    pub wanted: &'static str,
    pub wanted_sample: u16,
    pub wanted_floor: u64,
    /// The control word can be written.
    pub controllable: bool,
    /// `host`, `ns` or `ticks`.
    pub clock: &'static str,
    /// Ticks per second as declared or measured, 0 while not known.
    pub clock_hz: u64,
    pub clock_moved: u64,
    /// Row of the plugin's table of versions that decided its default mode; 0: none.
    pub quirk: u32,
    /// Another plugin that is forwarded to, empty where there is none.
    pub chained: String,
    pub counts: Counts,
    pub communicators: Vec<CommunicatorProgress>,
}

impl RingStatus {
    /// Of a ring that is read, as its memory is now.
    #[must_use]
    pub fn of(process: ProcessKey, memory: &Memory, figures: &Figures, others: usize) -> Self {
        let (wanted, obeyed) = (memory.wanted(), memory.obeyed());
        let status = RingStatus {
            pid: process.pid,
            start_time: process.start_time,
            state: "open",
            refused: String::new(),
            others,
            vendor: name(&VENDORS, memory.vendor()),
            api: memory.api(),
            library: version(memory.library()),
            mode: Mode::numbered(memory.mode().into()).map_or("unknown", Mode::name),
            sample: obeyed.sample,
            floor: obeyed.floor_bytes(),
            wanted: wanted.mode.name(),
            wanted_sample: wanted.sample,
            wanted_floor: wanted.floor_bytes(),
            controllable: memory.is_controllable(),
            clock: name(&clock::NAMES, memory.clock()),
            clock_hz: figures.clock_hz,
            clock_moved: figures.clock_moved,
            quirk: memory.quirk(),
            chained: memory.chained(),
            counts: figures.counts,
            communicators: communicators(memory),
        };
        memory.release();
        status
    }

    /// Of a ring that is refused.
    #[must_use]
    pub fn refused(process: ProcessKey, reason: String) -> Self {
        RingStatus {
            pid: process.pid,
            start_time: process.start_time,
            state: "refused",
            refused: reason,
            vendor: VENDORS[0],
            mode: "unknown",
            wanted: Mode::Default.name(),
            clock: clock::NAMES[0],
            ..RingStatus::default()
        }
    }

    /// Records that the plugin itself left out, by cause.
    pub fn dropped(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        DROP_NAMES.into_iter().zip(self.counts.dropped)
    }
}

/// The table's places in use. A place that changes hands while it is read is left out.
#[must_use]
pub fn communicators(memory: &Memory) -> Vec<CommunicatorProgress> {
    (0..memory.comm_count()).filter_map(|place| communicator(memory, place)).collect()
}

fn communicator(memory: &Memory, place: usize) -> Option<CommunicatorProgress> {
    let before = memory.comm_state(place);
    if before.0 == comm_state::FREE {
        return None;
    }
    let (hash, [rank, nranks, nnodes], [born_ns, ended_ns], text) = memory.comm(place);
    let functions = (0..FUNCTIONS).filter_map(|number| {
        let progress = memory.progress(place, number);
        let function = function_name(number as u8);
        (progress.enqueued > 0).then_some(FunctionProgress { function, progress })
    });
    let functions = functions.collect();
    let after = memory.comm_state(place);
    (after.1 == before.1).then(|| CommunicatorProgress {
        hash,
        rank,
        nranks,
        nnodes,
        name: text,
        state: name(&comm_state::NAMES, after.0),
        born_ns,
        ended_ns,
        functions,
    })
}

fn function_name(number: u8) -> &'static str {
    if number == OTHER {
        return "other";
    }
    name(&function::NAMES, number.into())
}

/// The name of a number that a job wrote.
fn name(names: &[&'static str], number: u32) -> &'static str {
    names.get(number as usize).copied().unwrap_or("unknown")
}

/// `2.32.3` of 23203; before 2.9 there was one digit less for the major version.
fn version(code: u32) -> String {
    match code {
        0 => String::new(),
        1..10_000 => format!("{}.{}.{}", code / 1000, code / 100 % 10, code % 100),
        _ => format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_the_library_writes_them() {
        let all = [(23203, "2.32.3"), (22707, "2.27.7"), (2804, "2.8.4"), (0, "")];
        for (code, text) in all {
            assert_eq!(version(code), text);
        }
    }

    #[test]
    fn numbers_without_a_name_are_unknown() {
        assert_eq!(name(&VENDORS, 7), "unknown");
        assert_eq!(function_name(15), "other");
        assert_eq!(function_name(14), "barrier");
    }
}
