//! The shared-memory ring of the profiler plugin: what its process's device timed.

pub mod record;
