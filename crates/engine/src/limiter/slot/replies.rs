//! How a slot handles the store's replies: tokens for waiting requests, and the state of its key.

use ratelease_rules::Algorithm;
use ratelease_rules::key::Key;

use super::terms::Held;
use super::{SHED_PAUSE, Slot, is_windowed};
use crate::buffer::{Kind, Take};
use crate::invariant;
use crate::lease::Reply;
use crate::limiter::Here;
use crate::limiter::lend::Manner;
use crate::limiter::resolve::Charge;
use crate::store::{Ask, Grant, Purpose, StoreError};
use crate::time::Time;

impl Slot {
    /// Applies a reply, serves the waiting requests that it can, and asks again for the others.
    /// Returns are sent before asks.
    ///
    /// The limit may have changed while the ask was out. A request that waited for this lease is
    /// served under the limit that the lease was asked for; only then is the next limit's turn.
    ///
    /// Returns the number of owed hits that the lease has paid for.
    pub(in crate::limiter) fn reply(
        &mut self,
        reply: &Reply,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) -> u64 {
        let mut paid = 0;
        invariant::check(self.asking > 0, "a reply answers an ask that is out");
        self.note_answered(&reply.ask, here.now);
        match &reply.outcome {
            _ if reply.ask.ahead => self.note_next(reply, here, asks),
            Err(StoreError::Shed) => self.note_shed(&reply.ask, here),
            // The own count is asked instead.
            Err(_) if reply.ask.pool.is_some() => self.flags.set_pool_empty(true),
            Err(error) => self.fail(error, here.now),
            Ok(grant) if reply.ask.pool.is_some() => {
                self.take_from_pool(reply, grant, here, asks);
                paid = self.pay(self.manner(here).kind, here.now);
            }
            Ok(grant) => paid = self.take_in(reply, grant, here, asks),
        }
        if self.asking == 0 {
            self.set_owed(0); // no lease is out that could still pay
            self.ask_for_the_rest(reply.ask.key, here, asks);
        }
        self.buffer.trim();
        paid
    }

    /// Applies a grant. Returns the number of owed hits that it has paid for.
    pub(in crate::limiter) fn take_in(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) -> u64 {
        self.unbar();
        self.turn_to(reply.ask.limit, reply.ask.key, here, asks);
        let manner = self.manner(here);
        self.flags.set_relief(reply.hot);
        self.flags.note_miss(reply.ask.need > 0 && grant.tokens == 0);
        self.note_draw(&manner, reply, grant, here.now);
        if grant.epoch != self.buffer.epoch() {
            let waits = self.has_next(here.now);
            self.flags.set_next_asked(waits);
        }
        let refill = manner.refill(reply, grant, self.scarcity(here), here);
        self.buffer.refill(refill, manner.kind, here.now);
        self.note_trip(here.now.since(reply.asked_at));
        let paid = self.pay(manner.kind, here.now);
        self.serve(here);
        self.fill_pool(reply.ask.key, here, asks);
        paid
    }

    /// Notes what the fleet drew since the store's last reply, and this pod's part of it.
    pub(in crate::limiter) fn note_draw(
        &mut self,
        manner: &Manner,
        reply: &Reply,
        grant: &Grant,
        now: Time,
    ) {
        let same = !is_windowed(manner.limit) || grant.epoch == self.buffer.epoch();
        let Some(before) = self.buffer.left(now).filter(|_| same) else {
            return;
        };
        let back = reply.ask.back.map_or(0, |back| back.tokens);
        let span = now.since(self.buffer.heard());
        let inflow = manner.inflow() * span.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let before = before.saturating_add(back).saturating_add(inflow as u64);
        let before = before.min(manner.limit.capacity());
        let others = before.saturating_sub(grant.left).saturating_sub(grant.tokens);
        self.demand.note_draw(others, span);
    }

    /// Once no ask is out, asks for the requests that still wait.
    pub(in crate::limiter) fn ask_for_the_rest(
        &mut self,
        key: Key,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let first = self.buffer.aside().and_then(|rare| rare.waiting.first());
        if let Some(first) = first {
            self.turn_to(first.limit, key, here, asks);
            asks.push(self.ask(key, here));
        } else if !self.manner(here).is_leased() {
            // Tokens that no request asked for must not be spent.
            self.give_back(key, here.now, asks);
        } else if let (Held::Apart, Some(limit)) = (self.held, self.limit_of_rule()) {
            // The other limit is kept only as long as the box is needed for waiting requests.
            self.turn_to(limit, key, here, asks);
        }
    }

    pub(in crate::limiter) fn note_next(
        &mut self,
        reply: &Reply,
        here: &Here<'_>,
        asks: &mut Vec<Ask>,
    ) {
        if let Ok(grant) = &reply.outcome {
            self.take_next(reply, grant, here, asks);
        }
    }

    /// Handles an ask that was dropped because its shard has more urgent ones to answer: requests
    /// that probe an empty key are denied by the store's last reply, and nothing is asked ahead for
    /// a while.
    pub(in crate::limiter) fn note_shed(&mut self, ask: &Ask, here: &Here<'_>) {
        self.flags.set_shed(true);
        if self.asking == 0 {
            self.buffer.note_ask(here.now);
        }
        // Requests that joined an ask that was made ahead are asked for now.
        if ask.purpose == Purpose::Probe && self.asking == 0 {
            self.buffer.stay_fresh(here.now + SHED_PAUSE);
            self.serve(here);
            self.fail(&StoreError::Shed, here.now);
        }
    }

    /// Settles the waiting requests that the tokens and the store's reply allow, first come, first
    /// served.
    pub(in crate::limiter) fn serve(&mut self, here: &Here<'_>) {
        let kind = self.manner(here).kind;
        let Some(rare) = self.buffer.aside_mut() else { return };
        for waiter in rare.waiting.take() {
            match self.settle(waiter.wish, here) {
                None => self.buffer.make_aside().waiting.keep(waiter),
                Some(settled) => {
                    if let Some(settled) = waiter.tell(Ok(settled)) {
                        self.buffer.put_back(settled.taken, kind, here.now);
                    }
                }
            }
        }
    }

    pub(in crate::limiter) fn fail(&mut self, error: &StoreError, now: Time) {
        self.bar(error, now);
        let Some(rare) = self.buffer.aside_mut() else { return };
        for waiter in rare.waiting.take() {
            waiter.tell(Err(error.clone()));
        }
    }

    /// Spends tokens on owed hits, as far as the tokens suffice.
    pub(in crate::limiter) fn pay(&mut self, kind: Kind, now: Time) -> u64 {
        let due = u64::from(self.owed()).min(self.buffer.tokens(now));
        let take = if due > 0 { self.buffer.take(due, false, kind, now) } else { Take::Short };
        let Take::Taken(lot) = take else { return 0 };
        self.set_owed(self.owed().saturating_sub(u32::try_from(lot.tokens).unwrap_or(u32::MAX)));
        lot.tokens
    }

    /// Notes hits that this pod has admitted by itself.
    pub(in crate::limiter) fn owe(&mut self, charge: &Charge<'_>) {
        let limit = self.limit();
        let spaced = matches!(limit.algorithm, Algorithm::LeakyBucket { .. });
        if self.asking > 0 && limit == charge.applied.limit && !spaced {
            let hits = u32::try_from(charge.hits).unwrap_or(u32::MAX);
            self.set_owed(self.owed().saturating_add(hits));
        }
    }
}
