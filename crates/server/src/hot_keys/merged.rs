//! Merges the counts of several sketches.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;

use ratelease_engine::verdict::OVERRIDE;
use ratelease_rules::Rule;
use ratelease_rules::display_safety::alters_display;
use ratelease_rules::key::Key;

use super::keys::Keys;
use super::top_keys::TopKeys;
use super::{HotKey, HottestKeys, RULES_MAX, RuleHotKeys};

/// Keys of several sketches: at most as many as those have counters.
#[derive(Default)]
pub(super) struct MergedKeys {
    keys: HashMap<Key, Sum>,
    noted: u64,
}

struct Sum {
    samples: u64,
    rule: Option<Arc<Rule>>,
    text: Option<String>,
}

/// Rules of several [`TopKeys`], by the hash of their path: at most as many as those have sketches.
#[derive(Default)]
pub(super) struct MergedRules(HashMap<u64, RuleCounts>);

/// The counts of a rule, by kind.
#[derive(Default)]
struct RuleCounts {
    rule: Option<Arc<Rule>>,
    requested: MergedKeys,
    denied: MergedKeys,
}

// === impl MergedKeys ===

impl MergedKeys {
    /// Adds the counts of all `keys`.
    pub(super) fn add_all(&mut self, keys: &TopKeys) {
        self.add(keys.all(), |counter| keys.rule_of(counter));
    }

    /// Adds the guaranteed counts.
    fn add<'a>(&mut self, keys: &Keys, rule_of: impl Fn(usize) -> Option<&'a Arc<Rule>>) {
        self.noted += keys.noted();
        for (frequent, text) in keys.iter() {
            let sum = self.keys.entry(frequent.key).or_insert_with(|| Sum {
                samples: 0,
                rule: rule_of(frequent.counter).cloned(),
                text: text.map(str::to_owned),
            });
            sum.samples += u64::from(frequent.at_least);
        }
    }

    /// The `n` keys with the highest counts; each sample stands for `sample` decisions.
    pub(super) fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<HotKey> {
        let mut keys: Vec<_> = self.keys.iter().collect();
        // Keys with equal counts are sorted by key, so that their order is the same each time.
        keys.sort_unstable_by_key(|(key, sum)| (Reverse(sum.samples), **key));
        let hot = |(key, sum): (&Key, &Sum)| HotKey {
            key: key.to_string(),
            rule: path(sum.rule.as_ref()).to_owned(),
            count: sum.samples * u64::from(sample.get()),
            share: sum.samples as f64 / self.noted.max(1) as f64,
            values: sum.text.as_deref().map(shown),
        };
        keys.into_iter().take(n).map(hot).collect()
    }
}

// === impl MergedRules ===

impl MergedRules {
    /// Adds the counts of rules that have a sketch.
    pub(super) fn add(&mut self, requested: &TopKeys, denied: &TopKeys) {
        let requested = requested.by_rule().iter().map(|sketch| (sketch, false));
        let denied = denied.by_rule().iter().map(|sketch| (sketch, true));
        for ((rule_hash, sketch), is_denied) in requested.chain(denied) {
            let counts = self.0.entry(rule_hash).or_default();
            counts.rule = sketch.rule.clone();
            let merged = if is_denied { &mut counts.denied } else { &mut counts.requested };
            merged.add(&sketch.keys, |_| sketch.rule.as_ref());
        }
    }

    /// The busiest rules with their `n` hottest keys; each sample stands for `sample` decisions.
    pub(super) fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<RuleHotKeys> {
        let count = |of: &MergedKeys| of.noted * u64::from(sample.get());
        let of_rule = |RuleCounts { rule, requested, denied }: &RuleCounts| RuleHotKeys {
            rule: path(rule.as_ref()).to_owned(),
            requests: count(requested),
            denials: count(denied),
            top: HottestKeys {
                requested: requested.hottest(n, sample),
                denied: denied.hottest(n, sample),
            },
        };
        self.busiest().into_iter().map(of_rule).collect()
    }

    /// The rules that deny most and those that are requested most, [`RULES_MAX`] each; busiest
    /// first.
    fn busiest(&self) -> Vec<&RuleCounts> {
        let mut busiest: Vec<_> = self.0.values().collect();
        busiest.sort_unstable_by_key(|it| (Reverse(it.denied.noted), it.path()));
        let mut others = busiest.split_off(RULES_MAX.min(busiest.len()));
        others.sort_unstable_by_key(|it| (Reverse(it.requested.noted), it.path()));
        busiest.extend(others.into_iter().take(RULES_MAX));
        // A denied request counts as requested, even if the rule has a sketch only for denials.
        let noted = |it: &RuleCounts| it.requested.noted.max(it.denied.noted);
        busiest.sort_unstable_by_key(|it| (Reverse(noted(it)), it.path()));
        busiest
    }
}

// === impl RuleCounts ===

impl RuleCounts {
    fn path(&self) -> &str {
        path(self.rule.as_ref())
    }
}

fn path(rule: Option<&Arc<Rule>>) -> &str {
    rule.map_or(OVERRIDE, |rule| &rule.path)
}

/// Escapes characters that would control a terminal, change the direction of text or be invisible.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if alters_display(c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}
