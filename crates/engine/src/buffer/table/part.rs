//! One part of the table: entries side by side in chunks, found by chains of links.
//!
//! Nothing here ever moves to grow: chunks are added until the part is full, and the chains are as
//! many as there are places. So a part costs what its entries do, to the chunk, and no moment
//! between two sizes costs both.

use std::cmp::Reverse;
use std::collections::TryReserveError;
use std::mem::size_of;
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use super::{Entry, Hashed, Link, TableFull, hash};
use crate::invariant;
use crate::time::Time;

/// Entries that are allocated together. Few, since the last chunk of each part lies half empty.
const CHUNK: usize = 32;

/// Entries of one part: a [`Link`] can name no more.
pub(super) const PART_MAX: usize = u16::MAX as usize;

/// Idle entries that an eviction chooses from.
const IDLE_SAMPLE: usize = 8;

/// Entries that an eviction looks at to find them: past so many busy ones it gives up.
pub(super) const LOOKS_MAX: usize = 64;

/// Entries under one lock.
///
/// ```text
///   heads   [ 3 | 0 | 1 | … ]     0 ends a chain; n is the place n - 1, and is kept in the entry
///             │       │
///   chunks  [ a → 0 | b → 0 | c → 2 | … ]     c, then b: one bucket
///                       ▲ hand: the next eviction looks from here on
/// ```
pub(super) struct Part<V> {
    heads: Vec<Link>,
    /// All but the last are full.
    chunks: Vec<Vec<Held<V>>>,
    len: usize,
    len_max: usize,
    hand: usize,
    seed: RandomState,
}

struct Held<V> {
    key: Key,
    value: V,
}

/// Where an entry was put, and whose place it took.
type Admitted<V> = (usize, Option<(Key, V)>);

// === impl Part ===

impl<V: Entry> Part<V> {
    /// A part that never allocates more than `bytes`, itself and its lock included; one entry must
    /// fit. `seed` places keys, so that nobody who chooses keys can choose their chains.
    pub(super) fn new(bytes: usize, seed: RandomState) -> Self {
        let (chunk, frame) = (CHUNK * Self::entry_bytes(), size_of::<Vec<Held<V>>>());
        let free = bytes.saturating_sub(size_of::<Mutex<Self>>() + frame);
        // Each chunk, the last and partial one too, has a frame.
        let len_max = (free.saturating_mul(CHUNK) / (chunk + frame)).clamp(1, PART_MAX);
        Self { heads: Vec::new(), chunks: Vec::new(), len: 0, len_max, hand: 0, seed }
    }

    /// Bytes of an entry: its place, and the head of a chain.
    pub(super) const fn entry_bytes() -> usize {
        size_of::<Held<V>>() + size_of::<Link>()
    }

    /// Bytes allocated at present, the part itself and its lock included.
    pub(super) fn bytes(&self) -> usize {
        let places: usize = self.chunks.iter().map(Vec::capacity).sum();
        size_of::<Mutex<Self>>()
            + self.heads.capacity() * size_of::<Link>()
            + self.chunks.capacity() * size_of::<Vec<Held<V>>>()
            + places * size_of::<Held<V>>()
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn len_max(&self) -> usize {
        self.len_max
    }

    /// The place of a key.
    pub(super) fn find(&self, Hashed { key, hash }: Hashed) -> Option<usize> {
        let mut link = *self.heads.get(self.bucket(hash))?;
        while let Some(place) = place_of(link) {
            let held = self.held(place);
            if held.key == key {
                return Some(place);
            }
            link = held.value.next();
        }
        None
    }

    pub(super) fn value_mut(&mut self, place: usize) -> &mut V {
        &mut self.held_mut(place).value
    }

    /// Puts a key that is not here on a free place.
    pub(super) fn insert(
        &mut self,
        Hashed { key, hash }: Hashed,
        make: impl FnOnce() -> V,
    ) -> Result<Admitted<V>, TableFull> {
        if self.len >= self.len_max {
            return Err(TableFull);
        }
        self.reserve().map_err(|_| TableFull)?;
        let (place, mut value) = (self.len, make());
        value.set_next(self.swap_head(hash, link_to(place)));
        let Some(chunk) = self.chunks.last_mut() else { return Err(TableFull) };
        chunk.push(Held { key, value });
        self.len += 1;
        Ok((place, None))
    }

    /// Puts a key that is not here on the place of an idle one.
    pub(super) fn replace(
        &mut self,
        Hashed { key, hash }: Hashed,
        now: Time,
        make: impl FnOnce() -> V,
    ) -> Result<Admitted<V>, TableFull> {
        let place = self.idlest(now).ok_or(TableFull)?;
        let mut value = make();
        let Held { key: old, value: leaving } = self.held(place);
        let (old, next) = (*old, leaving.next());
        self.repoint(old, link_to(place), next);
        value.set_next(self.swap_head(hash, link_to(place)));
        let held = std::mem::replace(self.held_mut(place), Held { key, value });
        Ok((place, Some((held.key, held.value))))
    }

    /// Shows every entry once and removes those that `keep` answers `false` for.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Key, &mut V) -> bool) {
        // From the end: what takes the place of a removed one has been seen.
        for place in (0..self.len).rev() {
            let Held { key, value } = self.held_mut(place);
            if !keep(*key, value) {
                self.remove(place);
            }
        }
    }

    /// Of a few entries from the hand on that nobody waits on: one that says nothing any more, or
    /// else the one that was used least recently. The hand moves past whatever was looked at, so
    /// that every entry gets its turn and busy ones are not looked at again each time.
    fn idlest(&mut self, now: Time) -> Option<usize> {
        let mut best: Option<((bool, Reverse<Duration>), usize)> = None;
        let mut idle = 0;
        for _ in 0..LOOKS_MAX.min(self.len) {
            let place = if self.hand < self.len { self.hand } else { 0 };
            self.hand = place + 1;
            let entry = &self.held(place).value;
            if entry.is_busy() {
                continue;
            }
            let rank = (entry.is_live(now), Reverse(entry.idle_for(now)));
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, place));
            }
            idle += 1;
            if idle == IDLE_SAMPLE {
                break;
            }
        }
        best.map(|(_, place)| place)
    }

    /// The last entry moves to the place that is freed.
    fn remove(&mut self, place: usize) {
        let Held { key, value } = self.held(place);
        let (key, next) = (*key, value.next());
        self.repoint(key, link_to(place), next);
        let last = self.len - 1;
        let moved = self.held(last).key;
        if place != last {
            self.repoint(moved, link_to(last), link_to(place));
        }
        let popped = self.chunks.last_mut().and_then(Vec::pop);
        self.len = last;
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if let Some(held) = popped.filter(|_| place != last) {
            *self.held_mut(place) = held;
        }
    }

    /// Makes room for one more.
    fn reserve(&mut self) -> Result<(), TryReserveError> {
        if self.heads.is_empty() {
            self.chunks.try_reserve_exact(self.len_max.div_ceil(CHUNK))?;
            self.heads.try_reserve_exact(self.len_max)?;
            self.heads.resize(self.len_max, Link::default());
        }
        if self.len == self.chunks.len() * CHUNK {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK.min(self.len_max - self.len))?;
            self.chunks.push(chunk);
        }
        Ok(())
    }

    /// Turns the link to `from`, on the chain of `key`, to `to`.
    fn repoint(&mut self, key: Key, from: Link, to: Link) {
        let bucket = self.bucket(hash(&self.seed, key));
        let mut link = self.heads[bucket];
        if link == from {
            self.heads[bucket] = to;
            return;
        }
        while let Some(place) = place_of(link) {
            link = self.held(place).value.next();
            if link == from {
                self.held_mut(place).value.set_next(to);
                return;
            }
        }
        invariant::check(false, "every entry of the buffer table is on the chain of its key");
    }

    /// Begins the chain of a key with `link`; what it began with comes next.
    fn swap_head(&mut self, hash: u64, link: Link) -> Link {
        let bucket = self.bucket(hash);
        std::mem::replace(&mut self.heads[bucket], link)
    }

    /// The chain that a key is on, by the low half of its hash: the high one chose the part.
    #[allow(clippy::cast_possible_truncation, reason = "the product is below the count of heads")]
    fn bucket(&self, hash: u64) -> usize {
        let low = hash & u64::from(u32::MAX);
        ((low * self.heads.len() as u64) >> 32) as usize
    }

    fn held(&self, place: usize) -> &Held<V> {
        &self.chunks[place / CHUNK][place % CHUNK]
    }

    fn held_mut(&mut self, place: usize) -> &mut Held<V> {
        &mut self.chunks[place / CHUNK][place % CHUNK]
    }
}

/// Places fit: there are at most [`PART_MAX`].
#[allow(clippy::cast_possible_truncation, reason = "a part has at most PART_MAX places")]
fn link_to(place: usize) -> Link {
    Link(place as u16 + 1)
}

fn place_of(link: Link) -> Option<usize> {
    usize::from(link.0).checked_sub(1)
}
