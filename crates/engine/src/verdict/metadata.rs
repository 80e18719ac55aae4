//! Dynamic metadata of an answer: the request, and the metadata of the rules that passed.

use ratelease_rules::request::{Descriptor, Request};
use serde_json::{Map, Value, json};

use super::Status;

/// The fields of the reference implementation: `domain`, `descriptors`, `hitsAddend` and the merged
/// `metadata`.
pub(super) fn of(request: &Request<'_>, statuses: &[Status<'_>]) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".into(), request.domain.into());
    fields.insert("descriptors".into(), request.descriptors.iter().map(descriptor).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let mut merged = Map::new();
    let passed = statuses.iter().filter(|status| !status.is_over());
    for rule in passed.filter_map(|status| status.limit?.rule) {
        if let Some(metadata) = &rule.metadata {
            merge(&mut merged, metadata);
        }
    }
    if !merged.is_empty() {
        fields.insert("metadata".into(), merged.into());
    }
    fields
}

fn descriptor(descriptor: &Descriptor<'_>) -> Value {
    let entries: Vec<_> =
        descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
    let mut fields = json!({ "entries": entries });
    if let Some(limit) = descriptor.limit {
        let (requests, unit) = (limit.requests_per_unit, limit.unit.name());
        fields["limit"] = format!("requests_per_unit:{requests} unit:{unit}").into();
    }
    if let Some(hits) = descriptor.hits_addend {
        fields["hitsAddend"] = hits.into();
    }
    fields
}

/// Adds what `from` has and `into` lacks, at every depth: the first to set a scalar wins. `from` is
/// copied, never linked: the reference implementation links it, and one answer's merge shows in the
/// next.
fn merge(into: &mut Map<String, Value>, from: &Map<String, Value>) {
    for (name, value) in from {
        match (into.get_mut(name), value) {
            (None, value) => drop(into.insert(name.clone(), value.clone())),
            (Some(Value::Object(into)), Value::Object(from)) => merge(into, from),
            (Some(_), _) => {}
        }
    }
}
