//! **Replay**: decides the requests of a log again, at the times at which they were logged, with
//! the matcher and the arithmetic of the sidecar. Pure: it opens no file and reads no clock.
//!
//! ```text
//! line ─▶ record: Envoy's format, JSON, a decision sample ─▶ LineFormat ─▶ request
//!                                       Replay: ExactLimiter, ReplayCounts ◀─┘
//! ```
//! `ratectl replay` reads logs with it, and the control plane compares a draft with the published
//! rules. Memory is bounded for any log.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "`pub` in a private module is what another file uses")]

mod counts;
pub mod exact_limiter;
mod line_format;
mod record;

pub use counts::{Decided, KeyDenials, Replay, ReplayCounts, RuleCounts, Unreadable};
pub use line_format::{FormatFault, LineFormat, LineResult, Mapping, read_line};
pub use record::show_time;

/// Maximum bytes of a line. Envoy's headers take 60 KiB at most, and a line has several of them.
pub const LINE_BYTES_MAX: usize = 1 << 20;
