//! Reads a rule file to a document. The compiler checks the file first, so that what is left to
//! read has no fault.

use ratelease_rules::yaml::{self, Yaml, YamlKind};
use ratelease_rules::{Faults, MapKind, OptionRow, Options, Source, load};
use serde_json::{Map, Value};

use super::address::{Entry, check_entries};
use super::{Document, Record};

/// Why a rule file cannot be read.
#[derive(Debug, Clone, PartialEq)]
pub enum ReadFaults {
    /// The compiler refuses it.
    Compiler(Faults),
    /// A document cannot hold it: the file, and what is wrong.
    Document(String, String),
}

/// Reads rule files, in order of their names, each of which is one domain.
///
/// # Errors
/// All faults that the compiler finds, or the first thing that a document cannot hold.
pub fn read(sources: &[Source]) -> Result<Vec<Document>, ReadFaults> {
    load(sources, Options::default()).map_err(ReadFaults::Compiler)?;
    sources.iter().map(read_one).collect()
}

fn read_one(source: &Source) -> Result<Document, ReadFaults> {
    let root = yaml::read(source).map_err(ReadFaults::Compiler)?;
    let mut document = Document::default();
    let mut list = None;
    for (name, value) in root.iter().flat_map(Yaml::fields) {
        match name {
            "domain" => document.domain = value.text().unwrap_or_default().to_owned(),
            "defaults" => merge(&mut document.defaults, typed(value)),
            "descriptors" => list = Some(value),
            // A name that the compiler does not know has been refused.
            other => {
                let message = format!("'{other}' cannot stand beside 'domain' here; remove it");
                return Err(ReadFaults::Document(source.name.clone(), message));
            }
        }
    }
    if let Some(list) = list {
        walk(list, &mut Vec::new(), &mut document.records);
    }
    for record in &mut document.records {
        check_entries(&mut record.entries).map_err(|faults| {
            let fault = faults.first().map(|it| format!("{}: {}", it.field, it.message));
            ReadFaults::Document(source.name.clone(), fault.unwrap_or_default())
        })?;
    }
    Ok(document)
}

/// Adds the records of a list of descriptors below `path`. The parser bounds the depth.
fn walk(list: &Yaml, path: &mut Vec<Entry>, records: &mut Vec<Record>) {
    for item in list.items() {
        let mut key = "";
        let mut value = "";
        let mut below = None;
        let mut settings = Map::new();
        for (name, field) in item.fields() {
            match name {
                "key" => key = field.text().unwrap_or_default(),
                "value" => value = field.text().unwrap_or_default(),
                "descriptors" => below = Some(field),
                // All that the compiler knows, even if it warns that it has no effect here.
                name => set(&mut settings, name, field),
            }
        }
        path.push(Entry::new(key, value));
        let before = records.len();
        if !settings.is_empty() {
            records.push(Record { entries: path.clone(), settings: settings.clone() });
        }
        if let Some(below) = below {
            walk(below, path, records);
        }
        if records.len() == before {
            // A leaf without a limit: it shields its requests from the wildcards beside it.
            records.push(Record { entries: path.clone(), settings });
        }
        path.pop();
    }
}

/// Sets a field of a descriptor. As in rule files, null removes it and a map adds to a former one.
fn set(settings: &mut Map<String, Value>, name: &str, field: &Yaml) {
    let value = if name == "metadata" { field.json() } else { typed(field) };
    match (settings.get_mut(name), value) {
        (_, Value::Null) => {
            settings.remove(name);
        }
        (Some(Value::Object(former)), Value::Object(more)) => former.extend(more),
        (_, value) => {
            settings.insert(name.to_owned(), value);
        }
    }
}

/// The value of a field other than metadata, whose maps hold fields of rule files.
fn typed(value: &Yaml) -> Value {
    match &value.kind {
        YamlKind::Map(_) => {
            let mut map = Map::new();
            for (name, field) in value.fields() {
                match field.text().filter(|_| is_text(name)) {
                    Some(text) => merge(&mut map, [(name, text)].into_iter().collect()),
                    None => set(&mut map, name, field),
                }
            }
            Value::Object(map)
        }
        YamlKind::List(items) => items.iter().map(typed).collect(),
        _ => value.json(),
    }
}

/// Whether options of this name are text whatever they look like, as in `name: 007`.
fn is_text(name: &str) -> bool {
    let option = MapKind::ALL.into_iter().find_map(|map| map.option(name));
    option.is_some_and(OptionRow::is_text)
}

fn merge(map: &mut Map<String, Value>, more: Value) {
    match more {
        Value::Object(more) => map.extend(more),
        _ => map.clear(),
    }
}
