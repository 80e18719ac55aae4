//! A map from keys to whatever is kept for each, within a budget of bytes, split so that threads
//! seldom meet.

mod part;

use std::hash::BuildHasher;
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use crate::time::Time;
use part::Part;

/// Bytes of one part: some 2600 entries, few enough to be swept under one lock.
const PART_BYTES: usize = 256 * 1024;

/// Parts at most; of a budget of more than 1 GiB they are larger, up to what links can name: some
/// 25 GiB in all.
const PARTS_MAX: usize = 4096;

/// The part of the budget for entries aside: a sixteenth, and no more than for so many entries.
const ASIDE_DIVISOR: usize = 16;
const ASIDE_MAX: usize = 1024;

/// A map from [`Key`] to `V` that never allocates more than its budget.
///
/// Counted are the places of entries, used or not, the links that find them, and this struct with
/// its locks; not what the allocator rounds up. What entries hold on the heap ([`Entry::heap`]) has
/// a ceiling of its own beside the budget: it belongs to requests under way, not to keys.
///
/// A full table takes the place of an idle entry for a new key. Entries *aside* take no part in
/// that: they are few, and whoever fills the table cannot push them out.
pub struct Table<V> {
    parts: Box<[Mutex<Part<V>>]>,
    aside: Mutex<Part<V>>,
    heap: Heap,
    seed: RandomState,
    evictions: AtomicU64,
}

/// What the table needs to know of an entry.
pub trait Entry {
    /// How long it has not been used.
    fn idle_for(&self, now: Time) -> Duration;
    /// Somebody waits on it: it must stay.
    fn is_busy(&self) -> bool;
    /// Whether it says anything still: one that does not is the first to go.
    fn is_live(&self, now: Time) -> bool;
    /// Bytes that it holds on the heap.
    fn heap(&self) -> usize;
    /// Gives up what it holds on the heap and can do without: there is no room for it.
    fn shed(&mut self);
    /// The link that was set last; the default one at first.
    fn next(&self) -> Link;
    /// Keeps a link of the table's: beside the entry it would take eight bytes, by alignment.
    fn set_next(&mut self, next: Link);
}

/// Where the table finds the next entry of a chain. Of no meaning elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link(u16);

/// Where an entry is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seat {
    /// With all the others, until somebody needs the place.
    Common,
    /// Aside, until it is removed.
    Aside,
}

/// There is no room: every entry that was looked at is busy, or too much lies on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

/// A key with its hash under the table's seed.
#[derive(Clone, Copy)]
struct Hashed {
    key: Key,
    hash: u64,
}

/// What entries hold on the heap, in bytes.
struct Heap {
    held: AtomicUsize,
    max: usize,
}

// === impl Table ===

impl<V: Entry> Table<V> {
    /// A table that allocates `budget` bytes at most, and whose entries hold `heap_max` at most. It
    /// allocates as it fills. One entry fits in any case, and one aside.
    pub fn new(budget: usize, heap_max: usize) -> Self {
        let seed = RandomState::default();
        let aside = (budget / ASIDE_DIVISOR).min(ASIDE_MAX * Part::<V>::entry_bytes());
        let rest = budget.saturating_sub(size_of::<Self>() + aside);
        let count = (rest / PART_BYTES).clamp(1, PARTS_MAX);
        let part = |bytes| Mutex::new(Part::new(bytes, seed.clone()));
        Self {
            parts: (0..count).map(|_| part(rest / count)).collect(),
            aside: part(aside),
            heap: Heap { held: AtomicUsize::new(0), max: heap_max },
            seed,
            evictions: AtomicU64::new(0),
        }
    }

    /// Runs `visit` on the entry of `key`, made by `make` if there is none. If that took the place
    /// of another, the other is returned so that its tokens can be given back.
    ///
    /// `visit` may add `room` bytes to what the entry holds on the heap; what it adds beyond that
    /// may be shed again ([`Entry::shed`]), so that there is always room for others'. It runs under
    /// the lock of a part: it must be short and must not come back to the table. The work is
    /// bounded: a key is found on its chain, of two entries or so, and an eviction looks at 64
    /// entries at most.
    ///
    /// # Errors
    ///
    /// There is no room; nothing has changed then, and `visit` has not run.
    pub fn with<R>(
        &self,
        (seat, key): (Seat, Key),
        now: Time,
        room: usize,
        make: impl FnOnce() -> V,
        visit: impl FnOnce(&mut V) -> R,
    ) -> Result<(R, Option<(Key, V)>), TableFull> {
        let hashed = Hashed { key, hash: self.hash(key) };
        let mut part = match seat {
            Seat::Common => self.part(hashed).lock(),
            Seat::Aside => self.aside.lock(),
        };
        self.heap.reserve(room, self.heap.max)?;
        let found = part.find(hashed);
        let admitted = match found {
            Some(place) => Ok((place, None)),
            None if seat == Seat::Aside || part.len() < part.len_max() => part.insert(hashed, make),
            None => part.replace(hashed, now, make),
        };
        let Ok((place, evicted)) = admitted else {
            self.heap.settle(room, 0);
            return Err(TableFull);
        };
        let entry = part.value_mut(place);
        let counted = if found.is_some() { entry.heap() } else { 0 };
        let visited = self.visit(entry, counted + room, visit);
        drop(part);
        if let Some((_, evicted)) = &evicted {
            self.heap.settle(evicted.heap(), 0);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
        Ok((visited, evicted))
    }

    /// Runs `visit` on the entry of `key` if there is one, wherever it is kept. What it adds on the
    /// heap may be shed again ([`Entry::shed`]).
    pub fn with_existing<R>(&self, key: Key, visit: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hashed = Hashed { key, hash: self.hash(key) };
        for part in [self.part(hashed), &self.aside] {
            let mut part = part.lock();
            if let Some(place) = part.find(hashed) {
                let entry = part.value_mut(place);
                return Some(self.visit(entry, entry.heap(), visit));
            }
        }
        None
    }

    /// The parts, for [`Table::retain`]; the last is what is kept aside.
    pub fn parts(&self) -> Range<usize> {
        0..self.parts.len() + 1
    }

    /// Shows every entry of a part to `keep` and removes those it answers `false` for.
    pub fn retain(&self, part: usize, mut keep: impl FnMut(Key, &mut V) -> bool) {
        self.parts.get(part).unwrap_or(&self.aside).lock().retain(|key, entry| {
            let held = entry.heap();
            let kept = keep(key, entry);
            self.heap.settle(held, if kept { entry.heap() } else { 0 });
            kept
        });
    }

    /// Entries at present.
    pub fn len(&self) -> usize {
        self.all().map(|part| part.lock().len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Entries at most.
    pub fn len_max(&self) -> usize {
        self.all().map(|part| part.lock().len_max()).sum()
    }

    /// Bytes allocated at present, of the budget.
    pub fn bytes(&self) -> usize {
        let parts: usize = self.all().map(|part| part.lock().bytes()).sum();
        size_of::<Self>() + parts
    }

    /// Bytes that entries hold on the heap at present.
    pub fn heap_bytes(&self) -> usize {
        self.heap.held.load(Ordering::Relaxed)
    }

    /// Entries whose place another took, since the table was made.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// What an entry takes on the heap beyond what was counted for it, it keeps if there is room.
    fn visit<R>(&self, entry: &mut V, mut counted: usize, visit: impl FnOnce(&mut V) -> R) -> R {
        let visited = visit(entry);
        if let Some(grown) = entry.heap().checked_sub(counted).filter(|grown| *grown > 0) {
            match self.heap.reserve(grown, self.heap.max / 2) {
                Ok(()) => counted += grown,
                Err(TableFull) => entry.shed(),
            }
        }
        self.heap.settle(counted, entry.heap());
        visited
    }

    fn all(&self) -> impl Iterator<Item = &Mutex<Part<V>>> {
        self.parts.iter().chain([&self.aside])
    }

    fn hash(&self, key: Key) -> u64 {
        hash(&self.seed, key)
    }

    /// The part of a key, by the high half of its hash.
    #[allow(clippy::cast_possible_truncation, reason = "the product is below the count of parts")]
    fn part(&self, hashed: Hashed) -> &Mutex<Part<V>> {
        let high = hashed.hash >> 32;
        &self.parts[((high * self.parts.len() as u64) >> 32) as usize]
    }
}

/// A key is a uniform hash already, but under a secret that others may know: whoever does could
/// choose the high bits of many. Half of it is enough to spread keys, and keys that share that half
/// cost 2^32 trials a pair.
fn hash(seed: &RandomState, key: Key) -> u64 {
    seed.hash_one(key.bits())
}

// === impl Heap ===

impl Heap {
    /// Counts `bytes` more as held, unless that makes more than `max`.
    fn reserve(&self, bytes: usize, max: usize) -> Result<(), TableFull> {
        if bytes == 0 {
            return Ok(());
        }
        let (relaxed, grown) = (Ordering::Relaxed, |held: usize| held.saturating_add(bytes));
        let fits = |held| Some(grown(held)).filter(|grown| *grown <= max);
        self.held.fetch_update(relaxed, relaxed, fits).map_or(Err(TableFull), |_| Ok(()))
    }

    /// What counted as `before` comes to `after`.
    fn settle(&self, before: usize, after: usize) {
        if before > after {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        } else if after > before {
            self.held.fetch_add(after - before, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
