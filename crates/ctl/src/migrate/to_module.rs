//! `ratectl migrate --to-module`: rewrites the bootstrap of an Envoy that asks a rate limit service,
//! so that the engine decides inside it.

mod edit;
mod limits;
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
use serde_json::Value;

use crate::yaml_documents::{self, Document};

/// Where a value lies in the document.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Trail(Vec<Step>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Field(String),
    Item(usize),
}

/// What a reader of the new configuration has to know.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    at: Trail,
    text: String,
    /// It could not be moved.
    needs_action: bool,
}

#[derive(Debug, Default)]
struct Findings(Vec<Finding>);

/// Writes the new configuration to standard output, and what has to be known to standard error.
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
