//! The table of open starts: the tokens that each request took when it began, until it ends. Pure:
//! `now` is an argument.
//!
//! A start is entered before its leases are asked for, so that an end which overtakes it finds it.
//! From then on the table alone says what its end gives back: the rule may be gone by then. A start
//! ends once, by whichever comes first:
//!
//! ```text
//! begin ─▶ Asking ─▶ conclude ─▶ Running ─▶ an end: a settlement, or an entry of the access log
//!            │ its caller gives up             │ its Envoy has not read the answer: undo
//!            ▼                                 │ its Envoy is gone, or says no more that it runs
//!          forget                              ▼ the time of its rule is over
//!                                            removed
//! ```
//! Two kinds of notes are kept for a few seconds. One is of starts that were denied, since Envoy
//! sends an end for them too, which must not end another start of the same id. The other is of ends
//! whose start is not here: it may come after its end, and then takes nothing.
//!
//! The table is bounded. A start for which it has no room stays charged and is not held, so that
//! its settlement counts whole: too much is counted rather than too little. Nothing that is held is
//! forgotten for another, and the last quarter of the room is for keys of which few requests are
//! held: a client that starts requests without end keeps only its own further ones out.

mod part;
mod recent;
mod start;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_rules::key::{HoldId, Key, RequestId};
use smallvec::SmallVec;

use self::part::{KEY_BYTES, PART_MAX, Part, SLOT_BYTES, Tally, add_to};
use self::start::Start;
use crate::counter::{Count, Counter, HoldCounter};
use crate::limiter::owners::{Cause, Node, Owner, StartId, StartView};
use crate::time::Time;

pub use self::start::{End, Hold, Rare, Unspent};

/// The largest number of holds: 7/8 of 2^17, so that the tables of all parts are full when they
/// have 2^17 slots.
pub(super) const HOLDS_MAX: usize = PARTS * PART_MAX;

/// The number of parts, each under a lock of its own. An id has its place in one of them, so that
/// they fill evenly.
const PARTS: usize = 32;

/// The largest memory of the tables, of 2^n slots that are 7/8 full.
const BYTES_MAX: usize = 40 << 20;
const _: () = assert!(HOLDS_MAX / 7 * 8 * (SLOT_BYTES + KEY_BYTES) <= BYTES_MAX);

/// How often starts that have ended without an end are looked for.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The holds of a start, each with the hash of its descriptor.
pub type Held = SmallVec<[(u64, Hold); 1]>;

/// A start that is to be entered.
#[derive(Debug, Clone, Copy)]
pub struct Beginning<'a> {
    /// The hashes of its descriptors that are to hold something.
    pub descriptors: &'a [u64],
    /// The key of the first hold to come, and whether that counts slots.
    pub first: (Key, bool),
    /// The Envoy that asked.
    pub owner: Owner,
    /// Whether a candidate's rules start it, so that it has no end of its own.
    pub is_aside: bool,
}

/// The result of [`Starts::begin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// The start is entered.
    Open(StartId),
    /// The request has ended already, and this cost is to be charged.
    Ended(End),
    /// There is no room for it.
    Full,
}

/// The result of a settlement.
#[derive(Debug, Clone, PartialEq)]
pub enum Settlement {
    /// The settlement ends this hold, of a start by this owner.
    Of(Box<Hold>, Owner),
    /// The settlement ends a start that holds nothing: it was denied, or its leases are asked for.
    OfNothing,
    /// The access log has told the cost of this end already.
    Counted,
    /// The access log has ended it without a cost, so that these hits stay charged for it.
    Kept(u64),
    /// The start is not in the table.
    Unknown,
}

/// Who settles.
#[derive(Debug, Clone, Copy)]
pub struct Sender {
    /// The Envoy that sends the end.
    pub owner: Owner,
    /// Whether an end that finds no start may come before it.
    pub remembers: bool,
    /// Whether Envoys send their access logs too.
    pub is_logging: bool,
}

/// A start that was undone.
#[derive(Debug, Clone, PartialEq)]
pub struct Undone {
    /// The Envoy that asked.
    pub owner: Owner,
    /// The holds of the start and of the candidate's.
    pub held: Held,
    /// The start of the same call under another id.
    pub next: Option<StartId>,
}

/// The open starts.
#[derive(Debug)]
pub struct Starts {
    parts: [Mutex<Part>; PARTS],
    /// Starts and settlements whose id is empty.
    without_id: AtomicU64,
}

// === impl Starts ===

impl Default for Starts {
    fn default() -> Self {
        Self {
            parts: std::array::from_fn(|_| Mutex::new(Part::new())),
            without_id: AtomicU64::new(0),
        }
    }
}

impl Starts {
    /// Enters a start of the request of this `id`. It holds nothing yet.
    pub fn begin(&self, id: RequestId, start: Beginning<'_>, now: Time) -> Begun {
        self.part(id).lock().begin(id, start, now)
    }

    /// Adds the tokens that the descriptor of this hash took to the hold of `start`. Returns false
    /// if there is no room for them.
    pub fn hold(&self, start: StartId, descriptor: u64, hold: Hold) -> bool {
        self.part(start.request).lock().hold(start, descriptor, hold)
    }

    /// Notes that `start` has its verdict. If its end came meanwhile, it is removed, and returned
    /// with how it ended; one that holds nothing is removed too.
    pub fn conclude(&self, start: StartId, now: Time) -> Option<(Held, End)> {
        self.part(start.request).lock().conclude(start, now)
    }

    /// Removes `start` with its holds: it was denied, or its caller has not read its answer. `None`
    /// if it has ended.
    pub fn forget(&self, start: StartId) -> Option<(Held, Option<End>)> {
        self.part(start.request).lock().forget(start)
    }

    /// Whether `start` is in the table.
    pub fn is_open(&self, start: StartId) -> bool {
        self.part(start.request).lock().find(start).is_some()
    }

    /// Notes that `other` is a start of the same call as `start`, under another id.
    pub fn link(&self, start: StartId, other: StartId) {
        if start != other
            && let Some(start) = self.part(start.request).lock().find(start)
        {
            start.next = Some(Box::new(other));
        }
    }

    /// Removes `start`, whose answer was not read, and the candidate's start of the same request.
    /// If the log has ended it just before, only the next start is returned; `None` if nothing is
    /// known of it.
    pub fn undo(&self, start: StartId, now: Time) -> Option<Undone> {
        let mut part = self.part(start.request).lock();
        let Some(Start { owner, next, .. }) = part.find(start) else {
            let next = Some(part.link_of(start, now)?);
            return Some(Undone { owner: Owner::UNKNOWN, held: Held::new(), next });
        };
        let (owner, next) = (*owner, next.as_deref().copied());
        let (mut held, _) = part.forget(start)?;
        held.extend(part.forget_aside(start).into_iter().flatten());
        Some(Undone { owner, held, next })
    }

    /// Keeps, for an access log that tells its cost later, a request of which nothing is held:
    /// these `holds` have no hits. Its Envoy may have let it pass without an answer.
    pub fn keep_unanswered(&self, start: StartId, owner: Owner, held: Held, now: Time) {
        self.part(start.request).lock().keep_unanswered(start, owner, held, now);
    }

    /// Notes that a start was denied, whose end is still to come.
    pub fn note_denied(&self, id: HoldId, now: Time) {
        *self.part(id.request).lock().denied.note(id, now) += 1;
    }

    /// Ends one start of the request of this `id`, as far as the descriptor is concerned: the
    /// oldest that holds something for it, of the owner that sends the end if it has any. An end
    /// that finds nothing is remembered if it may come before its start.
    pub fn settle(&self, id: HoldId, by: Sender, now: Time) -> Settlement {
        self.part(id.request).lock().settle(id, by, now)
    }

    /// Whether the request of this `id` has open starts.
    pub fn has_request(&self, id: RequestId) -> bool {
        self.part(id).lock().requests.contains_key(&id)
    }

    /// Whether the request of this `id` has an open start that holds something for the descriptor,
    /// or is about to.
    pub fn has(&self, id: HoldId) -> bool {
        let part = self.part(id.request).lock();
        let mut starts = part.requests.get(&id.request).into_iter().flatten();
        starts.any(|start| start.descriptors().any(|of| of == id.descriptor))
    }

    /// Notes a settlement, for the counters: the hits that were held, and the cost.
    pub fn note_settled(&self, id: RequestId, held: u64, cost: u64) {
        self.part(id).lock().note_settled(held, cost);
    }

    /// Ends the request of this `id` with all that it holds: the oldest start of each descriptor,
    /// also starts of a candidate. Returns the owners and the holds. If no start is open, the end
    /// is remembered for a start that comes after it, and `None` is returned.
    pub fn end(&self, id: RequestId, end: End, now: Time) -> Option<(SmallVec<[Owner; 1]>, Held)> {
        self.part(id).lock().end(id, end, now)
    }

    /// Ends the request of this `id`, since one of several calls for it was denied. Returns its
    /// holds.
    pub fn end_denied(&self, id: RequestId, now: Time) -> Held {
        self.part(id).lock().end_denied(id, now)
    }

    /// Notes that the request of this `id` runs, by the log of `node`. Returns who owns it, if it
    /// has open starts.
    pub fn note_sign(&self, id: RequestId, node: Node, now: Time) -> Option<Owner> {
        let mut part = self.part(id).lock();
        // Each filter of Envoy makes a start, of other descriptors.
        let is_its_own = part.one_of_each_descriptor(id).len() == part.starts(id).count();
        let starts = part.requests.get_mut(&id)?;
        starts.iter_mut().for_each(|start| start.note_sign(node, is_its_own, now));
        starts.first().map(|start| start.owner)
    }

    /// Notes a start or a settlement without an id.
    pub fn note_without_id(&self) {
        self.without_id.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets the holds of `key`, whose count an operator has reset: their tokens come back to no
    /// count. Slots are dropped; the end of another hold is still charged for the cost that exceeds
    /// the hold. Returns the number of slots that were dropped.
    pub fn forget_key(&self, key: Key) -> u64 {
        self.parts.iter().map(|part| part.lock().forget_key(key)).sum()
    }

    /// The keys of slots that starts hold, each with when the oldest of its starts began. It looks
    /// at all starts.
    pub fn slots_since(&self) -> HashMap<Key, Time> {
        let mut since = HashMap::new();
        for part in &self.parts {
            let part = part.lock();
            for start in part.requests.values().flatten() {
                for (_, hold) in start.held.iter().filter(|(_, hold)| hold.is_of_slots()) {
                    let oldest = since.entry(hold.key).or_insert(start.began);
                    *oldest = start.began.min(*oldest);
                }
            }
        }
        since
    }

    /// The numbers of the parts, for [`Starts::expire`].
    pub fn parts(&self) -> Range<usize> {
        0..self.parts.len()
    }

    /// Ends the starts of a part whose time is over, or of which `is_over` says so, and forgets old
    /// notes. Returns the tokens to give back, and whether anything is left there.
    pub fn expire(
        &self,
        part: usize,
        now: Time,
        is_over: impl FnMut(&StartView) -> Option<Cause>,
    ) -> (Vec<Unspent>, bool) {
        let part = self.parts.get(part);
        part.map_or_else(Default::default, |part| part.lock().expire(now, is_over))
    }

    /// The counters of events, and the levels at present.
    pub fn counts(&self) -> Vec<Count> {
        let mut sums = Tally::default();
        let mut add = |of, count| add_to(&mut sums, of, count);
        add(HoldCounter::WithoutId, self.without_id.load(Ordering::Relaxed));
        for part in &self.parts {
            let part = part.lock();
            HoldCounter::ALL.into_iter().zip(part.tally).for_each(|(of, count)| add(of, count));
            add(HoldCounter::InForce, part.in_force as u64);
            add(HoldCounter::Hits, part.hits);
            add(HoldCounter::Bytes, part.bytes() as u64);
        }
        let counts = HoldCounter::ALL.into_iter().zip(sums);
        counts.map(|(of, count)| (Counter::Holds(of), count)).collect()
    }

    #[allow(clippy::cast_possible_truncation, reason = "a remainder of PARTS fits")]
    fn part(&self, id: RequestId) -> &Mutex<Part> {
        &self.parts[(id.bits() % PARTS as u64) as usize]
    }
}

// === impl Start ===

impl Start {
    fn view(&self) -> StartView {
        StartView { owner: self.owner, node: self.node, silence: self.silence() }
    }
}

#[cfg(test)]
mod tests;
