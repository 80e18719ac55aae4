//! The store of all pods, in virtual time, and everything that is known of what it did.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::{Mutex, MutexGuard};
use ratelease::key::Key;
use ratelease::rules::Algorithm;
use ratelease::store::memory::MemoryStore;
use ratelease::store::{Ask, Beat, Beaten, Grant, Store, StoreError};
use ratelease::time::{Clock, Time};

use crate::book::{self, Book, Failover, Step};
use crate::plan::{FailoverPlan, Plan, Tamper};
use crate::purse::{Lot, Purse};
use crate::trace::Trace;

/// What all pods of a run share.
pub struct World {
    pub plan: Plan,
    pub clock: Clock,
    state: Mutex<State>,
}

/// What is known of a run.
pub struct State {
    memory: Arc<MemoryStore>,
    /// What the memory store reads as its wall clock.
    wall_us: Arc<AtomicU64>,
    /// What the store's clock shows when the run begins; failovers change it.
    wall_start_us: u64,
    /// Every ask that the store took, to be played again after a failover.
    journal: Vec<Entry>,
    books: HashMap<Key, Box<dyn Book>>,
    purses: HashMap<(u64, Key), Purse>,
    /// What a request waits for a lease at most.
    patience: Duration,
    pub trace: Trace,
    /// Asks that were taken at this instant.
    busy: (Time, u64),
    /// The first thing that went wrong.
    wrong: Option<Wrong>,
}

/// What went wrong in a run, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub what: String,
    pub at: Duration,
}

/// Asks of all pods at one instant at most: far more than there are requests.
const ASKS_MAX: u64 = 5_000;

#[derive(Clone, Copy)]
struct Entry {
    at: Time,
    wall_us: u64,
    ask: Ask,
}

// === impl World ===

impl World {
    /// To be called within the run's runtime, whose clock it follows.
    pub fn new(plan: Plan) -> Arc<Self> {
        let wall_us = Arc::new(AtomicU64::new(plan.wall_start_us));
        let state = State {
            memory: memory(&wall_us, plan.store_keys_max),
            wall_us,
            wall_start_us: plan.wall_start_us,
            journal: Vec::new(),
            books: HashMap::new(),
            purses: HashMap::new(),
            patience: plan.max_wait,
            trace: Trace::default(),
            busy: (Time::default(), 0),
            wrong: None,
        };
        Arc::new(Self { plan, clock: Clock::start(), state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Milliseconds since the run began.
    pub fn millis(&self) -> u64 {
        self.now().nanos() / 1_000_000
    }

    /// The store takes `ask`, now.
    pub fn take(&self, ask: &Ask) -> Result<Grant, StoreError> {
        let now = self.now();
        let mut state = self.state();
        state.note_busy(now);
        let wall_us = state.wall_at(now);
        let entry = Entry { at: now, wall_us, ask: *ask };
        let outcome = state.play(&self.lax(entry));
        state.trace.note(now, &(ask.counter().bits(), ask.want, ask.need, wall_us));
        tell(&self.plan, now, || story(ask, &outcome));
        let Ok(grant) = outcome else { return outcome };
        state.journal.push(entry);
        let step = Step { at: now, wall_us, ask: *ask, grant };
        state.trace.note(now, &(grant.tokens, grant.left, grant.ends_after));
        let kept = book::check_contract(&step).and_then(|()| {
            state.books.entry(ask.counter()).or_insert_with(|| book::open(ask.limit)).enter(&step)
        });
        if let Err(what) = kept {
            state.fault(now, format!("the store: {what} (by {ask:?}, {grant:?})"));
        }
        let keys = state.memory.keys();
        if keys > self.plan.store_keys_max {
            state.fault(now, format!("the store holds {keys} keys"));
        }
        Ok(grant)
    }

    /// What a store that lends too much makes of an ask; only there to be caught.
    fn lax(&self, entry: Entry) -> Entry {
        let mut entry = entry;
        if self.plan.tamper == Some(Tamper::LendsTooMuch) {
            entry.ask.limit.requests_per_unit += entry.ask.limit.requests_per_unit / 2 + 1;
        }
        entry
    }

    /// Credits what `ask` gave back once more, against the store's contract; only there to be
    /// caught.
    pub fn credit_again(&self, ask: &Ask) {
        let now = self.now();
        let mut state = self.state();
        let ask = Ask { back: ask.back, ..Ask::look(ask.key, ask.limit) };
        let wall_us = state.wall_at(now);
        let _ = state.play(&Entry { at: now, wall_us, ask });
    }

    /// The store's number of living pods.
    pub fn beat(&self, beat: Beat) -> Result<u32, StoreError> {
        let memory = {
            let mut state = self.state();
            let now = self.now();
            state.set_wall(now);
            Arc::clone(&state.memory)
        };
        let beaten: Beaten<'_> = memory.beat(beat);
        beaten.now_or_never().unwrap()
    }

    /// The store fails over to a replica that lacks the last steps and has a clock of its own.
    pub fn fail_over(&self, plan: &FailoverPlan) {
        let now = self.now();
        let mut state = self.state();
        let kept_until = Time::from_nanos(now.nanos().saturating_sub(plan.lost_ms * 1_000_000));
        let before = state.wall_at(now);
        state.memory = memory(&state.wall_us, self.plan.store_keys_max);
        state.journal.retain(|entry| entry.at <= kept_until);
        for at in 0..state.journal.len() {
            let entry = state.journal[at];
            // Known to succeed, as it did before.
            let _ = state.play(&entry);
        }
        state.wall_start_us = state.wall_start_us.checked_add_signed(plan.jump_us).unwrap();
        let failover = Failover { kept_until, wall_us: (before, state.wall_at(now)) };
        state.books.values_mut().for_each(|book| book.fail_over(&failover));
        state.trace.note(now, &("failover", plan.lost_ms, plan.jump_us));
    }

    /// Whether since `since` the store's clock, which was set back, had yet to come to where it
    /// was: pods hold word of windows that are not there yet, and believe no other.
    pub fn ran_back(&self, since: Time) -> bool {
        let (since_us, now_us) = (since.nanos() / 1_000, self.now().nanos() / 1_000);
        self.plan.failovers.iter().any(|(at_ms, failover)| {
            let at_us = at_ms * 1_000;
            let span_us = u64::try_from(-failover.jump_us).unwrap_or(0) + 1;
            at_us <= now_us && since_us < at_us + span_us
        })
    }

    /// Notes that something went wrong now.
    pub fn fault(&self, what: String) {
        let now = self.now();
        self.state().fault(now, what);
    }
}

/// Prints what happens, where a story was asked for.
pub fn tell(plan: &Plan, now: Time, what: impl FnOnce() -> String) {
    if plan.tells_story {
        println!("{:>9.3} ms  {}", now.since(Time::default()).as_secs_f64() * 1_000.0, what());
    }
}

fn story(ask: &Ask, outcome: &Result<Grant, StoreError>) -> String {
    let Ask { want, need, back, .. } = ask;
    let back = back.map_or_else(String::new, |back| format!(" gives back {}", back.tokens));
    let key = ask.counter().bits() % 1_000;
    match outcome {
        Ok(Grant { tokens, left, .. }) => {
            format!("store: {key} wants {want}, needs {need}{back}: lends {tokens}, has {left}")
        }
        Err(error) => format!("store: {key} wants {want}, needs {need}{back}: {error}"),
    }
}

fn memory(wall_us: &Arc<AtomicU64>, keys_max: usize) -> Arc<MemoryStore> {
    let wall_us = Arc::clone(wall_us);
    let clock = Arc::new(move || Duration::from_micros(wall_us.load(Ordering::Relaxed)));
    Arc::new(MemoryStore::new(clock, keys_max))
}

// === impl State ===

impl State {
    /// What the store's clock shows at `now`, in microseconds since the Unix epoch.
    pub fn wall_at(&self, now: Time) -> u64 {
        self.wall_start_us + now.nanos() / 1_000
    }

    fn set_wall(&mut self, now: Time) {
        self.wall_us.store(self.wall_at(now), Ordering::Relaxed);
    }

    /// Where a round trip takes no time, asking on and on keeps time from passing.
    fn note_busy(&mut self, now: Time) {
        let (at, asks) = self.busy;
        self.busy = if at == now { (at, asks + 1) } else { (now, 1) };
        if self.busy.1 > ASKS_MAX {
            self.fault(now, format!("more than {ASKS_MAX} asks at one instant"));
        }
    }

    fn play(&mut self, entry: &Entry) -> Result<Grant, StoreError> {
        self.wall_us.store(entry.wall_us, Ordering::Relaxed);
        let replies = self.memory.exchange(std::slice::from_ref(&entry.ask)).now_or_never();
        replies.and_then(|mut replies| replies.pop()).unwrap()
    }

    pub fn purse(&mut self, pod: u64, key: Key) -> &mut Purse {
        self.purses.entry((pod, key)).or_default()
    }

    /// `pod` is told of what the store lent by `ask`, taken at `taken_at`.
    pub fn deliver(&mut self, pod: u64, ask: &Ask, grant: &Grant, taken_at: Time, now: Time) {
        // A slot may be taken as late as a request may wait for it.
        let grace = match ask.limit.algorithm {
            Algorithm::LeakyBucket { .. } => self.patience.max(Duration::from_millis(1)),
            _ => Duration::ZERO,
        };
        let until = taken_at + grant.ends_after + grace;
        let Grant { epoch, tokens, .. } = *grant;
        let lot = Lot { epoch, refunded: None, tokens, until };
        let is_windowed = ask.limit.algorithm == Algorithm::FixedWindow && ask.ttl == Duration::MAX;
        self.purse(pod, ask.key).lend(lot, is_windowed, now);
    }

    /// Keys of which `pod` has tokens of leases that have not ended, by the ends of their names in
    /// a story, and how many.
    pub fn live_of(&self, pod: u64, now: Time) -> Vec<(u64, u64)> {
        let of_pod = self.purses.iter().filter(|((of, _), _)| *of == pod);
        let live = of_pod.map(|((_, key), purse)| (key.bits() % 1_000, purse.live(now)));
        live.filter(|(_, live)| *live > 0).collect()
    }

    /// Tokens by which failovers let some bound be exceeded.
    pub fn excused(&self) -> u64 {
        self.books.values().map(|book| book.excused()).sum()
    }

    pub fn fault(&mut self, now: Time, what: String) {
        let at = now.since(Time::default());
        self.wrong.get_or_insert(Wrong { what, at });
    }

    pub fn wrong(&self) -> Option<&Wrong> {
        self.wrong.as_ref()
    }
}
