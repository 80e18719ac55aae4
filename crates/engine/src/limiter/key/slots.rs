//! A key of slots (`algorithm: concurrency`): those in use, and those that lie idle in the buffer.
//!
//! A request takes idle slots, which are then in use, and gives them back when it ends; the next
//! request takes them again without an ask. Each ask states how many slots the pod has, in use and
//! idle together, and while it has any, it asks every second. Idle slots last as long as the store
//! counts them: [`SLOTS_TTL`] from the last ask that was answered. Slots in use stay with the pod
//! whatever the store says, since a request that runs cannot be undone; so they are stated again
//! once the store is back.
//!
//! Where the store is far away, an ask may leave while others are out, as for all keys. Its number
//! tells the store if another one has overtaken it, and it says which slots the pod has received:
//! the store adds those that are on their way.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{Flags, KeyState, Visit, WATCH_EVERY};
use crate::algorithm::concurrency::SLOTS_TTL;
use crate::algorithm::{Token, counting};
use crate::buffer::{LeasedTokens, Refill, Take};
use crate::invariant;
use crate::lease::size::LeaseSize;
use crate::store::{Ask, Purpose, Slots};
use crate::time::Time;

/// How long after the store's last reply a pod that has slots asks again. With the checks of
/// watched keys, there is an ask a second.
const RENEWED_AFTER: Duration = Duration::from_millis(800);

/// Where few slots are left, idle ones are kept only for the demand of this pod in this time:
/// another pod may wait for them.
const KEPT_FOR: Duration = Duration::from_millis(50);

/// Slots that a failure mode admits: of no lease.
const ALONE: LeasedTokens =
    LeasedTokens { tokens: 0, epoch: 0, starts: Time::from_nanos(0), ends: Time::from_nanos(0) };

/// The asks of a key on their way that may bring slots.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SlotsAsked {
    /// [`Slots::order`] of the first one.
    since: u32,
    /// Slots received since then.
    received: u64,
}

const _: () = assert!(RENEWED_AFTER.as_millis() * 4 < SLOTS_TTL.as_millis());

impl KeyState {
    /// Whether the key counts slots.
    pub(in crate::limiter) fn is_of_slots(&self) -> bool {
        counting(self.limit()).token == Token::Permit
    }

    /// Slots that requests have.
    pub(super) fn in_use(&self) -> u64 {
        if self.number > 0 && self.is_of_slots() { self.number.into() } else { 0 }
    }

    /// Notes that a request has `slots` from now on.
    pub(super) fn note_in_use(&mut self, slots: u64) {
        let slots = u32::try_from(slots).unwrap_or(u32::MAX);
        self.number = self.number.saturating_add(slots);
    }

    /// The slots that an ask states: those in use and those that lie idle. Each ask has the next
    /// number.
    pub(super) fn stated(&self, visit: &Visit<'_>) -> Option<Slots> {
        if !self.is_of_slots() {
            return None;
        }
        let order = visit.slot_asks.fetch_add(1, Ordering::Relaxed);
        let first = SlotsAsked { since: order, received: 0 };
        let asked = self.buffer.cold().filter(|cold| cold.expected > 0);
        let SlotsAsked { since, received } = asked.map_or(first, |cold| cold.slots_asked);
        Some(Slots { pod: visit.pod, held: self.held(visit.now), order, since, received })
    }

    /// Notes that an ask which states `slots` may bring some.
    pub(super) fn note_asked_for(&mut self, slots: Slots) {
        let Slots { since, received, .. } = slots;
        self.buffer.make_cold().slots_asked = SlotsAsked { since, received };
    }

    /// Whether the distance of the store is not known yet. Then a slot is asked for as if it were
    /// far away, since nothing pays later for one that a failure mode admits.
    pub(super) fn is_unmeasured(&self) -> bool {
        self.is_of_slots() && self.buffer.replied_at() == Time::default()
    }

    /// Slots in use, and those that lie idle.
    fn held(&self, now: Time) -> u64 {
        self.in_use().saturating_add(self.buffer.tokens(now))
    }

    /// Gives back slots that were in use: to the request that waits first, else they lie idle, as
    /// long as the store still counts them.
    pub(super) fn release(&mut self, taken: LeasedTokens, visit: &mut Visit<'_>) {
        let now = visit.now;
        let slots = self.end_use(taken.tokens);
        // A failure mode has admitted them; or the slots of other requests that run are more than
        // the limit; or nothing is known of the count any more, since its limit was lowered.
        let is_alone = taken.ends == ALONE.ends;
        if is_alone || self.is_beyond_limit(slots, now) || !self.buffer.is_live(now) {
            visit.asks.extend((self.asking == 0).then(|| self.statement(visit)));
            return; // if an ask is out, its reply leads to another one
        }
        let (epoch, ends) = (self.buffer.epoch(), self.buffer.known_until());
        let lease = LeasedTokens { tokens: slots, epoch, starts: Time::default(), ends };
        self.buffer.put_back(lease, self.policy(visit).kind, now);
        self.serve(visit);
        self.give_back_unused(visit);
    }

    /// Whether this pod, with so many slots `more`, or the fleet by the store's last reply has more
    /// slots than the limit: of requests that failure modes admitted, or that began under a higher
    /// limit.
    fn is_beyond_limit(&self, more: u64, now: Time) -> bool {
        let own = self.held(now).saturating_add(more);
        own > self.limit().capacity() || self.buffer.is_known_empty(now)
    }

    /// Notes that `slots` are no longer in use; returns their number. Of another key it does
    /// nothing.
    pub(in crate::limiter) fn end_use(&mut self, slots: u64) -> u64 {
        if !self.is_of_slots() {
            return 0;
        }
        invariant::check(slots <= self.in_use(), "slots that are given back were in use");
        let ended = u32::try_from(slots).unwrap_or(u32::MAX).min(self.number);
        self.number -= ended;
        ended.into()
    }

    /// Gives back at once the slots that this pod will not use soon, above all where few slots are
    /// left: another pod may wait for them.
    pub(super) fn give_back_unused(&mut self, visit: &mut Visit<'_>) {
        let is_free = self.is_of_slots() && self.asking == 0 && self.buffer.is_live(visit.now);
        if is_free && self.drop_idle(visit) {
            visit.asks.push(self.statement(visit));
        }
    }

    /// Gives back unused slots, as [`KeyState::give_back_unused`] does, after a reply to `ask`,
    /// which lent so many `tokens`. Also states the slots of this pod if the store counts more:
    /// some were given back meanwhile, and do not lie idle.
    pub(super) fn give_back_after(&mut self, ask: &Ask, tokens: u64, visit: &mut Visit<'_>) {
        let Some(Slots { held, received, .. }) = ask.slots.filter(|_| self.is_of_slots()) else {
            return;
        };
        if self.asking > 0 {
            return; // after the last reply
        }
        let since = self.buffer.cold().map_or(0, |cold| cold.slots_asked.received);
        let counted = held.saturating_add(since.saturating_sub(received).max(tokens));
        let dropped = self.buffer.is_live(visit.now) && self.drop_idle(visit);
        if dropped || self.held(visit.now) < counted {
            visit.asks.push(self.statement(visit));
        }
    }

    /// Takes slots that no lease covers, as a failure mode allows it: up to `most` in use.
    pub(in crate::limiter) fn take_alone(&mut self, hits: u64, most: u64) -> Take {
        let used = self.in_use();
        let room = most.min(u32::MAX.into()).saturating_sub(used);
        if room == 0 || hits > room {
            return Take::Denied;
        }
        self.note_in_use(hits);
        Take::Taken(LeasedTokens { tokens: hits, ..ALONE })
    }

    /// The refill of a grant: with it, the slots that lie idle last as long as the new ones.
    pub(super) fn with_idle(&mut self, refill: Refill, now: Time) -> Refill {
        if !self.is_of_slots() {
            return refill;
        }
        if let Some(cold) = self.buffer.cold_mut() {
            let received = &mut cold.slots_asked.received;
            *received = received.saturating_add(refill.lease.tokens);
        }
        let idle = self.buffer.drain(now).into_iter().flatten().map(|lease| lease.tokens);
        let tokens = idle.fold(refill.lease.tokens, u64::saturating_add);
        Refill { lease: LeasedTokens { tokens, ..refill.lease }, ..refill }
    }

    /// Checks the key: gives back idle slots that the recent demand does not use, and asks if the
    /// last ask was a second ago. Returns when to check again; `None` if the pod has no slots.
    pub(super) fn inspect_slots(&mut self, visit: &mut Visit<'_>) -> Option<Time> {
        let has_slots = self.has_slots(visit.now);
        self.flags.set(Flags::WATCHED, has_slots);
        if !has_slots {
            return None;
        }
        self.forget_lost_ask(visit.now);
        let renews = visit.now.since(self.buffer.replied_at()) >= RENEWED_AFTER;
        if self.asking == 0 && !self.is_suspended(visit.now) && (self.drop_idle(visit) || renews) {
            visit.asks.push(self.statement(visit));
        }
        Some(visit.now + WATCH_EVERY)
    }

    /// Whether slots are in use or lie idle.
    pub(super) fn has_slots(&self, now: Time) -> bool {
        self.is_of_slots() && (self.number > 0 || self.buffer.tokens(now) > 0)
    }

    /// Removes all idle slots, which go back with the ask; those in use stay stated.
    pub(super) fn give_back_idle(&mut self, visit: &mut Visit<'_>) {
        if self.drain_idle(visit.now) {
            visit.asks.push(self.statement(visit));
        }
    }

    /// Gives back all idle slots, as [`KeyState::give_back_idle`] does, with an ask that does not
    /// count as out. Call it only where the key sends no later ask to the same store, which might
    /// arrive first.
    pub(super) fn give_back_last(&mut self, visit: &mut Visit<'_>) {
        if self.drain_idle(visit.now) {
            let (slots, purpose) = (self.stated(visit), Purpose::Return);
            visit.asks.push(Ask { slots, purpose, ..self.policy(visit).blank_ask(visit.key) });
        }
    }

    /// Removes all idle slots. Returns whether an ask has to be made to say so: if one is out, the
    /// one after it does.
    pub(super) fn drain_idle(&mut self, now: Time) -> bool {
        let idle = self.buffer.drain(now).into_iter().flatten().count();
        idle > 0 && self.asking == 0
    }

    /// An ask that states the slots of the pod, and wants nothing.
    pub(super) fn statement(&mut self, visit: &Visit<'_>) -> Ask {
        self.note_asked(visit.now);
        let slots = self.stated(visit);
        Ask { slots, ..self.policy(visit).blank_ask(visit.key) }
    }

    /// Removes the idle slots that the recent demand does not use. Returns whether there were any.
    fn drop_idle(&mut self, visit: &Visit<'_>) -> bool {
        let now = visit.now;
        let policy = self.policy(visit);
        let kept = self.kept_idle(visit);
        self.buffer.take_excess(kept, policy.kind, now).is_some()
    }

    /// Idle slots that the pod keeps: none without demand, few where a pod's part of the slots left
    /// is less than one, else the number that the demand uses in about a lease.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
    fn kept_idle(&self, visit: &Visit<'_>) -> u64 {
        let now = visit.now;
        let policy = self.policy(visit);
        if self.is_beyond_limit(0, now) {
            return 0;
        }
        if self.has_waiting() {
            return u64::MAX;
        }
        if self.demand.idle_for(now) >= self.idle_after(&policy) {
            return 0;
        }
        let demand = self.demand.recent_rate(now);
        let size = self.lease_size(&policy, 0, visit);
        let size = LeaseSize { demand, burst: demand, run: None, ..size };
        if size.may_hold_ahead() {
            2 * size.in_use()
        } else {
            (demand * KEPT_FOR.as_secs_f64()) as u64
        }
    }
}
