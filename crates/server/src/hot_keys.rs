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

mod keys;
mod merged;
mod per_rule;
mod sample;
#[cfg(test)]
mod tests;
mod top_keys;

use std::fmt;
use std::hash::BuildHasher;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use parking_lot::{Mutex, MutexGuard};
use ratelease_cli::settings;
use ratelease_engine::observer::{Decision, Observer};
use ratelease_engine::stripe;
use ratelease_engine::time::{Clock, Time};
use ratelease_engine::verdict::{Code, OVERRIDE};
use ratelease_rules::Rule;
use ratelease_rules::key::Key;
use ratelease_rules::request::Descriptor;

use merged::{MergedKeys, MergedRules};
pub use per_rule::RULES_MAX;
use top_keys::TopKeys;

#[cfg(doc)]
use ratelease_engine::sketch::Sketch;

/// After this time counts become the previous ones, and after twice this time they are dropped.
pub const PERIOD: Duration = Duration::from_secs(60);

/// Maximum number of bytes kept of an entry's text, with [`Options::texts`].
pub const TEXT_BYTES_MAX: usize = 128;

/// Number of separate sets of sketches; threads beyond this number share them.
const STRIPES: usize = 8;

/// Counts keys. A cheap handle: clones share all state. The default counts nothing.
#[derive(Clone, Default)]
pub struct HotKeys {
    shared: Option<Arc<Shared>>,
}

/// How keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// One decision in this many is counted, on average.
    pub sample: NonZeroU32,
    /// Whether the text of the entries is kept beside the key's hash.
    pub texts: Texts,
}

/// Whether the text of a key's entries is kept beside its hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Texts {
    /// Only hashes are kept.
    Omitted,
    /// The texts are kept too, truncated.
    Kept,
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
    /// Requests, or denials, in the last one to two minutes, estimated from the sample.
    pub count: u64,
    /// Share of this count in all requests, or denials, of that time, or in those of the rule: 0 to
    /// 1.
    pub share: f64,
    /// The entries as `key=value, key=value`, truncated and with control characters escaped; `None`
    /// without [`Options::texts`].
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

// === impl Options ===

/// Costs a few nanoseconds for each decision; keeps hashes only.
impl From<settings::HotKeys> for Options {
    fn from(settings::HotKeys { sample, values }: settings::HotKeys) -> Self {
        let texts = if values { Texts::Kept } else { Texts::Omitted };
        Self { sample, texts }
    }
}

impl Default for Options {
    fn default() -> Self {
        const SAMPLE: NonZeroU32 = NonZeroU32::new(4).unwrap();
        Self { sample: SAMPLE, texts: Texts::Omitted }
    }
}

// === impl HotKeys ===

impl HotKeys {
    /// Counts by `clock`, which must be the clock of [`Decision::now`].
    pub fn new(options: Options, clock: Clock) -> Self {
        let stripes = std::array::from_fn(|_| Stripe(Mutex::new(Periods::new(options.texts))));
        let hasher = RandomState::default();
        Self { shared: Some(Arc::new(Shared { options, clock, hasher, stripes })) }
    }

    /// Upper bound of the memory in bytes: 1.3 MiB, and 7.2 MiB with texts. This assumes eight
    /// threads and [`RULES_MAX`] rules that are requested and denied; a rule's sketch is made when
    /// a stripe first needs it.
    pub const fn bytes_max(texts: Texts) -> usize {
        // Requests and denials, in each of two periods.
        STRIPES * (size_of::<Stripe>() + 4 * TopKeys::bytes_max(texts))
    }

    /// The `n` hottest keys of all rules.
    pub fn top(&self, n: usize) -> HottestKeys {
        let Some(shared) = self.shared.as_deref() else { return HottestKeys::default() };
        let (mut requested, mut denied) = (MergedKeys::default(), MergedKeys::default());
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
}

impl Observer for HotKeys {
    fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Some(shared) = self.shared.as_deref() else { return };
        if sample::is_due(shared.options.sample) {
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
        let from = stripe::mine() % STRIPES;
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
    fn new(texts: Texts) -> Self {
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
    fn new(texts: Texts) -> Self {
        Self { requested: TopKeys::new(texts), denied: TopKeys::new(texts) }
    }

    fn clear(&mut self) {
        self.requested.clear();
        self.denied.clear();
    }
}
