//! Probes: one BPF program, attached to the collective functions of whole files.
//!
//! ```text
//! table.txt ─► abi (places) ─► plan (sites: instruction) ─► Probes::attach ─► BPF ─► Drain
//! ```
//!
//! Nothing in a job is changed but the breakpoints that the kernel places; every file is
//! hostile input.

mod abi;
mod counters;
mod encode;
mod error;
mod instruction;
mod layout;
mod loader;
mod log;
mod plan;
mod ring;
mod site;
mod sites;
mod table;

pub use abi::Arch;
pub use counters::Counters;
pub use error::{missing_capabilities, Error};
pub use instruction::{choose, Choice};
pub use loader::{LinkId, Method, Options, Probes, OBJECT};
pub use plan::{names, plan, plan_for, Plan};
pub use ring::Drain;
pub use site::{flag, Field, Place, Site, Spec};
pub use table::{rows, Kinds, Row};
