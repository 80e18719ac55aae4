//! The tokens of one key that one pod holds, as leased by the store: no token is spent that was not
//! leased, none after its lease has ended, and none is given back twice.
//!
//! The store's reply counts, not how the pod interprets it. A lease ends `ends_after` its step at
//! the store; the pod, which counts from before its ask, must never use it longer.

use std::time::Duration;

use ratelease_engine::store::Return;
use ratelease_engine::time::Time;

/// The tokens of one pod and key.
#[derive(Debug, Default)]
pub struct Purse {
    /// Sorted by end, the earliest first.
    lots: Vec<Lot>,
    /// Tokens that a request gave back before the pod had a lease of the key. They are added to the
    /// first lease or go to the store. While the store is away they are credited to the hits that
    /// the pod has admitted alone.
    refunds: u64,
    /// Tokens counted against leases that ended while the request ran.
    doubtful: u64,
    /// Only of an overflow key: tokens that requests have refunded to other keys of the pod, and
    /// that may have come to this key.
    pub spare: u64,
}

/// Tokens of one lease, or refunds that were added to it.
#[derive(Debug, Clone, Copy)]
pub struct Lot {
    /// The [`ratelease_engine::store::Grant::epoch`] of the lease. Refunds have the epoch of the
    /// lease that they were added to.
    pub epoch: u64,
    /// When the tokens were refunded; `None` if they were leased.
    pub refunded: Option<Time>,
    /// Number of tokens left.
    pub tokens: u64,
    /// When the tokens become valid: later than now only for a leaky bucket and for the next
    /// window.
    pub from: Time,
    /// When the tokens end, by the store's step.
    pub until: Time,
}

/// How long ended lots are kept: a return may wait behind a batch that hangs.
const REMEMBERED: Duration = Duration::from_secs(30);

/// Maximum wait of a request.
const WAIT_MAX: Duration = Duration::from_millis(50);

/// Precision of timers.
const TIMER: Duration = Duration::from_micros(500);

/// Maximum number of lots of one purse; a run is too short for more.
const LOTS_MAX: usize = 100_000;

// === impl Purse ===

impl Purse {
    /// Adds a lease that the pod received at `now`. The leases of one window share its latest
    /// reported end: reported ends differ where the store's clock jumps.
    pub fn lend(&mut self, mut lot: Lot, is_windowed: bool, now: Time) {
        if is_windowed {
            let of_window = |other: &&mut Lot| other.epoch == lot.epoch;
            for other in self.lots.iter_mut().filter(of_window) {
                lot.until = lot.until.max(other.until);
                other.until = lot.until;
            }
        }
        self.lots.retain(|lot| now <= lot.until + REMEMBERED);
        assert!(self.lots.len() < LOTS_MAX, "{} lots in one purse", self.lots.len());
        // A refund that waited for a lease of the key joins the lease that arrives.
        let waited = |other: &&mut Lot| other.refunded.is_some_and(|at| now <= at + WAIT_MAX);
        for other in self.lots.iter_mut().filter(waited).filter(|other| other.until < lot.until) {
            (other.epoch, other.until) = (lot.epoch, lot.until);
        }
        self.lots.sort_by_key(Lot::place);
        self.insert(lot);
        let refunds = std::mem::take(&mut self.refunds);
        self.refund(refunds, now);
    }

    /// Spends the `hits` of a request that began at `since`: each from a lease that was alive
    /// during the request. The earliest end is spent first: no other order could pay for more.
    pub fn spend(&mut self, hits: u64, since: Time, now: Time) -> Result<(), String> {
        let mut missing = hits;
        let alive = |lot: &&mut Lot| lot.until > since && lot.from <= now + TIMER;
        for lot in self.lots.iter_mut().filter(alive) {
            let before = missing;
            pay(&mut missing, &mut lot.tokens);
            if lot.until <= now {
                self.doubtful += before - missing;
            }
        }
        pay(&mut missing, &mut self.spare);
        if missing == 0 {
            return Ok(());
        }
        let others = |of: fn(&Lot, Time) -> bool| -> u64 {
            self.lots.iter().filter(|lot| of(lot, now)).map(|lot| lot.tokens).sum()
        };
        let (ended, early) =
            (others(|lot, now| lot.until <= now), others(|lot, now| lot.from > now));
        if early >= missing {
            return Err(format!("spent {missing} of {early} tokens before their time begins"));
        }
        Err(format!(
            "spent {hits} tokens, {missing} more than its live leases hold ({ended} ended)"
        ))
    }

    /// Spends `hits` that the pod admitted alone beyond its part. Refunds that no lease took are
    /// credited to these hits; a lease pays for the rest.
    pub fn spend_alone(&mut self, hits: u64, since: Time, now: Time) -> Result<(), String> {
        let mut missing = hits;
        pay(&mut missing, &mut self.refunds);
        self.spend(missing, since, now)
    }

    /// Gives back `hits` for a request at `now`. If the pod has a live lease, it adds them to the
    /// lease that ends last, once the request passes. If the next window begins while the request
    /// waits, that is the lease of the next window.
    pub fn refund(&mut self, hits: u64, now: Time) {
        match self.lots.iter().rev().find(|lot| lot.from <= now + WAIT_MAX) {
            Some(last) if last.until > now && hits > 0 => {
                let from = last.from.min(now);
                self.insert(Lot { tokens: hits, refunded: Some(now), from, ..*last });
            }
            _ => self.refunds += hits,
        }
    }

    /// Gives back `hits` that a request held and did not use. They go to their lease if it lasts,
    /// or to the store. The purse does not know which lease they came from.
    pub fn release(&mut self, hits: u64, now: Time) {
        match self.lots.iter().rev().find(|lot| lot.from <= now).copied() {
            Some(last) => self.insert(Lot { tokens: hits, refunded: Some(now), ..last }),
            None => self.refunds += hits,
        }
    }

    /// Reverts a refund of `hits` whose request was denied.
    pub fn take_refund_back(&mut self, hits: u64) {
        let mut missing = hits;
        pay(&mut missing, &mut self.refunds);
        for lot in self.lots.iter_mut().filter(|lot| lot.refunded.is_some()) {
            pay(&mut missing, &mut lot.tokens);
        }
        for lot in self.lots.iter_mut().rev() {
            pay(&mut missing, &mut lot.tokens);
        }
    }

    /// Keeps the tokens of a lease that were given back, since the store did not take them.
    pub fn keep(&mut self, tokens: u64, epoch: u64) {
        if let Some(lot) = self.lots.iter_mut().rev().find(|lot| lot.epoch == epoch) {
            lot.tokens += tokens;
        }
    }

    /// Returns tokens of the pod. The pod may assign them to a lease that ends before theirs or has
    /// a lower epoch, which makes the store less likely to credit them, but never to a later one.
    /// The two differ where the store's clock was set back.
    pub fn give_back(&mut self, back: Return) -> Result<(), String> {
        let mut missing = back.tokens;
        let from = match back.epoch {
            Some(epoch) => self.ends_of(epoch),
            None => {
                pay(&mut missing, &mut self.refunds);
                self.lots.iter().find(|lot| lot.refunded.is_some()).map(|lot| lot.until)
            }
        };
        let of_lease = |lot: &&mut Lot| {
            (back.epoch.is_some() || lot.refunded.is_some())
                && (lot.refunded.is_some()
                    || back.epoch.is_some_and(|epoch| lot.epoch >= epoch)
                    || from.is_some_and(|at| lot.until >= at))
        };
        // Leased tokens of this epoch come first. A request may have refunded other tokens to the
        // present window. An eviction gives back leases of the next window first, so refunds in
        // their place would leave tokens that may not be spent yet.
        let is_named = |lot: &Lot| Some(lot.epoch) == back.epoch && lot.refunded.is_none();
        for lot in self.lots.iter_mut().filter(|lot| is_named(lot)) {
            pay(&mut missing, &mut lot.tokens);
        }
        for lot in self.lots.iter_mut().filter(of_lease) {
            pay(&mut missing, &mut lot.tokens);
        }
        if back.epoch.is_none() {
            // A refund that was counted as held here, and goes to the store with an ask.
            self.lots.iter_mut().for_each(|lot| pay(&mut missing, &mut lot.tokens));
        }
        pay(&mut missing, &mut self.spare);
        match (missing, back.epoch, from) {
            (0, ..) => Ok(()),
            (_, None, _) => Err(format!("sent back {missing} more than it was asked to refund")),
            (_, Some(_), None) => Err(format!("gave back {back:?}, of a lease that it never had")),
            _ => Err(format!("gave back {back:?}, {missing} more than was lent and is unspent")),
        }
    }

    fn insert(&mut self, lot: Lot) {
        let at = self.lots.partition_point(|other| other.place() <= lot.place());
        self.lots.insert(at, lot);
    }

    /// End of the leases of this epoch: of the first to end, where the store's clock was set back.
    fn ends_of(&self, epoch: u64) -> Option<Time> {
        self.lots.iter().find(|lot| lot.epoch == epoch).map(|lot| lot.until)
    }

    /// Tokens of leases that have not ended, less those that the pod may not hold: a request during
    /// which a lease ended may have paid with a later one.
    pub fn live(&self, now: Time) -> u64 {
        let live = self.lots.iter().filter(|lot| lot.until > now);
        live.map(|lot| lot.tokens).sum::<u64>().saturating_sub(self.doubtful)
    }
}

impl Lot {
    /// The lot's place in a purse. If two lots end together, a refund comes after a lease: a pod
    /// gives refunds back once their request passes, after it has charged the requests that wait
    /// for a lease.
    fn place(&self) -> (Time, bool) {
        (self.until, self.refunded.is_some())
    }
}

fn pay(missing: &mut u64, tokens: &mut u64) {
    let paid = (*missing).min(*tokens);
    *missing -= paid;
    *tokens -= paid;
}
