//! Passes each decision to `metrics` and `hot_keys`, and logs a sample of them; has the tracer,
//! whose spans the servers fill. `service` calls it.
//!
//! Runs in the path of every request: but for decisions that are sampled for the log, it touches no
//! counter that all cores share. It waits for a lock, and allocates, only for those, and for the
//! first hit of a rule or a value.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use ratelease_engine::limiter::Resolved;
use ratelease_engine::rng;
use ratelease_engine::time::Clock;
use ratelease_engine::verdict::{Decision, Status};
use ratelease_rules::request::{Descriptor, Request};
use tracing::info;

use crate::hot_keys::HotKeys;
use crate::metrics::Meters;
use crate::metrics::counter::{Count, Counter};
use crate::request::RequestError;
use crate::trace::Tracer;

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

    /// Records a decision by candidate rules, beside the one that was answered.
    pub fn note_candidate(&self, decision: &Decision<'_, '_, '_>) {
        if let Some(meters) = &self.meters {
            meters.note_candidate(decision);
        }
    }

    /// Records a request that candidate rules were not tried on.
    pub fn note_left_out(&self, request: &Request<'_>) {
        if let Some(meters) = &self.meters {
            meters.note_left_out(request);
        }
    }

    /// Records a request for which the store gave no verdict, and what it would have charged.
    pub fn note_unanswered(&self, request: &Request<'_>, resolved: &[Resolved<'_>]) {
        if let Some(meters) = &self.meters {
            meters.note_unanswered(request, resolved);
        }
    }
}

// === Decision samples: a share of the decisions as structured lines ===

/// The log target of samples; they are logged at any level, since they were asked for.
pub const TARGET: &str = "ratelease::decision";

/// Maximum number of sample lines a second; further ones are dropped and counted.
const LINES_PER_SECOND_MAX: u32 = 1000;

/// Maximum number of bytes of a descriptor in a line, if values may be shown.
const VALUES_BYTES_MAX: usize = 512;

/// Logs a share of the decisions. A cheap handle: clones share all state; the default logs none.
#[derive(Debug, Clone, Default)]
pub struct Samples {
    shared: Option<Arc<Shared>>,
}

#[derive(Debug)]
struct Shared {
    share: f32,
    /// Whether the values of descriptors are shown.
    shows_values: bool,
    clock: Clock,
    /// The present second, since the clock was started, and the number of lines in it so far.
    current_second: Mutex<(u64, u32)>,
    dropped: AtomicU64,
}

/// The entries of a descriptor as `key=value`, truncated.
struct Values<'a, 'q>(&'a Descriptor<'q>);

// === impl Samples ===

impl Samples {
    /// Creates samples of a `share` of the decisions, 0 to 1. If `shows_values`, they show the
    /// values of descriptors, truncated.
    pub fn new(share: f32, shows_values: bool, clock: Clock) -> Self {
        let shared = (share > 0.0).then(|| {
            Arc::new(Shared {
                share,
                shows_values,
                clock,
                current_second: Mutex::default(),
                dropped: AtomicU64::new(0),
            })
        });
        Self { shared }
    }

    /// Event counts since the process began.
    pub fn counts(&self) -> Vec<Count> {
        let dropped = |shared: &Arc<Shared>| shared.dropped.load(Ordering::Relaxed);
        vec![(Counter::DecisionSamplesLeftOut, self.shared.as_ref().map_or(0, dropped))]
    }

    /// Logs a decision, if it is sampled.
    pub fn note(&self, decision: &Decision<'_, '_, '_>) {
        if let Some(shared) = &self.shared
            && rng::chance(shared.share)
        {
            shared.log(decision);
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Logs a line for each descriptor.
    #[cold]
    fn log(&self, decision: &Decision<'_, '_, '_>) {
        let Decision { request, verdict, .. } = decision;
        for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
            if self.admit() {
                self.log_descriptor(decision, descriptor, status);
            } else {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn log_descriptor(
        &self,
        decision: &Decision<'_, '_, '_>,
        descriptor: &Descriptor<'_>,
        status: &Status<'_>,
    ) {
        let counted = status.counted;
        info!(
            target: TARGET,
            domain = decision.request.domain,
            rule = status.rule_path(),
            key = counted.map(|it| tracing::field::display(it.key)),
            verdict = status.code.name(),
            request = decision.verdict.code.name(),
            remaining = status.remaining,
            hits = counted.map(|it| it.hits),
            how = counted.map(|it| it.how.name()),
            took_us = u64::try_from(decision.took.as_micros()).unwrap_or(u64::MAX),
            values = self.shows_values.then(|| tracing::field::display(Values(descriptor))),
            "decided",
        );
    }

    fn admit(&self) -> bool {
        let second = self.clock.now().nanos() / 1_000_000_000;
        let mut current_second = self.current_second.lock();
        if current_second.0 != second {
            *current_second = (second, 0);
        }
        current_second.1 += 1;
        current_second.1 <= LINES_PER_SECOND_MAX
    }
}

// === impl Values ===

impl fmt::Display for Values<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = VALUES_BYTES_MAX;
        for (at, entry) in self.0.entries.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            for text in [comma, entry.key, "=", entry.value] {
                let end = text.floor_char_boundary(left.min(text.len()));
                f.write_str(&text[..end])?;
                if end < text.len() {
                    return f.write_str("…");
                }
                left -= end;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelease_rules::request::Entry;

    #[test]
    fn values_are_shown_as_pairs_and_truncated_between_characters() {
        let long = "é".repeat(400);
        let shown = |values: [&str; 2]| {
            let entries = values.map(|value| Entry { key: "k", value });
            let entries = entries.into_iter().collect();
            Values(&Descriptor { entries, ..Descriptor::default() }).to_string()
        };
        assert_eq!(shown(["a", "b c"]), "k=a,k=b c");
        let cut = shown([&long, "never seen"]);
        assert!(cut.len() <= VALUES_BYTES_MAX + "…".len(), "{}", cut.len());
        assert_eq!(cut, format!("k={}…", "é".repeat(255)));
    }

    #[test]
    fn lines_above_the_limit_of_a_second_are_dropped() {
        let samples = Samples::new(1.0, false, Clock::start());
        let shared = samples.shared.as_deref().expect("a share");
        let begun = shared.clock.now().nanos() / 1_000_000_000;
        let lines = 3 * LINES_PER_SECOND_MAX;
        let admitted = (0..lines).filter(|_| shared.admit()).count();
        let seconds = shared.clock.now().nanos() / 1_000_000_000 - begun + 1;
        assert!(
            admitted as u64 <= seconds * u64::from(LINES_PER_SECOND_MAX),
            "{admitted} in {seconds} s"
        );
        assert!(admitted >= LINES_PER_SECOND_MAX as usize);
    }
}
