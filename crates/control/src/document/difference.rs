//! What two versions of a domain differ in.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::{Document, Entry, RuleId};

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
    let (mut rules, mut order) = (Vec::new(), Vec::new());
    let mut note = |entries: &[Entry], before: Option<&Map<_, _>>, after: Option<&Map<_, _>>| {
        let (before, after) = (before.cloned(), after.cloned());
        let (id, entries) = (RuleId::of(domain, entries), entries.to_vec());
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
