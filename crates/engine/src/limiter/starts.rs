//! The table of open starts: what each request took when it began, until it ends. Pure: `now` is an
//! argument.
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

mod recent;
mod start;

use std::collections::HashMap;
use std::mem::{size_of, take};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::key::{HoldId, Key, RequestId};
use smallvec::SmallVec;

use self::recent::Recent;
use self::start::{Phase, Start};
use crate::counter::{Count, Counter, HoldCounter};
use crate::limiter::owners::{Node, Owner, StartId};
use crate::time::Time;

pub use self::start::{End, Hold, Rare, Silence, Unspent};

/// The largest number of holds: 7/8 of 2^17, so that the tables of all parts are full when they have
/// 2^17 slots.
pub(super) const HOLDS_MAX: usize = PARTS * PART_MAX;

/// The number of parts, each under a lock of its own. An id has its place in one of them, so that
/// they fill evenly.
const PARTS: usize = 32;

/// The largest number of holds in a part: 7/8 of a power of two, the load at which a table grows.
const PART_MAX: usize = 7 << 9;

/// Above this number in a part, a key has at most [`FEW`] there.
const CROWDED: usize = PART_MAX / 4 * 3;

/// The holds that a key may have in a crowded part: some 128 in all.
const FEW: u32 = 4;

/// Below this number in a part, those of each key are counted no more. It is far below [`CROWDED`],
/// from where on they are, since counting them looks at all.
const UNCROWDED: usize = CROWDED / 2;

/// Above this number in a part, only slots are held.
const SLOTS_ONLY: usize = PART_MAX / 8 * 7;

/// The largest number of open starts of one id: Envoy makes a new start for each redirect, and a
/// client that chooses its id may send one for many requests. An end looks through all of them.
const STARTS_OF_ID_MAX: usize = 64;

/// How long a denied start waits for its end, which Envoy sends as soon as it has the denial.
const DENIAL_REMEMBERED: Duration = Duration::from_secs(1);

/// How long an end waits for its start: as long as a call of Envoy may be under way, by the
/// time-outs of the recipes, at least.
const END_REMEMBERED: Duration = Duration::from_secs(5);

/// The largest number of notes of each generation in a part: 64 Ki of each kind in all.
const NOTES_MAX: usize = 1 << 10;

/// Bytes of a request in the table, with the byte that the table keeps for each slot.
const SLOT_BYTES: usize = size_of::<(RequestId, OfRequest)>() + 1;

/// Bytes of the number of holds of a key, likewise.
const KEY_BYTES: usize = size_of::<(Key, u32)>() + 1;

/// The largest memory of the tables, of 2^n slots that are 7/8 full.
const BYTES_MAX: usize = 40 << 20;
const _: () = assert!(HOLDS_MAX / 7 * 8 * (SLOT_BYTES + KEY_BYTES) <= BYTES_MAX);

/// How often starts that have ended without an end are looked for.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The starts of one request: one, but for redirects within Envoy.
type OfRequest = SmallVec<[Start; 1]>;

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
    /// The start is not in the table.
    Unknown,
}

/// Why starts were ended without their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The time of the rule is over.
    Expired,
    /// Their Envoy is gone.
    OwnerGone,
    /// Their signs of life have stopped.
    Silent,
}

/// The open starts.
#[derive(Debug)]
pub struct Starts {
    parts: [Mutex<Part>; PARTS],
    /// Starts and settlements whose id is empty.
    without_id: AtomicU64,
}

#[derive(Debug)]
struct Part {
    requests: HashMap<RequestId, OfRequest, RandomState>,
    /// Starts that were denied, and whose ends have not come: their number.
    denied: Recent<HoldId, u32>,
    /// Ends whose starts are not here.
    ends: Recent<RequestId, Option<End>>,
    /// Number of holds.
    len: usize,
    /// Number of holds of a key, counted only while there are so many in all that it matters.
    of_key: Option<HashMap<Key, u32, RandomState>>,
    /// Number of holds of any hits.
    in_force: usize,
    /// Sum of the hits that are held.
    hits: u64,
    /// The number of the start that began last.
    last: u32,
    /// Events since the process began.
    tally: Tally,
}

/// The counters by their numbers.
type Tally = [u64; HoldCounter::ALL.len()];

fn add_to(tally: &mut Tally, of: HoldCounter, count: u64) {
    let sum = &mut tally[of as usize];
    *sum = sum.saturating_add(count);
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

    /// Adds what the descriptor of this hash took to what `start` holds. Returns false if there is no
    /// room for it.
    pub fn hold(&self, start: StartId, descriptor: u64, hold: Hold) -> bool {
        self.part(start.request).lock().hold(start, descriptor, hold)
    }

    /// Notes that `start` has its verdict. If its end came meanwhile, it is removed, and returned
    /// with how it ended; one that holds nothing is removed too.
    pub fn conclude(&self, start: StartId, now: Time) -> Option<(Held, End)> {
        self.part(start.request).lock().conclude(start, now)
    }

    /// Removes `start` with what it held: it was denied, or its caller has not read its answer.
    /// `None` if it has ended.
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
            start.next = Some(other);
        }
    }

    /// Removes `start`, whose answer was not read, with what it and the candidate's held, and returns
    /// the start of the same call under another id; `None` if it has ended.
    pub fn undo(&self, start: StartId) -> Option<(Held, Option<StartId>)> {
        let mut part = self.part(start.request).lock();
        let next = part.find(start)?.next;
        let (mut held, _) = part.forget(start)?;
        let aside = part.end_oldest(start.request, End::Charged, true);
        held.extend(aside.into_iter().flat_map(|(_, held)| held));
        Some((held, next))
    }

    /// Keeps, for an access log that tells its cost later, a request of which nothing is held: these
    /// `holds` have no hits. Its Envoy may have let it pass without an answer.
    pub fn keep_unanswered(&self, start: StartId, owner: Owner, held: Held, now: Time) {
        self.part(start.request).lock().keep_unanswered(start, owner, held, now);
    }

    /// Notes that a start was denied, whose end is still to come.
    pub fn note_denied(&self, id: HoldId, now: Time) {
        *self.part(id.request).lock().denied.note(id, now) += 1;
    }

    /// Ends one start of the request of this `id`, as far as the descriptor is concerned: the oldest
    /// that holds something for it. An end that finds nothing is remembered if it may come before
    /// its start.
    pub fn settle(&self, id: HoldId, remembers: bool, now: Time) -> Settlement {
        self.part(id.request).lock().settle(id, remembers, now)
    }

    /// Whether the request of this `id` has open starts.
    pub fn has_request(&self, id: RequestId) -> bool {
        self.part(id).lock().requests.contains_key(&id)
    }

    /// Whether the request of this `id` has an open start that holds something for the descriptor, or is
    /// about to.
    pub fn has(&self, id: HoldId) -> bool {
        let part = self.part(id.request).lock();
        let mut starts = part.requests.get(&id.request).into_iter().flatten();
        starts.any(|start| start.descriptors.contains(&id.descriptor))
    }

    /// Notes the cost of a settlement, for the counters: what was held, and what it has cost.
    pub fn note_settled(&self, id: RequestId, held: u64, cost: u64) {
        self.part(id).lock().note_settled(held, cost);
    }

    /// Ends the oldest start of the request of this `id` with all that it holds, and that of a
    /// candidate. `None` if no start is open; then the end is remembered, for a start that comes
    /// after it.
    pub fn end(&self, id: RequestId, end: End, now: Time) -> Option<(Owner, Held)> {
        self.part(id).lock().end(id, end, now)
    }

    /// Notes that the request of this `id` runs, by the log of `node`. Returns who owns it, if it has
    /// open starts.
    pub fn note_sign(&self, id: RequestId, node: Node, now: Time) -> Option<Owner> {
        let mut part = self.part(id).lock();
        let starts = part.requests.get_mut(&id)?;
        starts.iter_mut().for_each(|start| start.note_sign(node, now));
        starts.first().map(|start| start.owner)
    }

    /// Notes a start or a settlement without an id.
    pub fn note_without_id(&self) {
        self.without_id.fetch_add(1, Ordering::Relaxed);
    }

    /// An operator has reset the count of `key`: what starts hold of it comes back to none. Slots are
    /// dropped; of other holds the end is still charged for what it has cost beyond them. Returns the
    /// number of slots that were dropped.
    pub fn forget_key(&self, key: Key) -> u64 {
        self.parts.iter().map(|part| part.lock().forget_key(key)).sum()
    }

    /// The numbers of the parts, for [`Starts::expire`].
    pub fn parts(&self) -> Range<usize> {
        0..self.parts.len()
    }

    /// Ends the starts of a part whose time is over, or of which `is_over` says so, and forgets old
    /// notes. Returns what is to be given back, and whether anything is left there.
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

/// An open start, as far as it matters whether its Envoy is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartView {
    /// Who asked.
    pub owner: Owner,
    /// The Envoy that has logged it, once one has.
    pub node: Option<Node>,
    /// When its silence means that it has ended, if it has given signs of life.
    pub silence: Option<Silence>,
}

// === impl Part ===

impl Part {
    fn new() -> Self {
        Self {
            requests: HashMap::default(),
            denied: Recent::new(DENIAL_REMEMBERED, NOTES_MAX),
            ends: Recent::new(END_REMEMBERED, NOTES_MAX),
            len: 0,
            of_key: None,
            in_force: 0,
            hits: 0,
            last: 0,
            tally: Tally::default(),
        }
    }

    fn begin(&mut self, id: RequestId, start: Beginning<'_>, now: Time) -> Begun {
        let Beginning { descriptors, first, owner, is_aside } = start;
        if !is_aside && let Some(end) = self.ends.remove(id, now) {
            self.count(HoldCounter::EndedBefore, 1);
            return Begun::Ended(end.unwrap_or(End::Charged));
        }
        // Before a place is looked for, since to look for one makes one.
        let open = self.requests.get(&id).map_or(0, SmallVec::len);
        let has_place = open > 0 || self.requests.len() < PART_MAX;
        if open >= STARTS_OF_ID_MAX || !has_place || !self.has_room(first) {
            self.count(HoldCounter::NotKept, 1);
            return Begun::Full;
        }
        self.last = self.last.wrapping_add(1);
        self.insert(
            id,
            Start {
                number: self.last,
                owner,
                node: None,
                interval_ms: 0,
                seen: now,
                phase: Phase::Asking,
                is_aside,
                next: None,
                descriptors: descriptors.into(),
                held: SmallVec::new(),
            },
        );
        Begun::Open(StartId { request: id, number: self.last })
    }

    fn insert(&mut self, id: RequestId, start: Start) {
        self.requests.entry(id).or_default().push(start);
    }

    fn hold(&mut self, id: StartId, descriptor: u64, hold: Hold) -> bool {
        if !self.has_room((hold.key, hold.is_of_slots())) {
            self.count(HoldCounter::NotKept, 1);
            return false;
        }
        let Some(start) = self.find(id) else { return false };
        start.held.push((descriptor, hold.clone()));
        self.note_held(&hold);
        true
    }

    fn conclude(&mut self, id: StartId, now: Time) -> Option<(Held, End)> {
        let start = self.find(id)?;
        if let Phase::Ended(end) = start.phase {
            return self.remove(id).map(|start| (start.held, end));
        }
        (start.phase, start.seen) = (Phase::Running, now);
        if start.held.is_empty() {
            self.remove(id); // its end gives nothing back
        }
        None
    }

    fn forget(&mut self, id: StartId) -> Option<(Held, Option<End>)> {
        let start = self.remove(id)?;
        let ended = match start.phase {
            Phase::Ended(end) => Some(end),
            Phase::Asking | Phase::Running => None,
        };
        Some((start.held, ended))
    }

    fn keep_unanswered(&mut self, id: StartId, owner: Owner, held: Held, now: Time) {
        let Some((_, first)) = held.first() else { return };
        if self.len + held.len() > CROWDED {
            return;
        }
        let first = (first.key, first.is_of_slots());
        let descriptors: SmallVec<[u64; 2]> = held.iter().map(|(of, _)| *of).collect();
        let start = Beginning { descriptors: &descriptors, first, owner, is_aside: false };
        if let Begun::Open(start) = self.begin(id.request, start, now) {
            for (descriptor, hold) in held {
                self.hold(start, descriptor, hold);
            }
            self.conclude(start, now);
        }
    }

    fn settle(&mut self, id: HoldId, remembers: bool, now: Time) -> Settlement {
        if let Some(denied) = self.denied.get_mut(id, now) {
            *denied -= 1;
            if *denied == 0 {
                self.denied.remove(id, now);
            }
            return Settlement::OfNothing;
        }
        if let Some((hold, owner)) = self.take_hold(id) {
            return Settlement::Of(Box::new(hold), owner);
        }
        let asks = |start: &&mut Start| start.asks_for(id.descriptor) && remembers;
        if let Some(start) = self.starts(id.request).find(asks) {
            start.phase = Phase::Ended(End::Charged);
            return Settlement::OfNothing;
        }
        let is_ended = |start: &mut Start| matches!(start.phase, Phase::Ended(_));
        if remembers && !self.starts(id.request).any(is_ended) {
            *self.ends.note(id.request, now) = Some(End::Charged);
        }
        self.count(HoldCounter::WithoutHold, 1);
        Settlement::Unknown
    }

    /// Removes the oldest hold of the descriptor of this id.
    fn take_hold(&mut self, id: HoldId) -> Option<(Hold, Owner)> {
        let runs = |start: &Start| matches!(start.phase, Phase::Running);
        let starts = self.requests.get_mut(&id.request)?;
        for (at, start) in starts.iter_mut().enumerate().filter(|(_, start)| runs(start)) {
            let Some(held) = start.held.iter().position(|(of, _)| *of == id.descriptor) else {
                continue;
            };
            let (owner, (_, hold)) = (start.owner, start.held.remove(held));
            if start.held.is_empty() {
                starts.remove(at);
            }
            if starts.is_empty() {
                self.requests.remove(&id.request);
            }
            self.note_let_go(&hold);
            return Some((hold, owner));
        }
        None
    }

    fn end(&mut self, id: RequestId, end: End, now: Time) -> Option<(Owner, Held)> {
        let own = self.end_oldest(id, end, false);
        let aside = self.end_oldest(id, end, true);
        // A candidate's start may be the only one: the rules in force may hold nothing.
        let Some((owner, mut held)) = own.or_else(|| Some((aside.as_ref()?.0, Held::new()))) else {
            *self.ends.note(id, now) = Some(end);
            return None;
        };
        held.extend(aside.into_iter().flat_map(|(_, held)| held));
        Some((owner, held))
    }

    /// Ends the oldest start that has not ended. One whose leases are asked for ends by its verdict.
    fn end_oldest(&mut self, id: RequestId, end: End, aside: bool) -> Option<(Owner, Held)> {
        let is_open =
            |start: &&mut Start| start.is_aside == aside && !matches!(start.phase, Phase::Ended(_));
        let start = self.starts(id).find(is_open)?;
        let (owner, number) = (start.owner, start.number);
        if start.phase == Phase::Asking {
            start.phase = Phase::Ended(end);
            return Some((owner, Held::new()));
        }
        let start = self.remove(StartId { request: id, number })?;
        Some((owner, start.held))
    }

    fn forget_key(&mut self, key: Key) -> u64 {
        let starts = self.requests.iter_mut();
        let of_key: Vec<_> = starts
            .flat_map(|(id, starts)| starts.iter_mut().map(|start| (*id, start)))
            .filter_map(|(id, start)| {
                let mut is_of_slots = false;
                for (_, hold) in start.held.iter_mut().filter(|(_, hold)| hold.key == key) {
                    is_of_slots |= hold.is_of_slots();
                    if !hold.is_of_slots() {
                        hold.forget_tokens();
                    }
                }
                is_of_slots.then_some(StartId { request: id, number: start.number })
            })
            .collect();
        of_key.into_iter().map(|id| self.drop_slots(id, key)).sum()
    }

    /// Removes what a start holds of `key`. Returns the number of its slots.
    fn drop_slots(&mut self, id: StartId, key: Key) -> u64 {
        let Some(start) = self.find(id) else { return 0 };
        let (dropped, kept) = take(&mut start.held).into_iter().partition(|(_, it)| it.key == key);
        start.held = kept;
        let is_over = start.held.is_empty() && start.phase == Phase::Running;
        let dropped: Held = dropped;
        dropped.iter().for_each(|(_, hold)| self.note_let_go(hold));
        if is_over {
            self.remove(id);
        }
        dropped.iter().map(|(_, hold)| hold.taken.tokens).sum()
    }

    fn expire(
        &mut self,
        now: Time,
        mut is_over: impl FnMut(&StartView) -> Option<Cause>,
    ) -> (Vec<Unspent>, bool) {
        self.denied.forget_old(now);
        self.ends.forget_old(now);
        if self.requests.is_empty() {
            // No request holds anything for now, so nothing takes memory.
            self.requests = HashMap::with_hasher(self.requests.hasher().clone());
            return (Vec::new(), !(self.denied.is_empty() && self.ends.is_empty()));
        }
        let mut over = Vec::new();
        for (id, starts) in &self.requests {
            for start in starts.iter().filter(|start| start.phase == Phase::Running) {
                let is_expired = start.seen + start.lasts() <= now;
                let cause = is_over(&start.view()).or(is_expired.then_some(Cause::Expired));
                let id = StartId { request: *id, number: start.number };
                over.extend(cause.map(|cause| (start.seen, id, cause)));
            }
        }
        over.sort_unstable_by_key(|(seen, ..)| *seen);
        let mut released = Vec::new();
        for (_, id, cause) in over {
            let Some(start) = self.remove(id) else { continue };
            self.count(cause.counter(), start.held.len() as u64);
            released.extend(start.held.iter().filter_map(|(_, hold)| hold.expired()));
        }
        (released, true)
    }

    fn starts(&mut self, id: RequestId) -> impl Iterator<Item = &mut Start> {
        self.requests.get_mut(&id).into_iter().flatten()
    }

    fn find(&mut self, id: StartId) -> Option<&mut Start> {
        self.starts(id.request).find(|start| start.number == id.number)
    }

    fn remove(&mut self, id: StartId) -> Option<Start> {
        let starts = self.requests.get_mut(&id.request)?;
        let at = starts.iter().position(|start| start.number == id.number)?;
        let start = starts.remove(at);
        if starts.is_empty() {
            self.requests.remove(&id.request);
        }
        start.held.iter().for_each(|(_, hold)| self.note_let_go(hold));
        Some(start)
    }

    fn count(&mut self, event: HoldCounter, times: u64) {
        add_to(&mut self.tally, event, times);
    }

    fn note_settled(&mut self, held: u64, cost: u64) {
        self.count(HoldCounter::Settled, 1);
        self.count(HoldCounter::OverEstimated, held.saturating_sub(cost));
        self.count(HoldCounter::UnderEstimated, cost.saturating_sub(held));
    }

    fn note_held(&mut self, hold: &Hold) {
        self.len += 1;
        self.in_force += usize::from(hold.hits > 0);
        self.hits = self.hits.saturating_add(hold.hits);
        match &mut self.of_key {
            Some(of_key) => *of_key.entry(hold.key).or_default() += 1,
            None if self.len >= CROWDED => self.of_key = Some(self.by_key()),
            None => {}
        }
    }

    fn note_let_go(&mut self, hold: &Hold) {
        self.len = self.len.saturating_sub(1);
        self.in_force = self.in_force.saturating_sub(usize::from(hold.hits > 0));
        self.hits = self.hits.saturating_sub(hold.hits);
        if self.len < UNCROWDED {
            self.of_key = None;
        }
        if let Some(of_key) = &mut self.of_key
            && let Some(held) = of_key.get_mut(&hold.key)
        {
            *held -= 1;
            if *held == 0 {
                of_key.remove(&hold.key);
            }
        }
    }

    fn by_key(&self) -> HashMap<Key, u32, RandomState> {
        let mut of_key = HashMap::<_, u32, _>::default();
        let holds = self.requests.values().flatten().flat_map(|start| &start.held);
        holds.for_each(|(_, hold)| *of_key.entry(hold.key).or_default() += 1);
        of_key
    }

    /// Whether a further request may hold something of `key`. The last eighth of the room is for slots,
    /// which cannot be given without it.
    fn has_room(&self, (key, is_of_slots): (Key, bool)) -> bool {
        let of_key = || self.of_key.as_ref()?.get(&key);
        let is_few = || of_key().is_none_or(|held| *held < FEW);
        match self.len {
            0..CROWDED => true,
            CROWDED..SLOTS_ONLY => is_few(),
            SLOTS_ONLY..PART_MAX => is_of_slots && is_few(),
            _ => false,
        }
    }

    /// Bytes of the tables, whose slots are an eighth more than their capacity. Of a request with
    /// several holds, which lie on the heap, one is counted.
    fn bytes(&self) -> usize {
        let of = |capacity: usize, bytes: usize| capacity.div_ceil(7) * 8 * bytes;
        let keys = self.of_key.as_ref().map_or(0, HashMap::capacity);
        let further = self.len.saturating_sub(self.requests.len()) * size_of::<(u64, Hold)>();
        of(self.requests.capacity(), SLOT_BYTES)
            + of(keys, KEY_BYTES)
            + further
            + self.denied.bytes()
            + self.ends.bytes()
    }
}

// === impl Start ===

impl Start {
    fn view(&self) -> StartView {
        StartView { owner: self.owner, node: self.node, silence: self.silence() }
    }
}

// === impl Cause ===

impl Cause {
    fn counter(self) -> HoldCounter {
        match self {
            Self::Expired => HoldCounter::Expired,
            Self::OwnerGone => HoldCounter::OwnerGone,
            Self::Silent => HoldCounter::Silent,
        }
    }
}

#[cfg(test)]
mod tests;
