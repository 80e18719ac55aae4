//! Whether this process is alive, healthy and ready. The state of the store does not matter:
//! decisions are answered without it, and a sidecar that became unready with Redis would make its
//! whole pod unready.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratelease_cli::settings::HealthyWith;
use ratelease_server::current_rules::CurrentRules;

/// A view of the process's health. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct Health {
    published: Arc<CurrentRules>,
    draining: Arc<AtomicBool>,
    healthy_with: HealthyWith,
}

// === impl Health ===

impl Health {
    /// Creates a view that takes the rules from `published`.
    pub fn new(published: Arc<CurrentRules>, healthy_with: HealthyWith) -> Self {
        Self { published, draining: Arc::default(), healthy_with }
    }

    /// Marks this process as unhealthy from now on: it is about to end.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// The status that `/healthcheck` and the gRPC health service report.
    pub fn is_healthy(&self) -> bool {
        let rules = self.published.current();
        let has_what_it_needs = match self.healthy_with {
            HealthyWith::Nothing => true,
            HealthyWith::FirstLoad => rules.is_some() || !self.published.awaits_first(),
            HealthyWith::Rules => rules.is_some(),
            HealthyWith::Domain => rules.is_some_and(|rules| rules.domains().next().is_some()),
        };
        has_what_it_needs && !self.draining.load(Ordering::Acquire)
    }

    /// Why this process should get no requests; `None` if it is ready.
    pub fn unready(&self) -> Option<&'static str> {
        match self.published.current() {
            _ if self.draining.load(Ordering::Acquire) => Some("draining\n"),
            None if self.published.awaits_first() => Some("the first rules have not arrived yet\n"),
            None => Some("no rules are in force: the first ones were refused; see the log\n"),
            Some(_) => None,
        }
    }
}
