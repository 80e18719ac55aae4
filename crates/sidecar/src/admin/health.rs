//! Whether this process is alive, healthy and ready. The state of the store does not matter:
//! decisions are answered without it, and a sidecar that became unready with Redis would make its
//! whole pod unready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratelease_server::current_rules::CurrentRules;

/// A view of the process's health. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Health {
    published: Arc<CurrentRules>,
    draining: Arc<AtomicBool>,
    without_rules: WithoutRules,
}

/// Whether a process without rules is healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutRules {
    /// As in the reference implementation.
    Healthy,
    /// With `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.
    Unhealthy,
}

// === impl Health ===

impl Health {
    /// Creates a view that takes the rules from `published`.
    pub fn new(published: Arc<CurrentRules>, without_rules: WithoutRules) -> Self {
        Self { published, draining: Arc::default(), without_rules }
    }

    /// Marks this process as unhealthy from now on: it is about to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The status that `/healthcheck` and the gRPC health service report.
    pub fn is_healthy(&self) -> bool {
        let rules = self.published.current();
        let has_rules = rules.is_some_and(|rules| rules.domains().next().is_some());
        !self.draining.load(Ordering::Acquire)
            && (has_rules || self.without_rules == WithoutRules::Healthy)
    }

    /// Why this process should get no requests; `None` if it is ready.
    pub fn unready(&self) -> Option<&'static str> {
        match self.published.current() {
            _ if self.draining.load(Ordering::Acquire) => Some("draining\n"),
            None => Some("no rules were loaded yet\n"),
            Some(_) => None,
        }
    }
}
