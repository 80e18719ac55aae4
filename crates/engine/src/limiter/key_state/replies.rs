//! How a key handles the store's replies: tokens for waiting requests, and the state of its key.

use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, FailureMode};

use super::terms::LimitSource;
use super::{KeyState, SHED_PAUSE, is_windowed};
use crate::buffer::{LeaseKind, Take};
use crate::invariant;
use crate::lease::Reply;
use crate::limiter::PodContext;
use crate::limiter::attempt::Attempt;
use crate::limiter::lease_policy::LeasePolicy;
use crate::limiter::resolve::failure_mode_of;
use crate::store::{Ask, Grant, Purpose, StoreError};
use crate::time::Time;
use crate::verdict::DecisionSource;

/// What became of hits that a failure mode had admitted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::limiter) struct Settled {
    /// Hits that `local` admitted and that a lease has paid for.
    pub(in crate::limiter) returned: u64,
    /// Hits that `allow` admitted and that no lease pays for.
    pub(in crate::limiter) unmetered: u64,
}

impl KeyState {
    /// Applies a reply, serves the waiting requests that it can, and asks again for the others.
    /// Returns are sent before asks.
    ///
    /// The limit may have changed while the ask was out. A request that waited for this lease is
    /// served under the limit that the lease was asked for; only then is the next limit's turn.
    ///
    /// Returns what became of the key's debt.
    pub(in crate::limiter) fn reply(
        &mut self,
        reply: &Reply,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) -> Settled {
        let mut paid = 0;
        invariant::check(self.asking > 0, "a reply answers an ask that is out");
        self.note_answered(&reply.ask, context.now);
        match &reply.outcome {
            Ok(grant) if reply.ask.next_window => {
                self.keep_next_window(reply, grant, context, asks);
            }
            Err(_) if reply.ask.next_window => {}
            Err(StoreError::Shed) => self.note_shed(&reply.ask, context),
            // The own count is asked instead.
            Err(_) if reply.ask.pool.is_some() => self.flags.set_pool_empty(true),
            Err(error) => self.fail(error, context.now),
            Ok(grant) if reply.ask.pool.is_some() => {
                self.take_from_pool(reply, grant, context, asks);
                paid = self.pay_debt(self.policy(context).kind, context.now);
            }
            Ok(grant) => paid = self.apply_grant(reply, grant, context, asks),
        }
        let settled = self.settle_debt(paid, context.now);
        if self.asking == 0 {
            self.ask_for_waiting(reply, context, asks);
        }
        self.buffer.trim();
        settled
    }

    /// What becomes of the debt after a reply that `paid` for a part of it. What `local` admitted
    /// is owed until its window ends. What `allow` admitted has no bound, so once no ask is out the
    /// rest of it is not owed.
    fn settle_debt(&mut self, paid: u64, now: Time) -> Settled {
        match failure_mode_of(self.rule().map(AsRef::as_ref)) {
            FailureMode::Allow if self.asking == 0 => {
                let unmetered = self.debt(now);
                self.set_debt(0);
                Settled { unmetered, ..Settled::default() }
            }
            FailureMode::Allow => Settled::default(),
            _ => Settled { returned: paid, ..Settled::default() },
        }
    }

    /// Applies a grant. Returns the number of admitted hits that it has paid for.
    pub(in crate::limiter) fn apply_grant(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) -> u64 {
        self.resume();
        self.change_limit(reply.ask.limit, reply.ask.key, context, asks);
        let policy = self.policy(context);
        self.flags.set_relief(reply.hot);
        self.flags.note_miss(reply.ask.need > 0 && grant.tokens == 0);
        self.note_draw(&policy, reply, grant, context.now);
        if grant.epoch != self.buffer.epoch() {
            let waits = self.has_next_window(context.now);
            self.flags.set_next_window_asked(waits);
        }
        let refill = policy.refill(reply, grant, self.scarcity(context), context);
        self.buffer.refill(refill, policy.kind, context.now);
        self.note_round_trip(context.now.since(reply.asked_at));
        let paid = self.pay_debt(policy.kind, context.now);
        self.serve(context);
        self.fill_pool(reply.ask.key, context, asks);
        paid
    }

    /// Notes what the fleet drew since the store's last reply, and this pod's part of it.
    pub(in crate::limiter) fn note_draw(
        &mut self,
        policy: &LeasePolicy,
        reply: &Reply,
        grant: &Grant,
        now: Time,
    ) {
        let same = !is_windowed(policy.limit) || grant.epoch == self.buffer.epoch();
        let Some(before) = self.buffer.left(now).filter(|_| same) else {
            return;
        };
        let back = reply.ask.back.map_or(0, |back| back.tokens);
        let span = now.since(self.buffer.replied_at());
        let inflow = policy.inflow() * span.as_secs_f64();
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
        let before = before.saturating_add(back).saturating_add(inflow as u64);
        let before = before.min(policy.limit.capacity());
        let others = before.saturating_sub(grant.left).saturating_sub(grant.tokens);
        self.demand.note_draw(others, span);
    }

    /// Once no ask is out, asks for the requests that still wait, and for the rest of the debt as
    /// long as the store lends.
    fn ask_for_waiting(&mut self, reply: &Reply, context: &PodContext<'_>, asks: &mut Vec<Ask>) {
        let key: Key = reply.ask.key;
        let lends = || reply.outcome.as_ref().is_ok_and(|grant| grant.tokens > 0);
        let first = self.buffer.cold().and_then(|cold| cold.waiting.first());
        if let Some(first) = first {
            self.change_limit(first.limit, key, context, asks);
            asks.push(self.make_ask(key, context));
        } else if self.debt(context.now) > 0 && lends() {
            asks.push(Ask { purpose: Purpose::Ahead, ..self.make_ask(key, context) });
        } else if !self.policy(context).is_leased() {
            // Tokens that no request asked for must not be spent.
            self.give_back(key, context.now, asks);
        } else if let (LimitSource::ColdState, Some(limit)) =
            (self.limit_source, self.limit_of_rule())
        {
            // The other limit is kept only as long as the box is needed for waiting requests.
            self.change_limit(limit, key, context, asks);
        }
    }

    /// Handles an ask that was dropped because its shard has more urgent ones to answer: requests
    /// that probe an empty key are denied by the store's last reply, and nothing is asked ahead for
    /// a while.
    pub(in crate::limiter) fn note_shed(&mut self, ask: &Ask, context: &PodContext<'_>) {
        self.flags.set_shed(true);
        if self.asking == 0 {
            self.buffer.note_ask(context.now);
        }
        // Requests that joined an ask that was made ahead are asked for now.
        if ask.purpose == Purpose::Probe && self.asking == 0 {
            self.buffer.extend_freshness(context.now + SHED_PAUSE);
            self.serve(context);
            self.fail(&StoreError::Shed, context.now);
        }
    }

    /// Settles the waiting requests that the tokens and the store's reply allow, first come, first
    /// served.
    pub(in crate::limiter) fn serve(&mut self, context: &PodContext<'_>) {
        let kind = self.policy(context).kind;
        let Some(cold) = self.buffer.cold_mut() else { return };
        for waiter in cold.waiting.take_all() {
            let attempt = self.try_charge(waiter.pending, context);
            if !attempt.is_settled() {
                self.buffer.make_cold().waiting.push_back(waiter);
                continue;
            }
            let attempt = Attempt { how: DecisionSource::Leased, ..attempt };
            if let Some(unread) = waiter.answer(Ok(attempt)) {
                self.buffer.put_back(unread.taken(), kind, context.now);
            }
        }
    }

    pub(in crate::limiter) fn fail(&mut self, error: &StoreError, now: Time) {
        self.suspend(error, now);
        let Some(cold) = self.buffer.cold_mut() else { return };
        for waiter in cold.waiting.take_all() {
            waiter.answer(Err(error.clone()));
        }
    }

    /// Spends tokens on the debt, as far as the tokens suffice.
    /// Returns how many.
    pub(in crate::limiter) fn pay_debt(&mut self, kind: LeaseKind, now: Time) -> u64 {
        let debt = self.debt(now);
        let due = debt.min(self.buffer.tokens(now));
        let take = if due > 0 { self.buffer.take(due, false, kind, now) } else { Take::Short };
        let Take::Taken(lease) = take else { return 0 };
        self.set_debt(debt.saturating_sub(lease.tokens));
        lease.tokens
    }

    /// Notes `hits` that a failure mode has admitted, for the leases that arrive before `until` to
    /// pay for. They are owed only if an ask is out, or was refused for lack of room (`is_owed`):
    /// else the store is away, and what it cannot count is the failure mode's own. The slots
    /// of a leaky bucket pass, so they pay for nothing. Returns whether the hits are owed.
    pub(in crate::limiter) fn note_debt(
        &mut self,
        hits: u64,
        until: Time,
        is_owed: bool,
        now: Time,
    ) -> bool {
        let spaced = matches!(self.limit().algorithm, Algorithm::LeakyBucket { .. });
        if spaced || (self.asking == 0 && !is_owed) {
            return false;
        }
        let debt = self.debt(now).saturating_add(hits);
        let cold = self.buffer.make_cold();
        cold.debt_until = until;
        self.set_debt(debt);
        true
    }
}
