//! The embedded store: every key's state in this process. For one pod, for tests and for benches.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use foldhash::HashMap;
use parking_lot::Mutex;
use ratelease_rules::key::Key;

use self::pods::Pods;
use super::{Ask, Beat, Beaten, Grant, Lent, Replies, Store, StoreError};
use crate::algorithm::{State, step};

mod pods;

/// Counts in memory, under a ceiling of keys.
pub struct MemoryStore {
    parts: Box<[Mutex<Part>]>,
    part_keys_max: usize,
    gives_way: bool,
    pods: Mutex<Pods>,
    clock: Clock,
}

/// The store's time since the Unix epoch.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// Keys that [`MemoryStore::system`] holds at most.
pub const KEYS_MAX: usize = 1 << 20;

/// Locks that the keys are spread over.
const PARTS_MAX: usize = 64;
/// A part holds at least so many keys, so that no part fills long before the rest.
const PART_KEYS_MIN: usize = 1024;
/// Expired keys that one ask clears away at most, so that none of them pauses for long.
const SWEEP_MAX: usize = 16;
/// A key is kept this much longer than it must, as in Redis: a clock that is set back by less finds
/// its counts.
const KEPT_SECONDS: u64 = 1;

#[derive(Default)]
struct Part {
    entries: HashMap<Key, Entry>,
    /// Each key once, with the second that it was to expire at when it was queued; soonest on top.
    /// One that was put off meanwhile is queued anew once its turn comes.
    queue: BinaryHeap<Reverse<(u64, Key)>>,
}

struct Entry {
    state: State,
    /// In seconds of the store's clock; past, if the state says no more than its absence.
    expires_at: u64,
}

/// When a step happens.
#[derive(Clone, Copy)]
struct Times {
    /// The time that the counts go by.
    counts: Duration,
    /// The store's clock, which keys expire by.
    store: Duration,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// A store that reads `clock` once an ask and holds about `keys_max` keys (exactly so many
    /// below 2048): an ask that would add one more is [`StoreError::Full`].
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
        // The embedded store is where the one wall clock of `Store` is read.
        #[allow(clippy::disallowed_methods)]
        let now = || std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(Arc::new(now), KEYS_MAX)
    }

    /// The same store, but an ask that would add one key too many evicts the key that expires
    /// soonest instead of returning [`StoreError::Full`]. The count of an evicted key is lost. Only
    /// a few keys are compared, so that where the expiry of many was put off, the key evicted may
    /// not be the very soonest.
    #[must_use]
    pub fn giving_way(self) -> Self {
        Self { gives_way: true, ..self }
    }

    /// Keys held at the moment, expired ones that were not cleared away yet among them.
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.lock().entries.len()).sum()
    }

    /// Takes one ask, at once, at the time of the store's clock.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`].
    pub fn take(&self, ask: &Ask) -> Result<Grant, StoreError> {
        // Read under the lock, so that the steps of one key happen in the order of their times.
        self.step_at(ask, |store| Times { counts: store, store })
    }

    /// Takes one ask, at once, at the time `now` since the Unix epoch: that of the server that owns
    /// the key, say, where servers' clocks differ. The state of each key goes by the times of its
    /// own asks; keys still expire by the store's clock, so that no key's time makes another's
    /// count lapse.
    ///
    /// # Errors
    ///
    /// [`StoreError::Full`].
    pub fn take_at(&self, ask: &Ask, now: Duration) -> Result<Grant, StoreError> {
        self.step_at(ask, |store| Times { counts: now, store })
    }

    fn step_at(&self, ask: &Ask, times: impl Fn(Duration) -> Times) -> Result<Grant, StoreError> {
        // The remainder is below the number of parts, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        let at = (ask.counter().bits() % self.parts.len() as u64) as usize;
        let Some(part) = self.parts.get(at) else {
            return Err(StoreError::Full("it holds no keys".into()));
        };
        let mut part = part.lock();
        let times = times((self.clock)());
        let now_secs = times.store.as_secs();
        part.sweep(now_secs);
        let had = part.entries.remove(&ask.counter());
        let is_new = had.is_none();
        let (state, grant) = step(had.map(|entry| entry.state), times.now_us(), ask);
        let expires_at = times.expiry(state.ends_at(ask.limit));
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

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        Box::pin(ready(asks.iter().map(|ask| self.take(ask)).collect()))
    }

    fn lend<'a>(&'a self, ask: &'a Ask) -> Lent<'a> {
        Box::pin(ready(self.take(ask)))
    }

    fn beat(&self, beat: Beat) -> Beaten<'_> {
        let mut pods = self.pods.lock();
        // Read under the lock, as above.
        let alive = pods.beat(beat, (self.clock)());
        Box::pin(ready(Ok(alive)))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

// === impl Part ===

impl Part {
    /// Evicts the key that expires soonest, but looks for it among a few only.
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

    /// Clears away keys that say nothing any more: a few an ask, which is more than an ask can add.
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

// === impl Times ===

impl Times {
    fn now_us(self) -> u64 {
        u64::try_from(self.counts.as_micros()).unwrap_or(u64::MAX)
    }

    /// When a state expires by the store's clock that says nothing from `ends_at` on, in seconds
    /// of its own time.
    fn expiry(self, ends_at: u64) -> u64 {
        let lasts = ends_at.saturating_add(KEPT_SECONDS).saturating_sub(self.counts.as_secs());
        self.store.as_secs().saturating_add(lasts)
    }
}

#[cfg(test)]
mod tests;
