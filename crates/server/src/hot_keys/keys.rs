//! A sketch that also keeps the text of the keys that have a counter.

use ratelease_engine::rng;
use ratelease_engine::sketch::{Frequent, Sketch, WAYS};
use ratelease_rules::Rule;
use ratelease_rules::request::Descriptor;

use super::{CountedKey, TEXT_BYTES_MAX, Texts};

/// Counts keys, and keeps the text of those that have a counter.
pub(super) struct Keys {
    sketch: Sketch,
    /// Texts by counter, each of at most [`TEXT_BYTES_MAX`]; empty if texts are not kept.
    texts: Box<[String]>,
}

// === impl Keys ===

impl Keys {
    /// Upper bound of the heap memory in bytes for this many sets.
    pub(super) const fn bytes_max(sets: usize, texts: Texts) -> usize {
        let text =
            if matches!(texts, Texts::Kept) { size_of::<String>() + TEXT_BYTES_MAX } else { 0 };
        Sketch::bytes(sets) + sets * WAYS * text
    }

    pub(super) fn new(sets: usize, texts: Texts) -> Self {
        let sketch = Sketch::new(sets);
        let count = if texts == Texts::Kept { sketch.len() } else { 0 };
        // Allocated at full capacity: a request allocates nothing.
        let texts = (0..count).map(|_| String::with_capacity(TEXT_BYTES_MAX)).collect();
        Self { sketch, texts }
    }

    pub(super) fn len(&self) -> usize {
        self.sketch.len()
    }

    /// Number of notes, over all keys.
    pub(super) fn noted(&self) -> u64 {
        self.sketch.noted()
    }

    /// Counts the key in `counted`. Returns the counter that it has taken over, if it had none.
    ///
    /// A new key takes over the smallest counter, at count c, with probability 1 / (c + 1):
    /// "Randomized Admission Policy for Efficient Top-k and Frequency Estimation" (Ben Basat,
    /// Einziger, Friedman, Kassner: INFOCOM 2017). A frequent key soon gets a counter. Without
    /// this, the many keys that occur once would take one counter after the other, and write a text
    /// each time.
    #[inline]
    pub(super) fn note(&mut self, counted: &CountedKey<'_, '_>) -> Option<usize> {
        let counter = self.sketch.note_if(counted.key, takes_over)?;
        if let Some(text) = self.texts.get_mut(counter) {
            text.clear();
            write_entries(text, counted.rule.map(|rule| &**rule), counted.descriptor);
        }
        Some(counter)
    }

    /// Clears all counters; a text is replaced when its counter is next taken.
    pub(super) fn clear(&mut self) {
        self.sketch.clear();
    }

    /// The keys that have a counter, with their text if it is kept.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Frequent, Option<&str>)> {
        self.sketch.iter().map(|frequent| {
            let text = self.texts.get(frequent.counter);
            (frequent, text.map(String::as_str))
        })
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|it| size_of::<String>() + it.capacity()).sum();
        Sketch::bytes(self.sketch.len() / WAYS) + texts
    }
}

/// Whether a newcomer takes over a counter at `counted`; always true for a free one.
pub(super) fn takes_over(counted: u32) -> bool {
    counted == 0 || rng::below(counted.saturating_add(1)) == 0
}

/// Writes the entries as counted: if a rule shares a count among texts, its pattern appears
/// instead of the value. Text that does not fit is cut.
fn write_entries(text: &mut String, rule: Option<&Rule>, descriptor: &Descriptor<'_>) {
    let levels = rule.map_or(&[][..], |rule| &rule.levels);
    for (at, entry) in descriptor.entries.iter().enumerate() {
        let shared = levels.get(at).and_then(|level| level.shared.as_deref());
        let separator = if at == 0 { "" } else { ", " };
        for part in [separator, entry.key, "=", shared.unwrap_or(entry.value)] {
            let room = TEXT_BYTES_MAX - text.len();
            let end = part.floor_char_boundary(room);
            text.push_str(&part[..end]);
            if end < part.len() {
                return;
            }
        }
    }
}
