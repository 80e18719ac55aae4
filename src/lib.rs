//! **ratelease**: a per-pod rate limit sidecar for Envoy.
//!
//! It answers `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit` from tokens that it
//! already holds. The tokens come in batches, *leases*, from a Redis Cluster that owns each key's
//! count. Redis debits a lease before its first token is spent, so that a lost reply admits fewer
//! requests, not more.
//!
//! This crate is the sidecar's server. It may use the rules, the engine and the command line; only
//! its own binary, tests and benches use it.
//!
//! # From a request to an answer
//!
//! ```text
//! Envoy ─▶ grpc ─▶ service ─▶ engine: limiter ─▶ verdict ─▶ grpc ─▶ Envoy
//!                      └─▶ observe ─▶ metrics, hot_keys, telemetry
//! files ─▶ rule_source/watch ─▶ Arc<Rules>, replaced whole
//! ```
//!
//! # Crates
//!
//! | crate | what it is for |
//! |---|---|
//! | `ratelease-rules` | requests, rules and keys: parse, compile, match; pure |
//! | `ratelease-engine` | decides from buffers, and leases tokens from a store |
//! | `ratelease-cli` | flags, settings, and what both programs print and ask with |
//! | `ratelease` | this one: the sidecar, `serve`, `check`, `health` |
//! | `ratelease-ctl` | the tools, `ratectl` |
//!
//! # Invariants
//!
//! 1. No request handler calls Redis: only the engine's lease client does.
//! 2. One file names Envoy's protobuf types (`grpc/wire.rs`).
//! 3. Rules are replaced whole, never edited; a bad file never replaces a good one; one answer is
//!    computed under one version.
//! 4. Every map, queue, wait and batch has a named ceiling.
//! 5. No input can make the process exit.
//!
//! `tests/it/tidy.rs` checks, for every crate, those that the compiler does not enforce.
//!
//! # Modules
//!
//! Each module names only modules that come before it in `tests/it/tidy/layers.rs`. [`accept`]
//! accepts connections; [`request_error`] holds the reasons why a call gets no verdict;
//! [`supervise`] restarts background tasks. [`metrics`] counts all decisions, [`hot_keys`] the
//! hottest keys, [`telemetry`] is the log, the spans and what is pushed, and [`observe`] passes
//! each decision to all of them. [`rule_source`] loads the rules and keeps them in force. [`admin`]
//! shows the state of the process. [`service`] checks and decides a request, for both [`grpc`] and
//! [`http`]. [`app`] builds all parts and runs them.

#![forbid(unsafe_code)]

pub mod accept;
pub mod admin;
pub mod app;
pub mod grpc;
pub mod hot_keys;
pub mod http;
pub mod metrics;
pub mod observe;
pub mod request_error;
pub mod rule_source;
pub mod service;
pub mod supervise;
pub mod telemetry;
