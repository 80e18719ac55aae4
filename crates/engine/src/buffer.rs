//! The local tokens of one key: take, refill, expire. Pure: `now` is an argument.

mod expired;
mod leased_tokens;
mod packed;
pub mod table;

use std::time::Duration;

pub use expired::expired;
pub use leased_tokens::{LeaseKind, LeasedTokens};

use crate::time::{CompactDuration, CompactU64, Time};
use packed::PackedLeases;

/// Tokens of one key that this pod may spend without asking the store.
///
/// ```text
///            refill              take              refill: overdrawn
///  unknown ───────────▶ live ─────────────▶ empty ───────────────────▶ exhausted
///    ▲                   │ ends               │ ends                       │ ends
///    └───────────────────┴────────────────────┴────────────────────────────┘
/// ```
///
/// An *unknown* buffer knows nothing about its key. A *live* one holds tokens. An *empty* one holds
/// none, and a request that needs tokens waits for a lease. An *exhausted* one knows from the store
/// that the key is overdrawn, and denies locally until that information is no longer fresh. For
/// charges whose denial spends nothing, it is enough that the store has none left.
///
/// There are millions of buffers, so times are stored as spans since the store's last reply,
/// rounded down. `A` is state that the buffer's owner needs for few keys only (*cold* state);
/// it shares a box with the buffer's own.
#[derive(Debug, Clone)]
pub struct Buffer<A = ()> {
    leases: PackedLeases<A>,
    /// Tokens left at the store, by its last reply.
    left: u32,
    /// When the limit is as if nothing had been charged, or has a token again if none is left.
    resets: CompactDuration,
    /// Until when the store's last reply says anything about the key, in nanoseconds;
    /// [`CompactU64::NONE`] if that is until the limit resets, as with windows.
    known: CompactU64,
    /// Until when the store's last reply is fresh, in nanoseconds.
    fresh: CompactU64,
    /// When more tokens were last asked for, in [`ASKED_UNIT`]s; it wraps around every 69 seconds.
    asked: u16,
    /// Even a charge of 0 is over the limit, by the store's reply or by a charge denied here.
    overdrawn: bool,
    /// Whether `left` is the store's figure rather than an estimate.
    is_sure: bool,
}

/// State that the owner of a [`Buffer`] keeps in an optional box, since few keys have it.
pub trait Cold: Default {
    /// Whether it holds nothing, so that the box can be dropped.
    fn is_empty(&self) -> bool;
}

/// 2^20 nanoseconds, about a millisecond.
const ASKED_UNIT: Duration = Duration::from_nanos(1 << 20);

/// The outcome of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// These tokens paid for it.
    Taken(LeasedTokens),
    /// There are not enough tokens, by a recent reply of the store.
    Denied,
    /// Only the store can decide.
    Short,
}

/// A grant as plain values on this pod's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// Tokens lent.
    pub lease: LeasedTokens,
    /// Tokens that the store still has.
    pub left: u64,
    /// Even a charge of 0 is over the limit.
    pub overdrawn: bool,
    /// Whether `left` is exact, so that a charge above it may be denied.
    pub is_sure: bool,
    /// Until when this says anything about the key: counted from before the ask, so never too late.
    pub known_until: Time,
    /// When the limit is as if nothing had been charged, or has a token again if none is left.
    pub resets: Time,
    /// Until when the store need not be asked again about a key without tokens.
    pub fresh_until: Time,
}

// === impl Buffer ===

impl Default for Buffer {
    fn default() -> Self {
        Self::unknown()
    }
}

impl<A: Cold> Buffer<A> {
    /// Size of the box in bytes, where there is one.
    pub const COLD_BYTES: usize = PackedLeases::<A>::COLD_BYTES;

    /// A buffer that knows nothing about its key.
    pub fn unknown() -> Self {
        let (known, fresh) = (CompactU64::default(), CompactU64::default());
        let (overdrawn, is_sure) = (false, false);
        let leases = PackedLeases::empty();
        Self {
            leases,
            left: 0,
            resets: CompactDuration::EMPTY,
            known,
            fresh,
            asked: 0,
            overdrawn,
            is_sure,
        }
    }

    /// Whether anything is known of the key.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.known_until()
    }

    /// Charges `hits`; 0 only looks. If `charge_denied`, a denial spends what is left here, as in
    /// the reference implementation, whose counter keeps the hits that it denied.
    pub fn take(&mut self, hits: u64, charge_denied: bool, kind: LeaseKind, now: Time) -> Take {
        if !self.is_live(now) {
            return Take::Short;
        }
        if hits == 0 {
            return self.look(now);
        }
        if let Some(lease) = self.leases.spend(hits, kind, now) {
            return Take::Taken(lease);
        }
        // A leaky bucket's slot that a denied request does not take serves the next request.
        let charge_denied = charge_denied && !matches!(kind, LeaseKind::Spaced { .. });
        // The first denial of a window goes to the store, so that the whole fleet learns of it.
        let is_known = self.is_sure && (self.overdrawn || !charge_denied);
        if is_known && now < self.fresh_until() && hits > self.largest_charge(kind, now) {
            if charge_denied {
                self.leases.clear();
            }
            return Take::Denied;
        }
        Take::Short
    }

    /// The most tokens that one charge may have. Slots of two leases held here, and slots left at
    /// the store, are not adjacent, so a charge has its slots of one of them.
    fn largest_charge(&self, kind: LeaseKind, now: Time) -> u64 {
        match kind {
            LeaseKind::Spaced { .. } => self.leases.largest(now).max(self.left.into()),
            LeaseKind::Windowed | LeaseKind::Timed => self.remaining(now),
        }
    }

    /// A charge of 0 hits passes while the count does not exceed the limit: at the limit of a fixed
    /// window it still passes, as in the reference implementation.
    fn look(&self, now: Time) -> Take {
        match () {
            () if self.tokens(now) > 0 => Take::Taken(LeasedTokens::default()),
            () if now >= self.fresh_until() => Take::Short,
            () if self.overdrawn => Take::Denied,
            () => Take::Taken(LeasedTokens::default()),
        }
    }

    /// Adds what the store lent. A reply about an older window is dropped once that window is over.
    pub fn refill(&mut self, refill: Refill, kind: LeaseKind, now: Time) {
        let epoch = self.epoch();
        if kind == LeaseKind::Windowed && refill.lease.epoch != epoch {
            if self.is_live(now) && refill.lease.epoch < epoch && now >= refill.known_until {
                expired::note(refill.lease.tokens);
                return;
            }
            // A window that is not over yet is the present one, even if a later one was present
            // before: the store's clock has been set back.
            self.leases.expire();
        }
        self.leases.refill(refill.lease, kind, now);
        self.left = saturate_u32(refill.left);
        self.resets = CompactDuration::floor(refill.resets.since(now));
        self.known = match refill.known_until {
            until if until == refill.resets => CompactU64::NONE,
            until => nanos_between(now, until),
        };
        self.fresh = nanos_between(now, refill.fresh_until);
        self.overdrawn = refill.overdrawn;
        self.is_sure = refill.is_sure;
    }

    /// Puts back tokens that were taken but not spent, if their lease has not ended.
    pub fn put_back(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        if kind == LeaseKind::Windowed && lease.epoch != self.epoch() {
            return;
        }
        self.leases.put_back(lease, kind, now);
    }

    /// Gives back `hits` that this pod or another spent earlier, never above `limit`. Returns false
    /// if there is no live lease to add them to: then only the store can take them. For a live
    /// leaky bucket, whose past slots cannot come back, and for 0 hits there is nothing to add.
    pub fn refund(&mut self, hits: u64, limit: u64, kind: LeaseKind, now: Time) -> bool {
        if !self.is_live(now) || hits == 0 || matches!(kind, LeaseKind::Spaced { .. }) {
            return self.is_live(now);
        }
        let spent = limit.saturating_sub(self.remaining(now));
        let taken_in = self.leases.top_up(hits.min(spent), now);
        self.overdrawn &= !taken_in;
        taken_in
    }

    /// Whether [`Buffer::refund`] would take `hits`.
    pub fn takes_refund(&self, hits: u64, kind: LeaseKind, now: Time) -> bool {
        let nothing = hits == 0 || matches!(kind, LeaseKind::Spaced { .. });
        self.is_live(now) && (nothing || self.leases.has_lease(now))
    }

    /// Removes and returns the tokens above `kept`, which are to be given back to the store.
    pub fn take_excess(&mut self, kept: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        let lease = self.take_out(kept, kind, now)?;
        self.left = self.left.saturating_add(saturate_u32(lease.tokens));
        Some(lease)
    }

    /// Removes and returns the tokens above `kept`, which stay lent.
    pub fn take_out(&mut self, kept: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        let excess = self.tokens(now).saturating_sub(kept);
        if excess > 0 { self.leases.spend(excess, kind, now) } else { None }
    }

    /// Removes and returns every unspent token, to be given back to the store.
    pub fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let leases = self.leases.drain(now);
        let drained =
            leases.iter().flatten().fold(0_u64, |sum, lease| sum.saturating_add(lease.tokens));
        self.left = self.left.saturating_add(saturate_u32(drained));
        leases
    }

    /// Unspent tokens.
    pub fn tokens(&self, now: Time) -> u64 {
        self.leases.tokens(now)
    }

    /// Whether what is left is the store's figure rather than an estimate.
    pub fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// Tokens left at the store by its last reply; `None` if the reply is out of date.
    pub fn left(&self, now: Time) -> Option<u64> {
        self.is_live(now).then_some(self.left.into())
    }

    /// Tokens held here plus those left at the store: what the fleet may still spend, as far as is
    /// known.
    pub fn remaining(&self, now: Time) -> u64 {
        self.tokens(now).saturating_add(self.left.into())
    }

    /// The epoch of the store's last reply, or of a lease held from before it. It has no meaning
    /// where tokens are spaced.
    pub fn epoch(&self) -> u64 {
        self.leases.epoch()
    }

    /// Time until the limit is as if nothing had been charged, or until it has a token again if
    /// none is left; `None` if that is not known.
    pub fn reset_after(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.resets.after(self.leases.replied_at()).since(now))
    }

    /// Whether the store replied that there are no tokens and that a charge would be denied.
    pub fn is_known_empty(&self, now: Time) -> bool {
        self.is_live(now) && self.left == 0 && self.is_sure && self.overdrawn
    }

    /// Extends the freshness of the store's last reply to `until`, at most as long as the reply
    /// says anything about the key.
    pub fn extend_freshness(&mut self, until: Time) {
        let fresh_until = self.fresh_until().max(until.min(self.known_until()));
        self.fresh = nanos_between(self.leases.replied_at(), fresh_until);
    }

    /// Treats the store's figure of what is left as an estimate, since the limit has changed.
    pub fn mark_estimated(&mut self) {
        self.is_sure = false;
    }

    /// When the store's last reply came.
    pub fn replied_at(&self) -> Time {
        self.leases.replied_at()
    }

    /// Whether the store's last reply is fresh, so that the store need not be asked about a key
    /// without tokens.
    pub fn is_fresh(&self, now: Time) -> bool {
        now < self.fresh_until()
    }

    /// Notes that more tokens are asked for now.
    pub fn note_ask(&mut self, now: Time) {
        self.asked = asked_units(now);
    }

    /// How long ago more tokens were asked for, to about a millisecond, for asks that are still
    /// out. It wraps around at 69 seconds, and the second half of that range counts as zero. A
    /// caller that read the clock before the ask was made gets zero too.
    pub fn ask_age(&self, now: Time) -> Duration {
        let units = asked_units(now).wrapping_sub(self.asked).cast_signed();
        ASKED_UNIT * u32::try_from(units).unwrap_or(0)
    }

    /// Forgets the tokens and the store's last reply. What the owner keeps in the box stays.
    pub fn forget(&mut self) {
        let leases = std::mem::replace(&mut self.leases, PackedLeases::empty()).emptied();
        *self = Self { leases, asked: self.asked, ..Self::unknown() };
    }

    /// Frees the buffer's part of the box: of two leases held, one is joined to the other, so that
    /// it ends too soon, or is dropped.
    pub fn join_leases(&mut self, kind: LeaseKind) {
        self.leases.join(kind);
    }

    /// What the owner keeps in the box.
    pub fn cold(&self) -> Option<&A> {
        self.leases.cold()
    }

    /// What the owner keeps in the box, mutably. Call [`Buffer::trim`] afterwards.
    pub fn cold_mut(&mut self) -> Option<&mut A> {
        self.leases.cold_mut()
    }

    /// What the owner keeps in the box, mutably; makes the box if there is none.
    pub fn make_cold(&mut self) -> &mut A {
        self.leases.make_cold()
    }

    /// Drops the box if nothing is in it.
    pub fn trim(&mut self) {
        self.leases.trim();
    }

    fn known_until(&self) -> Time {
        match self.known {
            CompactU64::NONE => self.resets.after(self.leases.replied_at()),
            known => known.nanos_after(self.leases.replied_at()),
        }
    }

    fn fresh_until(&self) -> Time {
        self.fresh.nanos_after(self.leases.replied_at())
    }
}

impl Cold for () {
    fn is_empty(&self) -> bool {
        true
    }
}

/// Narrows to 32 bits, the width of limits and so of what is left of them.
fn saturate_u32(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Rounds down, so that nothing counts as valid for too long.
fn nanos_between(from: Time, to: Time) -> CompactU64 {
    CompactU64::floor(to.nanos().saturating_sub(from.nanos()))
}

#[allow(clippy::cast_possible_truncation, reason = "it is meant to begin again")]
fn asked_units(now: Time) -> u16 {
    (now.nanos() / ASKED_UNIT.as_nanos() as u64) as u16
}

#[cfg(test)]
mod tests;
