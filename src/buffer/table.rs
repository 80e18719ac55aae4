//! A bounded map from keys to whatever is kept for each, split so that threads seldom meet.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use crate::key::Key;
use crate::time::Time;

/// Parts of the table with a lock each. A power of two, well above the cores of a sidecar.
const PARTS: usize = 64;

/// Entries that an insertion into a full part looks at to find one to evict.
const EVICTION_SAMPLE: usize = 8;

/// A map from [`Key`] to `V` that never holds more than its ceiling.
pub struct Table<V> {
    parts: Box<[Mutex<HashMap<Key, V, RandomState>>]>,
    part_max: usize,
}

/// What the table needs to know of an entry to choose one to evict.
pub trait Entry {
    /// When it was last used.
    fn touched(&self) -> Time;
    /// Somebody waits on it: it must stay.
    fn is_busy(&self) -> bool;
}

/// The table is full of busy entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

// === impl Table ===

impl<V: Entry> Table<V> {
    /// A table of at most `keys_max` entries, rounded up to a multiple of the parts.
    pub fn new(keys_max: usize) -> Self {
        let parts = (0..PARTS).map(|_| Mutex::new(HashMap::default())).collect();
        Self { parts, part_max: keys_max.div_ceil(PARTS).max(1) }
    }

    /// Runs `visit` on the entry of `key`, made by `make` if there is none. If that took the place
    /// of another, the other is returned so that its tokens can be given back.
    ///
    /// `visit` runs under the lock of a part: it must be short and must not come back to the table.
    pub fn with<R>(
        &self,
        key: Key,
        make: impl FnOnce() -> V,
        visit: impl FnOnce(&mut V) -> R,
    ) -> Result<(R, Option<(Key, V)>), TableFull> {
        let mut part = self.part(key).lock();
        if let Some(entry) = part.get_mut(&key) {
            return Ok((visit(entry), None));
        }
        let evicted = if part.len() < self.part_max {
            None
        } else {
            Some(evict(&mut part).ok_or(TableFull)?)
        };
        Ok((visit(part.entry(key).or_insert_with(make)), evicted))
    }

    /// Runs `visit` on the entry of `key` if there is one.
    pub fn with_existing<R>(&self, key: Key, visit: impl FnOnce(&mut V) -> R) -> Option<R> {
        self.part(key).lock().get_mut(&key).map(visit)
    }

    /// The parts, for [`Table::retain`].
    pub fn parts(&self) -> Range<usize> {
        0..PARTS
    }

    /// Shows every entry of a part to `keep` and removes those it answers `false` for.
    pub fn retain(&self, part: usize, mut keep: impl FnMut(Key, &mut V) -> bool) {
        self.parts[part & (PARTS - 1)].lock().retain(|key, entry| keep(*key, entry));
    }

    /// Entries at present.
    pub fn len(&self) -> usize {
        self.parts.iter().map(|part| part.lock().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[allow(clippy::cast_possible_truncation, reason = "a remainder of PARTS fits")]
    fn part(&self, key: Key) -> &Mutex<HashMap<Key, V, RandomState>> {
        // A key is a uniform hash already; the map inside mixes it again with a secret seed.
        &self.parts[(key.bits() % PARTS as u64) as usize]
    }
}

/// Takes out the least recently used of a few entries that nobody waits on.
fn evict<V: Entry>(part: &mut HashMap<Key, V, RandomState>) -> Option<(Key, V)> {
    let idle = part.iter().filter(|(_, entry)| !entry.is_busy()).take(EVICTION_SAMPLE);
    let (key, _) = idle.min_by_key(|(_, entry)| entry.touched())?;
    let key = *key;
    part.remove_entry(&key)
}

const _: () = assert!(PARTS.is_power_of_two());

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing {
        touched: Time,
        busy: bool,
    }

    impl Entry for Thing {
        fn touched(&self) -> Time {
            self.touched
        }

        fn is_busy(&self) -> bool {
            self.busy
        }
    }

    fn insert(table: &Table<Thing>, n: u64, busy: bool) -> Result<bool, TableFull> {
        let thing = || Thing { touched: Time::from_nanos(n), busy };
        table.with(Key::for_test(n), thing, |_| ()).map(|((), evicted)| evicted.is_some())
    }

    #[test]
    fn never_holds_more_than_its_ceiling() {
        let table = Table::new(PARTS * 2);
        let evicted = (0..10_000).filter(|n| insert(&table, *n, false) == Ok(true)).count();
        assert!(table.len() <= PARTS * 2, "{} entries", table.len());
        assert_eq!(evicted + table.len(), 10_000);
    }

    #[test]
    fn refuses_a_key_rather_than_evict_a_busy_one() {
        let table = Table::new(1);
        let refused = (0..1_000).filter(|n| insert(&table, *n, true) == Err(TableFull)).count();
        assert_eq!(refused, 1_000 - PARTS);
    }

    #[test]
    fn finds_an_entry_again_and_makes_it_once() {
        let table = Table::new(10);
        for _ in 0..3 {
            assert_eq!(insert(&table, 7, false), Ok(false));
        }
        assert_eq!(table.len(), 1);
        assert!(table.with_existing(Key::for_test(7), |_| ()).is_some());
        assert!(table.with_existing(Key::for_test(8), |_| ()).is_none());
    }

    #[test]
    fn retain_removes_what_is_not_kept() {
        let table = Table::new(1_000);
        for n in 0..100 {
            insert(&table, n, false).unwrap();
        }
        for part in table.parts() {
            table.retain(part, |_, thing| thing.touched < Time::from_nanos(10));
        }
        assert_eq!(table.len(), 10);
    }
}
