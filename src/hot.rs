//! The hottest keys: those that were requested, and denied, most often of late.
//!
//! A sample of the decisions, one in [`Options::sample`] on average, is counted in a [`Sketch`] for
//! each of eight stripes. Each thread has a stripe of its own, and shares it if there are more than
//! eight; they are merged when somebody looks. Counts reach back one to two minutes: every minute
//! ([`AGE`]) the counts become those of before, and those of before are dropped. Nothing here ever
//! grows.
//!
//! # How far the counts are off
//!
//! A key that was requested f times is told with a standard deviation of √(f · (sample − 1)), since
//! it was sampled: 170 of 10 000 by the default of 4. It is also told too low by what it was
//! requested before it had a counter in a stripe: at most the smallest count in its set, which is
//! less than what the set has seen over 8, or some 1 / 256 of all requests. A key that is hot all
//! the time gets its counter while counts are small, and loses next to nothing. No key is told too
//! high but for the sampling. Samples that find every stripe taken are left out.

mod board;
mod seat;
#[cfg(test)]
mod tests;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::observe::Decision;
use crate::time::{Clock, Time};
use crate::verdict::Code;

use board::{Board, Merged};

#[cfg(doc)]
use crate::sketch::Sketch;
#[cfg(doc)]
use crate::verdict::OVERRIDE;

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
    /// That by all requests, or denials, of that time: 0 to 1.
    pub share: f64,
    /// The entries as `key=value, key=value`, cut and with control characters escaped; `None`
    /// without [`Options::values`].
    pub values: Option<String>,
}

struct Shared {
    options: Options,
    clock: Clock,
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
        Self { shared: Some(Arc::new(Shared { options, clock, stripes })) }
    }

    /// What all of it takes, in bytes: less than a third of a MiB, and 1.5 MiB with texts.
    pub const fn bytes_max(values: bool) -> usize {
        // Two ages of two boards.
        STRIPES * (size_of::<Stripe>() + 4 * Board::bytes_max(values))
    }

    /// Takes note of a decision.
    pub fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Some(shared) = self.shared.as_deref() else { return };
        if let Some(seat) = seat::sampled(shared.options.sample) {
            shared.note(seat, decision);
        }
    }

    /// The `n` hottest keys of all.
    pub fn top(&self, n: usize) -> Top {
        self.hottest(n, |_| true)
    }

    /// The `n` hottest keys of the rule of this path, which may be [`OVERRIDE`]: of those that are
    /// among the hottest of all. Shares are of all requests.
    pub fn of_rule(&self, path: &str, n: usize) -> Top {
        self.hottest(n, |rule| rule == path)
    }

    fn hottest(&self, n: usize, wanted: impl Fn(&str) -> bool) -> Top {
        let Some(shared) = self.shared.as_deref() else { return Top::default() };
        let (mut requested, mut denied) = (Merged::default(), Merged::default());
        let now = shared.clock.now();
        for Stripe(ages) in &shared.stripes {
            let mut ages = ages.lock();
            ages.turn(now);
            for boards in [&ages.present, &ages.before] {
                requested.add(&boards.requested);
                denied.add(&boards.denied);
            }
        }
        let sample = shared.options.sample;
        Top {
            requested: requested.hottest(n, sample, &wanted),
            denied: denied.hottest(n, sample, &wanted),
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
    fn note(&self, seat: usize, decision: &Decision<'_, '_, '_>) {
        let Some(mut ages) = self.free_stripe(seat) else { return };
        ages.turn(decision.now);
        let Boards { requested, denied } = &mut ages.present;
        let request = decision.request;
        for (descriptor, status) in request.descriptors.iter().zip(&decision.verdict.statuses) {
            let Some(trace) = status.counted else { continue };
            let rule = status.limit.and_then(|applied| applied.rule);
            requested.note(trace.key, rule, descriptor);
            if status.code == Code::OverLimit {
                denied.note(trace.key, rule, descriptor);
            }
        }
    }

    /// The stripe of this seat, or the next that nobody has: a request never waits for whoever
    /// reads, nor for a thread that shares its seat and was put to sleep.
    fn free_stripe(&self, seat: usize) -> Option<MutexGuard<'_, Ages>> {
        let from = seat % STRIPES;
        let (before, from_seat) = self.stripes.split_at(from);
        from_seat.iter().chain(before).find_map(|stripe| stripe.0.try_lock())
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
