//! The leases to which a buffer's tokens belong: few, and the lease that ends first is spent first.

use std::time::Duration;

use super::expired;
use crate::time::Time;

/// Tokens of one lease: they end together and are returned together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeasedTokens {
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
pub enum LeaseKind {
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
pub(super) struct LeasePair {
    pub(super) newest: LeasedTokens,
    /// Has no tokens if there is only one lease. Windows, the usual kind, never need it.
    pub(super) older: LeasedTokens,
}

// === impl LeasePair ===

impl LeasePair {
    fn tokens(&self, now: Time) -> u64 {
        self.older.live(now).saturating_add(self.newest.live(now))
    }

    /// Takes `hits` tokens, or none. The returned lease can be put back.
    pub(super) fn spend(&mut self, hits: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        self.prune(kind, now);
        // The slots of two leases do not follow each other, so a charge has all of one lease.
        if let LeaseKind::Spaced { .. } = kind {
            let mut leases = [&mut self.older, &mut self.newest].into_iter();
            let lease = leases.find(|lease| lease.tokens >= hits)?;
            return Some(lease.split(hits, kind));
        }
        if self.tokens(now) < hits {
            return None;
        }
        if self.older.tokens == 0 {
            return Some(self.newest.split(hits, kind));
        }
        let first = self.older.split(hits.min(self.older.tokens), kind);
        let rest = self.newest.split(hits - first.tokens, kind);
        Some(if rest.tokens > 0 { first.merged(rest) } else { first })
    }

    /// Adds tokens of a new lease, or tokens that were taken out.
    pub(super) fn insert(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        self.prune(kind, now);
        // A window is kept even without tokens, since refunds may be added to it.
        let is_useful = lease.tokens > 0 || kind == LeaseKind::Windowed;
        if now >= lease.ends {
            expired::note(lease.tokens);
            return;
        }
        if !is_useful || self.joined(lease, kind) {
            return;
        }
        if self.newest.tokens == 0 {
            self.newest = lease;
            return;
        }
        let (first, last) = in_order(self.newest, lease);
        let older = match self.older {
            LeasedTokens { tokens: 0, .. } => first,
            // There is one lease too many. Slots cannot be joined, so those in the middle are
            // dropped.
            older if matches!(kind, LeaseKind::Spaced { .. }) => in_order(older, first).0,
            older => older.merged(first),
        };
        (self.older, self.newest) = (older, last);
    }

    /// Removes and returns all tokens, by lease.
    pub(super) fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let Self { older, newest } = std::mem::take(self);
        [older, newest].map(|lease| {
            expired::note(lease.ended(now));
            Some(lease).filter(|lease| lease.live(now) > 0)
        })
    }

    /// Adds `lease` to the lease that it belongs to, if that is held here.
    fn joined(&mut self, lease: LeasedTokens, kind: LeaseKind) -> bool {
        (self.older.tokens > 0 && self.older.join(lease, kind)) || self.newest.join(lease, kind)
    }

    /// Drops what has ended.
    fn prune(&mut self, kind: LeaseKind, now: Time) {
        if let LeaseKind::Spaced { every, grace } = kind {
            self.newest.lapse(every, grace, now);
            self.older.lapse(every, grace, now);
        }
        for lease in [&mut self.older, &mut self.newest] {
            expired::note(lease.ended(now));
            lease.tokens = lease.live(now);
        }
        if self.newest.tokens == 0 && self.older.tokens > 0 {
            self.newest = std::mem::take(&mut self.older);
        }
    }
}

fn in_order(a: LeasedTokens, b: LeasedTokens) -> (LeasedTokens, LeasedTokens) {
    if a.ends <= b.ends { (a, b) } else { (b, a) }
}

// === impl LeasedTokens ===

impl LeasedTokens {
    pub(super) fn live(&self, now: Time) -> u64 {
        if now < self.ends { self.tokens } else { 0 }
    }

    fn ended(&self, now: Time) -> u64 {
        self.tokens - self.live(now)
    }

    /// Removes and returns the first `tokens`, of which there are enough.
    fn split(&mut self, tokens: u64, kind: LeaseKind) -> LeasedTokens {
        let taken = LeasedTokens { tokens, ..*self };
        self.tokens -= tokens;
        if let LeaseKind::Spaced { every, .. } = kind {
            self.starts = self.starts + times(every, tokens);
        }
        taken
    }

    /// The tokens of two leases as those of one: they get the last start, the first end and the
    /// lower epoch. So some may start too late, end too early or return under an epoch before their
    /// own, but none starts too early or ends too late, and none returns under a later epoch, by
    /// which the store would credit it for longer. The lease that ends first may have the later
    /// epoch: of asks that leave together, the store may take the second one first.
    pub(super) fn merged(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            epoch: self.epoch.min(other.epoch),
            starts: self.starts.max(other.starts),
            ends: self.ends.min(other.ends),
        }
    }

    /// Merges `lease`, if both belong to one lease. Returns whether it did.
    fn join(&mut self, lease: LeasedTokens, kind: LeaseKind) -> bool {
        let one = match kind {
            LeaseKind::Windowed => self.epoch == lease.epoch && self.ends > Time::default(),
            LeaseKind::Timed => self.epoch == lease.epoch && self.ends == lease.ends,
            LeaseKind::Spaced { every, .. } => {
                lease.starts + times(every, lease.tokens) == self.starts
            }
        };
        if one {
            self.tokens = self.tokens.saturating_add(lease.tokens);
            match kind {
                // The window ends when the store said last, since its clock may have been set.
                LeaseKind::Windowed if lease.starts >= self.starts => {
                    (self.starts, self.ends) = (lease.starts, lease.ends);
                }
                LeaseKind::Windowed | LeaseKind::Timed => {}
                LeaseKind::Spaced { .. } => self.starts = lease.starts,
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
