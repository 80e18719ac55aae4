//! Ways in for `tests/fuzz` to what reads hostile input and is private. For tests alone.

pub use crate::replay::read_line as log_line;
