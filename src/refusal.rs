//! Why a call gets no verdict.

use std::fmt;

use ratelease_engine::store::StoreError;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX};

/// Why a request has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Text and code are the reference's.
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    /// Text and code are the reference's.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// Text and code are the reference's.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The request breaks a bound or names something that does not exist.
    #[error("{0}")]
    Invalid(Fault),
    /// No verdict without the store.
    #[error("{0}")]
    Store(StoreError),
    /// As many calls wait as may.
    #[error("too many calls are under way; raise MAX_IN_FLIGHT if they only wait")]
    Overloaded,
    /// Unfinished messages take all the room there is for them, this connection's the most.
    #[error("no room for the message: too many unfinished ones are under way; send it again")]
    NoRoom,
    /// Nothing was charged that has not gone back.
    #[error("the call failed here (a fault of the program's own; the log has more)")]
    Panicked,
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// More than [`DESCRIPTORS_MAX`].
    Descriptors,
    /// More than [`ENTRIES_MAX`] in the descriptor of this index.
    Entries(usize),
    /// The override of the descriptor of this index names no unit that exists.
    Unit(usize),
}

// === impl Fault ===

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Descriptors => write!(
                f,
                "more descriptors in one request than the {DESCRIPTORS_MAX} that are accepted"
            ),
            Fault::Entries(at) => {
                write!(
                    f,
                    "descriptor {at} has more entries than the {ENTRIES_MAX} that are accepted"
                )
            }
            Fault::Unit(at) => write!(
                f,
                "the limit of descriptor {at} names no unit; \
                 expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            ),
        }
    }
}
