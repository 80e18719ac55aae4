//! The definition of the objects for API servers, which is written from the schema of rule files,
//! and so from the table of options.
//!
//! API servers take no recursive schema: descriptors have one down to [`LEVELS`]. Below that the
//! schema takes any field, and an unknown field is a fault in the status. Down to there, an API
//! server refuses a field that is not in the schema if `kubectl` or server-side apply asks for
//! that, and otherwise drops it with a warning. Such fields are a misspelt `shadow_mode`, and the
//! fields of a newer release than the definition.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::api_server::resource;
use super::object::FIELD;
use crate::document::{TEXT_BYTES_MAX, schema};

/// Levels of descriptors that the definition describes.
const LEVELS: usize = 8;

/// Set to write the file instead of comparing it.
const UPDATE: &str = "UPDATE_DOCS";

const FILE: &str = "../../deploy/helm/ratelease/crds/ratelimitrules.yaml";

const HEAD: &str = "\
# The rules of a domain as an object (docs/control-plane.md).
# UPDATE_DOCS=1 cargo test --workspace --lib -- schema writes this file from the table of options.
";

const ANY_FIELD: &str = "x-kubernetes-preserve-unknown-fields";

/// A schema that API servers take, of one in the dialect of rule files.
fn structural(schema: &Value, definitions: &Value, level: usize) -> Value {
    let mut found = match alternatives(schema).as_slice() {
        [one] => one_of(one, definitions, level),
        // Words, in whatever case, of which the definition has those in lower case.
        [words, _] if words.get("enum").is_some() => {
            json!({"type": "string", "enum": words["enum"]})
        }
        _ => json!({ANY_FIELD: true}),
    };
    let types = schema["type"].as_array().or_else(|| schema["anyOf"].as_array());
    let is_null = |it: &Value| *it == "null" || it["type"] == "null";
    if types.is_some_and(|it| it.iter().any(is_null)) && found.get("enum").is_none() {
        found["nullable"] = true.into();
    }
    if let Some(meaning) = schema.get("description") {
        found["description"] = meaning.clone();
    }
    found
}

/// The types that a value may have, without null.
fn alternatives(schema: &Value) -> Vec<&Value> {
    let any = schema["anyOf"].as_array().map_or_else(|| vec![schema], |any| any.iter().collect());
    any.into_iter().filter(|it| it["type"] != "null").collect()
}

fn one_of(schema: &Value, definitions: &Value, level: usize) -> Value {
    if let Some(reference) = schema["$ref"].as_str() {
        let name = reference.trim_start_matches("#/definitions/");
        let level = level + usize::from(name == "descriptor");
        return match level > LEVELS {
            true => json!({"type": "object", ANY_FIELD: true}),
            false => object(&definitions[name], definitions, level),
        };
    }
    let types: Vec<_> = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    match types.iter().copied().filter(|it| *it != "null").collect::<Vec<_>>()[..] {
        ["array"] => {
            json!({"type": "array", "items": structural(&schema["items"], definitions, level)})
        }
        ["object"] => json!({"type": "object", ANY_FIELD: true}),
        [one] => {
            let mut found = json!({"type": one});
            for name in ["pattern", "minimum", "maximum", "minLength"] {
                if let Some(bound) = schema.get(name) {
                    found[name] = bound.clone();
                }
            }
            if let Some(bound) = schema.get("exclusiveMinimum") {
                found["minimum"] = bound.clone();
                found["exclusiveMinimum"] = true.into();
            }
            if one == "integer" {
                found["format"] = "int64".into();
            }
            found
        }
        // A text that looks like a number is one without quotes too.
        _ => json!({"x-kubernetes-int-or-string": true}),
    }
}

fn object(map: &Value, definitions: &Value, level: usize) -> Value {
    let properties = map["properties"].as_object().into_iter().flatten();
    let properties: Map<_, _> = properties
        .map(|(name, schema)| (name.clone(), structural(schema, definitions, level)))
        .collect();
    let mut found = json!({"type": "object", "properties": properties});
    for name in ["key", "value"] {
        if let Some(text) = found["properties"].get_mut(name) {
            text["maxLength"] = TEXT_BYTES_MAX.into();
        }
    }
    if let Some(required) = map.get("required") {
        found["required"] = required.clone();
    }
    found
}

/// The schema of a spec.
fn spec() -> Value {
    let schema = schema();
    let mut spec = object(&schema, &schema["definitions"], 0);
    spec["description"] = "A rule file (docs/rules.md).".into();
    let domain = &mut spec["properties"]["domain"];
    domain["type"] = "string".into();
    domain["minLength"] = 1.into();
    domain["maxLength"] = 1024.into();
    domain["x-kubernetes-validations"] = json!([{
        "rule": "self == oldSelf",
        "message": "the domain of an object never changes; make another object",
    }]);
    if let Value::Object(domain) = domain {
        domain.remove("x-kubernetes-int-or-string");
    }
    spec["properties"][FIELD] = rollout();
    spec
}

/// The schema of how an object is rolled out: the terms that `POST /v1/rollouts` takes.
fn rollout() -> Value {
    let stage = json!({"type": "string", "enum": ["shadow", "enforced"],
        "description": "Whether chosen pods only count what the draft would deny, or enforce it."});
    let percent = json!({"type": "integer", "format": "int64", "minimum": 1, "maximum": 100,
        "description": "How many of a hundred pods that serve the domain are chosen."});
    let text = |meaning: &str| json!({"type": "string", "maxLength": 1024, "description": meaning});
    let label = json!({"type": "object", "required": ["key", "value"],
        "description": "The pods whose nodes have this in their metadata.",
        "properties": {"key": text("The key."), "value": text("The value.")}});
    let wait =
        text("How long until the next step, as in 10m; without it the step waits for a call.");
    json!({"type": "object", "nullable": true,
    "description": "Has some pods run a change before the others (docs/control-plane.md).",
    "properties": {
        "pods": {"type": "object", "description": "Which pods run the change.",
            "properties": {"percent": percent, "label": label}},
        "stage": stage,
        "steps": {"type": "array", "maxItems": 20,
            "description": "What is done step by step; after the last one all pods have the rules.",
            "items": {"type": "object",
                "properties": {"stage": stage, "percent": percent, "wait": wait}}},
        "bound": {"type": "object", "required": ["denied_share"],
            "description": "When to roll back without being asked.",
            "properties": {
                "denied_share": {"type": "number", "minimum": 0, "maximum": 1,
                    "description": "The largest share of hits that may be denied."},
                "hits_min": {"type": "integer", "format": "int64", "minimum": 1,
                    "description": "Hits in 30 s below which the share does not count."},
            }},
        "time_limit": text("How long it may be without a step until it ends, as in 24h."),
    }})
}

/// The schema of a status.
fn status() -> Value {
    let integer = json!({"type": "integer", "format": "int64"});
    let text = json!({"type": "string"});
    let described = |schema: &Value, meaning: &str| {
        let mut schema = schema.clone();
        schema["description"] = meaning.into();
        schema
    };
    let pods = json!({
        "current": described(&integer, "The pods that have the rules of the object as it is."),
        "connected": described(&integer, "All pods that get the domain."),
    });
    json!({"type": "object", "description": "What ratelease-control says of the rules.", "properties": {
        "observedGeneration": described(&integer, "The generation that the status is about."),
        "version": described(&integer, "The version that has the rules of the domain; 0 for none."),
        "pods": {"type": "object", "description": "The pods that get the domain.",
            "properties": pods},
        "faults": {"type": "array", "description": "The faults of the rules, at most 20.", "items": {
            "type": "object", "properties": {"field": text, "message": text},
        }},
        "conditions": {"type": "array", "description": "Accepted: the rules are published. \
            Programmed: all pods have them. Ready: both. Stalled: the object has to change before its \
            rules can be in force.", "items": {
            "type": "object",
            "required": ["type", "status", "reason", "message", "lastTransitionTime"],
            "properties": {
                "type": text, "status": text, "reason": text, "message": text,
                "observedGeneration": integer,
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
        }},
    }})
}

fn definition() -> Value {
    let kind = resource();
    let column =
        |name: &str, of: &str, path: &str| json!({"name": name, "type": of, "jsonPath": path});
    let of = |name: &str, field: &str| format!(".status.conditions[?(@.type==\"{name}\")].{field}");
    let condition = |name: &str| of(name, "status");
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{}", kind.plural, kind.group)},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced",
            "names": {
                "kind": kind.kind,
                "listKind": format!("{}List", kind.kind),
                "plural": kind.plural,
                "singular": kind.plural,
                "shortNames": ["rlr"],
            },
            "versions": [{
                "name": kind.version,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": [
                    column("Domain", "string", ".spec.domain"),
                    column("Accepted", "string", &condition("Accepted")),
                    column("Programmed", "string", &condition("Programmed")),
                    column("Pods", "integer", ".status.pods.current"),
                    column("Of", "integer", ".status.pods.connected"),
                    column("Reason", "string", &of("Ready", "reason")),
                    column("Age", "date", ".metadata.creationTimestamp"),
                ],
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "description": "The rules of one domain, which ratelease-control follows.",
                    "required": ["spec"],
                    "properties": {"spec": spec(), "status": status()},
                }},
            }],
        },
    })
}

#[test]
fn the_schema_of_the_definition_is_up_to_date() {
    let yaml = serde_saphyr::to_string(&definition()).expect("JSON is YAML");
    let text = format!("{HEAD}{yaml}");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE);
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(&path, &text).expect("the file can be written");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(written == text, "{} is not up to date: run this test with {UPDATE}=1", path.display());
    // `kubectl apply` keeps the object as JSON in an annotation, which may have 256 KiB.
    let json = definition().to_string();
    assert!(json.len() < 240 << 10, "{} bytes", json.len());
}

#[test]
fn every_field_has_a_shape_that_api_servers_take() {
    fn check(schema: &Value, path: &str) {
        for name in ["anyOf", "if", "allOf", "$ref", "additionalProperties"] {
            assert!(schema.get(name).is_none(), "{path} has {name}");
        }
        let is_any = schema.get(ANY_FIELD).is_some();
        let is_either = schema.get("x-kubernetes-int-or-string").is_some();
        assert!(schema["type"].is_string() || is_any || is_either, "{path}: {schema}");
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            check(below, &format!("{path}.{name}"));
        }
        if let Some(items) = schema.get("items") {
            check(items, &format!("{path}[]"));
        }
    }
    check(&spec(), "spec");
    let deepest =
        (0..LEVELS).fold(spec(), |it, _| it["properties"]["descriptors"]["items"].clone());
    assert_eq!(deepest["properties"]["rate_limit"]["properties"]["unit"]["enum"][0], "second");
    let below = &deepest["properties"]["descriptors"]["items"];
    assert_eq!(*below, json!({"type": "object", ANY_FIELD: true}));
}
