//! A map that forgets: an entry is found for a while, and the memory of all entries is bounded.
//! Pure: `now` is an argument.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::time::Time;

/// Two generations of notes. The older one is forgotten as a whole when the newer one has been
/// filled for [`Recent::lasts`], or is full. So a note lasts once to twice that time, and less in a
/// flood.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    newer: HashMap<K, V, RandomState>,
    older: HashMap<K, V, RandomState>,
    /// When the newer generation began.
    began: Time,
    lasts: Duration,
    /// The largest number of notes of one generation.
    most: usize,
}

impl<K: Hash + Eq + Copy, V> Recent<K, V> {
    pub(super) fn new(lasts: Duration, most: usize) -> Self {
        let (newer, older) = (HashMap::default(), HashMap::default());
        Self { newer, older, began: Time::default(), lasts, most }
    }

    /// The note of `key`, if it is remembered; makes an empty one otherwise.
    pub(super) fn note(&mut self, key: K, now: Time) -> &mut V
    where
        V: Default,
    {
        self.forget_old(now);
        if self.newer.len() >= self.most {
            self.older = mem::take(&mut self.newer);
        }
        if self.is_empty() {
            self.began = now;
        }
        let earlier = self.older.remove(&key);
        self.newer.entry(key).or_insert_with(|| earlier.unwrap_or_default())
    }

    /// The note of `key`, if it is remembered.
    pub(super) fn get_mut(&mut self, key: K, now: Time) -> Option<&mut V> {
        if self.is_empty() {
            return None; // as nearly always: the maps are not asked
        }
        self.forget_old(now);
        match self.newer.get_mut(&key) {
            Some(note) => Some(note),
            None => self.older.get_mut(&key),
        }
    }

    /// Removes the note of `key`.
    pub(super) fn remove(&mut self, key: K, now: Time) -> Option<V> {
        if self.is_empty() {
            return None;
        }
        self.forget_old(now);
        self.newer.remove(&key).or_else(|| self.older.remove(&key))
    }

    /// Returns the memory of notes that are gone, and forgets those that are too old.
    pub(super) fn trim(&mut self, now: Time) {
        self.forget_old(now);
        if self.is_empty() {
            (self.newer, self.older) = (HashMap::default(), HashMap::default());
        }
    }

    /// Forgets the notes that are too old.
    fn forget_old(&mut self, now: Time) {
        if self.is_empty() || now.since(self.began) < self.lasts {
            return;
        }
        let is_too_old = now.since(self.began) >= 2 * self.lasts;
        self.older = if is_too_old { HashMap::default() } else { mem::take(&mut self.newer) };
        self.newer = HashMap::default();
        self.began = now;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.newer.is_empty() && self.older.is_empty()
    }

    /// Bytes of both maps, whose slots are an eighth more than their capacity.
    pub(super) fn bytes(&self) -> usize {
        let slots = |map: &HashMap<K, V, RandomState>| map.capacity().div_ceil(7) * 8;
        (slots(&self.newer) + slots(&self.older)) * (size_of::<(K, V)>() + 1)
    }
}

impl<K: Hash + Eq + Copy> Recent<K, u32> {
    /// Takes one of the number that is noted for `key`. Returns false if none is.
    pub(super) fn take_one(&mut self, key: K, now: Time) -> bool {
        let Some(noted) = self.get_mut(key, now) else { return false };
        *noted -= 1;
        if *noted == 0 {
            self.remove(key, now);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    fn recent() -> Recent<u64, u32> {
        Recent::new(Duration::from_secs(1), 100)
    }

    #[test]
    fn a_note_is_found_for_once_to_twice_its_time() {
        let mut notes = recent();
        *notes.note(1, at(5_000)) = 7;
        *notes.note(2, at(5_900)) = 8;
        assert_eq!(notes.get_mut(1, at(5_999)), Some(&mut 7));
        assert_eq!(notes.get_mut(1, at(6_100)), Some(&mut 7), "in the older generation");
        assert_eq!(notes.get_mut(2, at(6_900)), Some(&mut 8));
        assert_eq!(notes.get_mut(2, at(7_200)), None);
        assert!(notes.is_empty() && notes.bytes() == 0);
    }

    #[test]
    fn a_note_is_removed_once() {
        let mut notes = recent();
        *notes.note(1, at(0)) = 7;
        assert_eq!(notes.remove(1, at(1_500)), Some(7));
        assert_eq!(notes.remove(1, at(1_500)), None);
    }

    #[test]
    fn a_flood_of_notes_takes_bounded_memory_and_keeps_the_newest() {
        let mut notes = recent();
        for n in 0..100_000 {
            *notes.note(n, at(0)) = 1;
        }
        assert!(notes.bytes() <= 2 * 128 * (size_of::<(u64, u32)>() + 1), "{}", notes.bytes());
        assert!((99_900..100_000).all(|n| notes.get_mut(n, at(1)).is_some()));
    }
}
