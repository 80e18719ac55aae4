//! The rules of a run, in all of their versions, and the requests that they decide.

use std::collections::BTreeMap;
use std::sync::Arc;

use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Rules, SETTLE_KEY, Source};

use super::script::{SlotsRule, Terms, TokensRule};

/// The domain of candidate rules.
pub const CANDIDATE: &str = "d@candidate";

pub type Version = (SlotsRule, TokensRule);

/// Versions of the rules, each compiled once.
pub struct Versions {
    terms: Terms,
    present: Arc<Rules>,
    compiled: BTreeMap<Version, Arc<Rules>>,
}

// === impl Versions ===

impl Versions {
    pub fn new(terms: Terms) -> Self {
        let present = Arc::new(compile(&terms, Version::default()));
        let compiled = BTreeMap::from([(Version::default(), Arc::clone(&present))]);
        Self { terms, present, compiled }
    }

    /// The rules that the run begins and ends with.
    pub fn present(&self) -> &Rules {
        &self.present
    }

    pub fn get(&mut self, version: Version) -> Arc<Rules> {
        let terms = self.terms;
        let compiled = self.compiled.entry(version);
        Arc::clone(compiled.or_insert_with(|| Arc::new(compile(&terms, version))))
    }
}

fn compile(terms: &Terms, (slots, tokens): Version) -> Rules {
    let text = [of_slots(terms, slots), of_tokens(terms, tokens)].concat();
    let probe = "- {key: probe, rate_limit: {unit: second, requests_per_unit: 1000, lease: off}}";
    let text = format!("domain: d\ndescriptors:\n{probe}\n{text}");
    let mut sources = vec![Source { name: "sim.yaml".into(), text: text.into() }];
    if terms.tries {
        let present = (SlotsRule::Lowered, TokensRule::Present);
        let text = [of_slots(terms, present.0), of_tokens(terms, present.1)].concat();
        let text = format!("domain: {CANDIDATE}\ndescriptors:\n{text}");
        sources.push(Source { name: "candidate.yaml".into(), text: text.into() });
    }
    rules::load(&sources, rules::Options::default()).expect("rules of the model").rules
}

fn of_slots(terms: &Terms, rule: SlotsRule) -> String {
    let Terms { slots, lasts_ms, slots_mode: mode, .. } = terms;
    let (requests, algorithm) = match rule {
        SlotsRule::Absent => return String::new(),
        SlotsRule::Present => (*slots, "algorithm: concurrency"),
        SlotsRule::Raised => (slots * 2, "algorithm: concurrency"),
        SlotsRule::Lowered => (slots.div_ceil(2), "algorithm: concurrency"),
        SlotsRule::OtherAlgorithm => (100_000, "unit: hour"),
    };
    format!(
        "- key: slot\n  descriptors: [{{key: id, rate_limit: {{{algorithm}, requests_per_unit: \
         {requests}, failure_mode: {mode}, hold: {{for: {lasts_ms}ms}}}}}}]\n"
    )
}

fn of_tokens(terms: &Terms, rule: TokensRule) -> String {
    let Terms { tokens, lasts_ms, releases, tokens_mode: mode, .. } = terms;
    let unless = if *releases { "release" } else { "keep" };
    let hold = format!("hold: {{for: {lasts_ms}ms, unless_settled: {unless}}}");
    let (requests, unit, hold) = match rule {
        TokensRule::Absent => return String::new(),
        TokensRule::Present => (*tokens, "hour", hold),
        TokensRule::Raised => (tokens * 2, "hour", hold),
        TokensRule::Unheld => (*tokens, "hour", "charge_denied: false".into()),
        TokensRule::OtherWindow => (*tokens, "day", hold),
    };
    format!(
        "- key: tokens\n  descriptors: [{{key: id, rate_limit: {{unit: {unit}, requests_per_unit: \
         {requests}, failure_mode: {mode}, {hold}}}}}]\n"
    )
}

/// A request that asks Redis.
pub fn probe() -> Request<'static> {
    let entries = [Entry { key: "probe", value: "" }].into_iter().collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits_addend: 1 }
}

/// The charges of a request, or its costs.
#[derive(Debug, Clone, Copy)]
pub struct Charges {
    pub slots: Option<u64>,
    pub tokens: Option<u64>,
}

/// The request of a start with this id, or of its end.
pub fn request(id: &str, charges: Charges, ends: bool) -> Request<'_> {
    let descriptor = |(key, hits): (&'static str, Option<u64>)| {
        let mut entries: Vec<_> = vec![Entry { key, value: "x" }, Entry { key: "id", value: id }];
        if ends {
            entries.push(Entry { key: SETTLE_KEY, value: "1" });
        }
        let entries = entries.into_iter().collect();
        Some(Descriptor { entries, hits_addend: Some(hits?), ..Descriptor::default() })
    };
    let both = [("slot", charges.slots), ("tokens", charges.tokens)];
    let descriptors = both.into_iter().filter_map(descriptor).collect();
    Request { domain: "d", descriptors, hits_addend: 0 }
}
