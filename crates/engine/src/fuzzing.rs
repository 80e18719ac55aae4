//! Gives `tests/fuzz` access to the private code that reads hostile replies. For tests alone.

pub use crate::store::redis::fuzzing::{cluster_slots, script_reply};
