//! The probes on real processes: needs root, and fails without.

mod stub;
mod support;
