//! One key's local tokens: take, refill, expire. Pure: `now` is an argument.

pub mod table;

use std::time::Duration;

use crate::time::Time;

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
#[derive(Debug, Clone, Copy, Default)]
pub struct Buffer {
    /// Unspent tokens; void once `ends` has passed.
    tokens: u64,
    /// What the store still had at its last word.
    left: u64,
    /// The window that all of this is about.
    window: u64,
    /// When the window ends, at the latest.
    ends: Time,
    /// Until when the store's last word is taken for true.
    fresh_until: Time,
    /// The store, or a charge denied here, says that more was charged than the limit allows.
    overdrawn: bool,
}

/// What became of a charge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// It was paid. So many remain for the fleet, as far as this pod knows.
    Taken {
        /// Tokens held here and left at the store.
        remaining: u64,
    },
    /// There are not enough, and the store said so a moment ago.
    Denied,
    /// Only the store can tell.
    Short {
        /// Tokens missing here.
        need: u64,
    },
}

/// A grant in plain values: what the store said, on this pod's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refill {
    /// Tokens lent.
    pub tokens: u64,
    /// Tokens that the store still has.
    pub left: u64,
    /// More was charged than the limit allows.
    pub overdrawn: bool,
    /// The window they were lent in.
    pub window: u64,
    /// When that window ends, counted from before the ask, so never too late.
    pub ends: Time,
    /// Until when the store need not be asked again about a key without tokens.
    pub fresh_until: Time,
}

// === impl Buffer ===

impl Buffer {
    /// Whether anything is known of the present window.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.ends
    }

    /// Charges `hits`; 0 looks. A denial spends what is left here if `charge_denied`, as the
    /// reference, whose counter keeps the hits that it denied.
    pub fn take(&mut self, hits: u64, charge_denied: bool, now: Time) -> Take {
        if !self.is_live(now) {
            return Take::Short { need: hits };
        }
        if hits == 0 {
            return self.look(now);
        }
        if let Some(tokens) = self.tokens.checked_sub(hits) {
            self.tokens = tokens;
            return Take::Taken { remaining: self.remaining() };
        }
        // The first denial of a window goes to the store, so that the whole fleet learns of it.
        let settled = now < self.fresh_until && (self.overdrawn || !charge_denied);
        if settled && hits > self.remaining() {
            if charge_denied {
                self.tokens = 0;
            }
            return Take::Denied;
        }
        Take::Short { need: hits - self.tokens }
    }

    /// A charge of nothing passes while the count does not exceed the limit: at the limit it still
    /// does, as in the reference.
    fn look(&self, now: Time) -> Take {
        match () {
            () if self.tokens > 0 => Take::Taken { remaining: self.remaining() },
            () if now >= self.fresh_until => Take::Short { need: 0 },
            () if self.overdrawn => Take::Denied,
            () => Take::Taken { remaining: self.left },
        }
    }

    /// Adds what the store lent. Word of an older window than the present one is void.
    pub fn refill(&mut self, refill: Refill, now: Time) {
        if refill.window == self.window && self.is_live(now) {
            self.tokens = self.tokens.saturating_add(refill.tokens);
            // Both ends are too early by an unknown delay, so the later is nearer the truth.
            self.ends = self.ends.max(refill.ends);
        } else if refill.window < self.window && self.is_live(now) {
            return;
        } else {
            self.tokens = refill.tokens;
            self.ends = refill.ends;
            self.window = refill.window;
        }
        self.left = refill.left;
        self.overdrawn = refill.overdrawn;
        self.fresh_until = refill.fresh_until;
    }

    /// Tokens taken and not spent after all come back, if their window is still the present one.
    pub fn put_back(&mut self, tokens: u64, window: u64, now: Time) {
        if window == self.window && self.is_live(now) {
            self.tokens = self.tokens.saturating_add(tokens);
        }
    }

    /// Gives back `hits` spent earlier, by whomever, never above `limit`. False if nothing is
    /// known of the present window: then only the store can take them.
    pub fn refund(&mut self, hits: u64, limit: u64, now: Time) -> bool {
        if !self.is_live(now) {
            return false;
        }
        let spent = limit.saturating_sub(self.remaining());
        self.tokens = self.tokens.saturating_add(hits.min(spent));
        self.overdrawn = false;
        true
    }

    /// Takes out every unspent token, to be given back to the store, with the window they belong
    /// to.
    pub fn drain(&mut self, now: Time) -> Option<(u64, u64)> {
        let tokens = std::mem::take(&mut self.tokens);
        (tokens > 0 && self.is_live(now)).then_some((tokens, self.window))
    }

    /// Unspent tokens.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// What the store had left at its last word; `None` of a window that is not the present one.
    pub fn left(&self, now: Time) -> Option<u64> {
        self.is_live(now).then_some(self.left)
    }

    /// Tokens held here and left at the store: what the fleet may still spend, as far as is known.
    pub fn remaining(&self) -> u64 {
        self.tokens.saturating_add(self.left)
    }

    /// The window that the tokens belong to.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Until the window ends; `None` if that is not known.
    pub fn reset_after(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.ends.since(now))
    }
}

#[cfg(test)]
mod tests;
