//! engine: being written.
