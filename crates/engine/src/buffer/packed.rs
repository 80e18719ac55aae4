//! The compact form of a buffer's lots, since there are millions of keys.

use std::mem::size_of;

use super::leased_tokens::{Kind, Lot, Lots};
use super::{Spare, expired, narrow};
use crate::time::{Span, Time};

/// The newest lot in place, and in a box what few keys have: an older lot, and the owner's rare
/// state.
///
/// Lots that are not spaced may be spent at once, so only spaced ones have a start. Spaced lots are
/// never returned, so only the others have an epoch.
#[derive(Debug, Clone)]
pub(super) struct Stock<A> {
    /// When the store's last reply came. Ends count from here.
    heard: Time,
    /// The epoch of the newest lot, kept after the lot is spent; for a spaced lot, its start.
    mark: u64,
    tokens: u32,
    /// Empty if there is no lot.
    ends: Span,
    aside: Option<Box<Aside<A>>>,
}

/// What only few keys have.
#[derive(Debug, Clone, Default)]
struct Aside<A> {
    /// Has no tokens if there is no older lot.
    older: Lot,
    owners: A,
}

// === impl Stock ===

impl<A: Spare> Stock<A> {
    /// Size of the box in bytes, where there is one.
    pub(super) const ASIDE_BYTES: usize = size_of::<Aside<A>>();

    pub(super) const fn empty() -> Self {
        let (heard, ends) = (Time::from_nanos(0), Span::EMPTY);
        Self { heard, mark: 0, tokens: 0, ends, aside: None }
    }

    /// When the store's last reply came.
    pub(super) fn heard(&self) -> Time {
        self.heard
    }

    /// The epoch of the store's last reply, or of the newest unspent lot, if that has one.
    pub(super) fn epoch(&self) -> u64 {
        self.mark
    }

    /// Tokens that may still be spent.
    pub(super) fn tokens(&self, now: Time) -> u64 {
        let older = self.aside.as_ref().map_or(0, |aside| aside.older.live(now));
        older.saturating_add(self.live(now).into())
    }

    /// Takes `hits` tokens, or none. The returned lot can be put back.
    pub(super) fn spend(&mut self, hits: u64, kind: Kind, now: Time) -> Option<Lot> {
        if self.has_older() || is_spaced(kind) {
            let spent = self.edit(kind, |lots| lots.spend(hits, kind, now))?;
            let starts = if is_spaced(kind) { spent.starts } else { Time::default() };
            return Some(Lot { starts, ..spent });
        }
        let live = self.live(now);
        expired::note(u64::from(self.tokens - live));
        self.tokens = live;
        let spent = u32::try_from(hits).ok().filter(|hits| *hits <= self.tokens)?;
        self.tokens -= spent;
        Some(self.at_once(hits))
    }

    /// Adds tokens that were taken out.
    pub(super) fn put_back(&mut self, lot: Lot, kind: Kind, now: Time) {
        self.edit(kind, |lots| lots.insert(lot, kind, now));
    }

    /// Adds what the store lent with its reply of time `now`.
    pub(super) fn refill(&mut self, lot: Lot, kind: Kind, now: Time) {
        let mut lots = self.unpacked(kind);
        if !is_spaced(kind) {
            lots.newest.starts = Time::default(); // so that its window ends as the store says now
        }
        lots.insert(lot, kind, now);
        if lots.newest.tokens == 0 {
            lots.newest.epoch = lot.epoch;
        }
        self.heard = now;
        self.pack(lots, kind);
    }

    /// Removes and returns all tokens, by lease. For spaced lots the result is of no use: they are
    /// never returned.
    pub(super) fn drain(&mut self, now: Time) -> [Option<Lot>; 2] {
        let older = self.aside.as_ref().map_or(Lot::default(), |aside| aside.older);
        let newest = self.at_once(self.tokens.into());
        self.clear();
        Lots { newest, older }.drain(now)
    }

    /// Drops everything, since its window is over.
    pub(super) fn expire(&mut self) {
        let older = self.aside.as_ref().map_or(0, |aside| aside.older.tokens);
        expired::note(older.saturating_add(self.tokens.into()));
        self.clear();
    }

    /// Drops everything.
    pub(super) fn clear(&mut self) {
        (self.tokens, self.ends) = (0, Span::EMPTY);
        self.set_older(Lot::default());
    }

    /// An empty stock that keeps what the owner has in the box.
    pub(super) fn emptied(mut self) -> Self {
        self.clear();
        Self { aside: self.aside, ..Self::empty() }
    }

    /// Adds `tokens` to a live lease, if there is one. Returns whether there is.
    pub(super) fn top_up(&mut self, tokens: u64, now: Time) -> bool {
        let live = self.has_lease(now);
        if live {
            self.tokens = narrow(u64::from(self.tokens).saturating_add(tokens));
        }
        live
    }

    /// Whether a lease is live, even without tokens.
    pub(super) fn has_lease(&self, now: Time) -> bool {
        now < self.ends()
    }

    /// Joins two lots to one that ends with the first. Of spaced lots, the second is dropped.
    pub(super) fn join(&mut self, kind: Kind) {
        if self.has_older() {
            let Lots { newest, older } = self.unpacked(kind);
            let more = if is_spaced(kind) { 0 } else { newest.tokens };
            let tokens = older.tokens.saturating_add(more);
            self.pack(Lots { newest: Lot { tokens, ..older }, older: Lot::default() }, kind);
        }
    }

    /// What the owner keeps in the box.
    pub(super) fn aside(&self) -> Option<&A> {
        self.aside.as_ref().map(|aside| &aside.owners)
    }

    pub(super) fn aside_mut(&mut self) -> Option<&mut A> {
        self.aside.as_mut().map(|aside| &mut aside.owners)
    }

    pub(super) fn make_aside(&mut self) -> &mut A {
        &mut self.aside.get_or_insert_default().owners
    }

    /// Drops the box if nothing is in it.
    pub(super) fn trim(&mut self) {
        let empty = |aside: &Aside<A>| aside.older.tokens == 0 && aside.owners.is_empty();
        if self.aside.as_deref().is_some_and(empty) {
            self.aside = None;
        }
    }

    fn live(&self, now: Time) -> u32 {
        if now < self.ends() { self.tokens } else { 0 }
    }

    fn ends(&self) -> Time {
        self.ends.after(self.heard)
    }

    fn has_older(&self) -> bool {
        self.aside.as_ref().is_some_and(|aside| aside.older.tokens > 0)
    }

    /// `tokens` of the newest lot, which is not spaced.
    fn at_once(&self, tokens: u64) -> Lot {
        Lot { tokens, epoch: self.mark, starts: Time::default(), ends: self.ends() }
    }

    fn edit<R>(&mut self, kind: Kind, edit: impl FnOnce(&mut Lots) -> R) -> R {
        let mut lots = self.unpacked(kind);
        let edited = edit(&mut lots);
        self.pack(lots, kind);
        edited
    }

    fn unpacked(&self, kind: Kind) -> Lots {
        let older = self.aside.as_ref().map_or(Lot::default(), |aside| aside.older);
        let newest = self.at_once(self.tokens.into());
        let newest = match kind {
            Kind::Spaced { .. } => Lot { epoch: 0, starts: Time::from_nanos(self.mark), ..newest },
            Kind::Windowed | Kind::Timed => Lot { starts: self.heard, ..newest },
        };
        Lots { newest, older }
    }

    fn pack(&mut self, lots: Lots, kind: Kind) {
        let Lots { newest, older } = lots;
        self.tokens = narrow(newest.tokens);
        self.ends = Span::floor(newest.ends.since(self.heard));
        self.mark = if is_spaced(kind) { newest.starts.nanos() } else { newest.epoch };
        self.set_older(older);
    }

    fn set_older(&mut self, older: Lot) {
        if older.tokens > 0 {
            self.aside.get_or_insert_default().older = older;
        } else if let Some(aside) = &mut self.aside {
            aside.older = older;
            self.trim();
        }
    }
}

fn is_spaced(kind: Kind) -> bool {
    matches!(kind, Kind::Spaced { .. })
}

#[cfg(test)]
mod tests;
