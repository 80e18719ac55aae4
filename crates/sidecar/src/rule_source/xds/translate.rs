//! From resources to the text of rule files, which is compiled, kept in the snapshot and shown like
//! that of files.
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

use std::fmt::{Display, Write};

use serde_json::{Map, Value, json};

use super::wire::{
    self, Kind, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit, Struct,
};

/// Text above this length is not written: a source may have 16 MiB.
pub(super) const TEXT_BYTES_MAX: usize = 16 << 20;

/// The text of a resource's rules.
pub(super) fn text_of(config: &RateLimitConfig) -> String {
    text_with_starts(config).0
}

/// The text of a resource's rules, and where each descriptor of the first level begins in it.
pub(super) fn text_with_starts(config: &RateLimitConfig) -> (String, Vec<usize>) {
    let mut text = format!("domain: {}\n", json!(config.domain));
    let mut starts = Vec::with_capacity(config.descriptors.len());
    if !config.descriptors.is_empty() {
        line(&mut text, 0, "", "descriptors", &"");
        items(&config.descriptors, 0, &mut text, &mut |at| starts.push(at));
    }
    (text, starts)
}

/// Adds the text of descriptors of the first level. Calls `starts` with the offset at which each of
/// them begins.
pub(super) fn items(
    list: &[RateLimitDescriptor],
    depth: usize,
    text: &mut String,
    starts: &mut dyn FnMut(usize),
) {
    for descriptor in list {
        if text.len() > TEXT_BYTES_MAX {
            return; // the compiler refuses texts of this length
        }
        starts(text.len());
        let RateLimitDescriptor { key, value, rate_limit, descriptors: below, .. } = descriptor;
        let mut field = |name: &str, value: Value| line(text, depth, "  ", name, &value);
        field("key", json!(key));
        if !value.is_empty() {
            field("value", json!(value));
        }
        if let Some(policy) = rate_limit {
            field("rate_limit", limit(policy));
        }
        let switches = [
            ("shadow_mode", descriptor.shadow_mode),
            ("detailed_metric", descriptor.detailed_metric),
            ("quota_mode", descriptor.quota_mode),
        ];
        for (name, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
            field(name, json!(true));
        }
        if let Some(metadata) = &descriptor.metadata {
            field("metadata", object(metadata));
        }
        if !below.is_empty() {
            line(text, depth + 1, "", "descriptors", &"");
            items(below, depth + 1, text, &mut |_| {});
        }
    }
}

/// Writes a field of a descriptor at this depth; its first one, the key, begins an item of the
/// list.
fn line(text: &mut String, depth: usize, inset: &str, name: &str, value: &dyn Display) {
    let inset = if name == "key" { "- " } else { inset };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:width$}{inset}{name}: {value}", "", width = depth * 2);
}

fn limit(policy: &RateLimitPolicy) -> Value {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = policy;
    let mut fields = Map::new();
    // Without a unit there is none in the file either, and a fault unless there is no limit.
    if *unit != RateLimitUnit::Unknown as i32 {
        fields.insert("unit".into(), json!(unit_name(*unit)));
    }
    if *unlimited {
        fields.insert("unlimited".into(), json!(true));
    } else {
        fields.insert("requests_per_unit".into(), json!(requests_per_unit));
    }
    if !name.is_empty() {
        fields.insert("name".into(), json!(name));
    }
    if !replaces.is_empty() {
        let replaces = replaces.iter().map(|it| json!({"name": it.name})).collect::<Value>();
        fields.insert("replaces".into(), replaces);
    }
    Value::Object(fields)
}

/// The name of a unit in files. An unknown number is given as digits, which is then reported as an
/// unknown unit.
fn unit_name(unit: i32) -> String {
    let known = RateLimitUnit::try_from(unit);
    known.map_or_else(|_| unit.to_string(), |unit| unit.as_str_name().to_ascii_lowercase())
}

fn object(of: &Struct) -> Value {
    of.fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect()
}

fn plain(value: &wire::Value) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(is)) => json!(is),
        Some(Kind::StructValue(of)) => object(of),
        Some(Kind::ListValue(list)) => list.values.iter().map(plain).collect(),
    }
}

/// The field that a line of a text that [`text_of`] wrote belongs to, as in
/// `descriptors[2].rate_limit`. Lines are counted from 1.
pub(super) fn path_of(text: &str, line: u32) -> String {
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

#[cfg(test)]
mod tests;
