//! Ways in for `tests/fuzz` to what reads hostile replies and is private. For tests alone.

pub use crate::store::redis::fuzzing::{cluster_slots, script_reply};
