//! `ratectl migrate --to-module`: rewrites the bootstrap of an Envoy that asks a rate limit
//! service, so that the engine decides inside it.
//!
//! `rewrite` changes the bootstrap and its filters, `routes` the routes, and `ends` the access log
//! that reports ends to ratelease. This file has the parts that all three use: it reads fields of
//! messages in JSON, and finds the parts of a rate limit that the module refuses.

mod ends;
mod rewrite;
mod routes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::path::Path;

use ratelease_cli::out::{CliError, CliResult, Completion, Out, eprint_line};
use ratelease_cli::safe::Safe;
use ratelease_cli::source;
use ratelease_rules::yaml::{Yaml, YamlKind};
use serde_json::{Map, Value, json};

use crate::yaml_documents::{self, Document, camel};

/// Where a value lies in the document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Trail(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Item(usize),
}

/// A remark that a reader of the new configuration needs.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    at: Trail,
    text: String,
    /// `true`: the part could not be moved, and its owner has to act.
    needs_action: bool,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

/// Writes the new configuration to standard output, and the findings to standard error.
pub(super) fn run(path: &Path, out: &mut Out) -> CliResult {
    let source = source::read_file(path)?;
    let documents = yaml_documents::read(&source).map_err(|faults| CliError::new(Safe(faults)))?;
    let [document] = &documents[..] else {
        let text = format!("{}: {} documents; expected one", source.name, documents.len());
        return Err(CliError::new(Safe(text)));
    };
    let mut bootstrap = document.root.json();
    let findings = rewrite::bootstrap(&mut bootstrap)
        .ok_or_else(|| CliError::new(Safe(format!("{}: {NO_FILTER}", source.name))))?;
    out.bytes(to_yaml(&bootstrap).as_bytes())?;
    for finding in &findings.0 {
        eprint_line(Safe(line(finding, &source.name, document)));
    }
    let left = findings.0.iter().filter(|finding| finding.needs_action).count();
    eprint_line(match left {
        0 => "moved all; comments and the order of fields are lost".to_owned(),
        left => format!("{left} to move by hand (!); comments and the order of fields are lost"),
    });
    Ok(Completion::clean_if(left == 0))
}

const NO_FILTER: &str = "no listener of static_resources has envoy.filters.http.ratelimit; \
                         expected the bootstrap of an Envoy that asks a rate limit service";

/// Writes YAML that any parser reads with the same types.
fn to_yaml(value: &Value) -> String {
    // JSON is YAML too, and any value can be written as such.
    serde_saphyr::to_string(value).unwrap_or_else(|_| format!("{value:#}\n"))
}

fn line(finding: &Finding, file: &str, document: &Document) -> String {
    let Finding { at, text, needs_action } = finding;
    let mark = if *needs_action { "! " } else { "" };
    let place = at.nearest(&document.root).place;
    let (row, column) = (document.lines_before + place.line, place.column);
    format!("{mark}{file}:{row}:{column}: {at}: {text}")
}

// === impl Findings ===

impl Findings {
    fn remark(&mut self, at: Trail, text: impl Into<String>) {
        self.0.push(Finding { at, text: text.into(), needs_action: false });
    }

    fn left(&mut self, at: Trail, text: impl Into<String>) {
        self.0.push(Finding { at, text: text.into(), needs_action: true });
    }
}

// === impl Trail ===

impl Trail {
    fn field(&self, name: &str) -> Self {
        self.step(Step::Field(name.to_owned()))
    }

    fn item(&self, at: usize) -> Self {
        self.step(Step::Item(at))
    }

    fn step(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// The value, or the last one on the way to it.
    fn nearest<'y>(&self, root: &'y Yaml) -> &'y Yaml {
        let mut at = root;
        for step in &self.0 {
            let next = match (step, &at.kind) {
                (Step::Field(name), _) => yaml_documents::field(at, name),
                (Step::Item(item), YamlKind::List(items)) => items.get(*item),
                (Step::Item(_), _) => None,
            };
            let Some(next) = next else { break };
            at = next;
        }
        at
    }
}

impl fmt::Display for Trail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, step) in self.0.iter().enumerate() {
            match step {
                Step::Field(name) if number == 0 => f.write_str(name)?,
                Step::Field(name) => write!(f, ".{name}")?,
                Step::Item(at) => write!(f, "[{at}]")?,
            }
        }
        Ok(())
    }
}

// === Fields ===
//
// Reads and changes fields of messages in JSON, whose names may be in `snake_case` or `camelCase`.

/// The name by which a message has a field.
fn name_in(fields: &Map<String, Value>, name: &str) -> Option<String> {
    [name.to_owned(), camel(name)].into_iter().find(|name| fields.contains_key(name))
}

/// The value of a field.
fn get<'v>(of: &'v Value, name: &str) -> Option<&'v Value> {
    let fields = of.as_object()?;
    fields.get(&name_in(fields, name)?)
}

/// Returns the value of a field, mutably.
fn get_mut<'v>(of: &'v mut Value, name: &str) -> Option<&'v mut Value> {
    let fields = of.as_object_mut()?;
    let name = name_in(fields, name)?;
    fields.get_mut(&name)
}

/// Removes a field.
fn take(of: &mut Value, name: &str) -> Option<Value> {
    let fields = of.as_object_mut()?;
    let name = name_in(fields, name)?;
    fields.remove(&name)
}

/// Sets a field.
fn set(of: &mut Value, name: &str, value: Value) {
    take(of, name);
    if let Some(fields) = of.as_object_mut() {
        fields.insert(name.to_owned(), value);
    }
}

/// The value at the end of some fields.
fn path<'v>(of: &'v Value, names: &[&str]) -> Option<&'v Value> {
    names.iter().try_fold(of, |of, name| get(of, name))
}

/// The text of a field; empty if there is none.
fn text<'v>(of: &'v Value, name: &str) -> &'v str {
    get(of, name).and_then(Value::as_str).unwrap_or_default()
}

/// The items of a field that is a list.
fn items<'v>(of: &'v Value, name: &str) -> &'v [Value] {
    get(of, name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the items of a field that is a list, mutably, each with its number.
fn items_mut<'v>(of: &'v mut Value, name: &str) -> impl Iterator<Item = (usize, &'v mut Value)> {
    let items = get_mut(of, name).and_then(Value::as_array_mut);
    items.into_iter().flatten().enumerate()
}

/// The prefix of the URL of a type.
const URL: &str = "type.googleapis.com/";

/// The settings of the library. It is never unloaded: its threads run its code.
fn library() -> Value {
    json!({"name": "ratelease", "do_not_close": true, "metrics_namespace": "ratelease"})
}

/// The name of the message in an `Any`: the text after the last `/` of its type's URL.
fn type_of(any: &Value) -> &str {
    let url = text(any, "@type");
    url.rsplit('/').next().unwrap_or_default()
}

// === Review ===
//
// Reviews one `RateLimit` message for parts that the module refuses. The module itself checks more,
// such as regular expressions, and says the place of each fault.

/// Extensions that the module knows.
const INPUTS: [&str; 2] = [
    "envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
    "envoy.type.matcher.v3.HttpRequestQueryParamMatchInput",
];

/// Operators of formats that the module knows.
const OPERATORS: [&str; 9] = [
    "REQ",
    "REQUEST_HEADER",
    "RESP",
    "RESPONSE_HEADER",
    "DYNAMIC_METADATA",
    "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT",
    "BYTES_RECEIVED",
    "BYTES_SENT",
    "RESPONSE_CODE",
];

/// The action that names Envoy's own cluster.
const SOURCE_CLUSTER: &str = "source_cluster";

/// Notes the parts that the module refuses. The module cannot see the name of Envoy's own cluster,
/// so the name is written out if `node_cluster` says it.
fn review(limit: &mut Value, at: &Trail, node_cluster: Option<&str>, findings: &mut Findings) {
    for (number, action) in items_mut(limit, "actions") {
        let at = at.field("actions").item(number);
        ends::name_stream(action);
        if get(action, SOURCE_CLUSTER).is_some()
            && let Some(name) = node_cluster
        {
            *action = json!({"generic_key": {
                "descriptor_key": SOURCE_CLUSTER,
                "descriptor_value": name,
            }});
            let text = format!(
                "a module cannot see Envoy's own cluster; written out as node.cluster, {name}: \
                 change it if --service-cluster gives another"
            );
            findings.remark(at.field(SOURCE_CLUSTER), text);
        }
        for (field, text) in refused(action) {
            findings.left(at.field(field), text);
        }
    }
    if path(limit, &["limit", "dynamic_metadata"]).is_some() {
        let text = "a module cannot read a struct of metadata; write the limit as a rule";
        findings.left(at.field("limit").field("dynamic_metadata"), text);
    }
    let hits = get(limit, "hits_addend").map_or("", |hits| text(hits, "format"));
    if let Some(operator) = unknown_operator(hits) {
        findings.left(at.field("hits_addend").field("format"), no_operator(operator));
    }
}

/// Returns the parts of an action that the module refuses, each with its fault.
fn refused(action: &Value) -> Vec<(&'static str, String)> {
    let mut refused = Vec::new();
    if get(action, SOURCE_CLUSTER).is_some() {
        let text = "a module cannot see Envoy's own cluster; write its name as a generic_key with \
                    descriptor_key source_cluster";
        refused.push((SOURCE_CLUSTER, text.to_owned()));
    }
    if let Some(extension) = get(action, "extension") {
        let kind = get(extension, "typed_config").map_or("", type_of);
        if !INPUTS.contains(&kind) {
            let text = format!("a module cannot run {kind}");
            refused.push(("extension", text));
        }
    }
    for kind in ["metadata", "dynamic_metadata"] {
        let segments = get(action, kind).and_then(|it| get(it, "metadata_key"));
        if segments.is_some_and(|key| !is_reached(items(key, "path"))) {
            let text = "a module reaches a key of the namespace, and an item of a list there; \
                        copy the value to such a key";
            refused.push((kind, text.to_owned()));
        }
    }
    for (kind, list) in
        [("header_value_match", "headers"), ("query_parameter_value_match", "query_parameters")]
    {
        let matchers = get(action, kind).map_or(&[][..], |it| items(it, list));
        if matchers.iter().any(|it| path(it, &["string_match", "custom"]).is_some()) {
            refused.push((kind, "a module cannot run a custom string_match".to_owned()));
        }
    }
    let value = get(action, "remote_address_match").map_or("", |it| text(it, "descriptor_value"));
    if let Some(operator) = unknown_operator(value) {
        refused.push(("remote_address_match", no_operator(operator)));
    }
    refused
}

fn is_reached(path: &[Value]) -> bool {
    match path {
        [key] => get(key, "key").is_some(),
        [key, index] => get(key, "key").is_some() && get(index, "index").is_some(),
        _ => false,
    }
}

/// The first operator of a format that the module does not know.
fn unknown_operator(format: &str) -> Option<&str> {
    let is_name = |byte: char| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == '_';
    let mut rest = format;
    while let Some((_, after)) = rest.split_once('%') {
        if let Some(literal) = after.strip_prefix('%') {
            rest = literal;
            continue;
        }
        let name = &after[..after.find(|it| !is_name(it)).unwrap_or(after.len())];
        if !OPERATORS.contains(&name) {
            return Some(name);
        }
        rest = after.split_once('%').map_or("", |(_, rest)| rest);
    }
    None
}

fn no_operator(operator: &str) -> String {
    format!("a module cannot tell %{operator}%")
}
