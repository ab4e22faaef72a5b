//! Finds the processes that use a collective library, and the library files themselves.

pub mod elf;
mod reader;
mod text;
