//! Pods by the dozen over one store, in virtual time: thousands of short runs, each with rules,
//! demand and trouble of its own, all of which follow from a seed. After every step the run is held
//! to what `docs/accuracy.md` promises:
//!
//! 1. The store lends no more than the bound of the algorithm, by sums of our own ([`book`]).
//! 2. No pod spends what it was not lent, or what has ended, or gives it back twice ([`purse`]).
//! 3. Tables hold no more keys than their ceilings.
//! 4. Every request is answered within its deadline; errors only where something failed.
//! 5. Each token is accounted for where none can be lost (`Mood::Audit`); a pod without the store
//!    admits no more than its part; a calm run asks no more often than once a request, and admits
//!    0.95 of what one exact server does ([`oracle`], [`fair`]).
//! 6. Where nothing fails ([`ledger`]), with fixed windows and single hits: at 0.95 of the limit
//!    nobody is denied while more is left of it than a tenth and two tokens a pod, which lie in
//!    buffers; in all runs together at most one in a thousand while any is left. Of a limit that
//!    more is asked of, 0.98 is used in each window, but for one token a pod, and 0.99 in all runs
//!    together. Few tokens make the pods' part large: of 20 a window, four pods may hold four.
//!
//! A run that breaks a promise says which seed it was of, and `scripts/simulate --seed <seed>` runs
//! that one alone and tells its story, step by step. `scripts/simulate --for 10m` runs fresh seeds.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

mod book;
mod caller;
mod dice;
mod drills;
mod fair;
mod fleet;
mod fleets;
mod ledger;
mod meter;
mod network;
mod oracle;
mod plan;
mod purse;
mod rule;
mod run;
mod seeds;
mod shrink;
mod trace;
mod weather;
mod world;
