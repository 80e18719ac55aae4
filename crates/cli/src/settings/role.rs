//! The name under which the program was run, which selects defaults.

use std::path::Path;

/// The name under which the program was run; it selects the defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// `ratelease`: loopback listeners, rules in `config/rules`.
    Ratelease,
    /// `ratelimit`, as a replacement of the reference: the reference's defaults, and no subcommand
    /// is needed.
    Ratelimit,
}

// === impl Role ===

impl Role {
    /// Determines the role from the program's name or path, the first argument of a process.
    pub fn of(program: &str) -> Self {
        match Path::new(program).file_name() {
            Some(name) if name == "ratelimit" => Self::Ratelimit,
            _ => Self::Ratelease,
        }
    }
}
