//! State that only few keys have at a time, in an optional box beside the key's buffer.

use ratelease_rules::Limit;

use crate::buffer::{Buffer, Cold, Refill};
use crate::lease::QUEUE_MAX;
use crate::limiter::wait::{QUEUED_BYTES, WAITING_MAX, Waiters};
use crate::time::Time;

/// Bytes counted for each waiting request: its place in the queue, and the box that contains the
/// queue.
pub(in crate::limiter) const WAITER_BYTES: usize = QUEUED_BYTES + ColdState::BYTES;

/// The largest number of requests that wait for leases, at all keys together: eight times the asks
/// in the lease client's queue for a shard, since a request that gave up stays until its lease
/// arrives. At most 13 MiB.
pub(in crate::limiter) const WAITING_IN_ALL_MAX: usize = 8 * QUEUE_MAX;

const _: () = assert!(WAITING_IN_ALL_MAX * WAITER_BYTES <= 13 << 20);
const _: () = assert!(2 * WAITING_MAX <= WAITING_IN_ALL_MAX);

/// Waiting requests, and other state that a key has only in rare cases.
#[derive(Debug, Default)]
pub(in crate::limiter) struct ColdState {
    pub(super) waiting: Waiters,
    /// Hits that a failure mode has admitted although the store can be asked: the leases that
    /// arrive pay for them.
    pub(super) debt: u32,
    /// When the debt ends unpaid, since the limit is then as if the hits had not been.
    pub(super) debt_until: Time,
    /// Tokens that the asks on their way may bring to waiting requests.
    pub(super) expected: u32,
    /// Until when the store is not asked, since it holds another program's value under the key.
    pub(super) suspended_until: Time,
    /// A lease of the next window, which has not begun yet.
    pub(super) next_window: Option<Box<Refill>>,
    /// The limit that the tokens were lent under, if it is neither the rule's nor an override's.
    pub(super) limit: Option<Box<Limit>>,
}

// === impl ColdState ===

impl ColdState {
    /// Bytes of a box.
    pub(in crate::limiter) const BYTES: usize = Buffer::<Self>::COLD_BYTES;

    /// Bytes counted for the box and the requests that wait in it.
    pub(super) fn heap(&self) -> usize {
        let next = if self.next_window.is_some() { size_of::<Refill>() } else { 0 };
        match self.waiting.len() {
            0 => Self::BYTES + next,
            waiting => waiting * WAITER_BYTES + next,
        }
    }
}

impl Cold for ColdState {
    fn is_empty(&self) -> bool {
        let Self { waiting, debt, expected, suspended_until, next_window, limit, .. } = self;
        let is_suspended = *suspended_until > Time::default();
        waiting.is_empty()
            && *debt == 0
            && *expected == 0
            && !is_suspended
            && limit.is_none()
            && next_window.is_none()
    }
}
