//! Decides: takes from the buffers, waits for leases where it must, and makes the verdict.
//!
//! The only place where buffers and the lease desk meet.

mod holding;
mod keep;
mod lend;
mod resolve;
mod slot;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::buffer::table::{Table, TableFull};
use crate::key::{Key, KeyHasher};
use crate::lease::{Desk, Reply};
use crate::request::Request;
use crate::rules::Rules;
use crate::store::{Ask, Store, StoreError};
use crate::time::{Clock, Time};
use crate::verdict::{Modes, Verdict};

use holding::Holding;
use resolve::Charge;
use slot::{Attempt, Entered, Settled, Slot};

/// Decides requests. A handle: clones share everything.
#[derive(Clone)]
pub struct Limiter {
    shared: Arc<Shared>,
}

/// How a limiter is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// How long a request waits for a lease at most.
    pub max_wait: Duration,
    /// Keys held at most.
    pub keys_max: usize,
    /// This pod among those that share the store: a number of its own drawing.
    pub pod: u64,
    /// Makes keys of descriptors; the same on every pod that shares counts.
    pub hasher: KeyHasher,
    /// How answers are made.
    pub modes: Modes,
}

/// What the handles share.
struct Shared {
    table: Table<Slot>,
    /// Pods alive, as the store last said; at least 1.
    pods: AtomicU32,
    desk: Desk,
    clock: Clock,
    options: Options,
}

// === impl Limiter ===

impl Limiter {
    /// A limiter that leases from `store`. Starts no task until a lease is needed.
    pub fn new(store: Arc<dyn Store>, clock: Clock, options: Options) -> Self {
        let shared = Arc::new_cyclic(|weak: &Weak<Shared>| {
            let weak = Weak::clone(weak);
            let on_reply = move |reply| {
                if let Some(shared) = weak.upgrade() {
                    shared.on_reply(reply);
                }
            };
            let desk = Desk::open(store, clock, Box::new(on_reply));
            let (table, pods) = (Table::new(options.keys_max), AtomicU32::new(keep::PODS_FIRST));
            Shared { table, pods, desk, clock, options }
        });
        Self { shared }
    }

    /// The verdict on `request` under `rules`, within `max_wait`.
    ///
    /// Every descriptor is checked before any is charged for good: if one denies, what was taken
    /// for the others goes back. Local words come first, so that a denial found here asks nobody;
    /// the leases that are missing are asked for together.
    ///
    /// # Errors
    ///
    /// The store could not answer, and without it there is no telling: what it did say denies
    /// nothing. Nothing is charged then.
    pub async fn decide(
        &self,
        rules: &Rules,
        request: &Request<'_>,
    ) -> Result<Verdict, StoreError> {
        let resolved = resolve::resolve(rules, request, &self.shared.options.hasher);
        let now = self.shared.clock.now();
        let mut holding = Holding::new(&self.shared, &resolved);
        holding.take_local(now)?;
        if holding.is_short() && !holding.is_denied() {
            holding.take_leased(now, now + self.shared.options.max_wait).await?;
        }
        Ok(holding.conclude(request))
    }

    /// Keys held at present.
    pub fn keys(&self) -> usize {
        self.shared.table.len()
    }
}

// === impl Shared ===

impl Shared {
    /// Charges what is held here, if that is enough.
    fn attempt(&self, charge: &Charge, now: Time) -> Result<Attempt, StoreError> {
        let round_trip = self.desk.round_trip();
        self.with_slot(charge, now, |slot| {
            let attempt = slot.attempt(charge, now);
            (attempt, slot.ask_ahead(charge.key, round_trip, now))
        })
    }

    /// Charges what is held here or queues for the next lease.
    fn enter(&self, charge: &Charge, now: Time) -> Result<Entered, StoreError> {
        self.with_slot(charge, now, |slot| slot.enter(charge, now))
    }

    /// Runs `visit` on the slot of `charge`, then sends what it wants to ask, without the lock.
    fn with_slot<R>(
        &self,
        charge: &Charge,
        now: Time,
        visit: impl FnOnce(&mut Slot) -> (R, Option<Ask>),
    ) -> Result<R, StoreError> {
        let visited = self.table.with(
            charge.key,
            || Slot::new(charge, now),
            |slot| (slot.adopt(charge, now), visit(slot)),
        );
        let ((returned, (result, ask)), evicted) =
            visited.map_err(|TableFull| StoreError::Overloaded)?;
        let evicted = evicted.and_then(|(key, mut slot)| slot.give_back(key, now));
        for ask in [returned, evicted, ask].into_iter().flatten() {
            self.desk.ask(ask);
        }
        Ok(result)
    }

    /// Tokens that were taken and are not spent after all.
    fn put_back(&self, key: Key, settled: Settled) {
        let now = self.clock.now();
        self.table.with_existing(key, |slot| slot.put_back(settled, now));
    }

    /// Hands a reply of the store to the key it is about, and asks on if requests still wait.
    fn on_reply(&self, reply: Reply) {
        if reply.ask.back.is_some_and(|back| back.epoch.is_some()) {
            // Tokens given back: nobody waits, and what was lost on the way ends with its window.
            return;
        }
        let now = self.clock.now();
        let asks = self.table.with_existing(reply.ask.key, |slot| slot.reply(&reply, now));
        // A key that was evicted since has no use for its lease.
        let asks = asks.unwrap_or_else(|| [lend::unwanted(&reply), None, None]);
        for ask in asks.into_iter().flatten() {
            self.desk.ask(ask);
        }
    }
}

#[cfg(test)]
mod tests;
