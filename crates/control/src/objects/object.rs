//! An object as the control plane keeps it: the domain that it defines, and the rule file that its
//! spec is, or the faults of that, each with its place in the spec.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::fmt::Write as _;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use ratelease_rules::{Source, excerpt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::value::RawValue;

use super::fault::{FAULTS_MAX, Faults, PlacedFault, bytes_of_faults};
use super::object_status::Status;
use crate::api::{RolloutTerms, Terms, check_new_domain};
use crate::document::{ReadFaults, compile, read, without_file};
use crate::store::PublishedText;

/// The field of a spec with the terms of a rollout.
pub const FIELD: &str = "rollout";

/// Maximum bytes of a spec. As values it may take some 100 times as much, one object at a time.
const SPEC_BYTES_MAX: usize = 512 << 10;

/// An object as the API server has it. The spec and the status are read separately for each object,
/// so that a fault in one object does not affect others. Unknown fields are skipped, however deeply
/// they nest.
#[derive(Debug, Deserialize)]
pub struct ApiObject {
    pub metadata: Meta,
    spec: Option<Box<RawValue>>,
    pub status: Option<Box<RawValue>>,
}

/// The fields of the metadata that are needed.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Meta {
    namespace: String,
    name: String,
    uid: String,
    pub resource_version: String,
    generation: i64,
    creation_timestamp: Option<Time>,
}

/// The domain of a spec, of which the rest may be wrong.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    domain: String,
}

/// The name of an object: `NAMESPACE/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// An object.
#[derive(Debug, Clone)]
pub struct Object {
    pub key: Key,
    /// Tells it from an earlier one of its name.
    pub uid: String,
    /// When the object was created, in seconds of Unix time. The older of two objects comes first.
    pub created: i64,
    /// Changes with each change of its spec.
    pub generation: i64,
    /// The domain that it defines.
    pub domain: String,
    /// The rules of the object; the error lists their faults.
    pub rules: Result<Rules, Faults>,
    /// The terms of its rollout; `None` if all pods get the rules at once.
    pub rollout: Option<Terms>,
    /// The status that the API server has.
    pub status: Status,
}

/// The rules of an object, which the compiler accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The rule file as it is published.
    pub text: String,
    /// The hash by which the text is known; `None` if the file has no rules.
    pub hash: Option<String>,
    pub count: usize,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl Key ===

impl Key {
    pub fn of(object: &ApiObject) -> Self {
        let Meta { namespace, name, .. } = object.metadata.clone();
        Self { namespace, name }
    }
}

// === impl ApiObject ===

impl ApiObject {
    /// Bytes of the spec and the status.
    pub fn bytes(&self) -> usize {
        let text = |it: &Option<Box<RawValue>>| it.as_ref().map_or(0, |it| it.get().len());
        text(&self.spec) + text(&self.status)
    }
}

// === impl Object ===

impl Object {
    /// Reads an object. Its rules may need up to `memory` bytes of a pod. Takes some 100 ms for the
    /// largest ones.
    pub fn read(object: &ApiObject, memory: usize) -> Self {
        let spec = object.spec.as_deref().map_or("{}", RawValue::get);
        let meta = &object.metadata;
        let domain = domain(spec);
        let read = domain.as_ref().map_err(Clone::clone).and_then(|_| {
            let mut spec = decode(spec)?;
            let terms = take_terms(&mut spec)?;
            Ok((rules(&spec, memory)?, terms))
        });
        let (rules, rollout) = match read {
            Ok((rules, terms)) => (Ok(rules), terms),
            Err(faults) => (Err(faults), None),
        };
        Self {
            key: Key::of(object),
            uid: meta.uid.clone(),
            created: meta.creation_timestamp.as_ref().map_or(i64::MAX, |it| it.0.as_second()),
            generation: meta.generation,
            rules,
            rollout,
            domain: domain.unwrap_or_default(),
            status: Status::read(object.status.as_deref()),
        }
    }

    /// Whether the object has the spec of `object`: then only the status may differ.
    pub fn is_of(&self, object: &ApiObject) -> bool {
        let meta = &object.metadata;
        meta.uid == self.uid && meta.generation == self.generation
    }

    /// Whether both objects have the same spec.
    pub fn has_spec_of(&self, other: &Self) -> bool {
        (&self.uid, self.generation) == (&other.uid, other.generation)
    }

    /// Whether the object's rules take less room than the rules of `former`.
    pub fn takes_less_than(&self, former: &Self) -> bool {
        self.rules.is_ok() && self.bytes_of_rules() < former.bytes_of_rules()
    }

    /// Bytes of the domain and the rules that the object publishes.
    pub fn bytes_of_rules(&self) -> usize {
        let rules = self.rules.as_ref().map_or(0, |rules| rules.text.len());
        self.domain.len() + rules
    }

    /// Bytes that it keeps in memory, but for a fixed number.
    pub fn bytes(&self) -> usize {
        let faults = self.rules.as_ref().err().map_or(0, |it| bytes_of_faults(&it.shown));
        self.bytes_of_rules() + faults + self.status.bytes()
    }
}

/// Takes the terms out of a spec.
///
/// # Errors
/// Lists all faults of the terms, with their places in the spec.
fn take_terms(spec: &mut Value) -> Result<Option<Terms>, Faults> {
    let field = spec.as_object_mut().and_then(|it| it.remove(FIELD));
    let Some(field) = field.filter(|it| !it.is_null()) else { return Ok(None) };
    let terms: RolloutTerms = serde_json::from_value(field)
        .map_err(|error| Faults::one(&format!("spec.{FIELD}"), error.to_string()))?;
    let checked = terms.checked().map_err(|faults| {
        let placed = faults.iter().map(|it| PlacedFault {
            field: format!("spec.{FIELD}.{}", it.field),
            message: it.message.clone(),
        });
        Faults::new(faults.len(), placed)
    });
    checked.map(Some)
}

/// The domain of a spec. The spec may have faults elsewhere: the published rules of the domain then
/// stay in force.
fn domain(spec: &str) -> Result<String, Faults> {
    let Named { domain } = serde_json::from_str(spec).unwrap_or_default();
    let checked = check_new_domain(&domain);
    checked.map(|()| domain).map_err(|problem| {
        let message = problem.errors.into_iter().next().map_or(problem.detail, |it| it.message);
        Faults::one("spec.domain", message)
    })
}

/// The values of a spec.
fn decode(spec: &str) -> Result<Value, Faults> {
    if spec.len() > SPEC_BYTES_MAX {
        let message = format!(
            "{} bytes; expected at most {SPEC_BYTES_MAX}: divide the rules among several domains",
            spec.len()
        );
        return Err(Faults::one("spec", message));
    }
    serde_json::from_str(spec).map_err(|error| {
        let message = match error.to_string() {
            why if why.starts_with("recursion limit") => {
                "nested too deep; expected at most 126 levels of objects and lists".to_owned()
            }
            why => why,
        };
        Faults::one("spec", message)
    })
}

/// A spec as a rule file in which each value has a line of its own, so that the compiler's faults
/// can be found again. It has no indentation, which would make megabytes of lines that are nested
/// deep.
fn lines(spec: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"");
    let written = spec.serialize(&mut Serializer::with_formatter(&mut text, formatter));
    // Values of JSON can be written, and memory does not fail.
    written.map(|()| text).unwrap_or_default()
}

/// The rules of a spec, which is a rule file in JSON.
fn rules(spec: &Value, memory: usize) -> Result<Rules, Faults> {
    let source = Source { name: "spec".to_owned(), text: lines(spec) };
    let mut documents = read(&[source]).map_err(|faults| placed(spec, faults))?;
    let texts = compile(&documents, memory).map_err(|findings| {
        Faults::new(
            findings.len(),
            findings.into_iter().map(|it| {
                let field = format!("spec.{}", it.field);
                PlacedFault { field, message: it.message }
            }),
        )
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
        ReadFaults::Compiler(faults) => {
            let shown: Vec<_> = faults.iter().take(FAULTS_MAX).collect();
            let lines = shown.iter().map(|fault| fault.line.saturating_sub(1));
            let places = Places::of(spec, lines);
            let placed = shown.iter().map(|fault| {
                let field = places.found.get(&fault.line.saturating_sub(1));
                let field = field.map_or("spec", String::as_str).to_owned();
                PlacedFault { field, message: without_file(&fault.message) }
            });
            Faults::new(faults.count(), placed)
        }
    }
}

/// The paths of the values at some lines of what [`lines`] makes of a spec, found in one walk.
struct Places<'v> {
    /// The lines that are sought, counted from 0, the last one first.
    sought: Vec<u32>,
    /// The line that the walk is at.
    line: u32,
    /// The names and the numbers that lead to it.
    path: Vec<Step<'v>>,
    found: BTreeMap<u32, String>,
}

/// A step of a path.
enum Step<'v> {
    Field(&'v str),
    Item(usize),
}

// === impl Places ===

impl<'v> Places<'v> {
    fn of(spec: &'v Value, lines: impl Iterator<Item = u32>) -> Self {
        let mut sought: Vec<_> = lines.collect();
        sought.sort_unstable_by_key(|line| Reverse(*line));
        sought.dedup();
        let mut this = Self { sought, line: 0, path: Vec::new(), found: BTreeMap::new() };
        this.walk(spec);
        this
    }

    /// Passes the lines of a value.
    fn walk(&mut self, value: &'v Value) {
        self.pass_line();
        let is_open = match value {
            Value::Object(map) => {
                map.iter().for_each(|(name, value)| self.step(Step::Field(name), value));
                !map.is_empty()
            }
            Value::Array(items) => {
                let numbered = items.iter().enumerate();
                numbered.for_each(|(at, value)| self.step(Step::Item(at), value));
                !items.is_empty()
            }
            _ => false,
        };
        if is_open {
            // The line of the closing bracket.
            self.pass_line();
        }
    }

    fn step(&mut self, step: Step<'v>, value: &'v Value) {
        if self.sought.is_empty() {
            return;
        }
        self.path.push(step);
        self.walk(value);
        self.path.pop();
    }

    fn pass_line(&mut self) {
        if self.sought.last() == Some(&self.line) {
            self.sought.pop();
            let mut text = "spec".to_owned();
            for step in &self.path {
                // Writing to a String cannot fail.
                let _ = match step {
                    Step::Field(name) => write!(text, ".{}", excerpt(name)),
                    Step::Item(at) => write!(text, "[{at}]"),
                };
            }
            self.found.insert(self.line, text);
        }
        self.line += 1;
    }
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
    fn each_line_of_a_spec_is_found_again_in_one_walk() {
        let spec = json!({"a": [{"b": 1, "c": {}}, [], "x"], "d": {"e": [1, 2]}, "f": null});
        let count = String::from_utf8(lines(&spec)).unwrap().lines().count();
        let places = Places::of(&spec, 0..u32::try_from(count).unwrap());
        let found: Vec<_> = places.found.into_values().collect();
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
    fn a_spec_that_is_nested_deep_makes_no_long_text() {
        let numbers = json!(vec![1; 10_000]);
        let spec = (0..50).fold(numbers, |within, _| json!([within]));
        assert!(lines(&spec).len() < 2 * spec.to_string().len());
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

    fn read_text(spec: &str) -> Object {
        let object = format!("{{\"metadata\": {{\"name\": \"a\"}}, \"spec\": {spec}}}");
        Object::read(&serde_json::from_str(&object).unwrap(), usize::MAX)
    }

    #[test]
    fn a_spec_that_cannot_be_decoded_is_a_fault_and_keeps_its_domain() {
        let of = |field: &str| format!("{{\"domain\": \"shop\", \"descriptors\": {field}}}");
        let deep = |levels| of(&format!("{}{}", "[".repeat(levels), "]".repeat(levels)));
        let maps = of(&format!("{}1{}", "{\"a\":".repeat(9000), "}".repeat(9000)));
        let large = of(&format!("\"{}\"", "x".repeat(SPEC_BYTES_MAX)));
        let cases = [
            (deep(200), "nested too deep"),
            (deep(9000), "nested too deep"),
            (maps, "nested too deep"),
            (of("1e999"), "number out of range"),
            (large, "expected at most 524288"),
        ];
        for (spec, expected) in cases {
            let object = read_text(&spec);
            let faults = object.rules.unwrap_err();
            assert_eq!((&*object.domain, &*faults.shown[0].field), ("shop", "spec"));
            assert!(faults.shown[0].message.contains(expected), "{faults:?}");
        }
    }

    #[test]
    fn an_object_defines_no_domain_that_is_no_name_or_that_of_candidates() {
        for domain in ["", "shop.x@candidate", "a\\u0000b", &"x".repeat(1025)] {
            let object = read_text(&format!("{{\"domain\": \"{domain}\"}}"));
            let faults = object.rules.unwrap_err();
            assert_eq!((&*object.domain, &*faults.shown[0].field), ("", "spec.domain"));
        }
        for spec in ["{}", "null", "7", "{\"domain\": 7}"] {
            assert_eq!(read_text(spec).rules.unwrap_err().shown[0].field, "spec.domain");
        }
    }

    #[test]
    fn faults_that_are_not_shown_are_counted_and_not_made() {
        let made = std::cell::Cell::new(0);
        let faults = Faults::new(
            9000,
            (0..9000).map(|_| {
                made.set(made.get() + 1);
                PlacedFault { field: String::new(), message: "x".repeat(9000) }
            }),
        );
        assert_eq!((faults.shown.len(), faults.count, made.get()), (20, 9000, 20));
        assert!(bytes_of_faults(&faults.shown) < 30_000);
    }

    #[test]
    fn a_domain_that_a_pod_has_no_room_for_is_a_fault() {
        let spec = json!({"domain": "shop", "descriptors": [{"key": "a"}]});
        let faults = rules(&spec, 10).unwrap_err();
        assert_eq!(faults.shown[0].field, "spec.descriptors");
    }

    #[test]
    fn the_terms_of_a_spec_are_taken_out_of_it() {
        let mut spec = json!({"domain": "shop", "rollout": {"pods": {"percent": 10}}});
        let terms = take_terms(&mut spec).unwrap().unwrap();
        assert_eq!((terms.plan.len(), &spec), (2, &json!({"domain": "shop"})));
        assert_eq!(take_terms(&mut spec).unwrap(), None);
        for (rollout, field) in [
            (json!({"percent": 10}), "spec.rollout"),
            (json!({"pods": {"percent": 0}}), "spec.rollout.pods.percent"),
            (json!({"steps": [{"percent": 5, "wait": "x"}]}), "spec.rollout.steps[0].wait"),
        ] {
            let mut spec = json!({"domain": "shop", "rollout": rollout});
            assert_eq!(take_terms(&mut spec).unwrap_err().shown[0].field, field);
        }
    }
}
