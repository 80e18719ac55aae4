//! A map from keys to entries within a budget of bytes, split into partitions so that threads
//! seldom contend.

use std::cmp::Reverse;
use std::collections::TryReserveError;
use std::hash::BuildHasher;
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use crate::invariant;
use crate::time::Time;

/// Size of one partition in bytes: some 2450 entries, few enough to be swept under one lock.
const PARTITION_BYTES: usize = 256 * 1024;

/// The largest number of partitions. With a budget of more than 1 GiB the partitions are larger, up
/// to what links can address: some 25 GiB in all.
const PARTITIONS_MAX: usize = 4096;

/// The entries of the reserved region may take the budget divided by this, up to [`RESERVED_MAX`]
/// entries.
const RESERVED_DIVISOR: usize = 16;

/// The largest number of entries in the reserved region.
const RESERVED_MAX: usize = 1024;

/// A map from [`Key`] to `V` that never allocates more than its budget.
///
/// The budget covers the memory of all entries, used or not, the links that find them, and this
/// struct with its locks, but not the bytes by which the allocator rounds up. The heap memory of
/// entries ([`Entry::heap`]) has a separate limit in addition to the budget, since it belongs to
/// requests in progress and not to keys.
///
/// A full table reuses the entry of an idle key for a new key. Entries of the *reserved* region
/// are never evicted in this way: they are few, and keys that fill the table cannot displace them.
pub struct Table<V> {
    partitions: Box<[Locked<V>]>,
    reserved: Locked<V>,
    heap: Heap,
    seed: RandomState,
    evictions: AtomicU64,
}

/// The interface of an entry to the table.
pub trait Entry {
    /// How long the entry has not been used.
    fn idle_for(&self, now: Time) -> Duration;
    /// Whether requests or asks depend on the entry, so that it must stay.
    fn is_busy(&self) -> bool;
    /// Whether the entry still holds information: one that does not is evicted first.
    fn is_live(&self, now: Time) -> bool;
    /// Bytes that the entry holds on the heap.
    fn heap(&self) -> usize;
    /// Frees heap memory that the entry can do without, when there is no room for it.
    fn shed(&mut self);
    /// The link that was set last; at first the default one.
    fn chain_link(&self) -> Link;
    /// Stores a link of the table: beside the entry it would take eight bytes because of alignment.
    fn set_chain_link(&mut self, next: Link);
}

/// Points to the next entry of a chain. It has no meaning outside the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Link(u16);

/// The region of the table that an entry belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Region {
    /// With all the others, until it is needed for another key.
    Evictable,
    /// Among the few that stay until they are removed.
    Reserved,
}

/// There is no room: every entry that was checked is busy, or too much is on the heap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableFull;

/// A key with its hash under the table's seed.
#[derive(Clone, Copy)]
struct Hashed {
    key: Key,
    hash: u64,
}

/// The heap memory of all entries, in bytes.
struct Heap {
    held: AtomicUsize,
    max: usize,
}

// === impl Table ===

impl<V: Entry> Table<V> {
    /// A table that allocates at most `budget` bytes, and whose entries hold at most `heap_max`
    /// bytes. It allocates as it fills. One entry of each region always fits.
    pub fn new(budget: usize, heap_max: usize) -> Self {
        let seed = RandomState::default();
        let reserved =
            (budget / RESERVED_DIVISOR).min(RESERVED_MAX * Partition::<V>::entry_bytes());
        let rest = budget.saturating_sub(size_of::<Self>() + reserved);
        let count = (rest / PARTITION_BYTES).clamp(1, PARTITIONS_MAX);
        let partition = |bytes| Locked(Mutex::new(Partition::new(bytes, seed.clone())));
        Self {
            partitions: (0..count).map(|_| partition(rest / count)).collect(),
            reserved: partition(reserved),
            heap: Heap { held: AtomicUsize::new(0), max: heap_max },
            seed,
            evictions: AtomicU64::new(0),
        }
    }

    /// Runs `visit` on the entry of `key`, which `make` makes if there is none. If the new entry
    /// evicts another, the other is returned so that its tokens can be given back.
    ///
    /// `visit` may add `room` bytes to the heap memory of the entry; anything beyond that may be
    /// shed again ([`Entry::shed`]), so that there is always room for other entries. `visit` runs
    /// under the lock of a partition: it must be short and must not call the table. The work is
    /// bounded: a key is found on its chain of about two entries, an eviction checks at most 64
    /// entries, and some ten times in the life of a partition an insert links its entries again.
    ///
    /// # Errors
    ///
    /// There is no room. Then nothing has changed, and `visit` has not run.
    pub fn with<R>(
        &self,
        (region, key): (Region, Key),
        now: Time,
        room: usize,
        make: impl FnOnce() -> V,
        visit: impl FnOnce(&mut V) -> R,
    ) -> Result<(R, Option<(Key, V)>), TableFull> {
        let hashed = Hashed { key, hash: self.hash(key) };
        let mut partition = match region {
            Region::Evictable => self.partition(hashed).lock(),
            Region::Reserved => self.reserved.0.lock(),
        };
        self.heap.reserve(room, self.heap.max)?;
        let found = partition.find(hashed);
        let admitted = match found {
            Some(index) => Ok((index, None)),
            None if region == Region::Reserved || partition.len() < partition.len_max() => {
                partition.insert(hashed, make)
            }
            None => partition.replace(hashed, now, make),
        };
        let Ok((index, evicted)) = admitted else {
            self.heap.correct(room, 0);
            return Err(TableFull);
        };
        let entry = partition.value_mut(index);
        let counted = if found.is_some() { entry.heap() } else { 0 };
        let visited = self.visit(entry, counted + room, visit);
        drop(partition);
        if let Some((_, evicted)) = &evicted {
            self.heap.correct(evicted.heap(), 0);
            self.evictions.fetch_add(1, Ordering::Relaxed);
        }
        Ok((visited, evicted))
    }

    /// Runs `visit` on the entry of `key` if there is one, in either region. Heap memory that it
    /// adds may be shed again ([`Entry::shed`]).
    pub fn with_existing<R>(&self, key: Key, visit: impl FnOnce(&mut V) -> R) -> Option<R> {
        let hashed = Hashed { key, hash: self.hash(key) };
        for partition in [self.partition(hashed), &self.reserved.0] {
            let mut partition = partition.lock();
            if let Some(index) = partition.find(hashed) {
                let entry = partition.value_mut(index);
                return Some(self.visit(entry, entry.heap(), visit));
            }
        }
        None
    }

    /// The numbers of the partitions, for [`Table::retain`]; the last one holds the entries in the
    /// reserved region.
    pub fn partitions(&self) -> Range<usize> {
        0..self.partitions.len() + 1
    }

    /// Calls `keep` on every entry of a partition and removes those for which it returns `false`.
    pub fn retain(&self, partition: usize, mut keep: impl FnMut(Key, &mut V) -> bool) {
        self.partitions.get(partition).unwrap_or(&self.reserved).0.lock().retain(|key, entry| {
            let held = entry.heap();
            let kept = keep(key, entry);
            self.heap.correct(held, if kept { entry.heap() } else { 0 });
            kept
        });
    }

    /// Number of entries at present.
    pub fn len(&self) -> usize {
        self.all().map(|partition| partition.lock().len()).sum()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The largest number of entries.
    pub fn len_max(&self) -> usize {
        self.all().map(|partition| partition.lock().len_max()).sum()
    }

    /// Bytes of the budget that are allocated at present.
    pub fn bytes(&self) -> usize {
        let partitions: usize = self.all().map(|partition| partition.lock().bytes()).sum();
        size_of::<Self>() + partitions
    }

    /// Bytes that entries hold on the heap at present.
    pub fn heap_bytes(&self) -> usize {
        self.heap.held.load(Ordering::Relaxed)
    }

    /// Number of entries that were evicted since the table was made.
    pub fn evictions(&self) -> u64 {
        self.evictions.load(Ordering::Relaxed)
    }

    /// Runs `visit`. The entry keeps heap memory beyond the bytes counted for it if there is room.
    fn visit<R>(&self, entry: &mut V, mut counted: usize, visit: impl FnOnce(&mut V) -> R) -> R {
        let visited = visit(entry);
        if let Some(grown) = entry.heap().checked_sub(counted).filter(|grown| *grown > 0) {
            match self.heap.reserve(grown, self.heap.max / 2) {
                Ok(()) => counted += grown,
                Err(TableFull) => entry.shed(),
            }
        }
        self.heap.correct(counted, entry.heap());
        visited
    }

    fn all(&self) -> impl Iterator<Item = &Mutex<Partition<V>>> {
        self.partitions.iter().chain([&self.reserved]).map(|Locked(partition)| partition)
    }

    fn hash(&self, key: Key) -> u64 {
        hash(&self.seed, key)
    }

    /// The partition of a key, chosen by the high half of its hash.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the product is below the count of partitions"
    )]
    fn partition(&self, hashed: Hashed) -> &Mutex<Partition<V>> {
        let high = hashed.hash >> 32;
        &self.partitions[((high * self.partitions.len() as u64) >> 32) as usize].0
    }
}

/// A key is a uniform hash already, but its secret may be known to others, who could then choose
/// the high bits of many keys. Half of the key is enough to spread keys, and finding two keys that
/// share that half takes 2^32 trials.
fn hash(seed: &RandomState, key: Key) -> u64 {
    seed.hash_one(key.bits())
}

// === impl Heap ===

impl Heap {
    /// Counts `bytes` more as held, unless the total would exceed `max`.
    fn reserve(&self, bytes: usize, max: usize) -> Result<(), TableFull> {
        if bytes == 0 {
            return Ok(());
        }
        let relaxed = Ordering::Relaxed;
        let fits = |held: usize| Some(held.saturating_add(bytes)).filter(|held| *held <= max);
        self.held.fetch_update(relaxed, relaxed, fits).map_or(Err(TableFull), |_| Ok(()))
    }

    /// Corrects a count of `before` bytes to `after`.
    fn correct(&self, before: usize, after: usize) {
        if before > after {
            self.held.fetch_sub(before - after, Ordering::Relaxed);
        } else if after > before {
            self.held.fetch_add(after - before, Ordering::Relaxed);
        }
    }
}

// One partition of the table: entries are stored in chunks and found by chains of links.
//
// No entry is ever moved to grow: chunks are added until the partition is full. Chains are added
// too, so that there is one for each entry at least, and that the chains of few keys lie close
// together in the caches of the CPU. So the memory of a partition matches its entries; chains stay
// when entries go.

/// Number of entries that are allocated together. It is small, since the last chunk of each
/// partition is half empty on average.
const CHUNK: usize = 32;

/// The largest number of entries in one partition: a [`Link`] cannot address more.
const PARTITION_MAX: usize = u16::MAX as usize;

/// Number of idle entries that an eviction chooses from.
const IDLE_SAMPLE: usize = 8;

/// Number of entries that an eviction checks to find them; if all of these are busy, it gives up.
const SCAN_MAX: usize = 64;

/// A partition with its lock, on cache lines of its own.
#[repr(align(64))]
struct Locked<V>(Mutex<Partition<V>>);

/// Entries under one lock.
///
/// ```text
///   heads   [ 3 | 0 | 1 | … ]     0 ends a chain; n is the index n - 1, and is kept in the entry
///             │       │
///   chunks  [ a → 0 | b → 0 | c → 2 | … ]     c, then b: one bucket
///                       ▲ hand: the next eviction looks from here on
/// ```
struct Partition<V> {
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

/// The index of a new entry, and the entry that was evicted for it.
type Inserted<V> = (usize, Option<(Key, V)>);

// === impl Partition ===

impl<V: Entry> Partition<V> {
    /// A partition that never allocates more than `bytes`, including itself and its lock; one entry
    /// must fit. `seed` distributes keys, so that chosen keys cannot be directed to chosen chains.
    fn new(bytes: usize, seed: RandomState) -> Self {
        let chunk = CHUNK * Self::entry_bytes();
        let frame = size_of::<Vec<Item<V>>>();
        let free = bytes.saturating_sub(size_of::<Locked<V>>() + frame);
        // Each chunk has a frame, including the last and partial one.
        let len_max = (free.saturating_mul(CHUNK) / (chunk + frame)).clamp(1, PARTITION_MAX);
        Self { heads: Vec::new(), chunks: Vec::new(), len: 0, len_max, hand: 0, seed }
    }

    /// Bytes of an entry, and of the head of a chain.
    const fn entry_bytes() -> usize {
        size_of::<Item<V>>() + size_of::<Link>()
    }

    /// Bytes allocated at present, the partition itself and its lock included.
    fn bytes(&self) -> usize {
        let indexes: usize = self.chunks.iter().map(Vec::capacity).sum();
        size_of::<Locked<V>>()
            + self.heads.capacity() * size_of::<Link>()
            + self.chunks.capacity() * size_of::<Vec<Item<V>>>()
            + indexes * size_of::<Item<V>>()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn len_max(&self) -> usize {
        self.len_max
    }

    /// The index of a key.
    fn find(&self, Hashed { key, hash }: Hashed) -> Option<usize> {
        let mut link = *self.heads.get(self.bucket(hash))?;
        while let Some(index) = index_of(link) {
            let item = self.item(index);
            if item.key == key {
                return Some(index);
            }
            link = item.value.chain_link();
        }
        None
    }

    fn value_mut(&mut self, index: usize) -> &mut V {
        &mut self.item_mut(index).value
    }

    /// Puts a key that is not in the partition at a free index.
    fn insert(
        &mut self,
        Hashed { key, hash }: Hashed,
        make: impl FnOnce() -> V,
    ) -> Result<Inserted<V>, TableFull> {
        if self.len >= self.len_max {
            return Err(TableFull);
        }
        self.reserve().map_err(|_| TableFull)?;
        let index = self.len;
        let mut value = make();
        value.set_chain_link(self.swap_head(hash, link_to(index)));
        let Some(chunk) = self.chunks.last_mut() else { return Err(TableFull) };
        chunk.push(Item { key, value });
        self.len += 1;
        Ok((index, None))
    }

    /// Puts a key that is not in the partition at the index of an idle entry.
    fn replace(
        &mut self,
        Hashed { key, hash }: Hashed,
        now: Time,
        make: impl FnOnce() -> V,
    ) -> Result<Inserted<V>, TableFull> {
        let index = self.find_victim(now).ok_or(TableFull)?;
        let mut value = make();
        let Item { key: old, value: leaving } = self.item(index);
        let old = *old;
        let next = leaving.chain_link();
        self.relink(old, link_to(index), next);
        value.set_chain_link(self.swap_head(hash, link_to(index)));
        let item = std::mem::replace(self.item_mut(index), Item { key, value });
        Ok((index, Some((item.key, item.value))))
    }

    /// Calls `keep` once on every entry and removes those for which it returns `false`.
    fn retain(&mut self, mut keep: impl FnMut(Key, &mut V) -> bool) {
        // From the end: the entry that moves to the index of a removed one has been visited
        // already.
        for index in (0..self.len).rev() {
            let Item { key, value } = self.item_mut(index);
            if !keep(*key, value) {
                self.remove(index);
            }
        }
    }

    /// Finds the entry to evict, among a few entries from the hand on that are not busy: one that
    /// holds no information any more, or else the one that was used least recently. The hand moves
    /// past all entries that were checked, so that every entry gets its turn and busy ones are not
    /// checked again each time.
    fn find_victim(&mut self, now: Time) -> Option<usize> {
        let mut best: Option<((bool, Reverse<Duration>), usize)> = None;
        let mut idle = 0;
        for _ in 0..SCAN_MAX.min(self.len) {
            let index = if self.hand < self.len { self.hand } else { 0 };
            self.hand = index + 1;
            let entry = &self.item(index).value;
            if entry.is_busy() {
                continue;
            }
            let rank = (entry.is_live(now), Reverse(entry.idle_for(now)));
            if best.is_none_or(|(least, _)| rank < least) {
                best = Some((rank, index));
            }
            idle += 1;
            if idle == IDLE_SAMPLE {
                break;
            }
        }
        best.map(|(_, index)| index)
    }

    /// Removes an entry. The last entry moves to the index that is freed.
    fn remove(&mut self, index: usize) {
        let Item { key, value } = self.item(index);
        let key = *key;
        let next = value.chain_link();
        self.relink(key, link_to(index), next);
        let last = self.len - 1;
        let moved = self.item(last).key;
        if index != last {
            self.relink(moved, link_to(last), link_to(index));
        }
        let popped = self.chunks.last_mut().and_then(Vec::pop);
        self.len = last;
        if self.chunks.last().is_some_and(Vec::is_empty) {
            self.chunks.pop();
        }
        if let Some(item) = popped.filter(|_| index != last) {
            *self.item_mut(index) = item;
        }
    }

    /// Allocates room for one more entry.
    fn reserve(&mut self) -> Result<(), TryReserveError> {
        if self.len == self.heads.len() {
            self.add_chains()?;
        }
        if self.chunks.is_empty() {
            self.chunks.try_reserve_exact(self.len_max.div_ceil(CHUNK))?;
        }
        if self.len == self.chunks.len() * CHUNK {
            let mut chunk = Vec::new();
            chunk.try_reserve_exact(CHUNK.min(self.len_max - self.len))?;
            self.chunks.push(chunk);
        }
        Ok(())
    }

    /// At least doubles the number of chains, and links all entries again. The last time is when
    /// the partition is half full at most, so that its budget has room for the old heads beside the
    /// new.
    fn add_chains(&mut self) -> Result<(), TryReserveError> {
        let doubled = (2 * self.len).max(CHUNK);
        let count = if 2 * doubled > self.len_max { self.len_max } else { doubled };
        let mut heads = Vec::new();
        heads.try_reserve_exact(count)?;
        heads.resize(count, Link::default());
        self.heads = heads;
        for index in 0..self.len {
            let hash = hash(&self.seed, self.item(index).key);
            let next = self.swap_head(hash, link_to(index));
            self.item_mut(index).value.set_chain_link(next);
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
        while let Some(index) = index_of(link) {
            link = self.item(index).value.chain_link();
            if link == from {
                self.item_mut(index).value.set_chain_link(to);
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

    fn item(&self, index: usize) -> &Item<V> {
        &self.chunks[index / CHUNK][index % CHUNK]
    }

    fn item_mut(&mut self, index: usize) -> &mut Item<V> {
        &mut self.chunks[index / CHUNK][index % CHUNK]
    }
}

/// Converts an index to a link. It fits, since there are at most [`PARTITION_MAX`] indexes.
#[allow(clippy::cast_possible_truncation, reason = "a partition has at most PARTITION_MAX indexes")]
fn link_to(index: usize) -> Link {
    Link(index as u16 + 1)
}

fn index_of(link: Link) -> Option<usize> {
    usize::from(link.0).checked_sub(1)
}

#[cfg(test)]
mod tests;
