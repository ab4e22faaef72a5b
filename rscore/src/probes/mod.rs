//! probes: being written.
