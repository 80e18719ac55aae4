//! Orders of an operator for single keys: which keys are blocked, and which were reset lately.
//!
//! A blocked key is denied before anything else is looked at, so that it needs no room in the table
//! and no ask. A reset key is forgotten: the store has deleted its count, and tokens that were
//! leased from that are dropped here, not returned to the new one.

use std::array;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::Key;
use ratelease_rules::{Rules, STORES_MAX};
use tracing::{info, warn};

use super::key::KeyState;
use super::{Charge, Limiter, Shared};
use crate::order::{Action, Blocked, Follower, Note, ORDERS_MAX, Order, Ordered};
use crate::pod::{self, PodRecord, SLOTS_MAX};
use crate::time::Time;

/// Blocks are kept by key in this many parts, so that cores which look for different keys do not
/// wait for each other.
const PARTS: usize = 64;

/// The largest number of blocks of all stores together.
const BLOCKS_MAX: usize = ORDERS_MAX * (STORES_MAX + 2);

/// Resets that are remembered: as many of each minute as one store may have.
const RESETS_MAX: usize = 2 * ORDERS_MAX;

/// No ask is out longer, which the lease client answers within ten seconds, and no request waits
/// longer for its slot in time: a minute at most (`max_delay`).
const RESET_REMEMBERED: Duration = Duration::from_secs(75);

/// The time of a reset that is under way: it is later than all that has happened.
const UNDER_WAY: Time = Time::from_nanos(u64::MAX);

/// The blocks in force, and the resets of the last seconds.
pub(super) struct Orders {
    /// Number of blocks, some of which may have ended. While it is 0, no lock is taken.
    blocks: AtomicUsize,
    parts: [Mutex<Vec<Block>>; PARTS],
    /// Number of resets that are remembered.
    resets: AtomicUsize,
    reset_at: Mutex<VecDeque<(Key, Time)>>,
}

#[derive(Debug, Clone)]
struct Block {
    key: Key,
    ends: Time,
    /// The number of the store that said so.
    store: usize,
    note: Note,
}

// === impl Orders ===

impl Default for Orders {
    fn default() -> Self {
        Self {
            blocks: AtomicUsize::new(0),
            parts: array::from_fn(|_| Mutex::default()),
            resets: AtomicUsize::new(0),
            reset_at: Mutex::default(),
        }
    }
}

impl Orders {
    /// How much longer `key` is blocked; `None` if it is not.
    #[inline]
    fn blocked_for(&self, key: Key, now: Time) -> Option<Duration> {
        if self.blocks.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.find(key, now)
    }

    /// How much longer the key of `charge`, or the key that its count has under the secret before,
    /// is blocked; `None` if neither is.
    #[inline]
    pub(super) fn charge_blocked_for(&self, charge: &Charge<'_>, now: Time) -> Option<Duration> {
        let blocked_for = |key| self.blocked_for(key, now);
        blocked_for(charge.own).or_else(|| charge.previous.and_then(blocked_for))
    }

    #[cold]
    fn find(&self, key: Key, now: Time) -> Option<Duration> {
        let part = self.part(key).lock();
        let block = part.iter().find(|block| block.key == key && now < block.ends)?;
        Some(block.ends.since(now))
    }

    /// Whether `key` was reset at `since` or later. Tokens that were taken at `since` go back only
    /// if not: call this under the lock of the key.
    pub(super) fn was_reset_since(&self, key: Key, since: Time) -> bool {
        self.resets.load(Ordering::Relaxed) > 0
            && self.reset_at.lock().iter().any(|(reset, at)| *reset == key && *at >= since)
    }

    /// The keys that are blocked, those that are blocked for longest first.
    fn blocked(&self, now: Time) -> Vec<Blocked> {
        let mut blocked = Vec::new();
        for part in self.parts.iter().filter(|_| self.len() > 0) {
            let part = part.lock();
            let in_force = part.iter().filter(|block| now < block.ends);
            blocked.extend(in_force.map(|Block { key, ends, note, .. }| Blocked {
                key: *key,
                lasts: ends.since(now),
                note: note.clone(),
            }));
        }
        blocked.sort_by_key(|blocked| (Reverse(blocked.lasts), blocked.key));
        blocked
    }

    /// Number of keys that are blocked.
    pub(super) fn len(&self) -> usize {
        self.blocks.load(Ordering::Relaxed)
    }

    /// Forgets blocks and resets that have ended.
    pub(super) fn forget_ended(&self, now: Time) {
        if self.blocks.load(Ordering::Relaxed) > 0 {
            self.change(|_, blocks| blocks.retain(|block| now < block.ends));
        }
        if self.resets.load(Ordering::Relaxed) > 0 {
            let mut resets = self.reset_at.lock();
            resets.retain(|(_, at)| now.since(*at) < RESET_REMEMBERED);
            self.resets.store(resets.len(), Ordering::Relaxed);
        }
    }

    /// Notes that a reset of `key` is under way.
    fn begin_reset(&self, key: Key) {
        let mut resets = self.reset_at.lock();
        resets.truncate(RESETS_MAX - 1);
        resets.push_front((key, UNDER_WAY));
        self.resets.store(resets.len(), Ordering::Relaxed);
    }

    /// Notes that a reset of `key` was done by `now`.
    fn end_reset(&self, key: Key, now: Time) {
        let mut resets = self.reset_at.lock();
        let under_way = resets.iter_mut().filter(|reset| **reset == (key, UNDER_WAY));
        under_way.for_each(|(_, at)| *at = now);
    }

    /// Blocks a key, or lifts its block if it lasts no time.
    fn block(&self, store: usize, Blocked { key, lasts, note }: Blocked, now: Time) {
        let mut part = self.part(key).lock();
        let before = part.len();
        part.retain(|block| block.key != key);
        if !lasts.is_zero() && self.len() < BLOCKS_MAX {
            part.push(Block { key, ends: now + lasts, store, note });
        }
        // Under the lock of the part, so that the sum of all changes is right.
        self.blocks.fetch_add(part.len(), Ordering::Relaxed);
        self.blocks.fetch_sub(before, Ordering::Relaxed);
    }

    /// Blocks these keys of a store, and no others of it. At no moment is a key free that was
    /// blocked before and is blocked after.
    fn block_only(&self, store: usize, keys: &[Blocked], now: Time) {
        self.change(|at, blocks| {
            blocks.retain(|block| block.store != store);
            let here = keys.iter().filter(|blocked| part_of(blocked.key) == at).cloned();
            blocks.extend(here.map(|Blocked { key, lasts, note }| Block {
                key,
                ends: now + lasts,
                store,
                note,
            }));
        });
    }

    /// Calls `change` on each part.
    fn change(&self, mut change: impl FnMut(usize, &mut Vec<Block>)) {
        for (at, part) in self.parts.iter().enumerate() {
            let mut part = part.lock();
            let before = part.len();
            change(at, &mut part);
            self.blocks.fetch_add(part.len(), Ordering::Relaxed);
            self.blocks.fetch_sub(before, Ordering::Relaxed);
        }
    }

    fn part(&self, key: Key) -> &Mutex<Vec<Block>> {
        &self.parts[part_of(key)]
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower bits are what is meant")]
fn part_of(key: Key) -> usize {
    key.bits() as usize % PARTS
}

// === impl Limiter ===

impl Limiter {
    /// Follows the orders of operators for single keys; never returns.
    pub async fn run_orders(&self) {
        self.shared.lease_client.follow_orders(&*self.shared).await;
    }

    /// Says in the store by which rules this pod makes its keys, so that a tool can tell whether it
    /// makes the same. It may take 100 ns for each rule.
    pub fn register_rules(&self, rules: &Rules) {
        let domains = pod::fingerprints(rules, &self.shared.options.hasher);
        self.shared.record.lock().domains = domains;
    }

    /// The keys that are blocked by order, those that are blocked for longest first.
    pub fn blocked(&self) -> Vec<Blocked> {
        self.shared.orders.blocked(self.shared.clock.now())
    }
}

impl Follower for Shared {
    fn hear(&self, store: usize, ordered: Ordered) {
        self.follow_order(store, ordered);
    }

    fn record(&self) -> Option<PodRecord> {
        let now = self.clock.now();
        let slots = self.starts.slots_since().into_iter();
        let mut slots: Vec<_> = slots.map(|(key, since)| (key, now.since(since))).collect();
        slots.sort_unstable_by_key(|(key, has)| (Reverse(*has), *key));
        slots.truncate(SLOTS_MAX);
        Some(PodRecord { slots, ..self.record.lock().clone() })
    }
}

impl Shared {
    pub(super) fn follow_order(&self, store: usize, ordered: Ordered) {
        let now = self.clock.now();
        let (key, Order { action, note }) = match ordered {
            Ordered::Blocked(keys) => return self.orders.block_only(store, &keys, now),
            Ordered::Now(key, order) => (key, order),
        };
        let by = note.by.clone();
        match action {
            Action::Block(lasts) => {
                self.orders.block(store, Blocked { key, lasts, note }, now);
                let seconds = lasts.as_secs_f64();
                match self.orders.blocked_for(key, now) {
                    Some(_) => info!(%key, seconds, %by, "a key is blocked by order"),
                    None => warn!(%key, %by, "a key cannot be blocked: {BLOCKS_MAX} keys are"),
                }
            }
            Action::Lift => {
                self.orders.block(store, Blocked { key, lasts: Duration::ZERO, note }, now);
                info!(%key, %by, "the block of a key is lifted by order");
            }
            Action::Reset => {
                self.follow_reset(key);
                info!(%key, %by, "the count of a key is reset by order");
            }
        }
    }

    /// Forgets the count of `key`, which the store has deleted.
    ///
    /// Tokens that were taken from it before never come back to the new count. They lie in the
    /// buffer, which is emptied, and in the holds of open starts, which forget them. Others are in
    /// hand: of requests that are being decided, of starts that are ending, of asks on their way.
    /// Their holders find out by [`Orders::was_reset_since`]: the reset counts as later than
    /// anything from before the first step until after the last one. Tokens of the new count that
    /// come meanwhile are forgotten too, so that rather too much is counted. Slots are no such
    /// tokens: open starts lose them, and the pod states all others in use to the new count.
    fn follow_reset(&self, key: Key) {
        self.orders.begin_reset(key);
        self.table.with_existing(key, KeyState::forget_count);
        let slots = self.starts.forget_key(key);
        self.table.with_existing(key, |state| state.end_use(slots));
        self.orders.end_reset(key, self.clock.now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::from_nanos(1_000_000_000);

    /// The time that a block lasts.
    const MINUTE: Duration = Duration::from_secs(60);

    fn key(n: u64) -> Key {
        Key::for_test(n)
    }

    fn blocked(n: u64, lasts: Duration) -> Blocked {
        Blocked { key: key(n), lasts, note: Note::default() }
    }

    #[test]
    fn a_key_is_blocked_until_its_time_ends_or_the_block_is_lifted() {
        let orders = Orders::default();
        assert_eq!(orders.blocked_for(key(1), NOW), None);
        orders.block(0, blocked(1, MINUTE), NOW);
        orders.block(0, blocked(2, MINUTE), NOW);
        assert_eq!(orders.blocked_for(key(1), NOW), Some(MINUTE));
        assert_eq!(orders.blocked_for(key(3), NOW), None);
        orders.block(0, blocked(1, 2 * MINUTE), NOW);
        assert_eq!((orders.blocked_for(key(1), NOW + MINUTE), orders.len()), (Some(MINUTE), 2));
        orders.block(0, blocked(1, Duration::ZERO), NOW);
        assert_eq!((orders.blocked_for(key(1), NOW), orders.len()), (None, 1));
        assert_eq!(orders.blocked_for(key(2), NOW + MINUTE), None);
        orders.forget_ended(NOW + MINUTE);
        assert_eq!(orders.len(), 0);
    }

    #[test]
    fn what_one_store_says_leaves_the_blocks_of_another() {
        let orders = Orders::default();
        orders.block(1, blocked(1, MINUTE), NOW);
        orders.block_only(0, &[blocked(2, MINUTE), blocked(3, MINUTE)], NOW);
        orders.block_only(0, &[blocked(3, MINUTE)], NOW);
        let is_blocked = [1, 2, 3].map(|n| orders.blocked_for(key(n), NOW).is_some());
        assert_eq!((is_blocked, orders.len()), ([true, false, true], 2));
        orders.block(0, blocked(2, 2 * MINUTE), NOW);
        let listed = orders.blocked(NOW + MINUTE);
        assert_eq!(listed, [blocked(2, MINUTE)], "the others have ended");
    }

    #[test]
    fn blocks_and_resets_are_bounded() {
        let orders = Orders::default();
        for n in 0..2 * BLOCKS_MAX as u64 {
            orders.block(0, blocked(n, MINUTE), NOW);
            orders.begin_reset(key(n));
        }
        assert_eq!(orders.len(), BLOCKS_MAX);
        assert_eq!(orders.reset_at.lock().len(), RESETS_MAX);
    }

    #[test]
    fn a_reset_is_remembered_for_asks_that_were_sent_before_it() {
        let orders = Orders::default();
        orders.begin_reset(key(1));
        assert!(orders.was_reset_since(key(1), NOW + 2 * MINUTE), "while it is under way");
        orders.end_reset(key(1), NOW + MINUTE);
        assert!(orders.was_reset_since(key(1), NOW));
        assert!(!orders.was_reset_since(key(2), NOW));
        assert!(!orders.was_reset_since(key(1), NOW + 2 * MINUTE));
        orders.forget_ended(NOW + MINUTE + RESET_REMEMBERED);
        assert!(!orders.was_reset_since(key(1), NOW));
    }
}
