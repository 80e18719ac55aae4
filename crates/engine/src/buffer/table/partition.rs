//! One partition of the table: entries are stored in chunks and found by chains of links.
//!
//! Nothing is ever moved to grow: chunks are added until the partition is full, and there are as
//! many chains as places. So the memory of a partition matches its entries, to the chunk, and a
//! resize never holds two copies.

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

/// Number of entries that are allocated together. It is small, since the last chunk of each
/// partition is half empty on average.
const CHUNK: usize = 32;

/// The largest number of entries in one partition: a [`Link`] cannot address more.
pub(super) const PARTITION_MAX: usize = u16::MAX as usize;

/// Number of idle entries that an eviction chooses from.
const IDLE_SAMPLE: usize = 8;

/// Number of entries that an eviction checks to find them; if all of these are busy, it gives up.
pub(super) const SCAN_MAX: usize = 64;

/// Entries under one lock.
///
/// ```text
///   heads   [ 3 | 0 | 1 | … ]     0 ends a chain; n is the place n - 1, and is kept in the entry
///             │       │
///   chunks  [ a → 0 | b → 0 | c → 2 | … ]     c, then b: one bucket
///                       ▲ hand: the next eviction looks from here on
/// ```
pub(super) struct Partition<V> {
    heads: Vec<Link>,
    /// All chunks except the last are full.
    chunks: Vec<Vec<Item<V>>>,
    len: usize,
    len_max: usize,
    hand: usize,
    seed: RandomState,
}

struct Item<V> {
    key: Key,
    value: V,
}

/// The place of a new entry, and the entry that was evicted for it.
type Inserted<V> = (usize, Option<(Key, V)>);

// === impl Partition ===

impl<V: Entry> Partition<V> {
    /// A partition that never allocates more than `bytes`, including itself and its lock; one entry
    /// must fit. `seed` places keys, so that chosen keys cannot be directed to chosen chains.
    pub(super) fn new(bytes: usize, seed: RandomState) -> Self {
        let (chunk, frame) = (CHUNK * Self::entry_bytes(), size_of::<Vec<Item<V>>>());
        let free = bytes.saturating_sub(size_of::<Mutex<Self>>() + frame);
        // Each chunk has a frame, including the last and partial one.
        let len_max = (free.saturating_mul(CHUNK) / (chunk + frame)).clamp(1, PARTITION_MAX);
        Self { heads: Vec::new(), chunks: Vec::new(), len: 0, len_max, hand: 0, seed }
    }

    /// Bytes of an entry: its place, and the head of a chain.
    pub(super) const fn entry_bytes() -> usize {
        size_of::<Item<V>>() + size_of::<Link>()
    }

    /// Bytes allocated at present, the partition itself and its lock included.
    pub(super) fn bytes(&self) -> usize {
        let places: usize = self.chunks.iter().map(Vec::capacity).sum();
        size_of::<Mutex<Self>>()
            + self.heads.capacity() * size_of::<Link>()
            + self.chunks.capacity() * size_of::<Vec<Item<V>>>()
            + places * size_of::<Item<V>>()
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
            let item = self.item(place);
            if item.key == key {
                return Some(place);
            }
            link = item.value.chain_link();
        }
        None
    }

    pub(super) fn value_mut(&mut self, place: usize) -> &mut V {
        &mut self.item_mut(place).value
    }

    /// Puts a key that is not in the partition on a free place.
    pub(super) fn insert(
        &mut self,
        Hashed { key, hash }: Hashed,
        make: impl FnOnce() -> V,
    ) -> Result<Inserted<V>, TableFull> {
        if self.len >= self.len_max {
            return Err(TableFull);
        }
        self.reserve().map_err(|_| TableFull)?;
        let (place, mut value) = (self.len, make());
        value.set_chain_link(self.swap_head(hash, link_to(place)));
        let Some(chunk) = self.chunks.last_mut() else { return Err(TableFull) };
        chunk.push(Item { key, value });
        self.len += 1;
        Ok((place, None))
    }

    /// Puts a key that is not in the partition on the place of an idle entry.
    pub(super) fn replace(
        &mut self,
        Hashed { key, hash }: Hashed,
        now: Time,
        make: impl FnOnce() -> V,
    ) -> Result<Inserted<V>, TableFull> {
        let place = self.find_victim(now).ok_or(TableFull)?;
        let mut value = make();
        let Item { key: old, value: leaving } = self.item(place);
        let (old, next) = (*old, leaving.chain_link());
        self.relink(old, link_to(place), next);
        value.set_chain_link(self.swap_head(hash, link_to(place)));
        let item = std::mem::replace(self.item_mut(place), Item { key, value });
        Ok((place, Some((item.key, item.value))))
    }

    /// Calls `keep` once on every entry and removes those for which it returns `false`.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(Key, &mut V) -> bool) {
        // From the end: the entry that moves to the place of a removed one has been visited
        // already.
        for place in (0..self.len).rev() {
            let Item { key, value } = self.item_mut(place);
            if !keep(*key, value) {
                self.remove(place);
            }
        }
    }

    /// Of a few entries from the hand on that are not busy: one that holds no information any more,
    /// or else the one that was used least recently. The hand moves past all entries that were
    /// checked, so that every entry gets its turn and busy ones are not checked again each time.
    fn find_victim(&mut self, now: Time) -> Option<usize> {
        let mut best: Option<((bool, Reverse<Duration>), usize)> = None;
        let mut idle = 0;
        for _ in 0..SCAN_MAX.min(self.len) {
            let place = if self.hand < self.len { self.hand } else { 0 };
            self.hand = place + 1;
            let entry = &self.item(place).value;
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

    /// Removes an entry. The last entry moves to the place that is freed.
    fn remove(&mut self, place: usize) {
        let Item { key, value } = self.item(place);
        let (key, next) = (*key, value.chain_link());
        self.relink(key, link_to(place), next);
        let last = self.len - 1;
        let moved = self.item(last).key;
        if place != last {
            self.relink(moved, link_to(last), link_to(place));
        }
        let popped = self.chunks.last_mut().and_then(Vec::pop);
        self.len = last;
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if let Some(item) = popped.filter(|_| place != last) {
            *self.item_mut(place) = item;
        }
    }

    /// Allocates room for one more entry.
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

    /// Redirects the link to `from`, on the chain of `key`, to `to`.
    fn relink(&mut self, key: Key, from: Link, to: Link) {
        let bucket = self.bucket(hash(&self.seed, key));
        let mut link = self.heads[bucket];
        if link == from {
            self.heads[bucket] = to;
            return;
        }
        while let Some(place) = place_of(link) {
            link = self.item(place).value.chain_link();
            if link == from {
                self.item_mut(place).value.set_chain_link(to);
                return;
            }
        }
        invariant::check(false, "every entry of the buffer table is on the chain of its key");
    }

    /// Makes `link` the head of a key's chain; returns the previous head, which has to come next.
    fn swap_head(&mut self, hash: u64, link: Link) -> Link {
        let bucket = self.bucket(hash);
        std::mem::replace(&mut self.heads[bucket], link)
    }

    /// The chain of a key, chosen by the low half of its hash: the high half chose the partition.
    #[allow(clippy::cast_possible_truncation, reason = "the product is below the count of heads")]
    fn bucket(&self, hash: u64) -> usize {
        let low = hash & u64::from(u32::MAX);
        ((low * self.heads.len() as u64) >> 32) as usize
    }

    fn item(&self, place: usize) -> &Item<V> {
        &self.chunks[place / CHUNK][place % CHUNK]
    }

    fn item_mut(&mut self, place: usize) -> &mut Item<V> {
        &mut self.chunks[place / CHUNK][place % CHUNK]
    }
}

/// Converts a place to a link. It fits, since there are at most [`PARTITION_MAX`] places.
#[allow(clippy::cast_possible_truncation, reason = "a partition has at most PARTITION_MAX places")]
fn link_to(place: usize) -> Link {
    Link(place as u16 + 1)
}

fn place_of(link: Link) -> Option<usize> {
    usize::from(link.0).checked_sub(1)
}
