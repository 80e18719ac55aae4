//! Ways in for `tests/fuzz` to what reads hostile input and is private. For tests alone.

pub use crate::cli::replay::read_line as log_line;

/// How many descriptors a body that is sent to `/json` has.
///
/// # Errors
///
/// It is no request; says why.
pub fn json(body: &[u8]) -> Result<usize, String> {
    ratelease_rules::request::json::parse(body).map(|request| request.borrow().descriptors.len())
}
