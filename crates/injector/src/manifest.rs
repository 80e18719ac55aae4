//! Manifests in files: injects into the pods and pod templates of a stream of documents, and leaves
//! every other document as it is, byte by byte.

mod documents;

use serde_json::Value;

use crate::annotation::Defaults;
use crate::fault::Fault;
use crate::inject::{Cluster, Injection, Verdict, inject};
use documents::{Document, Piece};

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
    for piece in documents::pieces(text) {
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

#[cfg(test)]
mod tests;
