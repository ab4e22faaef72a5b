//! The probes on real processes: needs root, and fails without.

mod gloo;
mod stub;
mod support;
