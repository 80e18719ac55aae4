//! One key's local tokens: take, refill, expire. Pure: `now` is an argument.

mod expired;
mod lots;
mod stock;
pub mod table;

use std::time::Duration;

pub use expired::expired;
pub use lots::{Kind, Lot};

use crate::time::{Coarse, Span, Time};
use stock::Stock;

/// Tokens of one key that this pod may spend without asking anybody.
///
/// ```text
///            refill                 take               refill: none left
///   cold ─────────────▶ live ─────────────────▶ empty ───────────────────▶ dry
///    ▲                   │ ends                  │ ends                     │ ends
///    └───────────────────┴───────────────────────┴──────────────────────────┘
/// ```
///
/// A *cold* buffer knows nothing. A *live* one holds tokens. An *empty* one does not, and whoever
/// needs some waits for a lease. A *dry* one has heard from the store that there are none to be
/// had, and denies by itself until that word is no longer fresh.
///
/// There are millions of them, so that times are kept as spans since the store's last word, rounded
/// down. What its owner keeps of few keys only, `A`, shares a box with what the buffer has of few.
#[derive(Debug, Clone)]
pub struct Buffer<A = ()> {
    lots: Stock<A>,
    /// What the store still had at its last word.
    left: u32,
    /// When the limit stands as new, or has a token again if none is left.
    resets: Span,
    /// Until when the word is worth anything, in nanoseconds; [`Coarse::NONE`] if that is until it
    /// resets, as with windows.
    known: Coarse,
    /// Until when the store's last word is taken for true, in nanoseconds.
    fresh: Coarse,
    /// When more was asked for, in [`ASKED_UNIT`]s; it begins again every 69 seconds.
    asked: u16,
    /// The store, or a charge denied here, says that even a look is over the limit.
    overdrawn: bool,
    /// Whether `left` is the store's word rather than an estimate.
    is_sure: bool,
}

/// What the owner of a [`Buffer`] keeps in a box of which there may be none.
pub trait Spare: Default {
    /// Whether it holds nothing, so that the box can go.
    fn is_empty(&self) -> bool;
}

/// 2^20 nanoseconds, about a millisecond.
const ASKED_UNIT: Duration = Duration::from_nanos(1 << 20);

/// What became of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// It was paid with these.
    Taken(Lot),
    /// There are not enough, and the store said so a moment ago.
    Denied,
    /// Only the store can tell.
    Short,
}

/// A grant in plain values: what the store said, on this pod's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// Tokens lent.
    pub lot: Lot,
    /// Tokens that the store still has.
    pub left: u64,
    /// Even a look is over the limit.
    pub overdrawn: bool,
    /// Whether a charge above `left` may be denied: it is no estimate.
    pub is_sure: bool,
    /// Until when this is worth anything: counted from before the ask, so never too late.
    pub known_until: Time,
    /// When the limit stands as new, or has a token again if none is left.
    pub resets: Time,
    /// Until when the store need not be asked again about a key without tokens.
    pub fresh_until: Time,
}

// === impl Buffer ===

impl Default for Buffer {
    fn default() -> Self {
        Self::cold()
    }
}

impl<A: Spare> Buffer<A> {
    /// Bytes of the box, where there is one.
    pub const ASIDE_BYTES: usize = Stock::<A>::ASIDE_BYTES;

    /// A buffer that knows nothing.
    pub fn cold() -> Self {
        let (known, fresh) = (Coarse::default(), Coarse::default());
        let (overdrawn, is_sure) = (false, false);
        let lots = Stock::empty();
        Self { lots, left: 0, resets: Span::EMPTY, known, fresh, asked: 0, overdrawn, is_sure }
    }

    /// Whether anything is known of the key.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.known_until()
    }

    /// Charges `hits`; 0 looks. A denial spends what is left here if `charge_denied`, as the
    /// reference, whose counter keeps the hits that it denied.
    pub fn take(&mut self, hits: u64, charge_denied: bool, kind: Kind, now: Time) -> Take {
        if !self.is_live(now) {
            return Take::Short;
        }
        if hits == 0 {
            return self.look(now);
        }
        if let Some(lot) = self.lots.spend(hits, kind, now) {
            return Take::Taken(lot);
        }
        // A slot that a denied request does not take serves the next one.
        let charge_denied = charge_denied && !matches!(kind, Kind::Spaced { .. });
        // The first denial of a window goes to the store, so that the whole fleet learns of it.
        let told = self.is_sure && (self.overdrawn || !charge_denied);
        if told && now < self.fresh_until() && hits > self.at_once(kind, now) {
            if charge_denied {
                self.lots.clear();
            }
            return Take::Denied;
        }
        Take::Short
    }

    /// What one charge may have: slots held here and slots of the store lie apart.
    fn at_once(&self, kind: Kind, now: Time) -> u64 {
        match kind {
            Kind::Spaced { .. } => self.tokens(now).max(self.left.into()),
            Kind::Windowed | Kind::Timed => self.remaining(now),
        }
    }

    /// A charge of nothing passes while the count does not exceed the limit: at the limit of a
    /// fixed window it still does, as in the reference.
    fn look(&self, now: Time) -> Take {
        match () {
            () if self.tokens(now) > 0 => Take::Taken(Lot::default()),
            () if now >= self.fresh_until() => Take::Short,
            () if self.overdrawn => Take::Denied,
            () => Take::Taken(Lot::default()),
        }
    }

    /// Adds what the store lent. Word of an older window is void once that is over.
    pub fn refill(&mut self, refill: Refill, kind: Kind, now: Time) {
        let epoch = self.epoch();
        if kind == Kind::Windowed && refill.lot.epoch != epoch {
            if self.is_live(now) && refill.lot.epoch < epoch && now >= refill.known_until {
                expired::note(refill.lot.tokens);
                return;
            }
            // A window that is not over yet is the present one, even if a later one was before: the
            // store's clock has been set back.
            self.lots.expire();
        }
        self.lots.refill(refill.lot, kind, now);
        self.left = narrow(refill.left);
        self.resets = Span::floor(refill.resets.since(now));
        self.known = match refill.known_until {
            until if until == refill.resets => Coarse::NONE,
            until => nanos_between(now, until),
        };
        self.fresh = nanos_between(now, refill.fresh_until);
        self.overdrawn = refill.overdrawn;
        self.is_sure = refill.is_sure;
    }

    /// Tokens taken and not spent after all come back, if their lease has not ended.
    pub fn put_back(&mut self, lot: Lot, kind: Kind, now: Time) {
        if kind == Kind::Windowed && lot.epoch != self.epoch() {
            return;
        }
        self.lots.put_back(lot, kind, now);
    }

    /// Gives back `hits` spent earlier, by whomever, never above `limit`. False if there is no
    /// live lease to add them to: then only the store can take them. A slot that has gone by does
    /// not come back, and nothing is easily given.
    pub fn refund(&mut self, hits: u64, limit: u64, kind: Kind, now: Time) -> bool {
        if !self.is_live(now) || hits == 0 || matches!(kind, Kind::Spaced { .. }) {
            return self.is_live(now);
        }
        let spent = limit.saturating_sub(self.remaining(now));
        let taken_in = self.lots.top_up(hits.min(spent), now);
        self.overdrawn &= !taken_in;
        taken_in
    }

    /// Whether [`Buffer::refund`] would take `hits`.
    pub fn takes_refund(&self, hits: u64, kind: Kind, now: Time) -> bool {
        let nothing = hits == 0 || matches!(kind, Kind::Spaced { .. });
        self.is_live(now) && (nothing || self.lots.has_lease(now))
    }

    /// Takes out the tokens above `kept`, to be given back to the store.
    pub fn skim(&mut self, kept: u64, kind: Kind, now: Time) -> Option<Lot> {
        let lot = self.take_out(kept, kind, now)?;
        self.left = self.left.saturating_add(narrow(lot.tokens));
        Some(lot)
    }

    /// Takes out the tokens above `kept`, which stay lent.
    pub fn take_out(&mut self, kept: u64, kind: Kind, now: Time) -> Option<Lot> {
        let excess = self.tokens(now).saturating_sub(kept);
        if excess > 0 { self.lots.spend(excess, kind, now) } else { None }
    }

    /// Takes out every unspent token, to be given back to the store.
    pub fn drain(&mut self, now: Time) -> [Option<Lot>; 2] {
        let lots = self.lots.drain(now);
        let drained = lots.iter().flatten().fold(0_u64, |sum, lot| sum.saturating_add(lot.tokens));
        self.left = self.left.saturating_add(narrow(drained));
        lots
    }

    /// Unspent tokens.
    pub fn tokens(&self, now: Time) -> u64 {
        self.lots.tokens(now)
    }

    /// Whether what is left is the store's word rather than an estimate.
    pub fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// What the store had left at its last word; `None` if that is worth nothing any more.
    pub fn left(&self, now: Time) -> Option<u64> {
        self.is_live(now).then_some(self.left.into())
    }

    /// Tokens held here and left at the store: what the fleet may still spend, as far as is known.
    pub fn remaining(&self, now: Time) -> u64 {
        self.tokens(now).saturating_add(self.left.into())
    }

    /// The epoch of the store's last word, or of a lease held from before it. Of no meaning where
    /// tokens are spaced.
    pub fn epoch(&self) -> u64 {
        self.lots.epoch()
    }

    /// Until the limit stands as new, or has a token again if none is left; `None` if that is not
    /// known.
    pub fn reset_after(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.resets.after(self.lots.heard()).since(now))
    }

    /// Whether the store said that there are no tokens, and that a charge would be denied.
    pub fn is_known_empty(&self, now: Time) -> bool {
        self.is_live(now) && self.left == 0 && self.is_sure && self.overdrawn
    }

    /// Takes the store's last word for true until then, as long as it is worth anything.
    pub fn stay_fresh(&mut self, until: Time) {
        let fresh_until = self.fresh_until().max(until.min(self.known_until()));
        self.fresh = nanos_between(self.lots.heard(), fresh_until);
    }

    /// Takes what the store had left for an estimate: the limit has changed.
    pub fn doubt(&mut self) {
        self.is_sure = false;
    }

    /// When the store's last word came.
    pub fn heard(&self) -> Time {
        self.lots.heard()
    }

    /// Whether the store's last word is taken for true: it need not be asked about a key without
    /// tokens.
    pub fn is_fresh(&self, now: Time) -> bool {
        now < self.fresh_until()
    }

    /// Notes that more is asked for.
    pub fn note_ask(&mut self, now: Time) {
        self.asked = asked_units(now);
    }

    /// How long ago more was asked for, to a millisecond or so. It begins again at 69 seconds, of
    /// which the second half counts as none: for asks that are still out. Whoever read the clock
    /// before the ask was made finds none too.
    pub fn asked_for(&self, now: Time) -> Duration {
        let units = asked_units(now).wrapping_sub(self.asked).cast_signed();
        ASKED_UNIT * u32::try_from(units).unwrap_or(0)
    }

    /// Knows nothing any more. What its owner keeps here stays.
    pub fn forget(&mut self) {
        let lots = std::mem::replace(&mut self.lots, Stock::empty()).emptied();
        *self = Self { lots, asked: self.asked, ..Self::cold() };
    }

    /// Gives up the box as far as the buffer needs it: of two leases that are held, one ends too
    /// soon, or goes by.
    pub fn join_lots(&mut self, kind: Kind) {
        self.lots.join(kind);
    }

    /// What the owner keeps in the box.
    pub fn aside(&self) -> Option<&A> {
        self.lots.aside()
    }

    /// What the owner keeps in the box, to be changed; then [`Buffer::trim`].
    pub fn aside_mut(&mut self) -> Option<&mut A> {
        self.lots.aside_mut()
    }

    /// The same, in a new box if there is none.
    pub fn make_aside(&mut self) -> &mut A {
        self.lots.make_aside()
    }

    /// Drops the box if nothing is in it.
    pub fn trim(&mut self) {
        self.lots.trim();
    }

    fn known_until(&self) -> Time {
        match self.known {
            Coarse::NONE => self.resets.after(self.lots.heard()),
            known => known.nanos_after(self.lots.heard()),
        }
    }

    fn fresh_until(&self) -> Time {
        self.fresh.nanos_after(self.lots.heard())
    }
}

impl Spare for () {
    fn is_empty(&self) -> bool {
        true
    }
}

/// Limits are 32 bits wide, and so is what is left of them.
fn narrow(tokens: u64) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

/// Rounded down, so that nothing is taken for true too long.
fn nanos_between(from: Time, to: Time) -> Coarse {
    Coarse::floor(to.nanos().saturating_sub(from.nanos()))
}

#[allow(clippy::cast_possible_truncation, reason = "it is meant to begin again")]
fn asked_units(now: Time) -> u16 {
    (now.nanos() / ASKED_UNIT.as_nanos() as u64) as u16
}

#[cfg(test)]
mod tests;
