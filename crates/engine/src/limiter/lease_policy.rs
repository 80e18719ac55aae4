//! How a key's tokens are leased: how its limit and its rule determine asks, grants and returns.

use std::num::NonZeroU8;
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{LeaseTerms, Leasing, Limit, Rule};

use crate::algorithm::concurrency::SLOTS_TTL;
use crate::algorithm::{Token, counting};
use crate::buffer::{LeaseKind, LeasedTokens, Refill};
use crate::lease::Reply;
use crate::store::{Ask, Grant, Purpose, Return};
use crate::time::Time;

/// A reply that a window has no tokens is fresh for the window divided by this: another pod may
/// have given tokens back since. In a large fleet it is fresh for as long as all pods take to probe
/// one after the other.
const FRESH_PART: u32 = 100;

/// The shortest time for which such a reply is fresh, in a fleet of any size.
const FRESH_MIN: Duration = Duration::from_millis(50);

/// The longest time for which such a reply is fresh, unless the fleet is large.
const FRESH_MAX: Duration = Duration::from_secs(1);

/// Probes of one key a second by all pods together, whatever their number. This is less than half
/// of the documented limit (50), since pods that know nothing of the key yet may probe just as
/// often.
const PROBES_PER_SECOND: f64 = 20.0;

/// In a larger fleet the first denial of a window need not go to the store: one of the probes of
/// all pods reports it soon enough (decision 23).
const CROWD: f64 = 16.0;

/// For a key that weighs on its shard, the factor by which probes are rarer.
const RELIEF_PROBES: u32 = 4;

/// Where every decision asks the store, a reply holds only for the requests that waited for it: for
/// an instant.
const FRESH_OFF: Duration = Duration::from_nanos(1);

/// The resolution of timers.
const TIMER: Duration = Duration::from_millis(1);

/// How a key's tokens are leased.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeasePolicy {
    pub(super) limit: Limit,
    pub(super) kind: LeaseKind,
    pub(super) leasing: Leasing,
    /// Number of pools of the key; 1 means that there is none besides its own count.
    pub(super) pools: NonZeroU8,
    /// As [`Flags::settle`](ratelease_rules::Flags) of the rule.
    pub(super) settles: bool,
    /// As [`Ask::carry_debt`].
    pub(super) carries_debt: bool,
}

/// The ask that returns the lease of a reply that is no longer needed.
pub(super) fn unwanted(reply: &Reply) -> Option<Ask> {
    let grant = reply.outcome.as_ref().ok().filter(|grant| grant.tokens > 0)?;
    returning(&reply.ask, grant.tokens, grant.epoch)
}

/// The ask that returns tokens leased by `ask`. There is none for slots: a leaky bucket's pass
/// whether they are used or not, and `concurrency`'s go back when the pod states fewer.
fn returning(ask: &Ask, tokens: u64, epoch: u64) -> Option<Ask> {
    let returns = counting(ask.limit).token.can_be_owed();
    let back = Some(Return { tokens, epoch: Some(epoch) });
    let purpose = Purpose::Return;
    let Ask { ttl, carry_debt, .. } = *ask;
    returns.then_some(Ask { ttl, carry_debt, back, purpose, ..Ask::look(ask.key, ask.limit) })
}

// === impl LeasePolicy ===

impl LeasePolicy {
    /// The policy for a key under `limit`, which belongs to `rule`; an override has no rule. A slot
    /// may be taken as late as a request may wait for it.
    pub(super) fn of(limit: Limit, rule: Option<&Rule>, wait_min: Duration) -> Self {
        let leasing = rule.map(|rule| rule.leasing).unwrap_or_default();
        let kind = match (counting(limit).token, leasing) {
            (Token::Slot, _) => {
                let requests = u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX);
                let every = limit.window() / requests.max(1);
                LeaseKind::Spaced { every, grace: every.max(wait_min).max(TIMER) }
            }
            (Token::OfWindow, Leasing::Off) => LeaseKind::Windowed,
            (Token::OfWindow, Leasing::On(terms)) if terms.ttl.is_none() => LeaseKind::Windowed,
            _ => LeaseKind::Timed,
        };
        Self {
            limit,
            kind,
            leasing,
            pools: rule.map_or(NonZeroU8::MIN, |rule| rule.shards),
            settles: rule.is_some_and(|rule| rule.flags.settle),
            carries_debt: rule.is_some_and(|rule| rule.flags.carry_debt),
        }
    }

    /// An ask for `key` that takes nothing, to be filled in.
    pub(super) fn blank_ask(&self, key: Key) -> Ask {
        Ask { ttl: self.ttl(), carry_debt: self.carries_debt, ..Ask::look(key, self.limit) }
    }

    /// The ask that returns `lease` to the key's own count, even if a pool leased it.
    pub(super) fn returning(&self, key: Key, lease: LeasedTokens) -> Option<Ask> {
        returning(&self.blank_ask(key), lease.tokens, lease.epoch)
    }

    /// Until when costs that are owed now count, if the window ends at `window_ends`.
    pub(super) fn owed_until(&self, window_ends: Time) -> Time {
        let ends = counting(self.limit).token == Token::OfWindow && !self.carries_debt;
        if ends { window_ends } else { Time::from_nanos(u64::MAX) }
    }

    pub(super) fn is_leased(&self) -> bool {
        self.leasing != Leasing::Off
    }

    /// Whether leases are numbers of tokens, rather than slots.
    pub(super) fn is_leased_by_number(&self) -> bool {
        self.is_leased() && !self.kind.is_spaced()
    }

    pub(super) fn terms(&self) -> LeaseTerms {
        match self.leasing {
            Leasing::On(terms) => terms,
            Leasing::Off => LeaseTerms::default(),
        }
    }

    /// τ, the longest time that a lease lasts.
    pub(super) fn ttl(&self) -> Duration {
        if counting(self.limit).token == Token::Permit {
            return SLOTS_TTL;
        }
        let default =
            if self.kind == LeaseKind::Windowed { Duration::MAX } else { LeaseTerms::TTL };
        self.terms().ttl.unwrap_or(default)
    }

    /// Tokens that come back each second.
    pub(super) fn inflow(&self) -> f64 {
        match counting(self.limit).token {
            Token::OfWindow | Token::Permit => 0.0,
            Token::Steady | Token::Slot => {
                self.limit.requests_per_unit as f64 / self.limit.window().as_secs_f64()
            }
        }
    }

    /// Converts a grant to this pod's clock. Its durations count from before the ask, so that no
    /// lease outlives its end, however long the reply took.
    pub(super) fn refill(
        &self,
        reply: &Reply,
        grant: &Grant,
        scarcity: Scarcity,
        now: Time,
    ) -> Refill {
        let asked_at = reply.asked_at;
        // The start counts from the reply, so that no slot is taken before it begins. The end
        // counts from before the ask, so that no token is spent after it.
        let starts = now + grant.starts_after;
        let ends = match self.kind {
            LeaseKind::Spaced { grace, .. } => asked_at + grant.ends_after + grace,
            LeaseKind::Windowed | LeaseKind::Timed => asked_at + grant.ends_after,
        };
        let known_until = if counting(self.limit).is_windowed {
            asked_at + grant.reset_after
        } else {
            (asked_at + LeaseTerms::TTL).max(ends) // as long as there may be tokens
        };
        let fresh_until = self.fresh_until(reply, grant, scarcity, now);
        let is_crowded = scarcity.pods > CROWD && grant.left == 0;
        // Looks alone limit costs that are known afterwards, so the last token is the last.
        let is_spent = self.settles && grant.left == 0;
        Refill {
            lease: LeasedTokens { tokens: grant.tokens, epoch: grant.epoch, starts, ends },
            left: grant.left,
            overdrawn: grant.overdrawn || is_crowded || is_spent,
            is_sure: true,
            known_until,
            resets: asked_at + grant.resets_after(),
            fresh_until: known_until.min(fresh_until),
        }
    }

    /// Until when a reply that there are no tokens is fresh.
    fn fresh_until(&self, reply: &Reply, grant: &Grant, scarcity: Scarcity, now: Time) -> Time {
        let seed = reply.ask.key.bits() ^ now.nanos() ^ scarcity.pod;
        let probe = scarcity.probe_after(self.limit.window());
        match (counting(self.limit).token, self.kind) {
            _ if !self.is_leased() => now + FRESH_OFF,
            (Token::OfWindow, _) => now + jittered(probe, seed),
            // Slots that no pod fetches pass unused, so each pod asks in its turn before they do.
            (_, LeaseKind::Spaced { every, .. }) => {
                let turn = every.mul_f64(scarcity.pods);
                let latest = self.limit.algorithm.max_delay() / 2;
                now + turn.min(latest.max(grant.retry_after)).max(TIMER)
            }
            // Counted from before the ask, so that an ask that leaves at that time finds the token
            // there. The requests that waited for this reply have it already.
            _ => {
                let turn = reply.asked_at + scarcity.turn(grant.retry_after).min(probe);
                turn.max(now + FRESH_OFF)
            }
        }
    }
}

/// A pod's view of the pods that share a key without tokens with it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scarcity {
    /// Number of pods that draw on the key.
    pub(super) pods: f64,
    /// This pod's number.
    pub(super) pod: u64,
    /// Number of asks in a row that found no tokens.
    pub(super) misses: u8,
    /// The key weighs on its shard.
    pub(super) relief: bool,
}

// === impl Scarcity ===

impl Scarcity {
    /// How long a pod waits before it probes a `window` that is used up.
    fn probe_after(self, window: Duration) -> Duration {
        let alone = (window / FRESH_PART).clamp(FRESH_MIN, FRESH_MAX);
        let turn = Duration::try_from_secs_f64(self.pods / PROBES_PER_SECOND).unwrap_or(window);
        let probe = alone.max(turn);
        if self.relief { RELIEF_PROBES * probe } else { probe }
    }

    /// How long a pod waits before it asks a bucket that has a token again after `refill`. After
    /// asks that found nothing, the pod waits for its turn among the pods: more is asked of the
    /// bucket than it has.
    fn turn(self, refill: Duration) -> Duration {
        let stretch = f64::from(1_u32 << self.misses.min(MISSES_MAX)).min(self.pods);
        refill.mul_f64(stretch.max(1.0))
    }
}

/// Asks in a row that found no tokens are counted up to this number.
pub(super) const MISSES_MAX: u8 = 7;

/// A duration from half of `span` to one and a half times `span`, chosen by `seed`, so that pods
/// and keys do not probe in step. `seed` differs for each of them and over time.
fn jittered(span: Duration, seed: u64) -> Duration {
    // The multiplier is 2^64 / golden ratio: it spreads seeds that differ in few bits (Knuth 6.4).
    let spread = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
    span / 2 + span.mul_f64(f64::from(spread) / f64::from(u32::MAX))
}
