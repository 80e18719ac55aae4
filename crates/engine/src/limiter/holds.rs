//! What requests hold: the hits that each took at its start, under its id, until a settlement says
//! what it has cost. Pure: `now` is an argument.
//!
//! The table is bounded. A start for which it has no room stays charged and is not held, so that
//! its settlement counts whole: too much is counted rather than too little. Nothing that is held is
//! forgotten for another, and the last quarter of the room is for keys of which few requests are
//! held: a client that starts requests without end keeps only its own further ones out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem::size_of;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_rules::Limit;
use ratelease_rules::key::{HoldId, Key};

use crate::algorithm::counting;
use crate::buffer::LeasedTokens;
use crate::counter::{Count, Counter, HoldCounter};
use crate::store::{Ask, Purpose, Return};
use crate::time::Time;

/// The largest number of requests that hold something: 7/8 of 2^17, so that the tables of all parts
/// are full when they have 2^17 slots.
pub(super) const HOLDS_MAX: usize = PARTS * PART_MAX;

/// The number of parts, each under a lock of its own. An id has its place in one of them, so that
/// they fill evenly.
const PARTS: usize = 32;
const PART_MAX: usize = 7 << 9;

/// Above this number in a part, a key has at most [`FEW`] there.
const CROWDED: usize = PART_MAX / 4 * 3;
const FEW: u32 = 4;

/// Below this number in a part, those of each key are counted no more. It is far below [`CROWDED`],
/// from where on they are, since counting them looks at all.
const UNCROWDED: usize = CROWDED / 2;

/// Above this number in a part, only slots are held.
const SLOTS_ONLY: usize = PART_MAX / 8 * 7;

/// Bytes of a request that holds something, and of the number of those of its key.
const SLOT_BYTES: usize = size_of::<(HoldId, Hold)>() + 1;
const KEY_BYTES: usize = size_of::<(Key, u32)>() + 1;

// Tables of 2^n slots that are 7/8 full.
const _: () = assert!(HOLDS_MAX / 7 * 8 * (SLOT_BYTES + KEY_BYTES) <= 19 << 20);

/// How often holds that have ended are looked for.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What one request holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    /// The key that was charged.
    pub key: Key,
    /// The limit that it was charged under.
    pub limit: Limit,
    /// What it was charged, which its settlement need not charge again.
    pub hits: u64,
    /// The tokens that paid for these hits, as far as they may come back.
    pub taken: LeasedTokens,
    /// Those of the hits that this pod has admitted by itself, and that are not owed.
    pub alone: u64,
    /// When the hold ends, unless it is settled.
    pub ends: Time,
    /// Whether the hits are given back then.
    pub releases: bool,
    /// As [`Ask::carry_debt`].
    pub carry_debt: bool,
    /// How often the request has started and not ended: a redirect within Envoy starts it again,
    /// and ends it as often.
    pub starts: u32,
}

/// The result of a start that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// Whether nothing was held in this part of the table before.
    pub was_idle: bool,
    /// Slots of an earlier start, on another count, that cannot be held together with the new ones.
    pub displaced: Option<Unspent>,
}

/// What a request held and did not use.
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

/// What becomes of a hold by its settlement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// What is given back.
    pub unspent: Unspent,
    /// Hits that are still to be charged.
    pub due: u64,
}

/// The requests that hold something.
#[derive(Default)]
pub struct Holds {
    parts: [Mutex<Part>; PARTS],
    /// Starts and settlements whose id is empty.
    without_id: AtomicU64,
}

#[derive(Default)]
struct Part {
    holds: HashMap<HoldId, Hold, RandomState>,
    /// Number of requests that hold something of a key, counted only while there are so many in all
    /// that it matters.
    of_key: Option<HashMap<Key, u32, RandomState>>,
    /// No hold ends before this.
    first_end: Time,
    /// Sum of the hits that are held.
    hits: u64,
    /// Events since the process began.
    tally: Tally,
}

/// The counters by their numbers.
type Tally = [u64; HoldCounter::ALL.len()];

fn add_to(tally: &mut Tally, of: HoldCounter, count: u64) {
    let sum = &mut tally[of as usize];
    *sum = sum.saturating_add(count);
}

// === impl Holds ===

impl Holds {
    /// Notes that the request of this `id` holds something. A further start of the same request
    /// adds to what it holds; `None` if there is no room.
    pub fn take(&self, id: HoldId, hold: Hold) -> Option<Taken> {
        self.part(id).lock().take(id, hold)
    }

    /// Ends what the request of this `id` holds, which has cost `hits`; `None` if it holds nothing.
    pub fn settle(&self, id: HoldId, hits: u64) -> Option<Settled> {
        self.part(id).lock().settle(id, hits)
    }

    /// Takes back a start of the request of this `id`, which held `hits` and these `tokens`.
    pub fn undo(&self, id: HoldId, hits: u64, tokens: u64) {
        self.part(id).lock().undo(id, hits, tokens);
    }

    /// Notes a start or a settlement without an id.
    pub fn note_without_id(&self) {
        self.without_id.fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers of the parts, for [`Holds::expire`].
    pub fn parts(&self) -> Range<usize> {
        0..self.parts.len()
    }

    /// Ends the holds of a part that nothing has settled in time. Returns what is to be given back,
    /// soonest end first, and whether anything is still held there.
    pub fn expire(&self, part: usize, now: Time) -> (Vec<Unspent>, bool) {
        self.parts.get(part).map_or_else(Default::default, |part| part.lock().expire(now))
    }

    /// What has happened, and what is held at present.
    pub fn counts(&self) -> Vec<Count> {
        let mut sums = Tally::default();
        let mut add = |of, count| add_to(&mut sums, of, count);
        add(HoldCounter::WithoutId, self.without_id.load(Ordering::Relaxed));
        for part in &self.parts {
            let part = part.lock();
            HoldCounter::ALL.into_iter().zip(part.tally).for_each(|(of, count)| add(of, count));
            add(HoldCounter::InForce, part.holds.len() as u64);
            add(HoldCounter::Hits, part.hits);
            add(HoldCounter::Bytes, part.bytes() as u64);
        }
        let counts = HoldCounter::ALL.into_iter().zip(sums);
        counts.map(|(of, count)| (Counter::Holds(of), count)).collect()
    }

    #[allow(clippy::cast_possible_truncation, reason = "a remainder of PARTS fits")]
    fn part(&self, id: HoldId) -> &Mutex<Part> {
        &self.parts[(id.bits() % PARTS as u64) as usize]
    }
}

// === impl Part ===

impl Part {
    fn take(&mut self, id: HoldId, hold: Hold) -> Option<Taken> {
        // Looked at first, since to look for a free slot makes one.
        if !self.has_room(&hold) && !self.holds.contains_key(&id) {
            self.count(HoldCounter::NotKept, 1);
            return None;
        }
        let was_idle = self.holds.is_empty();
        self.first_end = if was_idle { hold.ends } else { self.first_end.min(hold.ends) };
        if let Entry::Vacant(slot) = self.holds.entry(id) {
            slot.insert(hold);
            self.note_inserted(&hold);
            return Some(Taken { was_idle, displaced: None });
        }
        let earlier = self.remove(id)?;
        self.insert(id, earlier.and(hold));
        Some(Taken { was_idle, displaced: earlier.displaced_by(&hold) })
    }

    fn insert(&mut self, id: HoldId, hold: Hold) {
        self.holds.insert(id, hold);
        self.note_inserted(&hold);
    }

    fn note_inserted(&mut self, hold: &Hold) {
        self.hits = self.hits.saturating_add(hold.hits);
        match &mut self.of_key {
            Some(of_key) => *of_key.entry(hold.key).or_default() += 1,
            None if self.holds.len() >= CROWDED => self.of_key = Some(self.by_key()),
            None => {}
        }
    }

    fn by_key(&self) -> HashMap<Key, u32, RandomState> {
        let mut of_key = HashMap::<_, u32, _>::default();
        self.holds.values().for_each(|hold| *of_key.entry(hold.key).or_default() += 1);
        of_key
    }

    /// Settles one start of the request: its share of what the request holds, or all that is left.
    fn settle(&mut self, id: HoldId, hits: u64) -> Option<Settled> {
        let Some(hold) = self.remove(id) else {
            self.count(HoldCounter::WithoutHold, 1);
            return None;
        };
        let (hold, rest) = hold.shared();
        if let Some(rest) = rest {
            self.insert(id, rest);
        }
        let unused = hold.hits.saturating_sub(hits);
        let due = hits.saturating_sub(hold.hits);
        self.count(HoldCounter::Settled, 1);
        self.count(HoldCounter::OverEstimated, unused);
        self.count(HoldCounter::UnderEstimated, due);
        Some(Settled { unspent: hold.unspent(unused), due })
    }

    fn undo(&mut self, id: HoldId, hits: u64, tokens: u64) {
        let Some(hold) = self.remove(id) else { return };
        let taken = LeasedTokens { tokens: hold.taken.tokens.saturating_sub(tokens), ..hold.taken };
        let (hits, starts) = (hold.hits.saturating_sub(hits), hold.starts.saturating_sub(1));
        if starts > 0 {
            self.insert(id, Hold { hits, starts, taken, ..hold });
        }
    }

    fn expire(&mut self, now: Time) -> (Vec<Unspent>, bool) {
        if self.holds.is_empty() {
            // No request holds anything for now, so nothing takes memory.
            self.holds = HashMap::with_hasher(self.holds.hasher().clone());
            return (Vec::new(), false);
        }
        if now < self.first_end {
            return (Vec::new(), true);
        }
        let ended = self.holds.iter().filter(|(_, hold)| hold.ends <= now);
        let mut ended: Vec<_> = ended.map(|(id, hold)| (*id, *hold)).collect();
        ended.sort_unstable_by_key(|(_, hold)| hold.ends);
        for (id, _) in &ended {
            self.remove(*id);
        }
        self.count(HoldCounter::Expired, ended.len() as u64);
        self.first_end = self.holds.values().map(|hold| hold.ends).min().unwrap_or_default();
        let released = ended.iter().filter(|(_, hold)| hold.releases);
        let released = released.map(|(_, hold)| hold.unspent(hold.hits)).collect();
        (released, !self.holds.is_empty())
    }

    fn count(&mut self, event: HoldCounter, times: u64) {
        add_to(&mut self.tally, event, times);
    }

    /// Whether a further request may hold this. The last eighth of the room is for slots, which
    /// cannot be given without it.
    fn has_room(&self, hold: &Hold) -> bool {
        let of_key = || self.of_key.as_ref()?.get(&hold.key);
        let is_few = || of_key().is_none_or(|held| *held < FEW);
        match self.holds.len() {
            0..CROWDED => true,
            CROWDED..SLOTS_ONLY => is_few(),
            SLOTS_ONLY..PART_MAX => hold.is_of_slots() && is_few(),
            _ => false,
        }
    }

    fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let hold = self.holds.remove(&id)?;
        self.hits = self.hits.saturating_sub(hold.hits);
        if self.holds.len() < UNCROWDED {
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
        Some(hold)
    }

    /// Bytes of the tables, whose slots are an eighth more than their capacity.
    fn bytes(&self) -> usize {
        let of = |capacity: usize, bytes: usize| capacity.div_ceil(7) * 8 * bytes;
        let keys = self.of_key.as_ref().map_or(0, HashMap::capacity);
        of(self.holds.capacity(), SLOT_BYTES) + of(keys, KEY_BYTES)
    }
}

// === impl Hold ===

impl Hold {
    /// What a request holds after a further start. Tokens of a window that is over, and those of
    /// another count, cannot come back together with the new ones: they stay spent.
    fn and(self, newer: Self) -> Self {
        let is_of_one_count = self.key == newer.key && self.limit.store == newer.limit.store;
        let is_windowed = counting(newer.limit).is_windowed;
        let is_of_one_window = !is_windowed || self.taken.epoch == newer.taken.epoch;
        let (taken, alone) = match (self.taken.tokens, newer.taken.tokens) {
            _ if !is_of_one_count => (newer.taken, newer.alone),
            (_, 0) => (self.taken, self.alone.saturating_add(newer.alone)),
            (0, _) => (newer.taken, self.alone.saturating_add(newer.alone)),
            _ if !is_of_one_window => (newer.taken, newer.alone),
            _ => (self.taken.merged(newer.taken), self.alone.saturating_add(newer.alone)),
        };
        let hits = match self.displaced_by(&newer) {
            Some(_) => newer.hits,
            None => self.hits.saturating_add(newer.hits),
        };
        let starts = self.starts.saturating_add(newer.starts);
        Self { hits, taken, alone, ends: self.ends.max(newer.ends), starts, ..newer }
    }

    /// The share of one of its starts, and what the others hold.
    fn shared(self) -> (Self, Option<Self>) {
        let starts = u64::from(self.starts);
        if starts <= 1 {
            return (self, None);
        }
        let of = |all: u64| all / starts;
        let taken = LeasedTokens { tokens: of(self.taken.tokens), ..self.taken };
        let share = Self { hits: of(self.hits), taken, alone: of(self.alone), starts: 1, ..self };
        let rest = Self {
            hits: self.hits - share.hits,
            taken: LeasedTokens { tokens: self.taken.tokens - taken.tokens, ..self.taken },
            alone: self.alone - share.alone,
            starts: self.starts - 1,
            ..self
        };
        (share, Some(rest))
    }

    fn is_of_slots(&self) -> bool {
        !self.limit.algorithm.has_window()
    }

    /// The slots of this hold that [`Hold::and`] leaves out: the caller has to give them back.
    fn displaced_by(&self, newer: &Self) -> Option<Unspent> {
        let is_of_one_count = self.key == newer.key && self.limit.store == newer.limit.store;
        (self.is_of_slots() && !is_of_one_count).then(|| self.unspent(self.hits))
    }

    /// What is given back if the request did not use so many hits.
    fn unspent(&self, unused: u64) -> Unspent {
        let Self { key, limit, taken, carry_debt, .. } = *self;
        let tokens = taken.tokens.min(unused);
        let alone = self.alone.min(unused - tokens);
        Unspent { key, limit, tokens: LeasedTokens { tokens, ..taken }, alone, carry_debt }
    }
}

// === impl Unspent ===

impl Unspent {
    /// The ask that returns the tokens, however long ago they were leased: their request has ended
    /// only now. The store ignores those of a window that is over.
    pub fn returned(&self) -> Ask {
        let Self { key, limit, tokens: LeasedTokens { tokens, epoch, .. }, carry_debt, .. } = *self;
        let back = Some(Return { tokens, epoch: Some(epoch) });
        let ttl = Duration::MAX;
        Ask { back, ttl, carry_debt, purpose: Purpose::Return, ..Ask::look(key, limit) }
    }

    /// Adds what another request did not use of the same count, if it can go back with this.
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

#[cfg(test)]
mod tests;
