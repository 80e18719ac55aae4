//! Manifests in files: injects into the pods and pod templates of a stream of documents, and leaves
//! every other document as it is, byte by byte.

use serde_json::Value;

use crate::annotation::Defaults;
use crate::fault::Fault;
use crate::inject::{Cluster, Injection, Verdict, inject};

/// The kinds that have a pod template, with the group of their `apiVersion` and where it is.
const WORKLOADS: [(&str, &str, &str); 9] = [
    ("", "Pod", ""),
    ("", "PodTemplate", "/template"),
    ("", "ReplicationController", "/spec/template"),
    ("apps", "DaemonSet", "/spec/template"),
    ("apps", "Deployment", "/spec/template"),
    ("apps", "ReplicaSet", "/spec/template"),
    ("apps", "StatefulSet", "/spec/template"),
    ("batch", "CronJob", "/spec/jobTemplate/spec/template"),
    ("batch", "Job", "/spec/template"),
];

/// Maximum levels of lists within lists.
const LISTS_MAX: usize = 4;

/// A stream after the injection.
#[derive(Debug)]
pub struct Manifest {
    /// The text: documents without a change are those of the original, byte by byte.
    pub text: String,
    /// What became of each pod and pod template, in order.
    pub pods: Vec<Report>,
}

/// What became of one pod or pod template.
#[derive(Debug)]
pub struct Report {
    /// `NAME:LINE: KIND NAMESPACE/NAME`.
    pub place: String,
    /// What became of it. A pod with faults stays as it is; no annotation says why.
    pub verdict: Verdict,
    /// The reasons of a refusal.
    pub faults: Vec<Fault>,
    /// What its author should know besides.
    pub warnings: Vec<String>,
}

/// Injects into all documents of a stream, YAML or JSON, whose name is for messages.
///
/// # Errors
/// Each document that cannot be parsed.
pub fn inject_all(
    (name, text): (&str, &str),
    defaults: &Defaults,
    cluster: Cluster,
) -> Result<Manifest, Vec<Fault>> {
    let mut manifest = Manifest { text: String::with_capacity(text.len()), pods: Vec::new() };
    let mut faults = Vec::new();
    for piece in pieces(text) {
        match piece {
            Piece::Separator(text) => manifest.text.push_str(text),
            Piece::Document(document) => match document.parse(name, is_relevant) {
                Ok(Some(value)) => manifest.add((name, &document, value), defaults, cluster),
                Ok(None) => manifest.text.push_str(document.text),
                Err(fault) => faults.push(fault),
            },
        }
    }
    if faults.is_empty() { Ok(manifest) } else { Err(faults) }
}

/// Whether a text can contain a workload. What has none is not even parsed: it may be of a dialect
/// that this parser does not know.
fn is_relevant(text: &str) -> bool {
    WORKLOADS.iter().any(|(_, kind, _)| text.contains(kind))
}

// === impl Manifest ===

impl Manifest {
    fn add(
        &mut self,
        (name, document, mut value): (&str, &Document<'_>, Value),
        defaults: &Defaults,
        cluster: Cluster,
    ) {
        let mut is_changed = false;
        for (at, title) in templates(&value, LISTS_MAX) {
            let Some(pod) = value.pointer_mut(&at) else { continue };
            let Injection { verdict, patch, pod: injected, faults, warnings } =
                inject(pod.clone(), defaults, cluster);
            if faults.is_empty() && !patch.0.is_empty() {
                *pod = injected;
                is_changed = true;
            }
            let place = format!("{name}:{}: {title}", document.line);
            self.pods.push(Report { place, verdict, faults, warnings });
        }
        if !is_changed {
            self.text.push_str(document.text);
            return;
        }
        self.text.push_str(document.leading_comments());
        self.text.push_str(&document.format.write(&value));
    }
}

/// The place of each pod and pod template of an object, with its kind and name.
fn templates(object: &Value, lists_max: usize) -> Vec<(String, String)> {
    let kind = object["kind"].as_str().unwrap_or_default();
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let group = version.split_once('/').map_or("", |(group, _)| group);
    if let Some(item_kind) = kind.strip_suffix("List")
        && let Some(items) = object["items"].as_array()
        && lists_max > 0
    {
        let of_item = |(at, item): (usize, &Value)| {
            let mut item = item.clone();
            // Items of a typed list need not repeat what they are.
            if item["kind"].is_null() && item.is_object() && !item_kind.is_empty() {
                item["kind"] = item_kind.into();
                item["apiVersion"] = version.into();
            }
            let found = templates(&item, lists_max - 1).into_iter();
            found.map(|(inner, title)| (format!("/items/{at}{inner}"), title)).collect::<Vec<_>>()
        };
        return items.iter().enumerate().flat_map(of_item).collect();
    }
    let workload = WORKLOADS.iter().find(|(of, named, _)| *of == group && *named == kind);
    let Some((_, _, at)) = workload else { return Vec::new() };
    let meta = &object["metadata"];
    let name = meta["name"].as_str().or_else(|| meta["generateName"].as_str()).unwrap_or_default();
    let within = meta["namespace"].as_str().map(|of| format!("{of}/")).unwrap_or_default();
    vec![((*at).to_owned(), format!("{kind} {within}{name}"))]
}

// The documents of a stream. A line that begins with `---` separates two of YAML, wherever it is,
// as for kubectl; values of JSON follow each other without a separator.

/// A part of a stream; all parts together are the stream.
#[derive(Debug)]
enum Piece<'t> {
    /// What is between documents.
    Separator(&'t str),
    Document(Document<'t>),
}

/// One document.
#[derive(Debug)]
struct Document<'t> {
    text: &'t str,
    /// The line of the stream that it begins in, from 1.
    line: usize,
    format: Format,
}

/// How a document is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Yaml,
    Json,
}

/// Splits a stream.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut first_line = 1;
    let mut at = 0;
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        if let Some(length) = separator(line) {
            push(&mut pieces, &text[start..at], first_line);
            pieces.push(Piece::Separator(&line[..length]));
            start = at + length;
            first_line = number + usize::from(length == line.len());
        }
        at += line.len();
    }
    push(&mut pieces, &text[start..], first_line);
    pieces
}

/// The bytes of a line that separate two documents: all of it, unless a value follows.
fn separator(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("---")?;
    let text = rest.trim();
    if !text.is_empty() && !rest.starts_with([' ', '\t']) {
        return None;
    }
    Some(if text.is_empty() || text.starts_with('#') { line.len() } else { 3 })
}

fn push<'t>(pieces: &mut Vec<Piece<'t>>, text: &'t str, line: usize) {
    if !text.trim_start().starts_with('{') {
        pieces.push(Piece::Document(Document { text, line, format: Format::Yaml }));
        return;
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    let mut parts = Vec::new();
    let mut start = 0;
    let mut is_json = true;
    while let Some(value) = values.next() {
        is_json &= value.is_ok();
        let end = values.byte_offset();
        let line = line + text[..start].matches('\n').count();
        parts.push(Document { text: &text[start..end], line, format: Format::Json });
        start = end;
    }
    if is_json {
        pieces.extend(parts.into_iter().map(Piece::Document));
        pieces.push(Piece::Separator(&text[start..]));
    } else {
        // A map of YAML in braces, or a fault that its parser reports.
        pieces.push(Piece::Document(Document { text, line, format: Format::Yaml }));
    }
}

// === impl Document ===

impl Document<'_> {
    /// The value, if the text can be relevant.
    fn parse(
        &self,
        name: &str,
        is_relevant: impl Fn(&str) -> bool,
    ) -> Result<Option<Value>, Fault> {
        if !is_relevant(self.text) {
            return Ok(None);
        }
        let fault = |line: usize, why: String| {
            let place = format!("{name}:{}", self.line + line.saturating_sub(1));
            Fault::new(place, why, "correct it; nothing was written")
        };
        match self.format {
            Format::Json => serde_json::from_str(self.text)
                .map_err(|error| fault(error.line(), format!("no JSON: {error}"))),
            Format::Yaml => from_yaml(self.text).map_err(|(line, why)| fault(line, why)),
        }
        .map(Some)
    }

    /// The lines of comments that it begins with, which a changed document keeps.
    fn leading_comments(&self) -> &str {
        let is_comment = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let lines = self.text.split_inclusive('\n').take_while(is_comment);
        &self.text[..lines.map(str::len).sum()]
    }
}

// === impl Format ===

impl Format {
    /// Writes a document as it was read: JSON stays JSON.
    fn write(self, value: &Value) -> String {
        match self {
            Self::Json => format!("{value:#}\n"),
            Self::Yaml => to_yaml(value),
        }
    }
}

/// Parses YAML as Kubernetes does, whose scalars are those of YAML 1.1: `0400` is octal. The error
/// is the line and what is wrong in it.
fn from_yaml(text: &str) -> Result<Value, (usize, String)> {
    let options = serde_saphyr::options! {
        legacy_octal_numbers: true,
        leading_zero_numbers_as_strings: false,
        emit_comments: false,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().and_then(|at| usize::try_from(at.line()).ok());
        (line.unwrap_or(1), format!("no YAML that can be read: {error}"))
    })
}

/// Writes YAML. Text that a parser of YAML 1.1 could take for something else is quoted.
fn to_yaml(value: &Value) -> String {
    let written = serde_saphyr::to_string(value);
    // JSON is YAML too, and any value can be written as such.
    let mut text = written.unwrap_or_else(|_| format!("{value:#}"));
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests;
