//! Rings of real processes and of hostile ones; needs root.
// Tests show their figures.
#![allow(clippy::print_stdout)]

mod hostile;
mod layout;
mod plugin;
mod processes;
mod read;
mod support;
