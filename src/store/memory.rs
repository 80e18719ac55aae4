//! The embedded store: every key's state in this process. For one pod, for tests and for benches.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use foldhash::HashMap;
use parking_lot::Mutex;

use super::{Ask, Beat, Beaten, Grant, Replies, Store, StoreError};
use crate::algorithm::fixed_window::{State, step};
use crate::key::Key;
use crate::rules::Unit;

/// Counts in memory, under a ceiling of keys.
pub struct MemoryStore {
    parts: Box<[Mutex<Part>]>,
    part_keys_max: usize,
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

#[derive(Default)]
struct Part {
    entries: HashMap<Key, Entry>,
    /// For each unit, its keys with the second they were seen to expire at, soonest first: windows
    /// of one length end in the order they began. Every entry stands in exactly one queue.
    queues: [VecDeque<(Key, u64)>; Unit::ALL.len()],
}

#[derive(Clone, Copy)]
struct Entry {
    state: State,
    /// The unit of the last ask; a rule may have changed it since the one before.
    unit: Unit,
}

// === impl MemoryStore ===

impl MemoryStore {
    /// A store that reads `clock` once an ask and holds about `keys_max` keys (exactly so many
    /// below 2048): an ask that would add one more is [`StoreError::Refused`].
    pub fn new(clock: Clock, keys_max: usize) -> Self {
        let parts = (keys_max / PART_KEYS_MIN).clamp(1, PARTS_MAX);
        Self {
            parts: (0..parts).map(|_| Mutex::default()).collect(),
            part_keys_max: keys_max.div_ceil(parts),
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

    /// Keys held at the moment, expired ones that were not cleared away yet among them.
    pub fn keys(&self) -> usize {
        self.parts.iter().map(|part| part.lock().entries.len()).sum()
    }

    fn take(&self, ask: &Ask) -> Result<Grant, StoreError> {
        // The remainder is below the number of parts, so it fits.
        #[allow(clippy::cast_possible_truncation)]
        let at = (ask.counter().bits() % self.parts.len() as u64) as usize;
        let Some(part) = self.parts.get(at) else {
            return Err(StoreError::Refused("the store holds no keys".into()));
        };
        let mut part = part.lock();
        // Read under the lock, so that the steps of one key happen in the order of their times.
        let now = (self.clock)();
        let now_us = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
        part.sweep(now.as_secs());
        let had = part.entries.get(&ask.counter()).map(|entry| entry.state);
        let (state, grant) = step(had, now_us, ask);
        let entry = Entry { state, unit: ask.limit.unit };
        if had.is_some() {
            part.entries.insert(ask.counter(), entry);
        } else if state.count > 0 {
            if part.entries.len() >= self.part_keys_max {
                return Err(StoreError::Refused(format!(
                    "the embedded store is full ({} keys)",
                    self.part_keys_max * self.parts.len()
                )));
            }
            part.entries.insert(ask.counter(), entry);
            part.enqueue(ask.counter(), entry);
        }
        Ok(grant)
    }
}

impl Store for MemoryStore {
    fn shard(&self, _ask: &Ask) -> usize {
        0
    }

    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a> {
        Box::pin(ready(asks.iter().map(|ask| self.take(ask)).collect()))
    }

    fn beat(&self, _beat: Beat) -> Beaten<'_> {
        Box::pin(ready(Ok(1)))
    }

    fn describe(&self) -> String {
        "memory".into()
    }
}

// === impl Part ===

impl Part {
    fn enqueue(&mut self, key: Key, entry: Entry) {
        // There is a queue for each variant of `Unit`.
        self.queues[entry.unit as usize].push_back((key, entry.expires_at()));
    }

    /// Clears away keys whose window has passed: a few an ask, which is more than an ask can add.
    fn sweep(&mut self, now_secs: u64) {
        let mut budget = SWEEP_MAX;
        for at in 0..self.queues.len() {
            while budget > 0
                && let Some((key, _)) = self.queues[at].pop_front_if(|(_, at)| *at <= now_secs)
            {
                budget -= 1;
                match self.entries.get(&key).copied() {
                    Some(entry) if entry.expires_at() > now_secs => self.enqueue(key, entry),
                    _ => {
                        self.entries.remove(&key);
                    }
                }
            }
        }
    }
}

// === impl Entry ===

impl Entry {
    fn expires_at(self) -> u64 {
        self.state.window.saturating_add(1).saturating_mul(self.unit.seconds())
    }
}

#[cfg(test)]
mod tests;
