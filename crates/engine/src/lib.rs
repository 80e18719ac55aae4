//! **The engine**: decides a rate limit request from tokens that this process holds, and leases
//! more tokens from a store that owns each key's count.
//!
//! ```text
//! limiter ─▶ buffer.take ──enough──▶ verdict
//!    │           │ low: ask ahead, answer now
//!    │           └ empty: wait for a lease, at most the deadline
//!    └──▶ lease client ─▶ store ─▶ Redis shard ─▶ grant ─▶ buffer.refill
//! ```
//!
//! The engine may use the rules, an async runtime and a Redis client. It knows nothing of gRPC,
//! HTTP, settings, metrics or OpenTelemetry: counts are read by the caller, and events are logged
//! with `tracing`.
//!
//! The sidecar uses the engine and serves it; the tools run it over logs and test cases.
//!
//! # Boundaries
//!
//! 1. No request handler calls Redis: only the lease client does.
//! 2. `buffer` and `lease` meet only in `limiter`.
//! 3. One module names the Redis client (`store/redis`).
//! 4. `algorithm`, `ask`, `buffer`, `lease/size` and `verdict` read no clock, draw no random
//!    numbers and open no socket: `now` is an argument.
//! 5. Every map, queue, wait and batch has a named ceiling.
//!
//! `docs/design.md` explains the words of this crate (key, buffer, take, lease, ask, grant, refill,
//! …).
//!
//! # Modules
//!
//! [`invariant`] checks invariants at run time. [`rng`] and [`time`] provide random numbers and the
//! clock, and [`backoff`] the waits between attempts. [`counter`], [`striped`], [`latency`]
//! and [`sketch`] count. [`secret`] is text that is never shown, and [`span_context`]
//! the tracing span that a thread works for. [`ask`] is a request to the store and its reply,
//! [`algorithm`] the arithmetic, and [`store`] the owner of the counts, in memory or in Redis.
//! [`order`] is an operator's order for one key, and [`pod`] the record of a pod for operators.
//! [`verdict`] is the answer, [`buffer`] the local tokens, [`lease`] the lease client that asks the
//! store, and [`limiter`] decides.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod ask;
pub mod backoff;
pub mod buffer;
pub mod counter;
pub mod invariant;
pub mod latency;
pub mod lease;
pub mod limiter;
pub mod order;
pub mod pod;
pub mod rng;
pub mod secret;
pub mod sketch;
pub mod span_context;
pub mod store;
pub mod striped;
pub mod time;
pub mod verdict;
