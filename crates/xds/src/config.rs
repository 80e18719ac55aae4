//! `RateLimitConfig`, the resource of Envoy's rate limit service, from and to the text of a rule
//! file, which is compiled, kept in the snapshot and shown like that of files.
//!
//! ```text
//! domain: "shop"
//! descriptors:
//! - key: "user"
//!   rate_limit: {"unit":"minute","requests_per_unit":5}
//!   descriptors:
//!   - key: "path"
//! ```
//! Each field has a line of its own, so that the line of a fault tells the field: see [`path_of`].

use std::fmt::Write;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value as WireValue};
pub use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use ratelease_rules::yaml::{self, Yaml};
use ratelease_rules::{Flags, Source};
use serde_json::{Map, Value};

use crate::shape::{self, FLAT, Field, Shape, Undecoded};

/// Text above this length is not written: a source may have 16 MiB.
pub const TEXT_BYTES_MAX: usize = 16 << 20;

/// Decodes a resource, unless it would take more than `memory` bytes, or more than is in proportion
/// to its length.
///
/// # Errors
/// It is malformed, or too large.
pub fn decode(message: &[u8], memory: usize) -> Result<RateLimitConfig, Undecoded> {
    shape::decode(message, &CONFIG_SHAPE, memory)
}

/// The text of a resource's rules, of which each has `settle_own_hits` if `settles_own_hits`: the
/// type cannot say it. `None` if it is longer than `max` bytes, or than a source may be.
pub fn text_of(config: &RateLimitConfig, settles_own_hits: bool, max: usize) -> Option<String> {
    let max = max.min(TEXT_BYTES_MAX);
    let mut text = "domain: ".to_owned();
    quoted(&config.domain, &mut text);
    if settles_own_hits {
        text.push_str("\ndefaults: {settle_own_hits: true}");
    }
    if !config.descriptors.is_empty() {
        text.push_str("\ndescriptors: ");
        items(&config.descriptors, 0, &mut text, max);
    }
    text.push('\n');
    (text.len() <= max).then_some(text)
}

/// Adds the text of descriptors, and stops above `max` bytes.
fn items(list: &[RateLimitDescriptor], depth: usize, text: &mut String, max: usize) {
    for descriptor in list {
        if text.len() > max {
            return;
        }
        line("key", depth, text);
        quoted(&descriptor.key, text);
        if !descriptor.value.is_empty() {
            line("value", depth, text);
            quoted(&descriptor.value, text);
        }
        if let Some(policy) = &descriptor.rate_limit {
            line("rate_limit", depth, text);
            limit(policy, text, max);
        }
        let flags = [
            ("shadow_mode", descriptor.shadow_mode),
            ("detailed_metric", descriptor.detailed_metric),
            ("quota_mode", descriptor.quota_mode),
        ];
        for (name, _) in flags.into_iter().filter(|(_, is_on)| *is_on) {
            line(name, depth, text);
            text.push_str("true");
        }
        if let Some(metadata) = &descriptor.metadata {
            line("metadata", depth, text);
            object(metadata, text, max);
        }
        if !descriptor.descriptors.is_empty() {
            line("descriptors", depth, text);
            items(&descriptor.descriptors, depth + 1, text, max);
        }
    }
}

/// Begins the line of a field of a descriptor at this depth; its first one, the key, begins an item
/// of the list.
fn line(name: &str, depth: usize, text: &mut String) {
    let inset = if name == "key" { "- " } else { "  " };
    text.push('\n');
    text.extend(std::iter::repeat_n("  ", depth).chain([inset, name, ": "]));
}

/// Begins a field of an object in JSON.
fn field(name: &str, text: &mut String) {
    if !text.ends_with('{') {
        text.push(',');
    }
    quoted(name, text);
    text.push(':');
}

/// Writes a text in quotes.
fn quoted(value: &str, text: &mut String) {
    scalar(&Value::from(value), text);
}

fn scalar(value: &Value, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
}

/// Writes the items of a list with commas between, and stops above `max` bytes.
fn array<T>(items: &[T], text: &mut String, max: usize, mut write: impl FnMut(&T, &mut String)) {
    text.push('[');
    for (at, item) in items.iter().enumerate() {
        if text.len() > max {
            return;
        }
        if at > 0 {
            text.push(',');
        }
        write(item, text);
    }
    text.push(']');
}

fn limit(policy: &RateLimitPolicy, text: &mut String, max: usize) {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = policy;
    text.push('{');
    if !name.is_empty() {
        field("name", text);
        quoted(name, text);
    }
    if !replaces.is_empty() {
        field("replaces", text);
        array(replaces, text, max, |replaced, text| {
            text.push('{');
            field("name", text);
            quoted(&replaced.name, text);
            text.push('}');
        });
    }
    if !unlimited {
        field("requests_per_unit", text);
        scalar(&Value::from(*requests_per_unit), text);
    }
    // Without a unit there is none in the file either, and a fault unless there is no limit.
    if *unit != RateLimitUnit::Unknown as i32 {
        field("unit", text);
        quoted(&unit_name(*unit), text);
    }
    if *unlimited {
        field("unlimited", text);
        text.push_str("true");
    }
    text.push('}');
}

/// The name of a unit in files. An unknown number is given as digits, which is then reported as an
/// unknown unit.
fn unit_name(unit: i32) -> String {
    let known = RateLimitUnit::try_from(unit);
    known.map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_ascii_lowercase())
}

fn object(of: &Struct, text: &mut String, max: usize) {
    let mut fields: Vec<_> = of.fields.iter().collect();
    // The text of a resource depends on nothing else.
    fields.sort_unstable_by_key(|(name, _)| *name);
    text.push('{');
    for (name, value) in fields {
        if text.len() > max {
            return;
        }
        field(name, text);
        plain(value, text, max);
    }
    text.push('}');
}

fn plain(value: &WireValue, text: &mut String, max: usize) {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => text.push_str("null"),
        Some(Kind::NumberValue(number)) => scalar(&Value::from(*number), text),
        Some(Kind::StringValue(value)) => quoted(value, text),
        Some(Kind::BoolValue(is)) => scalar(&Value::from(*is), text),
        Some(Kind::StructValue(of)) => object(of, text, max),
        Some(Kind::ListValue(list)) => {
            array(&list.values, text, max, |value, text| plain(value, text, max));
        }
    }
}

/// The field that a line of a text that [`text_of`] wrote belongs to, as in
/// `descriptors[2].rate_limit`. Lines are counted from 1.
pub fn path_of(text: &str, line: u32) -> String {
    let mut indices: Vec<usize> = Vec::new();
    let mut name = "";
    for text in text.lines().take(usize::try_from(line).unwrap_or(usize::MAX)) {
        let bare = text.trim_start_matches(' ');
        let depth = (text.len() - bare.len()) / 2;
        let field = bare.strip_prefix("- ");
        // An item is the next one of its list; any other field ends the lists below its own.
        let next = field.map(|_| indices.get(depth).map_or(0, |index| index + 1));
        indices.truncate(depth);
        indices.extend(next);
        name = field.unwrap_or(bare).split(':').next().unwrap_or_default();
    }
    let is_of_root = indices.is_empty();
    let path: String = indices.iter().map(|index| format!("descriptors[{index}].")).collect();
    if is_of_root { name.to_owned() } else { path + name }
}

// From a rule file to a resource.

/// The resource of a rule file that the compiler accepts; its name is the domain of the file.
///
/// # Errors
/// Domain and path of the first option that the type does not have.
pub fn config_of(source: &Source) -> Result<RateLimitConfig, String> {
    let root = yaml::read(source).map_err(|faults| faults.to_string())?;
    let mut config = RateLimitConfig::default();
    let read = root.map_or(Ok(()), |root| read_file(&root, &mut config));
    read.map_err(|field| {
        format!("{}: {field}: the type RateLimitConfig has no such option", config.domain)
    })?;
    config.name.clone_from(&config.domain);
    Ok(config)
}

/// The error of this function and of those below is the path of an option.
fn read_file(root: &Yaml, config: &mut RateLimitConfig) -> Result<(), String> {
    for (name, value) in root.fields() {
        match name {
            "domain" => config.domain = text_in(value),
            "descriptors" => config.descriptors = descriptors_of(value)?,
            "defaults" => {
                if let Some((name, _)) = value.fields().next() {
                    return Err(format!("defaults.{name}"));
                }
            }
            name => return Err(name.to_owned()),
        }
    }
    Ok(())
}

fn descriptors_of(list: &Yaml) -> Result<Vec<RateLimitDescriptor>, String> {
    list.items().iter().map(descriptor_of).collect()
}

fn descriptor_of(map: &Yaml) -> Result<RateLimitDescriptor, String> {
    let mut read = RateLimitDescriptor::default();
    for (name, value) in map.fields() {
        match name {
            "key" => read.key = text_in(value),
            "value" => read.value = text_in(value),
            "rate_limit" => read.rate_limit = policy_of(value)?,
            "descriptors" => read.descriptors = descriptors_of(value)?,
            "shadow_mode" => read.shadow_mode = is_on(value),
            "quota_mode" => read.quota_mode = is_on(value),
            "detailed_metric" => read.detailed_metric = is_on(value),
            "metadata" => read.metadata = value.json().as_object().map(struct_of),
            name if is_default(name, value) => {}
            name => return Err(name.to_owned()),
        }
    }
    Ok(read)
}

/// `None` for a value that is no map: null.
fn policy_of(map: &Yaml) -> Result<Option<RateLimitPolicy>, String> {
    let mut read = RateLimitPolicy::default();
    let mut is_empty = true;
    for (name, value) in map.fields() {
        is_empty = false;
        let wrong = || format!("rate_limit.{name}");
        match name {
            "unit" => {
                let unit = RateLimitUnit::from_str_name(&text_in(value).to_ascii_uppercase());
                read.unit = unit.ok_or_else(wrong)?.into();
            }
            "requests_per_unit" => {
                let number = value.json().as_u64().and_then(|number| u32::try_from(number).ok());
                read.requests_per_unit = number.ok_or_else(wrong)?;
            }
            "unlimited" => read.unlimited = is_on(value),
            "name" => read.name = text_in(value),
            "replaces" => {
                let names = value.items().iter().flat_map(Yaml::fields);
                let replace = |(_, name): (&str, &Yaml)| RateLimitReplace { name: text_in(name) };
                read.replaces = names.map(replace).collect();
            }
            name if is_default(name, value) => {}
            _ => return Err(wrong()),
        }
    }
    Ok((!is_empty).then_some(read))
}

/// Whether an option that the type lacks has its value in the reference.
fn is_default(name: &str, value: &Yaml) -> bool {
    match (name, value.json()) {
        (_, Value::Null) => true,
        (_, Value::Bool(is)) => {
            let flag = Flags::ROWS.iter().find(|row| row.option.name == name);
            is == flag.is_some_and(|row| row.default)
        }
        ("unit_multiplier" | "shards", value) => value.as_u64() == Some(1),
        ("algorithm", Value::String(name)) => name.eq_ignore_ascii_case("fixed_window"),
        _ => false,
    }
}

fn text_in(value: &Yaml) -> String {
    value.text().unwrap_or_default().to_owned()
}

fn is_on(value: &Yaml) -> bool {
    value.json().as_bool().unwrap_or_default()
}

fn struct_of(map: &Map<String, Value>) -> Struct {
    Struct { fields: map.iter().map(|(name, value)| (name.clone(), value_of(value))).collect() }
}

fn value_of(value: &Value) -> WireValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => {
            Kind::ListValue(ListValue { values: list.iter().map(value_of).collect() })
        }
        Value::Object(map) => Kind::StructValue(struct_of(map)),
    };
    WireValue { kind: Some(kind) }
}

// The memory that messages take.

static CONFIG_SHAPE: Shape =
    Shape(&[Field { number: 3, item: size_of::<RateLimitDescriptor>(), of: &DESCRIPTOR_SHAPE }]);

static DESCRIPTOR_SHAPE: Shape = Shape(&[
    Field { number: 3, item: 0, of: &POLICY_SHAPE },
    Field { number: 4, item: size_of::<RateLimitDescriptor>(), of: &DESCRIPTOR_SHAPE },
    Field { number: 8, item: 0, of: &STRUCT_SHAPE },
]);

static POLICY_SHAPE: Shape =
    Shape(&[Field { number: 5, item: size_of::<RateLimitReplace>(), of: &FLAT }]);

static STRUCT_SHAPE: Shape =
    Shape(&[Field { number: 1, item: size_of::<(String, WireValue)>(), of: &ENTRY_SHAPE }]);

static ENTRY_SHAPE: Shape = Shape(&[Field { number: 2, item: 0, of: &VALUE_SHAPE }]);

static VALUE_SHAPE: Shape = Shape(&[
    Field { number: 5, item: 0, of: &STRUCT_SHAPE },
    Field { number: 6, item: 0, of: &LIST_SHAPE },
]);

static LIST_SHAPE: Shape =
    Shape(&[Field { number: 1, item: size_of::<WireValue>(), of: &VALUE_SHAPE }]);

#[cfg(test)]
mod tests;
