//! The boundary to Python, typed in `stragd/_rscore.pyi`. The only module that knows PyO3.

use std::time::Duration;

use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::engine;
use crate::probes;
use crate::score;
use crate::steps;
use crate::window::{self, RankWindow};
use crate::wire::function;

mod ring;

/// Names of the functions in `RankStatus::missed`.
fn missed_names(missed: u32) -> Vec<&'static str> {
    let named = function::NAMES.iter().enumerate();
    named.filter(|(bit, _)| missed & (1 << bit) != 0).map(|(_, name)| *name).collect()
}

const ROW: usize = std::mem::size_of::<RankWindow>();

/// numpy's dtype of a RankWindow, built from the layout that the struct itself is checked against.
fn row_dtype(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let spec = PyDict::new(py);
    spec.set_item("names", window::LAYOUT.iter().map(|f| f.0).collect::<Vec<_>>())?;
    spec.set_item("formats", window::LAYOUT.iter().map(|f| f.1).collect::<Vec<_>>())?;
    spec.set_item("offsets", window::LAYOUT.iter().map(|f| f.2).collect::<Vec<_>>())?;
    spec.set_item("itemsize", ROW)?;
    py.import("numpy")?.getattr("dtype")?.call1((spec,))
}

fn rows_to_array<'py>(
    py: Python<'py>,
    rows: &[RankWindow],
    dtype: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: RankWindow is repr(C), has no padding (144 bytes of fields, checked by LAYOUT's
    // test) and any of its bytes may be read; the slice lives as long as `rows`.
    let bytes = unsafe { std::slice::from_raw_parts(rows.as_ptr().cast::<u8>(), rows.len() * ROW) };
    PyArray1::from_slice(py, bytes).call_method1("view", (dtype,))
}

/// Calls `take` with the rows of an array. They are numpy's own memory, which nobody else changes
/// meanwhile: `take` holds the GIL. A window of few ranks is scored faster than numpy makes a view,
/// so its memory is looked at directly.
fn with_rows<T>(windows: &Bound<'_, PyAny>, take: impl FnOnce(&[RankWindow]) -> T) -> PyResult<T> {
    let array = windows.cast::<PyUntypedArray>().map_err(|_| {
        let given = windows.get_type();
        PyTypeError::new_err(format!("windows: {given} where an array of stragd.window is needed"))
    })?;
    let itemsize = array.dtype().itemsize();
    if itemsize != ROW {
        return Err(PyValueError::new_err(format!(
            "windows: rows of {itemsize} bytes where RANK_WINDOW_LAYOUT has {ROW}; \
             use the dtype of stragd.window"
        )));
    }
    if array.dtype().has_object() {
        return Err(PyValueError::new_err("windows: the rows hold Python objects"));
    }
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err(
            "windows: the array is not contiguous; pass numpy.ascontiguousarray",
        ));
    }
    let count = array.len();
    if count == 0 {
        return Ok(take(&[]));
    }
    // SAFETY: it is an array; nothing but its address is taken, as which every type will do.
    let bytes = unsafe { windows.cast_unchecked::<PyArray1<u8>>() }.data();
    if bytes.cast::<RankWindow>().is_aligned() {
        // SAFETY: aligned, contiguous, `count` rows of ROW bytes, and every bit pattern is a valid
        // RankWindow (integers and floats only).
        return Ok(take(unsafe { std::slice::from_raw_parts(bytes.cast(), count) }));
    }
    let mut rows = vec![RankWindow::default(); count];
    // SAFETY: both hold `count` rows of ROW bytes and do not overlap, and every bit pattern is a
    // valid RankWindow.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes, rows.as_mut_ptr().cast::<u8>(), count * ROW);
    }
    Ok(take(&rows))
}

/// Reads one optional key of a config dictionary.
fn option<'py, T: FromPyObjectOwned<'py>>(
    config: &Bound<'py, PyDict>,
    key: &str,
    default: T,
) -> PyResult<T> {
    match config.get_item(key)? {
        None => Ok(default),
        Some(value) => value.extract().map_err(|_| {
            PyValueError::new_err(format!("{key}: {value} has the wrong type for this key"))
        }),
    }
}

fn known_keys(config: &Bound<'_, PyDict>, known: &[&str]) -> PyResult<()> {
    for key in config.keys() {
        let key: String = key.extract()?;
        if !known.contains(&key.as_str()) {
            return Err(PyValueError::new_err(format!(
                "{key}: unknown key, known are {}",
                known.join(", ")
            )));
        }
    }
    Ok(())
}

/// A ring size: a power of two of at least a page.
fn ring_bytes(config: &Bound<'_, PyDict>, key: &str, default: u32) -> PyResult<u32> {
    let bytes = option(config, key, default)?;
    if !bytes.is_power_of_two() || !(4096..=1 << 30).contains(&bytes) {
        return Err(PyValueError::new_err(format!(
            "{key}: {bytes} is not a power of two between 4096 and 2^30"
        )));
    }
    Ok(bytes)
}

/// A span of time in seconds, within bounds.
fn seconds(config: &Bound<'_, PyDict>, key: &str, default: f64) -> PyResult<Duration> {
    let value = option(config, key, default)?;
    if !(0.1..=86_400.0).contains(&value) {
        return Err(PyValueError::new_err(format!("{key}: {value} is not between 0.1 and 86400")));
    }
    Ok(Duration::from_secs_f64(value))
}

fn count(config: &Bound<'_, PyDict>, key: &str, default: usize, most: usize) -> PyResult<usize> {
    let value = option(config, key, default)?;
    if !(1..=most).contains(&value) {
        return Err(PyValueError::new_err(format!("{key}: {value} is not between 1 and {most}")));
    }
    Ok(value)
}

fn engine_config(config: &Bound<'_, PyDict>) -> PyResult<engine::Config> {
    known_keys(
        config,
        &[
            "ring_bytes",
            "lifecycle_ring_bytes",
            "sweep_seconds",
            "window_steps",
            "window_seconds",
            "allow_single_step",
            "attach_method",
            "max_processes",
            "measure_run_time",
        ],
    )?;
    let defaults = probes::Options::default();
    let method: String = option(config, "attach_method", "auto".into())?;
    let method = match method.as_str() {
        "auto" => probes::Method::Auto,
        "uprobe_multi" => probes::Method::Multi,
        "perf" => probes::Method::Perf,
        other => {
            return Err(PyValueError::new_err(format!(
                "attach_method: {other} is none of auto, uprobe_multi, perf"
            )))
        }
    };
    let max_processes = count(config, "max_processes", 1024, 65_536)?;
    let window = seconds(config, "window_seconds", 30.0)?;
    Ok(engine::Config {
        probes: probes::Options {
            bulk_bytes: ring_bytes(config, "ring_bytes", defaults.bulk_bytes)?,
            lifecycle_bytes: ring_bytes(config, "lifecycle_ring_bytes", defaults.lifecycle_bytes)?,
            method,
        },
        allow_single_step: option(config, "allow_single_step", false)?,
        measure_run_time: option(config, "measure_run_time", true)?,
        sweep: seconds(config, "sweep_seconds", 30.0)?,
        max_processes,
        windows: steps::Config {
            window_steps: count(config, "window_steps", 100, 100_000)?,
            window_ns: window.as_nanos() as u64,
            max_processes,
            tenths: true,
        },
    })
}

#[pyclass(module = "stragd._rscore")]
struct Engine {
    engine: engine::Engine,
}

#[pymethods]
impl Engine {
    #[new]
    fn new(py: Python<'_>, config: &Bound<'_, PyDict>) -> PyResult<Self> {
        let config = engine_config(config)?;
        let engine = py
            .detach(|| engine::Engine::new(config))
            .map_err(|e| PyOSError::new_err(e.to_string()))?;
        Ok(Self { engine })
    }

    fn start(&mut self) -> PyResult<()> {
        self.engine.start().map_err(|e| PyOSError::new_err(e.to_string()))
    }

    fn close(&mut self, py: Python<'_>) {
        py.detach(|| self.engine.close());
    }

    fn take_processes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for change in self.engine.take_changes() {
            let item = PyDict::new(py);
            item.set_item("pid", change.process.pid)?;
            item.set_item("start_time", change.process.start_time)?;
            item.set_item("state", if change.kinds.is_some() { "seen" } else { "gone" })?;
            item.set_item("libraries", change.kinds.unwrap_or_default().names())?;
            list.append(item)?;
        }
        Ok(list)
    }

    fn assign(
        &self,
        pid: u32,
        start_time: u64,
        job: u64,
        rank: u32,
        world_size: u32,
        class_id: u32,
    ) -> bool {
        self.engine.assign(pid, start_time, job, rank, world_size, class_id)
    }

    fn take_windows<'py>(&self, py: Python<'py>, timeout: f64) -> PyResult<Bound<'py, PyList>> {
        let timeout = Duration::try_from_secs_f64(timeout)
            .map_err(|_| PyValueError::new_err(format!("timeout: {timeout} is no duration")))?;
        let windows = py.detach(|| self.engine.take_windows(timeout));
        let dtype = row_dtype(py)?;
        let list = PyList::empty(py);
        for rows in &windows {
            list.append(rows_to_array(py, rows, &dtype)?)?;
        }
        Ok(list)
    }

    fn ranks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for rank in self.engine.ranks() {
            let item = PyDict::new(py);
            item.set_item("pid", rank.pid)?;
            item.set_item("start_time", rank.start_time)?;
            item.set_item("job", rank.job)?;
            item.set_item("rank", rank.rank)?;
            item.set_item("world_size", rank.world_size)?;
            item.set_item("events", rank.events)?;
            item.set_item("records", rank.records)?;
            item.set_item("coverage", rank.coverage)?;
            item.set_item("missed", missed_names(rank.missed))?;
            item.set_item("collectives", rank.collectives)?;
            item.set_item("irregular", rank.irregular)?;
            item.set_item("steps", rank.steps)?;
            item.set_item("period", rank.period)?;
            item.set_item("signature", rank.signature)?;
            item.set_item("source", rank.source)?;
            item.set_item("last_event_ns", rank.last_event_ns)?;
            item.set_item("in_flight", rank.in_flight)?;
            let communicators = PyList::empty(py);
            for known in rank.communicators {
                let facts = PyDict::new(py);
                facts.set_item("id", known.id)?;
                facts.set_item("rank", known.rank)?;
                facts.set_item("nranks", known.nranks)?;
                facts.set_item("collectives", known.collectives)?;
                facts.set_item("hash", known.hash)?;
                facts.set_item("coverage", known.coverage)?;
                communicators.append(facts)?;
            }
            item.set_item("communicators", communicators)?;
            list.append(item)?;
        }
        Ok(list)
    }

    fn libraries<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for status in self.engine.libraries() {
            let item = PyDict::new(py);
            item.set_item("kinds", status.library.kinds.names())?;
            item.set_item("path", &status.library.path)?;
            item.set_item("build_id", status.library.build_id_hex())?;
            item.set_item("version", &status.library.version)?;
            item.set_item("state", status.state.name())?;
            item.set_item("method", status.method)?;
            item.set_item("probes", status.probes)?;
            let refused: Vec<_> =
                status.refused.iter().map(|(symbol, why)| format!("{symbol}: {why}")).collect();
            item.set_item("refused", refused)?;
            item.set_item("missing", &status.missing)?;
            item.set_item("error", &status.error)?;
            item.set_item("processes", &status.processes)?;
            list.append(item)?;
        }
        Ok(list)
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let figures = PyDict::new(py);
        for (name, value) in py.detach(|| self.engine.counters()) {
            figures.set_item(name, value)?;
        }
        Ok(figures)
    }

    fn rings<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for ring in py.detach(|| self.engine.rings()) {
            list.append(ring::status(py, &ring)?)?;
        }
        Ok(list)
    }

    #[pyo3(signature = (mode, sample, floor, pid))]
    fn set_ring(&self, mode: &str, sample: u32, floor: u64, pid: Option<u32>) -> PyResult<usize> {
        Ok(self.engine.set_ring(ring::control(mode, sample, floor)?, pid))
    }

    fn set_probes(&self, py: Python<'_>, on: bool) {
        py.detach(|| self.engine.set_probes(on));
    }

    fn progress(&self) -> u64 {
        self.engine.progress()
    }
}

fn finding_dict<'py>(py: Python<'py>, finding: &score::Finding) -> PyResult<Bound<'py, PyDict>> {
    let item = PyDict::new(py);
    item.set_item("id", finding.id)?;
    item.set_item("job", finding.job)?;
    item.set_item("kind", finding.kind.name())?;
    item.set_item("state", finding.state.name())?;
    item.set_item("rank", finding.rank)?;
    item.set_item("class_id", finding.class_id)?;
    item.set_item("signature", finding.signature)?;
    item.set_item("since_window", finding.since_window)?;
    item.set_item("since_time_ns", finding.since_time_ns)?;
    item.set_item("window", finding.window)?;
    item.set_item("slowdown", finding.slowdown)?;
    item.set_item("cost_ns", finding.cost_ns)?;
    item.set_item("cost_low_ns", finding.cost_low_ns)?;
    item.set_item("cost_high_ns", finding.cost_high_ns)?;
    item.set_item("cost_fraction", finding.cost_fraction)?;
    item.set_item("confidence", finding.confidence)?;
    item.set_item("basis", finding.basis.name())?;
    item.set_item("own_ns", finding.own_ns)?;
    item.set_item("peers_own_ns", finding.peers_own_ns)?;
    item.set_item("peers", finding.peers)?;
    item.set_item("work", finding.work)?;
    item.set_item("moved", finding.moved)?;
    Ok(item)
}

#[pyclass(module = "stragd._rscore")]
struct Scorer {
    scorer: score::Scorer,
}

#[pymethods]
impl Scorer {
    #[new]
    fn new(config: &Bound<'_, PyDict>) -> PyResult<Self> {
        known_keys(
            config,
            &[
                "false_alarms_per_million",
                "min_slowdown",
                "confirm_windows",
                "clear_windows",
                "history_windows",
            ],
        )?;
        let default = score::Config::default();
        let config = score::Config {
            false_alarms_per_million: option(
                config,
                "false_alarms_per_million",
                default.false_alarms_per_million,
            )?,
            min_slowdown: option(config, "min_slowdown", default.min_slowdown)?,
            confirm_windows: option(config, "confirm_windows", default.confirm_windows)?,
            clear_windows: option(config, "clear_windows", default.clear_windows)?,
            history_windows: option(config, "history_windows", default.history_windows)?,
        };
        let scorer = score::Scorer::new(config).map_err(PyValueError::new_err)?;
        Ok(Self { scorer })
    }

    fn update<'py>(
        &mut self,
        py: Python<'py>,
        windows: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let update = with_rows(windows, |rows| self.scorer.update(rows))?;
        let findings = PyList::empty(py);
        for finding in &update.findings {
            findings.append(finding_dict(py, finding)?)?;
        }
        let abstentions = PyList::empty(py);
        for abstention in &update.abstentions {
            let item = PyDict::new(py);
            item.set_item("job", abstention.job)?;
            item.set_item("rank", abstention.rank)?;
            item.set_item("window", abstention.window)?;
            item.set_item("reason", abstention.reason)?;
            abstentions.append(item)?;
        }
        let result = PyDict::new(py);
        result.set_item(intern!(py, "findings"), findings)?;
        result.set_item(intern!(py, "abstentions"), abstentions)?;
        result.set_item(intern!(py, "refused_rows"), update.refused_rows)?;
        Ok(result)
    }

    fn save<'py>(&mut self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.scorer.save())
    }

    fn restore(&mut self, state: &[u8]) -> PyResult<()> {
        self.scorer.restore(state).map_err(PyValueError::new_err)
    }

    fn ends(&self, job: u64) -> Option<(u64, Option<u64>, u64)> {
        self.scorer.ends(job).map(|ends| (ends.window, ends.tenth, ends.step))
    }

    fn jobs(&self) -> Vec<u64> {
        self.scorer.jobs().collect()
    }

    fn forget(&mut self, job: u64) {
        self.scorer.forget(job);
    }

    #[pyo3(signature = (from_job, to_job, ranks))]
    fn inherit(&mut self, from_job: u64, to_job: u64, ranks: Vec<u32>) -> usize {
        self.scorer.inherit(from_job, to_job, &ranks)
    }
}

#[pymodule]
fn _rscore(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("VERSION", env!("CARGO_PKG_VERSION"))?;
    module.add("RANK_WINDOW_LAYOUT", window::LAYOUT.to_vec())?;
    module.add("RANK_WINDOW_BYTES", ROW)?;
    module.add_class::<Engine>()?;
    module.add_class::<Scorer>()
}
