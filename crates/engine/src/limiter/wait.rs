//! The requests that wait for a key's next lease.

use std::collections::VecDeque;
use std::mem::size_of;

use ratelease_rules::Limit;
use tokio::sync::oneshot;

use super::outcome::Settled;
use super::resolve::Charge;
use crate::store::StoreError;

/// Requests that wait for the lease of one key at most. More are refused at once.
const WAITING_MAX: usize = 1024;

/// What one that waits takes, in bytes: the place of a waiter in a deque that may be half empty and
/// is copied when it grows, and the channel of the reply, which tokio allocates (the reply, two
/// wakers and three counters).
pub(super) const QUEUED_BYTES: usize = 4 * size_of::<Waiter>()
    + size_of::<Option<Result<Settled, StoreError>>>()
    + 7 * size_of::<usize>();

/// First come, first served.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
}

/// Where the word on a charge that waits arrives.
pub(super) type Promise = oneshot::Receiver<Result<Settled, StoreError>>;

/// Outcome of queueing for a lease.
pub(super) enum Entered {
    /// Tokens arrived in the meantime.
    Settled(Settled),
    /// The reply will come here.
    Queued(Promise),
    /// The ask that is out is overdue, so that waiting for it would only make the answer late; or
    /// the store refused the key a moment ago.
    Refused(StoreError),
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) wish: Wish,
    reply: oneshot::Sender<Result<Settled, StoreError>>,
}

/// What a charge wants of its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    /// What it is held to. Two limits of one window share a count: a rule's and an override's, or
    /// those of two overrides.
    pub(super) limit: Limit,
    pub(super) hits: u64,
    pub(super) refund: bool,
    pub(super) charge_denied: bool,
}

// === impl Queue ===

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn first(&self) -> Option<Wish> {
        self.waiters.front().map(|waiter| waiter.wish)
    }

    /// The wishes held to `limit`, in order.
    pub(super) fn under(&self, limit: Limit) -> impl Iterator<Item = Wish> {
        self.waiters.iter().map(|waiter| waiter.wish).filter(move |wish| wish.limit == limit)
    }

    /// Puts `wish` at the end; false if there is no room, which the promise then says.
    pub(super) fn push(&mut self, wish: Wish) -> (Promise, bool) {
        let (reply, promise) = oneshot::channel();
        let is_full = |queue: &Self| queue.len() >= WAITING_MAX;
        if is_full(self) {
            self.forget_answered();
        }
        if is_full(self) {
            // The receiver is there to hear it.
            let _ = reply.send(Err(StoreError::Overloaded));
            return (promise, false);
        }
        self.keep(Waiter { wish, reply });
        (promise, true)
    }

    /// Takes the hits out of the refunds held to `limit`, for the store to have. What is left of
    /// them waits for its word.
    pub(super) fn take_refunds(&mut self, limit: Limit) -> u64 {
        let wishes = self.waiters.iter_mut().map(|waiter| &mut waiter.wish);
        let refunds = wishes.filter(|wish| wish.refund && wish.limit == limit);
        refunds.fold(0, |sum: u64, wish| sum.saturating_add(std::mem::take(&mut wish.hits)))
    }

    /// Drops the requests that have been answered without us, but for refunds that are to be sent.
    pub(super) fn forget_answered(&mut self) {
        self.waiters.retain(Waiter::counts);
        if self.waiters.capacity() / 2 > self.waiters.len() {
            // No emptier than it is counted for.
            self.waiters.shrink_to_fit();
        }
    }

    /// Everyone who still waits; those who go on waiting are to be put back with `keep`.
    pub(super) fn take(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        let waiters = std::mem::take(&mut self.waiters);
        waiters.into_iter().filter(Waiter::counts)
    }

    pub(super) fn keep(&mut self, waiter: Waiter) {
        self.waiters.push_back(waiter);
    }
}

// === impl Waiter ===

impl Waiter {
    /// Whether it is still of use: its request waits, or its refund has yet to be sent.
    fn counts(&self) -> bool {
        !self.reply.is_closed() || (self.wish.refund && self.wish.hits > 0)
    }

    /// Tells the request. Returns what it did not live to take.
    pub(super) fn tell(self, word: Result<Settled, StoreError>) -> Option<Settled> {
        self.reply.send(word).err()?.ok()
    }
}

// === impl Wish ===

impl Wish {
    pub(super) fn of(charge: &Charge<'_>) -> Self {
        Self {
            limit: charge.applied.limit,
            hits: charge.hits,
            refund: charge.refund,
            charge_denied: charge.charge_denied(),
        }
    }

    pub(super) fn spends(&self) -> bool {
        self.hits > 0 && !self.refund
    }
}
