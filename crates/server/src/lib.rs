//! **The path of a call**: serves Envoy's gRPC protocol on accepted connections, decides, and
//! records each decision in metrics, hot keys, samples and spans.
//!
//! ```text
//! Envoy ─▶ listener ─▶ grpc ─▶ service ─▶ engine: limiter ─▶ verdict ─▶ grpc ─▶ Envoy
//!                               └─▶ observe ─▶ metrics, hot_keys, trace
//! ```
//!
//! It is a separate crate because everything here may run for each request: it is compiled for
//! speed, the rest of the sidecar for size (`docs/design.md`).
//!
//! It may use the rules, the engine, the listener and the settings. It binds no address, reads no
//! file, and does not know where rules come from: it is given [`current_rules`] and connections.
//! The sidecar and its benches use it.
//!
//! # Modules
//!
//! [`request`] names the protocols, and the reasons why a call gets no verdict; [`current_rules`]
//! are the rules in force. [`metrics`] counts all decisions, [`hot_keys`] the hottest keys,
//! [`observe`] passes each decision to both and logs some, and [`trace`] makes spans of some
//! requests. [`service`] checks and decides a request, for [`grpc`] here and for decisions over
//! HTTP in the sidecar; [`starts`] tells the limiter who asked, and which requests have ended.

#![forbid(unsafe_code)]

pub mod current_rules;
pub mod grpc;
pub mod hot_keys;
pub mod metrics;
pub mod observe;
pub mod request;
pub mod service;
pub mod starts;
pub mod trace;
