//! What one pod holds of one key, by what the store lent it: no token is spent that was not lent,
//! none after its lease has ended, none is given back twice.
//!
//! The store's own word counts, not what the pod made of it. A lease ends `ends_after` its step at
//! the store; the pod, which counts from before its ask, must never take it for longer.

use std::time::Duration;

use ratelease::store::Back;
use ratelease::time::Time;

/// The tokens of one pod and key.
#[derive(Debug, Default)]
pub struct Purse {
    lots: Vec<Lot>,
    /// Tokens that a request refunded: the pod may spend them again, or send them to the store.
    refunds: Vec<Refund>,
    /// When the last of what the store told of this key ends.
    known_until: Time,
}

/// Tokens of one lease.
#[derive(Debug, Clone, Copy)]
pub struct Lot {
    /// Their [`ratelease::store::Grant::epoch`].
    pub epoch: u64,
    /// How many are left.
    pub tokens: u64,
    /// When the store's step ends them.
    pub until: Time,
}

#[derive(Debug, Clone, Copy)]
struct Refund {
    tokens: u64,
    /// When the word that they were added to ends; `None` until there is one.
    until: Option<Time>,
}

/// Ended lots are remembered for so long: a return may sit behind a batch that hangs.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Lots of one purse at most; a run is too short for more.
const LOTS_MAX: usize = 100_000;

// === impl Purse ===

impl Purse {
    /// The pod was told of a lease at `now`.
    pub fn lend(&mut self, lot: Lot, now: Time) {
        self.known_until = self.known_until.max(lot.until);
        for refund in &mut self.refunds {
            refund.until.get_or_insert(lot.until);
        }
        self.lots.retain(|lot| lot.tokens > 0 && now <= lot.until + REMEMBERED);
        assert!(self.lots.len() < LOTS_MAX, "{} lots in one purse", self.lots.len());
        if lot.tokens > 0 {
            // Earliest end first, so that spending in order never wastes what another could use.
            let at = self.lots.partition_point(|other| other.until <= lot.until);
            self.lots.insert(at, lot);
        }
    }

    /// A request, begun at `since`, spent `hits`: each of a lease that was alive while it ran.
    pub fn spend(&mut self, hits: u64, since: Time) -> Result<(), String> {
        let mut missing = hits;
        for lot in self.lots.iter_mut().filter(|lot| lot.until > since) {
            pay(&mut missing, &mut lot.tokens);
        }
        for refund in self.refunds.iter_mut().filter(|r| r.until > Some(since)) {
            pay(&mut missing, &mut refund.tokens);
        }
        if missing == 0 {
            return Ok(());
        }
        let ended: u64 = self.lots.iter().map(|lot| lot.tokens).sum();
        Err(format!(
            "spent {hits} tokens, {missing} more than its live leases hold ({ended} ended)"
        ))
    }

    /// A request asked to give back `hits` at `now`. A pod that knows the key, or is about to, may
    /// keep them.
    pub fn refund(&mut self, hits: u64, now: Time) {
        let until = (self.known_until > now).then_some(self.known_until);
        self.refunds.push(Refund { tokens: hits, until });
    }

    /// The pod returns tokens. It may call them older than they are, and have them credited less
    /// readily, never newer. Any share may take them.
    pub fn give_back(&mut self, back: Back) -> Result<(), String> {
        let mut missing = back.tokens;
        if let Some(epoch) = back.epoch {
            for lot in self.lots.iter_mut().filter(|lot| lot.epoch >= epoch) {
                pay(&mut missing, &mut lot.tokens);
            }
        }
        for refund in &mut self.refunds {
            pay(&mut missing, &mut refund.tokens);
        }
        // A refund of a key that the pod does not know goes to the store without being held here.
        if missing == 0 || back.epoch.is_none() {
            return Ok(());
        }
        Err(format!("gave back {back:?}, {missing} more than was lent and is unspent"))
    }

    /// Tokens of leases that have not ended.
    pub fn live(&self, now: Time) -> u64 {
        self.lots.iter().filter(|lot| lot.until > now).map(|lot| lot.tokens).sum()
    }
}

fn pay(missing: &mut u64, tokens: &mut u64) {
    let paid = (*missing).min(*tokens);
    *missing -= paid;
    *tokens -= paid;
}
