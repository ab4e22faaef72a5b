//! discover: being written.
