//! **ratelease**: a per-pod rate limit sidecar for Envoy.
//!
//! It answers `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` from tokens that it
//! already holds. The tokens come in batches, *leases*, from a Redis Cluster that owns each key's
//! count. A lease is debited there before its first token is spent, so the fleet never admits more
//! than the limit, and a decision costs no network trip.
//!
//! # The data's way
//!
//! ```text
//! Envoy ─▶ grpc ─▶ intake ─▶ limiter ─▶ rules.find ─▶ buffer.take ──enough──▶ verdict ─▶ grpc ─▶ …
//!                               │                          │ low: ask ahead, answer now
//!                               │                          └ empty: wait for a lease, bounded
//!                               └──▶ lease desk ─▶ store ─▶ Redis shard ─▶ grant ─▶ buffer.refill
//! files ─▶ control/watch ─▶ Arc<Rules>, swapped whole
//! ```
//!
//! # What is absent
//!
//! 1. No request handler calls Redis: only the lease desk does.
//! 2. `buffer` and `lease` meet only in `limiter`.
//! 3. One file names Envoy's protobuf types (`grpc/wire.rs`), one module the Redis client
//!    (`store/redis`).
//! 4. The core (`rules`, `key`, `buffer`, `lease/size`, `algorithm`) reads no clock, no dice and no
//!    socket: `now` is an argument.
//! 5. Rules are replaced whole, never edited; a bad file never replaces a good one; one answer is
//!    computed under one version.
//! 6. Every map, queue, wait and batch has a named ceiling.
//! 7. No input can make the process exit.
//!
//! `tests/it/tidy.rs` holds those that can be read off the text.
//!
//! # Words
//!
//! *domain, descriptor, entry* are Envoy's; *rule, limit* are ours. A *key* names one count:
//! domain, matched entries and the rule's identity. A *buffer* holds the local tokens of a key;
//! requests *take* from it. A *lease* is tokens lent to a pod, with an end: an *ask* goes out, a
//! *grant* comes back and is the buffer's *refill*; what is not spent is *given back*. A *lot* is
//! the tokens of one lease in a buffer, a *pool* tokens of a hot key that lie on another slot of
//! the store, for pods to lease from. A *shard* is a Redis node, the *store* the seam before it, a
//! *verdict* the answer.
//!
//! # Modules, in the order a request meets them
//!
//! [`accept`] takes connections; [`grpc`] and [`http`] are the doors, [`intake`] what both do.
//! [`request`] is a call in our types, [`rules`] what limits it, [`key`] the count's name.
//! [`limiter`] decides on [`buffer`]s and [`verdict`] makes the answer of it;
//! [`observe`] tells who keeps count of that: [`metrics`] of all decisions, [`hot`] of the hottest
//! keys, in a [`sketch`] of all and one of each busy rule. [`lease`] is the desk that asks the
//! [`store`], whose arithmetic is [`algorithm`]'s. Beside them, [`control`] holds what may change
//! while running, [`settings`] what may not, [`telemetry`] the log, [`time`] the clock,
//! [`invariant`] what must hold, `dice` and `stripe` what threads have of their own, `steering`
//! what no text may show; [`cli`] is what the program does beside serving. [`supervise`] keeps
//! tasks running, and [`app`] puts it all together.

#![forbid(unsafe_code)]

pub mod accept;
pub mod app;
pub mod control;
pub mod grpc;
pub mod hot;
pub mod http;
pub mod intake;
pub mod metrics;
pub mod observe;
pub mod refusal;
pub mod supervise;
pub mod telemetry;
