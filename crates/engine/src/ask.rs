//! A question to the store about one key, and its reply: plain values that the algorithms compute
//! with and the stores transfer.

use std::time::Duration;

use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::span_context::SpanContext;

/// A request for tokens of one key. It can also give tokens back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// The key whose tokens are asked for.
    pub key: Key,
    /// The key that the same count has on pods with the secret before, while a secret is being
    /// replaced: the store moves the count from there before it takes the first ask.
    pub previous: Option<Key>,
    /// The limit in force for the key.
    pub limit: Limit,
    /// Tokens to lend; the store lends fewer when it has fewer. 0 only looks.
    pub want: u64,
    /// The smallest grant that is of use: with fewer tokens left, none is granted, and the charge
    /// that waits for them is denied.
    pub need: u64,
    /// Whether a denial (`need` above the tokens left) spends the tokens left. Ignored by pools and
    /// for the next window.
    pub charge_denied: bool,
    /// Costs that have been incurred: they are counted first and whole, beyond the limit too, and
    /// no lease pays for them. Ignored by pools, by logs, and for the next window.
    pub owed: u64,
    /// Whether hits charged to a fixed window beyond its limit count against the next windows.
    pub carry_debt: bool,
    /// τ: the longest time that the lease lasts, from its start. It may end sooner, with its
    /// window.
    pub ttl: Duration,
    /// Tokens to credit first.
    pub back: Option<Return>,
    /// The pool of a split key that is asked, counted from 0; `None` asks the key's own count.
    pub pool: Option<u8>,
    /// Tokens leased by the key's own count, to be added to the pool; ignored without one.
    pub deposit: Option<Deposit>,
    /// The slots that the pod holds, for a count of slots: they are set, then those that are lent
    /// are added. Without it such a count is only looked at; the other algorithms ignore it.
    pub slots: Option<Slots>,
    /// Asks for tokens of the next fixed window and leaves the present one as it is. Other
    /// algorithms ignore it.
    pub next_window: bool,
    /// The purpose of the ask, which decides which asks are dropped first under load.
    pub purpose: Purpose,
    /// The span of the request that sent the ask, if that is traced; it affects no decision.
    pub cause: Option<SpanContext>,
}

/// The purpose of an ask. Only load shedding depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// A request waits for it.
    #[default]
    Request,
    /// A request waits for tokens of a key that had none by the store's last reply.
    Probe,
    /// No request waits for it yet.
    Ahead,
    /// The ask gives tokens back, moves them to a pool, or reports the last costs that a key owes
    /// to the store.
    Return,
}

/// Tokens of a lease that are added to a pool of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposit {
    /// Number of tokens.
    pub tokens: u64,
    /// [`Grant::epoch`] of their lease.
    pub epoch: u64,
    /// Time until their lease ends, from when the deposit reaches the store: the caller leaves out
    /// the longest time that the way there takes. Cut to whole milliseconds.
    pub lasts: Duration,
}

/// A pod's part of a count of slots ([`crate::algorithm::concurrency`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    /// The pod, by a number that it drew itself: of 64 random bits no two of a fleet are equal.
    pub pod: u64,
    /// The slots of the pod, in use and idle together; counted up to 2^32 - 1.
    pub held: u64,
    /// The number of the ask among all asks of the pod. Each ask has the next number; after the
    /// largest number comes 0. A store ignores an ask that arrives after a later one.
    pub order: u32,
    /// The number of the first of the asks whose replies may still bring slots; the number of this
    /// ask if there is none. The store adds to `held` the slots that it has lent since that ask,
    /// and that the pod has not received.
    pub since: u32,
    /// Slots that the pod has received since that ask; counted up to 2^32 - 1.
    pub received: u64,
}

/// Tokens that return to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Return {
    /// Number of tokens.
    pub tokens: u64,
    /// [`Grant::epoch`] of their lease; `None` for a refund, which is never too late.
    pub epoch: Option<u64>,
}

/// The store's reply to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Tokens leased, which the store has debited already.
    pub tokens: u64,
    /// Tokens that the store still has after this, in the window or the pool that was asked.
    pub left: u64,
    /// Even a charge of 0 is over the limit: more was charged than a fixed window allows, or, with
    /// the other algorithms, nothing is left.
    pub overdrawn: bool,
    /// Identifies late returns. For the algorithms with aligned windows it is the window's number
    /// since the Unix epoch (`unix seconds / window seconds`). For the others it is the store's
    /// time of the grant in microseconds since the Unix epoch; for a log, never before its newest
    /// entry. For a pool it is the epoch of the leases that its tokens come from, the oldest one
    /// for a token bucket; 0 for an empty pool.
    pub epoch: u64,
    /// Time until the first slot leased (leaky bucket); each further slot follows window / requests
    /// later. With [`Ask::next_window`], time until the next window begins by the store's clock; it
    /// counts from the arrival of the reply, so that no token is spent before the window begins.
    /// Zero for the others.
    pub starts_after: Duration,
    /// The lease ends after this: `ttl`, or sooner with its window; a leaky bucket's lease ends one
    /// slot after the last slot leased has passed. With [`Ask::next_window`] it is `starts_after`
    /// and `ttl`, or until the next window ends. A pool's lease ends with the pool, or after `ttl`.
    pub ends_after: Duration,
    /// Time until the limit is as if nothing had been charged: until the bucket is full (zero if it
    /// is), or the last entry has left the log. With windows, until the window that was asked ends,
    /// though part of a sliding window's count stays after that. Zero for a pool.
    pub reset_after: Duration,
    /// Time until one more token is available, if `left` is 0; zero otherwise, and for a pool.
    pub retry_after: Duration,
}

// === impl Grant ===

impl Grant {
    /// Time until the limit is as if nothing had been charged, or has a token again if none is
    /// left.
    pub const fn resets_after(&self) -> Duration {
        if self.left > 0 { self.reset_after } else { self.retry_after }
    }
}

// === impl Ask ===

impl Ask {
    /// An ask that takes nothing from `key`; the caller sets further fields.
    pub const fn look(key: Key, limit: Limit) -> Self {
        Self {
            key,
            previous: None,
            limit,
            want: 0,
            need: 0,
            charge_denied: false,
            owed: 0,
            carry_debt: false,
            ttl: Duration::MAX,
            back: None,
            pool: None,
            deposit: None,
            slots: None,
            next_window: false,
            purpose: Purpose::Request,
            cause: None,
        }
    }

    /// The keys that its count has, one for each secret, the one before first.
    pub fn keys(&self) -> impl Iterator<Item = Key> + use<> {
        self.previous.into_iter().chain([self.key])
    }

    /// Whether the ask gives unspent tokens back, moves them to a pool, or reports the last costs
    /// that a key owes to the store: no request waits for it.
    pub fn is_return(&self) -> bool {
        let reports = self.owed > 0 && self.purpose == Purpose::Return;
        let states = self.slots.is_some() && self.purpose == Purpose::Return;
        reports
            || states
            || self.deposit.is_some()
            || self.back.is_some_and(|back| back.epoch.is_some())
    }

    /// The key of the count, or of the pool, that the ask operates on.
    pub fn counter(&self) -> Key {
        match self.pool {
            Some(pool) => self.key.of_pool(pool),
            None => self.key,
        }
    }
}
