//! Faults of settings: all of them are collected, then reported together.

use std::borrow::Cow;
use std::fmt;

use ratelease_engine::secret::{Secret, SecretFile};

/// Maximum number of characters of a faulty value that are shown.
const FOUND_SHOWN_MAX: usize = 80;

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The setting's environment name, such as `PORT`.
    pub name: String,
    /// What is wrong; never contains a secret.
    pub problem: String,
    /// The value as given, cut to 80 characters; `None` for secrets and if there was no value.
    pub found: Option<String>,
    /// How to fix it.
    pub fix: String,
    /// Whether the fault is in a file that the value names, which another machine may have.
    pub is_in_file: bool,
}

/// All faults of one start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

/// What a parser expected, with an example that it accepts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Expected {
    what: Cow<'static, str>,
    example: Option<&'static str>,
}

/// Returns the flag for an environment name: `--grpc-port` for `GRPC_PORT`.
pub(super) fn flag_name(name: &str) -> String {
    format!("--{}", name.to_ascii_lowercase().replace('_', "-"))
}

/// Returns the name of the variable that names the file with the secret of `name`.
pub(super) fn file_name(name: &str) -> String {
    format!("{name}_FILE")
}

/// Returns a value that is safe to show: cut, and hidden if it is a key instead of the name of a
/// key file.
fn shown(value: &str) -> String {
    match value.split_once("-----BEGIN") {
        Some((before, _)) => format!("{}…", shown(before)),
        None => value.chars().take(FOUND_SHOWN_MAX).collect(),
    }
}

// === impl Expected ===

impl Expected {
    pub(super) fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self { what: what.into(), example: None }
    }

    /// Sets the example. Without one, the setting's default is the example.
    pub(super) fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    /// Sets the example if there is none.
    pub(super) fn or_example(self, example: &'static str) -> Self {
        Self { example: self.example.or(Some(example)), ..self }
    }
}

// === impl Faults ===

impl Faults {
    /// Returns the faults in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    /// Returns the number of faults.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no faults.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// Parses `value` with `parse`. If that fails, adds a fault under `name`.
    pub(super) fn parse<T>(
        &mut self,
        name: &str,
        value: &str,
        parse: impl FnOnce(&str) -> Result<T, Expected>,
    ) -> Option<T> {
        let expected = match parse(value) {
            Ok(parsed) => return Some(parsed),
            Err(expected) => expected,
        };
        self.add(Fault::expected(name, expected, Some(shown(value))));
        None
    }

    /// Like [`Faults::parse`], for a value that must not be shown: returns `Some(None)` if it is
    /// absent or empty.
    pub(super) fn parse_secret<T>(
        &mut self,
        name: &str,
        value: Option<&Secret>,
        parse: impl FnOnce(&str) -> Result<T, Expected>,
    ) -> Option<Option<T>> {
        match value {
            Some(value) if !value.is_empty() => match parse(value.reveal()) {
                Ok(parsed) => Some(Some(parsed)),
                Err(expected) => {
                    self.add(Fault::expected(name, expected, None));
                    None
                }
            },
            _ => Some(None),
        }
    }

    /// Returns the secret given as `name`, or read from the file given as `name` with `_FILE`
    /// appended. `Some(None)` if neither is given; a fault if both are.
    pub fn secret(
        &mut self,
        name: &str,
        given: Option<&Secret>,
        file: Option<&SecretFile>,
    ) -> Option<Option<Secret>> {
        let given = given.filter(|given| !given.is_empty());
        let file = file.filter(|file| !file.is_empty());
        let name_of_file = file_name(name);
        match (given, file) {
            (given, None) => Some(given.cloned()),
            (None, Some(file)) => match file.read() {
                Ok(secret) => Some(Some(secret)),
                Err(problem) => {
                    let fix = "name a file of one line, which this user may read";
                    let fault = Fault::new(name_of_file, format!("the file {problem}"), fix);
                    self.add(fault.in_file(&file.path().display().to_string()));
                    None
                }
            },
            (Some(_), Some(_)) => {
                let problem = format!("{name} is set too, and one of them would be ignored");
                self.add(Fault::new(name_of_file, problem, "unset one of them"));
                None
            }
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.len();
        let heading = if count == 1 { "setting is" } else { "settings are" };
        write!(f, "{count} {heading} faulty:")?;
        self.iter().try_for_each(|fault| write!(f, "\n  {fault}"))
    }
}

// === impl Fault ===

impl Fault {
    /// Makes a fault that concerns no single value, or whose value would not help the reader.
    pub(crate) fn new(
        name: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        let (name, problem, fix) = (name.into(), problem.into(), fix.into());
        Self { name, problem, found: None, fix, is_in_file: false }
    }

    /// Says that the fault is in the file of this path.
    pub(super) fn in_file(self, path: &str) -> Self {
        Self { is_in_file: true, ..self.with_found(path) }
    }

    pub(super) fn with_found(mut self, value: &str) -> Self {
        self.found = Some(shown(value));
        self
    }

    fn expected(name: &str, expected: Expected, found: Option<String>) -> Self {
        let Expected { what, example } = expected;
        let example = example.map(|example| format!(", as in {name}={example}"));
        Self {
            problem: format!("expected {what}"),
            found,
            fix: format!("set {name} or {}{}", flag_name(name), example.unwrap_or_default()),
            name: name.to_owned(),
            is_in_file: false,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.problem)?;
        if let Some(found) = &self.found {
            write!(f, ", found {found:?}")?;
        }
        write!(f, "; {}", self.fix)
    }
}
