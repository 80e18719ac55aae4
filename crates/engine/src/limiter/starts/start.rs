//! One start: the tokens that the descriptors of one call took, and the tokens that come back.

use std::sync::Arc;
use std::time::Duration;

use ratelease_rules::key::Key;
use ratelease_rules::{Limit, Rule};
use smallvec::SmallVec;

use crate::algorithm::counting;
use crate::buffer::LeasedTokens;
use crate::limiter::owners::{Node, Owner, Silence, StartId};
use crate::store::{Ask, Purpose, Return};
use crate::time::Time;

/// A start is taken for ended once so many signs of life have not come in a row.
const SIGNS_MISSED: u32 = 3;

/// The shortest interval that is assumed: the interval of the recipes. The first sign may come soon
/// after a start whose request was long in arriving.
const SIGN_INTERVAL_MIN: Duration = Duration::from_secs(10);

/// Added to that time, so that a log that is sent late is no silence.
const SIGN_LATE: Duration = Duration::from_secs(1);

/// The hits that one descriptor of a request took at its start, and holds until its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Hold {
    /// The key that was charged.
    pub key: Key,
    /// The limit that it was charged under.
    pub limit: Limit,
    /// The hits that were charged. The settlement need not charge them again.
    pub hits: u64,
    /// The tokens that paid for these hits, as far as they may come back.
    pub taken: LeasedTokens,
    /// The number of hits that this pod has admitted by itself, and that are not owed.
    pub alone: u64,
    /// How long it is held after the last sign of life of its request.
    pub lasts: Duration,
    /// Whether the hits are given back when that time is over.
    pub releases: bool,
    /// The rule; `None` for an override.
    pub rule: Option<Arc<Rule>>,
    /// State that only few holds need.
    pub rare: Option<Box<Rare>>,
}

/// State that only few holds need.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rare {
    /// The key of the same count under the secret before.
    pub previous: Option<Key>,
    /// The domain of an override.
    pub domain: Box<str>,
}

/// Hits that a request held and did not use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unspent {
    /// The key that was charged.
    pub key: Key,
    /// The limit that it was charged under.
    pub limit: Limit,
    /// Tokens to give back.
    pub tokens: LeasedTokens,
    /// Hits to take back from those that this pod has admitted by itself.
    pub alone: u64,
    /// As [`Ask::carry_debt`].
    pub carry_debt: bool,
}

/// How a request has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The cost has been charged, or there is none: all that is held goes back.
    Charged,
    /// This cost is to be charged.
    Cost(u64),
    /// The cost is unknown: the rule says whether the hold stays counted (`unless_settled`).
    Unknown,
}

/// A call that has begun to take hits, until its end.
#[derive(Debug)]
pub(super) struct Start {
    /// The number of the start in its part of the table.
    pub(super) number: u32,
    /// Who asked.
    pub(super) owner: Owner,
    /// The Envoy that has logged it, once one has.
    pub(super) node: Option<Node>,
    /// The longest time without a sign of life, in milliseconds, once one has come; else 0.
    pub(super) interval_ms: u32,
    pub(super) began: Time,
    /// When it began, or gave the last sign of life.
    pub(super) seen: Time,
    pub(super) phase: Phase,
    /// Whether a candidate's rules have started it, which the request does not wait for.
    pub(super) is_aside: bool,
    /// A start of the same call under another id, which few have.
    pub(super) next: Option<Box<StartId>>,
    /// The key of the first hold to come, for which a place in the table is taken until then. A
    /// start that holds nothing after its verdict is removed.
    pub(super) place: Option<Key>,
    /// The hashes of the descriptors that are to hold something, which their ends have too, until
    /// the verdict is made.
    pub(super) descriptors: SmallVec<[u64; 2]>,
    /// The holds of its descriptors, each with the hash that the end has too.
    pub(super) held: SmallVec<[(u64, Hold); 1]>,
}

/// How far a start has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Leases are asked for: the holds are not known yet.
    Asking,
    /// The end came while leases were asked for.
    Ended(End),
    /// The verdict is made.
    Running,
}

// === impl Start ===

impl Start {
    /// The hashes of the descriptors that hold something, or are about to.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = u64> {
        let about_to = self.descriptors.iter().copied();
        about_to.chain(self.held.iter().map(|(of, _)| *of))
    }

    /// Whether it waits for its verdict, and is to hold something for this descriptor, whose cost
    /// is not known.
    pub(super) fn asks_for(&self, descriptor: u64) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Ended(End::Unknown))
            && self.descriptors.contains(&descriptor)
    }

    /// Whether it took nothing, and waits for the cost that the log may tell.
    pub(super) fn is_blank(&self) -> bool {
        self.held.iter().all(|(_, hold)| hold.hits == 0)
    }

    /// How long it may last after its last sign of life.
    pub(super) fn lasts(&self) -> Duration {
        self.held.iter().map(|(_, hold)| hold.lasts).max().unwrap_or_default()
    }

    /// Notes a sign of life, which `node` has logged. The longest interval counts: signs that come
    /// together, after a stall of this process, say nothing of those to come. One that may be of
    /// another start of its id tells nothing of it.
    pub(super) fn note_sign(&mut self, node: Node, is_its_own: bool, now: Time) {
        if is_its_own {
            let interval = now.since(self.seen).max(SIGN_INTERVAL_MIN).as_millis();
            let interval = u32::try_from(interval).unwrap_or(u32::MAX);
            self.interval_ms = self.interval_ms.max(interval);
        }
        (self.node, self.seen) = (Some(node), now);
    }

    /// When its silence means that it has ended; `None` before its first sign of life.
    pub(super) fn silence(&self) -> Option<Silence> {
        let interval = Duration::from_millis(self.interval_ms.into());
        (self.interval_ms > 0).then(|| Silence {
            sign_due: self.seen + interval.saturating_mul(SIGNS_MISSED - 1),
            over: self.seen + interval.saturating_mul(SIGNS_MISSED) + SIGN_LATE,
        })
    }
}

// === impl Hold ===

impl Hold {
    /// Whether it is of slots, which cost nothing and come back whole.
    pub fn is_of_slots(&self) -> bool {
        !self.limit.algorithm.has_window()
    }

    /// Returns the hits to give back, and the number of hits still to be charged, after this end.
    pub fn settled(&self, end: End) -> (Unspent, u64) {
        let cost = match end {
            End::Charged => 0,
            _ if self.is_of_slots() => 0,
            End::Cost(cost) => cost,
            End::Unknown if self.releases => 0,
            End::Unknown => self.hits,
        };
        (self.unspent(self.hits.saturating_sub(cost)), cost.saturating_sub(self.hits))
    }

    /// Whether all that is held comes back if its cost is not known.
    pub(super) fn gives_back(&self) -> bool {
        self.releases || self.is_of_slots()
    }

    /// Returns the hits to give back when no end has come in time.
    pub(super) fn expired(&self) -> Option<Unspent> {
        self.gives_back().then(|| self.unspent(self.hits))
    }

    /// As [`Ask::carry_debt`].
    pub fn carry_debt(&self) -> bool {
        self.rule.as_ref().is_some_and(|rule| rule.flags.carry_debt)
    }

    /// Returns the hits to give back if so many of them were not used.
    fn unspent(&self, unused: u64) -> Unspent {
        let Self { key, limit, taken, .. } = *self;
        let tokens = taken.tokens.min(unused);
        let alone = self.alone.min(unused - tokens);
        let carry_debt = self.carry_debt();
        Unspent { key, limit, tokens: LeasedTokens { tokens, ..taken }, alone, carry_debt }
    }

    /// Forgets the tokens that paid for the hold, since an operator has reset the count: nothing of
    /// it comes back.
    pub(super) fn forget_tokens(&mut self) {
        self.taken.tokens = 0;
        self.alone = 0;
    }
}

// === impl Unspent ===

impl Unspent {
    /// The ask that returns the tokens, however long ago they were leased: their request has ended
    /// only now. The store ignores tokens of a window that is over.
    pub fn returned(&self) -> Ask {
        let Self { key, limit, tokens: LeasedTokens { tokens, epoch, .. }, carry_debt, .. } = *self;
        let back = Some(Return { tokens, epoch: Some(epoch) });
        let ttl = Duration::MAX;
        Ask { back, ttl, carry_debt, purpose: Purpose::Return, ..Ask::look(key, limit) }
    }

    /// Adds the unused tokens of another request, if they are of the same count and can go back
    /// with these. Returns whether they can.
    pub fn join(&mut self, other: &Self) -> bool {
        let is_windowed = counting(self.limit).is_windowed;
        let joins = self.key == other.key
            && self.limit == other.limit
            && (!is_windowed || self.tokens.epoch == other.tokens.epoch);
        if joins {
            self.tokens = self.tokens.merged(other.tokens);
            self.alone = self.alone.saturating_add(other.alone);
        }
        joins
    }
}
