//! A sketch with what goes with its keys, and what comes of several of them together.

use std::collections::HashMap;
use std::fmt::Write;
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{Hot, TEXT_BYTES_MAX};
use crate::key::Key;
use crate::request::Descriptor;
use crate::rules::Rule;
use crate::sketch::{Sketch, WAYS};
use crate::verdict::OVERRIDE;

/// Sets of each sketch: 256 counters.
const SETS: usize = 32;

/// Counts keys, and remembers rule and text of those that have a counter.
pub(super) struct Board {
    sketch: Sketch,
    /// By counter; `None` for overrides.
    rules: Box<[Option<Arc<Rule>>]>,
    /// By counter, each of [`TEXT_BYTES_MAX`]; none at all if they are not kept.
    texts: Box<[String]>,
}

/// What boards come to together: at most as many keys as they have counters.
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

// === impl Board ===

impl Board {
    /// What one takes, a few words aside.
    pub(super) const fn bytes_max(values: bool) -> usize {
        let text = if values { size_of::<String>() + TEXT_BYTES_MAX } else { 0 };
        Sketch::bytes(SETS) + SETS * WAYS * (size_of::<Option<Arc<Rule>>>() + text)
    }

    pub(super) fn new(values: bool) -> Self {
        let sketch = Sketch::new(SETS);
        let texts = if values { sketch.len() } else { 0 };
        Self {
            rules: vec![None; sketch.len()].into(),
            // All room they will ever need: nothing is allocated for a request.
            texts: (0..texts).map(|_| String::with_capacity(TEXT_BYTES_MAX)).collect(),
            sketch,
        }
    }

    /// Counts `key`, which `rule` has made of `descriptor`.
    pub(super) fn note(&mut self, key: Key, rule: Option<&Arc<Rule>>, descriptor: &Descriptor<'_>) {
        let Some(counter) = self.sketch.note(key) else { return };
        if let Some(place) = self.rules.get_mut(counter) {
            *place = rule.cloned();
        }
        if let Some(text) = self.texts.get_mut(counter) {
            text.clear();
            write_entries(text, rule.map(|rule| &**rule), descriptor);
        }
    }

    pub(super) fn clear(&mut self) {
        self.sketch.clear();
        self.rules.fill(None);
    }

    #[cfg(test)]
    pub(super) fn samples(&self) -> u64 {
        self.sketch.noted()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|it| size_of::<String>() + it.capacity()).sum();
        Sketch::bytes(self.sketch.len() / WAYS) + size_of_val(&*self.rules) + texts
    }
}

/// The entries as counted: a value that a rule shares a count for shows as the rule's pattern. What
/// does not fit is cut.
fn write_entries(text: &mut String, rule: Option<&Rule>, descriptor: &Descriptor<'_>) {
    let levels = rule.map_or(&[][..], |rule| &rule.levels);
    for (at, entry) in descriptor.entries.iter().enumerate() {
        let shared = levels.get(at).and_then(|level| level.shared.as_deref());
        let before = if at == 0 { "" } else { ", " };
        for part in [before, entry.key, "=", shared.unwrap_or(entry.value)] {
            let room = TEXT_BYTES_MAX - text.len();
            let end = part.floor_char_boundary(room);
            text.push_str(&part[..end]);
            if end < part.len() {
                return;
            }
        }
    }
}

/// Fit to be shown: what would steer a terminal, or turn the direction of text, is escaped.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let is_unseen = matches!(c, '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}');
        if c.is_control() || is_unseen || matches!(c, '\u{2060}'..='\u{2069}' | '\u{FEFF}') {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

// === impl Merged ===

impl Merged {
    /// Adds what a board has counted for sure.
    pub(super) fn add(&mut self, board: &Board) {
        self.noted += board.sketch.noted();
        for frequent in board.sketch.iter() {
            let sum = self.keys.entry(frequent.key).or_insert_with(|| Sum {
                samples: 0,
                rule: board.rules.get(frequent.counter).cloned().flatten(),
                text: board.texts.get(frequent.counter).cloned(),
            });
            sum.samples += u64::from(frequent.at_least);
        }
    }

    /// The `n` keys that were counted most often, each sample taken for `sample`, of the rules that
    /// are wanted.
    pub(super) fn hottest(
        &self,
        n: usize,
        sample: NonZeroU32,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<Hot> {
        let mut keys: Vec<_> = self.keys.iter().filter(|(_, sum)| wanted(sum.path())).collect();
        // Those of one count in an order that does not change from one look to the next.
        keys.sort_unstable_by_key(|(key, sum)| (std::cmp::Reverse(sum.samples), **key));
        let hot = |(key, sum): (&Key, &Sum)| Hot {
            key: key.to_string(),
            rule: sum.path().to_owned(),
            count: sum.samples * u64::from(sample.get()),
            share: sum.samples as f64 / self.noted.max(1) as f64,
            values: sum.text.as_deref().map(shown),
        };
        keys.into_iter().take(n).map(hot).collect()
    }
}

// === impl Sum ===

impl Sum {
    fn path(&self) -> &str {
        self.rule.as_ref().map_or(OVERRIDE, |rule| &rule.path)
    }
}
