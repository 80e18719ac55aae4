//! Counts decisions, by rule and in total, and reports the counts.
//!
//! ```text
//! service ─▶ Meters::note ─▶ the rule's meter (Attachment) ─▶ this thread's stripe of counters
//!                       └─▶ of rules that ask for it, the meter of the values on the request
//! a scrape ─▶ Meters::families ─▶ Vec<Family> ─▶ text (Prometheus), or pushed (OTLP)
//! ```
//! Recording a decision touches no counter that all cores share, waits for no lock, and allocates
//! only when a rule or a value is seen for the first time. Every map has a maximum size: entries
//! that do not fit are counted as `folded`. Every label has a maximum length: a longer value is cut
//! and ends in a hash. `docs/metrics.md` says what each metric means.

mod by_domain;
pub mod counter;
pub mod family;
mod hits;
mod label;
mod registry;
mod report;
mod series;
mod table;
#[cfg(test)]
mod tests;
pub mod text;
mod zero_series;

use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::quality::RandomState;
use ratelease_engine::latency::Latency;
use ratelease_engine::limiter::{LimitedHits, limits};
use ratelease_engine::observer::{Decision, Observer};
use ratelease_engine::striped::Striped;
use ratelease_engine::verdict::{Code, Counted, OVERRIDE, Status};
use ratelease_rules::request::{Descriptor, Request};
use ratelease_rules::{Rule, Rules};

use crate::request_error::RequestError;

pub use by_domain::DomainHits;
use hits::Hits;
use registry::Registry;
pub use report::{Calls, RuleTotals};
use series::{Keys, RuleMeter, Shadow, ValueMeter, is_split};
use table::Table;

/// Default maximum number of series of one kind: rules, and separately the values of rules that ask
/// for series by value. Each kind at its maximum takes some 5 MB in a pod of two cores.
pub const SERIES_MAX_DEFAULT: usize = 10_000;

/// Maximum number of domains whose overrides are counted separately.
const OVERRIDES_MAX: usize = 1024;

/// Counts decisions. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Meters {
    shared: Arc<Shared>,
}

/// How decisions are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Share of a limit, 0 to 1, above which hits count as near the limit.
    pub near_limit_ratio: f32,
    /// Maximum number of rules counted separately, and of values.
    pub series_max: usize,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    took: Latency,
    calls: Striped<{ calls::COUNTERS }>,
    rules: Registry,
    overrides: Table<RuleMeter>,
    values: Table<ValueMeter>,
    values_folded: ValueMeter,
    hasher: RandomState,
}

/// Indexes of the counters of whole calls, and of descriptors that no rule counts.
mod calls {
    /// Calls that were denied; the other calls in the latency histogram were allowed.
    pub(super) const OVER: usize = 0;
    /// Calls that the global shadow mode allowed.
    pub(super) const SHADOWED: usize = 1;
    /// Descriptors that no rule limits.
    pub(super) const UNMATCHED: usize = 2;
    /// Descriptors whose rule allows everything.
    pub(super) const UNLIMITED: usize = 3;
    /// Decisions counted in the folded series of rules, or of values.
    pub(super) const FOLDED_RULES: usize = 4;
    pub(super) const FOLDED_VALUES: usize = 5;
    /// The first of the counters of calls without a verdict, in the order of [`REASONS`].
    pub(super) const ERRORS: usize = 6;
    pub(super) const REASONS: [&str; 7] = [
        "empty_domain",
        "no_descriptors",
        "no_rules",
        "invalid",
        "store",
        "overloaded",
        "panicked",
    ];
    pub(super) const COUNTERS: usize = ERRORS + REASONS.len();
}

// === impl Meters ===

impl Meters {
    /// Creates meters whose counts are zero.
    pub fn new(options: Options) -> Self {
        let Options { series_max, .. } = options;
        let shared = Shared {
            options,
            took: Latency::default(),
            calls: Striped::new(),
            rules: Registry::new(series_max),
            overrides: Table::new(series_max.min(OVERRIDES_MAX)),
            values: Table::new(series_max),
            values_folded: ValueMeter::new(Keys::folded()),
            hasher: RandomState::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Counts a call without a verdict.
    pub fn note_error(&self, error: &RequestError) {
        let reason = match error {
            RequestError::EmptyDomain => 0,
            RequestError::NoDescriptors => 1,
            RequestError::NoRules | RequestError::AwaitsRules => 2,
            RequestError::Invalid(_) => 3,
            RequestError::Store(_) => 4,
            RequestError::Overloaded | RequestError::NoRoom => 5,
            RequestError::Panicked => 6,
        };
        self.shared.calls.mine().add(calls::ERRORS + reason, 1);
    }
}

impl Observer for Meters {
    fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Decision { request, verdict, took, .. } = *decision;
        let shared = &*self.shared;
        shared.took.note(took);
        if verdict.code == Code::OverLimit {
            shared.calls.mine().add(calls::OVER, 1);
        } else if verdict.shadowed {
            shared.calls.mine().add(calls::SHADOWED, 1);
        }
        for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
            shared.note_status(request, descriptor, status);
        }
    }

    /// Counts the hits of a call that the store gave no verdict on, as total hits only: the
    /// reference implementation counts them before it asks the store.
    fn note_unanswered(&self, rules: &Rules, request: &Request<'_>) {
        let shared = &*self.shared;
        for (descriptor, limited) in request.descriptors.iter().zip(limits(rules, request)) {
            let Some(LimitedHits { applied, hits }) = limited.filter(|_| !descriptor.refund) else {
                continue;
            };
            let hits = Hits { total: hits, ..Hits::default() };
            let Some(rule) = applied.rule else {
                shared.overrides_of(request.domain).note_hits(hits);
                continue;
            };
            let meter = shared.meter_of(rule, request.domain, descriptor);
            meter.note_hits(hits);
            if meter.is_split() {
                shared.values_of(rule, request, descriptor).note(hits, Shadow::Off);
            }
        }
    }
}

impl Default for Meters {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Default for Options {
    /// The defaults of the settings; the ratio is the reference implementation's.
    fn default() -> Self {
        Self { near_limit_ratio: 0.8, series_max: SERIES_MAX_DEFAULT }
    }
}

// === impl Shared ===

impl Shared {
    #[inline]
    fn note_status(&self, request: &Request<'_>, descriptor: &Descriptor<'_>, status: &Status<'_>) {
        let (Some(applied), Some(counted)) = (status.limit, status.counted) else {
            let unlimited = status.is_unlimited();
            let counter = if unlimited { calls::UNLIMITED } else { calls::UNMATCHED };
            self.calls.mine().add(counter, 1);
            return;
        };
        // Refunded hits are not part of the reference implementation's statistics.
        let hits = match descriptor.refund {
            true => Hits::default(),
            false => Hits::of(status, &counted, self.options.near_limit_ratio),
        };
        match applied.rule {
            Some(rule) => self.note_rule(rule, request, descriptor, status, &counted, hits),
            None => {
                self.overrides_of(request.domain).note(counted.how, status.code, hits, Shadow::Off);
            }
        }
    }

    #[inline]
    fn note_rule(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        status: &Status<'_>,
        counted: &Counted,
        hits: Hits,
    ) {
        let meter = self.meter_of(rule, request.domain, descriptor);
        meter.note(counted.how, status.code, hits, Shadow::of(rule));
        if self.rules.is_folded(meter) {
            self.calls.mine().add(calls::FOLDED_RULES, 1);
        } else if meter.is_split() {
            self.values_of(rule, request, descriptor).note(hits, Shadow::of(rule));
        }
    }

    /// The meter of a rule, cached in the rule from its first hit.
    #[inline]
    fn meter_of<'a>(
        &'a self,
        rule: &'a Rule,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) -> &'a RuleMeter {
        let meter = rule.meter.get_or_init(|| self.bind(rule, domain, descriptor));
        meter.unwrap_or_else(|| self.rules.folded())
    }

    /// Finds the meter of a rule at its first hit since it was loaded.
    #[cold]
    fn bind(&self, rule: &Rule, domain: &str, descriptor: &Descriptor<'_>) -> Arc<RuleMeter> {
        let is_split = is_split(rule);
        let make = || {
            let keys = match is_split {
                true => Keys::of(&rule.path),
                false => Keys::of(&rule.stats_key(domain, &descriptor.entries)),
            };
            RuleMeter::new(&rule.path, domain, keys)
        };
        let meter = self.rules.meter(&rule.path, make);
        if !self.rules.is_folded(&meter) {
            meter.set_split(is_split);
        }
        meter
    }

    fn overrides_of(&self, domain: &str) -> &RuleMeter {
        // Rules name this domain: overrides of other domains are ignored.
        let make = || RuleMeter::new(OVERRIDE, domain, Keys::overrides(domain));
        let found = self.overrides.get_or_insert(non_zero(self.hasher.hash_one(domain)), make);
        found.unwrap_or_else(|| {
            self.calls.mine().add(calls::FOLDED_RULES, 1);
            self.rules.folded()
        })
    }

    /// The meter of the request's values, as far as labels show them.
    fn values_of(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
    ) -> &ValueMeter {
        let value = |at: usize| {
            let entry = descriptor.entries.get(at).filter(|_| rule.varies_at(at));
            entry.map_or("", |entry| entry.value)
        };
        let hash = self.hasher.hash_one((&*rule.path, value(0), value(1)));
        let make = || {
            let stats_key = rule.stats_key(request.domain, &descriptor.entries);
            ValueMeter::new(Keys::of(&stats_key))
        };
        self.values.get_or_insert(non_zero(hash), make).unwrap_or_else(|| {
            self.calls.mine().add(calls::FOLDED_VALUES, 1);
            &self.values_folded
        })
    }
}

fn non_zero(hash: u64) -> NonZeroU64 {
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}
