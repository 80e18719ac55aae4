//! The sidecar's binary: flags, logging, run until a signal, drain.

fn main() {}
