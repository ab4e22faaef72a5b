//! steps: being written.
