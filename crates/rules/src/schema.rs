//! The JSON Schema of rule files, for editors and for checks before a deployment. It follows from
//! the table of options.
//!
//! The schema is strict where the loader warns: it refuses a key that has no meaning where it
//! stands. Faults that concern several values, such as two equal keys, are for the loader alone.

use serde_json::{Map, Value, json};

use crate::limit::Algorithm;
use crate::options::MapKind;
use crate::takes::{unit_names, words};

/// The dialect that editors understand best.
const DIALECT: &str = "http://json-schema.org/draft-07/schema#";

/// Returns the schema of a rule file.
pub fn schema() -> Value {
    let mut definitions = Map::new();
    for kind in MapKind::ALL.into_iter().filter(|kind| *kind != MapKind::Root) {
        definitions.insert(kind.name().to_owned(), map(kind));
    }
    let mut root = map(MapKind::Root);
    if let Value::Object(root) = &mut root {
        root.insert("$schema".to_owned(), DIALECT.into());
        root.insert("title".to_owned(), "Rule file of ratelease".into());
        root.insert("definitions".to_owned(), definitions.into());
    }
    root
}

fn map(kind: MapKind) -> Value {
    let mut properties = Map::new();
    for option in kind.options() {
        let mut value = option.schema();
        if let Value::Object(value) = &mut value {
            value.insert("description".to_owned(), option.meaning.into());
        }
        properties.insert(option.name.to_owned(), value);
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
        MapKind::Hold => json!({"required": ["for"]}),
        MapKind::Defaults | MapKind::Lease | MapKind::Anchor => json!({}),
    };
    if let (Value::Object(map), Value::Object(more)) = (&mut map, more) {
        map.extend(more);
    }
    map
}

/// A limit has a unit, or is unlimited, and not both; with an algorithm that has no window it has
/// no unit, and a hold.
fn unit_or_unlimited() -> Value {
    let without = Algorithm::ALL.into_iter().filter(|one| !one.has_window());
    let without = words(&without.map(Algorithm::name).collect::<Vec<_>>());
    let none = json!({"type": "null"});
    json!({
        "if": {"properties": {"unlimited": {"const": true}}, "required": ["unlimited"]},
        "then": {"properties": {"unit": {"not": unit_names()}}},
        "else": {
            "if": {"properties": {"algorithm": without}, "required": ["algorithm"]},
            "then": {
                "properties": {"unit": none, "unit_multiplier": none, "lease": none},
                "required": ["hold"],
            },
            "else": {"required": ["unit"]},
        },
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
