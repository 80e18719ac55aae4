//! A part of the table of open starts: the starts of some requests, under one lock, with the notes
//! of ends and denials. Pure: `now` is an argument.

use std::collections::{HashMap, HashSet};
use std::mem::{size_of, take};
use std::time::Duration;

use foldhash::quality::RandomState;
use ratelease_rules::key::{HoldId, Key, RequestId};
use smallvec::SmallVec;

use super::recent::Recent;
use super::start::{End, Hold, Phase, Start, Unspent};
use super::{Beginning, Begun, Held, Sender, Settlement};
use crate::counter::HoldCounter;
use crate::limiter::owners::{Cause, Owner, StartId, StartView};
use crate::time::Time;

/// The largest number of holds in a part: 7/8 of a power of two, the load at which a table grows.
pub(super) const PART_MAX: usize = 7 << 9;

/// Above this number in a part, a key has at most [`FEW`] there.
const CROWDED: usize = PART_MAX / 4 * 3;

/// The holds that a key may have in a crowded part: some 128 in all.
pub(super) const FEW: u32 = 4;

/// Below this number in a part, the holds of each key are counted no more. It is far below
/// [`CROWDED`], where the counting begins, since a count looks at all holds.
const UNCROWDED: usize = CROWDED / 2;

/// Above this number in a part, only slots are held.
const SLOTS_ONLY: usize = PART_MAX / 8 * 7;

/// The largest number of open starts of one id: Envoy makes a new start for each redirect, and a
/// client that chooses its id may send one for many requests. An end looks through all of them.
pub(super) const STARTS_OF_ID_MAX: usize = 64;

/// Above this number in a part, no request without answer is kept for the cost that a log may tell.
pub(super) const BLANK_MAX: usize = PART_MAX / 8;

/// How long a denied start waits for its end, which Envoy sends as soon as it has the denial.
const DENIAL_REMEMBERED: Duration = Duration::from_secs(1);

/// How long the end that a call tells waits for its start, which another connection may bring
/// later.
const CALLED_REMEMBERED: Duration = Duration::from_secs(1);

/// How long the end that a log tells waits for its start: as long as a call of Envoy may be under
/// way, by the time-outs of the recipes, at least.
const END_REMEMBERED: Duration = Duration::from_secs(5);

/// The largest number of notes of each generation in a part: 64 Ki of each kind in all.
const NOTES_MAX: usize = 1 << 10;

/// Bytes of a request in the table, with the byte that the table keeps for each slot.
pub(super) const SLOT_BYTES: usize = size_of::<(RequestId, OfRequest)>() + 1;

/// Bytes of the number of holds of a key, likewise.
pub(super) const KEY_BYTES: usize = size_of::<(Key, u32)>() + 1;

/// The starts of one request: one, but for redirects within Envoy.
type OfRequest = SmallVec<[Start; 1]>;

/// The starts of some requests.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) requests: HashMap<RequestId, OfRequest, RandomState>,
    /// Starts that were denied, and whose ends have not come: their number.
    pub(super) denied: Recent<HoldId, u32>,
    /// Ends that a log has told, or a call, and whose starts are not here.
    ends: Recent<RequestId, Early>,
    /// Descriptors that a call has ended, and whose starts are not here.
    called: Recent<HoldId, ()>,
    /// Descriptors whose cost the access log has told, and which a call may end too: their number.
    logged: Recent<HoldId, u32>,
    /// Descriptors that a call has ended, whose log is still to come: their number.
    settled: Recent<HoldId, u32>,
    /// Hits that stay charged for descriptors of which the log did not know the cost.
    kept: Recent<HoldId, u64>,
    /// The start of the same call under another id, of starts that have ended.
    links: Recent<StartId, Option<StartId>>,
    /// Number of holds, and of places for the first hold of a start.
    len: usize,
    /// Number of such places.
    places: usize,
    /// Number of holds and places of a key, counted only while there are so many in all that it
    /// matters.
    of_key: Option<HashMap<Key, u32, RandomState>>,
    /// Number of holds of any hits.
    pub(super) in_force: usize,
    /// Sum of the hits that are held.
    pub(super) hits: u64,
    /// The number of the start that began last.
    last: u32,
    /// Events since the process began.
    pub(super) tally: Tally,
}

/// How a request has ended whose start is not here.
#[derive(Debug, Default, Clone, Copy)]
struct Early {
    end: Option<End>,
    /// Whether a log has told it: then no start that comes is of use any more.
    is_logged: bool,
}

/// The counters by their numbers.
pub(super) type Tally = [u64; HoldCounter::ALL.len()];

pub(super) fn add_to(tally: &mut Tally, of: HoldCounter, count: u64) {
    let sum = &mut tally[of as usize];
    *sum = sum.saturating_add(count);
}

// === impl Part ===

impl Part {
    pub(super) fn new() -> Self {
        Self {
            requests: HashMap::default(),
            denied: Recent::new(DENIAL_REMEMBERED, NOTES_MAX),
            ends: Recent::new(END_REMEMBERED, NOTES_MAX),
            called: Recent::new(CALLED_REMEMBERED, NOTES_MAX),
            logged: Recent::new(END_REMEMBERED, NOTES_MAX),
            settled: Recent::new(END_REMEMBERED, NOTES_MAX),
            kept: Recent::new(END_REMEMBERED, NOTES_MAX),
            links: Recent::new(END_REMEMBERED, NOTES_MAX),
            len: 0,
            places: 0,
            of_key: None,
            in_force: 0,
            hits: 0,
            last: 0,
            tally: Tally::default(),
        }
    }

    pub(super) fn begin(&mut self, id: RequestId, start: Beginning<'_>, now: Time) -> Begun {
        if !start.is_aside
            && let Some(end) = self.take_early_end(id, start.descriptors, now)
        {
            self.count(HoldCounter::EndedBefore, 1);
            return Begun::Ended(end);
        }
        self.enter(id, start, now).map_or(Begun::Full, Begun::Open)
    }

    /// Removes the end that came before its start, of these descriptors.
    fn take_early_end(&mut self, id: RequestId, descriptors: &[u64], now: Time) -> Option<End> {
        let ids =
            descriptors.iter().map(|descriptor| HoldId { request: id, descriptor: *descriptor });
        let called = ids.filter(|id| self.called.remove(*id, now).is_some()).count();
        let is_logged = self.ends.get_mut(id, now).is_some_and(|early| early.is_logged);
        let early = if is_logged || called > 0 { self.ends.remove(id, now) } else { None };
        let end = match called {
            0 => early.map(|early| early.end.unwrap_or(End::Charged)),
            _ => Some(End::Charged),
        };
        if matches!(end, Some(End::Cost(_))) {
            // A call may follow for the same end.
            for descriptor in descriptors {
                let id = HoldId { request: id, descriptor: *descriptor };
                *self.logged.note(id, now) += 1;
            }
        }
        end
    }

    /// Enters a start, if there is room for it.
    fn enter(&mut self, id: RequestId, start: Beginning<'_>, now: Time) -> Option<StartId> {
        let Beginning { descriptors, first, owner, is_aside } = start;
        // Before a place is looked for, since to look for one makes one.
        let open = self.requests.get(&id).map_or(0, SmallVec::len);
        let has_place = open > 0 || self.requests.len() < PART_MAX;
        if open >= STARTS_OF_ID_MAX || !has_place || !self.has_room(first) {
            self.count(HoldCounter::NotKept, 1);
            return None;
        }
        self.last = self.last.wrapping_add(1);
        self.insert(
            id,
            Start {
                number: self.last,
                owner,
                node: None,
                interval_ms: 0,
                began: now,
                seen: now,
                phase: Phase::Asking,
                is_aside,
                next: None,
                place: Some(first.0),
                descriptors: descriptors.into(),
                held: SmallVec::new(),
            },
        );
        self.places += 1;
        self.take_place(first.0);
        Some(StartId { request: id, number: self.last })
    }

    fn insert(&mut self, id: RequestId, start: Start) {
        self.requests.entry(id).or_default().push(start);
    }

    pub(super) fn hold(&mut self, id: StartId, descriptor: u64, hold: Hold) -> bool {
        let place = self.find(id).and_then(|start| start.place.take());
        self.leave_place(place);
        if !self.has_room((hold.key, hold.is_of_slots())) {
            self.count(HoldCounter::NotKept, 1);
            return false;
        }
        let Some(start) = self.find(id) else { return false };
        start.held.push((descriptor, hold.clone()));
        self.note_held(&hold);
        true
    }

    pub(super) fn conclude(&mut self, id: StartId, now: Time) -> Option<(Held, End)> {
        let start = self.find(id)?;
        if let Phase::Ended(end) = start.phase {
            return self.remove(id).map(|start| (start.held, end));
        }
        (start.phase, start.seen) = (Phase::Running, now);
        start.descriptors = SmallVec::new(); // of use only until it is known what is held
        if start.held.is_empty() {
            self.remove(id); // its end gives nothing back
        }
        None
    }

    pub(super) fn forget(&mut self, id: StartId) -> Option<(Held, Option<End>)> {
        let start = self.remove(id)?;
        let ended = match start.phase {
            Phase::Ended(end) => Some(end),
            Phase::Asking | Phase::Running => None,
        };
        Some((start.held, ended))
    }

    pub(super) fn keep_unanswered(&mut self, id: StartId, owner: Owner, held: Held, now: Time) {
        let Some((_, first)) = held.first() else { return };
        let blank = self.len.saturating_sub(self.in_force + self.places);
        if blank + held.len() > BLANK_MAX || self.len + held.len() > CROWDED {
            return;
        }
        let first = (first.key, first.is_of_slots());
        let start = Beginning { descriptors: &[], first, owner, is_aside: false };
        if let Some(start) = self.enter(id.request, start, now) {
            for (descriptor, hold) in held {
                self.hold(start, descriptor, hold);
            }
            self.conclude(start, now);
        }
    }

    pub(super) fn settle(&mut self, id: HoldId, by: Sender, now: Time) -> Settlement {
        let Sender { owner: by, remembers, is_logging } = by;
        // A start that failed may have both notes: its Envoy let it pass.
        let is_logged = self.logged.take_one(id, now);
        let is_denied = self.denied.take_one(id, now);
        if is_logged {
            return Settlement::Counted;
        }
        if let Some(hits) = self.kept.remove(id, now) {
            return Settlement::Kept(hits);
        }
        if is_denied {
            // The cost is counted now, and not by the log too.
            self.take_hold(id, Start::is_blank);
            return Settlement::OfNothing;
        }
        // An id may come again through another Envoy, which ends its own start first.
        let is_of_sender = |start: &Start| start.owner == by;
        let is_any = |_: &Start| true;
        for is_meant in [&is_of_sender as &dyn Fn(&Start) -> bool, &is_any] {
            if let Some((hold, owner)) = self.take_hold(id, is_meant) {
                self.note_settled_by_call(id, is_logging, now);
                return Settlement::Of(Box::new(hold), owner);
            }
            if self.end_asking(id, is_meant) {
                self.note_settled_by_call(id, is_logging, now);
                return Settlement::OfNothing;
            }
        }
        let is_ended = |start: &mut Start| matches!(start.phase, Phase::Ended(_));
        // A client of its own sends an end for each start, also for one that was denied.
        if remembers && by != Owner::UNKNOWN && !self.starts(id.request).any(is_ended) {
            self.called.note(id, now);
            self.ends.note(id.request, now).end = Some(End::Charged);
        }
        self.count(HoldCounter::WithoutHold, 1);
        Settlement::Unknown
    }

    /// Notes that a call has ended a descriptor, whose log may follow.
    fn note_settled_by_call(&mut self, id: HoldId, is_logging: bool, now: Time) {
        if is_logging {
            *self.settled.note(id, now) += 1;
        }
    }

    /// Removes the oldest hold of the descriptor of this id, of a start that `is_meant`.
    fn take_hold(
        &mut self,
        id: HoldId,
        is_meant: impl Fn(&Start) -> bool,
    ) -> Option<(Hold, Owner)> {
        let starts = self.requests.get_mut(&id.request)?;
        let of_descriptor = |(of, _): &(u64, Hold)| *of == id.descriptor;
        let (at, held) = starts.iter().enumerate().find_map(|(at, start)| {
            let is_running = start.phase == Phase::Running && is_meant(start);
            let held = is_running.then(|| start.held.iter().position(of_descriptor));
            Some((at, held.flatten()?))
        })?;
        let start = starts.get_mut(at)?;
        let (owner, (_, hold)) = (start.owner, start.held.remove(held));
        if start.held.is_empty() {
            starts.remove(at);
        }
        if starts.is_empty() {
            self.requests.remove(&id.request);
        }
        self.note_let_go(&hold);
        Some((hold, owner))
    }

    /// Ends a start by its verdict, whose leases are still asked for. Returns false if there is
    /// none that `is_meant`.
    fn end_asking(&mut self, id: HoldId, is_meant: impl Fn(&Start) -> bool) -> bool {
        let asks = |start: &&mut Start| start.asks_for(id.descriptor) && is_meant(start);
        let asking = self.starts(id.request).find(asks);
        asking.map(|start| start.phase = Phase::Ended(End::Charged)).is_some()
    }

    pub(super) fn end(
        &mut self,
        id: RequestId,
        end: End,
        now: Time,
    ) -> Option<(SmallVec<[Owner; 1]>, Held)> {
        let over = self.one_of_each_descriptor(id);
        if over.is_empty() {
            let early = self.ends.note(id, now);
            early.is_logged = true;
            // A call may have charged the cost.
            early.end = early.end.filter(|end| *end == End::Charged).or(Some(end));
            return None;
        }
        let (mut owners, mut held) = (SmallVec::new(), Held::new());
        for number in over {
            if self.is_settled_by_call(StartId { request: id, number }, now) {
                continue; // the entry is of an earlier start
            }
            let (owner, of_start) = self.end_one(StartId { request: id, number }, end, now)?;
            owners.push(owner);
            held.extend(of_start);
        }
        Some((owners, held))
    }

    /// Whether a call has ended an earlier start of the same descriptors, whose entry this is.
    fn is_settled_by_call(&mut self, start: StartId, now: Time) -> bool {
        if self.settled.is_empty() {
            return false; // as nearly always
        }
        let Some(found) = self.find(start) else { return false };
        let descriptors: SmallVec<[u64; 2]> = found.descriptors().collect();
        let ids = descriptors.iter().map(|of| HoldId { request: start.request, descriptor: *of });
        ids.filter(|id| self.settled.take_one(*id, now)).count() > 0
    }

    /// Ends the starts of a request that another filter has denied. If a descriptor of a start was
    /// denied too, the start is of another request with this id.
    pub(super) fn end_denied(&mut self, id: RequestId, now: Time) -> Held {
        let mut held = Held::new();
        for number in self.one_of_each_descriptor(id) {
            let start = StartId { request: id, number };
            let Some(Start { phase: Phase::Running, held: of_start, .. }) = self.find(start) else {
                continue;
            };
            let of_start: SmallVec<[u64; 2]> = of_start.iter().map(|(of, _)| *of).collect();
            let ids = of_start.iter().map(|of| HoldId { request: id, descriptor: *of });
            let denied = ids.filter(|id| self.denied.take_one(*id, now)).count();
            if denied == 0 {
                held.extend(self.remove(start).into_iter().flat_map(|start| start.held));
            }
        }
        held
    }

    /// The numbers of the starts that one end is of: those that have not ended, the oldest first,
    /// but for starts of a descriptor that an older one has too. Each filter of Envoy makes one.
    pub(super) fn one_of_each_descriptor(&mut self, id: RequestId) -> SmallVec<[u32; 2]> {
        // As nearly always: nothing is to be compared.
        if let Some([start]) = self.requests.get(&id).map(SmallVec::as_slice) {
            let is_open = !matches!(start.phase, Phase::Ended(_));
            return is_open.then_some(start.number).into_iter().collect();
        }
        let mut named = HashSet::<u64, RandomState>::default();
        let open = self.starts(id).filter(|start| !matches!(start.phase, Phase::Ended(_)));
        let is_further = |start: &&mut Start| {
            let is_further = start.descriptors().all(|of| !named.contains(&of));
            if is_further {
                named.extend(start.descriptors());
            }
            is_further
        };
        open.filter(is_further).map(|start| start.number).collect()
    }

    /// Ends a start. One whose leases are asked for ends by its verdict.
    fn end_one(&mut self, id: StartId, end: End, now: Time) -> Option<(Owner, Held)> {
        let start = self.find(id)?;
        let (owner, is_asking) = (start.owner, start.phase == Phase::Asking);
        let descriptors: SmallVec<[u64; 2]> = start.descriptors().collect();
        if is_asking {
            start.phase = Phase::Ended(end);
        }
        if matches!(end, End::Cost(_)) {
            for descriptor in descriptors {
                *self.logged.note(HoldId { request: id.request, descriptor }, now) += 1;
            }
        }
        if is_asking {
            return Some((owner, Held::new()));
        }
        let start = self.remove(id)?;
        if let Some(next) = start.next {
            *self.links.note(id, now) = Some(*next);
        }
        if end == End::Unknown {
            // A call may tell the cost after all.
            let kept = start.held.iter().filter(|(_, it)| it.hits > 0 && !it.gives_back());
            for (descriptor, hold) in kept {
                let id = HoldId { request: id.request, descriptor: *descriptor };
                *self.kept.note(id, now) += hold.hits;
            }
        }
        Some((owner, start.held))
    }

    /// Removes the start of a candidate that came with `start`: the first one after it. Other
    /// filters of Envoy may have asked about the same request before.
    pub(super) fn forget_aside(&mut self, id: StartId) -> Option<Held> {
        let is_after = |number: u32| number.wrapping_sub(id.number) < u32::MAX / 2;
        let aside = self.starts(id.request).find(|it| it.is_aside && is_after(it.number))?.number;
        self.remove(StartId { number: aside, ..id }).map(|start| start.held)
    }

    pub(super) fn forget_key(&mut self, key: Key) -> u64 {
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

    /// Removes the holds of a start under `key`. Returns the number of their slots.
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

    pub(super) fn expire(
        &mut self,
        now: Time,
        mut is_over: impl FnMut(&StartView) -> Option<Cause>,
    ) -> (Vec<Unspent>, bool) {
        self.denied.trim(now);
        self.ends.trim(now);
        self.called.trim(now);
        self.logged.trim(now);
        self.settled.trim(now);
        self.kept.trim(now);
        self.links.trim(now);
        if self.requests.is_empty() {
            // No request holds anything for now, so nothing takes memory.
            self.requests = HashMap::with_hasher(self.requests.hasher().clone());
            return (Vec::new(), self.has_notes());
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

    fn has_notes(&self) -> bool {
        let Self { denied, ends, called, logged, settled, kept, links, .. } = self;
        let are_none = denied.is_empty() && ends.is_empty() && called.is_empty();
        let are_none = are_none && logged.is_empty() && settled.is_empty() && kept.is_empty();
        !(are_none && links.is_empty())
    }

    pub(super) fn starts(&mut self, id: RequestId) -> impl Iterator<Item = &mut Start> {
        self.requests.get_mut(&id).into_iter().flatten()
    }

    pub(super) fn find(&mut self, id: StartId) -> Option<&mut Start> {
        self.starts(id.request).find(|start| start.number == id.number)
    }

    fn remove(&mut self, id: StartId) -> Option<Start> {
        let starts = self.requests.get_mut(&id.request)?;
        let at = starts.iter().position(|start| start.number == id.number)?;
        let start = starts.remove(at);
        if starts.is_empty() {
            self.requests.remove(&id.request);
        }
        self.leave_place(start.place);
        start.held.iter().for_each(|(_, hold)| self.note_let_go(hold));
        Some(start)
    }

    /// The start of the same call under another id than that of `id`, which has ended.
    pub(super) fn link_of(&mut self, id: StartId, now: Time) -> Option<StartId> {
        self.links.remove(id, now).flatten()
    }

    fn count(&mut self, event: HoldCounter, times: u64) {
        add_to(&mut self.tally, event, times);
    }

    pub(super) fn note_settled(&mut self, held: u64, cost: u64) {
        self.count(HoldCounter::Settled, 1);
        self.count(HoldCounter::OverEstimated, held.saturating_sub(cost));
        self.count(HoldCounter::UnderEstimated, cost.saturating_sub(held));
    }

    fn note_held(&mut self, hold: &Hold) {
        self.in_force += usize::from(hold.hits > 0);
        self.hits = self.hits.saturating_add(hold.hits);
        self.take_place(hold.key);
    }

    fn note_let_go(&mut self, hold: &Hold) {
        self.in_force = self.in_force.saturating_sub(usize::from(hold.hits > 0));
        self.hits = self.hits.saturating_sub(hold.hits);
        self.free_place(hold.key);
    }

    /// Frees the place of a start that is about to hold something, or is removed.
    fn leave_place(&mut self, place: Option<Key>) {
        if let Some(key) = place {
            self.places = self.places.saturating_sub(1);
            self.free_place(key);
        }
    }

    /// Counts a hold or a place of `key` that has just been entered.
    fn take_place(&mut self, key: Key) {
        self.len += 1;
        match &mut self.of_key {
            Some(of_key) => *of_key.entry(key).or_default() += 1,
            None if self.len >= CROWDED => self.of_key = Some(self.by_key()),
            None => {}
        }
    }

    fn free_place(&mut self, key: Key) {
        self.len = self.len.saturating_sub(1);
        if self.len < UNCROWDED {
            self.of_key = None;
        }
        if let Some(of_key) = &mut self.of_key
            && let Some(held) = of_key.get_mut(&key)
        {
            *held -= 1;
            if *held == 0 {
                of_key.remove(&key);
            }
        }
    }

    fn by_key(&self) -> HashMap<Key, u32, RandomState> {
        let mut of_key = HashMap::<_, u32, _>::default();
        for start in self.requests.values().flatten() {
            let held = start.held.iter().map(|(_, hold)| hold.key);
            held.chain(start.place).for_each(|key| *of_key.entry(key).or_default() += 1);
        }
        of_key
    }

    /// Whether a further request may hold something of `key`. The last eighth of the room is for
    /// slots, which cannot be given without it.
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
    pub(super) fn bytes(&self) -> usize {
        let of = |capacity: usize, bytes: usize| capacity.div_ceil(7) * 8 * bytes;
        let keys = self.of_key.as_ref().map_or(0, HashMap::capacity);
        let further = self.len.saturating_sub(self.requests.len()) * size_of::<(u64, Hold)>();
        of(self.requests.capacity(), SLOT_BYTES)
            + of(keys, KEY_BYTES)
            + further
            + self.denied.bytes()
            + self.ends.bytes()
            + self.called.bytes()
            + self.logged.bytes()
            + self.settled.bytes()
            + self.kept.bytes()
            + self.links.bytes()
    }
}
