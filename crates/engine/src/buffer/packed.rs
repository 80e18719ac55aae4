//! The compact form of a buffer's leases, since there are millions of keys.

use std::mem::size_of;

use super::leased_tokens::{LeaseKind, LeasePair, LeasedTokens};
use super::{Cold, expired, saturate_u32};
use crate::time::{CompactDuration, Time};

/// The newest lease in place, and in a box what few keys have: an older lease, and the owner's cold
/// state.
///
/// Leases that are not spaced may be spent at once, so only spaced ones have a start. Spaced leases
/// are never returned, so only the others have an epoch.
#[derive(Debug, Clone)]
pub(super) struct PackedLeases<A> {
    /// When the store's last reply came. Ends count from here.
    replied_at: Time,
    /// The epoch of the newest lease, kept after the lease is spent; for a spaced lease, its start.
    epoch_or_start: u64,
    tokens: u32,
    /// Empty if there is no lease.
    ends: CompactDuration,
    cold: Option<Box<ColdBox<A>>>,
}

/// What only few keys have.
#[derive(Debug, Clone, Default)]
struct ColdBox<A> {
    /// Has no tokens if there is no older lease.
    older: LeasedTokens,
    owners: A,
}

// === impl PackedLeases ===

impl<A: Cold> PackedLeases<A> {
    /// Size of the box in bytes, where there is one.
    pub(super) const COLD_BYTES: usize = size_of::<ColdBox<A>>();

    pub(super) const fn empty() -> Self {
        let (replied_at, ends) = (Time::from_nanos(0), CompactDuration::EMPTY);
        Self { replied_at, epoch_or_start: 0, tokens: 0, ends, cold: None }
    }

    /// When the store's last reply came.
    pub(super) fn replied_at(&self) -> Time {
        self.replied_at
    }

    /// The epoch of the store's last reply, or of the newest unspent lease, if that has one.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch_or_start
    }

    /// Tokens that may still be spent.
    pub(super) fn tokens(&self, now: Time) -> u64 {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.live(now));
        older.saturating_add(self.live(now).into())
    }

    /// Tokens of the larger lease.
    pub(super) fn largest(&self, now: Time) -> u64 {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.live(now));
        older.max(self.live(now).into())
    }

    /// Takes `hits` tokens, or none. The returned lease can be put back.
    pub(super) fn spend(&mut self, hits: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        if self.has_older() || is_spaced(kind) {
            let spent = self.edit(kind, |leases| leases.spend(hits, kind, now))?;
            let starts = if is_spaced(kind) { spent.starts } else { Time::default() };
            return Some(LeasedTokens { starts, ..spent });
        }
        let live = self.live(now);
        expired::note(u64::from(self.tokens - live));
        self.tokens = live;
        let spent = u32::try_from(hits).ok().filter(|hits| *hits <= self.tokens)?;
        self.tokens -= spent;
        Some(self.leased(hits))
    }

    /// Adds tokens that were taken out.
    pub(super) fn put_back(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        self.edit(kind, |leases| leases.insert(lease, kind, now));
    }

    /// Adds what the store lent with its reply of time `now`.
    pub(super) fn refill(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        let mut leases = self.unpacked(kind);
        if !is_spaced(kind) {
            leases.newest.starts = Time::default(); // so that its window ends as the store says now
        }
        leases.insert(lease, kind, now);
        if leases.newest.tokens == 0 {
            leases.newest.epoch = lease.epoch;
        }
        self.replied_at = now;
        self.pack(leases, kind);
    }

    /// Removes and returns all tokens, by lease. For spaced leases the result is of no use: they
    /// are never returned.
    pub(super) fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let older = self.cold.as_ref().map_or(LeasedTokens::default(), |cold| cold.older);
        let newest = self.leased(self.tokens.into());
        self.clear();
        LeasePair { newest, older }.drain(now)
    }

    /// Drops everything, since its window is over.
    pub(super) fn expire(&mut self) {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.tokens);
        expired::note(older.saturating_add(self.tokens.into()));
        self.clear();
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        (self.tokens, self.ends) = (0, CompactDuration::EMPTY);
        self.set_older(LeasedTokens::default());
    }

    /// An empty stock that keeps what the owner has in the box.
    pub(super) fn emptied(mut self) -> Self {
        self.clear();
        Self { cold: self.cold, ..Self::empty() }
    }

    /// Adds `tokens` to a live lease, if there is one. Returns whether there is.
    pub(super) fn top_up(&mut self, tokens: u64, now: Time) -> bool {
        let live = self.has_lease(now);
        if live {
            self.tokens = saturate_u32(u64::from(self.tokens).saturating_add(tokens));
        }
        live
    }

    /// Whether a lease is live, even without tokens.
    pub(super) fn has_lease(&self, now: Time) -> bool {
        now < self.ends()
    }

    /// Joins two leases to one that ends with the first. Of spaced leases, the second is dropped.
    pub(super) fn join(&mut self, kind: LeaseKind) {
        if self.has_older() {
            let LeasePair { newest, older } = self.unpacked(kind);
            let newest = if is_spaced(kind) { older } else { older.merged(newest) };
            self.pack(LeasePair { newest, older: LeasedTokens::default() }, kind);
        }
    }

    /// What the owner keeps in the box.
    pub(super) fn cold(&self) -> Option<&A> {
        self.cold.as_ref().map(|cold| &cold.owners)
    }

    pub(super) fn cold_mut(&mut self) -> Option<&mut A> {
        self.cold.as_mut().map(|cold| &mut cold.owners)
    }

    pub(super) fn make_cold(&mut self) -> &mut A {
        &mut self.cold.get_or_insert_default().owners
    }

    /// Drops the box if nothing is in it.
    pub(super) fn trim(&mut self) {
        let empty = |cold: &ColdBox<A>| cold.older.tokens == 0 && cold.owners.is_empty();
        if self.cold.as_deref().is_some_and(empty) {
            self.cold = None;
        }
    }

    fn live(&self, now: Time) -> u32 {
        if now < self.ends() { self.tokens } else { 0 }
    }

    fn ends(&self) -> Time {
        self.ends.after(self.replied_at)
    }

    fn has_older(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.older.tokens > 0)
    }

    /// `tokens` of the newest lease, which is not spaced.
    fn leased(&self, tokens: u64) -> LeasedTokens {
        LeasedTokens {
            tokens,
            epoch: self.epoch_or_start,
            starts: Time::default(),
            ends: self.ends(),
        }
    }

    fn edit<R>(&mut self, kind: LeaseKind, edit: impl FnOnce(&mut LeasePair) -> R) -> R {
        let mut leases = self.unpacked(kind);
        let edited = edit(&mut leases);
        self.pack(leases, kind);
        edited
    }

    fn unpacked(&self, kind: LeaseKind) -> LeasePair {
        let older = self.cold.as_ref().map_or(LeasedTokens::default(), |cold| cold.older);
        let newest = self.leased(self.tokens.into());
        let newest = match kind {
            LeaseKind::Spaced { .. } => {
                LeasedTokens { epoch: 0, starts: Time::from_nanos(self.epoch_or_start), ..newest }
            }
            LeaseKind::Windowed | LeaseKind::Timed => {
                LeasedTokens { starts: self.replied_at, ..newest }
            }
        };
        LeasePair { newest, older }
    }

    fn pack(&mut self, leases: LeasePair, kind: LeaseKind) {
        let LeasePair { newest, older } = leases;
        self.tokens = saturate_u32(newest.tokens);
        self.ends = CompactDuration::floor(newest.ends.since(self.replied_at));
        self.epoch_or_start = if is_spaced(kind) { newest.starts.nanos() } else { newest.epoch };
        self.set_older(older);
    }

    fn set_older(&mut self, older: LeasedTokens) {
        if older.tokens > 0 {
            self.cold.get_or_insert_default().older = older;
        } else if let Some(cold) = &mut self.cold {
            cold.older = older;
            self.trim();
        }
    }
}

fn is_spaced(kind: LeaseKind) -> bool {
    matches!(kind, LeaseKind::Spaced { .. })
}

#[cfg(test)]
mod tests;
