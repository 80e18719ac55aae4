//! YAML files as JSON, and how parts of them compare. Scalars are text, as they are written.

use std::path::Path;

use ratelease_rules::Source;
use ratelease_rules::yaml::{self, Yaml, YamlKind};
use serde_json::Value;

/// All documents of a file.
pub fn documents(path: &Path) -> Vec<Value> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let documents = text.split("\n---\n").map(|text| {
        let source = Source { name: name.clone(), text: text.as_bytes().to_vec() };
        let read = yaml::read(&source).unwrap_or_else(|faults| panic!("{faults}"));
        read.map_or(Value::Null, |read| json(&read))
    });
    documents.filter(|document| !document.is_null()).collect()
}

/// The only document of a file.
pub fn document(path: &Path) -> Value {
    let mut documents = documents(path);
    assert_eq!(documents.len(), 1, "{}: not one document", path.display());
    documents.remove(0)
}

fn json(yaml: &Yaml) -> Value {
    match &yaml.kind {
        YamlKind::Null => Value::Null,
        YamlKind::Scalar(text) => text.clone().into(),
        YamlKind::List(items) => items.iter().map(json).collect(),
        YamlKind::Map(pairs) => {
            pairs.iter().map(|(key, value)| (text(&json(key)).to_owned(), json(value))).collect()
        }
    }
}

/// The text of a scalar.
#[track_caller]
pub fn text(of: &Value) -> &str {
    of.as_str().unwrap_or_else(|| panic!("not a scalar: {of}"))
}

/// The items of a list; none where there is no list.
pub fn items(of: &Value) -> &[Value] {
    of.as_array().map_or(&[], Vec::as_slice)
}

/// All values of this key, at any depth.
pub fn all<'v>(of: &'v Value, key: &str) -> Vec<&'v Value> {
    let inside = |value: &'v Value| all(value, key);
    match of {
        Value::Array(items) => items.iter().flat_map(inside).collect(),
        Value::Object(pairs) => {
            let here = pairs.get(key).into_iter();
            here.chain(pairs.values().flat_map(inside)).collect()
        }
        _ => Vec::new(),
    }
}

/// Whether `whole` has all of `part`: of a map each pair, of a list each item, in any place.
pub fn includes(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(key, value)| whole.get(key).is_some_and(|whole| includes(whole, value))),
        (Value::Array(whole), Value::Array(part)) => {
            part.iter().all(|item| whole.iter().any(|whole| includes(whole, item)))
        }
        _ => whole == part,
    }
}
