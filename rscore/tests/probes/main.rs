//! The probes on real processes: needs root, and fails without.
// Tests show their figures.
#![allow(clippy::print_stdout)]

mod abi;
mod files;
mod gloo;
mod program;
mod real;
mod stub;
mod support;
