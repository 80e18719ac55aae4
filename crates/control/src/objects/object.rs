//! An object as the control plane keeps it: the domain that it defines, and the rule file that its
//! spec is, or the faults of that, each with its place in the spec.

use std::fmt;

use kube::api::DynamicObject;
use ratelease_rules::{Source, excerpt};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::status::Status;
use crate::document::{ReadFaults, compile, read};
use crate::store::PublishedText;

/// Maximum number of faults that a status shows, and the bytes of a place and of a message.
const FAULTS_MAX: usize = 20;
const PLACE_BYTES_MAX: usize = 256;
const MESSAGE_BYTES_MAX: usize = 1024;

/// Maximum bytes of a domain's name.
const DOMAIN_BYTES_MAX: usize = 1024;

/// The name of an object: `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) namespace: String,
    pub(super) name: String,
}

/// An object.
#[derive(Debug, Clone)]
pub(super) struct Object {
    pub(super) key: Key,
    /// Tells it from an earlier one of its name.
    pub(super) uid: String,
    /// When it was created, in seconds of Unix time. The older of two comes first.
    pub(super) created: i64,
    /// Changes with each change of its spec.
    pub(super) generation: i64,
    /// The domain that it defines.
    pub(super) domain: String,
    /// Its rules, unless they have faults.
    pub(super) rules: Result<Rules, Faults>,
    /// The status that the API server has.
    pub(super) status: Status,
}

/// The rules of an object, which the compiler accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rules {
    /// The rule file as it is published.
    pub(super) text: String,
    /// The hash by which the text is known; `None` if the file has no rules.
    pub(super) hash: Option<String>,
    pub(super) count: usize,
}

/// What is wrong with an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Faults {
    /// The first ones.
    pub(super) shown: Vec<PlacedFault>,
    /// Number of all.
    pub(super) count: usize,
}

/// A fault, and where it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PlacedFault {
    /// The field, as in `spec.descriptors[0].rate_limit.unit`.
    pub(super) field: String,
    /// What is wrong, then what was expected.
    pub(super) message: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Key ===

impl Key {
    pub(super) fn of(object: &DynamicObject) -> Option<Self> {
        let namespace = object.metadata.namespace.clone()?;
        Some(Self { namespace, name: object.metadata.name.clone()? })
    }
}

// === impl Object ===

impl Object {
    /// Reads an object. Its rules may need up to `memory` bytes of a pod. Takes some 100 ms for the
    /// largest ones.
    pub(super) fn read(key: Key, object: &DynamicObject, memory: usize) -> Self {
        let spec = &object.data["spec"];
        let meta = &object.metadata;
        Self {
            key,
            uid: meta.uid.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map_or(i64::MAX, |it| it.0.as_second()),
            generation: meta.generation.unwrap_or_default(),
            domain: spec["domain"].as_str().unwrap_or_default().to_owned(),
            rules: rules(spec, memory),
            status: Status::of_object(object),
        }
    }

    /// Whether it has the spec of this object of the API server: then only the status may differ.
    pub(super) fn is_of(&self, object: &DynamicObject) -> bool {
        let meta = &object.metadata;
        meta.uid.as_ref() == Some(&self.uid) && meta.generation == Some(self.generation)
    }

    /// Whether it has the spec that this one has.
    pub(super) fn has_spec_of(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }

    /// Bytes that it keeps in memory, but for those of its status.
    pub(super) fn bytes(&self) -> usize {
        let rules = self.rules.as_ref().map_or(0, |rules| rules.text.len());
        self.domain.len() + rules
    }
}

// === impl Faults ===

impl Faults {
    pub(super) fn new(faults: impl Iterator<Item = PlacedFault>) -> Self {
        let mut shown = Vec::new();
        let mut count = 0;
        for mut fault in faults {
            count += 1;
            if shown.len() < FAULTS_MAX {
                cut(&mut fault.field, PLACE_BYTES_MAX);
                cut(&mut fault.message, MESSAGE_BYTES_MAX);
                shown.push(fault);
            }
        }
        Self { shown, count }
    }

    pub(super) fn one(field: &str, message: impl Into<String>) -> Self {
        let fault = PlacedFault { field: field.to_owned(), message: message.into() };
        Self::new([fault].into_iter())
    }
}

fn cut(text: &mut String, bytes_max: usize) {
    text.truncate(text.floor_char_boundary(bytes_max));
}

/// The rules of a spec, which is a rule file in JSON.
fn rules(spec: &Value, memory: usize) -> Result<Rules, Faults> {
    let domain = spec["domain"].as_str().unwrap_or_default();
    if domain.is_empty() || domain.len() > DOMAIN_BYTES_MAX || domain.contains('\0') {
        let message = "expected a name of 1 to 1024 bytes, without NUL characters";
        return Err(Faults::one("spec.domain", message));
    }
    // Each value has a line of its own, by which the compiler's faults are found again.
    let text = serde_json::to_string_pretty(spec).unwrap_or_default();
    let source = Source { name: "spec".to_owned(), text: text.into_bytes() };
    let mut documents = read(&[source]).map_err(|faults| placed(spec, faults))?;
    let texts = compile(&documents, memory).map_err(|findings| {
        Faults::new(findings.into_iter().map(|it| {
            let field = format!("spec.{}", it.field);
            PlacedFault { field, message: it.message }
        }))
    })?;
    let document = documents.pop().unwrap_or_default();
    let text = texts.1.into_iter().next().unwrap_or_default();
    let count = document.records.len();
    let yaml = (count > 0).then(|| text.clone());
    let published = PublishedText { domain: document.domain, changed: 0, yaml, rules: count };
    Ok(Rules { hash: published.hash(), text, count })
}

fn placed(spec: &Value, faults: ReadFaults) -> Faults {
    match faults {
        ReadFaults::Document(_, message) => Faults::one("spec", message),
        ReadFaults::Compiler(faults) => Faults::new(faults.iter().map(|fault| {
            let place = place(spec, "spec", &mut fault.line.saturating_sub(1));
            let field = place.unwrap_or_else(|| "spec".to_owned());
            PlacedFault { field, message: fault.message.clone() }
        })),
    }
}

/// The path of the value at a line of the pretty text of `value`, which is at `path`. The line is
/// counted from 0 at the value's first one, and what the value has of lines is taken from it.
fn place(value: &Value, path: &str, line: &mut u32) -> Option<String> {
    if *line == 0 {
        return Some(path.to_owned());
    }
    *line -= 1;
    let is_open = match value {
        Value::Object(map) => {
            for (name, value) in map {
                let shown = excerpt(name);
                if let Some(found) = place(value, &format!("{path}.{shown}"), line) {
                    return Some(found);
                }
            }
            !map.is_empty()
        }
        Value::Array(items) => {
            for (at, value) in items.iter().enumerate() {
                if let Some(found) = place(value, &format!("{path}[{at}]"), line) {
                    return Some(found);
                }
            }
            !items.is_empty()
        }
        _ => false,
    };
    if is_open {
        // The line of the closing bracket.
        if *line == 0 {
            return Some(path.to_owned());
        }
        *line -= 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(spec: &Value) -> Vec<(String, String)> {
        let faults = rules(spec, usize::MAX).unwrap_err();
        faults.shown.into_iter().map(|it| (it.field, it.message)).collect()
    }

    #[test]
    fn each_line_of_the_pretty_text_is_found_again() {
        let spec = json!({"a": [{"b": 1, "c": {}}, [], "x"], "d": {"e": [1, 2]}, "f": null});
        let text = serde_json::to_string_pretty(&spec).unwrap();
        let found: Vec<_> = (0..text.lines().count())
            .map(|line| place(&spec, "spec", &mut u32::try_from(line).unwrap()).unwrap())
            .collect();
        let expected = [
            "spec",
            "spec.a",
            "spec.a[0]",
            "spec.a[0].b",
            "spec.a[0].c",
            "spec.a[0]",
            "spec.a[1]",
            "spec.a[2]",
            "spec.a",
            "spec.d",
            "spec.d.e",
            "spec.d.e[0]",
            "spec.d.e[1]",
            "spec.d.e",
            "spec.d",
            "spec.f",
            "spec",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn every_fault_is_shown_at_once_with_its_place_in_the_spec() {
        let faults = faults(&json!({"domain": "shop", "descriptors": [
            {"key": "a", "rate_limit": {"unit": "fortnight", "requests_per_unit": 1}},
            {"key": "b", "descriptors": [{"key": "c", "rate_limits": {}}]},
        ]}));
        let fields: Vec<_> = faults.iter().map(|(field, _)| &**field).collect();
        let expected = [
            "spec.descriptors[0].rate_limit.unit",
            "spec.descriptors[1].descriptors[0].rate_limits",
        ];
        assert_eq!(fields, expected, "{faults:?}");
        assert!(faults[0].1.contains("expected one of second, minute"), "{faults:?}");
    }

    #[test]
    fn a_status_has_a_bounded_number_of_faults() {
        let bad = json!({"key": "a", "rate_limit": {"unit": "x", "requests_per_unit": 1}});
        let spec = json!({"domain": "shop", "descriptors": vec![bad; 100]});
        let faults = rules(&spec, usize::MAX).unwrap_err();
        assert_eq!(faults.shown.len(), FAULTS_MAX);
        assert!(faults.count >= 100, "{}", faults.count);
    }

    #[test]
    fn a_spec_is_what_the_same_rule_file_is() {
        let spec = json!({"domain": "shop", "descriptors": [
            {"key": "user", "value": 7, "rate_limit": {"unit": "day", "requests_per_unit": 5}},
            {"key": "é\n\"", "value": "007", "rate_limit": {"unlimited": true}},
        ]});
        let found = rules(&spec, usize::MAX).unwrap();
        let file = Source { name: "file".to_owned(), text: found.text.clone().into_bytes() };
        let documents = read(&[file]).unwrap();
        assert_eq!((documents[0].records.len(), found.count), (2, 2));
        let values: Vec<_> =
            documents[0].records.iter().map(|it| it.entries[0].value.as_deref()).collect();
        assert_eq!(values, [Some("7"), Some("007")]);
        assert_eq!(documents[0].records[1].entries[0].key, "é\n\"");
        let empty = rules(&json!({"domain": "shop"}), usize::MAX).unwrap();
        assert_eq!((empty.hash, empty.count), (None, 0));
    }

    #[test]
    fn a_domain_that_a_pod_has_no_room_for_is_a_fault() {
        let spec = json!({"domain": "shop", "descriptors": [{"key": "a"}]});
        let faults = rules(&spec, 10).unwrap_err();
        assert_eq!(faults.shown[0].field, "spec.descriptors");
    }
}
