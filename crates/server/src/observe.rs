//! Passes each decision to the observers that record it: `metrics`, `hot_keys` and `telemetry`.
//! `service` calls it.
//!
//! Runs in the path of every request: takes no lock, touches no counter that all cores share, and
//! allocates nothing for a request of the common kind.

use http::HeaderMap;
use ratelease_engine::limiter::Resolved;
use ratelease_engine::verdict::Decision;
use ratelease_rules::request::Request;

use crate::hot_keys::HotKeys;
use crate::metrics::Meters;
use crate::metrics::counter::Count;
use crate::request::RequestError;
use crate::request::Transport;
use crate::samples::Samples;
use crate::trace::{Span, Tracer};

/// The observers. A cheap handle: clones share all state.
#[derive(Debug, Clone, Default)]
pub struct Observers {
    /// Counts decisions.
    pub meters: Option<Meters>,
    /// Counts the hottest keys.
    pub hot_keys: HotKeys,
    /// Logs a sample of the decisions.
    pub samples: Samples,
    /// Begins spans; the servers record the decision in them.
    pub tracer: Tracer,
}

// === impl Observers ===

impl Observers {
    /// Begins a span for a request that arrives at `transport` with these headers, if it is to be
    /// traced.
    pub fn begin(&self, transport: Transport, headers: &HeaderMap) -> Option<Span> {
        self.tracer.begin(transport, headers)
    }

    /// Event counts of samples and spans since the process began.
    pub fn counts(&self) -> Vec<Count> {
        self.samples.counts().into_iter().chain(self.tracer.counts()).collect()
    }

    /// Records a request that got no verdict.
    pub fn note_error(&self, error: &RequestError) {
        if let Some(meters) = &self.meters {
            meters.note_error(error);
        }
    }

    /// Records a decision.
    pub fn note(&self, decision: &Decision<'_, '_, '_>) {
        if let Some(meters) = &self.meters {
            meters.note(decision);
        }
        self.hot_keys.note(decision);
        self.samples.note(decision);
    }

    /// Records a request for which the store gave no verdict, and what it would have charged.
    pub fn note_unanswered(&self, request: &Request<'_>, resolved: &[Resolved<'_>]) {
        if let Some(meters) = &self.meters {
            meters.note_unanswered(request, resolved);
        }
    }
}
