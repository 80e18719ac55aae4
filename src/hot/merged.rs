//! What several sketches come to together.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;

use ratelease_engine::verdict::OVERRIDE;
use ratelease_rules::Rule;
use ratelease_rules::key::Key;
use ratelease_rules::steering::steers;

use super::board::Board;
use super::keys::Keys;
use super::{Hot, OfRule, RULES_MAX, Top};

/// Keys of several sketches: at most as many as those have counters.
#[derive(Default)]
pub(super) struct Merged {
    keys: HashMap<Key, Sum>,
    noted: u64,
}

struct Sum {
    samples: u64,
    rule: Option<Arc<Rule>>,
    text: Option<String>,
}

/// Rules of several boards, by the hash of their path: at most as many as those have places.
#[derive(Default)]
pub(super) struct MergedRules(HashMap<u64, Kinds>);

/// What was counted of a rule, by kind.
#[derive(Default)]
struct Kinds {
    rule: Option<Arc<Rule>>,
    requested: Merged,
    denied: Merged,
}

// === impl Merged ===

impl Merged {
    /// Adds what a board has counted of all keys.
    pub(super) fn add_all(&mut self, board: &Board) {
        self.add(board.all(), |counter| board.rule_of(counter));
    }

    /// Adds what was counted for sure.
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

    /// The `n` keys that were counted most often, each sample taken for `sample`.
    pub(super) fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<Hot> {
        let mut keys: Vec<_> = self.keys.iter().collect();
        // Those of one count in an order that does not change from one look to the next.
        keys.sort_unstable_by_key(|(key, sum)| (Reverse(sum.samples), **key));
        let hot = |(key, sum): (&Key, &Sum)| Hot {
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
    /// Adds what was counted of rules that have a place.
    pub(super) fn add(&mut self, requested: &Board, denied: &Board) {
        let requested = requested.by_rule().iter().map(|place| (place, false));
        let denied = denied.by_rule().iter().map(|place| (place, true));
        for ((rule_hash, place), is_denied) in requested.chain(denied) {
            let kinds = self.0.entry(rule_hash).or_default();
            kinds.rule = place.rule.clone();
            let merged = if is_denied { &mut kinds.denied } else { &mut kinds.requested };
            merged.add(&place.keys, |_| place.rule.as_ref());
        }
    }

    /// The busiest rules with their `n` hottest keys, each sample taken for `sample`.
    pub(super) fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<OfRule> {
        let count = |of: &Merged| of.noted * u64::from(sample.get());
        let of_rule = |Kinds { rule, requested, denied }: &Kinds| OfRule {
            rule: path(rule.as_ref()).to_owned(),
            requests: count(requested),
            denials: count(denied),
            top: Top { requested: requested.hottest(n, sample), denied: denied.hottest(n, sample) },
        };
        self.busiest().into_iter().map(of_rule).collect()
    }

    /// Those that deny most and those that are requested most, [`RULES_MAX`] each; busiest first.
    fn busiest(&self) -> Vec<&Kinds> {
        let mut busiest: Vec<_> = self.0.values().collect();
        busiest.sort_unstable_by_key(|it| (Reverse(it.denied.noted), it.path()));
        let mut others = busiest.split_off(RULES_MAX.min(busiest.len()));
        others.sort_unstable_by_key(|it| (Reverse(it.requested.noted), it.path()));
        busiest.extend(others.into_iter().take(RULES_MAX));
        // What is denied was requested, though it may be known of that kind alone.
        let noted = |it: &Kinds| it.requested.noted.max(it.denied.noted);
        busiest.sort_unstable_by_key(|it| (Reverse(noted(it)), it.path()));
        busiest
    }
}

// === impl Kinds ===

impl Kinds {
    fn path(&self) -> &str {
        path(self.rule.as_ref())
    }
}

fn path(rule: Option<&Arc<Rule>>) -> &str {
    rule.map_or(OVERRIDE, |rule| &rule.path)
}

/// Fit to be shown: what would steer a terminal, turn the direction of text or cannot be seen is
/// escaped.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if steers(c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}
