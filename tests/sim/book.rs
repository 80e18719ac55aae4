//! The tokens that the store leased of one count, and whether its algorithm's bound allowed them.
//!
//! Each book works on plain lists and sums of its own, from the bounds in `docs/accuracy.md`, and
//! shares no code with `crates/engine/src/algorithm`. It receives every step in the order in which
//! the store took them, and every failover: only the steps that a failover lost or repeated excuse
//! a token beyond the bound.

pub mod fixed_window;
pub mod leaky_bucket;
mod pool;
pub mod sliding_log;
pub mod sliding_window;
pub mod slots;
pub mod token_bucket;

use ratelease_engine::algorithm::{Token, counting};
use ratelease_engine::store::{Ask, Grant};
use ratelease_engine::time::Time;

/// One step of the store on one count.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Time of the step, by the run's clock, which never jumps.
    pub at: Time,
    /// Time of the step, by the store's wall clock, in microseconds.
    pub wall_us: u64,
    /// The request to the store.
    pub ask: Ask,
    /// The store's reply.
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
    /// Enters a step. The error says which bound the step broke.
    fn enter(&mut self, step: &Step) -> Result<(), String>;

    /// Computes the tokens that the failover excuses.
    fn fail_over(&mut self, failover: &Failover);

    /// Tokens beyond the bound that failovers excuse; 0 without failovers.
    fn excused(&self) -> u64;
}

/// An empty book for a pool of a split key.
pub fn open_pool() -> Box<dyn Book> {
    Box::<pool::Pool>::default()
}

/// Checks the contract of every algorithm: a need is met whole or not at all, no more is leased
/// than was asked for, and no lease outlives the time that was asked for.
pub fn check_contract(step: &Step) -> Result<(), String> {
    let Step { ask, grant, .. } = step;
    let wanted = ask.want.max(ask.need);
    if grant.tokens > wanted {
        return Err(format!("lent {} where {wanted} were asked for", grant.tokens));
    }
    if grant.tokens > 0 && grant.tokens < ask.need {
        return Err(format!("lent {} where {} were needed", grant.tokens, ask.need));
    }
    // A slot ends at its own time, and a lease of the next window at that window's end.
    let spaced = ask.next_window || counting(ask.limit).token == Token::Slot;
    if !spaced && grant.ends_after > ask.ttl {
        return Err(format!("lent for {:?} where {:?} was asked", grant.ends_after, ask.ttl));
    }
    Ok(())
}
