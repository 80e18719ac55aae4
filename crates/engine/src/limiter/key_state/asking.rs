//! What a key asks of the store: how much, when it asks again, and what it returns.

use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit};

use super::{KeyState, LOST_AFTER, OVERDUE_MIN, OVERDUE_ROUND_TRIPS, PROBES_SHED_FOR};
use crate::buffer::LeaseKind;
use crate::lease::size::LeaseSize;
use crate::limiter::PodContext;
use crate::limiter::lease_policy::LeasePolicy;
use crate::limiter::wait::PendingCharge;
use crate::store::{Ask, Return};
use crate::time::{CompactU64, Time};

/// The largest number of asks for one key that are out at once, where the store is so far away that
/// a request cannot wait for one ask after the other.
const ASKS_MAX: u8 = 8;

impl KeyState {
    /// The next ask. Its `want` includes what all waiting charges lack, and the debt. Its `need` is
    /// what one of the charges lacks, which is granted completely or not at all: the first in the
    /// queue, or the last if other asks are out. Looks ask for no tokens, and requests held to
    /// another limit are left out.
    /// Refunds for which no lease was held here go to the store with the ask.
    pub(super) fn make_ask(&mut self, key: Key, context: &PodContext<'_>) -> Ask {
        let expected = self.expected();
        self.note_asked(context.now);
        let policy = self.policy(context);
        let refunds = self.buffer.cold_mut().map_or(0, |cold| {
            // A request that has been answered already needs no tokens and is not charged.
            cold.waiting.forget_answered();
            cold.waiting.take_refunds(policy.limit)
        });
        let waiting = self.buffer.cold().map(|cold| &cold.waiting);
        // Slots that are held pass while a charge waits for more, so a charge gets all its slots at
        // once.
        let spaced = matches!(policy.kind, LeaseKind::Spaced { .. });
        let held = if spaced { 0 } else { self.buffer.tokens(context.now) };
        let charges = || {
            waiting
                .into_iter()
                .flat_map(|queue| queue.under(policy.limit))
                .filter(PendingCharge::spends)
        };
        let wanted = waiting.map_or(0, |queue| queue.wanted(policy.limit));
        let wanted = wanted.saturating_add(self.debt(context.now));
        let missing = wanted.saturating_sub(held).saturating_sub(expected);
        // With other asks out, the newest charge, for which this ask is made: the charges before it
        // are covered by those asks, or are asked for again after the replies.
        let needy = if expected > 0 { charges().last() } else { charges().next() };
        let need = needy.map_or(0, |pending| pending.hits.saturating_sub(held));
        let size = self.lease_size(&policy, missing, context);
        let pool = self.pool(&policy, &size, context.now).filter(|_| refunds == 0);
        let want = match needy {
            None if self.has_waiting() => 0,
            // The slots of one lease follow each other faster than one pod's part of the demand.
            _ if policy.is_leased() && !spaced => {
                let fill = if pool.is_none() { self.fill(&policy, &size, key, context) } else { 0 };
                size.tokens().max(need).saturating_add(fill)
            }
            _ => missing,
        };
        // A pool grants what it has, and never denies.
        let own = pool.is_none();
        if needy.is_some() {
            let more = expected.saturating_add(want.max(need));
            self.buffer.make_cold().expected = u32::try_from(more).unwrap_or(u32::MAX);
        }
        Ask {
            want,
            need: if own { need } else { 0 },
            charge_denied: own && needy.is_some_and(|pending| pending.charge_denied),
            back: (refunds > 0).then_some(Return { tokens: refunds, epoch: None }),
            pool,
            ..policy.blank_ask(key)
        }
    }

    /// Notes that an ask is sent.
    pub(super) fn note_asked(&mut self, now: Time) {
        self.flags.set_shed(false);
        if self.asking == 0 {
            self.buffer.note_ask(now);
        }
        self.asking = self.asking.saturating_add(1);
    }

    /// Notes that `ask` has been answered. If others are still out, the time to the next reply
    /// counts from now.
    pub(super) fn note_answered(&mut self, ask: &Ask, now: Time) {
        self.asking = self.asking.saturating_sub(1);
        self.buffer.note_ask(now);
        let out = self.asking > 0;
        if let Some(cold) = self.buffer.cold_mut() {
            let asked = u32::try_from(ask.want.max(ask.need)).unwrap_or(u32::MAX);
            let expected = cold.expected.saturating_sub(asked);
            cold.expected = if out { expected } else { 0 };
        }
    }

    /// Tokens that the asks on their way may bring to waiting requests.
    fn expected(&self) -> u64 {
        self.buffer.cold().map_or(0, |cold| cold.expected.into())
    }

    /// Whether an ask made now would only find out whether an empty key is still empty. This is not
    /// so for a bucket that had a token at the last ask, since it has another one soon.
    pub(super) fn is_probe(&self, context: &PodContext<'_>) -> bool {
        let refills = self.policy(context).inflow() > 0.0 && self.flags.misses() == 0;
        let recent = context.now.since(self.buffer.replied_at()) < PROBES_SHED_FOR;
        self.buffer.is_known_empty(context.now) && recent && !refills
    }

    /// Whether a request has no time to wait for three asks in sequence: the one that is out, one
    /// that brings less than is wanted, and one that is denied.
    pub(in crate::limiter) fn is_distant(&self, context: &PodContext<'_>) -> bool {
        3 * self.round_trip() > context.wait_min
    }

    /// Whether the waiting requests want more than the asks on their way may bring, and there is no
    /// time to ask again after the replies.
    pub(super) fn is_uncovered(&self, context: &PodContext<'_>) -> bool {
        let empty = self.buffer.is_known_empty(context.now); // one probe is enough
        if empty || !self.is_distant(context) || self.asking >= ASKS_MAX {
            return false;
        }
        let Some(cold) = self.buffer.cold() else { return false };
        let covered = self.expected().saturating_add(self.buffer.tokens(context.now));
        // The expected tokens are counted up to `u32::MAX` only.
        covered < u32::MAX.into() && cold.waiting.want_more_than(covered, self.limit())
    }

    pub(super) fn lease_size(
        &self,
        policy: &LeasePolicy,
        waiting: u64,
        context: &PodContext<'_>,
    ) -> LeaseSize {
        let limit = policy.limit.capacity();
        let lasts = match policy.kind {
            LeaseKind::Windowed => self.buffer.reset_after(context.now),
            // A sliding window's leases also end with their aligned window.
            LeaseKind::Timed if limit_slides(policy.limit) => {
                let rest = self.buffer.reset_after(context.now);
                Some(rest.map_or(policy.ttl(), |rest| rest.min(policy.ttl())))
            }
            LeaseKind::Timed | LeaseKind::Spaced { .. } => Some(policy.ttl()),
        };
        LeaseSize {
            demand: self.demand.steady_rate(),
            burst: self.demand.burst_rate(),
            run: self.demand.run_length(),
            waiting,
            limit,
            left: self.buffer.left(context.now).unwrap_or(limit),
            inflow: policy.inflow(),
            lasts,
            round_trip: self.round_trip(),
            pods: self.pods(context),
            relief: self.flags.relief(),
            terms: policy.terms(),
        }
    }

    pub(super) fn holds_above_allowance(&self, context: &PodContext<'_>) -> bool {
        let policy = self.policy(context);
        let tokens = self.buffer.tokens(context.now);
        let spaced = matches!(policy.kind, LeaseKind::Spaced { .. });
        let allowance = || self.lease_size(&policy, 0, context).unspent_allowance();
        self.has_next_window(context.now) || (tokens > 0 && !spaced && tokens as f64 > allowance())
    }

    /// Whether the reply to the ask on its way is overdue.
    pub(super) fn is_overdue(&self, context: &PodContext<'_>) -> bool {
        let trips = self.round_trip() * OVERDUE_ROUND_TRIPS;
        let asked_for = self.buffer.ask_age(context.now);
        self.asking > 0 && asked_for > trips.max(OVERDUE_MIN).max(context.wait_min)
    }

    /// Whether the reply to the ask on its way will never come.
    pub(super) fn is_lost(&self, now: Time) -> bool {
        self.asking > 0 && self.buffer.ask_age(now) > LOST_AFTER
    }

    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip_us.get())
    }

    pub(super) fn note_round_trip(&mut self, measured: Duration) {
        let measured = u64::try_from(measured.as_micros()).unwrap_or(u64::MAX);
        let before = self.round_trip_us.get();
        let smooth = before - before / 8 + measured / 8;
        self.round_trip_us = CompactU64::floor(smooth.max(measured));
    }
}

fn limit_slides(limit: Limit) -> bool {
    limit.algorithm == Algorithm::SlidingWindow
}
