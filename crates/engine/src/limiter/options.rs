//! How a limiter is set up.

use std::time::Duration;

use ratelease_rules::key::KeyHasher;

use crate::verdict::Modes;

/// What an answer takes to reach its caller once it is made, and what a busy machine adds to that:
/// a quarter of Envoy's default of 20 ms.
const ANSWER_MARGIN: Duration = Duration::from_millis(5);

/// Pods that are taken to share a domain before the store has said how many do: too few strand
/// tokens, too many cost trips.
pub const PODS_EXPECTED: u32 = 16;

/// How a limiter is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a request waits for a lease at most, where its caller names no deadline.
    pub max_wait: Duration,
    /// How long it waits at most where its caller does; at least `max_wait` counts.
    pub wait_limit: Duration,
    /// Bytes that the buffers of all keys may take; [`Table`] says what is counted. A 32nd of it,
    /// 1.5 MiB at most, is for the queue of keys that may lie idle. Requests that wait for a lease,
    /// and what only few keys have, take up to 12 MiB beside it, and the desk's queues 4352 asks a
    /// shard.
    ///
    /// [`Table`]: crate::buffer::table::Table
    pub buffer_bytes_max: usize,
    /// This pod among those that share the store: a number of its own drawing.
    pub pod: u64,
    /// Pods of each domain until the store says how many there are; at least 1 counts.
    pub pods_expected: u32,
    /// Makes keys of descriptors; the same on every pod that shares counts.
    pub hasher: KeyHasher,
    /// How answers are made.
    pub modes: Modes,
    /// The time of day when the clock was started, since the Unix epoch. It tells windows apart
    /// until the store's own time is known.
    pub unix_start: Duration,
}

// === impl Options ===

impl Options {
    /// How long a request may wait whose caller waits for `caller`.
    pub(super) fn wait_for(&self, caller: Option<Duration>) -> Duration {
        let until = caller.map(|caller| caller.saturating_sub(ANSWER_MARGIN).min(self.wait_limit));
        until.unwrap_or_default().max(self.max_wait)
    }
}

impl Default for Options {
    /// As the settings have it, for a pod that is alone with its store and its clock.
    fn default() -> Self {
        Self {
            max_wait: Duration::from_millis(5),
            wait_limit: Duration::from_millis(15),
            buffer_bytes_max: 64 << 20,
            pod: 0,
            pods_expected: PODS_EXPECTED,
            hasher: KeyHasher::new(""),
            modes: Modes::default(),
            unix_start: Duration::ZERO,
        }
    }
}
