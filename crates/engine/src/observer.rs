//! The trait of observers, which record decisions.

use std::time::Duration;

use ratelease_rules::Rules;
use ratelease_rules::request::Request;

use crate::time::Time;
use crate::verdict::Verdict;

/// A request that was decided.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a, 'q, 'r> {
    /// The request.
    pub request: &'a Request<'q>,
    /// The verdict on it.
    pub verdict: &'a Verdict<'r>,
    /// Time from the decoded request to the verdict, including waits for leases and slots.
    pub took: Duration,
    /// When the verdict was made.
    pub now: Time,
}

/// Records decisions. It runs on the path of every request: an implementation takes no lock,
/// touches no counter that all cores share, and allocates nothing for a request of the common kind.
pub trait Observer {
    /// Records a decision.
    fn note(&self, decision: &Decision<'_, '_, '_>);

    /// Records a request under these rules for which the store gave no verdict.
    fn note_unanswered(&self, _rules: &Rules, _request: &Request<'_>) {}
}
