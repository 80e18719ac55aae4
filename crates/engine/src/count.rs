//! Event counters that parts of the program keep about themselves.

/// A name in `snake_case`, and how often the named event happened since the process began.
pub type Count = (&'static str, u64);
