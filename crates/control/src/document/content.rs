//! A number for the content of rules: other numbers tell that two drafts differ, without a comparison.

use serde_json::{Map, Value, json};

use super::{Entry, Record};

/// The sum of a hash of each rule, from 0 up to [`END`](Self::END). Rules in another order, and other
/// `defaults`, have the same one; settings that are null are none, as in a rule file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Content(i64);

// === impl Content ===

impl Content {
    /// The first number that is none: a sum of two is below the ceiling of the database's integers.
    pub const END: i64 = 1 << 62;

    /// The number of these rules.
    pub fn of<'r>(records: impl IntoIterator<Item = &'r Record>) -> Self {
        records.into_iter().map(Record::content).fold(Self::default(), Self::and)
    }

    /// As a number.
    pub const fn number(self) -> i64 {
        self.0
    }

    /// With these rules too.
    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self((self.0 + more.0) % Self::END)
    }

    /// Without these rules.
    #[must_use]
    pub const fn without(self, less: Self) -> Self {
        Self((self.0 + Self::END - less.0) % Self::END)
    }
}

// === impl Record ===

impl Record {
    /// The number of this rule. A rule without settings has none: in a rule file it may be a place that
    /// leads to others.
    pub fn content(&self) -> Content {
        let settings = without_nulls(&self.settings);
        if settings.is_empty() {
            return Content::default();
        }
        let mut hasher = blake3::Hasher::new_derive_key("ratelease 2026-11 content of a rule");
        hasher.update(Entry::list_to_text(&self.entries).as_bytes());
        hasher.update(&[0]);
        hasher.update(json!(settings).to_string().as_bytes());
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        Content(i64::from_le_bytes(bytes) & (Content::END - 1))
    }
}

/// The settings that a rule file would have.
fn without_nulls(settings: &Map<String, Value>) -> Map<String, Value> {
    let set = settings.iter().filter(|(_, value)| !value.is_null());
    let set = set.map(|(name, value)| match value {
        Value::Object(map) if name == "rate_limit" => (name.clone(), json!(without_nulls(map))),
        value => (name.clone(), value.clone()),
    });
    set.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(key: &str, settings: Value) -> Record {
        let Value::Object(settings) = settings else { panic!("{settings}") };
        Record { entries: vec![Entry::new(key, "")], settings }
    }

    #[test]
    fn rules_that_are_added_and_removed_leave_the_number_as_it_was() {
        let [a, b] = ["a", "b"].map(|key| record(key, json!({"rate_limit": {"unit": "hour"}})));
        let both = Content::of([&a, &b]);
        assert_eq!(both, Content::of([&b, &a]));
        assert_ne!(a.content(), b.content());
        assert_eq!(both.without(a.content()), b.content());
        assert_eq!(Content::default().without(a.content()).and(a.content()), Content::default());
        assert!((0..Content::END).contains(&both.number()));
    }

    #[test]
    fn settings_that_are_null_are_none_and_others_tell_rules_apart() {
        let of = |settings| record("a", settings).content();
        assert_eq!(
            of(json!({"rate_limit": {"unit": "hour", "burst": null}, "quota_mode": null})),
            of(json!({"rate_limit": {"unit": "hour"}}))
        );
        assert_ne!(of(json!({"rate_limit": {"unit": "hour"}})), of(json!({})));
    }
}
