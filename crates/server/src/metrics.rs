//! Counts decisions, by rule and in total, and reports the counts.
//!
//! ```text
//! service ─▶ Meters::note ─▶ the rule's meter (Attachment) ─▶ this thread's stripe of counters
//!                       └─▶ of rules that ask for it, the meter of the values on the request
//! a scrape ─▶ Meters::families ─▶ Vec<Family> ─▶ text (Prometheus), or pushed (OTLP)
//! a push to statsd ─▶ Meters::reference_counts, by the reference's whole stats keys
//! ```
//! Recording a decision touches no counter that all cores share. It waits for a lock, and
//! allocates, only for the first hit of a rule since its load, or of a value. Every map has a
//! maximum size: entries that do not fit are counted as `folded`. Every label has a maximum length:
//! a longer value is cut and ends in a hash. `docs/metrics.md` says what each metric means.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use family::Labels;
use foldhash::quality::RandomState;
use parking_lot::Mutex;
use ratelease_engine::latency::Latency;
use ratelease_engine::limiter::Resolved;
use ratelease_engine::striped::Striped;
use ratelease_engine::verdict::{Code, Counted, Decision, DecisionSource, OVERRIDE, Status};
use ratelease_rules::request::{Descriptor, Request};
use ratelease_rules::{Allowance, FailureMode, Level, LevelMatch, Rule, Rules};

use crate::request::RequestError;

pub use report::{Calls, ReferenceCounts, RuleTotals};

pub mod counter;
pub mod family;
mod report;

/// Default maximum number of series of one kind: rules, and separately the values of rules that ask
/// for series by value. Each kind at its maximum takes some 5 MB in a pod of two cores.
pub const SERIES_MAX_DEFAULT: usize = 10_000;

/// Maximum number of domains whose overrides are counted separately.
const OVERRIDES_MAX: usize = 1024;

/// Counts decisions. A cheap handle: clones share all state.
#[derive(Debug, Clone)]
pub struct Meters {
    shared: Arc<Shared>,
}

/// How decisions are counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Options {
    /// Share of a limit, 0 to 1, above which hits count as near the limit.
    pub near_limit_ratio: f32,
    /// Maximum number of rules counted separately, and of values.
    pub series_max: usize,
    /// Whether hits are also kept by the reference implementation's whole stats keys, for
    /// [`Meters::reference_counts`]: otherwise values are kept as far as Prometheus's labels show
    /// them, which are fewer.
    pub by_stats_key: bool,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    took: Latency,
    calls: Striped<{ calls::COUNTERS }>,
    rules: Registry,
    overrides: Table<RuleMeter>,
    values: Table<ValueMeter>,
    values_folded: ValueMeter,
    hasher: RandomState,
    /// Hits that candidate rules were not tried on, by their domain. There are as many as rollouts
    /// have domains.
    left_out: Mutex<HashMap<Box<str>, u64>>,
}

/// Indexes of the counters of whole calls, and of descriptors that no rule counts.
mod calls {
    /// Calls that were denied; the other calls in the latency histogram were allowed.
    pub(super) const OVER: usize = 0;
    /// Calls that the global shadow mode allowed.
    pub(super) const SHADOWED: usize = 1;
    /// Descriptors that no rule limits.
    pub(super) const UNMATCHED: usize = 2;
    /// Descriptors whose rule allows everything.
    pub(super) const UNLIMITED: usize = 3;
    /// Decisions counted in the folded series of rules, or of values.
    pub(super) const FOLDED_RULES: usize = 4;
    pub(super) const FOLDED_VALUES: usize = 5;
    /// The first of the counters of calls without a verdict, in the order of [`REASONS`].
    pub(super) const ERRORS: usize = 6;
    pub(super) const REASONS: [&str; 7] = [
        "empty_domain",
        "no_descriptors",
        "no_rules",
        "invalid",
        "store",
        "overloaded",
        "panicked",
    ];
    pub(super) const COUNTERS: usize = ERRORS + REASONS.len();
}

// === impl Meters ===

impl Meters {
    /// Creates meters whose counts are zero.
    pub fn new(options: Options) -> Self {
        let Options { series_max, .. } = options;
        let shared = Shared {
            left_out: Mutex::default(),
            options,
            took: Latency::default(),
            calls: Striped::new(),
            rules: Registry::new(series_max),
            overrides: Table::new(series_max.min(OVERRIDES_MAX)),
            values: Table::new(series_max),
            values_folded: ValueMeter::new(Keys::folded(), FOLDED_STATS_KEY.into()),
            hasher: RandomState::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Counts a call without a verdict.
    pub fn note_error(&self, error: &RequestError) {
        let reason = match error {
            RequestError::EmptyDomain => 0,
            RequestError::NoDescriptors => 1,
            RequestError::NoRules | RequestError::AwaitsRules => 2,
            RequestError::Invalid(_) => 3,
            RequestError::Store(_) => 4,
            RequestError::Overloaded | RequestError::NoRoom => 5,
            RequestError::Panicked => 6,
        };
        self.shared.calls.mine().add(calls::ERRORS + reason, 1);
    }

    /// Counts a decision.
    pub fn note(&self, decision: &Decision<'_, '_, '_>) {
        let Decision { request, verdict, took, .. } = *decision;
        let shared = &*self.shared;
        shared.took.note(took);
        if verdict.code == Code::OverLimit {
            shared.calls.mine().add(calls::OVER, 1);
        } else if verdict.shadowed {
            shared.calls.mine().add(calls::SHADOWED, 1);
        }
        for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
            shared.note_status(request, descriptor, status);
        }
    }

    /// Counts a decision by candidate rules: by rule alone, since the call is counted already.
    pub fn note_candidate(&self, decision: &Decision<'_, '_, '_>) {
        let Decision { request, verdict, .. } = *decision;
        for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
            if status.counted.is_some() {
                self.shared.note_status(request, descriptor, status);
            }
        }
    }

    /// Counts the hits of a request that candidate rules were not tried on.
    pub fn note_left_out(&self, request: &Request<'_>) {
        let mut left_out = self.shared.left_out.lock();
        match left_out.get_mut(request.domain) {
            Some(hits) => *hits = hits.saturating_add(request.hits_addend),
            None => drop(left_out.insert(request.domain.into(), request.hits_addend)),
        }
    }

    /// Counts the hits of a call that the store gave no verdict on, as total hits only: the
    /// reference implementation counts them before it asks the store.
    pub fn note_unanswered(&self, request: &Request<'_>, resolved: &[Resolved<'_>]) {
        let shared = &*self.shared;
        for (descriptor, resolved) in request.descriptors.iter().zip(resolved) {
            let Resolved::Charged(charge) = resolved else { continue };
            if charge.refund {
                continue;
            }
            let hits = Hits { total: charge.hits, ..Hits::default() };
            let Some(rule) = charge.applied.rule else {
                shared.overrides_of(request.domain).note_hits(hits);
                continue;
            };
            let meter = shared.meter_of(rule, request.domain, descriptor);
            meter.note_hits(hits);
            if meter.is_split() {
                shared.values_of(rule, request, descriptor).note(hits);
            }
        }
    }
}

impl Default for Meters {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

impl Default for Options {
    /// The defaults of the settings; the ratio is the reference implementation's.
    fn default() -> Self {
        Self { near_limit_ratio: 0.8, series_max: SERIES_MAX_DEFAULT, by_stats_key: false }
    }
}

// === impl Shared ===

impl Shared {
    #[inline]
    fn note_status(&self, request: &Request<'_>, descriptor: &Descriptor<'_>, status: &Status<'_>) {
        let (Some(applied), Some(counted)) = (status.limit, status.counted) else {
            let unlimited = status.is_unlimited();
            let counter = if unlimited { calls::UNLIMITED } else { calls::UNMATCHED };
            self.calls.mine().add(counter, 1);
            return;
        };
        // Refunded hits are not part of the reference implementation's statistics.
        let hits = match descriptor.refund {
            true => Hits::default(),
            false => Hits::of(status, &counted, self.options.near_limit_ratio),
        };
        match applied.rule {
            Some(rule) => self.note_rule(rule, request, descriptor, status, &counted, hits),
            None => self.overrides_of(request.domain).note(counted.how, status.code, hits),
        }
    }

    #[inline]
    fn note_rule(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
        status: &Status<'_>,
        counted: &Counted,
        hits: Hits,
    ) {
        let meter = self.meter_of(rule, request.domain, descriptor);
        meter.note(counted.how, status.code, hits);
        if self.rules.is_folded(meter) {
            self.calls.mine().add(calls::FOLDED_RULES, 1);
        } else if meter.is_split() {
            self.values_of(rule, request, descriptor).note(hits);
        }
    }

    /// The meter of a rule, cached in the rule from its first hit.
    #[inline]
    fn meter_of<'a>(
        &'a self,
        rule: &'a Rule,
        domain: &str,
        descriptor: &Descriptor<'_>,
    ) -> &'a RuleMeter {
        let meter = rule.meter.get_or_init(|| self.bind(rule, domain, descriptor));
        meter.unwrap_or_else(|| self.rules.folded())
    }

    /// Finds the meter of a rule at its first hit since it was loaded.
    #[cold]
    fn bind(&self, rule: &Rule, domain: &str, descriptor: &Descriptor<'_>) -> Arc<RuleMeter> {
        let is_split = self.is_split(rule);
        let make = || {
            let key = match is_split {
                true => rule.path.to_string(),
                false => rule.stats_key(domain, &descriptor.entries),
            };
            RuleMeter::new(&rule.path, domain, Keys::of(&key), self.kept(&key))
        };
        let meter = self.rules.meter(&rule.path, make);
        if !self.rules.is_folded(&meter) {
            meter.set_split(is_split);
        }
        meter
    }

    fn overrides_of(&self, domain: &str) -> &RuleMeter {
        // Rules name this domain: overrides of other domains are ignored.
        let make = || {
            let key = self.kept(&format!("{domain}.{OVERRIDE}"));
            RuleMeter::new(OVERRIDE, domain, Keys::overrides(domain), key)
        };
        let found = self.overrides.get_or_insert(non_zero(self.hasher.hash_one(domain)), make);
        found.unwrap_or_else(|| {
            self.calls.mine().add(calls::FOLDED_RULES, 1);
            self.rules.folded()
        })
    }

    /// The stats key as it is kept: nothing, if none is.
    fn kept(&self, stats_key: &str) -> Box<str> {
        match self.options.by_stats_key {
            true => bounded_to(stats_key, STATS_KEY_BYTES_MAX).into(),
            false => Box::default(),
        }
    }

    /// Whether hits of `rule` are reported by the values on the requests.
    fn is_split(&self, rule: &Rule) -> bool {
        (0..self.levels_shown(rule)).any(|level| rule.varies_at(level))
    }

    /// How many levels of a rule are shown with their values.
    fn levels_shown(&self, rule: &Rule) -> usize {
        if self.options.by_stats_key { rule.levels.len() } else { LEVELS_IN_LABELS }
    }

    /// The meter of the request's values, as far as they are shown.
    fn values_of(
        &self,
        rule: &Rule,
        request: &Request<'_>,
        descriptor: &Descriptor<'_>,
    ) -> &ValueMeter {
        let value = |at: usize| {
            let entry = descriptor.entries.get(at).filter(|_| rule.varies_at(at));
            entry.map_or("", |entry| entry.value)
        };
        let mut hasher = self.hasher.build_hasher();
        rule.path.hash(&mut hasher);
        (0..self.levels_shown(rule)).for_each(|level| value(level).hash(&mut hasher));
        let make = || {
            let stats_key = rule.stats_key(request.domain, &descriptor.entries);
            ValueMeter::new(Keys::of(&stats_key), self.kept(&stats_key))
        };
        self.values.get_or_insert(non_zero(hasher.finish()), make).unwrap_or_else(|| {
            self.calls.mine().add(calls::FOLDED_VALUES, 1);
            &self.values_folded
        })
    }
}

fn non_zero(hash: u64) -> NonZeroU64 {
    NonZeroU64::new(hash).unwrap_or(NonZeroU64::MIN)
}

// A map that only grows, up to a maximum, and whose readers never wait.

/// Maps a 64-bit hash to a value. The hash stands for the key: among ten thousand keys, the chance
/// that two collide is one in 10^11.
///
/// Open addressing over a fixed number of entries, at most half of them used, so that a search is
/// short. The entries are allocated when the first value is inserted.
#[derive(Debug)]
struct Table<V> {
    max: usize,
    taken: AtomicUsize,
    entries: OnceLock<Box<[Entry<V>]>>,
}

#[derive(Debug)]
struct Entry<V> {
    /// 0 while the entry is free. Once set, it never changes.
    hash: AtomicU64,
    value: OnceLock<Box<V>>,
}

const FREE: u64 = 0;

// === impl Table ===

impl<V> Table<V> {
    /// Creates a table for `max` values.
    fn new(max: usize) -> Self {
        Self { max, taken: AtomicUsize::new(0), entries: OnceLock::new() }
    }

    /// The value of `hash`, which `make` creates if there is none; `None` if there is no room for
    /// it.
    fn get_or_insert(&self, hash: NonZeroU64, make: impl FnOnce() -> V) -> Option<&V> {
        let entries = self.entries.get_or_init(|| self.empty());
        let mask = entries.len() - 1;
        let mut at = first(hash, mask);
        loop {
            let entry = entries.get(at)?;
            let found = match entry.hash.load(Ordering::Acquire) {
                FREE => self.claim(entry, hash)?,
                found => found,
            };
            if found == hash.get() {
                return Some(entry.value.get_or_init(|| Box::new(make())));
            }
            at = (at + 1) & mask;
        }
    }

    /// All values.
    fn iter(&self) -> impl Iterator<Item = &V> {
        let entries = self.entries.get().into_iter().flatten();
        entries.filter_map(|entry| entry.value.get().map(AsRef::as_ref))
    }

    fn len(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Claims a free entry for `hash`, unless the table is full. Returns the hash that the entry
    /// has now: another thread may have claimed it first.
    fn claim(&self, entry: &Entry<V>, hash: NonZeroU64) -> Option<u64> {
        // A full table is only read.
        if self.len() >= self.max {
            return None;
        }
        if self.taken.fetch_add(1, Ordering::Relaxed) >= self.max {
            self.taken.fetch_sub(1, Ordering::Relaxed);
            return None;
        }
        match entry.hash.compare_exchange(FREE, hash.get(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Some(hash.get()),
            Err(other) => {
                self.taken.fetch_sub(1, Ordering::Relaxed);
                Some(other)
            }
        }
    }

    fn empty(&self) -> Box<[Entry<V>]> {
        let entries = (2 * self.max).next_power_of_two().max(2);
        let free = || Entry { hash: AtomicU64::new(FREE), value: OnceLock::new() };
        (0..entries).map(|_| free()).collect()
    }
}

#[allow(clippy::cast_possible_truncation, reason = "the lower bits are what is meant")]
fn first(hash: NonZeroU64, mask: usize) -> usize {
    hash.get() as usize & mask
}

// Bounds the length of label values.
//
// A label of the reference implementation's series contains text from a request, as long as a
// client chooses. It is kept for as long as the process runs, and is part of every scrape.

/// Maximum size in bytes of a label's value, before the exposition format escapes it. Paths of
/// rules are nearly always shorter; Prometheus itself accepts any length.
const VALUE_BYTES_MAX: usize = 256;

/// Number of hexadecimal digits of the hash that replaces the part cut off.
const HASH_DIGITS: usize = 16;

/// Maximum size in bytes of a stats key that is kept whole: with its tags, a line of statsd fits
/// into a datagram.
const STATS_KEY_BYTES_MAX: usize = 512;

/// Returns `value` for use in a label. A longer value is cut and ends in `~` and a hash of the
/// whole, so that values with the same beginning differ, and a value has the same label on every
/// pod.
fn bounded(value: &str) -> Cow<'_, str> {
    bounded_to(value, VALUE_BYTES_MAX)
}

fn bounded_to(value: &str, bytes_max: usize) -> Cow<'_, str> {
    if value.len() <= bytes_max {
        return Cow::Borrowed(value);
    }
    let hash = blake3::hash(value.as_bytes()).to_hex();
    let kept = value.floor_char_boundary(bytes_max - HASH_DIGITS - 1);
    Cow::Owned(format!("{}~{}", &value[..kept], &hash[..HASH_DIGITS]))
}

// Classifies the hits of a decision as the reference implementation does
// (`src/limiter/base_limiter.go` at f2fb157). Pure.

/// Hits by class: those of one descriptor, or sums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hits {
    /// All hits.
    pub total: u64,
    /// Hits of a charge that was allowed.
    pub within: u64,
    /// Hits that exceeded the limit.
    pub over: u64,
    /// Hits between the near limit and the limit, whether or not their charge was allowed.
    pub near: u64,
    /// Those of `over` whose rule only counts, and allows what is over its limit.
    pub shadow: u64,
}

// === impl Hits ===

impl Hits {
    /// Classifies the hits of `counted`, whose descriptor has this `status`. Hits above `ratio` of
    /// the limit are near.
    ///
    /// The use before the charge is computed from what remains, or remained before a denied charge
    /// spent it: an estimate while several pods hold tokens.
    fn of(status: &Status<'_>, counted: &Counted, ratio: f32) -> Self {
        let Some(applied) = status.limit else { return Self::default() };
        let limit = applied.limit.capacity();
        let left = status.remaining.min(limit);
        let hits = counted.hits;
        let threshold = threshold(limit, ratio);
        if counted.over {
            let left = left.max(counted.fitted).min(limit);
            let before = limit - left;
            let over = hits.saturating_sub(left);
            let near =
                if left > 0 && over > 0 { limit.saturating_sub(threshold.max(before)) } else { 0 };
            let in_shadow = applied.rule.is_some_and(|rule| rule.flags.shadow_mode);
            let shadow = if in_shadow { over } else { 0 };
            return Self { total: hits, within: 0, over, near, shadow };
        }
        let after = limit - left;
        let near = after.saturating_sub(threshold).min(hits);
        Self { total: hits, within: hits, over: 0, near, shadow: 0 }
    }

    /// Adds the hits to their counters. Total hits have no counter of their own: they are those
    /// within, those over, and those of a denied charge that still fitted, which are few.
    #[inline]
    fn count(self, add: impl Fn(usize, u64)) {
        let Self { total, within, over, near, shadow } = self;
        let fitted = total.saturating_sub(within).saturating_sub(over);
        for (at, more) in [within, over, near, shadow, fitted].into_iter().enumerate() {
            if more > 0 {
                add(at, more);
            }
        }
    }

    /// The hits that `counters` have counted.
    fn counted(counters: &[u64]) -> Self {
        let [within, over, near, shadow, fitted] = *counters else { return Self::default() };
        let total = within.wrapping_add(over).wrapping_add(fitted);
        Self { total, within, over, near, shadow }
    }

    /// Clients choose the number of hits: the sum wraps around, since an overflow must not end the
    /// scrape.
    fn add(&mut self, other: &Self) {
        self.total = self.total.wrapping_add(other.total);
        self.within = self.within.wrapping_add(other.within);
        self.over = self.over.wrapping_add(other.over);
        self.near = self.near.wrapping_add(other.near);
        self.shadow = self.shadow.wrapping_add(other.shadow);
    }
}

/// The number of hits below the near limit; like the reference, whose limits have 32 bits, this
/// multiplies such a limit in 32 bits.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "limits are below 2^53, and the ratio lies from 0 to 1"
)]
fn threshold(limit: u64, ratio: f32) -> u64 {
    match u32::try_from(limit) {
        Ok(limit) => f64::from(limit as f32 * ratio).floor() as u64,
        Err(_) => (limit as f64 * f64::from(ratio)).floor() as u64,
    }
}

// The counters of one rule, and of one of the values that a rule sees.

/// The name of the series of rules that found no room.
const FOLDED: &str = "folded";
const FOLDED_STATS_KEY: &str = "folded.folded";

/// Number of levels that the labels of the reference implementation's series show.
const LEVELS_IN_LABELS: usize = 2;

/// Ways of deciding that lead to a verdict, in the order of their counters.
const SOURCES: [DecisionSource; 6] = [
    DecisionSource::Local,
    DecisionSource::Leased,
    DecisionSource::Failure(FailureMode::Local),
    DecisionSource::Failure(FailureMode::Allow),
    DecisionSource::Failure(FailureMode::Deny),
    DecisionSource::Shed,
];

/// Number of counters of decisions: for each of [`SOURCES`] those allowed, then those over the
/// limit.
const DECISION_COUNTERS: usize = 2 * SOURCES.len();
const HIT_COUNTERS: usize = 5;

/// The counters of one rule.
#[derive(Debug)]
struct RuleMeter {
    /// `Rule::path`.
    path: Box<str>,
    domain: Box<str>,
    keys: Keys,
    /// The reference implementation's stats key; empty if it is not kept.
    stats_key: Box<str>,
    /// Its hits are reported by the values on the requests, and not here.
    is_split: AtomicBool,
    counters: Striped<{ DECISION_COUNTERS + HIT_COUNTERS }>,
}

/// The counters of some of the values that a rule sees.
#[derive(Debug)]
struct ValueMeter {
    keys: Keys,
    /// The reference implementation's stats key; empty if it is not kept.
    stats_key: Box<str>,
    counters: Striped<HIT_COUNTERS>,
}

/// Labels of the reference implementation's series: its mapper derives them from a stats key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Keys {
    domain: Box<str>,
    key1: Box<str>,
    key2: Option<Box<str>>,
}

/// The totals of one rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct RuleSums {
    decisions: Decisions,
    hits: Hits,
}

/// Indexed like [`SOURCES`]: allowed, and over the limit.
type Decisions = [[u64; 2]; SOURCES.len()];

// === impl RuleMeter ===

impl RuleMeter {
    fn new(path: &str, domain: &str, keys: Keys, stats_key: Box<str>) -> Self {
        let (path, domain) = (path.into(), domain.into());
        let is_split = AtomicBool::new(false);
        Self { path, domain, keys, stats_key, is_split, counters: Striped::new() }
    }

    /// Creates the meter of rules that find no room.
    fn folded() -> Self {
        Self::new(FOLDED, FOLDED, Keys::folded(), FOLDED_STATS_KEY.into())
    }

    /// Records a decision. `code` is the verdict after shadow mode.
    #[inline]
    fn note(&self, how: DecisionSource, code: Code, hits: Hits) {
        let stripe = self.counters.mine();
        stripe.add(2 * index(how) + usize::from(code == Code::OverLimit), 1);
        hits.count(|at, more| stripe.add(DECISION_COUNTERS + at, more));
    }

    /// Records the hits of a charge without a decision.
    fn note_hits(&self, hits: Hits) {
        let stripe = self.counters.mine();
        hits.count(|at, more| stripe.add(DECISION_COUNTERS + at, more));
    }

    fn set_split(&self, is_split: bool) {
        self.is_split.store(is_split, Ordering::Relaxed);
    }

    fn is_split(&self) -> bool {
        self.is_split.load(Ordering::Relaxed)
    }

    fn sums(&self) -> RuleSums {
        let sums = self.counters.sums();
        let (decisions, hits) = sums.split_at(DECISION_COUNTERS);
        let mut sums_of_rule = RuleSums { hits: Hits::counted(hits), ..RuleSums::default() };
        for (pair, counts) in sums_of_rule.decisions.iter_mut().zip(decisions.chunks_exact(2)) {
            pair.copy_from_slice(counts);
        }
        sums_of_rule
    }
}

// === impl ValueMeter ===

impl ValueMeter {
    fn new(keys: Keys, stats_key: Box<str>) -> Self {
        Self { keys, stats_key, counters: Striped::new() }
    }

    #[inline]
    fn note(&self, hits: Hits) {
        let stripe = self.counters.mine();
        hits.count(|at, more| stripe.add(at, more));
    }

    fn sums(&self) -> Hits {
        Hits::counted(&self.counters.sums())
    }
}

/// A failure mode of `error` gives no verdict.
fn index(how: DecisionSource) -> usize {
    match how {
        DecisionSource::Local => 0,
        DecisionSource::Leased => 1,
        DecisionSource::Failure(FailureMode::Local) => 2,
        DecisionSource::Failure(FailureMode::Allow) => 3,
        DecisionSource::Failure(FailureMode::Deny | FailureMode::Error) => 4,
        DecisionSource::Shed => 5,
    }
}

// === impl Keys ===

impl Keys {
    /// The labels that the reference implementation's default mapper derives from a stats key: the
    /// first three parts between dots. Dots in a domain shift the parts, in the reference and here.
    /// Long parts are cut, because they are kept in memory.
    fn of(stats_key: &str) -> Self {
        let mut parts = stats_key.split('.');
        let domain = bounded(parts.next().unwrap_or_default()).into();
        let key1 = bounded(parts.next().unwrap_or_default()).into();
        Self { domain, key1, key2: parts.next().map(|part| bounded(part).into()) }
    }

    /// The labels of a rule that was not hit yet; `None` if they contain text from requests, such
    /// as the key that matched a pattern.
    fn beforehand(rule: &Rule) -> Option<Self> {
        let is_pattern = |level: &Level| matches!(level.matched, LevelMatch::Wildcard(_));
        let is_shown = |level| rule.varies_at(level);
        let varies = (0..LEVELS_IN_LABELS).any(is_shown)
            || rule.levels.iter().take(LEVELS_IN_LABELS).any(is_pattern);
        (!varies).then(|| Self::of(&rule.stats_name()))
    }

    /// The labels for overrides; the reference implementation makes a series for each of their
    /// values.
    fn overrides(domain: &str) -> Self {
        Self { domain: bounded(domain).into(), key1: OVERRIDE.into(), key2: None }
    }

    fn folded() -> Self {
        Self { domain: FOLDED.into(), key1: FOLDED.into(), key2: None }
    }

    fn labels(&self) -> Labels {
        let mut labels: Labels = vec![
            ("domain", Cow::Owned(self.domain.to_string())),
            ("key1", Cow::Owned(self.key1.to_string())),
        ];
        labels.extend(self.key2.as_ref().map(|key| ("key2", Cow::Owned(key.to_string()))));
        labels
    }
}

// === impl RuleSums ===

impl RuleSums {
    /// Number of decisions in total.
    fn count(&self) -> u64 {
        self.by_verdict().iter().sum()
    }

    /// Decisions: allowed, and over the limit.
    fn by_verdict(&self) -> [u64; 2] {
        let column = |at: usize| self.decisions.iter().map(|pair| pair[at]).sum();
        [column(0), column(1)]
    }

    fn add(&mut self, other: &Self) {
        let pairs = self.decisions.as_flattened_mut().iter_mut();
        pairs.zip(other.decisions.as_flattened()).for_each(|(sum, more)| *sum += more);
        self.hits.add(&other.hits);
    }
}

// The meters of rules: one for each path, so that counts continue when rules are reloaded.

/// Maximum number of meters searched for one whose rule is gone, before a rule is folded.
const SEARCH_MAX: usize = 64;

/// Number of meters read before the lock is released, so that a new rule can be added.
const READ_BATCH: usize = 256;

/// Number of attempts to read the sums of all meters while none is replaced.
const SUMS_READS_MAX: usize = 4;

/// A meter for each rule that was hit, up to a maximum. The other rules share one.
#[derive(Debug)]
struct Registry {
    max: usize,
    state: Mutex<State>,
    folded: Arc<RuleMeter>,
}

#[derive(Debug, Default)]
struct State {
    by_path: HashMap<Box<str>, usize>,
    meters: Vec<Arc<RuleMeter>>,
    /// Where the next search for a meter whose rule is gone begins.
    next_search: usize,
    /// Sums of the meters that were replaced by those of other rules.
    replaced_sums: RuleSums,
}

// === impl Registry ===

impl Registry {
    /// Creates a registry for `max` rules.
    fn new(max: usize) -> Self {
        Self { max, state: Mutex::default(), folded: Arc::new(RuleMeter::folded()) }
    }

    /// The meter of the rule at `path`; `make` creates it if it is new.
    fn meter(&self, path: &str, make: impl FnOnce() -> RuleMeter) -> Arc<RuleMeter> {
        let mut state = self.state.lock();
        if let Some(meter) = state.by_path.get(path).and_then(|at| state.meters.get(*at)) {
            return Arc::clone(meter);
        }
        if state.meters.len() < self.max {
            let at = state.meters.len();
            let meter = Arc::new(make());
            state.by_path.insert(path.into(), at);
            state.meters.push(Arc::clone(&meter));
            return meter;
        }
        match state.find_unused() {
            Some(at) => state.replace(at, Arc::new(make())),
            None => Arc::clone(&self.folded),
        }
    }

    /// The meter of all rules without a meter of their own.
    fn folded(&self) -> &RuleMeter {
        &self.folded
    }

    /// Whether `meter` is the meter of all rules without a meter of their own.
    #[inline]
    fn is_folded(&self, meter: &RuleMeter) -> bool {
        std::ptr::eq(meter, &*self.folded)
    }

    /// Every meter, that of the folded rules last. A rule that has to be added meanwhile waits for
    /// few reads.
    fn meters(&self) -> Vec<Arc<RuleMeter>> {
        let mut meters = Vec::new();
        loop {
            let state = self.state.lock();
            let rest = state.meters.get(meters.len()..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            meters.extend(rest.iter().take(READ_BATCH).cloned());
        }
        meters.push(Arc::clone(&self.folded));
        meters
    }

    fn len(&self) -> usize {
        self.state.lock().meters.len()
    }

    /// The sums of all meters, with those that were replaced by those of other rules. They are read
    /// again if one that has counted is replaced meanwhile, a few times.
    fn sums(&self) -> RuleSums {
        let mut sums = RuleSums::default();
        for _ in 0..SUMS_READS_MAX {
            let replaced = self.state.lock().replaced_sums;
            sums = replaced;
            self.meters().iter().for_each(|meter| sums.add(&meter.sums()));
            if self.state.lock().replaced_sums == replaced {
                break;
            }
        }
        sums
    }
}

// === impl State ===

impl State {
    /// Finds a meter that no rule in force has: none has bound it since the rules were loaded.
    fn find_unused(&mut self) -> Option<usize> {
        for _ in 0..SEARCH_MAX.min(self.meters.len()) {
            let at = self.next_search % self.meters.len();
            self.next_search = at + 1;
            if self.meters.get(at).is_some_and(|meter| Arc::strong_count(meter) == 1) {
                return Some(at);
            }
        }
        None
    }

    fn replace(&mut self, at: usize, meter: Arc<RuleMeter>) -> Arc<RuleMeter> {
        if let Some(place) = self.meters.get_mut(at) {
            let old = std::mem::replace(place, Arc::clone(&meter));
            self.by_path.remove(&old.path);
            self.replaced_sums.add(&old.sums());
        }
        self.by_path.insert(meter.path.clone(), at);
        meter
    }
}

// Hits by domain, for a control plane that compares them.

/// Hits of the limits of a domain since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DomainHits {
    /// All of them.
    pub total: u64,
    /// Those over a limit that is enforced.
    pub denied: u64,
    /// Those over a limit in shadow mode, which passed.
    pub shadow: u64,
    /// Hits besides them that candidate rules were not tried on.
    pub left_out: u64,
}

// === impl DomainHits ===

impl DomainHits {
    /// The hits since `former`. A counter that is smaller now had its rule replaced, and began
    /// again.
    #[must_use]
    pub fn since(&self, former: &Self) -> Self {
        let total = self.total.saturating_sub(former.total);
        let denied = self.denied.saturating_sub(former.denied).min(total);
        let shadow = self.shadow.saturating_sub(former.shadow).min(total - denied);
        let left_out = self.left_out.saturating_sub(former.left_out);
        Self { total, denied, shadow, left_out }
    }

    fn add(&mut self, meter: &RuleMeter) {
        let hits = meter.sums().hits;
        self.total = self.total.wrapping_add(hits.total);
        self.denied = self.denied.wrapping_add(hits.over.saturating_sub(hits.shadow));
        self.shadow = self.shadow.wrapping_add(hits.shadow);
    }
}

// === impl Meters ===

impl Meters {
    /// The hits of each domain that has had any. Reads the series of all rules; rules without room
    /// for a series are left out.
    pub fn hits_by_domain(&self) -> HashMap<Box<str>, DomainHits> {
        let mut hits = HashMap::<Box<str>, DomainHits>::new();
        let rules = self.shared.rules.meters();
        let meters = rules.iter().map(AsRef::as_ref).chain(self.shared.overrides.iter());
        for meter in meters.filter(|meter| !self.shared.rules.is_folded(meter)) {
            match hits.get_mut(&meter.domain) {
                Some(hits) => hits.add(meter),
                None => hits.entry(meter.domain.clone()).or_default().add(meter),
            }
        }
        for (domain, left_out) in &*self.shared.left_out.lock() {
            hits.entry(domain.clone()).or_default().left_out = *left_out;
        }
        hits
    }
}

// Selects the rules whose series are reported before they have counted anything.
//
// A series that begins with its first hit hides that hit from `rate()` and `increase()`, which see
// only growth between two samples.

/// Maximum number of rules whose series are reported at 0; if more are in force, none is. Each rule
/// has nine such series, some 1 KB of a scrape, and most of so many are never hit.
const RULES_MAX: usize = 1000;

/// The rules in force, if their series are reported at 0.
#[derive(Debug, Clone, Copy)]
struct ZeroSeries<'r>(Option<&'r Rules>);

/// The reference implementation's series, by label.
type HitSeries = BTreeMap<Keys, ReportedHits>;

/// The totals of one of these series.
#[derive(Debug, Clone, Copy, Default)]
struct ReportedHits {
    sums: Hits,
    /// Whether the series is reported even if its value is 0.
    even_at_zero: bool,
}

// === impl ZeroSeries ===

impl<'r> ZeroSeries<'r> {
    /// Returns the rules to report at 0: none if there are more than `series_max` rules. Only so
    /// many are counted separately, and a rule reported at 0 might be folded when it is hit.
    fn of(rules: Option<&'r Rules>, series_max: usize) -> Self {
        Self(rules.filter(|rules| rules.len() <= RULES_MAX.min(series_max)))
    }

    /// Whether the rule at this path is one of them.
    fn contains(self, path: &str) -> bool {
        self.0.and_then(|rules| rules.by_path(path)).is_some_and(|rule| is_counted(rule))
    }

    /// The rules that have no meter among `meters`.
    fn rules_without_meter<'a>(
        self,
        meters: impl Iterator<Item = &'a RuleMeter>,
    ) -> impl Iterator<Item = &'r Rule> {
        let hit: HashSet<&str> = meters.map(|meter| &*meter.path).collect();
        let unhit: Vec<_> = self.rules().filter(|rule| !hit.contains(&*rule.path)).collect();
        unhit.into_iter()
    }

    /// Marks the reference implementation's series that are reported at 0.
    fn mark(self, series: &mut HitSeries) {
        for keys in self.rules().filter_map(Keys::beforehand) {
            series.entry(keys).or_default().even_at_zero = true;
        }
    }

    fn rules(self) -> impl Iterator<Item = &'r Rule> {
        let rules = self.0.into_iter().flat_map(Rules::iter).map(AsRef::as_ref);
        rules.filter(|rule| is_counted(rule))
    }
}

fn is_counted(rule: &Rule) -> bool {
    rule.allowance != Allowance::Unlimited
}

#[cfg(test)]
mod tests;
