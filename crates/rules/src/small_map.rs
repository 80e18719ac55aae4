//! A map from text that usually has a handful of entries, but may have many.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use crate::memory::Memory;

/// A map from text, hashed with a seed that is random for each process.
pub(crate) type TextMap<T> = HashMap<Box<str>, T, RandomState>;

/// Up to this many entries are compared one by one, which is faster than hashing.
const FEW_MAX: usize = 8;

/// Entries by their text.
#[derive(Debug)]
pub(crate) struct SmallMap<T> {
    few: Vec<(Box<str>, T)>,
    /// All entries, once there are more than `FEW_MAX`.
    many: TextMap<T>,
}

// === impl SmallMap ===

impl<T> SmallMap<T> {
    #[inline]
    pub(crate) fn get(&self, text: &str) -> Option<&T> {
        if self.many.is_empty() {
            return self.few.iter().find_map(|(known, entry)| (**known == *text).then_some(entry));
        }
        self.many.get(text)
    }

    pub(crate) fn get_mut(&mut self, text: &str) -> Option<&mut T> {
        if self.many.is_empty() {
            let found = self.few.iter_mut().find(|(known, _)| **known == *text);
            return found.map(|(_, entry)| entry);
        }
        self.many.get_mut(text)
    }

    /// Takes the memory of an entry that is to be added.
    pub(crate) fn take_room(&self, text: &str, memory: &Memory) -> Option<()> {
        memory.take_box(text.len())?;
        match self.few.len() {
            0..FEW_MAX if self.many.is_empty() => memory.take_growth(&self.few),
            few => {
                let size = (self.many.len(), self.many.capacity());
                memory.take_table(size, size_of::<(Box<str>, T)>(), few + 1)
            }
        }
    }

    /// Adds an entry, which must not be there yet.
    pub(crate) fn insert(&mut self, text: Box<str>, entry: T) {
        if self.many.is_empty() && self.few.len() < FEW_MAX {
            self.few.push((text, entry));
            return;
        }
        self.many.extend(self.few.drain(..));
        self.many.insert(text, entry);
    }

    /// Releases unused capacity where that saves a considerable part.
    pub(crate) fn shrink(&mut self) {
        self.few.shrink_to_fit();
    }

    /// The entries with their texts, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &T)> {
        let few = self.few.iter().map(|(text, entry)| (&**text, entry));
        few.chain(self.many.iter().map(|(text, entry)| (&**text, entry)))
    }

    /// The entries, in no order.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.few.iter_mut().map(|(_, entry)| entry).chain(self.many.values_mut())
    }

    /// The texts, in no order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.iter().map(|(text, _)| text)
    }
}

impl<T> Default for SmallMap<T> {
    fn default() -> Self {
        Self { few: Vec::new(), many: TextMap::default() }
    }
}

/// Builds the map from entries whose texts must differ.
impl<T> FromIterator<(Box<str>, T)> for SmallMap<T> {
    fn from_iter<I: IntoIterator<Item = (Box<str>, T)>>(entries: I) -> Self {
        let mut made = Self::default();
        entries.into_iter().for_each(|(text, entry)| made.insert(text, entry));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_inserted_entry_is_found() {
        for count in [0, 1, FEW_MAX, FEW_MAX + 1, 100] {
            let texts: Vec<String> = (0..count).map(|at| format!("key-{at}")).collect();
            let mut map: SmallMap<usize> =
                texts.iter().enumerate().map(|(at, text)| (text.as_str().into(), at)).collect();
            for (at, text) in texts.iter().enumerate() {
                assert_eq!(map.get(text), Some(&at));
                *map.get_mut(text).unwrap() += 1;
                assert_eq!(map.get(text), Some(&(at + 1)));
            }
            assert_eq!(map.get("other"), None);
            assert_eq!(map.get_mut(""), None);
            assert_eq!(map.keys().count(), count);
        }
    }
}
