//! The algorithms: one file for each, with all in which it differs from the others, beside its Lua
//! script (both buckets share that of [`gcra`]). [`counting`] dispatches; nothing else in the
//! engine matches on the algorithm.
//!
//! The arithmetic is pure: state and time in, state and grant out. The memory store runs it; the
//! scripts of the Redis store do the same calculations on the shard, and tests compare the two.
//! Each file has a `step`, which applies an ask to a state, and a `grant`, which turns the result
//! of a step, or a script's reply, into the reply to the pod.

/// A step on the variant of [`State`] that the state of an algorithm is.
macro_rules! step_of {
    ($Variant:ident) => {
        |state, now_unix_us, ask| {
            let own = match state {
                Some($crate::algorithm::State::$Variant(own)) => Some(own),
                _ => None,
            };
            let (own, grant) = step(own, now_unix_us, ask);
            ($crate::algorithm::State::$Variant(own), grant)
        }
    };
}

pub mod concurrency;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod pool;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

use std::sync::OnceLock;

use ratelease_rules::{AMOUNT_MAX, Algorithm, Limit, Unit, WINDOW_SECONDS_MAX};

use crate::ask::{Ask, Grant, Return};

/// All that the engine does by algorithm.
#[derive(Debug, Clone, Copy)]
pub struct Counting {
    /// The arithmetic of a count.
    pub steps: Steps,
    /// The kind of token.
    pub token: Token,
    /// Whether an epoch is the number of a window that begins at the same time for all keys, and
    /// the state of a key holds until that window ends; else an epoch is a time.
    pub is_windowed: bool,
    /// The store's time of a grant, in microseconds since the Unix epoch, where the grant says it
    /// exactly.
    pub store_time_us: fn(&Ask, &Grant) -> Option<u64>,
    /// After how many windows without an ask a count has no effect any more; `None` if it does not
    /// pass with time.
    pub windows_kept: fn(Limit) -> Option<u64>,
}

/// The kind of a token, which decides how pods hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// A token belongs to a window and lasts as long. All come back when the next window begins,
    /// and may be leased shortly before.
    OfWindow,
    /// A token may be spent at any time. Spent tokens come back steadily.
    Steady,
    /// A token is a slot of a leaky bucket: a time that passes whether it is used or not, so it
    /// never goes back to the store.
    Slot,
    /// A token is a slot of `concurrency`. A request has it from its start to its end, and then
    /// gives it back. It never comes back by time.
    Permit,
}

/// The arithmetic of a count or a pool: in Rust, and as a script that does the same on a shard.
#[derive(Debug, Clone, Copy)]
pub struct Steps {
    /// As [`step`].
    step: fn(Option<State>, u64, &Ask) -> (State, Grant),
    /// The script.
    pub script: &'static Script,
    /// The arguments of the script for an ask. The time is the pod's estimate of the store's, in
    /// microseconds since the Unix epoch: it chooses the windows of a calendar that the arguments
    /// name, and decides nothing.
    pub arguments: fn(&Ask, u64) -> Vec<u64>,
    /// Reads the script's reply to an ask; `None` if the script cannot have given it.
    pub reply: fn(&Ask, &[u64]) -> Option<Grant>,
}

/// A script of the Redis store.
#[derive(Debug)]
pub struct Script {
    /// The text in Lua.
    pub text: &'static str,
    hash: OnceLock<String>,
}

/// Returns the properties of the algorithm of `limit`.
#[inline]
pub fn counting(limit: Limit) -> &'static Counting {
    match limit.algorithm {
        Algorithm::FixedWindow => &fixed_window::COUNTING,
        Algorithm::TokenBucket { .. } => &token_bucket::COUNTING,
        Algorithm::SlidingWindow => &sliding_window::COUNTING,
        Algorithm::SlidingLog => &sliding_log::COUNTING,
        Algorithm::LeakyBucket { .. } => &leaky_bucket::COUNTING,
        Algorithm::Concurrency => &concurrency::COUNTING,
    }
}

/// The arithmetic of the count, or the pool, that `ask` operates on.
pub fn steps(ask: &Ask) -> &'static Steps {
    if ask.pool.is_some() { &pool::STEPS } else { &counting(ask.limit).steps }
}

/// Every script that a count or a pool needs, each once.
pub fn scripts() -> Vec<&'static Script> {
    let mut scripts = vec![&pool::SCRIPT];
    for algorithm in Algorithm::ALL {
        let limit = Limit { algorithm, ..Limit::fixed_window(1, Unit::Second) };
        let script = counting(limit).steps.script;
        if !scripts.iter().any(|one| std::ptr::eq(*one, script)) {
            scripts.push(script);
        }
    }
    scripts
}

/// The store's state of one count. It is small, since there is one for each key; only a log, and
/// the pods that hold slots, are stored on the heap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The state of an [`Algorithm::FixedWindow`] count.
    FixedWindow(fixed_window::State),
    /// The state of an [`Algorithm::TokenBucket`] count.
    TokenBucket(gcra::State),
    /// The state of an [`Algorithm::SlidingWindow`] count.
    SlidingWindow(sliding_window::State),
    /// The state of an [`Algorithm::SlidingLog`] count.
    SlidingLog(Box<sliding_log::State>),
    /// The state of an [`Algorithm::LeakyBucket`] count.
    LeakyBucket(gcra::State),
    /// The state of an [`Algorithm::Concurrency`] count.
    Concurrency(Box<concurrency::State>),
    /// The state of a pool of a split key, with any algorithm.
    Pool(pool::State),
}

/// Applies `ask` at `now_unix_us` (microseconds since the epoch), to a pool if the ask names one,
/// else by the algorithm of its limit, as the contract of [`Store`](crate::store::Store) says.
/// Defined for every input: nothing overflows, nothing panics. A state of another algorithm counts
/// as none, since no two algorithms share a key.
pub fn step(state: Option<State>, now_unix_us: u64, ask: &Ask) -> (State, Grant) {
    (steps(ask).step)(state, now_unix_us, ask)
}

// === impl Token ===

impl Token {
    /// Whether a token is as good as any other of its count, so that one that is leased later pays
    /// for one that was spent before, and an unspent one can be credited. Slots pass, and permits
    /// are stated as a whole.
    pub fn can_be_owed(self) -> bool {
        match self {
            Self::OfWindow | Self::Steady => true,
            Self::Slot | Self::Permit => false,
        }
    }
}

// === impl State ===

impl State {
    /// When the state becomes equivalent to no state, in seconds since the Unix epoch; 0 if it
    /// already is. `ask` is the one that produced it.
    pub fn ends_at(&self, ask: &Ask) -> u64 {
        let terms = ask.limit;
        match self {
            Self::FixedWindow(state) => state.ends_at(ask),
            Self::SlidingWindow(state) => state.ends_at(window_seconds(terms)),
            Self::TokenBucket(state) | Self::LeakyBucket(state) => {
                state.ends_at(window_seconds(terms))
            }
            Self::SlidingLog(log) => log.ends_at(window_us(terms)),
            Self::Concurrency(slots) => slots.ends_at(),
            Self::Pool(state) => state.ends_at(),
        }
    }
}

// === impl Script ===

impl Script {
    pub(crate) const fn new(text: &'static str) -> Self {
        Self { text, hash: OnceLock::new() }
    }

    /// The hash by which servers identify the script, computed once by `compute`.
    pub fn hash(&self, compute: impl FnOnce(&str) -> String) -> &str {
        self.hash.get_or_init(|| compute(self.text))
    }
}

const MICROS_PER_SECOND: u64 = 1_000_000;

/// Length of the window, limited to what rules may have, so that the scripts count it exactly.
pub(crate) fn window_seconds(terms: Limit) -> u64 {
    terms.window_seconds().min(WINDOW_SECONDS_MAX)
}

pub(crate) fn window_us(terms: Limit) -> u64 {
    window_seconds(terms) * MICROS_PER_SECOND
}

/// The window that the key is in: the clock's, or the next one if the state belongs to that. The
/// clock of a master that takes over may be behind: a key's time must not run back, or the tokens
/// of its window would be leased twice. A state further ahead comes from a wrong clock.
fn window_of(stored: Option<u64>, now_unix_us: u64, terms: Limit) -> u64 {
    let window = terms.window_at(now_unix_us);
    stored.filter(|of| *of == window.saturating_add(1)).unwrap_or(window)
}

/// Microseconds until `window` ends: at least 1, and more than its length only if the window lies
/// in the future.
fn until_end_us(window: u64, now_unix_us: u64, terms: Limit) -> u64 {
    let ends = terms.window_starts(window.saturating_add(1));
    ends.saturating_sub(now_unix_us).max(1)
}

/// Whether `window` is the window of the time, or the next one, which a clock that was ahead began.
fn is_present(window: u64, now_unix_us: u64, terms: Limit) -> bool {
    let present = terms.window_at(now_unix_us);
    window == present || window == present.saturating_add(1)
}

/// Amounts are cut to this before they are sent to a script. It is above every limit, so it already
/// means "all", and Lua's doubles represent it exactly.
const ALL: u64 = AMOUNT_MAX + 1;

/// The script's reply if the store's time lies outside of the windows that it was told of: that
/// time alone, in microseconds since the Unix epoch. It has changed nothing.
pub fn time_outside(numbers: &[u64]) -> Option<u64> {
    if let &[time_us] = numbers { Some(time_us) } else { None }
}

/// The length of the longest list of arguments: a bucket's, with a return.
const ARGUMENTS_MAX: usize = 19;

/// The arguments of a script: the tokens asked for, the costs owed, the numbers that only this
/// script has, and the tokens that come back.
fn arguments(ask: &Ask, own: &[u64]) -> Vec<u64> {
    let mut arguments = Vec::with_capacity(ARGUMENTS_MAX);
    arguments.extend([amount(ask.want), amount(ask.need), u64::from(ask.charge_denied)]);
    arguments.push(amount(ask.owed));
    arguments.extend(own);
    if let Some(Return { tokens, epoch }) = ask.back {
        arguments.push(amount(tokens));
        arguments.extend(epoch);
    }
    arguments
}

/// The requests of a limit. Rules refuse more than scripts count exactly; if a limit of more gets
/// here, it is cut.
fn limit_of(terms: Limit) -> u64 {
    terms.requests_per_unit.min(AMOUNT_MAX)
}

fn amount(tokens: u64) -> u64 {
    tokens.min(ALL)
}

#[cfg(test)]
mod tests;
