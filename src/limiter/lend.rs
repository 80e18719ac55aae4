//! How a key's tokens are lent: what its limit and its rule make of asks, grants and returns.

use std::num::NonZeroU8;
use std::time::Duration;

use super::Here;
use super::shares::Whole;
use crate::buffer::{Kind, Lot, Refill};
use crate::key::Key;
use crate::lease::Reply;
use crate::rules::{Algorithm, Leasing, Limit, Rule, Share, Terms};
use crate::store::{Ask, Back, Grant};

/// The store's word on a key without tokens is fresh for a hundredth of its window, within these
/// bounds, or until there is a token again: one probe a pod each time, since another pod may have
/// given tokens back.
const FRESH_PART: u32 = 100;
const FRESH_MIN: Duration = Duration::from_millis(50);
const FRESH_MAX: Duration = Duration::from_secs(1);

/// Where every decision asks the store, its word holds for those who waited for it, and nobody
/// else: an instant.
const FRESH_OFF: Duration = Duration::from_nanos(1);

/// Timers are no finer.
const TIMER: Duration = Duration::from_millis(1);

/// The manner in which a key's tokens are lent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    pub(super) limit: Limit,
    pub(super) kind: Kind,
    pub(super) leasing: Leasing,
    /// Parts that the key is split into.
    pub(super) shares: NonZeroU8,
}

/// The ask that returns the lease of a reply that nobody has a use for.
pub(super) fn unwanted(reply: &Reply) -> Option<Ask> {
    let grant = reply.outcome.as_ref().ok().filter(|grant| grant.tokens > 0)?;
    returning(&reply.ask, grant.tokens, grant.epoch)
}

/// The ask that returns tokens lent by `ask`. Slots go by whether they are used or not.
fn returning(ask: &Ask, tokens: u64, epoch: u64) -> Option<Ask> {
    let spaced = matches!(ask.limit.algorithm, Algorithm::LeakyBucket { .. });
    let back = Some(Back { tokens, epoch: Some(epoch) });
    let Ask { share, ttl, .. } = *ask;
    (!spaced).then_some(Ask { share, ttl, back, ..Ask::look(ask.key, ask.limit) })
}

// === impl Manner ===

impl Manner {
    /// Of a key under `limit`, which is `rule`'s; an override has none.
    /// A slot may be taken as late as a request may wait for it.
    pub(super) fn of(limit: Limit, rule: Option<&Rule>, patience: Duration) -> Self {
        let leasing = match limit.algorithm {
            Algorithm::SlidingLog => Leasing::Off,
            _ => rule.map(|rule| rule.leasing).unwrap_or_default(),
        };
        let kind = match (limit.algorithm, leasing) {
            (Algorithm::LeakyBucket { .. }, _) => {
                let every = limit.window() / limit.requests_per_unit.max(1);
                Kind::Spaced { every, grace: every.max(patience).max(TIMER) }
            }
            (Algorithm::FixedWindow, Leasing::Off) => Kind::Windowed,
            (Algorithm::FixedWindow, Leasing::On(terms)) if terms.ttl.is_none() => Kind::Windowed,
            _ => Kind::Timed,
        };
        Self { limit, kind, leasing, shares: rule.map_or(NonZeroU8::MIN, |rule| rule.shards) }
    }

    /// A look at the key's share `at`, to be filled in.
    pub(super) fn ask(&self, key: Key, at: u8) -> Ask {
        let share = Share { at, of: self.shares };
        Ask { share, ttl: self.ttl(), ..Ask::look(key, self.limit) }
    }

    /// The ask that returns `lot`. Any share may take it: what it credits, it never lends twice.
    pub(super) fn returning(&self, key: Key, at: u8, lot: Lot) -> Option<Ask> {
        returning(&self.ask(key, at), lot.tokens, lot.epoch)
    }

    pub(super) fn is_leased(&self) -> bool {
        self.leasing != Leasing::Off
    }

    pub(super) fn terms(&self) -> Terms {
        match self.leasing {
            Leasing::On(terms) => terms,
            Leasing::Off => Terms::default(),
        }
    }

    /// τ.
    pub(super) fn ttl(&self) -> Duration {
        let default = if self.kind == Kind::Windowed { Duration::MAX } else { Terms::TTL };
        self.terms().ttl.unwrap_or(default)
    }

    /// Tokens that come back each second by themselves.
    pub(super) fn inflow(&self) -> f64 {
        match self.limit.algorithm {
            Algorithm::FixedWindow => 0.0,
            _ => f64::from(self.limit.requests_per_unit) / self.limit.window().as_secs_f64(),
        }
    }

    /// The grant on this pod's clock. Its durations count from before the ask, so that no lease
    /// outlives its end however long the reply took.
    pub(super) fn refill(&self, reply: &Reply, grant: &Grant, key: Whole, here: &Here) -> Refill {
        let asked_at = reply.asked_at;
        let starts = asked_at + grant.starts_after;
        let ends = match self.kind {
            Kind::Spaced { grace, .. } => asked_at + grant.ends_after + grace,
            Kind::Windowed | Kind::Timed => asked_at + grant.ends_after,
        };
        let known_until = match self.limit.algorithm {
            Algorithm::FixedWindow | Algorithm::SlidingWindow => asked_at + grant.reset_after,
            _ => asked_at + Terms::TTL,
        };
        let fresh = self.fresh(grant, here.pods);
        let fresh_until = here.now + jittered(fresh, reply.ask.key.bits() ^ here.now.nanos());
        Refill {
            lot: Lot { tokens: grant.tokens, epoch: grant.epoch, starts, ends },
            left: key.left,
            overdrawn: key.overdrawn,
            is_sure: key.is_sure,
            known_until,
            resets: asked_at + if key.left > 0 { grant.reset_after } else { grant.retry_after },
            fresh_until: known_until.min(fresh_until),
        }
    }

    /// How long word that there are no tokens holds.
    fn fresh(&self, grant: &Grant, pods: u32) -> Duration {
        let probe = (self.limit.window() / FRESH_PART).clamp(FRESH_MIN, FRESH_MAX);
        match (self.limit.algorithm, self.kind) {
            _ if !self.is_leased() => FRESH_OFF,
            (Algorithm::FixedWindow, _) => probe,
            // Slots that nobody fetches go by: each pod comes for its turn before they do.
            (Algorithm::LeakyBucket { max_delay_us }, Kind::Spaced { every, .. }) => {
                let turn = every.saturating_mul(pods);
                let latest = Duration::from_micros(u64::from(max_delay_us) / 2);
                turn.min(latest.max(grant.retry_after)).max(TIMER)
            }
            _ => grant.retry_after.clamp(FRESH_MIN, probe),
        }
    }
}

/// `span` ± 10 %, so that pods and keys do not probe in step. `seed` differs for each and with
/// time.
fn jittered(span: Duration, seed: u64) -> Duration {
    // The multiplier is 2^64 / golden ratio: it spreads seeds that differ in few bits (Knuth 6.4).
    let spread = (seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as u32;
    let tenth = span / 10;
    span - tenth + tenth.mul_f64(2.0 * f64::from(spread) / f64::from(u32::MAX))
}
