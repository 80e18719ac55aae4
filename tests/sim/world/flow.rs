//! Where the tokens of one key went, and the numbers of pods that each pod received.

use ratelease_engine::time::Time;

use crate::book::Step;

/// Tokens of one key, over the whole run. Leased tokens are held by pods or pools, were spent, came
/// back, or were lost on their way back.
#[derive(Debug, Default, Clone, Copy)]
pub struct Flow {
    /// Leased by the key's own count.
    pub lent: u64,
    /// Costs that pods owed, and that the count has taken.
    pub owed: u64,
    /// Returned to the key's own count, refunds included.
    pub returned: u64,
    /// Held in the pools of a split key.
    pub pooled: i64,
    /// Returns and deposits that the store did not take.
    pub lost: u64,
}

/// Numbers of living pods in replies, with the times of the replies.
#[derive(Debug, Default)]
pub struct Heard(Vec<(Time, u32)>);

// === impl Flow ===

impl Flow {
    pub fn enter(&mut self, step: &Step) {
        let Step { ask, grant, .. } = step;
        let back = ask.back.map_or(0, |back| back.tokens);
        if ask.pool.is_none() {
            self.lent += grant.tokens;
            self.owed += if ask.next_window { 0 } else { ask.owed };
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

    /// The smallest number that may be in use from `from` to `until`: the last one received before,
    /// and all received in between.
    pub fn fewest(&self, from: Time, until: Time, expected: u32) -> u32 {
        let before = self.0.partition_point(|(at, _)| *at <= from);
        let first = before.checked_sub(1).map_or(expected, |last| self.0[last].1);
        let since = self.0.iter().skip(before).take_while(|(at, _)| *at <= until);
        since.fold(first, |fewest, (_, pods)| fewest.min(*pods)).max(1)
    }
}
