//! A limit that moves from one store to another: both count it.
//!
//! Every token is debited in both stores before it is lent. A pod that does not know of the move
//! yet lends from the old store alone, and one whose rules say that the move is over, from the new
//! store alone. Either store counts all that is lent as long as no pod uses only the other one, so
//! its limit bounds the fleet. `docs/decisions` has the argument, and what an operator has to wait
//! for.
//!
//! The bucket of the new store starts full, and under load it never falls to the level of the old
//! one by itself, since both refill at the same rate. So each ask spends what the new bucket holds
//! beyond the old one.

mod level;

use std::time::Duration;

use ratelease_rules::{Algorithm, Limit};

use super::{Ask, Grant, Return, Store, StoreError};

/// The two stores of a limit that moves.
#[derive(Clone, Copy)]
pub(super) struct Moving<'a> {
    pub(super) from: &'a dyn Store,
    pub(super) to: &'a dyn Store,
}

/// Attempts to be lent tokens of the same window by both stores.
const ATTEMPTS: usize = 2;

// === impl Moving ===

impl Moving<'_> {
    /// Lends what both stores lend: first from the old one, then as much from the new one. What
    /// the old one lent beyond that returns to it.
    ///
    /// # Errors
    ///
    /// One of the stores did not answer. What the other one lent returns to it, or ends with its
    /// lease.
    pub(super) async fn lend(self, ask: &Ask) -> Result<Grant, StoreError> {
        let mut ask = *ask;
        for attempt in 0..ATTEMPTS {
            let first = match self.from.lend(&ask).await {
                Ok(first) => first,
                Err(error) if attempt == 0 => return Err(error),
                // The attempt before has applied the ask's return.
                Err(error) => return Err(half_applied(error)),
            };
            let second = match self.to.lend(&second_ask(&ask, &first)).await {
                Ok(second) => second,
                Err(error) => {
                    give_back(self.from, &ask, first.tokens, &first).await;
                    return Err(half_applied(error));
                }
            };
            let lent = second.tokens;
            if first.epoch == second.epoch || !is_windowed(ask.limit) {
                let second = self.level(&ask, &first, second).await?;
                give_back(self.from, &ask, first.tokens - lent.min(first.tokens), &first).await;
                return Ok(both(&ask, &first, &second));
            }
            // A window ended in between. Returns have been credited by now.
            give_back(self.from, &ask, first.tokens, &first).await;
            give_back(self.to, &ask, lent, &second).await;
            ask.back = None;
        }
        Err(StoreError::RedirectFailed("the two stores of a move are in different windows".into()))
    }
}

/// What the new store is asked for, once the old one has lent its tokens. Where the old one denied
/// the ask, the new one is only given what the ask returns.
fn second_ask(ask: &Ask, first: &Grant) -> Ask {
    Ask { want: first.tokens, need: ask.need.min(first.tokens), ..*ask }
}

/// Returns `tokens` of a grant to the store that lent them. If that fails, they end with their
/// lease. Slots cannot be returned.
async fn give_back(store: &dyn Store, ask: &Ask, tokens: u64, grant: &Grant) {
    if tokens == 0 || is_spaced(ask.limit) {
        return;
    }
    let back = Some(Return { tokens, epoch: Some(grant.epoch) });
    let _ = store.lend(&Ask { ttl: ask.ttl, back, ..Ask::look(ask.key, ask.limit) }).await;
}

/// The error of one store after the other one, or an attempt before, has applied the ask: it must
/// not be one that says that nothing was applied.
fn half_applied(error: StoreError) -> StoreError {
    if error.concerns_one_key() {
        StoreError::RedirectFailed(error.to_string())
    } else {
        StoreError::Unreachable(error.to_string())
    }
}

/// The grant of tokens that both stores have lent.
fn both(ask: &Ask, first: &Grant, second: &Grant) -> Grant {
    let tokens = second.tokens.min(first.tokens);
    let first = Grant { left: first.left.saturating_add(first.tokens - tokens), ..*first };
    let scarce = if first.left < second.left { &first } else { second };
    let (starts_after, ends_after) = span(ask, &first, second);
    Grant {
        tokens,
        left: scarce.left,
        overdrawn: (first.overdrawn && first.left == 0) || second.overdrawn,
        // A bucket's epoch is the time of the grant: with the earlier one, no store credits a
        // return that is late. A log knows its entries by their exact time.
        epoch: match ask.limit.algorithm {
            Algorithm::SlidingLog => second.epoch,
            _ => first.epoch.min(second.epoch),
        },
        starts_after,
        ends_after,
        reset_after: scarce.reset_after,
        retry_after: scarce.retry_after,
    }
}

/// When the lease starts and ends: both stores must have it started, and neither ended. Of a leaky
/// bucket, which rules do not let move, the slots are those of the store that gives the later ones.
fn span(ask: &Ask, first: &Grant, second: &Grant) -> (Duration, Duration) {
    if !is_spaced(ask.limit) {
        let starts_after = first.starts_after.max(second.starts_after);
        return (starts_after, first.ends_after.min(second.ends_after));
    }
    let later = if first.starts_after > second.starts_after { first } else { second };
    (later.starts_after, later.ends_after)
}

fn is_windowed(limit: Limit) -> bool {
    matches!(limit.algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow)
}

fn is_spaced(limit: Limit) -> bool {
    matches!(limit.algorithm, Algorithm::LeakyBucket { .. })
}

#[cfg(test)]
mod tests;
