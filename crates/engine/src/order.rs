//! Orders of an operator for single keys on all pods: plain values that the limiter follows and the
//! stores transfer.

pub mod place;

use std::time::Duration;

use ratelease_rules::alters_display;
use ratelease_rules::key::Key;

use crate::pod::PodRecord;

pub use self::place::Place;

/// An order for one key: its action, who gave it, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// The action of each pod.
    pub action: Action,
    /// Who gave it, and when.
    pub note: Note,
}

/// The action of each pod on the key of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The key counts from nothing: its count has been deleted, and pods forget its state.
    Reset,
    /// Pods deny every charge of the key for this long.
    Block(Duration),
    /// The key is no longer blocked.
    Lift,
}

/// Who gave an order, and when.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Note {
    /// The operator, by a text of theirs; empty if the order does not say. At most
    /// [`BY_BYTES_MAX`], and no character in it controls a terminal.
    pub by: Box<str>,
    /// The store's time then, since the Unix epoch. An order that is yet to be given has none.
    pub given: Duration,
}

/// A key that is blocked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The key.
    pub key: Key,
    /// How much longer.
    pub lasts: Duration,
    /// Who blocked it, and when.
    pub note: Note,
}

/// A store's report about orders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// An order was given just now; the time of a block is the remaining time.
    Now(Key, Order),
    /// These keys are blocked, and no others of this store.
    Blocked(Vec<Blocked>),
}

/// The orders of one store, as a tool reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOrders {
    /// The name of the store.
    pub store: String,
    /// The place of the last order.
    pub last: Place,
    /// The keys that are blocked.
    pub blocked: Vec<Blocked>,
}

/// Follows the orders of stores.
pub trait Follower: Send + Sync {
    /// Receives news from the store of this number among several. It must be short and must not
    /// block.
    fn hear(&self, store: usize, ordered: Ordered);

    /// The record that the store keeps of the follower; `None` if it is no pod.
    fn record(&self) -> Option<PodRecord> {
        None
    }
}

/// A follower that a store calls.
pub type Follow<'a> = &'a dyn Follower;

/// The largest number of orders of one store that have not ended.
pub const ORDERS_MAX: usize = 256;

/// The longest time that a key can be blocked: 366 days.
pub const BLOCK_MAX: Duration = Duration::from_secs(366 * 86_400);

/// How long a reset is kept for pods that are not connected when it is given. Longer than they
/// remember that a key has no tokens, and than an ask may take.
pub const RESET_LASTS: Duration = Duration::from_secs(60);

/// The largest text that says who gave an order, in bytes: a user and the name of a host.
pub const BY_BYTES_MAX: usize = 128;

// === impl Follower for a closure, which is no pod ===

impl<F: Fn(usize, Ordered) + Send + Sync> Follower for F {
    fn hear(&self, store: usize, ordered: Ordered) {
        self(store, ordered);
    }
}

// === impl Order ===

impl Order {
    /// An order that `by` gives.
    pub fn new(action: Action, by: &str) -> Self {
        Self { action, note: Note::new(by, Duration::ZERO) }
    }
}

// === impl Note ===

impl Note {
    /// A note of an order that was `given` then. Any client of the store may have written `by`, so
    /// that characters which control a terminal are left out, and a text that is too long is cut.
    pub fn new(by: &str, given: Duration) -> Self {
        let mut shown: String = by.chars().filter(|it| !alters_display(*it)).collect();
        shown.truncate(shown.floor_char_boundary(BY_BYTES_MAX));
        Self { by: shown.trim().into(), given }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_cut_and_controls_no_terminal() {
        let by = |text: &str| Note::new(text, Duration::ZERO).by;
        assert_eq!(&*by(" alice@laptop "), "alice@laptop");
        assert_eq!(&*by("a\u{1b}[31m\nb"), "a[31mb");
        assert_eq!(by(&"é".repeat(100)).len(), BY_BYTES_MAX);
        assert_eq!(by(&format!("{}é", "x".repeat(BY_BYTES_MAX - 1))).len(), BY_BYTES_MAX - 1);
    }
}
