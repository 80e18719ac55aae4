//! The options of a limiter.

use std::time::Duration;

use ratelease_rules::key::KeyHasher;

use crate::verdict::Modes;

/// The time that an answer takes to reach its caller once it is made, including delays of a busy
/// machine: a quarter of Envoy's default timeout of 20 ms.
const ANSWER_MARGIN: Duration = Duration::from_millis(5);

/// Number of pods that are assumed to share a domain until the store has said how many do. Too
/// small a number strands tokens, too large a number costs round trips.
pub const PODS_EXPECTED: u32 = 16;

/// The options of a limiter.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time that a request may wait for a lease, whatever its caller's deadline; without a
    /// deadline, the longest time.
    pub wait_min: Duration,
    /// The longest time that a request may wait if its caller names a deadline; values below
    /// `wait_min` count as `wait_min`.
    pub wait_max: Duration,
    /// Bytes that the buffers of all keys may take; [`Table`] says what is counted. A 32nd of it,
    /// at most 1.5 MiB, is for the queue of keys that may be idle. Requests that wait for a lease,
    /// and state that only few keys have, take up to 13 MiB in addition, and the lease client's
    /// queues 4352 asks for each shard.
    ///
    /// [`Table`]: crate::buffer::table::Table
    pub buffer_bytes_max: usize,
    /// The number of this pod among those that share the store; the pod draws it itself.
    pub pod: u64,
    /// Number of pods in each domain until the store says how many there are; values below 1 count
    /// as 1.
    pub pods_expected: u32,
    /// Hashes descriptors to keys; the same on every pod that shares counts.
    pub hasher: KeyHasher,
    /// Modes that change how answers are made.
    pub modes: Modes,
    /// The time of day when the clock was started, since the Unix epoch. It identifies windows
    /// until the store's own time is known.
    pub unix_start: Duration,
}

// === impl Options ===

impl Options {
    /// How long a request may wait if its caller waits for `caller`.
    pub(super) fn wait_for(&self, caller: Option<Duration>) -> Duration {
        let until = caller.map(|caller| caller.saturating_sub(ANSWER_MARGIN).min(self.wait_max));
        until.unwrap_or_default().max(self.wait_min)
    }
}

impl Default for Options {
    /// The defaults of the settings, for a pod that is alone with its store and its clock.
    fn default() -> Self {
        Self {
            wait_min: Duration::from_millis(5),
            wait_max: Duration::from_millis(15),
            buffer_bytes_max: 64 << 20,
            pod: 0,
            pods_expected: PODS_EXPECTED,
            hasher: KeyHasher::new(""),
            modes: Modes::default(),
            unix_start: Duration::ZERO,
        }
    }
}
