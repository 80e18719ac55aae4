//! The state of a run: the masters' counts, the books on them, and the tokens that each pod holds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_engine::algorithm::{Token, counting};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, Grant, Return, StoreError};
use ratelease_engine::time::Time;
use ratelease_rules::key::Key;

use super::flow::{Flow, Heard};
use crate::book::{self, Book, Failover, Step};
use crate::plan::Plan;
use crate::purse::{Lot, Purse};
use crate::rule::case_of;
use crate::trace::Trace;

/// The state of a run.
pub struct State {
    /// The masters.
    memories: Vec<Arc<MemoryStore>>,
    /// The wall clock that the master that is being asked reads.
    wall_us: Arc<AtomicU64>,
    /// The first master's clock when the run begins; failovers change it.
    wall_start_us: u64,
    skews_us: Vec<u64>,
    /// When each master will have served the asks that reached it.
    served: Vec<Time>,
    /// Every ask that the store took, to be replayed after a failover.
    journal: Vec<Entry>,
    /// The books, by count and by its pools.
    books: HashMap<(Key, Option<u8>), Box<dyn Book>>,
    purses: HashMap<(u64, Key), Purse>,
    /// Keys that requests have charged. All others are overflow keys.
    own_keys: HashSet<Key>,
    /// Hits that requests have refunded at each pod, less the refunds that overflow keys have used.
    /// Where a table is full, a refund goes to an overflow key, which is not known before the
    /// answer.
    refunded: HashMap<u64, u64>,
    pub flows: HashMap<Key, Flow>,
    heard: HashMap<u64, Heard>,
    /// Costs that settlements have charged at each pod and key beyond the hits held, and the part
    /// of them of which the pod knows that the store has counted it.
    reports: HashMap<(u64, Key), (u64, u64)>,
    /// Maximum wait of a request for a lease.
    patience: Duration,
    pub trace: Trace,
    /// Maximum wait of an ask for a busy master.
    pub backlog: Duration,
    /// Asks taken in each millisecond of the run.
    pub asks: Vec<u32>,
    /// The first failure.
    wrong: Option<Wrong>,
}

/// A failure of a run, and its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    pub what: String,
    pub at: Duration,
}

/// Maximum asks of one pod in a millisecond: far above the number of requests.
const ASKS_MAX: u32 = 5_000;

/// A step to be replayed.
#[derive(Clone, Copy)]
pub struct Entry {
    pub at: Time,
    pub wall_us: u64,
    pub shard: usize,
    pub ask: Ask,
}

// === impl Wrong ===

impl Wrong {
    /// The kind of a failure: its first words, without numbers.
    pub fn kind(&self) -> String {
        let words = self.what.split(|c: char| !c.is_alphabetic()).filter(|word| word.len() > 2);
        words.take(9).collect::<Vec<_>>().join(" ")
    }
}

// === impl State ===

impl State {
    pub fn new(plan: &Plan) -> Self {
        let wall_us = Arc::new(AtomicU64::new(plan.wall_start_us));
        let shards = usize::try_from(plan.shards).unwrap();
        Self {
            memories: memories(&wall_us, plan),
            wall_us,
            wall_start_us: plan.wall_start_us,
            skews_us: (0..shards).map(|shard| plan.skew_us(shard)).collect(),
            served: vec![Time::default(); shards],
            journal: Vec::new(),
            books: HashMap::new(),
            purses: HashMap::new(),
            own_keys: HashSet::new(),
            refunded: HashMap::new(),
            flows: HashMap::new(),
            heard: HashMap::new(),
            reports: HashMap::new(),
            patience: plan.patience(plan.demand.caller),
            trace: Trace::default(),
            backlog: Duration::ZERO,
            asks: Vec::new(),
            wrong: None,
        }
    }

    /// A master's clock at `now`, in microseconds since the Unix epoch.
    pub fn wall_at(&self, now: Time, shard: usize) -> u64 {
        let skew_us = self.skews_us.get(shard).copied().unwrap_or(0);
        self.wall_start_us + skew_us + now.nanos() / 1_000
    }

    pub fn first_master(&mut self, now: Time) -> Arc<MemoryStore> {
        self.wall_us.store(self.wall_at(now, 0), Ordering::Relaxed);
        Arc::clone(&self.memories[0])
    }

    /// When the master `shard` has served an ask that reaches it at `now`.
    pub fn queue(&mut self, shard: usize, now: Time, asks_per_ms: u64) -> Time {
        let served = self.served[shard].max(now) + Duration::from_nanos(1_000_000 / asks_per_ms);
        self.served[shard] = served;
        self.backlog = self.backlog.max(served.since(now));
        served
    }

    /// Counts an ask. Where a round trip takes no time, asking repeatedly keeps time from passing.
    pub fn note_ask(&mut self, now: Time) {
        let at = usize::try_from(now.nanos() / 1_000_000).unwrap();
        if self.asks.len() <= at {
            self.asks.resize(at + 1, 0);
        }
        self.asks[at] += 1;
        let pods = u32::try_from(self.heard.len().max(1)).unwrap();
        if self.asks[at] > ASKS_MAX * pods {
            self.fault(now, format!("{} asks in one millisecond", self.asks[at]));
        }
    }

    pub fn play(&mut self, entry: &Entry) -> Result<Grant, StoreError> {
        self.wall_us.store(entry.wall_us, Ordering::Relaxed);
        self.memories[entry.shard].take(&entry.ask)
    }

    /// Credits returned tokens a second time, against the store's contract; a deliberate fault.
    pub fn credit_again(&mut self, entry: &Entry) {
        let Ask { back, key, limit, .. } = entry.ask;
        let ask = Ask { back, ..Ask::look(key, limit) };
        let _ = self.play(&Entry { ask, ..*entry });
    }

    /// Enters a step of the store in its book.
    pub fn enter(&mut self, step: &Step) -> Result<(), String> {
        let Step { ask, .. } = step;
        self.flows.entry(ask.key).or_default().enter(step);
        let open = || match ask.pool {
            None => (case_of(ask.limit).book)(),
            Some(_) => book::open_pool(),
        };
        self.books.entry((ask.counter(), ask.pool)).or_insert_with(open).enter(step)
    }

    /// Keeps a step, to be replayed after a failover.
    pub fn keep(&mut self, entry: Entry) {
        self.journal.push(entry);
    }

    /// Replaces the masters by replicas that have received the steps up to `kept_until`.
    pub fn replay(&mut self, plan: &Plan, kept_until: Time) {
        self.memories = memories(&self.wall_us, plan);
        self.journal.retain(|entry| entry.at <= kept_until);
        for at in 0..self.journal.len() {
            let entry = self.journal[at];
            // This succeeds, as it did before.
            let _ = self.play(&entry);
        }
    }

    pub fn jump(&mut self, jump_us: i64) {
        self.wall_start_us = self.wall_start_us.checked_add_signed(jump_us).unwrap();
    }

    pub fn note_failover(&mut self, failover: &Failover) {
        self.books.values_mut().for_each(|book| book.fail_over(failover));
    }

    pub fn keys(&self) -> usize {
        self.memories.iter().map(|memory| memory.keys()).sum()
    }

    pub fn purse(&mut self, pod: u64, key: Key) -> &mut Purse {
        self.purses.entry((pod, key)).or_default()
    }

    /// Records that a request charges `key`.
    pub fn note_key(&mut self, key: Key) {
        self.own_keys.insert(key);
    }

    /// Records that a request to `pod` gives back `hits` of `key`.
    pub fn refund(&mut self, pod: u64, key: Key, hits: u64, at: Time) {
        *self.refunded.entry(pod).or_default() += hits;
        self.purse(pod, key).refund(hits, at);
    }

    /// Reverts a refund whose request was denied.
    pub fn take_refund_back(&mut self, pod: u64, key: Key, hits: u64) {
        let refunded = self.refunded.entry(pod).or_default();
        *refunded = refunded.saturating_sub(hits);
        self.purse(pod, key).take_refund_back(hits);
    }

    /// Records that tokens leave the purse of `key`, as `pay` does.
    pub fn pay<R>(&mut self, pod: u64, key: Key, pay: impl FnOnce(&mut Purse) -> R) -> R {
        let is_overflow = !self.own_keys.contains(&key);
        let purse = self.purses.entry((pod, key)).or_default();
        let Some(refunded) = self.refunded.get_mut(&pod).filter(|_| is_overflow) else {
            return pay(purse);
        };
        purse.spare = *refunded;
        let paid = pay(purse);
        *refunded = std::mem::take(&mut purse.spare);
        paid
    }

    /// Records the tokens that leave `pod` with `ask`: they return to the count, or go to a pool.
    pub fn note_returns(&mut self, pod: u64, ask: &Ask) -> Result<(), String> {
        if let Some(deposit) = ask.deposit {
            let back = Return { tokens: deposit.tokens, epoch: Some(deposit.epoch) };
            self.pay(pod, ask.key, |purse| purse.give_back(back))?;
        }
        let Some(back) = ask.back else { return Ok(()) };
        self.pay(pod, ask.key, |purse| purse.give_back(back))
    }

    /// Records that an ask was not taken: the pod has the tokens again that it gave back.
    pub fn note_kept(&mut self, pod: u64, ask: &Ask) {
        if let Some(Return { tokens, epoch: Some(epoch) }) = ask.back {
            self.purse(pod, ask.key).keep(tokens, epoch);
        }
        if let Some(deposit) = ask.deposit {
            self.purse(pod, ask.key).keep(deposit.tokens, deposit.epoch);
        }
    }

    /// Records an ask that the store does not take: the tokens in it are lost.
    pub fn note_lost(&mut self, ask: &Ask) {
        let back = ask.back.map_or(0, |back| back.tokens);
        let deposit = ask.deposit.map_or(0, |deposit| deposit.tokens);
        if back + deposit > 0 {
            self.flows.entry(ask.key).or_default().lost += back + deposit;
        }
    }

    /// Records the cost of a settlement at `pod` beyond the hits that were held.
    pub fn note_due(&mut self, pod: u64, key: Key, hits: u64) {
        self.reports.entry((pod, key)).or_default().0 += hits;
    }

    /// Records that `pod` receives the reply to an ask that reports costs: whose reply arrived is
    /// never reported again.
    pub fn note_reported(&mut self, pod: u64, ask: &Ask) -> Result<(), String> {
        let (due, counted) = self.reports.entry((pod, ask.key)).or_default();
        *counted += if ask.next_window { 0 } else { ask.owed };
        if counted > due {
            return Err(format!("reported costs of {counted}, of {due}"));
        }
        Ok(())
    }

    /// Records the number of living pods in a reply.
    pub fn note_heard(&mut self, pod: u64, pods: u32, now: Time) {
        self.heard.entry(pod).or_default().note(pods, now);
    }

    /// The fewest pods that `pod` may assume alive between two times; `expected` before it has
    /// received a number.
    pub fn fewest_pods(&self, pod: u64, from: Time, until: Time, expected: u32) -> u32 {
        self.heard.get(&pod).map_or(expected, |heard| heard.fewest(from, until, expected))
    }

    /// Records that `pod` receives the tokens that the store leased by `ask`, taken at `taken_at`.
    pub fn deliver(&mut self, pod: u64, ask: &Ask, grant: &Grant, taken_at: Time, now: Time) {
        let spaced = counting(ask.limit).token == Token::Slot;
        // A slot may be taken as late as a request may wait for it.
        let grace =
            if spaced { self.patience.max(Duration::from_millis(1)) } else { Duration::ZERO };
        let until = taken_at + grant.ends_after + grace;
        let Grant { epoch, tokens, .. } = *grant;
        let lot = Lot { epoch, refunded: None, tokens, from: taken_at + grant.starts_after, until };
        let of_window = counting(ask.limit).token == Token::OfWindow;
        let is_windowed = of_window && ask.ttl == Duration::MAX;
        self.purse(pod, ask.key).lend(lot, is_windowed, now);
    }

    /// The keys of which `pod` has tokens of live leases, by the ends of their names in a story,
    /// and the number of tokens.
    pub fn live_of(&self, pod: u64, now: Time) -> Vec<(u64, u64)> {
        let of_pod = self.purses.iter().filter(|((of, _), _)| *of == pod);
        let live = of_pod.map(|((_, key), purse)| (key.bits() % 1_000, purse.live(now)));
        live.filter(|(_, live)| *live > 0).collect()
    }

    /// The number of tokens of live leases that pods have.
    pub fn live(&self, now: Time) -> u64 {
        self.purses.values().map(|purse| purse.live(now)).sum()
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

fn memories(wall_us: &Arc<AtomicU64>, plan: &Plan) -> Vec<Arc<MemoryStore>> {
    let shards = usize::try_from(plan.shards).unwrap();
    let keys_max = plan.store_keys_max / shards;
    let memory = || {
        let wall_us = Arc::clone(wall_us);
        let clock = Arc::new(move || Duration::from_micros(wall_us.load(Ordering::Relaxed)));
        Arc::new(MemoryStore::new(clock, keys_max))
    };
    (0..shards).map(|_| memory()).collect()
}
