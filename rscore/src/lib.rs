//! stragd's native core.
//!
//! ```text
//! discover ─┬► probes ─┬► engine (drain thread) ─► steps ─► window ─► (Python, exchange) ─► score
//!           └► ring ───┘
//! ```
//!
//! Everything that is counted one by one lives here; Python sees whole windows only.
//! `python` is the one module that knows PyO3.

pub mod discover;
pub mod engine;
mod mapping;
pub mod probes;
pub mod ring;
pub mod score;
pub mod steps;
pub mod window;
pub mod wire;

#[cfg(feature = "python")]
mod python;
