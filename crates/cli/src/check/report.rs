//! The report of a check, as text, as JSON or as workflow commands.

use std::fmt::Display;

use ratelease_rules::{Fault, Source};
use serde_json::{Value, json};

use super::snippet::Cursor;
use crate::out::{CliError, Out, Style};
use crate::safe::Safe;

/// The result of a check.
pub(super) struct Report {
    /// Number of files that were read.
    pub(super) files: usize,
    /// What the files contain; `None` if there are faults.
    pub(super) rules: Option<Rules>,
    /// Faults and warnings, in order of file and place.
    pub(super) findings: Vec<Finding>,
    /// Number of faults that are not in `findings`.
    pub(super) unlisted: usize,
}

/// The content of the files, in numbers.
pub(super) struct Rules {
    pub(super) rules: usize,
    pub(super) domains: usize,
}

/// A fault or a warning.
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) fault: Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// The rules do not load.
    Error,
    /// The rules load but may not do what their author meant.
    Warning,
}

// === impl Report ===

impl Report {
    /// Returns whether there is nothing of severity `least` or above.
    pub(super) fn is_good(&self, least: Severity) -> bool {
        match least {
            Severity::Error => self.rules.is_some(),
            Severity::Warning => self.rules.is_some() && self.findings.is_empty(),
        }
    }

    /// Prints each finding with its line of the source, and a summary.
    pub(super) fn text(&self, sources: &[Source], out: &mut Out) -> Result<(), CliError> {
        let painter = out.painter();
        let mut open: Option<(&str, Cursor<'_>)> = None;
        for Finding { severity, fault } in &self.findings {
            let Fault { file, line, column, message } = fault;
            let name = format!("{}:", severity.name());
            out.line(format_args!(
                "{} {} {}",
                painter.paint(Style::Strong, format_args!("{}:{line}:{column}:", Safe(file))),
                painter.paint(severity.style(), name),
                Safe(message)
            ))?;
            if open.as_ref().is_none_or(|(name, _)| name != file) {
                let source = sources.iter().find(|source| source.name == *file);
                open = source.map(|source| (&*source.name, Cursor::new(&source.text)));
            }
            let snippet = open.as_mut().and_then(|(_, cursor)| cursor.snippet(*line, *column));
            if let Some(snippet) = snippet {
                out.line(snippet)?;
            }
            if out.is_closed() {
                return Ok(());
            }
        }
        out.line(self.summary())
    }

    /// Prints each finding as a workflow command of GitHub, and a summary.
    pub(super) fn github(&self, out: &mut Out) -> Result<(), CliError> {
        for Finding { severity, fault } in &self.findings {
            let Fault { file, line, column, message } = fault;
            out.line(format_args!(
                "::{} file={},line={line},col={column}::{}",
                severity.name(),
                // GitHub identifies files by their paths from the repository's root, without a
                // leading dot.
                property(&Safe(file.trim_start_matches("./")).to_string()),
                data(&Safe(message).to_string())
            ))?;
        }
        out.line(data(&self.summary()))
    }

    pub(super) fn json(&self) -> Value {
        let findings = self.findings.iter().map(|Finding { severity, fault }| {
            let Fault { file, line, column, message } = fault;
            let severity = severity.name();
            json!({ "severity": severity, "file": file, "line": line, "column": column,
                "message": message })
        });
        let findings: Vec<Value> = findings.collect();
        json!({
            "loads": self.rules.is_some(),
            "files": self.files,
            "rules": self.rules.as_ref().map(|rules| rules.rules),
            "domains": self.rules.as_ref().map(|rules| rules.domains),
            "errors": self.count(Severity::Error) + self.unlisted,
            "warnings": self.count(Severity::Warning),
            "findings": findings,
        })
    }

    fn summary(&self) -> String {
        let files = number(self.files, "file");
        let errors = self.count(Severity::Error) + self.unlisted;
        let mut found = vec![number(errors, "fault")];
        if self.unlisted > 0 {
            found.push(format!("{} of them not shown", self.unlisted));
        }
        found.push(number(self.count(Severity::Warning), "warning"));
        let found = found.join(", ");
        match &self.rules {
            Some(Rules { rules, domains }) => {
                let (rules, domains) = (number(*rules, "rule"), number(*domains, "domain"));
                format!("{files}: {rules} in {domains}, {found}")
            }
            None => format!("{files}: {found}; none of the rules would load"),
        }
    }

    fn count(&self, severity: Severity) -> usize {
        self.findings.iter().filter(|finding| finding.severity == severity).count()
    }
}

/// `1 rule`, `2 rules`.
fn number(count: usize, what: impl Display) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The text of a workflow command (`@actions/core`, command.ts, escapeData).
fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// A property of a workflow command (escapeProperty, as above).
fn property(text: &str) -> String {
    data(text).replace(':', "%3A").replace(',', "%2C")
}

// === impl Severity ===

impl Severity {
    /// The name that compilers and GitHub use.
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Error => Style::Bad,
            Self::Warning => Style::Doubtful,
        }
    }
}
