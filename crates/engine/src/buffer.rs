//! The local tokens of one key: take, refill, expire. Reads no clock: `now` is an argument.

pub mod table;

use std::mem::size_of;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::{CompactDuration, CompactU64, Time};

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
    left: u64,
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
    /// Tokens leased.
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
        Self {
            leases: PackedLeases::empty(),
            left: 0,
            known: CompactU64::default(),
            fresh: CompactU64::default(),
            asked: 0,
            overdrawn: false,
            is_sure: false,
        }
    }

    /// Whether anything is known of the key.
    pub fn is_live(&self, now: Time) -> bool {
        now < self.known_until()
    }

    /// Charges `hits`; 0 only looks. If `charge_denied`, a denial spends the tokens held here, as
    /// in the reference implementation, whose counter keeps the hits that it denied.
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
        let charge_denied = charge_denied && !kind.is_spaced();
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
            LeaseKind::Spaced { .. } => self.leases.largest(now).max(self.left),
            LeaseKind::Windowed | LeaseKind::Timed => self.remaining(now),
        }
    }

    /// A charge of 0 hits passes while the count does not exceed the limit: at the limit of a fixed
    /// window it still passes, as in the reference implementation.
    fn look(&self, now: Time) -> Take {
        if self.tokens(now) > 0 {
            Take::Taken(LeasedTokens::default())
        } else if !self.is_fresh(now) {
            Take::Short
        } else if self.overdrawn {
            Take::Denied
        } else {
            Take::Taken(LeasedTokens::default())
        }
    }

    /// Adds the tokens that the store leased. A reply about an older window is dropped once that
    /// window is over.
    pub fn refill(&mut self, refill: Refill, kind: LeaseKind, now: Time) {
        let epoch = self.epoch();
        if kind == LeaseKind::Windowed && refill.lease.epoch != epoch {
            if self.is_live(now) && refill.lease.epoch < epoch && now >= refill.known_until {
                note_expired(refill.lease.tokens);
                return;
            }
            // A window that is not over yet is the present one, even if a later one was present
            // before: the store's clock has been set back.
            self.leases.expire();
        }
        self.leases.refill(refill.lease, kind, now);
        self.left = refill.left;
        self.leases.resets = CompactDuration::floor(refill.resets.since(now));
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

    /// Credits `hits` that this pod or another spent earlier, never above `limit`. Returns false
    /// if there is no live lease to add them to: then only the store can take them. For a live
    /// leaky bucket, whose past slots cannot come back, and for 0 hits there is nothing to add.
    pub fn refund(&mut self, hits: u64, limit: u64, kind: LeaseKind, now: Time) -> bool {
        if !self.is_live(now) || hits == 0 || kind.is_spaced() {
            return self.is_live(now);
        }
        let spent = limit.saturating_sub(self.remaining(now));
        let taken_in = self.leases.top_up(hits.min(spent), now);
        self.overdrawn &= !taken_in;
        taken_in
    }

    /// Whether [`Buffer::refund`] would take `hits`.
    pub fn takes_refund(&self, hits: u64, kind: LeaseKind, now: Time) -> bool {
        let nothing = hits == 0 || kind.is_spaced();
        self.is_live(now) && (nothing || self.leases.has_lease(now))
    }

    /// Removes and returns the tokens above `kept`, which are to be given back to the store.
    pub fn take_excess(&mut self, kept: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        let lease = self.take_out(kept, kind, now)?;
        self.left = self.left.saturating_add(lease.tokens);
        Some(lease)
    }

    /// Removes and returns the tokens above `kept`, which stay leased.
    pub fn take_out(&mut self, kept: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        let excess = self.tokens(now).saturating_sub(kept);
        if excess > 0 { self.leases.spend(excess, kind, now) } else { None }
    }

    /// Removes and returns every unspent token, to be given back to the store.
    pub fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let leases = self.leases.drain(now);
        let drained =
            leases.iter().flatten().fold(0_u64, |sum, lease| sum.saturating_add(lease.tokens));
        self.left = self.left.saturating_add(drained);
        leases
    }

    /// Unspent tokens.
    pub fn tokens(&self, now: Time) -> u64 {
        self.leases.tokens(now)
    }

    /// Whether the number of tokens left at the store is the store's figure rather than an
    /// estimate.
    pub fn is_sure(&self) -> bool {
        self.is_sure
    }

    /// Tokens left at the store by its last reply; `None` if the reply is out of date.
    pub fn left(&self, now: Time) -> Option<u64> {
        self.is_live(now).then_some(self.left)
    }

    /// Tokens held here plus those left at the store: the number that the fleet may still spend, as
    /// far as is known.
    pub fn remaining(&self, now: Time) -> u64 {
        self.tokens(now).saturating_add(self.left)
    }

    /// The epoch of the store's last reply, or of a lease held from before it. It has no meaning
    /// where tokens are spaced.
    pub fn epoch(&self) -> u64 {
        self.leases.epoch()
    }

    /// Time until the limit is as if nothing had been charged, or until it has a token again if
    /// none is left; `None` if that is not known.
    pub fn reset_after(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.leases.resets.after(self.leases.replied_at()).since(now))
    }

    /// Time for which the store's last reply still says anything about the key: with windows, until
    /// the window ends. `None` if it says nothing.
    pub fn known_for(&self, now: Time) -> Option<Duration> {
        self.is_live(now).then(|| self.known_until().since(now))
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

    /// Notes that `hits` more are owed to the store, which did not know of them when it last
    /// replied how many tokens are left. If nothing remains, even a charge of 0 is over the limit.
    pub fn note_owed(&mut self, hits: u64, now: Time) {
        self.left = self.left.saturating_sub(hits);
        self.overdrawn |= self.remaining(now) == 0;
    }

    /// Treats the store's figure of the tokens left as an estimate, since the limit has changed.
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

    /// Forgets the tokens and the store's last reply. The owner's state in the box stays.
    pub fn forget(&mut self) {
        let leases = std::mem::replace(&mut self.leases, PackedLeases::empty()).emptied();
        *self = Self { leases, asked: self.asked, ..Self::unknown() };
    }

    /// Frees the buffer's part of the box: of two leases held, one is joined to the other, so that
    /// it ends too soon, or is dropped.
    pub fn join_leases(&mut self, kind: LeaseKind) {
        self.leases.join(kind);
    }

    /// Returns the owner's state in the box.
    pub fn cold(&self) -> Option<&A> {
        self.leases.cold()
    }

    /// Returns the owner's state in the box, mutably. Call [`Buffer::trim`] afterwards.
    pub fn cold_mut(&mut self) -> Option<&mut A> {
        self.leases.cold_mut()
    }

    /// Returns the owner's state in the box, mutably; makes the box if there is none.
    pub fn make_cold(&mut self) -> &mut A {
        self.leases.make_cold()
    }

    /// Drops the box if nothing is in it.
    pub fn trim(&mut self) {
        self.leases.trim();
    }

    /// Until when the store's last reply says anything about the key.
    pub fn known_until(&self) -> Time {
        match self.known {
            CompactU64::NONE => self.leases.resets.after(self.leases.replied_at()),
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

/// Rounds down, so that nothing counts as valid for too long.
fn nanos_between(from: Time, to: Time) -> CompactU64 {
    CompactU64::floor(to.nanos().saturating_sub(from.nanos()))
}

#[allow(clippy::cast_possible_truncation, reason = "it is meant to begin again")]
fn asked_units(now: Time) -> u16 {
    (now.nanos() / ASKED_UNIT.as_nanos() as u64) as u16
}

// Counts the tokens whose lease ended before they were spent.
//
// There is one counter for the whole process, since it changes only about once in the life of a
// lease.

static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// Tokens that have ended unspent since the process began. A key's tokens are counted when the key
/// is next charged or evicted, within seconds of their end.
pub fn expired() -> u64 {
    EXPIRED.load(Ordering::Relaxed)
}

/// Counts `tokens` that are dropped because they have ended.
fn note_expired(tokens: u64) {
    if tokens > 0 {
        EXPIRED.fetch_add(tokens, Ordering::Relaxed);
    }
}

// The leases to which a buffer's tokens belong: few, and the lease that ends first is spent first.

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
struct LeasePair {
    newest: LeasedTokens,
    /// Has no tokens if there is only one lease. Windows, the usual kind, never need it.
    older: LeasedTokens,
}

// === impl LeaseKind ===

impl LeaseKind {
    /// Whether they are slots.
    pub const fn is_spaced(self) -> bool {
        matches!(self, Self::Spaced { .. })
    }
}

// === impl LeasePair ===

impl LeasePair {
    fn tokens(&self, now: Time) -> u64 {
        self.older.live(now).saturating_add(self.newest.live(now))
    }

    /// Takes `hits` tokens, or none. The returned lease can be put back.
    fn spend(&mut self, hits: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        self.prune(kind, now);
        // The slots of two leases do not follow each other, so a charge has all of one lease.
        if kind.is_spaced() {
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
    fn insert(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        self.prune(kind, now);
        // A window is kept even without tokens, since refunds may be added to it.
        let is_useful = lease.tokens > 0 || kind == LeaseKind::Windowed;
        if now >= lease.ends {
            note_expired(lease.tokens);
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
            older if kind.is_spaced() => in_order(older, first).0,
            older => older.merged(first),
        };
        (self.older, self.newest) = (older, last);
    }

    /// Removes and returns all tokens, by lease.
    fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let Self { older, newest } = std::mem::take(self);
        [older, newest].map(|lease| {
            note_expired(lease.ended(now));
            Some(lease).filter(|lease| lease.live(now) > 0)
        })
    }

    /// Adds `lease` to the lease that it belongs to, if that is held here.
    fn joined(&mut self, lease: LeasedTokens, kind: LeaseKind) -> bool {
        (self.older.tokens > 0 && self.older.join(lease, kind)) || self.newest.join(lease, kind)
    }

    /// Drops the tokens of leases that have ended.
    fn prune(&mut self, kind: LeaseKind, now: Time) {
        if let LeaseKind::Spaced { every, grace } = kind {
            self.newest.lapse(every, grace, now);
            self.older.lapse(every, grace, now);
        }
        for lease in [&mut self.older, &mut self.newest] {
            note_expired(lease.ended(now));
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
    fn live(&self, now: Time) -> u64 {
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

    /// Merges the tokens of two leases into one lease with the later start, the earlier end and the
    /// lower epoch. Some tokens may then start too late, end too early or return under an epoch
    /// before their own. No token starts too early or ends too late. None returns under a later
    /// epoch, by which the store would credit it for longer. The lease that ends first may have the
    /// later epoch: of asks that leave together, the store may take the second one first.
    pub(crate) fn merged(self, other: Self) -> Self {
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
        note_expired(gone);
        self.tokens -= gone;
        self.starts = self.starts + times(every, gone);
    }
}

fn times(span: Duration, by: u64) -> Duration {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    Duration::from_nanos(nanos.saturating_mul(by))
}

// === The compact form of a buffer's leases, since there are millions of keys ===

/// The newest lease in place, and in a box the state that only few keys have: an older lease, and
/// the owner's cold state.
///
/// Leases that are not spaced may be spent at once, so only spaced ones have a start. Spaced leases
/// are never returned, so only the others have an epoch.
#[derive(Debug, Clone)]
struct PackedLeases<A> {
    /// When the store's last reply came. Ends count from here.
    replied_at: Time,
    /// The epoch of the newest lease, kept after the lease is spent; for a spaced lease, its start.
    epoch_or_start: u64,
    tokens: u64,
    /// Empty if there is no lease.
    ends: CompactDuration,
    /// When the limit is as if nothing had been charged, or has a token again if none is left. It
    /// belongs to the buffer, and lies here since a span has room beside another one.
    resets: CompactDuration,
    cold: Option<Box<ColdBox<A>>>,
}

/// The state that only few keys have.
#[derive(Debug, Clone, Default)]
struct ColdBox<A> {
    /// Has no tokens if there is no older lease.
    older: LeasedTokens,
    owners: A,
}

// === impl PackedLeases ===

impl<A: Cold> PackedLeases<A> {
    /// Size of the box in bytes, where there is one.
    const COLD_BYTES: usize = size_of::<ColdBox<A>>();

    const fn empty() -> Self {
        Self {
            replied_at: Time::from_nanos(0),
            epoch_or_start: 0,
            tokens: 0,
            ends: CompactDuration::EMPTY,
            resets: CompactDuration::EMPTY,
            cold: None,
        }
    }

    /// When the store's last reply came.
    fn replied_at(&self) -> Time {
        self.replied_at
    }

    /// The epoch of the store's last reply, or of the newest unspent lease, if that has one.
    fn epoch(&self) -> u64 {
        self.epoch_or_start
    }

    /// Tokens that may still be spent.
    fn tokens(&self, now: Time) -> u64 {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.live(now));
        older.saturating_add(self.live(now))
    }

    /// Tokens of the larger lease.
    fn largest(&self, now: Time) -> u64 {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.live(now));
        older.max(self.live(now))
    }

    /// Takes `hits` tokens, or none. The returned lease can be put back.
    fn spend(&mut self, hits: u64, kind: LeaseKind, now: Time) -> Option<LeasedTokens> {
        if self.has_older() || kind.is_spaced() {
            let spent = self.edit(kind, |leases| leases.spend(hits, kind, now))?;
            let starts = if kind.is_spaced() { spent.starts } else { Time::default() };
            return Some(LeasedTokens { starts, ..spent });
        }
        let live = self.live(now);
        note_expired(self.tokens - live);
        self.tokens = live;
        self.tokens = live.checked_sub(hits)?;
        Some(self.leased(hits))
    }

    /// Adds tokens that were taken out.
    fn put_back(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        if self.is_of_newest(&lease, kind) && now < lease.ends && self.has_lease(now) {
            self.tokens = self.tokens.saturating_add(lease.tokens);
            return;
        }
        self.edit(kind, |leases| leases.insert(lease, kind, now));
    }

    /// Adds the tokens that the store leased with its reply of time `now`.
    fn refill(&mut self, lease: LeasedTokens, kind: LeaseKind, now: Time) {
        let mut leases = self.unpacked(kind);
        if !kind.is_spaced() {
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
    fn drain(&mut self, now: Time) -> [Option<LeasedTokens>; 2] {
        let older = self.cold.as_ref().map_or(LeasedTokens::default(), |cold| cold.older);
        let newest = self.leased(self.tokens);
        self.clear();
        LeasePair { newest, older }.drain(now)
    }

    /// Drops everything, since its window is over.
    fn expire(&mut self) {
        let older = self.cold.as_ref().map_or(0, |cold| cold.older.tokens);
        note_expired(older.saturating_add(self.tokens));
        self.clear();
    }

    /// Drops everything.
    fn clear(&mut self) {
        self.tokens = 0;
        self.ends = CompactDuration::EMPTY;
        self.set_older(LeasedTokens::default());
    }

    /// Returns the state without leases, but with the owner's state in the box.
    fn emptied(mut self) -> Self {
        self.clear();
        Self { cold: self.cold, ..Self::empty() }
    }

    /// Adds `tokens` to a live lease, if there is one. Returns whether there is.
    fn top_up(&mut self, tokens: u64, now: Time) -> bool {
        let live = self.has_lease(now);
        if live {
            self.tokens = self.tokens.saturating_add(tokens);
        }
        live
    }

    /// Whether a lease is live, even without tokens.
    fn has_lease(&self, now: Time) -> bool {
        now < self.ends()
    }

    /// Joins two leases to one that ends with the first. Of spaced leases, the second is dropped.
    fn join(&mut self, kind: LeaseKind) {
        if self.has_older() {
            let LeasePair { newest, older } = self.unpacked(kind);
            let newest = if kind.is_spaced() { older } else { older.merged(newest) };
            self.pack(LeasePair { newest, older: LeasedTokens::default() }, kind);
        }
    }

    /// Returns the owner's state in the box.
    fn cold(&self) -> Option<&A> {
        self.cold.as_ref().map(|cold| &cold.owners)
    }

    fn cold_mut(&mut self) -> Option<&mut A> {
        self.cold.as_mut().map(|cold| &mut cold.owners)
    }

    fn make_cold(&mut self) -> &mut A {
        &mut self.cold.get_or_insert_default().owners
    }

    /// Drops the box if nothing is in it.
    fn trim(&mut self) {
        let empty = |cold: &ColdBox<A>| cold.older.tokens == 0 && cold.owners.is_empty();
        if self.cold.as_deref().is_some_and(empty) {
            self.cold = None;
        }
    }

    fn live(&self, now: Time) -> u64 {
        if now < self.ends() { self.tokens } else { 0 }
    }

    fn ends(&self) -> Time {
        self.ends.after(self.replied_at)
    }

    /// Whether `lease` was taken out of the newest lease, and there is no older one.
    fn is_of_newest(&self, lease: &LeasedTokens, kind: LeaseKind) -> bool {
        let is_one = match kind {
            LeaseKind::Windowed => lease.starts < self.replied_at, // else its end is the later news
            LeaseKind::Timed => lease.ends == self.ends(),
            LeaseKind::Spaced { .. } => false,
        };
        is_one && lease.epoch == self.epoch_or_start && !self.has_older()
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
        let newest = self.leased(self.tokens);
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
        self.tokens = newest.tokens;
        self.ends = CompactDuration::floor(newest.ends.since(self.replied_at));
        self.epoch_or_start = if kind.is_spaced() { newest.starts.nanos() } else { newest.epoch };
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

#[cfg(test)]
mod tests;
