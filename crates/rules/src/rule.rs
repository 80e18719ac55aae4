//! One rule: its limit, and how its answers look.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::num::NonZeroU8;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::limit::{Algorithm, FailureMode, Hold, LeaseTerms, Leasing, Limit};
use crate::options::{Flags, MapKind, is_known_to_reference};
use crate::request::Entry;
use crate::store::{StoreId, StoreNames};

/// The rule at one node of the tree: its limit, and how its answers look.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Domain and configured keys and values, joined as the reference's stats key
    /// (`domain.key_value.key2`); unique among the rules of one version.
    pub path: Box<str>,
    /// `rate_limit.name`: appears in `current_limit`, and is what `replaces` refers to. Often
    /// empty.
    pub name: Box<str>,
    /// The limit, or none.
    pub allowance: Allowance,
    /// Names of rules that do not apply to a request that this rule matches too.
    pub replaces: Box<[Box<str>]>,
    /// The options that are true or false.
    pub flags: Flags,
    /// Whether and how its tokens are leased.
    pub leasing: Leasing,
    /// The answer while the store is unavailable.
    pub failure_mode: FailureMode,
    /// Number of pools for each of its keys, 1 to [`POOLS_MAX`](crate::POOLS_MAX); with 1 a key has
    /// only its own count.
    pub shards: NonZeroU8,
    /// The terms on which requests hold its tokens, if they do.
    pub hold: Option<Hold>,
    /// Returned as dynamic metadata with requests that pass. Few rules have it: a rule without it
    /// takes no room for a map.
    pub metadata: Option<Box<Map<String, Value>>>,
    /// One item for each level of the path, in order. Neighbouring rules share the list.
    pub levels: Arc<[Level]>,
    /// The meter that counts its decisions.
    pub meter: Attachment,
}

/// The properties of one level of a rule's path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Level {
    /// `share_threshold`: all values that match this pattern count as one, under the pattern's
    /// text.
    pub shared: Option<Box<str>>,
    /// `value_to_metric`: the stats key contains the value of the request.
    pub value_to_metric: bool,
    /// How the level was configured, which determines how the stats key shows it.
    pub matched: LevelMatch,
    /// Where the level's text begins in the rule's path, in bytes.
    pub start: u32,
}

/// How a level of a rule's path was configured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LevelMatch {
    /// By its key only.
    #[default]
    Key,
    /// By key and value.
    Value,
    /// By a pattern over `key_value`; the field holds the pattern.
    Wildcard(Box<str>),
}

/// The amount that a rule allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowance {
    /// At most this limit.
    Limited(Limit),
    /// No limit; nothing is counted.
    Unlimited,
}

/// Whether a level has an option.
type HasOption = fn(&Level) -> bool;

/// An option of a rule that is in force.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleOption {
    /// The name in rule files.
    pub name: &'static str,
    /// The value, for a JSON object; of an option of levels, the levels that have it, from 1.
    pub value: Value,
    /// The value as a rule file writes it.
    pub written: String,
    /// Whether a file need not give it.
    pub is_default: bool,
}

// === impl Rule ===

impl Rule {
    /// Returns every option of the rule, including defaults; options that do not apply to its
    /// algorithm are left out. `stores` are the names that the rules may use.
    pub fn options(&self, stores: &StoreNames) -> Vec<RuleOption> {
        // Without `..`, so that a new field does not compile until it is listed here.
        let Rule {
            path: _,
            name,
            allowance,
            replaces,
            flags,
            leasing,
            failure_mode,
            shards,
            hold,
            metadata,
            levels,
            meter: _,
        } = self;
        let defaults = Flags::of_rule(hold.is_some());
        let flags = |map: MapKind| {
            let those =
                flags.iter().zip(defaults.iter()).filter(move |((row, _), _)| row.map == map);
            those.map(|((row, is), (_, default))| {
                RuleOption::new(row.option.name, is, is == default)
            })
        };
        let mut options = vec![RuleOption::new("name", &**name, name.is_empty())];
        match *allowance {
            Allowance::Unlimited => options.push(RuleOption::new("unlimited", true, false)),
            Allowance::Limited(limit) => options.extend(of_limit(limit)),
        }
        let is_one = shards.get() == 1;
        let has_window = match allowance {
            Allowance::Limited(limit) => limit.algorithm.has_window(),
            Allowance::Unlimited => true,
        };
        if has_window {
            options.extend([of_lease(*leasing), RuleOption::new("shards", shards.get(), is_one)]);
        }
        options.push(RuleOption::new(
            "failure_mode",
            failure_mode.name(),
            *failure_mode == Default::default(),
        ));
        options.extend(hold.map(|hold| self.of_hold(hold)));
        options.extend(flags(MapKind::RateLimit));
        options.extend(
            self.store().map(|store| {
                RuleOption::new("store", stores.name(store), store == StoreId::DEFAULT)
            }),
        );
        options.extend(flags(MapKind::Descriptor));
        options.push(RuleOption::new("replaces", json!(replaces), replaces.is_empty()));
        let of_levels: [(&'static str, HasOption); 2] = [
            ("value_to_metric", |level| level.value_to_metric),
            ("share_threshold", |level| level.shared.is_some()),
        ];
        options.extend(of_levels.map(|(name, has_it)| {
            let numbered = (1..).zip(levels.iter()).filter(|(_, level)| has_it(level));
            let numbers: Vec<usize> = numbered.map(|(number, _)| number).collect();
            RuleOption::new(name, json!(numbers), numbers.is_empty())
        }));
        let metadata = Value::Object(metadata.as_deref().cloned().unwrap_or_default());
        options.push(RuleOption::new("metadata", metadata, self.metadata.is_none()));
        options
    }

    fn of_hold(&self, hold: Hold) -> RuleOption {
        let by = self.path_parts().nth(usize::from(hold.level) + 1).unwrap_or_default();
        let lasts = hold.lasts();
        let unless_settled = hold.unless_settled.name();
        let terms = json!({
            "by": by,
            "for": format!("{lasts:?}"),
            "unless_settled": unless_settled,
        });
        // A JSON string is one of YAML too, whatever is in the key.
        let written = format!(
            "{{by: {}, for: {}, unless_settled: {unless_settled}}}",
            Value::from(by),
            duration(lasts),
        );
        RuleOption { written, ..RuleOption::new("hold", terms, false) }
    }

    /// Returns the text that stands for every value of this level in the name of a count, and so on
    /// pages; `None` if each value has a count of its own.
    #[inline]
    pub fn shared_at(&self, level: usize) -> Option<&str> {
        // No pattern is empty, so the id of a request names no other count than a pattern does.
        match self.hold {
            Some(hold) if hold.is_at(level) => Some(""),
            _ => self.levels.get(level)?.shared.as_deref(),
        }
    }

    /// The domain, with which the path begins.
    pub fn domain(&self) -> Option<&str> {
        let start = usize::try_from(self.levels.first()?.start).ok()?;
        self.path.get(..start.checked_sub(1)?)
    }

    /// The store that counts the rule; `None` if nothing is counted.
    pub fn store(&self) -> Option<StoreId> {
        match self.allowance {
            Allowance::Limited(limit) => Some(limit.store),
            Allowance::Unlimited => None,
        }
    }

    /// Number of pools of each key: 0 if the keys are not split, because a key's own count holds
    /// the whole limit.
    pub fn pools(&self) -> u8 {
        if self.shards.get() > 1 { self.shards.get() } else { 0 }
    }

    /// Returns the parts of the path: the domain, then each level. Any part may contain dots.
    pub fn path_parts(&self) -> impl Iterator<Item = &str> {
        let starts = self.levels.iter().map(|level| level.start as usize);
        let ends = starts.clone().map(|start| start.saturating_sub(1)).chain([self.path.len()]);
        let steps = std::iter::once(0).chain(starts).zip(ends);
        steps.map(|(start, end)| self.path.get(start..end).unwrap_or_default())
    }
}

// === impl RuleOption ===

impl RuleOption {
    fn new(name: &'static str, value: impl Into<Value>, is_default: bool) -> Self {
        let value = value.into();
        let written = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self { name, value, written, is_default }
    }

    /// Returns whether the reference has it too.
    pub fn is_known_to_reference(&self) -> bool {
        is_known_to_reference(self.name).unwrap_or_default()
    }
}

fn of_limit(limit: Limit) -> Vec<RuleOption> {
    let Limit { requests_per_unit, unit, unit_multiplier, calendar, algorithm, store: _ } = limit;
    let is_default = algorithm == Algorithm::default();
    let mut options = vec![RuleOption::new("requests_per_unit", requests_per_unit, false)];
    if algorithm.has_window() {
        let units = unit_multiplier.get();
        options.extend([
            RuleOption::new("unit", limit.unit_name(), false),
            RuleOption::new("unit_multiplier", units, units == 1),
        ]);
    }
    options.push(RuleOption::new("algorithm", algorithm.name(), is_default));
    if let Some(calendar) = calendar {
        let (zone, anchor) = (calendar.time_zone(), calendar.anchor(unit));
        // Named even if it is the default: it shows that the window is one of the calendar.
        options.push(RuleOption::new("time_zone", zone, false));
        options.push(RuleOption::new("anchor", &*anchor, anchor == "{}"));
    }
    if algorithm.owns("burst") {
        let burst = algorithm.burst().unwrap_or_default();
        options.push(RuleOption::new("burst", burst, burst == requests_per_unit));
    }
    if algorithm.owns("max_delay") {
        let delay = algorithm.max_delay();
        let option = RuleOption::new("max_delay", format!("{delay:?}"), delay.is_zero());
        options.push(RuleOption { written: duration(delay), ..option });
    }
    options
}

fn of_lease(leasing: Leasing) -> RuleOption {
    let Leasing::On(terms) = leasing else { return RuleOption::new("lease", "off", false) };
    let built_in = LeaseTerms::default();
    let mut shown = format!("fraction {}", terms.fraction);
    let mut written = Vec::new();
    if terms.fraction.total_cmp(&built_in.fraction).is_ne() {
        written.push(format!("fraction: {}", terms.fraction));
    }
    if terms.max != built_in.max {
        shown.push_str(&format!(", max {}", terms.max));
        written.push(format!("max: {}", terms.max));
    }
    if let Some(ttl) = terms.ttl {
        shown.push_str(&format!(", ttl {ttl:?}"));
        written.push(format!("ttl: {}", duration(ttl)));
    }
    let written = format!("{{{}}}", written.join(", "));
    RuleOption { written, ..RuleOption::new("lease", shown, terms == built_in) }
}

/// Formats a duration as rule files write it.
fn duration(duration: Duration) -> String {
    format!("{duration:?}").replace('\u{b5}', "u")
}

// A value that the program keeps with a rule, such as the rule's meter.
//
// The slot is type-erased, so that this crate does not depend on the code that stores the value.

/// A slot for one value, which is set on first use and never replaced. Comparing rules ignores the
/// slot, and copying a rule does not copy it.
#[derive(Default)]
pub struct Attachment(OnceLock<Arc<dyn Any + Send + Sync>>);

// === impl Attachment ===

impl Attachment {
    /// Returns the value; the first call makes it with `make`. Returns `None` if a value of another
    /// type was stored first.
    #[inline]
    pub fn get_or_init<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Arc<T>) -> Option<&T> {
        let value = self.0.get_or_init(|| {
            let value: Arc<dyn Any + Send + Sync> = make();
            value
        });
        value.downcast_ref()
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attachment")
    }
}

impl Clone for Attachment {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Attachment {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

// The name under which a rule's decisions are counted.

// === impl Rule ===

impl Rule {
    /// Returns the stats key of a decision by this rule on `entries`, which must begin with those
    /// that led to the rule: the reference's key, made safe as a metric's name. By default it is
    /// the configured path. With `value_to_metric` or `detailed_metric` it contains values of the
    /// request, so there are as many keys as values.
    pub fn stats_key(&self, domain: &str, entries: &[Entry<'_>]) -> String {
        let mut name = String::with_capacity(self.path.len());
        name.push_str(domain);
        let is_shared = self.levels.iter().any(|level| level.shared.is_some());
        for (index, (entry, level)) in entries.iter().zip(&*self.levels).enumerate() {
            let is_id = self.hold.is_some_and(|hold| hold.is_at(index));
            let value = if is_id { "" } else { level.shown(entry, self.flags.detailed_metric) };
            name.push('.');
            name.push_str(entry.key);
            // A quirk of the reference: a detailed name keeps the '_' of an empty value.
            let keeps_empty = self.flags.detailed_metric && !is_shared && !is_id;
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
        let is_id = self.hold.is_some_and(|hold| hold.is_at(level));
        !is_id
            && self.levels.get(level).is_some_and(|level| match level.matched {
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
mod attachment_tests {
    use super::*;

    #[test]
    fn the_first_value_stays_and_makes_no_difference_between_rules() {
        let attachment = Attachment::default();
        assert_eq!(attachment.get_or_init(|| Arc::new(1_u32)), Some(&1));
        assert_eq!(attachment.get_or_init(|| Arc::new(2_u32)), Some(&1));
        assert_eq!(attachment.get_or_init(|| Arc::new("two")), None, "another type");
        let copy = attachment.clone();
        assert!(attachment == copy);
        assert!(attachment.0.get().is_some() && copy.0.get().is_none());
    }
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
