//! Keeping the table: tokens that nobody will spend go back to the store.

use std::time::Duration;

use crate::buffer::table::Entry;
use crate::key::Key;
use crate::rules::Rules;
use crate::store::{Ask, Beat};
use crate::time::Time;

use super::slot::Slot;
use super::{Limiter, Ordering};

/// Pods that are taken to share the store before it has told: too few strand tokens.
pub(super) const PODS_FIRST: u32 = 1;

/// Between two signs of life, which are also when ended keys are cleared away.
const BEAT_INTERVAL: Duration = Duration::from_secs(1);

/// A pod that has not been heard of for so long is taken for dead: three beats.
const BEAT_LASTS: Duration = Duration::from_secs(3);

impl Limiter {
    /// Keeps the table and the count of pods up to date, for ever. One task of each limiter runs
    /// it.
    pub async fn run(&self) {
        let mut ticks = tokio::time::interval(BEAT_INTERVAL);
        loop {
            ticks.tick().await;
            self.beat(false).await;
            self.tidy().await;
        }
    }

    /// Tells the store that this pod is alive, or `leaves`, and learns how many are. Where the
    /// store does not say, the last number stands.
    async fn beat(&self, leaves: bool) {
        let Self { shared } = self;
        let beat = Beat { pod: shared.options.pod, lasts: BEAT_LASTS, leaves };
        if let Ok(pods) = shared.desk.beat(beat).await {
            shared.pods.store(pods.max(1), Ordering::Relaxed);
        }
    }

    /// Gives back the tokens of rules that `rules` no longer has, or has with another limit.
    pub async fn adopt(&self, rules: &Rules) {
        self.sweep(|key, slot, now| stale(rules, slot).then(|| slot.give_back(key, now)).flatten())
            .await;
    }

    /// Forgets the keys whose window has ended. To be called every second or so.
    pub async fn tidy(&self) {
        self.sweep(|_, _, _| None).await;
    }

    /// Gives every unspent token back and returns once the store has been told. No decision may be
    /// under way; later ones find the store closed.
    pub async fn close(&self) {
        // A lease that is still on its way has to be here to be given back.
        self.shared.desk.settle().await;
        self.sweep(|key, slot, now| slot.give_back(key, now)).await;
        self.beat(true).await;
        self.shared.desk.close().await;
    }

    /// Shows `visit` every key, removes those that are of no more use, and sends what it returns.
    async fn sweep(&self, mut visit: impl FnMut(Key, &mut Slot, Time) -> Option<Ask>) {
        let Self { shared } = self;
        for part in shared.table.parts() {
            let now = shared.clock.now();
            let mut returned = Vec::new();
            shared.table.retain(part, |key, slot| {
                returned.extend(visit(key, slot, now));
                slot.is_busy() || slot.is_live(now)
            });
            for ask in returned {
                shared.desk.ask_patiently(ask).await;
            }
        }
    }
}

/// Whether the key's rule is gone or allows something else now. An unchanged rule is replaced by
/// its new copy, so that old versions of the rules can be freed.
fn stale(rules: &Rules, slot: &mut Slot) -> bool {
    let Some(rule) = slot.rule() else { return false };
    match rules.by_path(&rule.path).filter(|new| new.allowance == rule.allowance) {
        Some(new) => {
            slot.renew(new);
            false
        }
        None => true,
    }
}
