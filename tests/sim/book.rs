//! What the store lent of one count, and whether its algorithm's bound allowed it.
//!
//! Each book works on plain lists and sums of its own, from the bounds in `docs/accuracy.md`,
//! and shares no line with `src/algorithm`. It is told of every step in the order the store took
//! them, and of failovers: what a failover lost or repeated is the only excuse for a token more.

mod fixed_window;
mod leaky_bucket;
mod pool;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use ratelease_engine::store::{Ask, Grant};
use ratelease_engine::time::Time;
use ratelease_rules::{Algorithm, Limit};

/// One step of the store on one count.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// When, in the run's own time, which never jumps.
    pub at: Time,
    /// When, by the store's wall clock, in microseconds.
    pub wall_us: u64,
    /// What was asked.
    pub ask: Ask,
    /// What the store said.
    pub grant: Grant,
}

/// A failover of the store.
#[derive(Debug, Clone, Copy)]
pub struct Failover {
    /// Steps after this are lost.
    pub kept_until: Time,
    /// The store's clock before and after, in microseconds.
    pub wall_us: (u64, u64),
}

/// The accounts of one count.
pub trait Book: Send {
    /// Enters a step; the error says which bound it broke.
    fn enter(&mut self, step: &Step) -> Result<(), String>;

    /// Works out what the failover excuses.
    fn fail_over(&mut self, failover: &Failover);

    /// Tokens that the bound would have been exceeded by but for failovers; 0 without any.
    fn excused(&self) -> u64;
}

/// An empty book for a count of this limit.
pub fn open(limit: Limit) -> Box<dyn Book> {
    match limit.algorithm {
        Algorithm::FixedWindow => Box::<fixed_window::FixedWindow>::default(),
        Algorithm::TokenBucket { .. } => Box::<token_bucket::TokenBucket>::default(),
        Algorithm::SlidingWindow => Box::<sliding_window::SlidingWindow>::default(),
        Algorithm::SlidingLog => Box::<sliding_log::SlidingLog>::default(),
        Algorithm::LeakyBucket { .. } => Box::<leaky_bucket::LeakyBucket>::default(),
    }
}

/// An empty book for a pool of a split key.
pub fn open_pool() -> Box<dyn Book> {
    Box::<pool::Pool>::default()
}

/// What holds for every algorithm: a need is met whole or not at all, no more is lent than was
/// asked for, and no lease outlives what it was asked for.
pub fn check_contract(step: &Step) -> Result<(), String> {
    let Step { ask, grant, .. } = step;
    let wanted = ask.want.max(ask.need);
    if grant.tokens > wanted {
        return Err(format!("lent {} where {wanted} were asked for", grant.tokens));
    }
    if grant.tokens > 0 && grant.tokens < ask.need {
        return Err(format!("lent {} where {} were needed", grant.tokens, ask.need));
    }
    // A slot ends by its own time, and a lease of the next window by that window's.
    let spaced = ask.ahead || matches!(ask.limit.algorithm, Algorithm::LeakyBucket { .. });
    if !spaced && grant.ends_after > ask.ttl {
        return Err(format!("lent for {:?} where {:?} was asked", grant.ends_after, ask.ttl));
    }
    Ok(())
}
