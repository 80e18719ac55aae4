//! Pages of lists, and how times are written.

use jiff::Timestamp;
use serde::Deserialize;
use utoipa::IntoParams;

use super::problem::{FieldFault, Problem};

/// Items of a page, if the query names no number, and at most.
const PAGE: usize = 100;
pub(super) const PAGE_MAX: usize = 1000;

/// Maximum bytes of a text that is searched for: databases compare it at each place of each rule.
const SEARCH_BYTES_MAX: usize = 128;

/// Which changes to list.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// Before this number: `next` of the page before.
    pub(super) before: Option<i64>,
    /// At most so many, up to 1000; 100 by default.
    #[param(minimum = 1, maximum = 1000)]
    pub(super) limit: Option<usize>,
}

/// The number of items of a page.
pub(super) fn page_size(limit: Option<usize>) -> Result<usize, Problem> {
    let limit = limit.unwrap_or(PAGE);
    if (1..=PAGE_MAX).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::malformed(format!("'limit' is {limit}; expected 1 to {PAGE_MAX}")))
}

/// Refuses to search for a text that is too long.
pub(super) fn check_search(text: &str) -> Result<(), Problem> {
    if text.len() <= SEARCH_BYTES_MAX {
        return Ok(());
    }
    let message = format!("has {} bytes; expected at most {SEARCH_BYTES_MAX}", text.len());
    Err(Problem::faults("the query has a fault", vec![FieldFault::of("q", message)]))
}

/// A time as RFC 3339 writes it.
pub(super) fn time(milliseconds: i64) -> String {
    Timestamp::from_millisecond(milliseconds).unwrap_or_default().to_string()
}
