//! Leases of the next fixed window, asked for in the last tenth of the present one, so that a
//! window does not begin with an ask from every pod for every key.
//!
//! Such a lease waits beside the buffer until its window has begun by the store's clock. Its start
//! counts from the reply, so that no token is spent too early, and its end from before the ask, so
//! that none is spent too late.

use std::time::Duration;

use ratelease_rules::Algorithm;
use ratelease_rules::key::Key;

use super::KeyState;
use crate::buffer::{LeaseKind, Refill};
use crate::lease::Reply;
use crate::lease::size::LeaseSize;
use crate::limiter::PodContext;
use crate::limiter::attempt::Attempt;
use crate::limiter::lease_policy::unwanted;
use crate::limiter::resolve::Charge;
use crate::rng::{fraction, mixed};
use crate::store::{Ask, Grant, Purpose};
use crate::time::Time;

/// The next window is lent in this last part (1 / 10) of the present one.
const LAST_PART: u32 = 10;

/// A key that waits for its next window is not checked within this time before the window begins,
/// and is checked at most this long after the beginning. Keys are checked in the order in which
/// they came to be watched, so a key that waits for its window holds up the others.
const LOOK_WITHIN: Duration = Duration::from_secs(2);

/// The fraction at the end of that part in which no pod asks, to leave time for a round trip.
const UNUSED: f64 = 0.2;

impl KeyState {
    /// After a charge near the end of its window, asks for a lease of the next window if the demand
    /// will use it at once. It asks once, at a time that differs from pod to pod.
    pub(in crate::limiter) fn request_next_window(
        &mut self,
        charge: &Charge<'_>,
        attempt: &Attempt,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let limit = charge.applied.limit;
        let Some(rest) = attempt.quota.reset_after else { return };
        if self.flags.is_next_window_asked()
            || self.has_next_window(context.now)
            || limit.algorithm != Algorithm::FixedWindow
            || rest > limit.window() / LAST_PART
            || self.asking > 0
        {
            return;
        }
        let key = charge.key();
        let at = UNUSED + (1.0 - UNUSED) * self.place(key, context);
        if rest <= (limit.window() / LAST_PART).mul_f64(at) {
            self.ask_for_next_window(key, context, asks);
        }
    }

    fn ask_for_next_window(&mut self, key: Key, context: &PodContext<'_>, asks: &mut Vec<Ask>) {
        let policy = self.policy(context);
        let limit = policy.limit.capacity();
        let lasts = Some(policy.limit.window());
        let size = LeaseSize { left: limit, lasts, ..self.lease_size(&policy, 0, context) };
        let used = self.demand.uses_soon(policy.limit.window()) && size.may_hold_ahead();
        if policy.kind != LeaseKind::Windowed || !policy.is_leased() || !used {
            return;
        }
        self.flags.set_next_window_asked(true);
        self.note_asked(context.now);
        let (want, purpose) = (size.tokens(), Purpose::Ahead);
        asks.push(Ask { want, purpose, next_window: true, ..policy.blank_ask(key) });
    }

    /// Stores the lease of the next window until that window begins.
    pub(super) fn keep_next_window(
        &mut self,
        reply: &Reply,
        grant: &Grant,
        context: &PodContext<'_>,
        asks: &mut Vec<Ask>,
    ) {
        let policy = self.policy(context);
        if policy.limit != reply.ask.limit || policy.kind != LeaseKind::Windowed {
            asks.extend(unwanted(reply)); // the limit has changed meanwhile
            return;
        }
        if grant.tokens == 0 {
            return;
        }
        self.give_back_next_window(reply.ask.key, asks);
        let refill = policy.refill(reply, grant, self.scarcity(context), context);
        let fresh_until = refill.lease.starts;
        self.buffer.make_cold().next_window = Some(Box::new(Refill { fresh_until, ..refill }));
    }

    /// Makes the waiting lease the present one, once its window has begun.
    pub(in crate::limiter) fn begin_next_window(&mut self, now: Time) {
        let Some(cold) = self.buffer.cold_mut() else { return };
        let Some(refill) = cold.next_window.take_if(|refill| now >= refill.lease.starts) else {
            return;
        };
        self.flags.set_next_window_asked(false);
        let known = self.buffer.is_live(now) && self.buffer.epoch() == refill.lease.epoch;
        if known {
            self.buffer.put_back(refill.lease, LeaseKind::Windowed, now);
        } else {
            self.buffer.refill(*refill, LeaseKind::Windowed, now);
        }
        self.buffer.trim();
    }

    /// When to check whether the waiting lease is used, if its window begins soon. The check comes
    /// some time after the beginning, different for each pod and key, so that what idle keys give
    /// back does not reach the masters all at once with the window's first asks.
    pub(super) fn checks_next_window_at(&self, key: Key, context: &PodContext<'_>) -> Option<Time> {
        let begins = self.buffer.cold()?.next_window.as_ref()?.lease.starts;
        let spread = (self.limit().window() / LAST_PART).min(LOOK_WITHIN);
        let soon = begins.since(context.now) <= LOOK_WITHIN;
        soon.then(|| begins + spread.mul_f64(self.place(key, context)))
    }

    /// This pod's place among all pods that hold the key, from 0 to 1; different in each window.
    fn place(&self, key: Key, context: &PodContext<'_>) -> f64 {
        fraction(mixed(key.bits() ^ mixed(context.pod ^ self.buffer.epoch())))
    }

    /// Whether a lease waits for its window, and that window is not over yet.
    pub(super) fn has_next_window(&self, now: Time) -> bool {
        let next = self.buffer.cold().and_then(|cold| cold.next_window.as_ref());
        next.is_some_and(|refill| now < refill.lease.ends)
    }

    /// Removes the waiting lease, which is given back.
    pub(super) fn give_back_next_window(&mut self, key: Key, asks: &mut Vec<Ask>) {
        let next = self.buffer.cold_mut().and_then(|cold| cold.next_window.take());
        if let Some(refill) = next {
            asks.extend(self.return_policy().returning(key, refill.lease));
            self.buffer.trim();
        }
    }
}
