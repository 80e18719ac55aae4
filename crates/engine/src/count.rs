//! Event counters that parts of the program keep about themselves.

/// How often something happened since the process began, by a name in `snake_case`.
pub type Count = (&'static str, u64);
