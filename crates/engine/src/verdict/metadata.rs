//! Dynamic metadata of an answer: the request, the metadata of the rules that passed, and that of
//! the rules that denied.

use ratelease_rules::request::{Descriptor, Request};
use serde_json::{Map, Value, json};

use super::{Modes, Status, denying};

/// The fields of the reference implementation, which are `domain`, `descriptors`, `hitsAddend` and
/// the merged `metadata`; and `denied`, the merged metadata of the rules that deny the request.
pub(super) fn of(
    request: &Request<'_>,
    statuses: &[Status<'_>],
    modes: Modes,
) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("domain".into(), request.domain.into());
    fields.insert("descriptors".into(), request.descriptors.iter().map(descriptor).collect());
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".into(), request.hits_addend.into());
    }
    let passed = statuses.iter().filter(|status| !status.is_over());
    for (name, merged) in
        [("metadata", merged(passed)), ("denied", merged(denying(statuses, modes)))]
    {
        if !merged.is_empty() {
            fields.insert(name.into(), merged.into());
        }
    }
    fields
}

/// The metadata of the rules of these statuses.
fn merged<'s, 'r: 's>(statuses: impl Iterator<Item = &'s Status<'r>>) -> Map<String, Value> {
    let mut merged = Map::new();
    for rule in statuses.filter_map(|status| status.limit?.rule) {
        if let Some(metadata) = &rule.metadata {
            merge(&mut merged, metadata);
        }
    }
    merged
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
