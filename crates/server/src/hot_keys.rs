//! Finds the hottest keys: those requested, and denied, most often in the last one to two minutes,
//! overall and for each busy rule.
//!
//! A sample of the decisions, one in [`Options::sample`] on average, is counted in one of eight
//! stripes: in a [`Sketch`] of all keys, and in a sketch of its rule if the rule is among the
//! [`RULES_MAX`] busiest. Each thread has its own stripe; more than eight threads share stripes.
//! The stripes are merged when they are read. Counts cover the last one to two minutes: every
//! minute ([`PERIOD`]) the current counts become the previous ones, and the previous ones are
//! dropped. Memory never exceeds [`HotKeys::bytes_max`].
//!
//! # Accuracy
//!
//! Since keys are sampled, the count of a key that was requested f times has a standard deviation
//! of √(f · (sample − 1)): 170 for 10 000 requests at the default of 4. The count also misses
//! requests from before the key had a counter in a stripe, or its rule had a sketch: on average
//! about as many as the smallest counter of its set had then, or the rule of the lowest rank. A key
//! that is hot all the time gets its counter while counts are small, and loses next to nothing.
//! Apart from sampling, no count is too high. Samples that find every stripe locked are dropped.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt;
use std::fmt::Write;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use ratelease_cli::settings::HotKeys as Options;
use ratelease_engine::sketch::{Frequent, Sketch, WAYS};
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::{Code, Decision, OVERRIDE};
use ratelease_engine::{rng, striped};
use ratelease_rules::Rule;
use ratelease_rules::alters_display;
use ratelease_rules::key::Key;
use ratelease_rules::request::Descriptor;

/// After this time counts become the previous ones, and after twice this time they are dropped.
pub const PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of bytes kept of an entry's text, with [`Options::values`].
pub const TEXT_BYTES_MAX: usize = 128;

/// Number of separate sets of sketches; threads beyond this number share them.
const STRIPES: usize = 8;

/// Counts keys. A cheap handle: clones share all state. The default counts nothing.
#[derive(Clone, Default)]
pub struct HotKeys {
    shared: Option<Arc<Shared>>,
}

/// The hottest keys, hottest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct HottestKeys {
    /// By requests.
    pub requested: Vec<HotKey>,
    /// By requests that were over the limit.
    pub denied: Vec<HotKey>,
}

/// A hot key.
#[derive(Debug, Clone, PartialEq)]
pub struct HotKey {
    /// The key's hash, as in the name of its count in Redis.
    pub key: String,
    /// Path of the rule that limits it, or [`OVERRIDE`].
    pub rule: String,
    /// The domain of that rule; `None` for an override.
    pub domain: Option<String>,
    /// Requests, or denials, in the last one to two minutes, estimated from the sample.
    pub count: u64,
    /// Share of this count in all requests, or denials, of that time, or in those of the rule: 0 to
    /// 1.
    pub share: f64,
    /// The entries as `key=value, key=value`, truncated and with control characters escaped; `None`
    /// without [`Options::values`].
    pub values: Option<String>,
}

/// The hottest keys of a rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RuleHotKeys {
    /// The rule's path, or [`OVERRIDE`].
    pub rule: String,
    /// The rule's requests in the last one to two minutes, from when it got a sketch, estimated
    /// from the sample; 0 if it is not among the rules that are requested most.
    pub requests: u64,
    /// The rule's denials, counted likewise; 0 if it is not among the rules that deny most.
    pub denials: u64,
    /// The rule's keys; their shares are of these requests and denials.
    pub top: HottestKeys,
}

/// The parts of a decision on one descriptor that are counted.
struct CountedKey<'a, 'q> {
    key: Key,
    /// The rule that limits the descriptor; `None` for an override.
    rule: Option<&'a Arc<Rule>>,
    /// Hash of the rule's path, which stays the same when rules are reloaded. It stands for the
    /// path, since there are far too few rules for two hashes to collide.
    rule_hash: u64,
    descriptor: &'a Descriptor<'q>,
}

struct Shared {
    options: Options,
    clock: Clock,
    hasher: RandomState,
    stripes: [Stripe; STRIPES],
}

/// Has its cache lines to itself (two, since processors fetch them in pairs).
#[repr(align(128))]
struct Stripe(Mutex<Periods>);

/// The counts of two periods, current and previous.
struct Periods {
    /// Number of the current period, counted from the clock's start.
    number: u64,
    current: Period,
    previous: Period,
}

struct Period {
    requested: TopKeys,
    denied: TopKeys,
}

// === impl HotKeys ===

impl HotKeys {
    /// Counts by `clock`, which must be the clock of [`Decision::now`].
    pub fn new(options: Options, clock: Clock) -> Self {
        let stripes = std::array::from_fn(|_| Stripe(Mutex::new(Periods::new(options.values))));
        let hasher = RandomState::default();
        Self { shared: Some(Arc::new(Shared { options, clock, hasher, stripes })) }
    }

    /// Upper bound of the memory in bytes: 1.3 MiB, and 7.2 MiB with texts. This assumes eight
    /// threads and [`RULES_MAX`] rules that are requested and denied; a rule's sketch is made when
    /// a stripe first needs it.
    pub const fn bytes_max(texts: bool) -> usize {
        // Requests and denials, in each of two periods.
        STRIPES * (size_of::<Stripe>() + 4 * TopKeys::bytes_max(texts))
    }

    /// The `n` hottest keys of all rules.
    pub fn top(&self, n: usize) -> HottestKeys {
        let Some(shared) = self.shared.as_deref() else { return HottestKeys::default() };
        let mut requested = MergedKeys::default();
        let mut denied = MergedKeys::default();
        shared.read(|period| {
            requested.add_all(&period.requested);
            denied.add_all(&period.denied);
        });
        let sample = shared.options.sample;
        HottestKeys { requested: requested.hottest(n, sample), denied: denied.hottest(n, sample) }
    }

    /// The `n` hottest keys of each of the busiest rules, busiest rule first; at most twice
    /// [`RULES_MAX`] rules.
    pub fn by_rule(&self, n: usize) -> Vec<RuleHotKeys> {
        let Some(shared) = self.shared.as_deref() else { return Vec::new() };
        let mut rules = MergedRules::default();
        shared.read(|period| rules.add(&period.requested, &period.denied));
        rules.hottest(n, shared.options.sample)
    }

    /// Counts a decision, if it is sampled.
    pub fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Some(shared) = self.shared.as_deref() else { return };
        if is_due(shared.options.sample) {
            shared.note(decision);
        }
    }
}

impl fmt::Debug for HotKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HotKeys").field(&self.shared.as_ref().map(|shared| shared.options)).finish()
    }
}

// === impl Shared ===

impl Shared {
    /// Not inlined: most decisions are not sampled.
    #[cold]
    #[inline(never)]
    fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Some(mut periods) = self.free_stripe() else { return };
        periods.advance(decision.now);
        let Period { requested, denied } = &mut periods.current;
        let request = decision.request;
        for (descriptor, status) in request.descriptors.iter().zip(&decision.verdict.statuses) {
            let Some(trace) = status.counted else { continue };
            let rule = status.limit.and_then(|applied| applied.rule);
            let path = rule.map_or(OVERRIDE, |rule| &rule.path);
            let rule_hash = self.hasher.hash_one(path);
            let counted = CountedKey { key: trace.key, rule, rule_hash, descriptor };
            requested.note(&counted);
            if status.code == Code::OverLimit {
                denied.note(&counted);
            }
        }
    }

    /// Locks this thread's stripe, or the next free one: a request never waits for a reader, nor
    /// for a thread that shares its stripe and was descheduled.
    fn free_stripe(&self) -> Option<MutexGuard<'_, Periods>> {
        let from = striped::mine() % STRIPES;
        let (before, from_mine) = self.stripes.split_at(from);
        from_mine.iter().chain(before).find_map(|stripe| stripe.0.try_lock())
    }

    /// Passes the counts of all stripes, of the current and the previous period, to `visit`.
    fn read(&self, mut visit: impl FnMut(&Period)) {
        let now = self.clock.now();
        for Stripe(periods) in &self.stripes {
            let mut periods = periods.lock();
            periods.advance(now);
            visit(&periods.current);
            visit(&periods.previous);
        }
    }
}

// === impl Periods ===

impl Periods {
    fn new(texts: bool) -> Self {
        Self { number: 0, current: Period::new(texts), previous: Period::new(texts) }
    }

    /// Makes the period of `now` the current one, if it is later than the current one.
    fn advance(&mut self, now: Time) {
        // A few nanoseconds make no difference to a period, so `u128` arithmetic is avoided here.
        const PERIOD_NANOS: u64 = PERIOD.as_secs() * 1_000_000_000;
        let number = now.nanos() / PERIOD_NANOS;
        if number <= self.number {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.previous);
        self.current.clear();
        if number > self.number + 1 {
            self.previous.clear();
        }
        self.number = number;
    }
}

// === impl Period ===

impl Period {
    fn new(texts: bool) -> Self {
        Self { requested: TopKeys::new(texts), denied: TopKeys::new(texts) }
    }

    fn clear(&mut self) {
        self.requested.clear();
        self.denied.clear();
    }
}

// Selects the decisions of a thread that are sampled.

thread_local! {
    /// Number of decisions until the next sample, including that one; 0 in a new thread. A
    /// countdown is cheaper than a random number for each decision: most are not sampled.
    static REMAINING: Cell<u32> = const { Cell::new(0) };
}

/// Whether the thread's present decision is sampled, one in `sample` on average.
#[inline]
fn is_due(sample: NonZeroU32) -> bool {
    REMAINING.with(|left| match left.get() {
        more @ 2.. => {
            left.set(more - 1);
            false
        }
        last => restart(left, last, sample),
    })
}

/// Called when the sample is due, or the thread is new.
#[cold]
fn restart(left: &Cell<u32>, last: u32, sample: NonZeroU32) -> bool {
    left.set(gap(sample));
    // The first decision of a thread may itself be sampled.
    last == 1 || is_due(sample)
}

/// A random number from 1 to `2 * sample - 1`, so `sample` on average: a fixed stride could be in
/// phase with traffic that repeats itself.
fn gap(sample: NonZeroU32) -> u32 {
    1 + rng::below(sample.get().saturating_mul(2) - 1)
}

// The counts of one kind, requests or denials: of all keys together, and of each of the busiest
// rules.

/// Number of sets of the sketch of all keys: 256 counters.
const SETS: usize = 32;

/// Counts keys, either of requests or of denials.
struct TopKeys {
    all: Keys,
    /// The rule of the key that has each counter; `None` for overrides.
    rules: Box<[Option<Arc<Rule>>]>,
    by_rule: RuleSketches,
    /// Whether texts are kept.
    texts: bool,
}

// === impl TopKeys ===

impl TopKeys {
    /// Upper bound of the memory of one value in bytes, except for a few words.
    const fn bytes_max(texts: bool) -> usize {
        let rules = SETS * WAYS * size_of::<Option<Arc<Rule>>>();
        Keys::bytes_max(SETS, texts) + rules + RuleSketches::bytes_max(texts)
    }

    fn new(texts: bool) -> Self {
        let all = Keys::new(SETS, texts);
        let rules = vec![None; all.len()].into();
        Self { all, rules, by_rule: RuleSketches::default(), texts }
    }

    fn note(&mut self, counted: &CountedKey<'_, '_>) {
        let taken_over = self.all.note(counted);
        if let Some(rule) = taken_over.and_then(|counter| self.rules.get_mut(counter)) {
            *rule = counted.rule.cloned();
        }
        self.by_rule.note(counted, self.texts);
    }

    fn clear(&mut self) {
        self.all.clear();
        self.rules.fill(None);
        self.by_rule.clear();
    }

    fn all(&self) -> &Keys {
        &self.all
    }

    /// The rule of the key that has this counter in the sketch of all keys.
    fn rule_of(&self, counter: usize) -> Option<&Arc<Rule>> {
        self.rules.get(counter)?.as_ref()
    }

    fn by_rule(&self) -> &RuleSketches {
        &self.by_rule
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.all.bytes() + size_of_val(&*self.rules) + self.by_rule.bytes()
    }
}

// A sketch that also keeps the text of the keys that have a counter.

/// Counts keys, and keeps the text of those that have a counter.
struct Keys {
    sketch: Sketch,
    /// Texts by counter, each of at most [`TEXT_BYTES_MAX`]; empty if texts are not kept.
    texts: Box<[String]>,
}

// === impl Keys ===

impl Keys {
    /// Upper bound of the heap memory in bytes for this many sets.
    const fn bytes_max(sets: usize, texts: bool) -> usize {
        let text = if texts { size_of::<String>() + TEXT_BYTES_MAX } else { 0 };
        Sketch::bytes(sets) + sets * WAYS * text
    }

    fn new(sets: usize, texts: bool) -> Self {
        let sketch = Sketch::new(sets);
        let count = if texts { sketch.len() } else { 0 };
        // Allocated at full capacity: a request allocates nothing.
        let texts = (0..count).map(|_| String::with_capacity(TEXT_BYTES_MAX)).collect();
        Self { sketch, texts }
    }

    fn len(&self) -> usize {
        self.sketch.len()
    }

    /// Number of notes, over all keys.
    fn noted(&self) -> u64 {
        self.sketch.noted()
    }

    /// Counts the key in `counted`. Returns the counter that it has taken over, if it had none.
    ///
    /// A new key takes over the smallest counter, at count c, with probability 1 / (c + 1):
    /// "Randomized Admission Policy for Efficient Top-k and Frequency Estimation" (Ben Basat,
    /// Einziger, Friedman, Kassner: INFOCOM 2017). A frequent key soon gets a counter. Without
    /// this, the many keys that occur once would take one counter after the other, and write a text
    /// each time.
    #[inline]
    fn note(&mut self, counted: &CountedKey<'_, '_>) -> Option<usize> {
        let counter = self.sketch.note_if(counted.key, takes_over)?;
        if let Some(text) = self.texts.get_mut(counter) {
            text.clear();
            write_entries(text, counted.rule.map(|rule| &**rule), counted.descriptor);
        }
        Some(counter)
    }

    /// Clears all counters; a text is replaced when its counter is next taken.
    fn clear(&mut self) {
        self.sketch.clear();
    }

    /// The keys that have a counter, with their text if it is kept.
    fn iter(&self) -> impl Iterator<Item = (Frequent, Option<&str>)> {
        self.sketch.iter().map(|frequent| {
            let text = self.texts.get(frequent.counter);
            (frequent, text.map(String::as_str))
        })
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let texts: usize = self.texts.iter().map(|it| size_of::<String>() + it.capacity()).sum();
        Sketch::bytes(self.sketch.len() / WAYS) + texts
    }
}

/// Whether a newcomer takes over a counter at `counted`; always true for a free one.
fn takes_over(counted: u32) -> bool {
    counted == 0 || rng::below(counted.saturating_add(1)) == 0
}

/// Writes the entries as counted: if a rule shares a count among texts, its pattern appears
/// instead of the value, and nothing instead of the id of a request. Text that does not fit is cut.
fn write_entries(text: &mut String, rule: Option<&Rule>, descriptor: &Descriptor<'_>) {
    let counted = rule.map_or(usize::MAX, |rule| rule.levels.len());
    for (at, entry) in descriptor.entries.iter().enumerate().take(counted) {
        let shared = rule.and_then(|rule| rule.shared_at(at));
        let separator = if at == 0 { "" } else { ", " };
        for part in [separator, entry.key, "=", shared.unwrap_or(entry.value)] {
            let room = TEXT_BYTES_MAX - text.len();
            let end = part.floor_char_boundary(room);
            text.push_str(&part[..end]);
            if end < part.len() {
                return;
            }
        }
    }
}

// Merges the counts of several sketches.

/// Keys of several sketches: at most as many as those have counters.
#[derive(Default)]
struct MergedKeys {
    keys: HashMap<Key, Sum>,
    noted: u64,
}

struct Sum {
    samples: u64,
    rule: Option<Arc<Rule>>,
    text: Option<String>,
}

/// Rules of several [`TopKeys`], by the hash of their path: at most as many as those have sketches.
#[derive(Default)]
struct MergedRules(HashMap<u64, RuleCounts>);

/// The counts of a rule, by kind.
#[derive(Default)]
struct RuleCounts {
    rule: Option<Arc<Rule>>,
    requested: MergedKeys,
    denied: MergedKeys,
}

// === impl MergedKeys ===

impl MergedKeys {
    /// Adds the counts of all `keys`.
    fn add_all(&mut self, keys: &TopKeys) {
        self.add(keys.all(), |counter| keys.rule_of(counter));
    }

    /// Adds the guaranteed counts.
    fn add<'a>(&mut self, keys: &Keys, rule_of: impl Fn(usize) -> Option<&'a Arc<Rule>>) {
        self.noted += keys.noted();
        for (frequent, text) in keys.iter() {
            let sum = self.keys.entry(frequent.key).or_insert_with(|| Sum {
                samples: 0,
                rule: rule_of(frequent.counter).cloned(),
                text: text.map(str::to_owned),
            });
            sum.samples += u64::from(frequent.at_least);
        }
    }

    /// The `n` keys with the highest counts; each sample stands for `sample` decisions.
    fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<HotKey> {
        let mut keys: Vec<_> = self.keys.iter().collect();
        // Keys with equal counts are sorted by key, so that their order is the same each time.
        keys.sort_unstable_by_key(|(key, sum)| (Reverse(sum.samples), **key));
        let hot = |(key, sum): (&Key, &Sum)| HotKey {
            key: key.to_string(),
            rule: path(sum.rule.as_ref()).to_owned(),
            domain: sum.rule.as_ref().and_then(|rule| rule.domain()).map(str::to_owned),
            count: sum.samples * u64::from(sample.get()),
            share: sum.samples as f64 / self.noted.max(1) as f64,
            values: sum.text.as_deref().map(shown),
        };
        keys.into_iter().take(n).map(hot).collect()
    }
}

// === impl MergedRules ===

impl MergedRules {
    /// Adds the counts of rules that have a sketch.
    fn add(&mut self, requested: &TopKeys, denied: &TopKeys) {
        let requested = requested.by_rule().iter().map(|sketch| (sketch, false));
        let denied = denied.by_rule().iter().map(|sketch| (sketch, true));
        for ((rule_hash, sketch), is_denied) in requested.chain(denied) {
            let counts = self.0.entry(rule_hash).or_default();
            counts.rule = sketch.rule.clone();
            let merged = if is_denied { &mut counts.denied } else { &mut counts.requested };
            merged.add(&sketch.keys, |_| sketch.rule.as_ref());
        }
    }

    /// The busiest rules with their `n` hottest keys; each sample stands for `sample` decisions.
    fn hottest(&self, n: usize, sample: NonZeroU32) -> Vec<RuleHotKeys> {
        let count = |of: &MergedKeys| of.noted * u64::from(sample.get());
        let of_rule = |RuleCounts { rule, requested, denied }: &RuleCounts| RuleHotKeys {
            rule: path(rule.as_ref()).to_owned(),
            requests: count(requested),
            denials: count(denied),
            top: HottestKeys {
                requested: requested.hottest(n, sample),
                denied: denied.hottest(n, sample),
            },
        };
        self.busiest().into_iter().map(of_rule).collect()
    }

    /// The rules that deny most and those that are requested most, [`RULES_MAX`] each; busiest
    /// first.
    fn busiest(&self) -> Vec<&RuleCounts> {
        let mut busiest: Vec<_> = self.0.values().collect();
        busiest.sort_unstable_by_key(|it| (Reverse(it.denied.noted), it.path()));
        let mut others = busiest.split_off(RULES_MAX.min(busiest.len()));
        others.sort_unstable_by_key(|it| (Reverse(it.requested.noted), it.path()));
        busiest.extend(others.into_iter().take(RULES_MAX));
        // A denied request counts as requested, even if the rule has a sketch only for denials.
        let noted = |it: &RuleCounts| it.requested.noted.max(it.denied.noted);
        busiest.sort_unstable_by_key(|it| (Reverse(noted(it)), it.path()));
        busiest
    }
}

// === impl RuleCounts ===

impl RuleCounts {
    fn path(&self) -> &str {
        path(self.rule.as_ref())
    }
}

fn path(rule: Option<&Arc<Rule>>) -> &str {
    rule.map_or(OVERRIDE, |rule| &rule.path)
}

/// Escapes characters that would control a terminal, change the direction of text or be invisible.
fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if alters_display(c) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    shown
}

// The busiest rules, each with a sketch of its own, so that the keys of a quiet rule show beside
// those of a busy one.

/// Maximum number of rules with a sketch, by requests, and separately by denials; in each stripe
/// and period.
pub const RULES_MAX: usize = 32;

/// Number of sets of each rule's sketch: 32 counters.
const RULE_SETS: usize = 4;

/// The sketches of the busiest rules.
///
/// A rule gets a free sketch if there is one. Otherwise it takes that of the rule with the lowest
/// rank r, with probability 1 / (r + 1), and continues from that rank: a rule that is busier than
/// one of those soon has a sketch, whenever it appears, and a thousand quiet rules do not take the
/// sketches of the busy ones. A rank is the number of notes of the present rule in the sketch, plus
/// the rank of the rule before it.
#[derive(Default)]
struct RuleSketches {
    /// Separate from the sketches, because each note searches them.
    ranks: Vec<RuleRank>,
    /// In the order of the ranks, and never fewer. Allocated when first needed, and kept.
    sketches: Vec<RuleSketch>,
}

/// The rule that has a sketch, and its rank.
#[derive(Clone, Copy)]
struct RuleRank {
    rule_hash: u64,
    rank: u32,
}

/// The data kept of a rule.
struct RuleSketch {
    /// `None` for overrides.
    rule: Option<Arc<Rule>>,
    keys: Keys,
}

// === impl RuleSketches ===

impl RuleSketches {
    /// Upper bound of the heap memory in bytes, except for a few words.
    const fn bytes_max(texts: bool) -> usize {
        RULES_MAX
            * (size_of::<RuleRank>() + size_of::<RuleSketch>() + Keys::bytes_max(RULE_SETS, texts))
    }

    /// Counts the key in `counted` among those of its rule.
    fn note(&mut self, counted: &CountedKey<'_, '_>, texts: bool) {
        let Some(at) = self.find(counted.rule_hash).or_else(|| self.claim(counted, texts)) else {
            return;
        };
        if let Some(sketch) = self.sketches.get_mut(at) {
            sketch.keys.note(counted);
        }
    }

    /// Frees all sketches.
    fn clear(&mut self) {
        self.ranks.clear();
        self.sketches.iter_mut().for_each(RuleSketch::clear);
    }

    /// The sketches in use, each with the hash of its rule.
    fn iter(&self) -> impl Iterator<Item = (u64, &RuleSketch)> {
        self.ranks.iter().map(|rank| rank.rule_hash).zip(&self.sketches)
    }

    fn find(&mut self, rule_hash: u64) -> Option<usize> {
        let at = self.ranks.iter().position(|rank| rank.rule_hash == rule_hash)?;
        let rank = self.ranks.get_mut(at)?;
        rank.rank = rank.rank.saturating_add(1);
        Some(at)
    }

    /// Assigns a sketch to a rule that has none.
    #[inline(never)]
    fn claim(&mut self, counted: &CountedKey<'_, '_>, texts: bool) -> Option<usize> {
        let CountedKey { rule, rule_hash, .. } = *counted;
        let at = if self.ranks.len() < RULES_MAX {
            self.ranks.push(RuleRank { rule_hash, rank: 1 });
            self.ranks.len() - 1
        } else {
            let (at, lowest) =
                self.ranks.iter_mut().enumerate().min_by_key(|(_, rank)| rank.rank)?;
            if !takes_over(lowest.rank) {
                return None;
            }
            *lowest = RuleRank { rule_hash, rank: lowest.rank.saturating_add(1) };
            at
        };
        if at == self.sketches.len() {
            self.sketches.push(RuleSketch { rule: None, keys: Keys::new(RULE_SETS, texts) });
        }
        let sketch = self.sketches.get_mut(at)?;
        sketch.clear();
        sketch.rule = rule.cloned();
        Some(at)
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        let of = |sketch: &RuleSketch| {
            size_of::<RuleRank>() + size_of::<RuleSketch>() + sketch.keys.bytes()
        };
        self.sketches.iter().map(of).sum()
    }
}

// === impl RuleSketch ===

impl RuleSketch {
    fn clear(&mut self) {
        self.rule = None;
        self.keys.clear();
    }
}

#[cfg(test)]
mod tests;
