//! The requests that wait for a key's next lease.

use std::collections::VecDeque;
use std::mem::size_of;

use ratelease_rules::Limit;
use tokio::sync::oneshot;

use super::attempt::Attempt;
use super::resolve::Charge;
use crate::store::StoreError;

/// The largest number of requests that wait for the lease of one key: half of those that may wait
/// at all keys, so that one key cannot keep the others out. Further ones do not wait.
pub(super) const WAITING_MAX: usize = 16 * 1024;

/// Bytes that a waiting request takes: the place of a waiter in a deque that may be half empty and
/// is copied when it grows, and the channel of the reply, which tokio allocates (the reply, two
/// wakers and three counters).
pub(super) const QUEUED_BYTES: usize = 4 * size_of::<Waiter>()
    + size_of::<Option<Result<Attempt, StoreError>>>()
    + 7 * size_of::<usize>();

/// Waiting requests, first come, first served.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waiters: VecDeque<Waiter>,
    /// Hits of the waiting charges under all limits, or more: of some that have been answered too.
    hits: u64,
}

/// Receives the outcome of a waiting charge.
pub(super) type ReplyReceiver = oneshot::Receiver<Result<Attempt, StoreError>>;

/// A receiver whose outcome has arrived already.
pub(super) fn answered(outcome: Result<Attempt, StoreError>) -> ReplyReceiver {
    let (sender, reply) = oneshot::channel();
    // The receiver still exists, so sending cannot fail.
    let _ = sender.send(outcome);
    reply
}

/// A waiting request.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) pending: PendingCharge,
    sender: oneshot::Sender<Result<Attempt, StoreError>>,
}

/// What a charge needs from its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct PendingCharge {
    /// The limit of the charge. Two limits of one window share a count: those of a rule and an
    /// override, or those of two overrides.
    pub(super) limit: Limit,
    pub(super) hits: u64,
    pub(super) refund: bool,
    pub(super) charge_denied: bool,
}

// === impl Waiters ===

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn first(&self) -> Option<PendingCharge> {
        self.waiters.front().map(|waiter| waiter.pending)
    }

    /// The charges held to `limit`, in order.
    pub(super) fn under(&self, limit: Limit) -> impl Iterator<Item = PendingCharge> {
        self.waiters
            .iter()
            .map(|waiter| waiter.pending)
            .filter(move |pending| pending.limit == limit)
    }

    /// Hits of the charges held to `limit` that take tokens.
    pub(super) fn wanted(&self, limit: Limit) -> u64 {
        let spending = self.under(limit).filter(PendingCharge::spends);
        spending.fold(0, |sum, pending| sum.saturating_add(pending.hits))
    }

    /// Whether the charges held to `limit` want more than `tokens`. Nearly always the sum of all
    /// hits decides, so that the charges need not be looked at one by one.
    pub(super) fn want_more_than(&self, tokens: u64, limit: Limit) -> bool {
        self.hits > tokens && self.wanted(limit) > tokens
    }

    /// Adds `pending` at the end.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub(super) fn push(&mut self, pending: PendingCharge) -> Result<ReplyReceiver, StoreError> {
        self.make_place();
        if self.len() >= WAITING_MAX {
            return Err(StoreError::NoRoom);
        }
        let (sender, reply) = oneshot::channel();
        self.push_back(Waiter { pending, sender });
        Ok(reply)
    }

    /// Where the queue is full or would grow, first drops the requests that gave up: so they take
    /// no more room than those that wait, and below the ceiling each is looked at a few times only.
    fn make_place(&mut self) {
        let capacity = self.waiters.capacity();
        if self.len() < capacity.min(WAITING_MAX) {
            return;
        }
        self.forget_answered();
        if self.len() > capacity / 4 * 3 && self.len() < WAITING_MAX {
            self.waiters.reserve(capacity);
        }
    }

    /// Takes the hits out of the refunds held to `limit`, to be sent to the store. The emptied
    /// refunds wait for the store's reply.
    pub(super) fn take_refunds(&mut self, limit: Limit) -> u64 {
        let charges = self.waiters.iter_mut().map(|waiter| &mut waiter.pending);
        let refunds = charges.filter(|pending| pending.refund && pending.limit == limit);
        refunds.fold(0, |sum: u64, pending| sum.saturating_add(std::mem::take(&mut pending.hits)))
    }

    /// Drops the requests that have been answered otherwise, except refunds that are still to be
    /// sent.
    pub(super) fn forget_answered(&mut self) {
        self.hits = 0;
        self.waiters.retain(|waiter| {
            let needed = waiter.is_needed();
            self.hits = self.hits.saturating_add(if needed { waiter.pending.hits } else { 0 });
            needed
        });
        if self.waiters.capacity() / 2 > self.waiters.len() {
            // The capacity must not exceed what was counted for it.
            self.waiters.shrink_to_fit();
        }
    }

    /// Removes and returns all that still wait; those that go on waiting must be put back with
    /// `push_back`.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Waiter> + use<> {
        let Self { waiters, .. } = std::mem::take(self);
        waiters.into_iter().filter(Waiter::is_needed)
    }

    pub(super) fn push_back(&mut self, waiter: Waiter) {
        self.hits = self.hits.saturating_add(waiter.pending.hits);
        self.waiters.push_back(waiter);
    }
}

// === impl Waiter ===

impl Waiter {
    /// Whether it is still needed: its request waits, or its refund has yet to be sent.
    fn is_needed(&self) -> bool {
        !self.sender.is_closed() || (self.pending.refund && self.pending.hits > 0)
    }

    /// Sends the outcome to the request. If the request is gone, returns the outcome.
    pub(super) fn answer(self, reply: Result<Attempt, StoreError>) -> Option<Attempt> {
        self.sender.send(reply).err()?.ok()
    }
}

// === impl PendingCharge ===

impl PendingCharge {
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
