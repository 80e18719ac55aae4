//! From a document to the type of Envoy's rate limit service.

use serde_json::{Map, Value};

use super::wire::{
    Kind, ListValue, RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace,
    RateLimitUnit, Struct, Value as WireValue,
};
use crate::document::{Document, Entry, Record};

/// The resource of a document, whose name is its domain. The compiler has accepted the document.
///
/// # Errors
/// The first field that the type cannot say, with its rule.
pub(super) fn config_of(document: &Document) -> Result<RateLimitConfig, String> {
    if let Some(field) = document.defaults.keys().next() {
        return Err(cannot_say(&document.domain, &format!("defaults.{field}")));
    }
    let mut config = RateLimitConfig {
        name: document.domain.clone(),
        domain: document.domain.clone(),
        descriptors: Vec::new(),
    };
    for record in &document.records {
        let descriptor = descriptor_at(&mut config.descriptors, &record.entries);
        if let Some(descriptor) = descriptor {
            fill(descriptor, record).map_err(|field| cannot_say(&document.domain, &field))?;
        }
    }
    Ok(config)
}

fn cannot_say(domain: &str, field: &str) -> String {
    format!("{domain}: {field}: the type RateLimitConfig cannot say it")
}

/// The descriptor at this address, which is made if it is not there. `None` without entries.
fn descriptor_at<'l>(
    mut list: &'l mut Vec<RateLimitDescriptor>,
    entries: &[Entry],
) -> Option<&'l mut RateLimitDescriptor> {
    let (last, above) = entries.split_last()?;
    for entry in above {
        list = &mut child(list, entry).descriptors;
    }
    Some(child(list, last))
}

fn child<'l>(list: &'l mut Vec<RateLimitDescriptor>, entry: &Entry) -> &'l mut RateLimitDescriptor {
    let value = entry.value.as_deref().unwrap_or_default();
    // Rules are in the order of the tree, so that it is the last one, if it is there.
    let is_last = list.last().is_some_and(|it| it.key == entry.key && it.value == value);
    if !is_last {
        let found = list.iter().position(|it| it.key == entry.key && it.value == value);
        let at = found.unwrap_or(list.len());
        if found.is_none() {
            let (key, value) = (entry.key.clone(), value.to_owned());
            list.push(RateLimitDescriptor { key, value, ..RateLimitDescriptor::default() });
        }
        return &mut list[at];
    }
    let last = list.len() - 1;
    &mut list[last]
}

fn fill(descriptor: &mut RateLimitDescriptor, record: &Record) -> Result<(), String> {
    for (name, value) in &record.settings {
        let is_on = value.as_bool().unwrap_or_default();
        match (name.as_str(), value) {
            ("rate_limit", Value::Object(limit)) => descriptor.rate_limit = Some(policy(limit)?),
            ("shadow_mode", _) => descriptor.shadow_mode = is_on,
            ("quota_mode", _) => descriptor.quota_mode = is_on,
            ("detailed_metric", _) => descriptor.detailed_metric = is_on,
            ("metadata", Value::Object(map)) => descriptor.metadata = Some(object(map)),
            (_, Value::Null | Value::Bool(false)) => {}
            (name, _) => return Err(name.to_owned()),
        }
    }
    Ok(())
}

fn policy(limit: &Map<String, Value>) -> Result<RateLimitPolicy, String> {
    let mut policy = RateLimitPolicy::default();
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    for (name, value) in limit {
        match (name.as_str(), value) {
            ("unit", unit) => {
                let unit = RateLimitUnit::from_str_name(&text(unit).to_ascii_uppercase());
                let unit = unit.ok_or_else(|| "rate_limit.unit".to_owned())?;
                policy.unit = unit as i32;
            }
            ("requests_per_unit", value) => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                let number = number.ok_or_else(|| "rate_limit.requests_per_unit".to_owned())?;
                policy.requests_per_unit = number;
            }
            ("unlimited", value) => policy.unlimited = value.as_bool().unwrap_or_default(),
            ("name", value) => policy.name = text(value),
            ("replaces", Value::Array(list)) => {
                let name = |it: &Value| it.get("name").map(text).unwrap_or_default();
                let replace = |it: &Value| RateLimitReplace { name: name(it) };
                policy.replaces = list.iter().map(replace).collect();
            }
            // What they are in the reference.
            (_, Value::Null) => {}
            ("unit_multiplier" | "shards", value) if value.as_u64() == Some(1) => {}
            ("algorithm", Value::String(name)) if name == "fixed_window" => {}
            (name, _) => return Err(format!("rate_limit.{name}")),
        }
    }
    Ok(policy)
}

fn object(map: &Map<String, Value>) -> Struct {
    Struct { fields: map.iter().map(|(name, value)| (name.clone(), plain(value))).collect() }
}

fn plain(value: &Value) -> WireValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(list) => {
            Kind::ListValue(ListValue { values: list.iter().map(plain).collect() })
        }
        Value::Object(map) => Kind::StructValue(object(map)),
    };
    WireValue { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use ratelease_rules::Source;

    use super::*;
    use crate::document::read;

    fn config(text: &str) -> Result<RateLimitConfig, String> {
        let source = Source { name: "a".into(), text: text.into() };
        config_of(&read(&[source]).unwrap()[0])
    }

    #[test]
    fn what_the_type_says_is_the_tree_of_the_file() {
        let text = "domain: d\ndescriptors:\n- key: a\n  value: x\n  rate_limit: {unit: hour, \
                    requests_per_unit: 5, name: n, replaces: [{name: m}]}\n  shadow_mode: true\n  \
                    descriptors:\n  - key: b\n    metadata: {k: [1, {l: null}]}\n    rate_limit: \
                    {unlimited: true}\n- key: c\n";
        let config = config(text).unwrap();
        let [a, c] = &config.descriptors[..] else { panic!("{config:?}") };
        let limit = a.rate_limit.as_ref().unwrap();
        assert_eq!((&*a.key, &*a.value, a.shadow_mode), ("a", "x", true));
        assert_eq!((limit.unit, limit.requests_per_unit), (RateLimitUnit::Hour as i32, 5));
        assert_eq!((&*limit.name, &*limit.replaces[0].name), ("n", "m"));
        let b = &a.descriptors[0];
        assert!(b.rate_limit.as_ref().is_some_and(|it| it.unlimited));
        assert!(b.metadata.as_ref().is_some_and(|it| it.fields.contains_key("k")));
        assert_eq!((&*c.key, &c.rate_limit), ("c", &None));
    }

    #[test]
    fn what_the_type_cannot_say_is_named() {
        let with = |limit: &str| {
            let text = format!(
                "domain: d\ndescriptors:\n- key: a\n  rate_limit: {{unit: hour, \
                 requests_per_unit: 5, {limit}}}\n"
            );
            config(&text)
        };
        assert!(with("algorithm: fixed_window, unit_multiplier: 1").is_ok());
        for (limit, field) in
            [("unit_multiplier: 2", "unit_multiplier"), ("algorithm: sliding_log", "algorithm")]
        {
            let why = with(limit).unwrap_err();
            assert!(why.starts_with(&format!("d: rate_limit.{field}: ")), "{why}");
        }
        let why = config("domain: d\ndefaults: {shards: 2}\n").unwrap_err();
        assert!(why.starts_with("d: defaults.shards: "), "{why}");
    }
}
