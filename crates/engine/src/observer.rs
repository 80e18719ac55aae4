//! What is told of each decision, to whoever keeps count of them.

use std::time::Duration;

use ratelease_rules::Rules;
use ratelease_rules::request::Request;

use crate::time::Time;
use crate::verdict::Verdict;

/// A request that was decided.
#[derive(Debug, Clone, Copy)]
pub struct Decision<'a, 'q, 'r> {
    /// What was asked.
    pub request: &'a Request<'q>,
    /// What was answered.
    pub verdict: &'a Verdict<'r>,
    /// From the decoded request to the verdict, with what it waited for leases and slots.
    pub took: Duration,
    /// When the verdict was there.
    pub now: Time,
}

/// Keeps count of decisions. Runs on the way of every request: what is done here takes no lock and
/// touches no counter that all cores share, and allocates nothing for a request of the common kind.
pub trait Observer {
    /// Takes note of a decision.
    fn note(&self, decision: &Decision<'_, '_, '_>);

    /// Takes note of a request under these rules that the store gave no verdict on.
    fn note_unanswered(&self, _rules: &Rules, _request: &Request<'_>) {}
}
