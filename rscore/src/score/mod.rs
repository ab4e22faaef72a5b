//! score: being written.
