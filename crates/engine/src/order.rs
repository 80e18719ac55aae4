//! Orders of an operator for one key on all pods: plain values that the limiter follows and the
//! stores transfer.

use std::time::Duration;

use ratelease_rules::key::Key;

/// What an operator orders for one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The key counts from nothing: its count has been deleted, and pods forget what they know of it.
    Reset,
    /// Pods deny every charge of the key for this long.
    Block(Duration),
    /// The key is no longer blocked.
    Lift,
}

/// What a store says about orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// An order was given just now; the time of a block is what is left of it.
    Now(Key, Order),
    /// These keys are blocked, each for this long, and no others of this store.
    Blocked(Vec<(Key, Duration)>),
}

/// Receives what a store says, with the store's number among several. It must be short and must not
/// block.
pub type Follow<'a> = &'a (dyn Fn(usize, Ordered) + Send + Sync);

/// The largest number of orders of one store that have not ended.
pub const ORDERS_MAX: usize = 256;

/// The longest time that a key can be blocked: 366 days.
pub const BLOCK_MAX: Duration = Duration::from_secs(366 * 86_400);

/// How long a reset is kept for pods that are not connected when it is given. Longer than they
/// remember that a key has no tokens, and than an ask may take.
pub const RESET_LASTS: Duration = Duration::from_secs(60);
