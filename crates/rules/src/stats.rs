//! The name under which a rule's decisions are counted.

use std::borrow::Cow;

use crate::request::Entry;
use crate::rule::{Level, LevelMatch, Rule};

// === impl Rule ===

impl Rule {
    /// Returns the stats key of a decision by this rule on `entries`, which must be the entries
    /// that led to the rule: the reference's key, made safe as a metric's name. By default it is
    /// the configured path. With `value_to_metric` or `detailed_metric` it contains values of the
    /// request, so there are as many keys as values.
    pub fn stats_key(&self, domain: &str, entries: &[Entry<'_>]) -> String {
        let mut name = String::with_capacity(self.path.len());
        name.push_str(domain);
        let is_shared = self.levels.iter().any(|level| level.shared.is_some());
        for (index, entry) in entries.iter().enumerate() {
            let value = match self.levels.get(index) {
                Some(level) => level.shown(entry, self.flags.detailed_metric),
                None => "",
            };
            name.push('.');
            name.push_str(entry.key);
            // A quirk of the reference: a detailed name keeps the '_' of an empty value.
            let keeps_empty = self.flags.detailed_metric && !is_shared;
            if !value.is_empty() || keeps_empty {
                name.push('_');
                name.push_str(value);
            }
        }
        match sanitized(&name) {
            Cow::Borrowed(_) => name,
            Cow::Owned(name) => name,
        }
    }

    /// Returns the result of [`Rule::stats_key`] for a rule whose key contains nothing of the
    /// request.
    pub fn stats_name(&self) -> Cow<'_, str> {
        sanitized(&self.path)
    }

    /// Returns whether the stats key contains, at this level, the value of the request, so that
    /// there are as many keys as values.
    pub fn varies_at(&self, level: usize) -> bool {
        self.levels.get(level).is_some_and(|level| match level.matched {
            LevelMatch::Value => false,
            LevelMatch::Wildcard(_) if level.shared.is_some() => false,
            LevelMatch::Wildcard(_) | LevelMatch::Key => {
                self.flags.detailed_metric || level.value_to_metric
            }
        })
    }
}

// === impl Level ===

impl Level {
    /// Returns the value that a stats key shows for `entry`.
    fn shown<'a>(&'a self, entry: &Entry<'a>, is_detailed: bool) -> &'a str {
        match &self.matched {
            LevelMatch::Wildcard(pattern) if self.shared.is_some() => {
                without_key(pattern, entry.key)
            }
            LevelMatch::Value => entry.value,
            _ if is_detailed || self.value_to_metric => entry.value,
            LevelMatch::Wildcard(pattern) => without_key(pattern, entry.key),
            LevelMatch::Key => "",
        }
    }
}

/// Returns the value's part of a pattern over `key_value`.
fn without_key<'p>(pattern: &'p str, key: &str) -> &'p str {
    pattern.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(pattern)
}

/// Replaces colons and bars by `_`, and also the dots of IPv4 addresses, which would otherwise
/// separate levels.
fn sanitized(name: &str) -> Cow<'_, str> {
    let has_address = (0..name.len()).any(|at| address_at(name.as_bytes(), at).is_some());
    if !has_address && !name.contains([':', '|']) {
        return Cow::Borrowed(name);
    }
    let mut dotted_until = 0;
    let replaced = name.char_indices().map(|(at, character)| {
        if at >= dotted_until
            && let Some(length) = address_at(name.as_bytes(), at)
        {
            dotted_until = at + length;
        }
        match character {
            ':' | '|' => '_',
            '.' if at < dotted_until => '_',
            other => other,
        }
    });
    Cow::Owned(replaced.collect())
}

/// Returns the length of an IPv4 address at `at`: four groups of one to three digits, separated by
/// dots.
fn address_at(text: &[u8], at: usize) -> Option<usize> {
    let rest = text.get(at..)?;
    let mut length = 0;
    for group in 0..4 {
        if group > 0 {
            (rest.get(length) == Some(&b'.')).then_some(())?;
            length += 1;
        }
        let digits = rest.iter().skip(length).take(3).take_while(|b| b.is_ascii_digit()).count();
        (digits > 0).then_some(())?;
        length += digits;
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::sanitized;

    #[test]
    fn names_are_safe_for_metrics_as_the_reference_makes_them() {
        let table = [
            ("d.key_value", "d.key_value"),
            ("d.key_a:b|c", "d.key_a_b_c"),
            ("d.ip_10.0.0.1", "d.ip_10_0_0_1"),
            ("d.ip_10.0.0.1.next", "d.ip_10_0_0_1.next"),
            ("d.ip_1234.1.1.1", "d.ip_1234_1_1_1"),
            ("d.ip_1.1.1", "d.ip_1.1.1"),
            ("d.ip_1.1.1.1234", "d.ip_1_1_1_1234"),
            ("1.2.3.4.5.6.7.8", "1_2_3_4.5_6_7_8"),
            ("é.1.2.3.4:", "é.1_2_3_4_"),
        ];
        for (name, safe) in table {
            assert_eq!(sanitized(name), safe);
        }
    }
}
