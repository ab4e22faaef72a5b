//! The probes on real processes: needs root, and fails without.

mod abi;
mod files;
mod gloo;
mod program;
mod real;
mod stub;
mod support;
