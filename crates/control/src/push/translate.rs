//! From a document to the type of Envoy's rate limit service.

use std::collections::HashMap;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{ListValue, Struct, Value as WireValue};
use envoy_types::pb::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use serde_json::{Map, Value};

use crate::document::{Document, Entry, Record};

/// The resource of a document, whose name is its domain. The compiler has accepted the document.
///
/// # Errors
/// The first field that the type cannot say, with its rule.
pub(super) fn config_of(document: &Document) -> Result<RateLimitConfig, String> {
    if let Some(field) = document.defaults.keys().next() {
        return Err(cannot_say(&document.domain, &format!("defaults.{field}")));
    }
    let mut tree = Tree::default();
    for record in &document.records {
        if let Some(descriptor) = tree.descriptor_at(&record.entries) {
            fill(descriptor, record).map_err(|field| cannot_say(&document.domain, &field))?;
        }
    }
    let (name, domain) = (document.domain.clone(), document.domain.clone());
    Ok(RateLimitConfig { name, domain, descriptors: tree.into_descriptors() })
}

fn cannot_say(domain: &str, field: &str) -> String {
    format!("{domain}: {field}: the type RateLimitConfig cannot say it")
}

/// The descriptors of a document. Each is found by its address: a domain may have so many that a
/// search among those beside it takes minutes.
#[derive(Default)]
struct Tree<'d> {
    /// Descriptors, each before those below it, with the index of the one above it.
    nodes: Vec<(Option<usize>, RateLimitDescriptor)>,
    /// The index of each by its address: the one above it, its key and its value.
    known: HashMap<(Option<usize>, &'d str, &'d str), usize>,
}

// === impl Tree ===

impl<'d> Tree<'d> {
    /// The descriptor at this address, which is made if it is not there. `None` without entries.
    fn descriptor_at(&mut self, entries: &'d [Entry]) -> Option<&mut RateLimitDescriptor> {
        let mut at = None;
        for Entry { key, value } in entries {
            let value = value.as_deref().unwrap_or_default();
            let nodes = &mut self.nodes;
            at = Some(*self.known.entry((at, key, value)).or_insert_with(|| {
                let (key, value) = (key.clone(), value.to_owned());
                nodes.push((at, RateLimitDescriptor { key, value, ..Default::default() }));
                nodes.len() - 1
            }));
        }
        self.nodes.get_mut(at?).map(|(_, descriptor)| descriptor)
    }

    /// The descriptors of the first level, with those below them.
    fn into_descriptors(mut self) -> Vec<RateLimitDescriptor> {
        let mut top = Vec::new();
        while let Some((above, mut descriptor)) = self.nodes.pop() {
            descriptor.descriptors.reverse(); // they came from the last to the first
            match above {
                Some(above) => self.nodes[above].1.descriptors.push(descriptor),
                None => top.push(descriptor),
            }
        }
        top.reverse();
        top
    }
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

    /// Rules on several levels, in an order that comes back to earlier ones.
    #[test]
    fn descriptors_are_in_the_order_of_the_file_on_each_level() {
        let record = |path: &[(&str, Option<&str>)]| Record {
            entries: path
                .iter()
                .map(|(key, value)| Entry { key: (*key).into(), value: value.map(Into::into) })
                .collect(),
            settings: Map::new(),
        };
        let records = [
            record(&[("a", None), ("x", Some("1"))]),
            record(&[("b", Some("*"))]),
            record(&[("a", None), ("x", Some("2")), ("y", None)]),
            record(&[("a", None)]),
            record(&[("a", None), ("x", Some("1")), ("z", None)]),
            record(&[]),
        ];
        let document = Document { records: records.into(), ..Document::default() };
        fn shown(list: &[RateLimitDescriptor]) -> String {
            let one = |it: &RateLimitDescriptor| {
                format!("{}={}[{}]", it.key, it.value, shown(&it.descriptors))
            };
            list.iter().map(one).collect()
        }
        let config = config_of(&document).unwrap();
        assert_eq!(shown(&config.descriptors), "a=[x=1[z=[]]x=2[y=[]]]b=*[]");
    }

    /// With a search among the descriptors of a level, this takes many minutes.
    #[test]
    fn a_domain_with_as_many_rules_as_there_may_be_is_translated() {
        let record = |at: usize| {
            let entries = vec![Entry { key: format!("key-{at}"), value: None }];
            Record { entries, settings: Map::new() }
        };
        let document =
            Document { records: (0..500_000).map(record).collect(), ..Document::default() };
        assert_eq!(config_of(&document).unwrap().descriptors.len(), 500_000);
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
