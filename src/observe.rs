//! What is told of each decision, to whoever keeps count of them.
//!
//! Runs on the way of every request: what is done here takes no lock and touches no counter that
//! all cores share, and allocates nothing for a request of the common kind.

use std::time::Duration;

use crate::intake::Refusal;
use crate::request::Request;
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
}

/// Whoever keeps count. A handle: clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Observers {}

// === impl Observers ===

impl Observers {
    /// Takes note of a decision.
    pub fn note(&self, _decision: &Decision<'_, '_, '_>) {}

    /// Takes note of a request that got no verdict.
    pub fn note_refusal(&self, _refusal: &Refusal) {}
}
