//! What passes between a slot and the desk: grants on this pod's clock, and leases that go back.

use std::time::Duration;

use crate::buffer::Refill;
use crate::key::Key;
use crate::lease::Reply;
use crate::rules::{Limit, Share};
use crate::store::{Ask, Back, Grant};
use crate::time::Time;

/// The store's word on a key without tokens is fresh for a hundredth of its window, within these
/// bounds: one probe a pod each time, since another pod may have given tokens back.
const FRESH_PART: u32 = 100;
const FRESH_MIN: Duration = Duration::from_millis(50);
const FRESH_MAX: Duration = Duration::from_secs(1);

/// The ask that returns the lease of a reply that nobody has a use for.
pub(super) fn unwanted(reply: &Reply) -> Option<Ask> {
    let grant = reply.outcome.as_ref().ok().filter(|grant| grant.tokens > 0)?;
    Some(returning(reply.ask.key, reply.ask.limit, grant.tokens, grant.epoch))
}

pub(super) fn returning(key: Key, limit: Limit, tokens: u64, window: u64) -> Ask {
    let back = Some(Back { tokens, epoch: Some(window) });
    let (share, ttl) = (Share::WHOLE, Duration::MAX);
    Ask { key, limit, share, want: 0, need: 0, charge_denied: false, ttl, back }
}

/// The grant on this pod's clock. Its durations count from before the ask, so that no lease
/// outlives its window however long the reply took.
pub(super) fn refill(reply: &Reply, grant: &Grant, now: Time) -> Refill {
    let fresh = (reply.ask.limit.window() / FRESH_PART).clamp(FRESH_MIN, FRESH_MAX);
    let ends = reply.asked_at + grant.reset_after;
    Refill {
        tokens: grant.tokens,
        left: grant.left,
        overdrawn: grant.overdrawn,
        window: grant.epoch,
        ends,
        fresh_until: ends.min(now + jittered(fresh, reply.ask.key.bits() ^ now.nanos())),
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
