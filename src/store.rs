//! The store owns each key's count. The lease desk asks it for tokens and gives unspent ones back.

pub mod memory;
pub mod per_second;
pub mod redis;

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use crate::key::Key;
use crate::rules::Limit;

/// Owner of every key's count.
///
/// # Contract
///
/// Each ask is one atomic step on its key, taken at the store's own time (the only wall clock):
///
/// 1. The window is the one that the store's time falls in, aligned to the Unix epoch. A key whose
///    last step was in another window starts at a count of 0.
/// 2. [`Ask::back`] is credited first: an overdrawn key (`count = limit + 1`, see 3) loses that
///    mark, then `count = max(0, count − tokens)`. What was counted under a larger limit stays
///    counted, so that a return under the old limit never undoes it while a fleet takes up new
///    rules. A lease's return that names another window than the present one credits nothing.
/// 3. With `left = max(0, limit − count)`: if `need > left`, nothing is granted and, where
///    [`Ask::charge_denied`] is set, `count = max(count, limit + 1)`: the key is overdrawn.
///    Otherwise `min(max(want, need), left)` tokens are granted and added to the count *before* the
///    reply leaves, so that tokens handed out never exceed the limit whatever happens to the reply.
/// 4. Every key expires by itself once its window has passed.
///
/// A reply that is lost leaves its tokens debited. An implementation may repeat an ask that it
/// knows was not taken; it never repeats one whose fate it does not know if `back` is set, since a
/// credit applied twice would admit more than the limit.
pub trait Store: Send + Sync + 'static {
    /// The shard that owns the key of `ask`: asks of one shard travel together. Below
    /// [`SHARDS_MAX`]. Advisory: a stale answer costs time, never correctness.
    fn shard(&self, ask: &Ask) -> usize;

    /// Carries `asks` to their shard. One reply an ask, in order; one that fails fails alone.
    fn exchange<'a>(&'a self, asks: &'a [Ask]) -> Replies<'a>;

    /// One word for people: where the counts live, such as `memory` or `cluster 127.0.0.1:7000`.
    /// Never a password.
    fn describe(&self) -> String;
}

/// What [`Store::exchange`] returns.
pub type Replies<'a> = Pin<Box<dyn Future<Output = Vec<Result<Grant, StoreError>>> + Send + 'a>>;

/// Shards that one store may have: the masters of a large Redis Cluster, twice over.
pub const SHARDS_MAX: usize = 2048;

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
    /// Whether a denial (`need` above what is left) overdraws the key.
    pub charge_denied: bool,
    /// Tokens to credit before the rest.
    pub back: Option<Back>,
}

/// Tokens that return to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Back {
    /// How many.
    pub tokens: u64,
    /// The window they were lent in; `None` for a refund, which goes to the present one.
    pub window: Option<u64>,
}

/// The store's reply to an [`Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// Tokens lent, already debited.
    pub tokens: u64,
    /// Tokens that the store still has after this.
    pub left: u64,
    /// More was charged than the limit allows: even a look is over the limit.
    pub overdrawn: bool,
    /// Number of the window since the epoch: `unix seconds / window seconds`.
    pub window: u64,
    /// Until the window ends, by the store's time; above zero and at most the window.
    pub reset_after: Duration,
}

/// Why an ask has no grant. None of them says whether the ask was taken, unless noted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No connection to the shard, or it broke.
    #[error("the store cannot be reached: {0}")]
    Unreachable(String),
    /// No reply within the deadline of the ask.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store answered that it cannot take the ask (not taken).
    #[error("the store refused the ask: {0}")]
    Refused(String),
    /// Too many asks are waiting for this shard (not taken).
    #[error("too many asks are waiting for the store")]
    Overloaded,
    /// The reply is not one that the script can give.
    #[error("the store gave an unexpected reply: {0}")]
    Garbled(String),
}
