//! Keeping the table: tokens that nobody will spend go back to the store.

use std::collections::VecDeque;
use std::mem::size_of;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use crate::buffer::table::Entry;
use crate::key::Key;
use crate::rules::{Rule, Rules};
use crate::store::{Ask, Beat};
use crate::time::Time;

use super::outcome::Watch;
use super::slot::Slot;
use super::{Limiter, Ordering, Shared};

/// Pods that are taken to share the store before it has told: too few strand tokens.
pub(super) const PODS_FIRST: u32 = 16;

/// Between two signs of life.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// How often keys of which nothing is known any more are forgotten.
const TIDY_INTERVAL: Duration = Duration::from_secs(1);

/// How often keys that may lie idle are looked at.
const WATCH_INTERVAL: Duration = Duration::from_millis(50);

/// Idle keys that are looked at at once: their returns must find room in the desk's queue.
const WATCH_BATCH: usize = 1024;

/// Keys that wait to be looked at at most, as far as a 32nd of the buffers' budget holds them: more
/// than three seconds of looking.
const IDLE_MAX: usize = 1 << 16;
const IDLE_DIVISOR: usize = 32;

/// Bytes of a key that waits to be looked at.
pub(super) const IDLE_BYTES: usize = size_of::<(Time, Key)>();

/// A pod that has not been heard of for so long is taken for dead: three beats.
const BEAT_LASTS: Duration = Duration::from_secs(3);

/// What the last beats heard of how many pods are alive.
///
/// After an outage that outlasts [`BEAT_LASTS`] the first pod that gets through finds itself alone,
/// until the others do, which their back-off may take two seconds to. Were it to believe that, it
/// would take the whole limit for its part: so the count falls only once the last beats agree.
#[derive(Debug, Default)]
struct Heard([u32; HEARD_BEATS]);

const HEARD_BEATS: usize = 4;

// === impl Heard ===

impl Heard {
    /// Pods that are taken to be alive, at least 1.
    fn note(&mut self, pods: u32) -> u32 {
        self.0.rotate_right(1);
        if let Some(last) = self.0.first_mut() {
            *last = pods;
        }
        self.0.into_iter().fold(1, u32::max)
    }
}

impl Limiter {
    /// Keeps the table and the count of pods up to date, for ever. One task of each limiter runs
    /// it, or three tasks one of its parts each: [`Limiter::keep_beating`], [`Limiter::keep_tidy`]
    /// and [`Limiter::watch_idle`].
    pub async fn run(&self) {
        tokio::join!(self.keep_beating(), self.keep_tidy(), self.watch_idle());
    }

    /// Tells the store every second that this pod is alive, and divides the desk's budget by the
    /// pods that are; never returns.
    pub async fn keep_beating(&self) {
        let mut ticks = tokio::time::interval(BEAT_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Heard::default();
        loop {
            ticks.tick().await;
            if let Some(pods) = self.beat(false).await {
                let pods = heard.note(pods);
                self.shared.pods.store(pods, Ordering::Relaxed);
                self.shared.desk.set_pods(pods);
            }
        }
    }

    /// Forgets keys of which nothing is known any more, every second, for ever.
    pub async fn keep_tidy(&self) {
        let mut ticks = tokio::time::interval(TIDY_INTERVAL);
        loop {
            ticks.tick().await;
            self.tidy().await;
        }
    }

    /// Gives back what idle keys hold above their allowance, for ever.
    pub async fn watch_idle(&self) {
        let mut ticks = tokio::time::interval(WATCH_INTERVAL);
        loop {
            ticks.tick().await;
            self.shared.return_idle();
        }
    }

    /// Tells the store that this pod is alive, or `leaves`, and learns how many are; nothing where
    /// the store does not say.
    async fn beat(&self, leaves: bool) -> Option<u32> {
        let Self { shared } = self;
        let beat = Beat { pod: shared.options.pod, lasts: BEAT_LASTS, leaves, domain: None };
        shared.desk.beat(beat).await.ok()
    }

    /// Gives back the tokens of rules that `rules` no longer has, or has with another limit.
    pub async fn adopt(&self, rules: &Rules) {
        self.sweep(|key, slot, now, asks| {
            if stale(rules, slot) {
                slot.give_back(key, now, asks);
            }
        })
        .await;
    }

    /// Forgets the keys whose window has ended. To be called every second or so.
    pub async fn tidy(&self) {
        self.sweep(|_, _, _, _| ()).await;
    }

    /// Gives every unspent token back and returns once the store has replied. Shards that are away
    /// are not waited for long, and keep no other from its tokens. No decision may be under way;
    /// later ones find the store closed.
    pub async fn close(&self) {
        // A lease that is still on its way has to be here to be given back.
        self.shared.desk.settle().await;
        self.sweep(|key, slot, now, asks| slot.give_back(key, now, asks)).await;
        self.beat(true).await;
        self.shared.desk.close().await;
    }

    /// Shows `visit` every key, removes those that are of no more use, and sends what it returns.
    async fn sweep(&self, mut visit: impl FnMut(Key, &mut Slot, Time, &mut Vec<Ask>)) {
        let Self { shared } = self;
        for part in shared.table.parts() {
            let now = shared.clock.now();
            let mut returned = Vec::new();
            shared.table.retain(part, |key, slot| {
                visit(key, slot, now, &mut returned);
                let stays = slot.is_busy() || slot.is_live(now);
                if !stays {
                    slot.give_back(key, now, &mut returned); // and what has ended is counted
                }
                stays
            });
            for ask in returned {
                shared.desk.ask_patiently(ask).await;
            }
        }
    }
}

impl Shared {
    /// Looks again at `key` when it is `due`.
    pub(super) fn watch(&self, key: Key, due: Time) {
        let mut idle = self.idle.lock();
        // A key that was evicted while it stood here may stand here twice. Beyond the ceiling it
        // keeps what it holds until its lease ends.
        if idle.len() < idle.capacity() {
            idle.push_back((due, key));
        }
    }

    /// Gives back what idle keys hold above their allowance.
    fn return_idle(&self) {
        let here = self.here(self.clock.now());
        let due = |(due, _): &mut (Time, Key)| *due <= here.now;
        let mut asks = Vec::new();
        for _ in 0..WATCH_BATCH {
            let next = self.idle.lock().pop_front_if(due);
            let Some((_, key)) = next else { break };
            let watch = self.table.with_existing(key, |slot| slot.inspect(key, &here, &mut asks));
            if let Some(Watch::Until(due)) = watch {
                self.watch(key, due);
            }
        }
        self.send(asks);
    }
}

/// A queue that never grows, for a limiter whose buffers may take `budget` bytes.
pub(super) fn idle_queue(budget: usize) -> VecDeque<(Time, Key)> {
    VecDeque::with_capacity((budget / IDLE_DIVISOR / IDLE_BYTES).min(IDLE_MAX))
}

/// Whether two rules lend tokens in one manner.
fn lends_alike(one: &Rule, other: &Rule) -> bool {
    let manner = |rule: &Rule| (rule.allowance, rule.leasing, rule.shards);
    manner(one) == manner(other)
}

/// Whether the key's rule is gone or allows something else now. An unchanged rule is replaced by
/// its new copy, so that old versions of the rules can be freed.
fn stale(rules: &Rules, slot: &mut Slot) -> bool {
    let Some(rule) = slot.rule() else { return false };
    match rules.by_path(&rule.path).filter(|new| lends_alike(new, rule)) {
        Some(new) => {
            slot.renew(new);
            false
        }
        None => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_pods_rises_at_once_and_falls_when_the_last_beats_agree() {
        let mut heard = Heard::default();
        let told = [0, 2, 2, 1, 1, 2, 3, 1, 1, 1, 1, 1];
        let believed = [1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 1, 1];
        for (told, believed) in told.into_iter().zip(believed) {
            assert_eq!(heard.note(told), believed, "{told} after {heard:?}");
        }
    }
}
