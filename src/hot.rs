//! The hottest keys: those that were requested, and denied, most often of late, of all and of each
//! busy rule.
//!
//! A sample of the decisions, one in [`Options::sample`] on average, is counted for each of eight
//! stripes: in a [`Sketch`] of all keys, and in one of its rule, if that is among the
//! [`RULES_MAX`] busiest. Each thread has a stripe of its own, and shares it if there are more than
//! eight; they are merged when somebody looks. Counts reach back one to two minutes: every minute
//! ([`AGE`]) the counts become those of before, and those of before are dropped. Nothing here grows
//! beyond [`HotKeys::bytes_max`].
//!
//! # How far the counts are off
//!
//! A key that was requested f times is told with a standard deviation of √(f · (sample − 1)), since
//! it was sampled: 170 of 10 000 by the default of 4. It is also told too low by what it was
//! requested before it had a counter in a stripe, or its rule a place: on average about as often as
//! the smallest counter of its set had counted then, or the rule of the lowest standing. A key that
//! is hot all the time gets its counter while counts are small, and loses next to nothing. No key
//! is told too high but for the sampling. Samples that find every stripe taken are left out.

mod board;
mod keys;
mod merged;
mod places;
mod sample;
#[cfg(test)]
mod tests;

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

use board::Board;
use merged::{Merged, MergedRules};
pub use places::RULES_MAX;

#[cfg(doc)]
use ratelease_engine::sketch::Sketch;

/// After so long counts become those of before, and after twice as long they are dropped.
pub const AGE: Duration = Duration::from_secs(60);

/// Bytes of an entry's text that are kept, with [`Options::values`].
pub const TEXT_BYTES_MAX: usize = 128;

/// Sketches are kept apart for so many threads; more threads share them.
const STRIPES: usize = 8;

/// Counts keys. A handle: clones share everything. The default counts nothing.
#[derive(Clone, Default)]
pub struct HotKeys {
    shared: Option<Arc<Shared>>,
}

/// How keys are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// One decision in so many is counted, on average.
    pub sample: NonZeroU32,
    /// Keep the text of the entries too, not only the key's hash.
    pub values: bool,
}

/// The hottest keys, hottest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Top {
    /// By requests.
    pub requested: Vec<Hot>,
    /// By requests that were over the limit.
    pub denied: Vec<Hot>,
}

/// A hot key.
#[derive(Debug, Clone, PartialEq)]
pub struct Hot {
    /// The key's hash, as in the name of its count in Redis.
    pub key: String,
    /// Path of the rule that limits it, or [`OVERRIDE`].
    pub rule: String,
    /// Requests, or denials, of the last one to two minutes, as far as the sample tells.
    pub count: u64,
    /// That by all requests, or denials, of that time, or by those of the rule: 0 to 1.
    pub share: f64,
    /// The entries as `key=value, key=value`, cut and with control characters escaped; `None`
    /// without [`Options::values`].
    pub values: Option<String>,
}

/// The hottest keys of a rule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OfRule {
    /// Its path, or [`OVERRIDE`].
    pub rule: String,
    /// Its requests of the last one to two minutes, since it has a place, as far as the sample
    /// tells; 0 if it has none among those that are requested most.
    pub requests: u64,
    /// And its denials; 0 if it has no place among those that deny most.
    pub denials: u64,
    /// Its keys; their shares are of these requests, and denials.
    pub top: Top,
}

/// What a decision tells of one descriptor.
struct Seen<'a, 'q> {
    key: Key,
    /// What limits it; `None` for an override.
    rule: Option<&'a Arc<Rule>>,
    /// Of the rule's path, which stays when rules are loaded anew; taken for the path, as there are
    /// far too few of them for two to meet.
    rule_hash: u64,
    descriptor: &'a Descriptor<'q>,
}

struct Shared {
    options: Options,
    clock: Clock,
    hasher: RandomState,
    stripes: [Stripe; STRIPES],
}

/// Alone on its cache lines (two, since processors fetch them in pairs).
#[repr(align(128))]
struct Stripe(Mutex<Ages>);

/// The counts of two ages.
struct Ages {
    /// Which age is the present one, counted from the clock's start.
    age: u64,
    present: Boards,
    before: Boards,
}

struct Boards {
    requested: Board,
    denied: Board,
}

// === impl Options ===

/// A few nanoseconds a decision, and hashes alone.
impl From<settings::HotKeys> for Options {
    fn from(settings::HotKeys { sample, values }: settings::HotKeys) -> Self {
        Self { sample, values }
    }
}

impl Default for Options {
    fn default() -> Self {
        const SAMPLE: NonZeroU32 = NonZeroU32::new(4).unwrap();
        Self { sample: SAMPLE, values: false }
    }
}

// === impl HotKeys ===

impl HotKeys {
    /// Counts by `clock`, by which [`Decision::now`] goes as well.
    pub fn new(options: Options, clock: Clock) -> Self {
        let stripes = std::array::from_fn(|_| Stripe(Mutex::new(Ages::new(options.values))));
        let hasher = RandomState::default();
        Self { shared: Some(Arc::new(Shared { options, clock, hasher, stripes })) }
    }

    /// What all of it takes at most, in bytes: 1.3 MiB, and 7.2 MiB with texts. That is with eight
    /// threads and [`RULES_MAX`] rules that are requested, and denied; a rule's sketch is made when
    /// it is first needed in a stripe.
    pub const fn bytes_max(values: bool) -> usize {
        // Two ages of two boards.
        STRIPES * (size_of::<Stripe>() + 4 * Board::bytes_max(values))
    }

    /// The `n` hottest keys of all.
    pub fn top(&self, n: usize) -> Top {
        let Some(shared) = self.shared.as_deref() else { return Top::default() };
        let (mut requested, mut denied) = (Merged::default(), Merged::default());
        shared.read(|boards| {
            requested.add_all(&boards.requested);
            denied.add_all(&boards.denied);
        });
        let sample = shared.options.sample;
        Top { requested: requested.hottest(n, sample), denied: denied.hottest(n, sample) }
    }

    /// The `n` hottest keys of each of the busiest rules, those first: of twice [`RULES_MAX`] at
    /// most.
    pub fn by_rule(&self, n: usize) -> Vec<OfRule> {
        let Some(shared) = self.shared.as_deref() else { return Vec::new() };
        let mut rules = MergedRules::default();
        shared.read(|boards| rules.add(&boards.requested, &boards.denied));
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
    /// Out of line: most decisions are not sampled.
    #[cold]
    #[inline(never)]
    fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Some(mut ages) = self.free_stripe() else { return };
        ages.turn(decision.now);
        let Boards { requested, denied } = &mut ages.present;
        let request = decision.request;
        for (descriptor, status) in request.descriptors.iter().zip(&decision.verdict.statuses) {
            let Some(trace) = status.counted else { continue };
            let rule = status.limit.and_then(|applied| applied.rule);
            let path = rule.map_or(OVERRIDE, |rule| &rule.path);
            let rule_hash = self.hasher.hash_one(path);
            let seen = Seen { key: trace.key, rule, rule_hash, descriptor };
            requested.note(&seen);
            if status.code == Code::OverLimit {
                denied.note(&seen);
            }
        }
    }

    /// This thread's stripe, or the next that nobody has: a request never waits for whoever reads,
    /// nor for a thread that shares its stripe and was put to sleep.
    fn free_stripe(&self) -> Option<MutexGuard<'_, Ages>> {
        let from = stripe::mine() % STRIPES;
        let (before, from_mine) = self.stripes.split_at(from);
        from_mine.iter().chain(before).find_map(|stripe| stripe.0.try_lock())
    }

    /// Shows the boards of all stripes, present and before.
    fn read(&self, mut look: impl FnMut(&Boards)) {
        let now = self.clock.now();
        for Stripe(ages) in &self.stripes {
            let mut ages = ages.lock();
            ages.turn(now);
            look(&ages.present);
            look(&ages.before);
        }
    }
}

// === impl Ages ===

impl Ages {
    fn new(values: bool) -> Self {
        Self { age: 0, present: Boards::new(values), before: Boards::new(values) }
    }

    /// Makes the age of `now` the present one, if that is still to come.
    fn turn(&mut self, now: Time) {
        // Some nanoseconds make no difference to an age: no `u128` on this way.
        const AGE_NANOS: u64 = AGE.as_secs() * 1_000_000_000;
        let age = now.nanos() / AGE_NANOS;
        if age <= self.age {
            return;
        }
        std::mem::swap(&mut self.present, &mut self.before);
        self.present.clear();
        if age > self.age + 1 {
            self.before.clear();
        }
        self.age = age;
    }
}

// === impl Boards ===

impl Boards {
    fn new(values: bool) -> Self {
        Self { requested: Board::new(values), denied: Board::new(values) }
    }

    fn clear(&mut self) {
        self.requested.clear();
        self.denied.clear();
    }
}
