//! What the limiter keeps for one key: its buffer, its demand, and the requests that wait.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::lend::{refill, returning};
use super::resolve::Charge;
use crate::buffer::table::Entry;
use crate::buffer::{Buffer, Take};
use crate::key::Key;
use crate::lease::Reply;
use crate::lease::size::{Demand, Need};
use crate::rules::{Limit, Rule, Share};
use crate::store::{Ask, Back, StoreError};
use crate::time::Time;

/// Requests that wait for the lease of one key at most. More are refused at once.
const WAITING_MAX: usize = 1024;

/// Pods that are taken to share a key. Fixed until pods count one another.
const PODS: u32 = 1;

/// State of one key.
pub(super) struct Slot {
    buffer: Buffer,
    demand: Demand,
    /// The limit that the tokens were lent under.
    limit: Limit,
    /// The rule that it is of; `None` for an override.
    rule: Option<Arc<Rule>>,
    /// An ask is on its way: one at a time.
    asking: bool,
    touched: Time,
    waiting: VecDeque<Waiter>,
}

/// What became of a charge, or did not yet.
#[derive(Debug, Clone, Copy)]
pub(super) enum Attempt {
    /// It was taken or denied.
    Settled(Settled),
    /// Only the store can tell. Meanwhile, this much is known.
    Short(Standing),
}

/// A charge that was taken or denied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settled {
    /// The limit was exceeded.
    pub(super) over: bool,
    /// Tokens taken, to be put back if the request is denied elsewhere.
    pub(super) taken: u64,
    /// The window they belong to.
    pub(super) window: u64,
    /// How the key stands after it.
    pub(super) standing: Standing,
}

/// How a key stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// Tokens that remain for the fleet, as far as is known.
    pub(super) remaining: u64,
    /// Until the window ends, where that is known.
    pub(super) reset_after: Option<Duration>,
}

/// Outcome of queueing for a lease.
pub(super) enum Entered {
    /// Tokens arrived in the meantime.
    Settled(Settled),
    /// The reply will come here.
    Queued(oneshot::Receiver<Result<Settled, StoreError>>),
}

struct Waiter {
    wish: Wish,
    reply: oneshot::Sender<Result<Settled, StoreError>>,
}

/// What a charge wants of its key.
#[derive(Debug, Clone, Copy)]
struct Wish {
    /// What it is held to. Two limits of one window share a count: a rule's and an override's, or
    /// those of two overrides.
    limit: Limit,
    hits: u64,
    refund: bool,
    charge_denied: bool,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(charge: &Charge, now: Time) -> Self {
        Self {
            buffer: Buffer::default(),
            demand: Demand::default(),
            limit: charge.applied.limit,
            rule: charge.applied.rule.clone(),
            asking: false,
            touched: now,
            waiting: VecDeque::new(),
        }
    }

    /// Takes the limit that `charge` comes with for its own. Tokens lent under another go back.
    pub(super) fn adopt(&mut self, charge: &Charge, now: Time) -> Option<Ask> {
        self.touched = now;
        if self.limit == charge.applied.limit {
            return None;
        }
        self.rule = charge.applied.rule.clone();
        self.turn_to(charge.applied.limit, charge.key, now)
    }

    /// Holds nothing but tokens of `limit` from now on; the ask returns the others.
    fn turn_to(&mut self, limit: Limit, key: Key, now: Time) -> Option<Ask> {
        if self.limit == limit {
            return None;
        }
        let returned = self.give_back(key, now);
        self.buffer = Buffer::default();
        self.limit = limit;
        returned
    }

    /// Charges what is held, if that is enough.
    pub(super) fn attempt(&mut self, charge: &Charge, now: Time) -> Attempt {
        if !charge.refund {
            self.demand.note(charge.hits, now);
        }
        match self.settle(Wish::of(charge), now) {
            Some(settled) => Attempt::Settled(settled),
            None => Attempt::Short(self.standing(now)),
        }
    }

    /// Charges what is held, or queues and, if nobody has, asks.
    pub(super) fn enter(&mut self, charge: &Charge, now: Time) -> (Entered, Option<Ask>) {
        let mut wish = Wish::of(charge);
        if let Some(settled) = self.settle(wish, now) {
            return (Entered::Settled(settled), None);
        }
        let (reply, receiver) = oneshot::channel();
        if self.waiting.len() >= WAITING_MAX {
            self.forget_answered();
        }
        if self.waiting.len() >= WAITING_MAX {
            // The receiver is there to hear it.
            let _ = reply.send(Err(StoreError::Overloaded));
            return (Entered::Queued(receiver), None);
        }
        let asks = !self.asking;
        // A refund of a key that is not known here goes to the store with the ask itself.
        let refund = if asks && wish.refund { std::mem::take(&mut wish.hits) } else { 0 };
        self.waiting.push_back(Waiter { wish, reply });
        let back = (refund > 0).then_some(Back { tokens: refund, epoch: None });
        let ask = asks.then(|| Ask { back, ..self.ask(charge.key, now) });
        (Entered::Queued(receiver), ask)
    }

    /// Asks for the next lease while tokens last, if they will not last until it comes.
    pub(super) fn ask_ahead(&mut self, key: Key, round_trip: Duration, now: Time) -> Option<Ask> {
        let more = self.buffer.left(now).is_some_and(|left| left > 0);
        let low = more && self.demand.outruns(self.buffer.tokens(), round_trip);
        (low && !self.asking).then(|| self.ask(key, now))
    }

    /// Takes in a reply, serves whom it can, and asks on for the others. The first ask returns
    /// tokens that are of no use here any more; it has to go first.
    ///
    /// The limit may have changed while the ask was out. Whoever waited for its lease is served
    /// under the limit that it was asked for, and only then the turn is the next one's.
    pub(super) fn reply(&mut self, reply: &Reply, now: Time) -> [Option<Ask>; 3] {
        let key = reply.ask.key;
        self.asking = false;
        let mut returned = [None; 2];
        match &reply.outcome {
            Err(error) => self.fail(error),
            Ok(grant) => {
                returned[0] = self.turn_to(reply.ask.limit, key, now);
                self.buffer.refill(refill(reply, grant, now), now);
                self.serve(now);
            }
        }
        let Some(first) = self.waiting.front() else { return [returned[0], None, None] };
        returned[1] = self.turn_to(first.wish.limit, key, now);
        [returned[0], returned[1], Some(self.ask(key, now))]
    }

    /// Takes out the unspent tokens; the ask returns them to the store.
    pub(super) fn give_back(&mut self, key: Key, now: Time) -> Option<Ask> {
        let (tokens, window) = self.buffer.drain(now)?;
        Some(returning(key, self.limit, tokens, window))
    }

    pub(super) fn put_back(&mut self, settled: Settled, now: Time) {
        self.buffer.put_back(settled.taken, settled.window, now);
    }

    /// The rule that the key's tokens were lent under; `None` for an override.
    pub(super) fn rule(&self) -> Option<&Arc<Rule>> {
        self.rule.as_ref()
    }

    /// Takes the same rule of a newer version in place of the old.
    pub(super) fn renew(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(Arc::clone(rule));
    }

    /// Whether anything is known of the present window.
    pub(super) fn is_live(&self, now: Time) -> bool {
        self.buffer.is_live(now)
    }

    fn settle(&mut self, wish: Wish, now: Time) -> Option<Settled> {
        if wish.limit != self.limit {
            return None;
        }
        let over = if wish.refund {
            self.buffer.refund(wish.hits, self.tokens_max(), now).then_some(false)?
        } else {
            match self.buffer.take(wish.hits, wish.charge_denied, now) {
                Take::Taken { .. } => false,
                Take::Denied => true,
                Take::Short { .. } => return None,
            }
        };
        let taken = if over || wish.refund { 0 } else { wish.hits };
        Some(Settled { over, taken, window: self.buffer.window(), standing: self.standing(now) })
    }

    fn standing(&self, now: Time) -> Standing {
        let reset_after = self.buffer.reset_after(now);
        let remaining = reset_after.map_or(self.tokens_max(), |_| self.buffer.remaining());
        Standing { remaining, reset_after }
    }

    /// Tokens in a window.
    fn tokens_max(&self) -> u64 {
        u64::from(self.limit.requests_per_unit)
    }

    /// Drops the requests that have been answered without us.
    fn forget_answered(&mut self) {
        self.waiting.retain(|waiter| !waiter.reply.is_closed());
    }

    /// The next ask. `need` is what the first request in the queue lacks: it is granted whole or
    /// not at all. Looks and refunds ask for nothing, and neither do those held to another limit.
    fn ask(&mut self, key: Key, now: Time) -> Ask {
        self.asking = true;
        // Nothing is asked, and nothing charged, for a request that has been answered.
        self.forget_answered();
        let held = if self.buffer.is_live(now) { self.buffer.tokens() } else { 0 };
        let of_limit = |wish: &Wish| wish.limit == self.limit;
        let wishes = || self.waiting.iter().map(|waiter| waiter.wish).filter(of_limit);
        let charges = || wishes().filter(Wish::spends);
        let wanted = charges().fold(0_u64, |sum, wish| sum.saturating_add(wish.hits));
        let first = charges().next();
        let takes = first.is_some() || self.waiting.is_empty();
        Ask {
            key,
            limit: self.limit,
            want: if takes { self.size(wanted.saturating_sub(held), now) } else { 0 },
            need: first.map_or(0, |wish| wish.hits.saturating_sub(held)),
            charge_denied: first.is_some_and(|wish| wish.charge_denied),
            share: Share::WHOLE,
            ttl: Duration::MAX,
            back: None,
        }
    }

    fn size(&self, waiting: u64, now: Time) -> u64 {
        let limit = self.tokens_max();
        Need {
            demand: self.demand.rate(),
            waiting,
            limit,
            left: self.buffer.left(now).unwrap_or(limit),
            reset_after: self.buffer.reset_after(now),
            pods: PODS,
        }
        .size()
    }

    /// Settles whatever wait the tokens and the store's word allow, first come first served.
    fn serve(&mut self, now: Time) {
        for waiter in std::mem::take(&mut self.waiting) {
            if waiter.reply.is_closed() {
                continue;
            }
            match self.settle(waiter.wish, now) {
                None => self.waiting.push_back(waiter),
                Some(settled) => {
                    if waiter.reply.send(Ok(settled)).is_err() {
                        self.put_back(settled, now);
                    }
                }
            }
        }
    }

    fn fail(&mut self, error: &StoreError) {
        for waiter in self.waiting.drain(..) {
            // Whoever is gone need not hear it.
            let _ = waiter.reply.send(Err(error.clone()));
        }
    }
}

impl Entry for Slot {
    fn touched(&self) -> Time {
        self.touched
    }

    fn is_busy(&self) -> bool {
        self.asking || !self.waiting.is_empty()
    }
}

// === impl Wish ===

impl Wish {
    fn of(charge: &Charge) -> Self {
        Self {
            limit: charge.applied.limit,
            hits: charge.hits,
            refund: charge.refund,
            charge_denied: charge.charge_denied(),
        }
    }

    fn spends(&self) -> bool {
        self.hits > 0 && !self.refund
    }
}
