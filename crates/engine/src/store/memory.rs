//! The embedded store: every key's state in this process. For one pod, for tests and for
//! benchmarks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use foldhash::HashMap;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use crate::algorithm::{State, step};
use crate::store::{
    Ask, Grant, GrantFuture, Heartbeat, PODS_MAX, PodCountFuture, Store, StoreError,
};

/// Counts in memory, with a limit on the number of keys.
pub struct MemoryStore {
    parts: Box<[Mutex<Part>]>,
    part_keys_max: usize,
    gives_way: bool,
    pods: Mutex<Pods>,
    clock: Clock,
}

/// The store's time since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The largest number of keys that [`MemoryStore::system`] holds.
pub const KEYS_MAX: usize = 1 << 20;

/// The largest number of locks that the keys are spread over.
const PARTS_MAX: usize = 64;
/// A part may hold at least this many keys, so that no part fills long before the rest.
const PART_KEYS_MIN: usize = 1024;
/// The largest number of expired keys that one ask removes, so that no ask takes long.
const SWEEP_MAX: usize = 16;
/// A key is kept this much longer than needed, as in Redis: a clock that is set back by less still
/// finds its counts.
const KEPT_SECONDS: u64 = 1;

#[derive(Default)]
struct Part {
    entries: HashMap<Key, Entry>,
    /// Each key once, with the second at which it was to expire when it was queued; soonest on top.
    /// If its expiry was moved meanwhile, it is queued again when its turn comes.
    queue: BinaryHeap<Reverse<(u64, Key)>>,
}

struct Entry {
    state: State,
    /// In seconds of the store's clock; in the past if the state is equivalent to none.
    expires_at: u64,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// A store that reads `clock` once for each ask and holds about `keys_max` keys (exactly so
    /// many below 2048): an ask that would add one more fails with [`StoreError::Full`].
    pub fn new(clock: Clock, keys_max: usize) -> Self {
        let parts = (keys_max / PART_KEYS_MIN).clamp(1, PARTS_MAX);
        Self {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            part_keys_max: keys_max.div_ceil(parts),
            gives_way: false,
            pods: Mutex::default(),
            clock,
        }
    }

    /// A store on the machine's clock, for up to [`KEYS_MAX`] keys.
    pub fn system() -> Self {
        // The embedded store is the place that reads the one wall clock of `Store`.
        #[allow(clippy::disallowed_methods)]
        let now = || std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(Arc::new(now), KEYS_MAX)
    }

    /// Changes the store: an ask that would add one key too many evicts the key that expires
    /// soonest instead of failing with [`StoreError::Full`]. The count of an evicted key is lost.
    /// Only a few keys are compared, so where the expiry of many keys was moved, the evicted key
    /// may not be the one that expires soonest.
    #[must_use]
    pub fn giving_way(self) -> Self {
        Self { gives_way: true, ..self }
    }

    /// Number of keys held at the moment, including expired ones that are not removed yet.
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.lock().entries.len()).sum()
    }

    /// Applies one ask at once, at the time of the store's clock.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`].
    pub fn take(&self, ask: &Ask) -> Result<Grant, StoreError> {
        self.step_at(ask, None)
    }

    /// Applies one ask at once, at the time `now` since the Unix epoch: for example the time of the
    /// server that owns the key, where servers' clocks differ. The state of each key follows the
    /// times of its own asks. Keys still expire by the store's clock, so that no key's time makes
    /// another's count lapse.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`].
    pub fn take_at(&self, ask: &Ask, now: Duration) -> Result<Grant, StoreError> {
        self.step_at(ask, Some(now))
    }

    fn step_at(&self, ask: &Ask, now: Option<Duration>) -> Result<Grant, StoreError> {
        // The remainder is below the number of parts, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        let at = (ask.counter().bits() % self.parts.len() as u64) as usize;
        let Some(part) = self.parts.get(at) else {
            return Err(StoreError::Full("it holds no keys".into()));
        };
        let mut part = part.lock();
        // The clock is read under the lock, so that the steps of one key happen in the order of
        // their times.
        let store = (self.clock)();
        let counts = now.unwrap_or(store);
        let now_secs = store.as_secs();
        part.sweep(now_secs);
        let had = part.entries.remove(&ask.counter());
        let is_new = had.is_none();
        let now_us = u64::try_from(counts.as_micros()).unwrap_or(u64::MAX);
        let (state, grant) = step(had.map(|entry| entry.state), now_us, ask);
        // The state says in its own time when it is equivalent to none.
        let lasts =
            state.ends_at(ask).saturating_add(KEPT_SECONDS).saturating_sub(counts.as_secs());
        let expires_at = now_secs.saturating_add(lasts);
        if is_new && expires_at > now_secs {
            if part.entries.len() >= self.part_keys_max && !self.make_room(&mut part) {
                let keys_max = self.part_keys_max * self.parts.len();
                return Err(StoreError::Full(format!("{keys_max} keys")));
            }
            part.queue.push(Reverse((expires_at, ask.counter())));
        }
        if !is_new || expires_at > now_secs {
            part.entries.insert(ask.counter(), Entry { state, expires_at });
        }
        Ok(grant)
    }

    fn make_room(&self, part: &mut Part) -> bool {
        if self.gives_way {
            part.evict();
        }
        self.gives_way
    }
}

impl Store for MemoryStore {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> GrantFuture<'a> {
        Box::pin(ready(self.take(ask)))
    }

    fn beat(&self, beat: Heartbeat) -> PodCountFuture<'_> {
        let mut pods = self.pods.lock();
        // The clock is read under the lock, as above.
        let alive = pods.beat(beat, (self.clock)());
        Box::pin(ready(Ok(alive)))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

// === impl Part ===

impl Part {
    /// Evicts the key that expires soonest among a few.
    fn evict(&mut self) {
        for _ in 0..SWEEP_MAX {
            let Some(Reverse((queued_for, key))) = self.queue.pop() else { return };
            match self.entries.get(&key) {
                Some(entry) if entry.expires_at > queued_for => {
                    self.queue.push(Reverse((entry.expires_at, key)));
                }
                _ => {
                    self.entries.remove(&key);
                    return;
                }
            }
        }
        if let Some(Reverse((_, key))) = self.queue.pop() {
            self.entries.remove(&key);
        }
    }

    /// Removes expired keys: a few for each ask, which is more than an ask can add.
    fn sweep(&mut self, now_secs: u64) {
        for _ in 0..SWEEP_MAX {
            let due = |Reverse((at, _)): &Reverse<(u64, Key)>| *at <= now_secs;
            if !self.queue.peek().is_some_and(due) {
                return;
            }
            let Some(Reverse((_, key))) = self.queue.pop() else { return };
            match self.entries.get(&key) {
                Some(entry) if entry.expires_at > now_secs => {
                    self.queue.push(Reverse((entry.expires_at, key)));
                }
                _ => {
                    self.entries.remove(&key);
                }
            }
        }
    }
}

// === The pods that send heartbeats to the embedded store ===

/// Live pods, of all domains and of each domain, with the store's time at which each lapses.
#[derive(Debug, Default)]
struct Pods {
    of: BTreeMap<Option<Key>, Lapses>,
}

/// When each pod lapses.
type Lapses = BTreeMap<u64, Duration>;

/// The largest number of domains whose pods are counted; pods of others are not recorded until some
/// domains have lapsed.
const DOMAINS_MAX: usize = 1024;

// === impl Pods ===

impl Pods {
    /// Records `beat` at the store's time `now`, and returns the number of live pods of its domain.
    fn beat(&mut self, beat: Heartbeat, now: Duration) -> u32 {
        let is_new = beat.domain.is_some() && !self.of.contains_key(&beat.domain);
        if is_new && self.of.len() > DOMAINS_MAX {
            self.of.retain(|_, lapses| lapses.values().any(|lapses_at| *lapses_at > now));
            if self.of.len() > DOMAINS_MAX {
                return u32::from(!beat.leaves);
            }
        }
        let lapses = self.of.entry(beat.domain).or_default();
        lapses.retain(|_, lapses_at| *lapses_at > now);
        if beat.leaves {
            lapses.remove(&beat.pod);
        } else if lapses.len() < PODS_MAX || lapses.contains_key(&beat.pod) {
            lapses.insert(beat.pod, now.saturating_add(beat.lasts));
        }
        let alive = u32::try_from(lapses.len()).unwrap_or(u32::MAX);
        if lapses.is_empty() {
            self.of.remove(&beat.domain);
        }
        alive
    }
}

#[cfg(test)]
mod tests;
