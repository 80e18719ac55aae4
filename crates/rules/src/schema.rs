//! The JSON Schema of rule files, for editors and for checks before a deployment. It follows from
//! the table of fields, and from the ranges that the compiler checks.
//!
//! It is strict where the loader warns: a key that has no meaning where it stands is refused.
//! Faults that concern several values, such as two equal keys, are for the loader alone.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use crate::failure::FailureMode;
use crate::field::{Field, MapKind};
use crate::limit::{Algorithm, POOLS_MAX, UNIT_MULTIPLIER_MAX, Unit};
use crate::store::STORE_NAME_BYTES_MAX;

/// The dialect that editors understand best.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// A duration in Go's form, such as `1h30m` or `50ms`.
const DURATION: &str = r"^[+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// Returns the schema of a rule file.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    for kind in MapKind::ALL.into_iter().filter(|kind| *kind != MapKind::Root) {
        definitions.insert(definition(kind).to_owned(), map(kind));
    }
    let mut root = map(MapKind::Root);
    if let Value::Object(root) = &mut root {
        root.insert("$schema".to_owned(), DIALECT.into());
        root.insert("title".to_owned(), "Rule file of ratelease".into());
        root.insert("definitions".to_owned(), definitions.into());
    }
    root
}

/// The name of the definition of a kind of map.
const fn definition(kind: MapKind) -> &'static str {
    match kind {
        MapKind::Root => "file",
        MapKind::Descriptor => "descriptor",
        MapKind::RateLimit => "rate_limit",
        MapKind::Replaced => "replaced",
        MapKind::Defaults => "defaults",
        MapKind::Lease => "lease",
    }
}

fn map(kind: MapKind) -> Value {
    let mut properties = Map::new();
    for field in kind.fields() {
        let mut value = value(kind, *field);
        if let Value::Object(value) = &mut value {
            value.insert("description".to_owned(), meaning(kind, *field).into());
        }
        properties.insert(field.name().to_owned(), value);
    }
    let mut map = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    });
    let more = match kind {
        MapKind::Root => json!({"required": ["domain"]}),
        MapKind::Descriptor => json!({"required": ["key"], "allOf": [shared_pattern()]}),
        MapKind::Replaced => json!({"required": ["name"]}),
        MapKind::RateLimit => unit_or_unlimited(),
        MapKind::Defaults | MapKind::Lease => json!({}),
    };
    if let (Value::Object(map), Value::Object(more)) = (&mut map, more) {
        map.extend(more);
    }
    map
}

/// A limit has a unit, or is unlimited, and not both.
fn unit_or_unlimited() -> Value {
    json!({
        "if": {"properties": {"unlimited": {"const": true}}, "required": ["unlimited"]},
        "then": {"properties": {"unit": {"not": words(&units())}}},
        "else": {"required": ["unit"]},
    })
}

/// `share_threshold` needs a pattern.
fn shared_pattern() -> Value {
    let pattern = json!({"type": "string", "pattern": r"\*"});
    json!({
        "if": {
            "properties": {"share_threshold": {"const": true}},
            "required": ["share_threshold"],
        },
        "then": {"anyOf": [
            {"properties": {"key": pattern}},
            {"properties": {"value": pattern}, "required": ["value"]},
        ]},
    })
}

fn units() -> Vec<String> {
    Unit::ALL.iter().map(|unit| unit.name().to_ascii_lowercase()).collect()
}

/// What a field takes.
fn value(kind: MapKind, field: Field) -> Value {
    match field {
        Field::Domain | Field::Key => text_required(),
        Field::Name if kind == MapKind::Replaced => text_required(),
        Field::Value | Field::Name => json!({"type": ["string", "integer", "boolean", "null"]}),
        Field::Descriptors => list("descriptor"),
        Field::Replaces => list("replaced"),
        Field::RateLimit | Field::Defaults => {
            let of = if field == Field::RateLimit { "rate_limit" } else { "defaults" };
            json!({"anyOf": [reference(of), {"type": "null"}]})
        }
        Field::ShadowMode
        | Field::QuotaMode
        | Field::DetailedMetric
        | Field::ValueToMetric
        | Field::ShareThreshold
        | Field::Unlimited
        | Field::ChargeDenied => json!({"type": ["boolean", "null"]}),
        Field::Metadata => json!({"type": ["object", "null"]}),
        Field::Store => {
            let pattern = format!("^[a-z0-9-]{{1,{STORE_NAME_BYTES_MAX}}}$");
            json!({"type": ["string", "null"], "pattern": pattern})
        }
        Field::Unit => nullable(words(&units())),
        Field::Algorithm => nullable(words(&Algorithm::ALL.map(Algorithm::name))),
        Field::FailureMode => nullable(words(&FailureMode::ALL.map(FailureMode::name))),
        Field::RequestsPerUnit => number(0, u32::MAX),
        Field::UnitMultiplier => number(1, UNIT_MULTIPLIER_MAX),
        Field::Burst | Field::Max => number(1, u32::MAX),
        Field::Shards => number(1, POOLS_MAX.into()),
        Field::MaxDelay | Field::Ttl => json!({"type": ["string", "null"], "pattern": DURATION}),
        Field::Fraction => {
            json!({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1})
        }
        // Without quotes, `off` and `on` are booleans in YAML 1.1.
        Field::Lease => json!({"anyOf": [
            {"enum": ["off", "on"]}, {"type": ["boolean", "null"]}, reference("lease"),
        ]}),
    }
}

fn text_required() -> Value {
    json!({"type": ["string", "integer", "boolean"], "minLength": 1})
}

fn reference(definition: &str) -> Value {
    json!({"$ref": format!("#/definitions/{definition}")})
}

fn list(definition: &str) -> Value {
    json!({"type": ["array", "null"], "items": reference(definition)})
}

fn number(least: u32, most: u32) -> Value {
    json!({"type": ["integer", "null"], "minimum": least, "maximum": most})
}

/// These words in any case. Editors offer those of the `enum`.
fn words(words: &[impl AsRef<str>]) -> Value {
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    let mut pattern = String::new();
    for word in &words {
        pattern.push_str(if pattern.is_empty() { "^(" } else { "|" });
        for letter in word.chars() {
            // Writing to a string cannot fail.
            let _ = match letter {
                '_' => write!(pattern, "_"),
                _ => write!(pattern, "[{letter}{}]", letter.to_ascii_uppercase()),
            };
        }
    }
    pattern.push_str(")$");
    json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": pattern}]})
}

fn nullable(mut words: Value) -> Value {
    if let Some(Value::Array(any)) = words.get_mut("anyOf") {
        any.push(json!({"type": "null"}));
    }
    words
}

/// What a field means, in a sentence.
fn meaning(kind: MapKind, field: Field) -> &'static str {
    match field {
        Field::Domain => "Domain of the requests, as the rate limit filter of Envoy names it.",
        Field::Descriptors => "Nodes of the next level; a request's next entry selects one.",
        Field::Defaults => "Options of every rate_limit of this file that has none of its own.",
        Field::Key => "Key of the entry.",
        Field::Value => {
            "Value of the entry; * stands for any text. Without it every value matches, and each \
             has its own count."
        }
        Field::RateLimit => "The limit of requests whose last entry is at this node.",
        Field::ShadowMode => "The limit is counted and reported, and never denies.",
        Field::QuotaMode => "The limit denies only if all quota limits of the request deny.",
        Field::DetailedMetric => "Metrics of the rule have all keys and values of the request.",
        Field::ValueToMetric => "Metrics of the rule have the value of this level.",
        Field::ShareThreshold => "All values that match this pattern share one count.",
        Field::Metadata => "Sent to Envoy as dynamic metadata, as the rule passes or denies.",
        Field::Store => "Name of the store that counts the limit, of those in REDIS_STORES.",
        Field::Unit => "Unit of the window: a month has 30 days, a year 365.",
        Field::RequestsPerUnit => "Requests in a window; 0 denies all.",
        Field::Unlimited => "Everything passes and nothing is counted.",
        Field::Name if matches!(kind, MapKind::Replaced) => "Name of a rule that is set aside.",
        Field::Name => "Name of the rule in answers, and for replaces.",
        Field::Replaces => "Rules that are set aside in a request that this rule matches too.",
        Field::ChargeDenied => "Whether a denied charge spends what is left of its own count.",
        Field::UnitMultiplier => "Units in a window, which is ten years at most.",
        Field::Algorithm => "How requests are counted; fixed_window by default.",
        Field::Burst => "Requests that a token_bucket holds; requests_per_unit by default.",
        Field::MaxDelay => "Longest time that a leaky_bucket holds a request; 0 by default.",
        Field::Lease => "How tokens are lent to pods; with off every decision asks Redis.",
        Field::Shards => "Pools of each count, on Redis slots of their own.",
        Field::FailureMode => "What answers when Redis cannot be asked; local by default.",
        Field::Fraction => "Part of the remaining tokens that one lease may take; 0.25 by default.",
        Field::Max => "Most tokens of one lease.",
        Field::Ttl => "Longest duration of a lease, from 100ms to 60s.",
    }
}
