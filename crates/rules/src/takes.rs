//! What the options of rule files take: how a value of each kind is read and checked, how a wrong
//! one is reported, and its JSON Schema.

use std::fmt::Write;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::duration::parse_duration;
use crate::fault::{Place, excerpt};
use crate::limit::{Algorithm, FailureMode, Unit};
use crate::metadata;
use crate::node::{Kind, Meaning, Node};
use crate::reader::{Entry, Parsed, Reader};
use crate::store::STORE_NAME_BYTES_MAX;

/// What an option takes.
pub(crate) trait Takes<'d> {
    /// What a map keeps of it.
    type Kept;

    /// Reads `node`, the value of the option called `name`, into what the map already keeps: of two
    /// values the last one counts, and maps add to each other.
    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Self::Kept,
    );

    /// Returns the JSON Schema of the value.
    fn schema(&self) -> Value;

    /// Whether the value is text, whatever it looks like.
    fn is_text(&self) -> bool {
        false
    }
}

/// A type whose values have names in rule files.
pub(crate) trait Named: Copy + 'static {
    /// The type in words, for a message.
    const WHAT: &'static str;

    /// All values.
    const ALL: &'static [Self];

    /// Returns the name in rule files.
    fn name(self) -> &'static str;
}

/// `true` or `false`.
pub(crate) struct Flag;

/// Text, of which nothing more is checked here.
pub(crate) struct Text {
    /// Whether it may not be left out or empty.
    pub(crate) is_required: bool,
}

/// The name of a store.
pub(crate) struct StoreName;

/// The name of a unit. Only the compiler refuses others: beside `unlimited` they have no effect.
pub(crate) struct UnitName;

/// The name of a `T`, in any case.
pub(crate) struct Word<T>(pub(crate) PhantomData<T>);

/// A whole number.
pub(crate) struct Number<T> {
    /// What is taken.
    pub(crate) range: RangeInclusive<u32>,
    /// Returns the value, or why it is out of range.
    pub(crate) check: fn(u32) -> Result<T, String>,
}

/// A duration in Go's form, with or without quotes.
pub(crate) struct Span<T> {
    /// Shown in a message.
    pub(crate) example: &'static str,
    /// Returns the value, or why it is out of range.
    pub(crate) check: fn(Duration) -> Result<T, String>,
}

/// A number above 0 and at most 1.
pub(crate) struct Fraction;

/// Any map.
pub(crate) struct Metadata;

/// A duration in Go's form, such as `1h30m` or `50ms`.
const DURATION: &str = r"^[+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

// === impl Flag ===

impl<'d> Takes<'d> for Flag {
    type Kept = Parsed<bool>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<bool>,
    ) {
        *kept = match node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(_, Meaning::Bool(value)) => Parsed::As(node.place, value),
            _ => reader.refuse(node, name, "true or false without quotes"),
        };
    }

    fn schema(&self) -> Value {
        json!({"type": ["boolean", "null"]})
    }
}

// === impl Text ===

impl<'d> Takes<'d> for Text {
    type Kept = Parsed<&'d str>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<&'d str>,
    ) {
        *kept = reader.text(node, name);
    }

    fn schema(&self) -> Value {
        match self.is_required {
            true => json!({"type": ["string", "integer", "boolean"], "minLength": 1}),
            false => json!({"type": ["string", "integer", "boolean", "null"]}),
        }
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl StoreName ===

impl<'d> Takes<'d> for StoreName {
    type Kept = Parsed<&'d str>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<&'d str>,
    ) {
        *kept = reader.text(node, name);
    }

    fn schema(&self) -> Value {
        let pattern = format!("^[a-z0-9-]{{1,{STORE_NAME_BYTES_MAX}}}$");
        json!({"type": ["string", "null"], "pattern": pattern})
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl UnitName ===

impl UnitName {
    /// Returns the JSON Schema of the names, without null.
    pub(crate) fn names() -> Value {
        let units: Vec<_> = Unit::ALL.iter().map(|unit| unit.name().to_ascii_lowercase()).collect();
        words(&units)
    }
}

impl<'d> Takes<'d> for UnitName {
    type Kept = Parsed<&'d str>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<&'d str>,
    ) {
        *kept = reader.text(node, name);
    }

    fn schema(&self) -> Value {
        nullable(UnitName::names())
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl Word ===

impl<'d, T: Named> Takes<'d> for Word<T> {
    type Kept = Parsed<T>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<T>,
    ) {
        *kept = reader.text(node, name).checked(|word| {
            let named = |value: &&T| value.name().eq_ignore_ascii_case(word);
            T::ALL.iter().find(named).copied().ok_or_else(|| {
                let names: Vec<_> = T::ALL.iter().map(|value| value.name()).collect();
                let (shown, meant) = (excerpt(word), reader.findings.suggestion(word, &[&names]));
                let (what, names) = (T::WHAT, names.join(", "));
                format!("unknown {what} '{shown}'; expected one of {names}{meant}")
            })
        });
    }

    fn schema(&self) -> Value {
        let names: Vec<_> = T::ALL.iter().map(|value| value.name()).collect();
        nullable(words(&names))
    }

    fn is_text(&self) -> bool {
        true
    }
}

impl Named for Algorithm {
    const WHAT: &'static str = "algorithm";
    const ALL: &'static [Algorithm] = &Algorithm::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

impl Named for FailureMode {
    const WHAT: &'static str = "failure mode";
    const ALL: &'static [FailureMode] = &FailureMode::ALL;

    fn name(self) -> &'static str {
        self.name()
    }
}

// === impl Number ===

impl<'d, T> Takes<'d> for Number<T> {
    type Kept = Parsed<T>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<T>,
    ) {
        let number = match node.kind {
            Kind::Scalar(_, Meaning::Null) => {
                *kept = Parsed::Absent;
                return;
            }
            Kind::Scalar(_, Meaning::Int(number)) => u32::try_from(number).ok(),
            _ => None,
        };
        *kept = match number {
            Some(number) => Parsed::As(node.place, number).checked(self.check),
            None => {
                let (least, most) = (self.range.start(), self.range.end());
                let expected = format!("a whole number from {least} to {most} without quotes");
                reader.refuse(node, name, &expected)
            }
        };
    }

    fn schema(&self) -> Value {
        let (least, most) = (self.range.start(), self.range.end());
        json!({"type": ["integer", "null"], "minimum": least, "maximum": most})
    }
}

// === impl Span ===

impl<'d, T> Takes<'d> for Span<T> {
    type Kept = Parsed<T>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<T>,
    ) {
        let read = match &node.kind {
            Kind::Scalar(_, Meaning::Null) => {
                *kept = Parsed::Absent;
                return;
            }
            Kind::Scalar(text, _) => parse_duration(text),
            _ => None,
        };
        *kept = match read {
            Some(span) => Parsed::As(node.place, span).checked(self.check),
            None => {
                let expected = format!("a duration with its unit, such as {}", self.example);
                reader.refuse(node, name, &expected)
            }
        };
    }

    fn schema(&self) -> Value {
        json!({"type": ["string", "null"], "pattern": DURATION})
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl Fraction ===

impl<'d> Takes<'d> for Fraction {
    type Kept = Parsed<f32>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        name: &str,
        kept: &mut Parsed<f32>,
    ) {
        let number = match node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(_, Meaning::Float(number)) => Parsed::As(node.place, number),
            // Any whole number other than 1 is out of range, so lost precision does not matter.
            #[allow(clippy::cast_precision_loss, reason = "see above")]
            Kind::Scalar(_, Meaning::Int(number)) => Parsed::As(node.place, number as f64),
            _ => reader.refuse(node, name, "a number above 0 and at most 1, without quotes"),
        };
        *kept = number.checked(|number| {
            #[allow(clippy::cast_possible_truncation, reason = "checked for 0; the rest rounds")]
            let rounded = number as f32;
            let is_within = rounded > 0.0 && number <= 1.0;
            is_within
                .then_some(rounded)
                .ok_or_else(|| format!("'{name}' must be above 0 and at most 1, found {number:?}"))
        });
    }

    fn schema(&self) -> Value {
        json!({"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1})
    }
}

// === impl Metadata ===

impl<'d> Takes<'d> for Metadata {
    type Kept = Parsed<Map<String, Value>>;

    fn read(
        &self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
        _: &str,
        kept: &mut Parsed<Map<String, Value>>,
    ) {
        metadata::read(reader, node, kept);
    }

    fn schema(&self) -> Value {
        json!({"type": ["object", "null"]})
    }
}

/// These words in any case. Editors offer those of the `enum`.
fn words(words: &[impl AsRef<str>]) -> Value {
    let words: Vec<_> = words.iter().map(AsRef::as_ref).collect();
    let mut pattern = String::new();
    for word in &words {
        pattern.push_str(if pattern.is_empty() { "^(" } else { "|" });
        for letter in word.chars() {
            // Writing to a string cannot fail.
            let _ = match letter {
                '_' => write!(pattern, "_"),
                _ => write!(pattern, "[{letter}{}]", letter.to_ascii_uppercase()),
            };
        }
    }
    pattern.push_str(")$");
    json!({"anyOf": [{"enum": words}, {"type": "string", "pattern": pattern}]})
}

fn nullable(mut words: Value) -> Value {
    if let Some(Value::Array(any)) = words.get_mut("anyOf") {
        any.push(json!({"type": "null"}));
    }
    words
}

// === impl Reader ===

impl<'d> Reader<'d, '_> {
    /// Returns the entries of the map `node`. `None` if it is null, or if it is not a map, which is
    /// reported; `what` names it in the message.
    pub(crate) fn map(&mut self, node: &'d Node<'d>, what: &str) -> Option<Vec<Entry<'d>>> {
        match &node.kind {
            Kind::Map(pairs) => Some(self.entries(pairs)),
            Kind::Scalar(_, Meaning::Null) => None,
            _ => {
                self.refuse_type(node, what, "a map");
                None
            }
        }
    }

    /// Reads the maps of a list, one by one.
    pub(crate) fn maps(
        &mut self,
        node: &'d Node<'d>,
        name: &str,
        mut read: impl FnMut(&mut Self, Place, Vec<Entry<'d>>),
    ) {
        let ids = match &node.kind {
            Kind::List(ids) => ids,
            Kind::Scalar(_, Meaning::Null) => return,
            _ => {
                self.refuse_type(node, &format!("'{name}'"), "a list of maps");
                return;
            }
        };
        for id in ids {
            let Some(item) = self.node(*id) else { return };
            match &item.kind {
                Kind::Map(pairs) => {
                    let entries = self.entries(pairs);
                    read(self, item.place, entries);
                }
                _ => self.refuse_item(item, if name == "replaces" { "name: …" } else { "key: …" }),
            }
        }
    }

    pub(crate) fn text(&mut self, node: &'d Node<'d>, name: &str) -> Parsed<&'d str> {
        match &node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(text, meaning)
                if !matches!(meaning, Meaning::Float(_) | Meaning::Big(_)) =>
            {
                Parsed::As(node.place, text)
            }
            Kind::Scalar(text, _) => {
                let shown = excerpt(text);
                let message = format!(
                    "error checking config: '{name}' is the number {shown}; put it in quotes"
                );
                self.fault(node.place, message);
                Parsed::Faulty
            }
            _ => self.refuse(node, name, "text"),
        }
    }

    pub(crate) fn refuse<T>(&mut self, node: &Node<'_>, name: &str, expected: &str) -> Parsed<T> {
        self.refuse_type(node, &format!("'{name}'"), expected);
        Parsed::Faulty
    }

    pub(crate) fn refuse_type(&mut self, node: &Node<'_>, what: &str, expected: &str) {
        let phrase = match node.kind {
            Kind::Scalar(_, Meaning::Float(_) | Meaning::Big(_)) => "error checking config",
            _ => "error loading config file",
        };
        let found = node.describe();
        self.fault(node.place, format!("{phrase}: {what} must be {expected}, found {found}"));
    }

    pub(crate) fn refuse_item(&mut self, item: &Node<'_>, expected: &str) {
        let shown = match &item.kind {
            Kind::Scalar(text, meaning) if *meaning != Meaning::Null => excerpt(text),
            _ => item.describe(),
        };
        let message = format!(
            "yaml file contains list of type other than map: {shown}; expected '- {expected}'"
        );
        self.fault(item.place, message);
    }
}
