//! The plugin's shared-memory rings, read from outside.
//!
//! ```text
//! /proc/PID/maps ─► source (checks, once) ─► memory ─► reader (stamps, losses) ─► record
//!                                              │          └─ clock (device ─► host time)
//!                                              └─► status, control
//! ```
//!
//! A job can write every byte of its ring at any time. So sizes and places are checked once and
//! kept, every read is an atomic one of a word that was inside the mapping then, and whatever it
//! says costs that job's data and a bounded time.

mod clock;
pub mod control;
pub mod layout;
mod memory;
mod reader;
mod record;
pub mod source;
pub mod status;
pub mod versions;

pub use layout::flag;
pub use memory::Memory;
pub use reader::{Counts, Reader, Turn};
pub use record::Record;
