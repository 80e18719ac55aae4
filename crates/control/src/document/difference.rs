//! What two versions of a domain differ in.

use std::collections::HashMap;

use ratelease_rules::{Unit, candidate_of};
use serde::Serialize;
use serde_json::{Map, Value, json};
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

// The rules of a draft beside those in force: candidate rules, which count what they would deny.

/// The field of a rule that counts what it would deny, and denies nothing.
const SHADOW: &str = "shadow_mode";

/// Fields of a rule that say how the rules below it match or count.
const OF_LEVEL: [&str; 2] = ["share_threshold", "value_to_metric"];

/// The candidate rules of a rollout: those of `after`, of which the ones that differ from `before`
/// are in shadow mode. Those that are the same keep their place, so that the others match as they
/// will, but have no limit: the rules in force count them. If `defaults` or the order of rules
/// differ, any rule may mean something else, so that all are in shadow mode. If nothing would be
/// counted, there are no rules.
pub fn shadow(before: &Document, after: &Document) -> Document {
    let former: HashMap<&[Entry], &Record> =
        before.records.iter().map(|it| (&*it.entries, it)).collect();
    let is_other = before.defaults != after.defaults || !has_order_of(before, after);
    let records = after.records.iter().map(|record| {
        let is_same = former.get(&*record.entries).is_some_and(|it| **it == *record);
        if is_same && !is_other { without_limit(record) } else { in_shadow(record) }
    });
    let mut records: Vec<_> = records.collect();
    if !records.iter().any(|it| it.settings.contains_key(SHADOW)) {
        records.clear();
    }
    let domain = candidate_of(&after.domain);
    Document { domain, defaults: after.defaults.clone(), records }
}

/// Seconds of the longest window of candidate rules that count; 0 if none does. A calendar's window
/// takes as long as its unit.
pub fn longest_window(candidates: &Document) -> i64 {
    let counts = candidates.records.iter().filter(|it| it.settings.contains_key(SHADOW));
    let limits = counts.filter_map(|it| it.settings.get("rate_limit"));
    let seconds = limits.map(|limit| {
        let unit = limit.get("unit").and_then(Value::as_str).unwrap_or_default();
        let unit = unit.rsplit_once("calendar_").map_or(unit, |(_, unit)| unit);
        let units = limit.get("unit_multiplier").and_then(Value::as_u64).unwrap_or(1);
        Unit::parse(unit).map_or(0, |unit| unit.seconds().saturating_mul(units))
    });
    seconds.max().map_or(0, |it| i64::try_from(it).unwrap_or(i64::MAX))
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

/// The rule as a place in the tree. What it replaces it still sets aside.
fn without_limit(record: &Record) -> Record {
    let mut settings = record.settings.clone();
    let limit = settings.remove("rate_limit");
    settings.retain(|name, _| OF_LEVEL.contains(&&**name));
    if let Some(replaces) = limit.as_ref().and_then(|it| it.get("replaces")) {
        let limit = json!({"unlimited": true, "replaces": replaces});
        settings.insert("rate_limit".to_owned(), limit);
    }
    Record { entries: record.entries.clone(), settings }
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

    /// The key of each rule, and whether it is in shadow mode. Others have no limit.
    fn keys(document: &Document) -> Vec<(&str, bool)> {
        let is_on = |it: &Record| it.settings.get(SHADOW).is_some_and(|it| *it == true);
        let has_limit = |it: &Record| it.settings.contains_key("rate_limit");
        assert!(document.records.iter().all(|it| has_limit(it) == is_on(it)), "{document:?}");
        document.records.iter().map(|it| (&*it.entries[0].key, is_on(it))).collect()
    }

    #[test]
    fn candidates_have_the_draft_of_which_only_what_changes_is_counted() {
        let before = list(&[("same", 1), ("changed", 1), ("removed", 1)]);
        let after = list(&[("same", 1), ("added", 1), ("changed", 2)]);
        let candidate = shadow(&before, &after);
        assert_eq!(candidate.domain, "shop@candidate");
        assert_eq!(keys(&candidate), [("same", false), ("added", true), ("changed", true)]);
        assert_eq!(candidate.records[2].settings["rate_limit"]["requests_per_unit"], 2);
        assert_eq!(
            keys(&shadow(&Document::default(), &after)),
            [("same", true), ("added", true), ("changed", true)]
        );
    }

    #[test]
    fn the_longest_window_is_that_of_a_limit_that_changes() {
        let limit = |key: &str, limit: &str| format!("- key: {key}\n  rate_limit: {{{limit}}}\n");
        let of = |rules: &[String]| document(&format!("descriptors:\n{}", rules.concat()));
        let same = limit("same", "unit: year, requests_per_unit: 1");
        let before = of(&[same.clone(), limit("a", "unit: minute, requests_per_unit: 1")]);
        for (changed, expected) in [
            ("unit: minute, requests_per_unit: 2", 60),
            ("unit: MINUTE, unit_multiplier: 5, requests_per_unit: 2", 300),
            ("unit: calendar_day, requests_per_unit: 2", 86_400),
        ] {
            let after = of(&[same.clone(), limit("a", changed)]);
            assert_eq!(longest_window(&shadow(&before, &after)), expected, "{changed}");
        }
        assert_eq!(longest_window(&Document::default()), 0);
    }

    #[test]
    fn another_order_or_other_defaults_concern_every_rule() {
        let before = list(&[("a", 1), ("b", 1)]);
        assert_eq!(
            keys(&shadow(&before, &list(&[("b", 1), ("a", 1)]))),
            [("b", true), ("a", true)]
        );
        let rules = format!("defaults: {{failure_mode: deny}}\ndescriptors:\n{}", rule("a", 1));
        let candidate = shadow(&before, &document(&rules));
        assert_eq!(keys(&candidate), [("a", true)]);
        assert!(candidate.defaults.contains_key("failure_mode"), "{candidate:?}");
    }

    #[test]
    fn without_a_limit_that_is_added_or_changed_there_are_no_candidates() {
        let before = list(&[("a", 1), ("b", 1)]);
        let none = Document { domain: "shop".into(), ..Document::default() };
        for after in [&none, &list(&[("a", 1)]), &before] {
            assert_eq!(keys(&shadow(&before, after)), [], "{after:?}");
        }
        let after = document("descriptors:\n- key: a\n  value: free\n");
        assert_eq!(keys(&shadow(&Document::default(), &after)), []);
    }

    #[test]
    fn a_rule_that_is_the_same_still_sets_others_aside_and_shares_its_count() {
        let same = "- key: a\n  value: x*\n  share_threshold: true\n  quota_mode: true\n  \
                    rate_limit: {unit: hour, requests_per_unit: 1, replaces: [{name: b}]}\n";
        let [before, after] = [1, 2].map(|requests| {
            let named = format!(
                "- key: b\n  rate_limit: {{unit: hour, requests_per_unit: {requests}, name: b}}\n"
            );
            document(&format!("descriptors:\n{same}{named}"))
        });
        let candidate = shadow(&before, &after);
        let settings = Value::Object(candidate.records[0].settings.clone());
        let limit = json!({"unlimited": true, "replaces": [{"name": "b"}]});
        assert_eq!(settings, json!({"share_threshold": true, "rate_limit": limit}));
        let text = render(&candidate).text;
        let source = Source { name: "a".into(), text: text.into() };
        let loaded = ratelease_rules::load(&[source], ratelease_rules::Options::default());
        assert_eq!(loaded.unwrap().warnings, []);
    }
}
