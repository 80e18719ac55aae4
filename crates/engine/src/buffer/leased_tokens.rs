//! The leases to which a buffer's tokens belong: few, and the lease that ends first is spent first.

use std::time::Duration;

use super::expired;
use crate::time::Time;

/// Tokens of one lease: they end together and are returned together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Lot {
    /// Number of tokens.
    pub tokens: u64,
    /// The epoch that their return names: [`crate::store::Grant::epoch`].
    pub epoch: u64,
    /// When the first may be spent; of spaced tokens, each further one a spacing later.
    pub starts: Time,
    /// The latest end of the tokens.
    pub ends: Time,
}

/// How the tokens of a key begin and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// They end with their window, which is their epoch: a newer window ends all older ones.
    Windowed,
    /// Each lease ends on its own.
    Timed,
    /// They are slots of a leaky bucket.
    Spaced {
        /// Time from one slot to the next.
        every: Duration,
        /// How late a slot may be taken: at least until the next begins.
        grace: Duration,
    },
}

/// Unspent tokens of at most two leases: the one that is being spent and the one asked ahead.
#[derive(Debug, Clone, Default)]
pub(super) struct Lots {
    pub(super) newest: Lot,
    /// Has no tokens if there is only one lease. Windows, the usual kind, never need it.
    pub(super) older: Lot,
}

// === impl Lots ===

impl Lots {
    fn tokens(&self, now: Time) -> u64 {
        self.older.live(now).saturating_add(self.newest.live(now))
    }

    /// Takes `hits` tokens, or none. The returned lot can be put back.
    pub(super) fn spend(&mut self, hits: u64, kind: Kind, now: Time) -> Option<Lot> {
        self.prune(kind, now);
        if self.tokens(now) < hits {
            return None;
        }
        if self.older.tokens == 0 {
            return Some(self.newest.split(hits, kind));
        }
        let first = self.older.split(hits.min(self.older.tokens), kind);
        let rest = self.newest.split(hits - first.tokens, kind);
        // All of them get the last start and the first end. So some may start too late or end too
        // early, but none starts too early or ends too late.
        let starts = if rest.tokens > 0 { first.starts.max(rest.starts) } else { first.starts };
        Some(Lot { tokens: hits, starts, ..first })
    }

    /// Adds tokens of a new lease, or tokens that were taken out.
    pub(super) fn insert(&mut self, lot: Lot, kind: Kind, now: Time) {
        self.prune(kind, now);
        // A window is kept even without tokens, since refunds may be added to it.
        let of_use = lot.tokens > 0 || kind == Kind::Windowed;
        if now >= lot.ends {
            expired::note(lot.tokens);
            return;
        }
        if !of_use || self.joined(lot, kind) {
            return;
        }
        if self.newest.tokens == 0 {
            self.newest = lot;
            return;
        }
        let (first, last) = in_order(self.newest, lot);
        let older = match self.older {
            Lot { tokens: 0, .. } => first,
            // There is one lot too many. Slots cannot be joined, so those in the middle are
            // dropped.
            older if matches!(kind, Kind::Spaced { .. }) => in_order(older, first).0,
            older => {
                let (first, second) = in_order(older, first);
                Lot { tokens: first.tokens.saturating_add(second.tokens), ..first }
            }
        };
        (self.older, self.newest) = (older, last);
    }

    /// Removes and returns all tokens, by lease.
    pub(super) fn drain(&mut self, now: Time) -> [Option<Lot>; 2] {
        let Self { older, newest } = std::mem::take(self);
        [older, newest].map(|lot| {
            expired::note(lot.ended(now));
            Some(lot).filter(|lot| lot.live(now) > 0)
        })
    }

    /// Adds `lot` to the lease that it belongs to, if that is held here.
    fn joined(&mut self, lot: Lot, kind: Kind) -> bool {
        (self.older.tokens > 0 && self.older.join(lot, kind)) || self.newest.join(lot, kind)
    }

    /// Drops what has ended.
    fn prune(&mut self, kind: Kind, now: Time) {
        if let Kind::Spaced { every, grace } = kind {
            self.newest.lapse(every, grace, now);
            self.older.lapse(every, grace, now);
        }
        for lot in [&mut self.older, &mut self.newest] {
            expired::note(lot.ended(now));
            lot.tokens = lot.live(now);
        }
        if self.newest.tokens == 0 && self.older.tokens > 0 {
            self.newest = std::mem::take(&mut self.older);
        }
    }
}

fn in_order(a: Lot, b: Lot) -> (Lot, Lot) {
    if a.ends <= b.ends { (a, b) } else { (b, a) }
}

// === impl Lot ===

impl Lot {
    pub(super) fn live(&self, now: Time) -> u64 {
        if now < self.ends { self.tokens } else { 0 }
    }

    fn ended(&self, now: Time) -> u64 {
        self.tokens - self.live(now)
    }

    /// Removes and returns the first `tokens`, of which there are enough.
    fn split(&mut self, tokens: u64, kind: Kind) -> Lot {
        let taken = Lot { tokens, ..*self };
        self.tokens -= tokens;
        if let Kind::Spaced { every, .. } = kind {
            self.starts = self.starts + times(every, tokens);
        }
        taken
    }

    /// Merges `lot`, if both belong to one lease. Returns whether it did.
    fn join(&mut self, lot: Lot, kind: Kind) -> bool {
        let one = match kind {
            Kind::Windowed => self.epoch == lot.epoch && self.ends > Time::default(),
            Kind::Timed => self.epoch == lot.epoch && self.ends == lot.ends,
            Kind::Spaced { every, .. } => lot.starts + times(every, lot.tokens) == self.starts,
        };
        if one {
            self.tokens = self.tokens.saturating_add(lot.tokens);
            match kind {
                // The window ends when the store said last, since its clock may have been set.
                Kind::Windowed if lot.starts >= self.starts => {
                    (self.starts, self.ends) = (lot.starts, lot.ends);
                }
                Kind::Windowed | Kind::Timed => {}
                Kind::Spaced { .. } => self.starts = lot.starts,
            }
        }
        one
    }

    /// Drops the slots that have passed.
    fn lapse(&mut self, every: Duration, grace: Duration, now: Time) {
        let late = now.since(self.starts).saturating_sub(grace);
        if late.is_zero() || self.tokens == 0 {
            return;
        }
        let gone = late.as_nanos() / every.as_nanos().max(1) + 1;
        let gone = u64::try_from(gone).unwrap_or(u64::MAX).min(self.tokens);
        expired::note(gone);
        self.tokens -= gone;
        self.starts = self.starts + times(every, gone);
    }
}

fn times(span: Duration, by: u64) -> Duration {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos.saturating_mul(by))
}
