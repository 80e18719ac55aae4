//! Keeps the bucket of the new store at or below the level of the old one.
//!
//! # Why that bounds the fleet
//!
//! Times are those of the steps of the stores. Let an ask lend from the old store at `t1`, from the
//! new one at `t2 > t1`, and debit the difference in the new one afterwards. Suppose that no other
//! ask lends from the old store after `t1` and from the new one before `t2`, and that at these
//! times no pod uses one store alone. Let `D1` be the debt of the old bucket after `t1`, `D2` that
//! of the new one after `t2`, both in the time that earns it back, and `d ≥ D1 − D2` the
//! difference. Consider any span from `s < t1` to `e > t2`, and a bucket whose largest debt is `B`:
//!
//! - The tokens that the old store debited from `s` to `t1` cost at most `D1 + (t1 − s)`.
//! - All others were debited by the new store after `t2`. With `d` they cost at most
//!   `B − D2 + (e − t2)`.
//!
//! Together the tokens cost at most `B + D1 − D2 − d + (e − s)`, and `D1 − D2 − d` is not above 0:
//! the burst, and what flows in. A later credit by the old store only concerns tokens that are not
//! spent.
//!
//! Any ask during which others overtake it contains one that none overtakes, so some ask meets the
//! condition wherever one lends. Asks under way at once may spend the same difference each. That
//! only leaves less in the new bucket, and a bucket that is empty bounds the fleet as well: then
//! all that the old store debited before costs at most `B`, and what flows in.
//!
//! A part of a token cannot be spent, and an empty bucket may have earned a part of one. So the
//! fleet may admit one token more.

use super::{Ask, Grant, Moving, StoreError, give_back, half_applied};
use crate::algorithm::gcra::Pace;
use ratelease_rules::Algorithm;

// === impl Moving ===

impl Moving<'_> {
    /// Spends what the new bucket holds beyond the old one, once both have answered `ask`. Returns
    /// the grant of the new store with what is left then; other algorithms have nothing to spend.
    ///
    /// # Errors
    ///
    /// The new store did not answer. What was lent returns to both, so that no token is spent
    /// unless the buckets agree.
    pub(super) async fn level(
        self,
        ask: &Ask,
        first: &Grant,
        second: Grant,
    ) -> Result<Grant, StoreError> {
        let want = surplus(ask, first, &second);
        if want == 0 {
            return Ok(second);
        }
        match self.to.lend(&Ask { want, ttl: ask.ttl, ..Ask::look(ask.key, ask.limit) }).await {
            Ok(spent) => Ok(Grant { tokens: second.tokens, epoch: second.epoch, ..spent }),
            Err(error) => {
                give_back(self.from, ask, first.tokens, first).await;
                give_back(self.to, ask, second.tokens, &second).await;
                Err(half_applied(error))
            }
        }
    }
}

/// Whole tokens that the new bucket holds beyond the old one, after the tokens that the new store
/// did not lend have returned to the old one.
fn surplus(ask: &Ask, first: &Grant, second: &Grant) -> u64 {
    if !matches!(ask.limit.algorithm, Algorithm::TokenBucket { .. }) {
        return 0;
    }
    // The time until a bucket is full is its debt.
    let behind = first.reset_after.saturating_sub(second.reset_after);
    let returns = first.tokens.saturating_sub(second.tokens);
    Pace::of(ask.limit).earned_in(behind).saturating_sub(returns)
}
