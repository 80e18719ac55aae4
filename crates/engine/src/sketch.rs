//! The most frequent keys of a stream, in memory that never grows.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi: "Efficient Computation of Frequent and Top-k
//! Elements in Data Streams", ICDT 2005), in sets. A key belongs to one set of [`WAYS`] counters,
//! which its hash chooses. A key that has a counter in its set increments it. A key without one
//! takes over the smallest counter of the set together with its count: the key may have been seen
//! that often before it had a counter, so that count is kept as the counter's error.
//!
//! Hence, for every key that has a counter, `at_least` ≤ true count ≤ `at_most`; and every key that
//! makes up more than one part in [`WAYS`] of the keys that its set has seen has a counter. Because
//! of the sets, noting a key costs the same for any size of the sketch: only one set is searched.
//! The caller may admit new keys at random instead ([`Sketch::note_if`]), so that the many rare
//! keys do not displace the frequent ones. Pure.

use ratelease_rules::key::Key;

/// Counters in a set, all of which are searched when a key is noted.
pub const WAYS: usize = 8;

/// Counts keys.
#[derive(Debug, Clone)]
pub struct Sketch {
    sets: Box<[[Counter; WAYS]]>,
    noted: u64,
}

/// A key that has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frequent {
    /// Index of the counter, below [`Sketch::len`], for data that is kept beside it.
    pub counter: usize,
    /// The key.
    pub key: Key,
    /// How often the key was noted since it has this counter.
    pub at_least: u32,
    /// The largest number of times that the key was noted in all.
    pub at_most: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counter {
    key: Option<Key>,
    count: u32,
    /// The counter's count when the key took it over.
    error: u32,
}

// === impl Sketch ===

impl Sketch {
    /// Memory of a sketch of this number of sets, in bytes.
    pub const fn bytes(sets: usize) -> usize {
        sets * WAYS * size_of::<Counter>()
    }

    /// A sketch of this number of sets of [`WAYS`] counters, at least one set.
    pub fn new(sets: usize) -> Self {
        Self { sets: vec![Default::default(); sets.max(1)].into(), noted: 0 }
    }

    /// The number of counters.
    pub fn len(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Whether no key was noted.
    pub fn is_empty(&self) -> bool {
        self.noted == 0
    }

    /// How often keys were noted, in all.
    pub fn noted(&self) -> u64 {
        self.noted
    }

    /// Counts `key` once. If it had no counter, returns the one that it has taken over.
    pub fn note(&mut self, key: Key) -> Option<usize> {
        self.note_if(key, |_| true)
    }

    /// As [`Sketch::note`], but a key without a counter takes over the smallest one only where
    /// `takes_over`, called with its count, returns true; a count of 0 is a free counter. With this
    /// method only `at_least` is a bound, and which keys have a counter depends on `takes_over`.
    pub fn note_if(&mut self, key: Key, takes_over: impl FnOnce(u32) -> bool) -> Option<usize> {
        self.noted = self.noted.saturating_add(1);
        let at = self.set_of(key);
        let set = &mut self.sets[at];
        if let Some(counter) = set.iter_mut().find(|counter| counter.key == Some(key)) {
            counter.count = counter.count.saturating_add(1);
            return None;
        }
        let way = smallest(set);
        let Counter { count, .. } = set[way];
        takes_over(count).then(|| {
            set[way] = Counter { key: Some(key), count: count.saturating_add(1), error: count };
            at * WAYS + way
        })
    }

    /// The least number of times that `key` was noted: 0 if it has no counter.
    pub fn at_least(&self, key: Key) -> u32 {
        let counter = self.sets[self.set_of(key)].iter().find(|counter| counter.key == Some(key));
        counter.map_or(0, Counter::at_least)
    }

    /// The keys that have a counter, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = Frequent> {
        self.sets.as_flattened().iter().enumerate().filter_map(|(at, counter)| {
            let at_least = counter.at_least();
            Some(Frequent { counter: at, key: counter.key?, at_least, at_most: counter.count })
        })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sets.fill(Default::default());
        self.noted = 0;
    }

    fn set_of(&self, key: Key) -> usize {
        // As even as the remainder, but without a division: the upper half of the product is below
        // the length.
        let scaled = u128::from(key.bits()) * self.sets.len() as u128;
        usize::try_from(scaled >> 64).unwrap_or_default()
    }
}

/// Index of the smallest counter. A free one is smaller than all others.
fn smallest(set: &[Counter; WAYS]) -> usize {
    let smallest = set.iter().enumerate().min_by_key(|(_, counter)| counter.count);
    smallest.map_or(0, |(way, _)| way)
}

// === impl Counter ===

impl Counter {
    fn at_least(&self) -> u32 {
        self.count - self.error
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// For any stream, the bounds hold, and every key that is frequent in its set has a
        /// counter.
        #[test]
        fn the_truth_lies_within_the_bounds(
            sets in 1..5_usize,
            stream in proptest::collection::vec((0..60_u64, 0..60_u64), 0..600),
        ) {
            let keys: Vec<_> = (0..60).map(Key::for_test).collect();
            let (mut sketch, mut truth) = (Sketch::new(sets), HashMap::<Key, u32>::new());
            for (a, b) in stream {
                // The minimum of two draws, so that low numbers are frequent.
                let key = keys[usize::try_from(a.min(b)).unwrap()];
                sketch.note(key);
                *truth.entry(key).or_default() += 1;
            }
            let held: HashMap<_, _> = sketch.iter().map(|it| (it.key, it)).collect();
            for (key, it) in &held {
                prop_assert!(it.at_least <= truth[key] && truth[key] <= it.at_most, "{it:?}");
                prop_assert_eq!(sketch.at_least(*key), it.at_least);
            }
            let mut seen = vec![0; sets];
            truth.iter().for_each(|(key, count)| seen[sketch.set_of(*key)] += count);
            for (key, count) in &truth {
                let all = seen[sketch.set_of(*key)];
                prop_assert!(held.contains_key(key) || count * 8 <= all, "{count} of {all}");
            }
            prop_assert_eq!(sketch.noted(), u64::from(truth.values().sum::<u32>()));
        }
    }

    #[test]
    fn a_new_key_replaces_the_smallest_counter_and_returns_the_old_key() {
        let mut sketch = Sketch::new(1);
        let keys: Vec<_> = (0..9).map(Key::for_test).collect();
        for (at, key) in keys[..8].iter().enumerate() {
            assert_eq!(sketch.note(*key), Some(at));
            (0..8 - at).for_each(|_| assert_eq!(sketch.note(*key), None));
        }
        assert_eq!(sketch.note(keys[8]), Some(7), "the last had 2, the others more");
        let newcomer = sketch.iter().find(|it| it.key == keys[8]).unwrap();
        assert_eq!((newcomer.at_least, newcomer.at_most), (1, 3));
        assert_eq!((sketch.at_least(keys[7]), sketch.at_least(keys[0])), (0, 9));
        sketch.clear();
        assert!(sketch.is_empty() && sketch.iter().next().is_none());
    }
}
