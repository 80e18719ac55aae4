//! Keeping the table: tokens that nobody will spend go back to the store.

use crate::buffer::table::Entry;
use crate::key::Key;
use crate::rules::Rules;
use crate::store::Ask;
use crate::time::Time;

use super::Limiter;
use super::slot::Slot;

impl Limiter {
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
