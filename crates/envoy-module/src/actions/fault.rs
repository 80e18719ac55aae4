//! Faults of a configuration, with their places.

use std::fmt;

/// Maximum number of faults that are kept; the faults beyond it are only counted. A configuration
/// that a program writes can have the same fault thousands of times.
const FAULTS_MAX: usize = 100;

/// A fault at one place of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The fields that lead to it, such as `rate_limits[0].actions[1].generic_key`.
    pub place: String,
    /// The fault, then the expected value or the way to correct it.
    pub message: String,
}

/// All faults of a configuration, in the order in which they were found.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Faults {
    kept: Vec<Fault>,
    dropped: usize,
}

/// The path of a field in its message. It is written out only for a fault.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    within: Option<&'a Place<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Field(&'a str),
    Item(usize),
}

/// Returns the value; if there is none, notes that `field` is missing.
pub fn expect_some<'v, T: ?Sized>(
    value: Option<&'v T>,
    place: &Place<'_>,
    field: &str,
    faults: &mut Faults,
) -> Option<&'v T> {
    if value.is_none() {
        faults.add(place.field(field), "missing");
    }
    value
}

/// Returns a copy of the text; if it is empty, notes that `field` is missing.
pub fn expect_text(
    text: &str,
    place: &Place<'_>,
    field: &str,
    faults: &mut Faults,
) -> Option<String> {
    expect_some(Some(text).filter(|text| !text.is_empty()), place, field, faults).map(str::to_owned)
}

/// Compiles each item of the list at `place`; `None` if one has a fault.
pub fn each<M, T>(
    messages: &[M],
    place: &Place<'_>,
    faults: &mut Faults,
    compile: fn(&M, &Place<'_>, &mut Faults) -> Option<T>,
) -> Option<Vec<T>> {
    let compiled = messages.iter().enumerate();
    let compiled: Vec<_> =
        compiled.map(|(at, message)| compile(message, &place.item(at), faults)).collect();
    compiled.into_iter().collect()
}

// === impl Faults ===

impl Faults {
    /// Adds a fault.
    pub fn add(&mut self, place: impl fmt::Display, message: impl Into<String>) {
        if self.kept.len() < FAULTS_MAX {
            self.kept.push(Fault { place: place.to_string(), message: message.into() });
        } else {
            self.dropped += 1;
        }
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// The faults that were kept, at most 100.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.kept.iter()
    }
}

/// Prints one fault a line, then how many more there are.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Fault { place, message }) in self.kept.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{place}: {message}")?;
        }
        match self.dropped {
            0 => Ok(()),
            dropped => write!(f, "\nand {dropped} more"),
        }
    }
}

// === impl Place ===

impl<'a> Place<'a> {
    /// The place of a field of the message itself.
    pub const fn root(field: &'a str) -> Self {
        Self { within: None, step: Step::Field(field) }
    }

    /// The place of a field of the message at this place.
    pub const fn field(&'a self, field: &'a str) -> Self {
        Self { within: Some(self), step: Step::Field(field) }
    }

    /// The place of an item of the list at this place.
    pub const fn item(&'a self, at: usize) -> Self {
        Self { within: Some(self), step: Step::Item(at) }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(within) = self.within {
            within.fmt(f)?;
        }
        match self.step {
            Step::Field(field) if self.within.is_some() => write!(f, ".{field}"),
            Step::Field(field) => f.write_str(field),
            Step::Item(at) => write!(f, "[{at}]"),
        }
    }
}
