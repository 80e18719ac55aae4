//! Exposes private parsers of untrusted input to `tests/fuzz`. For tests only.

pub use crate::replay::read_line as log_line;
