//! What is told of each decision, to whoever keeps count of them.
//!
//! Runs on the way of every request: what is done here takes no lock and touches no counter that
//! all cores share, and allocates nothing for a request of the common kind.

use http::HeaderMap;
use ratelease_engine::observer::{Decision, Observer};
use ratelease_engine::store::Count;
use ratelease_rules::Rules;
use ratelease_rules::request::Request;

use crate::hot::HotKeys;
use crate::metrics::Meters;
use crate::refusal::Refusal;
use crate::telemetry::Samples;
use crate::telemetry::trace::{Door, Span, Tracer};

/// Whoever keeps count. A handle: clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Observers {
    meters: Option<Meters>,
    /// Counts the hottest keys.
    hot_keys: HotKeys,
    /// Logs a share of the decisions.
    samples: Samples,
    /// Begins spans; the doors note in them what was decided.
    tracer: Tracer,
}

// === impl Observers ===

impl Observers {
    /// The same, and `meters` count.
    #[must_use]
    pub fn with_meters(mut self, meters: Meters) -> Self {
        self.meters = Some(meters);
        self
    }

    /// The same, and `hot_keys` counts.
    #[must_use]
    pub fn with_hot_keys(mut self, hot_keys: HotKeys) -> Self {
        self.hot_keys = hot_keys;
        self
    }

    /// The same, and `samples` log some of the decisions.
    #[must_use]
    pub fn with_samples(mut self, samples: Samples) -> Self {
        self.samples = samples;
        self
    }

    /// The same, and `tracer` traces some of the requests.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Tracer) -> Self {
        self.tracer = tracer;
        self
    }

    /// The span of a request that comes in at `door` with these headers, if it is to be traced.
    pub fn begin(&self, door: Door, headers: &HeaderMap) -> Option<Span> {
        self.tracer.begin(door, headers)
    }

    /// What has happened to samples and spans since the process began, by name.
    pub fn counts(&self) -> Vec<Count> {
        self.samples.counts().into_iter().chain(self.tracer.counts()).collect()
    }

    /// Takes note of a request that got no verdict.
    pub fn note_refusal(&self, refusal: &Refusal) {
        if let Some(meters) = &self.meters {
            meters.note_refusal(refusal);
        }
    }
}

impl Observer for Observers {
    fn note(&self, decision: &Decision<'_, '_, '_>) {
        if let Some(meters) = &self.meters {
            meters.note(decision);
        }
        self.hot_keys.note(decision);
        self.samples.note(decision);
    }

    fn note_unanswered(&self, rules: &Rules, request: &Request<'_>) {
        if let Some(meters) = &self.meters {
            meters.note_unanswered(rules, request);
        }
    }
}
