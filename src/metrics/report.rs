//! What has been counted: as families, and in a few numbers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::family::{Buckets, Family, Kind, Labels, Value};
use super::series::{HOWS, HitSums, Keys, RuleMeter, RuleSums};
use super::{Meters, Shared, calls};
use crate::verdict::OVERRIDE;

/// What all decisions have come to.
#[derive(Debug, Clone, PartialEq)]
pub struct Totals {
    /// Calls that passed.
    pub ok: u64,
    /// Calls that were denied.
    pub over_limit: u64,
    /// Calls without a verdict.
    pub errors: u64,
    /// Descriptors, by how they were decided; each is in one of them alone. `denied_local` are
    /// those over their limit that this pod knew of by itself, and are not in `local`.
    pub by_how: Vec<(&'static str, u64)>,
    /// From a decoded request to its verdict, in buckets from 1 us.
    pub took: Buckets,
}

/// What one rule has come to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// Its path; `override` for those of all domains, `folded` for the rules that found no room.
    pub rule: String,
    /// Descriptors that passed.
    pub ok: u64,
    /// Descriptors over their limit.
    pub over_limit: u64,
    /// Hits near the limit.
    pub near_limit: u64,
    /// Hits over the limit that shadow mode let pass.
    pub shadow: u64,
}

/// A number of the reference's, of one series.
type OfHits = fn(&HitSums) -> u64;

const REFERENCE_HITS: [(&str, &str, OfHits); 5] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits of the rule.", |hits| hits.total),
    ("ratelimit_service_rate_limit_over_limit", "Hits over the limit.", |hits| hits.over),
    (
        "ratelimit_service_rate_limit_near_limit",
        "Hits above NEAR_LIMIT_RATIO of the limit, and not over it.",
        |hits| hits.near,
    ),
    ("ratelimit_service_rate_limit_within_limit", "Hits that passed.", |hits| hits.within),
    (
        "ratelimit_service_rate_limit_shadow_mode",
        "Hits over the limit of a rule in shadow mode.",
        |hits| hits.shadow,
    ),
];

/// The method's label of the reference.
const METHOD: (&str, Cow<'static, str>) = ("grpc_method", Cow::Borrowed("ShouldRateLimit"));

// === impl Meters ===

impl Meters {
    /// What all decisions have come to.
    pub fn totals(&self) -> Totals {
        let Shared { took, calls, rules, overrides, overrides_folded, .. } = &*self.shared;
        let counts = calls.sums();
        let took = took.fine();
        let mut sums = rules.retired();
        // Once a second for the live page: without the paths, which would have to be copied.
        rules.meters().iter().for_each(|meter| sums.add(&meter.sums()));
        let overrides = overrides.iter().chain([overrides_folded]);
        overrides.for_each(|meter| sums.add(&meter.sums()));
        let over_limit = counts[calls::OVER];
        let mut by_how = vec![("denied_local", sums.decisions[0][1])];
        by_how.extend(HOWS.iter().zip(&sums.decisions).enumerate().map(|(at, (how, pair))| {
            let denied = if at == 0 { 0 } else { pair[1] };
            (how.name(), pair[0] + denied)
        }));
        let errors = counts[calls::REFUSED..].iter().sum();
        Totals { ok: took.count().saturating_sub(over_limit), over_limit, errors, by_how, took }
    }

    /// What the busiest rules have come to, `max` of them at most, busiest first.
    pub fn by_rule(&self, max: usize) -> Vec<RuleTotals> {
        let mut sums = BTreeMap::<String, RuleSums>::new();
        for (path, more) in self.all_rules() {
            sums.entry(path).or_default().add(&more);
        }
        let mut totals: Vec<_> = sums.into_iter().map(RuleTotals::of).collect();
        totals.retain(|rule| rule.ok + rule.over_limit > 0);
        totals.sort_by_key(|rule| std::cmp::Reverse(rule.ok + rule.over_limit));
        totals.truncate(max);
        totals
    }

    /// Every number that is kept of decisions. Holds up no decision.
    pub fn families(&self) -> Vec<Family> {
        let meters = self.shared.rules.meters();
        let mut families = self.reference(&meters);
        families.push(self.decisions(&meters));
        families.push(self.durations(
            "ratelease_decision_duration_seconds",
            "From a decoded request to its verdict, with what it waited for leases and slots.",
            Vec::new(),
        ));
        families.push(self.refusals());
        families.extend(self.series());
        families
    }

    /// Paths of rules and what they came to, overrides among them.
    fn all_rules(&self) -> Vec<(String, RuleSums)> {
        let Shared { rules, overrides, overrides_folded, .. } = &*self.shared;
        let rules = rules.meters().into_iter().map(|meter| (meter.path.to_string(), meter.sums()));
        let overrides = overrides.iter().chain([overrides_folded]);
        rules.chain(overrides.map(|meter| (OVERRIDE.to_owned(), meter.sums()))).collect()
    }

    fn reference(&self, meters: &[Arc<RuleMeter>]) -> Vec<Family> {
        let series = self.hits(meters);
        let mut families: Vec<_> = REFERENCE_HITS
            .iter()
            .map(|(name, help, of)| {
                let mut family = Family::new(*name, Kind::Unsuffixed, *help);
                let counts = series.iter().map(|(keys, hits)| (keys, of(hits)));
                for (keys, count) in counts.filter(|(_, count)| *count > 0) {
                    family.push(keys.labels(), Value::Count(count));
                }
                family
            })
            .collect();
        let counts = self.shared.calls.sums();
        let [client, store] = errors(&counts);
        let help = "Calls without a verdict.";
        let mut family =
            Family::new("ratelimit_service_should_rate_limit_error", Kind::Unsuffixed, help);
        family.push(vec![("err_type", "redis_error".into())], Value::Count(store));
        family.push(vec![("err_type", "service_error".into())], Value::Count(client));
        families.push(family);
        let requests = self.shared.took.fine().count() + client + store;
        let help = "Calls, by gRPC or HTTP.";
        let mut family = Family::new("ratelimit_service_total_requests", Kind::Unsuffixed, help);
        family.push(vec![METHOD], Value::Count(requests));
        families.push(family);
        families.push(self.durations(
            "ratelimit_service_response_time_seconds",
            "As ratelease_decision_duration_seconds, under the reference's name.",
            vec![METHOD],
        ));
        families.push(Family::single(
            "ratelimit_service_global_shadow_mode",
            Kind::Unsuffixed,
            "Calls that only the global shadow mode let pass.",
            Value::Count(counts[calls::SHADOWED]),
        ));
        families
    }

    /// What the reference counts, by its labels. Several rules may come to the same.
    fn hits(&self, meters: &[Arc<RuleMeter>]) -> BTreeMap<Keys, HitSums> {
        let Shared { overrides, overrides_folded, values, values_folded, .. } = &*self.shared;
        let whole = meters.iter().map(AsRef::as_ref).filter(|meter| !meter.is_split());
        let whole = whole.chain(overrides.iter()).chain([overrides_folded]);
        let whole = whole.map(|meter| (&meter.keys, meter.sums().hits));
        let parts = values.iter().chain([values_folded]).map(|meter| (&meter.keys, meter.sums()));
        let mut series = BTreeMap::<Keys, HitSums>::new();
        for (keys, hits) in whole.chain(parts) {
            series.entry(keys.clone()).or_default().add(&hits);
        }
        series
    }

    fn decisions(&self, meters: &[Arc<RuleMeter>]) -> Family {
        let help = "Descriptors that were decided, by rule, verdict and who decided.";
        let mut family = Family::new("ratelease_decisions_total", Kind::Counter, help);
        let mut push = |domain: &str, rule: &str, verdict: &'static str, how, count| {
            if count > 0 {
                let labels: Labels = vec![
                    ("domain", Cow::Owned(domain.to_owned())),
                    ("rule", Cow::Owned(rule.to_owned())),
                    ("verdict", verdict.into()),
                    ("how", Cow::Borrowed(how)),
                ];
                family.push(labels, Value::Count(count));
            }
        };
        let Shared { overrides, overrides_folded, calls, .. } = &*self.shared;
        let overrides = overrides.iter().chain([overrides_folded]);
        for meter in meters.iter().map(AsRef::as_ref).chain(overrides) {
            for (how, [ok, over]) in HOWS.iter().zip(meter.sums().decisions) {
                push(&meter.domain, &meter.path, "ok", how.name(), ok);
                push(&meter.domain, &meter.path, "over_limit", how.name(), over);
            }
        }
        let counts = calls.sums();
        push("none", "none", "ok", "none", counts[calls::FREE]);
        push("none", "none", "ok", "unlimited", counts[calls::UNLIMITED]);
        family
    }

    fn durations(&self, name: &'static str, help: &'static str, labels: Labels) -> Family {
        let mut family = Family::new(name, Kind::Histogram, help);
        family.push(labels, Value::Buckets(self.shared.took.shown()));
        family
    }

    fn refusals(&self) -> Family {
        let help = "Calls without a verdict, by reason.";
        let mut family = Family::new("ratelease_refusals_total", Kind::Counter, help);
        let counts = self.shared.calls.sums();
        for (reason, count) in calls::REASONS.into_iter().zip(&counts[calls::REFUSED..]) {
            family.push(vec![("reason", reason.into())], Value::Count(*count));
        }
        family
    }

    /// How many series there are, and what found no room among them.
    fn series(&self) -> [Family; 2] {
        let Shared { calls, rules, values, .. } = &*self.shared;
        let counts = calls.sums();
        let (by_rule, by_value) = ("ratelease_decisions", "ratelimit_service_rate_limit");
        let mut held = Family::new(
            "ratelease_series",
            Kind::Gauge,
            "Rules and values that are counted apart; METRICS_SERIES_MAX of each at most.",
        );
        let mut folded = Family::new(
            "ratelease_series_folded_total",
            Kind::Counter,
            "Decisions that were counted as folded, since METRICS_SERIES_MAX were counted apart.",
        );
        for (metric, len, counter) in [
            (by_rule, rules.len(), calls::FOLDED_RULES),
            (by_value, values.len(), calls::FOLDED_VALUES),
        ] {
            let labels: Labels = vec![("metric", metric.into())];
            held.push(labels.clone(), Value::Count(len as u64));
            folded.push(labels, Value::Count(counts[counter]));
        }
        [held, folded]
    }
}

/// Errors as the reference tells them apart: those of the service, then those of the store.
fn errors(counts: &[u64]) -> [u64; 2] {
    let reasons = calls::REASONS.iter().zip(counts.iter().skip(calls::REFUSED));
    reasons.fold([0, 0], |[client, store], (reason, count)| match *reason {
        "store" => [client, store + count],
        _ => [client + count, store],
    })
}

// === impl RuleTotals ===

impl RuleTotals {
    fn of((rule, sums): (String, RuleSums)) -> Self {
        let [ok, over_limit] = sums.by_verdict();
        let HitSums { near, shadow, .. } = sums.hits;
        Self { rule, ok, over_limit, near_limit: near, shadow }
    }
}
