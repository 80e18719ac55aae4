//! Dozens of pods on one store, in virtual time: thousands of short runs, whose rules, demand and
//! faults all follow from a seed. After every step the run is checked against the promises of
//! `docs/accuracy.md`:
//!
//! 1. The store leases no more than the bound of the algorithm, by separate sums ([`book`]).
//! 2. No pod spends tokens that it was not leased or that have ended, and no pod gives tokens back
//!    twice ([`purse`]).
//! 3. Tables hold no more keys than their ceilings.
//! 4. Every request is answered within its deadline, with an error only where something failed.
//! 5. Each token is accounted for where none can be lost (`Mood::Audit`); a pod without the store
//!    admits no more than its part; a calm run asks at most once a request, and admits 0.95 of what
//!    one exact server does ([`oracle`], [`fair`]).
//! 6. Where nothing fails ([`ledger`]), with fixed windows and single hits: at 0.95 of the limit,
//!    no request is denied while more is left of the limit than a tenth plus two tokens a pod,
//!    which lie in buffers; over all runs, at most one in a thousand is denied while any token is
//!    left. If demand exceeds a limit, 0.98 of it is used in each window, apart from one token a
//!    pod, and 0.99 over all runs. With few tokens, the pods' part is large: of 20 a window, four
//!    pods may hold four.
//! 7. Costs that are known afterwards: a settlement passes, at once; nothing is held longer than
//!    `for` and a second; a pod reports no cost again whose reply arrived. Where no reply is lost,
//!    the store counts the sum of costs, to the token (`Mood::Audit`). Where nothing fails but pods
//!    (`Mood::Costs`), the hits that requests hold or use of their estimates are within the limit.
//!    So are the costs that were charged until each pod last let a look pass (`ledger::costs`).
//! 8. Where nothing fails but pods, no more slots than the limit are in use (`Mood::Slots`,
//!    `ledger::slots`). The slots of a pod that is gone are free five seconds later. All slots are
//!    free once every request has ended.
//!
//! A run that breaks a promise reports its seed, and `scripts/simulate --seed <seed>` repeats that
//! run alone and prints its story, step by step. `scripts/simulate --for 10m` runs fresh seeds.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

mod book;
mod caller;
mod drills;
mod ends;
mod fair;
mod fleet;
mod fleets;
mod ledger;
mod meter;
mod network;
mod oracle;
mod plan;
mod purse;
mod rng;
mod rule;
mod run;
mod seeds;
mod shrink;
mod trace;
mod weather;
mod world;
