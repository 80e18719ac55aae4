//! Faults of settings: all of them are collected, then reported together.

use std::borrow::Cow;
use std::fmt;

use ratelease_engine::secret::{Secret, SecretFile};

/// Maximum number of characters of a faulty value that are shown.
const FOUND_SHOWN_MAX: usize = 80;

/// What the variables of the control plane begin with, and their flags do not.
const CONTROL: &str = "CONTROL_";

/// One setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The setting's environment name, such as `PORT`; or the flag, if it has none.
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
pub struct Expected {
    what: Cow<'static, str>,
    example: Option<&'static str>,
}

/// Returns the flag for an environment name: `--grpc-port` for `GRPC_PORT`. A name with dashes is
/// that of a flag without a variable.
pub(crate) fn flag_name(name: &str) -> String {
    if name.starts_with("--") {
        return name.to_owned();
    }
    let name = name.strip_prefix(CONTROL).unwrap_or(name);
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
    /// Makes the end of a sentence that begins with "expected".
    pub fn new(what: impl Into<Cow<'static, str>>) -> Self {
        Self { what: what.into(), example: None }
    }

    /// Sets the example. Without one, the setting's default is the example.
    #[must_use]
    pub fn example(self, example: &'static str) -> Self {
        Self { example: Some(example), ..self }
    }

    /// Sets the example if there is none.
    pub(super) fn or_example(self, example: Option<&'static str>) -> Self {
        Self { example: self.example.or(example), ..self }
    }
}

// === impl Faults ===

impl Faults {
    /// Returns what `read` returns, or all the faults that it adds.
    ///
    /// # Errors
    /// There are faults.
    pub fn none_in<T>(read: impl FnOnce(&mut Self) -> T) -> Result<T, Self> {
        let mut faults = Self::default();
        let read = read(&mut faults);
        if faults.is_empty() { Ok(read) } else { Err(faults) }
    }

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

    /// Returns whether a setting, or the file of a secret, is faulty, so that what follows from it
    /// is not known.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|fault| fault.name.strip_suffix("_FILE").unwrap_or(&fault.name) == name)
    }

    /// Adds a fault.
    pub fn add(&mut self, fault: Fault) {
        self.0.push(fault);
    }

    /// Returns the secret given as `name`, or read from the file given as `name` with `_FILE`
    /// appended. `None` if neither is given, or if the file cannot be read or both are given, which
    /// is a fault.
    pub(super) fn secret(
        &mut self,
        name: &str,
        given: Option<&Secret>,
        file: Option<&SecretFile>,
    ) -> Option<Secret> {
        let given = given.filter(|given| !given.is_empty());
        let Some(file) = file.filter(|file| !file.is_empty()) else { return given.cloned() };
        if given.is_some() {
            let problem = format!("{name} is set too, and one of them would be ignored");
            self.add(Fault::new(file_name(name), problem, "unset one of them"));
            return None;
        }
        let failed = |problem| {
            let fix = "name a file of one line, which this user may read";
            let fault = Fault::new(file_name(name), format!("the file {problem}"), fix);
            self.add(fault.in_file(&file.path().display().to_string()));
        };
        file.read().map_err(failed).ok()
    }
}

impl std::error::Error for Faults {}

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
    pub fn new(
        name: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self {
            name: name.into(),
            problem: problem.into(),
            found: None,
            fix: fix.into(),
            is_in_file: false,
        }
    }

    /// Makes a fault of a text that its parser refuses.
    pub(super) fn expected(name: &str, expected: Expected) -> Self {
        let Expected { what, example } = expected;
        let flag = flag_name(name);
        let ways = if flag == name { flag } else { format!("{name} or {flag}") };
        let example = example.map(|example| format!(", as in {name}={example}"));
        let fix = format!("set {ways}{}", example.unwrap_or_default());
        Self::new(name, format!("expected {what}"), fix)
    }

    /// Says that the fault is in the file of this path.
    pub(super) fn in_file(self, path: &str) -> Self {
        Self { is_in_file: true, ..self.with_found(path) }
    }

    /// Shows the value.
    #[must_use]
    pub fn with_found(mut self, value: &str) -> Self {
        self.found = Some(shown(value));
        self
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
