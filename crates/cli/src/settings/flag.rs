//! What flags have in common, and the name that the program was run under.

use std::path::Path;

use clap::ValueHint;

/// What the help text calls a flag's value that is true or false.
pub(crate) const BOOL: &str = "BOOL";

/// What completions offer for a flag that names a file.
pub(crate) const FILE: ValueHint = ValueHint::FilePath;

/// The name the program was run under; it decides the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// As itself: loopback listeners, rules of `config/rules`.
    Ratelease,
    /// As `ratelimit`, in place of the reference: its defaults, and no subcommand needed.
    Ratelimit,
}

// === impl Role ===

impl Role {
    /// From the program's name or path, as in the first argument of a process.
    pub fn of(program: &str) -> Self {
        match Path::new(program).file_name() {
            Some(name) if name == "ratelimit" => Self::Ratelimit,
            _ => Self::Ratelease,
        }
    }
}
