//! What is asked of the store for one key, and what it replies: plain values, which the algorithms
//! compute with and the stores carry.

use std::time::Duration;

use ratelease_rules::Limit;
use ratelease_rules::key::Key;

use crate::span_context::SpanContext;

/// A request for tokens of one key, with what is given back on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ask {
    /// Whose tokens.
    pub key: Key,
    /// The limit in force for the key.
    pub limit: Limit,
    /// Tokens to lend; the store lends fewer when it has fewer. 0 looks without taking.
    pub want: u64,
    /// Below this many, none at all: the charge that waits for them is denied.
    pub need: u64,
    /// Whether a denial (`need` above what is left) spends what is left. Ignored by pools and of
    /// the next window.
    pub charge_denied: bool,
    /// τ: how long the lease lasts at most, from its start. It may end sooner, with its window.
    pub ttl: Duration,
    /// Tokens to credit before the rest.
    pub back: Option<Back>,
    /// The pool of a split key that is asked, counted from 0; `None` asks the key's own count.
    pub pool: Option<u8>,
    /// Tokens lent by the key's own count, to be added to the pool; ignored without one.
    pub deposit: Option<Deposit>,
    /// Tokens of the next fixed window are asked for; the present one is left as it is. Other
    /// algorithms ignore it.
    pub ahead: bool,
    /// What it is for, which says what may be dropped first under load.
    pub purpose: Purpose,
    /// The span of the request that sent it, if that is traced: nothing is decided by it.
    pub cause: Option<SpanContext>,
}

/// What an ask is for. Only load shedding looks at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Purpose {
    /// A request waits for it.
    #[default]
    Request,
    /// A request waits, of a key that had no tokens when the store last said.
    Probe,
    /// No request waits for it yet.
    Ahead,
    /// It gives tokens back, or moves them to a pool.
    Return,
}

/// Tokens of a lease that are added to a pool of the same key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deposit {
    /// How many.
    pub tokens: u64,
    /// [`Grant::epoch`] of their lease.
    pub epoch: u64,
    /// Until their lease ends, from when the deposit reaches the store: what the way there takes at
    /// most is to be left out. Cut to whole milliseconds.
    pub lasts: Duration,
}

/// Tokens that return to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Back {
    /// How many.
    pub tokens: u64,
    /// [`Grant::epoch`] of their lease; `None` for a refund, which is never late.
    pub epoch: Option<u64>,
}

/// The store's reply to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Tokens lent, already debited.
    pub tokens: u64,
    /// Tokens that the store still has after this, of the window or the pool that was asked.
    pub left: u64,
    /// Even a look is over the limit: more was charged than a fixed window allows, or nothing is
    /// left of the others.
    pub overdrawn: bool,
    /// What tells a late return: the window's number since the Unix epoch (`unix seconds / window
    /// seconds`) for the algorithms with aligned windows, and for the others the store's time of
    /// the grant in microseconds since the Unix epoch; a log's, never before its newest entry. Of
    /// a pool, that of the leases that its tokens are of, the oldest one of a token bucket; 0 of an
    /// empty pool.
    pub epoch: u64,
    /// Until the first slot lent (leaky bucket); the next ones follow, each the window / requests
    /// later. With [`Ask::ahead`], until the next window begins by the store's clock; counted from
    /// when the reply arrives, no token of it is spent before. Zero for the others.
    pub starts_after: Duration,
    /// The lease ends after this: `ttl`, or sooner with its window; a leaky bucket's a slot after
    /// the last one lent has gone by. With [`Ask::ahead`] it is `starts_after` and `ttl`, or until
    /// the next window ends. A pool's lease ends with the pool, or after `ttl`.
    pub ends_after: Duration,
    /// Until the limit stands as if nothing had been charged: until the bucket is full (zero if it
    /// is), or the last entry has left the log. With windows, until the one that was asked ends,
    /// though of a sliding one some of the count then stays. Zero of a pool.
    pub reset_after: Duration,
    /// Until there will be a token more, if `left` is 0; zero otherwise, and of a pool.
    pub retry_after: Duration,
}

// === impl Ask ===

impl Ask {
    /// An ask that takes nothing of `key`; its fields are there to be changed.
    pub const fn look(key: Key, limit: Limit) -> Self {
        Self {
            key,
            limit,
            want: 0,
            need: 0,
            charge_denied: false,
            ttl: Duration::MAX,
            back: None,
            pool: None,
            deposit: None,
            ahead: false,
            purpose: Purpose::Request,
            cause: None,
        }
    }

    /// Whether it gives unspent tokens back, or moves them to a pool: no request waits for it.
    pub fn is_return(&self) -> bool {
        self.deposit.is_some() || self.back.is_some_and(|back| back.epoch.is_some())
    }

    /// The key of the count or of the pool that it is a step of.
    pub fn counter(&self) -> Key {
        match self.pool {
            Some(pool) => self.key.of_pool(pool),
            None => self.key,
        }
    }
}
