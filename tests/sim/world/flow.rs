//! Where the tokens of one key went, and how many pods each pod heard of.

use ratelease_engine::time::Time;

use crate::book::Step;

/// Tokens of one key, over the whole run. What was lent is still with pods or in pools, was spent,
/// came back, or was lost on its way back.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flow {
    /// By the key's own count.
    pub lent: u64,
    /// To the key's own count, refunds among them.
    pub returned: u64,
    /// In the pools of a split key.
    pub pooled: i64,
    /// Returns and deposits that the store did not take.
    pub lost: u64,
}

/// Numbers of living pods, and when each was heard.
#[derive(Debug, Default)]
pub struct Heard(Vec<(Time, u32)>);

// === impl Flow ===

impl Flow {
    pub fn enter(&mut self, step: &Step) {
        let Step { ask, grant, .. } = step;
        let back = ask.back.map_or(0, |back| back.tokens);
        if ask.pool.is_none() {
            self.lent += grant.tokens;
            self.returned += back;
            return;
        }
        let deposit = ask.deposit.map_or(0, |deposit| deposit.tokens);
        self.pooled += i64::try_from(deposit + back).unwrap();
        self.pooled -= i64::try_from(grant.tokens).unwrap();
    }
}

// === impl Heard ===

impl Heard {
    pub fn note(&mut self, pods: u32, now: Time) {
        self.0.push((now, pods));
    }

    /// The fewest that may be believed from `from` to `until`: what was heard last before, and all
    /// that was heard in between.
    pub fn fewest(&self, from: Time, until: Time, expected: u32) -> u32 {
        let before = self.0.partition_point(|(at, _)| *at <= from);
        let first = before.checked_sub(1).map_or(expected, |last| self.0[last].1);
        let since = self.0.iter().skip(before).take_while(|(at, _)| *at <= until);
        since.fold(first, |fewest, (_, pods)| fewest.min(*pods)).max(1)
    }
}
