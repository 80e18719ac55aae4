//! A map that only grows, up to a maximum, and whose readers never wait.

use std::num::NonZeroU64;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Maps a 64-bit hash to a value. The hash stands for the key: among ten thousand keys, the chance
/// that two collide is one in 10^11.
///
/// Open addressing over a fixed number of entries, at most half of them used, so that a search is
/// short. The entries are allocated when the first value is inserted.
#[derive(Debug)]
pub(super) struct Table<V> {
    max: usize,
    taken: AtomicUsize,
    entries: OnceLock<Box<[Entry<V>]>>,
}

#[derive(Debug)]
struct Entry<V> {
    /// 0 while the entry is free. Once set, it never changes.
    hash: AtomicU64,
    value: OnceLock<Box<V>>,
}

const FREE: u64 = 0;

// === impl Table ===

impl<V> Table<V> {
    /// Creates a table for `max` values.
    pub(super) fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0), entries: OnceLock::new() }
    }

    /// The value of `hash`, which `make` creates if there is none; `None` if there is no room for
    /// it.
    pub(super) fn get_or_insert(&self, hash: NonZeroU64, make: impl FnOnce() -> V) -> Option<&V> {
        let entries = self.entries.get_or_init(|| self.empty());
        let mask = entries.len() - 1;
        let mut at = first(hash, mask);
        loop {
            let entry = entries.get(at)?;
            let found = match entry.hash.load(Ordering::Acquire) {
                FREE => self.claim(entry, hash)?,
                found => found,
            };
            if found == hash.get() {
                return Some(entry.value.get_or_init(|| Box::new(make())));
            }
            at = (at + 1) & mask;
        }
    }

    /// All values.
    pub(super) fn iter(&self) -> impl Iterator<Item = &V> {
        let entries = self.entries.get().into_iter().flatten();
        entries.filter_map(|entry| entry.value.get().map(AsRef::as_ref))
    }

    pub(super) fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Claims a free entry for `hash`, unless the table is full. Returns the hash that the entry
    /// has now: another thread may have claimed it first.
    fn claim(&self, entry: &Entry<V>, hash: NonZeroU64) -> Option<u64> {
        // A full table is only read.
        if self.len() >= self.max {
            return None;
        }
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        let (hash, orders) = (hash.get(), (Ordering::AcqRel, Ordering::Acquire));
        match entry.hash.compare_exchange(FREE, hash, orders.0, orders.1) {
            Ok(_) => Some(hash),
            Err(other) => {
                self.taken.fetch_sub(1, Ordering::Relaxed);
                Some(other)
            }
        }
    }

    fn empty(&self) -> Box<[Entry<V>]> {
        let entries = (2 * self.max).next_power_of_two().max(2);
        let free = || Entry { hash: AtomicU64::new(FREE), value: OnceLock::new() };
        (0..entries).map(|_| free()).collect()
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower bits are what is meant")]
fn first(hash: NonZeroU64, mask: usize) -> usize {
    hash.get() as usize & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u64) -> NonZeroU64 {
        NonZeroU64::new(number).unwrap()
    }

    #[test]
    fn a_hash_keeps_its_value_and_one_above_the_maximum_has_none() {
        let table = Table::new(2);
        assert_eq!(table.iter().count(), 0);
        // All three have the same first place.
        assert_eq!(table.get_or_insert(hash(4), || "a"), Some(&"a"));
        assert_eq!(table.get_or_insert(hash(8), || "b"), Some(&"b"));
        assert_eq!(table.get_or_insert(hash(12), || "c"), None);
        assert_eq!(table.get_or_insert(hash(4), || "d"), Some(&"a"));
        assert_eq!(table.get_or_insert(hash(8), || "d"), Some(&"b"));
        assert_eq!((table.iter().count(), table.len()), (2, 2));
    }

    #[test]
    fn a_table_for_no_values_allocates_nothing() {
        assert_eq!(Table::new(0).get_or_insert(hash(1), || "a"), None);
    }

    #[test]
    fn racing_threads_find_the_same_values() {
        const VALUES: u64 = 1000;
        const MAX: usize = 500;
        let table = Table::new(MAX);
        let made = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for number in 1..=VALUES {
                        let make = || {
                            made.fetch_add(1, Ordering::Relaxed);
                            number
                        };
                        let found = table.get_or_insert(hash(number), make);
                        assert!(found.is_none_or(|found| *found == number));
                    }
                });
            }
        });
        assert_eq!((table.iter().count(), table.len(), made.into_inner()), (MAX, MAX, MAX));
    }
}
