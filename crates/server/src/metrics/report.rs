//! Reports the counts: as families, and as a few numbers.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use ratelease_engine::latency::Buckets;
use ratelease_engine::verdict::{DecisionSource, OVERRIDE};
use ratelease_rules::Rules;

use super::family::{Family, Kind, Labels, Value};
use super::{Decisions, Hits, RuleMeter, RuleSums, SOURCES};
use super::{HitSeries, ZeroSeries};
use super::{Meters, Shared, calls};

/// The totals of all calls.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// Calls that were allowed.
    pub ok: u64,
    /// Calls that were denied.
    pub over_limit: u64,
    /// Calls that got no verdict.
    pub errors: u64,
    /// Time from a decoded request to its verdict, in buckets from 1 us.
    pub took: Buckets,
}

/// The totals of one rule.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuleTotals {
    /// The rule's path; `override` for the overrides of all domains, `folded` for the rules that
    /// found no room.
    pub rule: String,
    /// Descriptors that were allowed.
    pub ok: u64,
    /// Descriptors over their limit.
    pub over_limit: u64,
    /// Hits near the limit.
    pub near_limit: u64,
    /// Hits over the limit that shadow mode allowed.
    pub shadow: u64,
}

/// What the reference implementation counts, by its own names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ReferenceCounts {
    /// Hits by stats key; keys without hits are left out.
    pub by_stats_key: BTreeMap<Box<str>, Hits>,
    /// Calls without a verdict, because of the request or the service, and because of the store.
    pub service_errors: u64,
    /// See `service_errors`.
    pub store_errors: u64,
    /// All calls.
    pub requests: u64,
    /// Calls that only the global shadow mode let pass.
    pub shadowed: u64,
    /// Time from a decoded request to its verdict, in buckets from 1 us.
    pub took: Buckets,
}

/// Selects the value of one series of the reference implementation.
type OfHits = fn(&Hits) -> u64;

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

/// The reference implementation's label for the method.
const METHOD: (&str, Cow<'static, str>) = ("grpc_method", Cow::Borrowed("ShouldRateLimit"));

// === impl Meters ===

impl Meters {
    /// The totals of all calls. Reads a few counters, however many series there are: this is called
    /// once a second for as long as the process runs.
    pub fn calls(&self) -> Calls {
        let Shared { took, calls, .. } = &*self.shared;
        let counts = calls.sums();
        let took = took.fine();
        let over_limit = counts[calls::OVER];
        let errors = counts[calls::ERRORS..].iter().sum();
        Calls { ok: took.count().saturating_sub(over_limit), over_limit, errors, took }
    }

    /// Descriptors, by how they were decided; each is counted in one class only. `denied_local` are
    /// those over their limit that this pod denied without asking the store, and are not in
    /// `local`. Reads every series.
    pub fn by_how(&self) -> Vec<(&'static str, u64)> {
        let Shared { rules, overrides, .. } = &*self.shared;
        let mut sums = rules.sums();
        overrides.iter().for_each(|meter| sums.add(&meter.sums()));
        let mut by_how = vec![("denied_local", sums.decisions[0][1])];
        by_how.extend(SOURCES.iter().zip(&sums.decisions).enumerate().map(|(at, (how, pair))| {
            let denied = if at == 0 { 0 } else { pair[1] };
            (how.name(), pair[0] + denied)
        }));
        by_how
    }

    /// The totals of the busiest rules, at most `max`, busiest first. Reads every series, and
    /// copies the paths of the rules that it returns.
    pub fn by_rule(&self, max: usize) -> Vec<RuleTotals> {
        let Shared { rules, overrides, .. } = &*self.shared;
        let meters = rules.meters();
        let mut all_overrides = RuleSums::default();
        overrides.iter().for_each(|meter| all_overrides.add(&meter.sums()));
        let rules = meters.iter().map(|meter| (&*meter.path, meter.sums()));
        let mut busy: Vec<_> = rules.chain([(OVERRIDE, all_overrides)]).collect();
        busy.retain(|(_, sums)| sums.count() > 0);
        busy.sort_unstable_by_key(|(path, sums)| (Reverse(sums.count()), *path));
        busy.truncate(max);
        busy.into_iter().map(RuleTotals::of).collect()
    }

    /// What the reference implementation counts. Reads every series, and copies their names. The
    /// hits are those of meters with [`Options::by_stats_key`](super::Options::by_stats_key).
    pub fn reference_counts(&self) -> ReferenceCounts {
        let Shared { took, calls, rules, overrides, values, values_folded, .. } = &*self.shared;
        let meters = rules.meters();
        let whole = meters.iter().map(AsRef::as_ref).filter(|meter| !meter.is_split());
        let whole = whole.chain(overrides.iter());
        let whole = whole.map(|meter| (&meter.stats_key, meter.sums().hits));
        let parts = values.iter().chain([values_folded]);
        let parts = parts.map(|meter| (&meter.stats_key, meter.sums()));
        let mut by_stats_key: BTreeMap<Box<str>, Hits> = BTreeMap::new();
        for (key, hits) in whole.chain(parts) {
            if key.is_empty() || hits.total == 0 {
                continue;
            }
            match by_stats_key.get_mut(key) {
                Some(sum) => sum.add(&hits),
                None => drop(by_stats_key.insert(key.clone(), hits)),
            }
        }
        let counts = calls.sums();
        let [service_errors, store_errors] = errors(&counts);
        let took = took.fine();
        ReferenceCounts {
            by_stats_key,
            service_errors,
            store_errors,
            requests: took.count() + service_errors + store_errors,
            shadowed: counts[calls::SHADOWED],
            took,
        }
    }

    /// Every metric of decisions. Blocks no decision. Series of the rules in force are included at
    /// 0 too, unless there are more than a thousand rules.
    pub fn families(&self, in_force: Option<&Rules>) -> Vec<Family> {
        let meters = self.shared.rules.meters();
        let zero_series = ZeroSeries::of(in_force, self.shared.options.series_max);
        let mut families = self.reference(&meters, zero_series);
        families.push(self.decisions(&meters, zero_series));
        families.push(self.durations(
            "ratelease_decision_duration_seconds",
            "From a decoded request to its verdict, with what it waited for leases and slots.",
            Vec::new(),
        ));
        families.push(self.refusals());
        families.extend(self.series());
        families
    }

    fn reference(&self, meters: &[Arc<RuleMeter>], zero_series: ZeroSeries<'_>) -> Vec<Family> {
        let series = self.hits(meters, zero_series);
        let mut families: Vec<_> = REFERENCE_HITS
            .iter()
            .map(|(name, help, of)| {
                let mut family = Family::new(*name, Kind::Unsuffixed, *help);
                for (keys, hits) in &series {
                    let count = of(&hits.sums);
                    if count > 0 || hits.even_at_zero {
                        family.push(keys.labels(), Value::Count(count));
                    }
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

    /// The values of the reference implementation's series, by label. Several rules may share a
    /// series.
    fn hits(&self, meters: &[Arc<RuleMeter>], zero_series: ZeroSeries<'_>) -> HitSeries {
        let Shared { overrides, values, values_folded, .. } = &*self.shared;
        let whole = meters.iter().map(AsRef::as_ref).filter(|meter| !meter.is_split());
        let whole = whole.chain(overrides.iter()).map(|meter| (&meter.keys, meter.sums().hits));
        let parts = values.iter().chain([values_folded]).map(|meter| (&meter.keys, meter.sums()));
        let mut series = HitSeries::new();
        for (keys, hits) in whole.chain(parts) {
            series.entry(keys.clone()).or_default().sums.add(&hits);
        }
        zero_series.mark(&mut series);
        series
    }

    fn decisions(&self, meters: &[Arc<RuleMeter>], zero_series: ZeroSeries<'_>) -> Family {
        let help = "Descriptors that were decided, by rule, verdict and who decided.";
        let mut family = Family::new("ratelease_decisions_total", Kind::Counter, help);
        let Shared { overrides, calls, .. } = &*self.shared;
        let meters = || meters.iter().map(AsRef::as_ref);
        for meter in meters().chain(overrides.iter()) {
            let sums = meter.sums().decisions;
            let with_zeros = zero_series.contains(&meter.path);
            push(&mut family, (&meter.domain, &meter.path), &sums, with_zeros);
        }
        for rule in zero_series.rules_without_meter(meters()) {
            let domain = rule.path_parts().next().unwrap_or_default();
            push(&mut family, (domain, &rule.path), &Decisions::default(), true);
        }
        let counts = calls.sums();
        for (how, count) in [("none", calls::UNMATCHED), ("unlimited", calls::UNLIMITED)] {
            if counts[count] > 0 {
                family.push(decided(("none", "none"), "ok", how), Value::Count(counts[count]));
            }
        }
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
        for (reason, count) in calls::REASONS.into_iter().zip(&counts[calls::ERRORS..]) {
            family.push(vec![("reason", reason.into())], Value::Count(*count));
        }
        family
    }

    /// The number of series, and the decisions that were folded.
    fn series(&self) -> [Family; 2] {
        let Shared { calls, rules, values, .. } = &*self.shared;
        let counts = calls.sums();
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
            ("ratelease_decisions", rules.len(), calls::FOLDED_RULES),
            ("ratelimit_service_rate_limit", values.len(), calls::FOLDED_VALUES),
        ] {
            let labels: Labels = vec![("metric", metric.into())];
            held.push(labels.clone(), Value::Count(len as u64));
            folded.push(labels, Value::Count(counts[counter]));
        }
        [held, folded]
    }
}

/// Adds the decisions of one rule; `with_zeros` even if there are none, except for those of failure
/// modes: they last long enough to be seen if they matter.
fn push(family: &mut Family, of: (&str, &str), sums: &Decisions, with_zeros: bool) {
    for (how, [ok, over]) in SOURCES.iter().zip(sums) {
        let is_usual = matches!(how, DecisionSource::Local | DecisionSource::Leased);
        for (verdict, count) in [("ok", *ok), ("over_limit", *over)] {
            if count > 0 || with_zeros && is_usual {
                family.push(decided(of, verdict, how.name()), Value::Count(count));
            }
        }
    }
}

fn decided(of: (&str, &str), verdict: &'static str, how: &'static str) -> Labels {
    let (domain, rule) = of;
    vec![
        ("domain", Cow::Owned(domain.to_owned())),
        ("rule", Cow::Owned(rule.to_owned())),
        ("verdict", verdict.into()),
        ("how", how.into()),
    ]
}

/// Errors by the reference implementation's classes: those of the service, then those of the store.
fn errors(counts: &[u64]) -> [u64; 2] {
    let reasons = calls::REASONS.iter().zip(counts.iter().skip(calls::ERRORS));
    reasons.fold([0, 0], |[client, store], (reason, count)| match *reason {
        "store" => [client, store + count],
        _ => [client + count, store],
    })
}

// === impl RuleTotals ===

impl RuleTotals {
    fn of((path, sums): (&str, RuleSums)) -> Self {
        let [ok, over_limit] = sums.by_verdict();
        let Hits { near, shadow, .. } = sums.hits;
        Self { rule: path.to_owned(), ok, over_limit, near_limit: near, shadow }
    }
}
