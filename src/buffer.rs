//! One key's local tokens: take, refill, expire. Pure: `now` is an argument.

mod lots;
pub mod table;

use std::time::Duration;

pub use lots::{Kind, Lot};

use crate::time::Time;
use lots::Lots;

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
#[derive(Debug, Clone, Default)]
pub struct Buffer {
    lots: Lots,
    /// What the store still had at its last word.
    left: u64,
    /// The epoch of that word.
    epoch: u64,
    /// Until when the word is worth anything.
    known_until: Time,
    /// When the limit stands as new, or has a token again if none is left.
    resets: Time,
    /// Until when the store's last word is taken for true.
    fresh_until: Time,
    /// The store, or a charge denied here, says that even a look is over the limit.
    overdrawn: bool,
    /// Whether `left` is the store's word rather than an estimate.
    is_sure: bool,
}

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

impl Buffer {
    /// Whether anything is known of the key.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.known_until
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
        if told && now < self.fresh_until && hits > self.at_once(kind, now) {
            if charge_denied {
                self.lots = Lots::default();
            }
            return Take::Denied;
        }
        Take::Short
    }

    /// What one charge may have: slots held here and slots of the store lie apart.
    fn at_once(&self, kind: Kind, now: Time) -> u64 {
        match kind {
            Kind::Spaced { .. } => self.tokens(now).max(self.left),
            Kind::Windowed | Kind::Timed => self.remaining(now),
        }
    }

    /// A charge of nothing passes while the count does not exceed the limit: at the limit of a
    /// fixed window it still does, as in the reference.
    fn look(&self, now: Time) -> Take {
        match () {
            () if self.tokens(now) > 0 => Take::Taken(Lot::default()),
            () if now >= self.fresh_until => Take::Short,
            () if self.overdrawn => Take::Denied,
            () => Take::Taken(Lot::default()),
        }
    }

    /// Adds what the store lent. Word of an older window is void once that is over.
    pub fn refill(&mut self, refill: Refill, kind: Kind, now: Time) {
        if kind == Kind::Windowed && self.is_live(now) && refill.lot.epoch != self.epoch {
            if refill.lot.epoch < self.epoch && now >= refill.known_until {
                return;
            }
            // A window that is not over yet is the present one, even if a later one was before: the
            // store's clock has been set back.
            self.lots = Lots::default();
        }
        self.lots.insert(refill.lot, kind, now);
        self.known_until = refill.known_until;
        self.left = refill.left;
        self.epoch = refill.lot.epoch;
        self.overdrawn = refill.overdrawn;
        self.is_sure = refill.is_sure;
        self.resets = refill.resets;
        self.fresh_until = refill.fresh_until;
    }

    /// Tokens taken and not spent after all come back, if their lease has not ended.
    pub fn put_back(&mut self, lot: Lot, kind: Kind, now: Time) {
        if kind == Kind::Windowed && lot.epoch != self.epoch {
            return;
        }
        self.lots.insert(lot, kind, now);
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

    /// Takes out the tokens above `kept`, to be given back to the store.
    pub fn skim(&mut self, kept: u64, kind: Kind, now: Time) -> Option<Lot> {
        let excess = self.tokens(now).saturating_sub(kept);
        let lot = if excess > 0 { self.lots.spend(excess, kind, now)? } else { return None };
        self.left = self.left.saturating_add(excess);
        Some(lot)
    }

    /// Takes out every unspent token, to be given back to the store.
    pub fn drain(&mut self, now: Time) -> [Option<Lot>; 2] {
        let lots = self.lots.drain(now);
        let drained = lots.iter().flatten().fold(0_u64, |sum, lot| sum.saturating_add(lot.tokens));
        self.left = self.left.saturating_add(drained);
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
        self.is_live(now).then_some(self.left)
    }

    /// Tokens held here and left at the store: what the fleet may still spend, as far as is known.
    pub fn remaining(&self, now: Time) -> u64 {
        self.tokens(now).saturating_add(self.left)
    }

    /// The epoch of the store's last word.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Until the limit stands as new, or has a token again if none is left; `None` if that is not
    /// known.
    pub fn reset_after(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.resets.since(now))
    }
}

#[cfg(test)]
mod tests;
