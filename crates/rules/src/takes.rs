//! The kinds of values that options of rule files take: how a value of each kind is read and
//! checked, how a wrong one is reported, and its JSON Schema.

use std::collections::HashMap;
use std::fmt::Write;
use std::ops::RangeInclusive;
use std::time::Duration;

use serde_json::{Map, Number as JsonNumber, Value, json};

use crate::fault::{Place, excerpt};
use crate::limit::Unit;
use crate::memory::boxed;
use crate::node::{Kind, Meaning, Node};
use crate::reader::{Entry, Parsed, Reader};
use crate::store::STORE_NAME_BYTES_MAX;

/// An option of a map with its value.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Field<'d> {
    pub(crate) name: &'static str,
    pub(crate) node: &'d Node<'d>,
}

/// A kind of value that an option takes.
pub(crate) trait Takes<'d> {
    /// The form in which a map keeps the value.
    type Kept;

    /// Reads the value of a field into `kept`, the value that the map already keeps. Of two values
    /// the last one counts, and maps add to each other.
    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept);

    /// Returns the JSON Schema of the value.
    fn schema(&self) -> Value;

    /// Whether the value is text, whatever it looks like.
    fn is_text(&self) -> bool {
        false
    }
}

/// `true` or `false`.
pub(crate) struct Flag;

/// Text whose meaning the compiler checks.
pub(crate) enum Text {
    Any,
    /// The text may not be left out or empty.
    Required,
    StoreName,
    /// The name of a unit. Beside `unlimited` it has no effect, and any text is accepted.
    UnitName,
    /// The name of a time zone of the IANA database.
    ZoneName,
}

/// The name of a `T`, in any case.
pub(crate) struct Word<T: 'static> {
    /// The type in words, for a message.
    pub(crate) what: &'static str,
    /// All values.
    pub(crate) all: &'static [T],
    /// Returns the name of a value in rule files.
    pub(crate) name: fn(T) -> &'static str,
}

/// A whole number.
pub(crate) struct Number<T> {
    /// The numbers that are taken.
    pub(crate) range: RangeInclusive<u64>,
    /// Returns the value, or why it is out of range.
    pub(crate) check: fn(u64) -> Result<T, String>,
}

/// A duration in Go's form, with or without quotes.
pub(crate) struct Span<T> {
    /// Shown in a message.
    pub(crate) example: &'static str,
    /// Returns the value, or why it is out of range.
    pub(crate) check: fn(Duration) -> Result<T, String>,
}

/// A time of day in 24 hours, with or without quotes: the minute from 0 to 1439.
pub(crate) struct TimeOfDay;

/// A number above 0 and at most 1.
pub(crate) struct Fraction;

/// Any map.
pub(crate) struct Metadata;

/// A duration in Go's form, such as `1h30m` or `50ms`.
const DURATION: &str = r"^[+]?(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$";

/// A name of the IANA database, such as `America/Argentina/Buenos_Aires` or `Etc/GMT+1`.
const ZONE: &str = "^[A-Za-z][A-Za-z0-9/_+-]*$";

// === impl Flag ===

impl<'d> Takes<'d> for Flag {
    type Kept = Parsed<bool>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        let expected = || "true or false without quotes".to_owned();
        *kept = reader.scalar(field, expected, |_, meaning| match meaning {
            Meaning::Bool(value) => Some(value),
            _ => None,
        });
    }

    fn schema(&self) -> Value {
        json!({"type": ["boolean", "null"]})
    }
}

// === impl Text ===

impl<'d> Takes<'d> for Text {
    type Kept = Parsed<&'d str>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        *kept = reader.text(field);
    }

    fn schema(&self) -> Value {
        match self {
            Self::Any => json!({"type": ["string", "integer", "boolean", "null"]}),
            Self::Required => json!({"type": ["string", "integer", "boolean"], "minLength": 1}),
            Self::StoreName => {
                let pattern = format!("^[a-z0-9-]{{1,{STORE_NAME_BYTES_MAX}}}$");
                json!({"type": ["string", "null"], "pattern": pattern})
            }
            Self::UnitName => nullable(unit_names()),
            Self::ZoneName => json!({"type": ["string", "null"], "pattern": ZONE}),
        }
    }

    fn is_text(&self) -> bool {
        true
    }
}

/// Returns the JSON Schema of the names of units, without null.
pub(crate) fn unit_names() -> Value {
    words(&Unit::names())
}

// === impl Word ===

impl<T: Copy> Word<T> {
    fn names(&self) -> Vec<&'static str> {
        self.all.iter().map(|value| (self.name)(*value)).collect()
    }
}

impl<'d, T: Copy> Takes<'d> for Word<T> {
    type Kept = Parsed<T>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        *kept = reader.text(field).checked(|word| {
            let named = |value: &&T| (self.name)(**value).eq_ignore_ascii_case(word);
            self.all.iter().find(named).copied().ok_or_else(|| {
                let names = self.names();
                let shown = excerpt(word);
                let meant = reader.findings.suggestion(word, &[&names]);
                let what = self.what;
                let names = names.join(", ");
                format!("unknown {what} '{shown}'; expected one of {names}{meant}")
            })
        });
    }

    fn schema(&self) -> Value {
        nullable(words(&self.names()))
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl Number ===

impl<'d, T> Takes<'d> for Number<T> {
    type Kept = Parsed<T>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        // A number above the range that is not absurd is read: `check` refuses it with its reason.
        let most = (*self.range.end()).max(u32::MAX.into());
        let number = match &field.node.kind {
            Kind::Scalar(_, Meaning::Null) => Parsed::Absent,
            Kind::Scalar(_, Meaning::Int(number)) => match u64::try_from(*number) {
                Ok(number) if number <= most => Parsed::As(field.node.place, number),
                _ => refuse_number(reader, field, &self.range),
            },
            _ => refuse_number(reader, field, &self.range),
        };
        *kept = number.checked(self.check);
    }

    fn schema(&self) -> Value {
        let least = self.range.start();
        let most = self.range.end();
        json!({"type": ["integer", "null"], "minimum": least, "maximum": most})
    }
}

fn refuse_number<T>(
    reader: &mut Reader<'_, '_>,
    field: Field<'_>,
    range: &RangeInclusive<u64>,
) -> Parsed<T> {
    let (least, most) = (range.start(), range.end());
    let expected = format!("a whole number from {least} to {most} without quotes");
    let hint = number_hint(field, range);
    reader.refuse_with(field.node, &format!("'{}'", field.name), &expected, hint);
    Parsed::Faulty
}

/// Returns a hint for a value that is no whole number of the range.
fn number_hint(field: Field<'_>, range: &RangeInclusive<u64>) -> Option<String> {
    let Kind::Scalar(text, meaning) = &field.node.kind else { return None };
    let requests = (field.name == "requests_per_unit").then_some(());
    match *meaning {
        Meaning::Text => match text.replace([',', '_', ' '], "").parse() {
            Ok(number) if range.contains(&number) => Some(format!("write {number}")),
            _ => rate(text).zip(requests).map(|((number, unit), ())| {
                format!("write {number}, and beside it 'unit: {unit}'")
            }),
        },
        #[allow(clippy::cast_precision_loss, reason = "compared roughly")]
        Meaning::Float(number) if (0.0..*range.end() as f64).contains(&number) => {
            if number.fract() == 0.0 {
                return Some(format!("write {number:.0}"));
            }
            let (low, high) = (number.floor(), number.ceil());
            let longer =
                if requests.is_some() { "; 'unit_multiplier' makes the unit longer" } else { "" };
            Some(format!("write {low:.0} or {high:.0}{longer}"))
        }
        Meaning::Int(_) | Meaning::Big(_) | Meaning::Float(_) => {
            requests.map(|()| "for no limit write 'unlimited: true', without a unit".to_owned())
        }
        _ => None,
    }
}

/// Returns a hint for a limit that is no map, such as `5/minute`.
pub(crate) fn limit_hint(node: &Node<'_>) -> String {
    let rate = match &node.kind {
        Kind::Scalar(text, _) if text.eq_ignore_ascii_case("unlimited") => {
            return "write {unlimited: true}".to_owned();
        }
        Kind::Scalar(text, _) => rate(text).ok_or_else(|| text.parse().unwrap_or(5)),
        _ => Err(5),
    };
    let (requests, unit) = rate.unwrap_or_else(|requests| (requests, "minute".to_owned()));
    format!("write {{unit: {unit}, requests_per_unit: {requests}}}")
}

/// Reads `5/minute`, `5 per minute` or `5/min`.
fn rate(text: &str) -> Option<(u64, String)> {
    let (requests, given) = text.split_once('/').or_else(|| text.split_once(" per "))?;
    let given = given.trim().to_ascii_lowercase();
    let given = given.strip_suffix('s').filter(|one| !one.is_empty()).unwrap_or(&given);
    let mut units = Unit::ALL.iter().map(|unit| unit.name().to_ascii_lowercase());
    let unit = units.find(|unit| !given.is_empty() && unit.starts_with(given))?;
    Some((requests.trim().parse().ok()?, unit))
}

// === impl Span ===

impl<'d, T> Takes<'d> for Span<T> {
    type Kept = Parsed<T>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        let expected = || format!("a duration with its unit, such as {}", self.example);
        let span = reader.scalar(field, expected, |text, _| parse_duration(text));
        *kept = span.checked(self.check);
    }

    fn schema(&self) -> Value {
        json!({"type": ["string", "null"], "pattern": DURATION})
    }

    fn is_text(&self) -> bool {
        true
    }
}

// === impl TimeOfDay ===

impl<'d> Takes<'d> for TimeOfDay {
    type Kept = Parsed<u16>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        let expected = || "a time of day from \"00:00\" to \"23:59\"".to_owned();
        *kept = reader.scalar(field, expected, |text, _| minute_of_day(text));
    }

    fn schema(&self) -> Value {
        json!({"type": ["string", "null"], "pattern": "^([01][0-9]|2[0-3]):[0-5][0-9]$"})
    }

    fn is_text(&self) -> bool {
        true
    }
}

fn minute_of_day(text: &str) -> Option<u16> {
    let &[h, hour, b':', m, minute] = text.as_bytes() else { return None };
    let number = |tens: u8, ones: u8| {
        let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
        is_number.then(|| u16::from(tens - b'0') * 10 + u16::from(ones - b'0'))
    };
    let hour = number(h, hour).filter(|hour| *hour < 24)?;
    let minute = number(m, minute).filter(|minute| *minute < 60)?;
    Some(hour * 60 + minute)
}

// === impl Fraction ===

impl<'d> Takes<'d> for Fraction {
    type Kept = Parsed<f32>;

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        let name = field.name;
        let expected = || "a number above 0 and at most 1, without quotes".to_owned();
        let number = reader.scalar(field, expected, |_, meaning| match meaning {
            Meaning::Float(number) => Some(number),
            // Any whole number other than 1 is out of range, so lost precision does not matter.
            #[allow(clippy::cast_precision_loss, reason = "see above")]
            Meaning::Int(number) => Some(number as f64),
            _ => None,
        });
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

    fn read(&self, reader: &mut Reader<'d, '_>, field: Field<'d>, kept: &mut Self::Kept) {
        read_metadata(reader, field.node, kept);
    }

    fn schema(&self) -> Value {
        json!({"type": ["object", "null"]})
    }
}

/// Returns the schema of one of these words, in any case. Editors offer the words of the `enum`.
pub(crate) fn words(words: &[impl AsRef<str>]) -> Value {
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

    pub(crate) fn text(&mut self, field: Field<'d>) -> Parsed<&'d str> {
        let Field { name, node } = field;
        if let Kind::Scalar(text, Meaning::Float(_) | Meaning::Big(_)) = &node.kind {
            let shown = excerpt(text);
            let message =
                format!("error checking config: '{name}' is the number {shown}; put it in quotes");
            self.fault(node.place, message);
            return Parsed::Faulty;
        }
        self.scalar(field, || "text".to_owned(), |text, _| Some(text))
    }

    /// Reads a scalar, of which null is none. What `read` does not take is reported.
    fn scalar<T>(
        &mut self,
        field: Field<'d>,
        expected: impl Fn() -> String,
        read: impl FnOnce(&'d str, Meaning) -> Option<T>,
    ) -> Parsed<T> {
        let read = match &field.node.kind {
            Kind::Scalar(_, Meaning::Null) => return Parsed::Absent,
            Kind::Scalar(text, meaning) => read(text, *meaning),
            _ => None,
        };
        match read {
            Some(value) => Parsed::As(field.node.place, value),
            None => self.refuse(field, &expected()),
        }
    }

    pub(crate) fn refuse<T>(&mut self, field: Field<'_>, expected: &str) -> Parsed<T> {
        self.refuse_type(field.node, &format!("'{}'", field.name), expected);
        Parsed::Faulty
    }

    pub(crate) fn refuse_type(&mut self, node: &Node<'_>, what: &str, expected: &str) {
        self.refuse_with(node, what, expected, None);
    }

    /// Refuses the value, with a hint on what to write instead.
    pub(crate) fn refuse_with(
        &mut self,
        node: &Node<'_>,
        what: &str,
        expected: &str,
        hint: Option<String>,
    ) {
        let phrase = match node.kind {
            Kind::Scalar(_, Meaning::Float(_) | Meaning::Big(_)) => "error checking config",
            _ => "error loading config file",
        };
        let found = node.describe();
        let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
        self.fault(node.place, format!("{phrase}: {what} must be {expected}, found {found}{hint}"));
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

// Reads `metadata`: any map, as JSON that a protobuf Struct can hold.

/// Maximum depth of nested maps and lists. Each level is about three protobuf messages deep, and
/// protobuf readers, Envoy's included, stop at 100.
const METADATA_DEPTH_MAX: usize = 24;
/// Maximum size of one descriptor's metadata: its text, plus 32 bytes for each value. It is sent
/// with every request that passes.
const METADATA_BYTES_MAX: usize = 64 << 10;

/// Reads `node` into the map that is already there, so that a descriptor's own map adds to one
/// merged in by `<<`.
fn read_metadata<'d>(
    reader: &mut Reader<'d, '_>,
    node: &'d Node<'d>,
    metadata: &mut Parsed<Map<String, Value>>,
) {
    let mut bounds = Bounds { bytes: METADATA_BYTES_MAX, levels: METADATA_DEPTH_MAX };
    match &node.kind {
        Kind::Scalar(_, Meaning::Null) => *metadata = Parsed::Absent,
        Kind::Map(pairs) => {
            let entries = reader.entries(pairs);
            let mut map = match std::mem::take(metadata) {
                Parsed::As(_, map) => map,
                _ => Map::new(),
            };
            *metadata = match bounds.fill(reader, entries, &mut map) {
                Ok(()) => Parsed::As(node.place, map),
                Err((place, why)) => {
                    reader.fault(place, format!("error parsing metadata: {why}"));
                    Parsed::Faulty
                }
            };
        }
        _ => {
            reader.refuse_type(node, "'metadata'", "a map");
            *metadata = Parsed::Faulty;
        }
    }
}

/// Bytes of a leaf of a map, which has room for 11 entries and mostly has 5 of them.
const LEAF_BYTES: usize = 11 * (size_of::<String>() + size_of::<Value>()) + 112;

/// The memory that a map takes.
pub(crate) fn metadata_bytes(map: &Map<String, Value>) -> usize {
    let entries = map.iter().map(|(name, value)| boxed(name.len()) + bytes_below(value));
    let leaves = if map.is_empty() { 0 } else { 1 + map.len() / 5 };
    leaves * LEAF_BYTES + entries.sum::<usize>()
}

fn bytes_below(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => boxed(text.len()),
        Value::Array(items) => {
            boxed(items.capacity() * size_of::<Value>())
                + items.iter().map(bytes_below).sum::<usize>()
        }
        Value::Object(map) => metadata_bytes(map),
    }
}

/// The remaining room for one descriptor's metadata.
struct Bounds {
    bytes: usize,
    levels: usize,
}

type Refusal = (Place, String);

// === impl Bounds ===

impl Bounds {
    fn fill<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        entries: Vec<Entry<'d>>,
        map: &mut Map<String, Value>,
    ) -> Result<(), Refusal> {
        let mut seen: HashMap<&str, Entry<'d>> = HashMap::new();
        for entry in entries {
            let Kind::Scalar(name, _) = &entry.key.kind else {
                let why = format!("a key must be text, found {}", entry.key.describe());
                return Err((entry.key.place, why));
            };
            self.spend(entry.key)?;
            if let Some(earlier) = seen.insert(name, entry) {
                reader.warn_of_duplicate(name, earlier, entry);
            }
            let value = self.value(reader, entry.value)?;
            map.insert(name.to_string(), value);
        }
        Ok(())
    }

    fn value<'d>(
        &mut self,
        reader: &mut Reader<'d, '_>,
        node: &'d Node<'d>,
    ) -> Result<Value, Refusal> {
        self.spend(node)?;
        Ok(match &node.kind {
            Kind::Scalar(text, meaning) => {
                json_scalar(text, *meaning).map_err(|why| (node.place, why))?
            }
            Kind::List(ids) => {
                let items = reader.items(ids);
                self.inside(node, |bounds| {
                    items.into_iter().map(|item| bounds.value(reader, item)).collect()
                })
                .map(Value::Array)?
            }
            Kind::Map(pairs) => {
                let entries = reader.entries(pairs);
                let mut map = Map::new();
                self.inside(node, |bounds| bounds.fill(reader, entries, &mut map))?;
                Value::Object(map)
            }
            Kind::Alias(_) => Value::Null,
        })
    }

    fn spend(&mut self, node: &Node<'_>) -> Result<(), Refusal> {
        let left = self.bytes.checked_sub(node.cost());
        let why = || format!("larger than {} KiB; shorten it", METADATA_BYTES_MAX >> 10);
        self.bytes = left.ok_or_else(|| (node.place, why()))?;
        Ok(())
    }

    fn inside<T>(
        &mut self,
        node: &Node<'_>,
        read: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let why = || format!("nested deeper than {METADATA_DEPTH_MAX} levels");
        self.levels = self.levels.checked_sub(1).ok_or_else(|| (node.place, why()))?;
        let read = read(self);
        self.levels += 1;
        read
    }
}

/// The value of a scalar; an error if JSON has no such number.
pub(crate) fn json_scalar(text: &str, meaning: Meaning) -> Result<Value, String> {
    Ok(match meaning {
        Meaning::Null => Value::Null,
        Meaning::Bool(value) => Value::Bool(value),
        Meaning::Int(number) => Value::Number(number.into()),
        Meaning::Big(number) => Value::Number(number.into()),
        Meaning::Float(number) => JsonNumber::from_f64(number)
            .map(Value::Number)
            .ok_or_else(|| format!("{} is no number that JSON has", excerpt(text)))?,
        Meaning::Text | Meaning::Merge => Value::String(text.to_owned()),
    })
}

// Parses durations as people write them.

/// Parses a duration as Go's `time.ParseDuration` does, except for negative ones: `20ms`, `1.5s`,
/// `1h30m`, `0`.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(Duration::ZERO);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (term, after) = duration_term(rest)?;
        nanos = nanos.checked_add(term)?;
        rest = after;
    }
    // Go holds a duration in an i64 of nanoseconds: 292 years.
    let nanos = i64::try_from(nanos).ok()?;
    Some(Duration::from_nanos(nanos.unsigned_abs()))
}

/// Parses one number with its unit. Returns nanoseconds and the rest of the text.
fn duration_term(text: &str) -> Option<(u128, &str)> {
    /// Digits of a fraction that are read. Further digits are below a nanosecond for every unit.
    const FRACTION_DIGITS_MAX: usize = 18;
    let (whole, rest) = split_digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(rest) => split_digits(rest),
        None => ("", rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let unit_end = rest.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit: u128 = match unit {
        "ns" => 1,
        // U+00B5 micro sign, U+03BC Greek mu.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    };
    let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let mut digits = 0;
    let mut scale = 1;
    for digit in fraction.bytes().take(FRACTION_DIGITS_MAX) {
        digits = digits * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    Some((u128::from(whole) * unit + digits * unit / scale, rest))
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_go_reads_them() {
        let cases: [(&str, u64); 17] = [
            ("0", 0),
            ("+0", 0),
            ("0s", 0),
            ("20ms", 20_000_000),
            ("10s", 10_000_000_000),
            ("+5s", 5_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1m0.5s", 60_500_000_000),
            ("3us", 3_000),
            ("3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("0.9ns", 0),
            ("0.333333333333333333333h", 1_199_999_999_999),
            ("9223372036854775807ns", i64::MAX as u64),
        ];
        for (text, nanos) in cases {
            assert_eq!(parse_duration(text), Some(Duration::from_nanos(nanos)), "{text}");
        }
        let wrong = [
            "",
            "5",
            "s",
            ".s",
            "+",
            "-",
            "-5s",
            "1x",
            "1s ",
            " 1s",
            "1 s",
            "1d",
            "1s1",
            "1.2.3s",
            "1S",
            "9223372036854775808ns",
            "99999999999999999999s",
            "2562048h",
            "٣s",
        ];
        for text in wrong {
            assert_eq!(parse_duration(text), None, "{text:?}");
        }
    }
}
