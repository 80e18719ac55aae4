//! What two versions of a domain differ in.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Document, Entry, Record, RuleId};

/// What changes from one version of a domain to another.
#[derive(Debug, Clone, Default, PartialEq, Serialize, ToSchema)]
pub struct Difference {
    /// The domain.
    pub domain: String,
    /// Rules that are added, removed or changed, in the order of the later version; removed ones
    /// come last.
    pub rules: Vec<RuleChange>,
    /// Whether rules that both versions have are in another order, or `defaults` differ.
    pub defaults_or_order: bool,
}

/// A rule that differs.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct RuleChange {
    /// The rule.
    pub id: RuleId,
    /// Its entries.
    pub entries: Vec<Entry>,
    /// What it was; absent if it is added.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub before: Option<Map<String, Value>>,
    /// What it will be; absent if it is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub after: Option<Map<String, Value>>,
}

/// Compares two versions of one domain.
pub fn difference(before: &Document, after: &Document) -> Difference {
    let domain = if after.domain.is_empty() { &before.domain } else { &after.domain };
    let mut former: HashMap<&[Entry], (usize, &Map<String, Value>)> = HashMap::new();
    for (at, record) in before.records.iter().enumerate() {
        former.insert(&record.entries, (at, &record.settings));
    }
    let mut rules = Vec::new();
    let mut order = Vec::new();
    let mut note = |entries: &[Entry], before: Option<&Map<_, _>>, after: Option<&Map<_, _>>| {
        let before = before.cloned();
        let after = after.cloned();
        let id = RuleId::of(domain, entries);
        let entries = entries.to_vec();
        rules.push(RuleChange { id, entries, before, after });
    };
    for record in &after.records {
        match former.remove(&*record.entries) {
            Some((at, settings)) => {
                order.push(at);
                if *settings != record.settings {
                    note(&record.entries, Some(settings), Some(&record.settings));
                }
            }
            None => note(&record.entries, None, Some(&record.settings)),
        }
    }
    let removed = before.records.iter().filter(|it| former.contains_key(&*it.entries));
    removed.for_each(|record| note(&record.entries, Some(&record.settings), None));
    Difference {
        domain: domain.clone(),
        rules,
        defaults_or_order: before.defaults != after.defaults || !order.is_sorted(),
    }
}

// === impl Difference ===

impl Difference {
    /// Whether the versions are the same.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && !self.defaults_or_order
    }
}

// The rules of a draft beside those in force: what changes is in shadow mode, and only counts.

/// The field of a rule that counts what it would deny, and denies nothing.
const SHADOW: &str = "shadow_mode";

/// The rules of `after`, of which those that differ from `before` are in shadow mode. Rules that it
/// removes stay. If `defaults` or the order of rules differ, any rule may mean something else, so
/// that all are in shadow mode.
pub fn shadow(before: &Document, after: &Document) -> Document {
    let former: HashMap<&[Entry], &Record> =
        before.records.iter().map(|it| (&*it.entries, it)).collect();
    let is_other = before.defaults != after.defaults || !has_order_of(before, after);
    let mut records: Vec<_> = after
        .records
        .iter()
        .map(|record| {
            let is_same = former.get(&*record.entries).is_some_and(|it| **it == *record);
            if is_same && !is_other { record.clone() } else { in_shadow(record) }
        })
        .collect();
    let kept: HashSet<&[Entry]> = after.records.iter().map(|it| &*it.entries).collect();
    let removed = before.records.iter().filter(|it| !kept.contains(&*it.entries));
    records.extend(removed.cloned());
    // Without rules of its own, the draft removes the domain.
    let defaults = if after.records.is_empty() { &before.defaults } else { &after.defaults };
    Document { domain: after.domain.clone(), defaults: defaults.clone(), records }
}

/// Whether rules that both have are in the same order.
fn has_order_of(before: &Document, after: &Document) -> bool {
    let at: HashMap<&[Entry], usize> =
        before.records.iter().enumerate().map(|(at, it)| (&*it.entries, at)).collect();
    let order = after.records.iter().filter_map(|it| at.get(&*it.entries));
    order.is_sorted()
}

/// A rule without a limit denies nothing in any case.
fn in_shadow(record: &Record) -> Record {
    let mut record = record.clone();
    if record.settings.contains_key("rate_limit") {
        record.settings.insert(SHADOW.to_owned(), Value::Bool(true));
    }
    record
}

#[cfg(test)]
mod tests {
    use ratelease_rules::Source;

    use super::*;
    use crate::document::{read, render};

    fn document(rules: &str) -> Document {
        let text = format!("domain: shop\n{rules}");
        read(&[Source { name: "a".into(), text: text.into() }]).unwrap().remove(0)
    }

    fn rule(key: &str, requests: u32) -> String {
        format!("- key: {key}\n  rate_limit: {{unit: hour, requests_per_unit: {requests}}}\n")
    }

    fn list(rules: &[(&str, u32)]) -> Document {
        let rules: String = rules.iter().map(|(key, requests)| rule(key, *requests)).collect();
        document(&format!("descriptors:\n{rules}"))
    }

    /// The key of each rule, and whether it is in shadow mode.
    fn keys(document: &Document) -> Vec<(&str, bool)> {
        let is_on = |it: &Record| it.settings.get(SHADOW).is_some_and(|it| *it == true);
        document.records.iter().map(|it| (&*it.entries[0].key, is_on(it))).collect()
    }

    #[test]
    fn only_what_changes_is_in_shadow_mode_and_what_is_removed_stays() {
        let before = list(&[("same", 1), ("changed", 1), ("removed", 1)]);
        let after = list(&[("same", 1), ("added", 1), ("changed", 2)]);
        let both = shadow(&before, &after);
        let expected = [("same", false), ("added", true), ("changed", true), ("removed", false)];
        assert_eq!(keys(&both), expected);
        assert_eq!(both.records[2].settings["rate_limit"]["requests_per_unit"], 2);
        assert_eq!(
            keys(&shadow(&Document::default(), &after)),
            [("same", true), ("added", true), ("changed", true)]
        );
    }

    #[test]
    fn another_order_or_other_defaults_concern_every_rule() {
        let before = list(&[("a", 1), ("b", 1)]);
        assert_eq!(
            keys(&shadow(&before, &list(&[("b", 1), ("a", 1)]))),
            [("b", true), ("a", true)]
        );
        let rules = format!("defaults: {{failure_mode: deny}}\ndescriptors:\n{}", rule("a", 1));
        let both = shadow(&before, &document(&rules));
        assert_eq!(keys(&both), [("a", true), ("b", false)]);
        assert!(both.defaults.contains_key("failure_mode"), "{both:?}");
    }

    #[test]
    fn a_domain_that_is_removed_stays_as_it_is() {
        let before = list(&[("a", 1), ("b", 1)]);
        let none = Document { domain: "shop".into(), ..Document::default() };
        assert_eq!(render(&shadow(&before, &none)).text, render(&before).text);
    }

    #[test]
    fn a_rule_without_a_limit_is_not_put_in_shadow_mode() {
        let after = document("descriptors:\n- key: a\n  value: free\n");
        assert_eq!(keys(&shadow(&Document::default(), &after)), [("a", false)]);
    }
}
