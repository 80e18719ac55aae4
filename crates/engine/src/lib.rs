//! **The engine**: decides a rate limit request from tokens that this process holds, and leases
//! more from a store that owns each key's count.
//!
//! ```text
//! limiter ─▶ buffer.take ──enough──▶ verdict
//!    │           │ low: ask ahead, answer now
//!    │           └ empty: wait for a lease, bounded
//!    └──▶ lease desk ─▶ store ─▶ Redis shard ─▶ grant ─▶ buffer.refill
//! ```
//!
//! It may use the rules, a runtime and a client of Redis. It knows nothing of gRPC, HTTP, settings,
//! metrics or OpenTelemetry: it answers with verdicts, tells decisions to an
//! [`observer`](observer::Observer), keeps counts that others read, and logs by `tracing`.
//!
//! Used by the sidecar, which serves it, and by the tools, which run it over logs and test cases.
//!
//! # What is absent
//!
//! 1. No request handler calls Redis: only the lease desk does.
//! 2. `buffer` and `lease` meet only in `limiter`.
//! 3. One module names the Redis client (`store/redis`).
//! 4. `algorithm`, `ask`, `buffer`, `lease/size` and `verdict` read no clock, no dice and no
//!    socket: `now` is an argument.
//! 5. Every map, queue, wait and batch has a named ceiling.
//!
//! # Modules, each of which names only those before it
//!
//! [`invariant`] is what must hold, [`dice`], [`stripe`] and [`time`] what threads and clocks give,
//! [`backoff`] waits between attempts. [`count`], [`buckets`], [`striped`], [`latency`] and
//! [`sketch`] count. [`secret`] is text that is never shown, [`span_context`] the span that a
//! thread works for. [`ask`] is what the store is asked and replies, [`algorithm`] the arithmetic
//! of it, [`store`] who owns the counts, in memory or in Redis. [`verdict`] is the answer,
//! [`buffer`] holds the tokens of a key, [`lease`] is the desk that asks the store, and [`limiter`]
//! decides.

#![forbid(unsafe_code)]

pub mod algorithm;
pub mod ask;
pub mod backoff;
pub mod buckets;
pub mod buffer;
pub mod count;
pub mod dice;
#[doc(hidden)]
pub mod fuzzing;
pub mod invariant;
pub mod latency;
pub mod lease;
pub mod limiter;
pub mod observer;
pub mod secret;
pub mod sketch;
pub mod span_context;
pub mod store;
pub mod stripe;
pub mod striped;
pub mod time;
pub mod verdict;
