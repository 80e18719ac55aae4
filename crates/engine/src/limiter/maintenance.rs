//! Periodic work on the table: gives back tokens that will not be spent, ends holds, and applies
//! changed rules to keys without requests.

use std::collections::VecDeque;
use std::mem::size_of;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Rule, Rules};

use crate::buffer::table::Entry;
use crate::time::Time;

use super::{Limiter, Shared};
use crate::limiter::key::{KeyState, Visit};
use crate::limiter::starts::{LOOK_EVERY, Unspent};

/// The shortest time between two checks of keys that may be idle. Keys that become due within it
/// are checked together.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The largest number of idle keys that are checked at once: their returns must find room in the
/// lease client's queue.
const IDLE_CHECK_BATCH: usize = 1024;

/// The largest number of keys that wait to be checked: more than three seconds' worth of checks.
const IDLE_MAX: usize = 1 << 16;

/// The keys that wait to be checked take at most the buffers' budget divided by this.
const IDLE_DIVISOR: usize = 32;

/// A look at the starts that is late by this is put off, once: signs of life and ends may wait to
/// be read.
const LOOK_LATE: Duration = Duration::from_millis(100);

/// After this many keys of a sweep, other tasks of the thread have their turn. A sweep takes some
/// 50 ns a key.
const SWEEP_BATCH: usize = 4096;

/// Bytes for each key that waits to be checked.
pub(super) const IDLE_BYTES: usize = size_of::<(Time, Key)>();

impl Limiter {
    /// Maintains the table and the count of pods; never returns. Each limiter needs one task that
    /// runs this, or five tasks that run one of its parts each: [`Limiter::run_heartbeats`],
    /// [`Limiter::run_eviction`], [`Limiter::run_idle_returns`], [`Limiter::run_holds`] and
    /// [`Limiter::run_orders`].
    pub async fn run(&self) {
        tokio::join!(
            self.run_heartbeats(),
            self.run_eviction(),
            self.run_idle_returns(),
            self.run_holds(),
            self.run_orders(),
        );
    }

    /// Ends the starts whose end has not come in time, or whose Envoy is gone, at most a second
    /// late; never returns. Sleeps while there are none.
    pub async fn run_holds(&self) {
        let Shared { held, clock, looks_at_starts, .. } = &*self.shared;
        let mut was_late = false;
        loop {
            looks_at_starts.store(true, Ordering::Release);
            let since = clock.now();
            tokio::time::sleep_until(clock.next_multiple(LOOK_EVERY)).await;
            let is_late = clock.now().since(since) >= LOOK_EVERY + LOOK_LATE;
            was_late = is_late && !was_late;
            if was_late {
                continue; // this process was stopped: it reads first what came meanwhile
            }
            if self.end_starts().await {
                continue;
            }
            looks_at_starts.store(false, Ordering::Release);
            // One that came since the last look has seen the flag up.
            if !self.end_starts().await {
                held.notified().await;
            }
        }
    }

    /// Ends the starts that are over. Returns whether there are others.
    async fn end_starts(&self) -> bool {
        let Shared { starts, owners, clock, .. } = &*self.shared;
        let now = clock.now();
        let present = owners.present(now);
        let mut are_any = false;
        for part in starts.parts() {
            let (unspent, more) = starts.expire(part, now, |start| present.cause(start, now));
            are_any |= more;
            self.shared.release(unspent, now);
            tokio::task::yield_now().await;
        }
        are_any
    }

    /// Evicts expired keys with each round of heartbeats; never returns.
    pub async fn run_eviction(&self) {
        let mut rounds = self.rounds();
        // The sender lives as long as `self`.
        while rounds.changed().await.is_ok() {
            self.evict_expired().await;
        }
    }

    /// Gives back the tokens that idle keys hold above their allowance; never returns. Sleeps while
    /// no key is watched.
    pub async fn run_idle_returns(&self) {
        let Shared { idle, watched, clock, .. } = &*self.shared;
        let mut not_before = Time::default();
        loop {
            let first = idle.lock().front().map(|(due, _)| *due);
            let Some(due) = first else {
                watched.notified().await;
                continue;
            };
            tokio::time::sleep_until(clock.instant(due.max(not_before))).await;
            self.shared.return_idle();
            not_before = clock.now() + IDLE_CHECK_INTERVAL;
        }
    }

    /// Gives back the tokens of rules that are missing in `rules`, or have another limit there.
    /// Idle slots wait for the next check of their key: requests that come while an ask states
    /// their number would wait for its reply.
    pub async fn apply_rules(&self, rules: &Rules) {
        self.sweep(|state, visit| {
            if stale(rules, state) && !state.is_of_slots() && state.takes_returns(visit) {
                state.give_back_tokens(visit);
            }
        })
        .await;
    }

    /// Evicts the keys whose window has ended, and asks for those that are not watched since too
    /// many are. Call it every few seconds.
    pub async fn evict_expired(&self) {
        self.shared.orders.forget_ended(self.shared.clock.now());
        self.sweep(KeyState::ask_unwatched).await;
    }

    /// Gives every unspent token back, and returns once the store has answered; an unavailable
    /// store is not waited for long. No decision may be in progress; later ones find the store
    /// closed.
    pub async fn close(&self) {
        // A lease that is still on its way must arrive before it can be given back. So must the
        // lease of the ask that follows a reply, for costs that were not reported with the first.
        for _ in 0..2 {
            self.shared.lease_client.wait_for_replies().await;
        }
        self.sweep(KeyState::give_back).await;
        self.leave().await;
        self.shared.lease_client.close().await;
    }

    /// Calls `check` on every key, removes the keys that are of no more use, and sends the asks
    /// that this leads to.
    async fn sweep(&self, mut check: impl FnMut(&mut KeyState, &mut Visit<'_>)) {
        let Self { shared } = self;
        let mut visited = 0;
        for partition in shared.table.partitions() {
            let now = shared.clock.now();
            let mut returned = Vec::new();
            shared.table.retain(partition, |key, state| {
                visited += 1;
                let mut visit = shared.visit(key, now);
                check(state, &mut visit);
                let stays = state.is_busy() || state.is_live(now);
                if !stays {
                    state.give_back_evicted(&mut visit); // what has ended is counted
                }
                returned.append(&mut visit.asks);
                stays
            });
            for ask in returned {
                if ask.is_return() {
                    shared.lease_client.send_wait(ask).await;
                } else {
                    shared.lease_client.queue(ask); // its key counts it as out
                }
            }
            if visited >= SWEEP_BATCH {
                visited = 0;
                tokio::task::yield_now().await;
            }
        }
    }
}

impl Shared {
    /// Schedules a check of `key` when it is `due`. Above the limit of watched keys the key is not
    /// watched: it keeps its tokens until its next lease, or until their lease ends.
    pub(super) fn watch(&self, key: Key, due: Time) {
        let (has_room, is_first) = {
            let mut idle = self.idle.lock();
            // A key that was evicted while it was in this queue may be in it twice.
            let has_room = idle.len() < idle.capacity();
            let is_first = idle.is_empty();
            if has_room {
                idle.push_back((due, key));
            }
            (has_room, is_first)
        };
        if !has_room {
            self.table.with_existing(key, KeyState::unwatch);
        } else if is_first {
            self.watched.notify_one();
        }
    }

    /// Gives back the tokens that idle keys hold above their allowance.
    fn return_idle(&self) {
        let now = self.clock.now();
        let due = |(due, _): &mut (Time, Key)| *due <= now;
        for _ in 0..IDLE_CHECK_BATCH {
            let next = self.idle.lock().pop_front_if(due);
            let Some((_, key)) = next else { break };
            // The asks are sent while the room that the check found lasts.
            let next = self.with_existing(key, None, now, KeyState::inspect);
            if let Some(due) = next.flatten() {
                self.watch(key, due);
            }
        }
    }
}

impl Shared {
    /// Gives back the tokens of requests that were held at `now` and that nothing has settled; to
    /// each count at once.
    fn release(&self, mut unspent: Vec<Unspent>, now: Time) {
        unspent.sort_by_key(|unspent| unspent.key);
        unspent.dedup_by(|next, first| first.join(next));
        for unspent in &unspent {
            self.give_back_unspent(unspent, now);
        }
    }
}

/// A queue that never grows, for a limiter whose buffers may take `budget` bytes.
pub(super) fn idle_queue(budget: usize) -> VecDeque<(Time, Key)> {
    VecDeque::with_capacity((budget / IDLE_DIVISOR / IDLE_BYTES).min(IDLE_MAX))
}

/// Whether two rules lend tokens in the same way.
fn have_same_lease_terms(one: &Rule, other: &Rule) -> bool {
    let policy = |rule: &Rule| (rule.allowance, rule.leasing, rule.shards);
    policy(one) == policy(other)
}

/// Whether the key's rule is gone or now lends differently. An unchanged rule is replaced by its
/// new copy, so that old versions of the rules can be freed.
fn stale(rules: &Rules, state: &mut KeyState) -> bool {
    let Some(rule) = state.rule() else { return false };
    match rules.by_path(&rule.path).filter(|new| have_same_lease_terms(new, rule)) {
        Some(new) => {
            state.renew(new);
            false
        }
        None => true,
    }
}
