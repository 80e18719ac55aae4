//! Redis: counts in memory.
//!
//! A count has one state, whatever its name: while a secret is replaced, pods name it by two keys,
//! and the store in Redis moves it from one to the other (`tests/it` tests that).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ratelease_engine::algorithm::{State, step};
use ratelease_engine::order::{Action, Blocked, Note, Order, Ordered};
use ratelease_engine::store::{Ask, Grant, Slots};
use ratelease_engine::time::Clock;
use ratelease_rules::Limit;
use ratelease_rules::key::Key;
use tokio::sync::mpsc;

use super::script::Trouble;

/// The store's clock when a run begins: half a minute into a day, so that no window ends.
pub const UNIX_START: Duration = Duration::from_secs(18_262 * 86_400 + 30);

/// Former states are kept for this long, for failovers.
const PAST_MS: u64 = 3_000;

/// The most that the time of a count of slots runs between two asks.
const SILENCE_MAX_MS: u64 = 2_000;

/// The counts.
pub struct Redis {
    pub clock: Clock,
    tells: bool,
    counts: Mutex<Counts>,
}

/// The count of slots and that of tokens: their keys under the first secret.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    pub slots: (Key, Limit),
    pub tokens: (Key, Limit),
}

pub struct Counts {
    watched: Watched,
    states: BTreeMap<Key, State>,
    /// The first name of each count that has another name too.
    names: BTreeMap<Key, Key>,
    past: VecDeque<(u64, BTreeMap<Key, State>)>,
    pods: BTreeMap<u64, Statement>,
    troubles: Vec<Stretch>,
    followers: BTreeMap<u64, mpsc::UnboundedSender<Ordered>>,
    /// Keys that are blocked, each until this time.
    blocks: BTreeMap<Key, u64>,
    /// Number of resets so far.
    resets: u64,
    /// The time of the count of slots in milliseconds, and when it was last asked.
    key_time: (u64, u64),
    pub flow: Flow,
}

/// Trouble of one place, or of all.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    place: Option<usize>,
    trouble: Trouble,
    from_ms: u64,
    until_ms: u64,
}

/// The last statement of a pod about its slots.
#[derive(Debug, Clone, Copy, Default)]
struct Statement {
    /// The number of the newest ask that was taken.
    newest: u64,
    /// Whether the count is by that ask: no failover, reset or older ask came after it.
    is_known: bool,
    /// When it was taken.
    asked_at: u64,
    /// When the count last ceased to be by that ask.
    unknown_at: u64,
    /// Resets that the pod was ordered, and those that it has followed.
    resets: (u64, u64),
}

/// Tokens on their way.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    /// Tokens leased by the store.
    pub lent: u64,
    /// Leased tokens that were delivered to a pod.
    pub delivered: u64,
    /// Tokens that pods gave back.
    pub sent_back: u64,
    /// Tokens that pods gave back and the store took.
    pub taken_back: u64,
    /// Costs that were reported and counted, by pod.
    pub owed: BTreeMap<u64, u64>,
    /// Costs whose pod does not know that they were counted.
    pub owed_unheard: u64,
    /// Tokens that failovers and resets made the count forget or remember.
    pub forgotten: u64,
    pub remembered: u64,
}

// === impl Redis ===

impl Redis {
    pub fn new(clock: Clock, watched: Watched, tells: bool) -> Arc<Self> {
        let counts = Counts {
            watched,
            states: BTreeMap::new(),
            names: BTreeMap::new(),
            past: VecDeque::new(),
            pods: BTreeMap::new(),
            troubles: Vec::new(),
            followers: BTreeMap::new(),
            blocks: BTreeMap::new(),
            resets: 0,
            key_time: (0, 0),
            flow: Flow::default(),
        };
        Arc::new(Self { clock, tells, counts: Mutex::new(counts) })
    }

    pub fn now_ms(&self) -> u64 {
        self.clock.now().nanos() / 1_000_000
    }

    fn wall_us(&self) -> u64 {
        let us = u64::try_from(UNIX_START.as_micros()).unwrap();
        us + self.clock.now().nanos() / 1_000
    }

    pub fn flow(&self) -> Flow {
        self.counts.lock().flow.clone()
    }

    /// Begins trouble that lasts this long.
    pub fn trouble(&self, place: Option<usize>, trouble: Trouble, lasts_ms: u64) {
        let from_ms = self.now_ms();
        let stretch = Stretch { place, trouble, from_ms, until_ms: from_ms + lasts_ms };
        self.counts.lock().troubles.push(stretch);
    }

    /// When a place last had trouble.
    pub fn troubled_at(&self, place: usize) -> Option<u64> {
        let now = self.now_ms();
        let counts = self.counts.lock();
        let of_place = counts.troubles.iter().filter(|it| it.place.is_none_or(|of| of == place));
        of_place.map(|it| it.until_ms.min(now)).max()
    }

    /// Slots that the store counts for a pod.
    pub fn slots_of(&self, pod: u64) -> u64 {
        let counts = self.counts.lock();
        let all = counts.slots_without(None, self.wall_us());
        all - counts.slots_without(Some(pod), self.wall_us())
    }

    /// Slots that the store counts in all.
    pub fn slots(&self) -> u64 {
        self.counts.lock().slots_without(None, self.wall_us())
    }

    /// Slots that the store counts of another key.
    pub fn slots_by(&self, (key, limit): (Key, Limit)) -> u64 {
        self.counts.lock().slots_without_of((key, limit), None, self.wall_us())
    }

    /// `Ok`: when the pod made the newest ask by which the store counts its slots. `Err`: since
    /// when the count may differ from every ask.
    pub fn knows(&self, pod: u64) -> Result<u64, u64> {
        match self.counts.lock().pods.get(&pod) {
            Some(Statement { is_known: true, asked_at, .. }) => Ok(*asked_at),
            Some(Statement { unknown_at, .. }) => Err(*unknown_at),
            None => Err(0),
        }
    }

    /// Whether a pod has yet to follow an order to reset a key.
    pub fn has_orders(&self, pod: u64) -> bool {
        let counts = self.counts.lock();
        counts.pods.get(&pod).is_some_and(|it| it.resets.0 > it.resets.1)
    }

    /// The time of the count of slots, in milliseconds.
    pub fn key_time_ms(&self) -> u64 {
        let (time, asked) = self.counts.lock().key_time;
        time + self.now_ms().saturating_sub(asked).min(SILENCE_MAX_MS)
    }

    /// Tokens that the store has counted.
    pub fn tokens(&self) -> u64 {
        self.counts.lock().tokens(self.wall_us())
    }

    /// Fails over to a replica that lacks the last steps.
    pub fn fail_over(&self, lost_ms: u64) {
        let now = self.now_ms();
        let wall_us = self.wall_us();
        let mut counts = self.counts.lock();
        let before = counts.tokens(wall_us);
        let kept = now.saturating_sub(lost_ms);
        let at = counts.past.partition_point(|(at, _)| *at <= kept);
        counts.states = match at.checked_sub(1).and_then(|at| counts.past.get(at)) {
            Some((_, states)) => states.clone(),
            None if counts.past.front().is_none_or(|(at, _)| *at > PAST_MS) => {
                counts.states.clone()
            }
            None => BTreeMap::new(),
        };
        counts.past.truncate(at);
        counts.forget_statements(now);
        let after = counts.tokens(wall_us);
        counts.flow.forgotten += before.saturating_sub(after);
        counts.flow.remembered += after.saturating_sub(before);
    }

    /// Deletes a count, and orders all pods to forget it, as `ratectl key reset` does.
    pub fn reset(&self, keys: &[Key]) {
        let now = self.now_ms();
        let wall_us = self.wall_us();
        let mut counts = self.counts.lock();
        let before = counts.tokens(wall_us);
        for key in keys {
            let name = counts.name(*key);
            counts.states.remove(&name);
        }
        let after = counts.tokens(wall_us);
        counts.flow.forgotten += before - after;
        counts.resets += 1;
        counts.forget_statements(now);
        for key in keys {
            counts.tell(&Ordered::Now(*key, Order::new(Action::Reset, "")));
        }
    }

    /// Blocks a key for this long.
    pub fn block(&self, keys: &[Key], lasts_ms: u64) {
        let until = self.now_ms() + lasts_ms;
        let mut counts = self.counts.lock();
        for key in keys {
            counts.blocks.insert(*key, until);
            let lasts = Duration::from_millis(lasts_ms);
            counts.tell(&Ordered::Now(*key, Order::new(Action::Block(lasts), "")));
        }
    }

    /// Takes an ask, the `nth` of this pod.
    pub fn take(&self, pod: u64, nth: u64, ask: &Ask) -> Grant {
        let (now, wall_us) = (self.now_ms(), self.wall_us());
        let mut counts = self.counts.lock();
        let grant = counts.take(pod, nth, ask, now, wall_us);
        if self.tells {
            println!("{now:>7} ms      {}", counts.story(pod, ask, &grant));
        }
        grant
    }

    pub fn trouble_of(&self, place: usize) -> Option<Trouble> {
        let now = self.now_ms();
        let counts = self.counts.lock();
        let strikes = |it: &&Stretch| {
            it.place.is_none_or(|of| of == place) && (it.from_ms..it.until_ms).contains(&now)
        };
        counts.troubles.iter().rev().find(strikes).map(|it| it.trouble)
    }
}

// === What links tell ===

impl Redis {
    /// Notes that a pod sends an ask. Returns whether it is of the watched tokens.
    pub fn note_sent(&self, ask: &Ask) -> bool {
        let mut counts = self.counts.lock();
        let is_of_tokens = counts.name(ask.key) == counts.watched.tokens.0
            || ask.previous.is_some_and(|it| counts.name(it) == counts.watched.tokens.0);
        if is_of_tokens {
            counts.flow.sent_back += ask.back.map_or(0, |back| back.tokens);
            counts.flow.owed_unheard += ask.owed;
        }
        is_of_tokens
    }

    /// Number of resets so far.
    pub fn resets(&self) -> u64 {
        self.counts.lock().resets
    }

    /// Notes that the reply to an ask of the watched tokens has reached its pod. `resets` is the
    /// number of resets when the ask was sent. If a key was reset since then, the pod may drop the
    /// leased tokens, which stay counted.
    pub fn note_heard(&self, ask: &Ask, grant: &Grant, resets: u64) {
        let mut counts = self.counts.lock();
        let is_dropped = counts.resets > resets;
        let flow = &mut counts.flow;
        flow.delivered += grant.tokens;
        flow.owed_unheard -= ask.owed;
        flow.remembered += if is_dropped { grant.tokens } else { 0 };
    }

    /// The orders for a pod from now on.
    pub fn follow(&self, pod: u64) -> mpsc::UnboundedReceiver<Ordered> {
        let now = self.now_ms();
        self.counts.lock().follow(pod, now)
    }

    /// Notes that a pod has followed an order.
    pub fn note_followed(&self, pod: u64, is_reset: bool) {
        let mut counts = self.counts.lock();
        counts.pods.entry(pod).or_default().resets.1 += u64::from(is_reset);
    }
}

// === impl Counts ===

impl Counts {
    fn name(&self, key: Key) -> Key {
        self.names.get(&key).copied().unwrap_or(key)
    }

    fn take(&mut self, pod: u64, nth: u64, ask: &Ask, now: u64, wall_us: u64) -> Grant {
        if let Some(previous) = ask.previous {
            let first = self.name(previous);
            self.names.insert(ask.key, first);
        }
        let name = self.name(ask.key);
        let (state, grant) = step(self.states.remove(&name), wall_us, ask);
        self.states.insert(name, state);
        if name == self.watched.slots.0 {
            self.note_statement(pod, nth, now);
        }
        if name == self.watched.tokens.0 {
            self.flow.lent += grant.tokens;
            self.flow.taken_back += ask.back.map_or(0, |back| back.tokens);
            *self.flow.owed.entry(pod).or_default() += ask.owed;
        }
        let kept = self.past.partition_point(|(at, _)| at + PAST_MS < now);
        self.past.drain(..kept);
        self.past.push_back((now, self.states.clone()));
        grant
    }

    fn story(&self, pod: u64, ask: &Ask, grant: &Grant) -> String {
        let Ask { want, need, owed, back, slots, limit, .. } = ask;
        let (name, limit) = (self.name(ask.key), limit.requests_per_unit);
        let what = match name {
            _ if name == self.watched.slots.0 => "slots",
            _ if name == self.watched.tokens.0 => "tokens",
            _ => "another key",
        };
        let back = back.map_or(0, |back| back.tokens);
        let held = slots.map_or(0, |slots| slots.held);
        let asked = format!("pod {pod} asks for {want} {what} of {limit}, needs {need}");
        let Grant { tokens, left, .. } = grant;
        format!("{asked}, has {held}, owes {owed}, gives back {back}: {tokens}, {left} left")
    }

    fn note_statement(&mut self, pod: u64, nth: u64, now: u64) {
        let (time, asked) = self.key_time;
        self.key_time = (time + now.saturating_sub(asked).min(SILENCE_MAX_MS), now);
        let statement = self.pods.entry(pod).or_default();
        if nth > statement.newest {
            (statement.newest, statement.is_known, statement.asked_at) = (nth, true, now);
        } else {
            (statement.is_known, statement.unknown_at) = (false, now);
        }
    }

    fn forget_statements(&mut self, now: u64) {
        for statement in self.pods.values_mut() {
            (statement.is_known, statement.unknown_at) = (false, now);
        }
    }

    /// The slots of all pods, or of all but one.
    fn slots_without(&self, pod: Option<u64>, wall_us: u64) -> u64 {
        self.slots_without_of(self.watched.slots, pod, wall_us)
    }

    fn slots_without_of(&self, (key, limit): (Key, Limit), pod: Option<u64>, wall_us: u64) -> u64 {
        let key = self.name(key);
        let limit = Limit { requests_per_unit: u64::from(u32::MAX), ..limit };
        // An ask whose number is not after the pod's last one counts the pod's slots: one of these
        // is.
        let counted = [0, 1 << 31].map(|order| {
            let slots = pod.map(|pod| Slots { pod, held: 0, order, since: order, received: 0 });
            let look = Ask { slots, ..Ask::look(key, limit) };
            let (_, grant) = step(self.states.get(&key).cloned(), wall_us, &look);
            limit.requests_per_unit - grant.left
        });
        counted[0].min(counted[1])
    }

    fn tokens(&self, wall_us: u64) -> u64 {
        let (key, limit) = self.watched.tokens;
        let limit = Limit { requests_per_unit: 1 << 50, ..limit };
        let (_, grant) = step(self.states.get(&key).cloned(), wall_us, &Ask::look(key, limit));
        limit.requests_per_unit - grant.left
    }

    fn tell(&mut self, ordered: &Ordered) {
        self.followers.retain(|_, follower| follower.send(ordered.clone()).is_ok());
        if is_reset(ordered) {
            for pod in self.followers.keys() {
                self.pods.entry(*pod).or_default().resets.0 += 1;
            }
        }
    }

    /// Registers a pod that follows orders; it learns first which keys are blocked.
    fn follow(&mut self, pod: u64, now: u64) -> mpsc::UnboundedReceiver<Ordered> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let lasts = |until: u64| Duration::from_millis(until - now);
        let blocked = |(key, until): (&Key, &u64)| Blocked {
            key: *key,
            lasts: lasts(*until),
            note: Note::default(),
        };
        let blocked = self.blocks.iter().filter(|(_, until)| **until > now).map(blocked).collect();
        // The receiver is here.
        let _ = sender.send(Ordered::Blocked(blocked));
        self.followers.insert(pod, sender);
        receiver
    }
}

pub fn is_reset(ordered: &Ordered) -> bool {
    matches!(ordered, Ordered::Now(_, Order { action: Action::Reset, .. }))
}
