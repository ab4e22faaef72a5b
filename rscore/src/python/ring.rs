//! Rings as Python sees them.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::ring::control::{Control, Mode};
use crate::ring::status::{CommunicatorProgress, RingStatus};
use crate::ring::versions;

/// A control word of Python's arguments; `floor` in bytes.
pub(super) fn control(mode: &str, sample: u32, floor: u64) -> PyResult<Control> {
    let mode = Mode::named(mode).ok_or_else(|| {
        PyValueError::new_err(format!("mode: {mode} is none of default, off, progress, full"))
    })?;
    let sample = u16::try_from(sample).map_err(|_| {
        PyValueError::new_err(format!("sample: {sample} is not between 0 (all) and 65535"))
    })?;
    if floor != 0 && !floor.is_power_of_two() {
        return Err(PyValueError::new_err(format!(
            "floor: {floor} is neither 0 (all) nor a power of two in bytes"
        )));
    }
    // One byte is no floor.
    let floor_log2 = if floor == 0 { 0 } else { floor.trailing_zeros() as u8 };
    Ok(Control { mode, sample, floor_log2 })
}

/// One ring as a dictionary.
pub(super) fn status<'py>(py: Python<'py>, ring: &RingStatus) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("pid", ring.pid)?;
    item.set_item("start_time", ring.start_time)?;
    item.set_item("state", ring.state)?;
    item.set_item("refused", &ring.refused)?;
    item.set_item("others", ring.others)?;
    item.set_item("vendor", ring.vendor)?;
    item.set_item("api", ring.api)?;
    item.set_item("library", &ring.library)?;
    item.set_item("mode", ring.mode)?;
    item.set_item("sample", ring.sample)?;
    item.set_item("floor", ring.floor)?;
    item.set_item("wanted", ring.wanted)?;
    item.set_item("wanted_sample", ring.wanted_sample)?;
    item.set_item("wanted_floor", ring.wanted_floor)?;
    item.set_item("controllable", ring.controllable)?;
    item.set_item("clock", ring.clock)?;
    item.set_item("clock_hz", ring.clock_hz)?;
    item.set_item("clock_moved", ring.clock_moved)?;
    item.set_item("quirk", ring.quirk)?;
    item.set_item("quirk_reason", versions::reason(ring.quirk).unwrap_or(""))?;
    item.set_item("chained", &ring.chained)?;
    item.set_item("records", ring.counts.records)?;
    item.set_item("lost", ring.counts.lost)?;
    item.set_item("invalid", ring.counts.invalid)?;
    item.set_item("implausible", ring.counts.implausible)?;
    item.set_item("jumps", ring.counts.jumps)?;
    let dropped = PyDict::new(py);
    for (cause, count) in ring.dropped() {
        dropped.set_item(cause, count)?;
    }
    item.set_item("dropped", dropped)?;
    let communicators = PyList::empty(py);
    for known in &ring.communicators {
        communicators.append(communicator(py, known)?)?;
    }
    item.set_item("communicators", communicators)?;
    Ok(item)
}

fn communicator<'py>(
    py: Python<'py>,
    known: &CommunicatorProgress,
) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("hash", known.hash)?;
    item.set_item("rank", known.rank)?;
    item.set_item("nranks", known.nranks)?;
    item.set_item("nnodes", known.nnodes)?;
    item.set_item("name", &known.name)?;
    item.set_item("state", known.state)?;
    item.set_item("born_ns", known.born_ns)?;
    item.set_item("ended_ns", known.ended_ns)?;
    let functions = PyDict::new(py);
    for entry in &known.functions {
        let progress = PyDict::new(py);
        progress.set_item("enqueued", entry.progress.enqueued)?;
        progress.set_item("started", entry.progress.started)?;
        progress.set_item("completed", entry.progress.completed)?;
        progress.set_item("enqueued_ns", entry.progress.enqueued_ns)?;
        progress.set_item("started_ns", entry.progress.started_ns)?;
        progress.set_item("completed_ns", entry.progress.completed_ns)?;
        progress.set_item("sequence", entry.progress.sequence)?;
        progress.set_item("bytes", entry.progress.bytes)?;
        functions.set_item(entry.function, progress)?;
    }
    item.set_item("functions", functions)?;
    Ok(item)
}
