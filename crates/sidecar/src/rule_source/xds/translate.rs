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

use std::fmt::Write;

use serde_json::Value;

use super::wire::{
    self, Kind, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit, Struct,
};

/// Text above this length is not written: a source may have 16 MiB.
pub(super) const TEXT_BYTES_MAX: usize = 16 << 20;

/// The text of a resource's rules, unless it is too long.
pub(super) fn text_of(config: &RateLimitConfig) -> Option<String> {
    Some(text_with_starts(config, TEXT_BYTES_MAX)?.0)
}

/// The text of a resource's rules, and where each descriptor of the first level begins in it.
/// `None` if it is longer than `max` bytes, or than a source may be.
pub(super) fn text_with_starts(
    config: &RateLimitConfig,
    max: usize,
) -> Option<(String, Vec<usize>)> {
    let max = max.min(TEXT_BYTES_MAX);
    let mut text = "domain: ".to_owned();
    quoted(&config.domain, &mut text);
    text.push('\n');
    let mut starts = Vec::with_capacity(config.descriptors.len());
    if !config.descriptors.is_empty() {
        text.push_str("descriptors: \n");
        items(&config.descriptors, 0, &mut text, max, &mut |at| starts.push(at));
    }
    (text.len() <= max).then_some((text, starts))
}

/// Adds the text of descriptors of the first level, and stops above `max` bytes. Calls `starts`
/// with the offset at which each of them begins.
pub(super) fn items(
    list: &[RateLimitDescriptor],
    depth: usize,
    text: &mut String,
    max: usize,
    starts: &mut dyn FnMut(usize),
) {
    for descriptor in list {
        if text.len() > max {
            return;
        }
        starts(text.len());
        let RateLimitDescriptor { key, value, rate_limit, descriptors: below, .. } = descriptor;
        let mut field = |name: &str, write: &dyn Fn(&mut String)| line(text, depth, name, write);
        field("key", &|text| quoted(key, text));
        if !value.is_empty() {
            field("value", &|text| quoted(value, text));
        }
        if let Some(policy) = rate_limit {
            field("rate_limit", &|text| limit(policy, text, max));
        }
        let switches = [
            ("shadow_mode", descriptor.shadow_mode),
            ("detailed_metric", descriptor.detailed_metric),
            ("quota_mode", descriptor.quota_mode),
        ];
        for (name, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
            field(name, &|text| text.push_str("true"));
        }
        if let Some(metadata) = &descriptor.metadata {
            field("metadata", &|text| object(metadata, text, max));
        }
        if !below.is_empty() {
            field("descriptors", &|_| {});
            items(below, depth + 1, text, max, &mut |_| {});
        }
    }
}

/// Writes a field of a descriptor at this depth; its first one, the key, begins an item of the
/// list.
fn line(text: &mut String, depth: usize, name: &str, write: &dyn Fn(&mut String)) {
    let inset = if name == "key" { "- " } else { "  " };
    text.extend(std::iter::repeat_n("  ", depth).chain([inset, name, ": "]));
    write(text);
    text.push('\n');
}

/// Writes a text in quotes.
fn quoted(value: &str, text: &mut String) {
    scalar(&Value::from(value), text);
}

fn scalar(value: &Value, text: &mut String) {
    // Writing to a string cannot fail.
    let _ = write!(text, "{value}");
}

/// Writes the items of a list or a map with commas between, up to `max` bytes.
fn separated<T>(
    items: impl IntoIterator<Item = T>,
    text: &mut String,
    max: usize,
    mut write: impl FnMut(T, &mut String),
) {
    for (at, item) in items.into_iter().enumerate() {
        if text.len() > max {
            return;
        }
        if at > 0 {
            text.push(',');
        }
        write(item, text);
    }
}

/// The name of a field, and what writes its value.
type FieldOf<'f> = (&'f str, &'f dyn Fn(&mut String));

fn limit(policy: &RateLimitPolicy, text: &mut String, max: usize) {
    let RateLimitPolicy { unit, requests_per_unit, unlimited, name, replaces } = policy;
    let mut fields: Vec<FieldOf<'_>> = Vec::new();
    let named = |text: &mut String| quoted(name, text);
    if !name.is_empty() {
        fields.push(("name", &named));
    }
    let replaced = |text: &mut String| {
        text.push('[');
        separated(replaces, text, max, |replaced, text| {
            text.push_str("{\"name\":");
            quoted(&replaced.name, text);
            text.push('}');
        });
        text.push(']');
    };
    if !replaces.is_empty() {
        fields.push(("replaces", &replaced));
    }
    let requests = |text: &mut String| scalar(&Value::from(*requests_per_unit), text);
    if !unlimited {
        fields.push(("requests_per_unit", &requests));
    }
    // Without a unit there is none in the file either, and a fault unless there is no limit.
    let of_unit = |text: &mut String| quoted(&unit_name(*unit), text);
    if *unit != RateLimitUnit::Unknown as i32 {
        fields.push(("unit", &of_unit));
    }
    if *unlimited {
        fields.push(("unlimited", &|text| text.push_str("true")));
    }
    text.push('{');
    separated(fields, text, max, |(name, write), text| {
        quoted(name, text);
        text.push(':');
        write(text);
    });
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
    separated(fields, text, max, |(name, value), text| {
        quoted(name, text);
        text.push(':');
        plain(value, text, max);
    });
    text.push('}');
}

fn plain(value: &wire::Value, text: &mut String, max: usize) {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => text.push_str("null"),
        Some(Kind::NumberValue(number)) => scalar(&Value::from(*number), text),
        Some(Kind::StringValue(value)) => quoted(value, text),
        Some(Kind::BoolValue(is)) => scalar(&Value::from(*is), text),
        Some(Kind::StructValue(of)) => object(of, text, max),
        Some(Kind::ListValue(list)) => {
            text.push('[');
            separated(&list.values, text, max, |value, text| plain(value, text, max));
            text.push(']');
        }
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
