//! How a request came in, and why it may get no verdict: `service` returns these errors, `grpc` and
//! `http` map them to their statuses, and `metrics` counts them.

use std::fmt;

use ratelease_engine::store::StoreError;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX};

/// The protocol by which a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// `ShouldRateLimit` over gRPC.
    Grpc,
    /// A route over HTTP.
    Http(Route),
}

/// A route over HTTP that decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    /// A request of gRPC in protobuf's JSON mapping.
    Json,
    /// Who calls which endpoint, as an object in JSON.
    ShouldAllow,
    /// The same as a query.
    RateLimit,
}

/// Why a request has no verdict.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Text and code are the reference implementation's.
    #[error("rate limit domain must not be empty")]
    EmptyDomain,
    /// Text and code are the reference implementation's.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// Text and code are the reference implementation's.
    #[error("no rate limit configuration loaded")]
    NoRules,
    /// The first rules have not arrived: the reference implementation listens on no port yet.
    #[error("the first rules have not arrived yet")]
    AwaitsRules,
    /// The request exceeds a bound or has an invalid value.
    #[error("{0}")]
    Invalid(InvalidRequest),
    /// The store failed, and a verdict needs it.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The maximum number of calls is waiting already.
    #[error("too many calls are waiting; raise MAX_IN_FLIGHT if the CPU is idle")]
    Overloaded,
    /// Unfinished messages use all the memory allowed for them, and this connection uses the most.
    #[error("too many incomplete messages; send the message again")]
    NoRoom,
    /// The call panicked. Everything that it took has been put back.
    #[error("internal error; see the log")]
    Panicked,
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InvalidRequest {
    /// More descriptors than [`DESCRIPTORS_MAX`].
    Descriptors,
    /// More entries than [`ENTRIES_MAX`] in the descriptor at this index.
    Entries(usize),
    /// The override of the descriptor at this index has an unknown unit.
    Unit(usize),
}

// === impl Route ===

impl Route {
    /// The method; `/json` takes any, of which this is the usual one.
    pub const fn method(self) -> &'static str {
        match self {
            Self::Json | Self::ShouldAllow => "POST",
            Self::RateLimit => "GET",
        }
    }

    /// The path.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Json => "/json",
            Self::ShouldAllow => "/shouldAllow",
            Self::RateLimit => "/api/v1/rate_limit",
        }
    }
}

// === impl InvalidRequest ===

impl fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InvalidRequest::Descriptors => write!(
                f,
                "more descriptors in one request than the {DESCRIPTORS_MAX} that are accepted"
            ),
            InvalidRequest::Entries(at) => {
                write!(
                    f,
                    "descriptor {at} has more entries than the {ENTRIES_MAX} that are accepted"
                )
            }
            InvalidRequest::Unit(at) => write!(
                f,
                "the limit of descriptor {at} names no unit; \
                 expected SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            ),
        }
    }
}
