//! **The control plane**: the rules of a fleet in one database, a REST API to change them, and a
//! push of each published version to every pod.
//!
//! ```text
//! api, objects ─▶ store: draft, versions ─▶ push ─▶ pods
//!  └────────── document: records ⇄ rule files ──────┘
//! ```
//! It uses the compiler of `ratelease-rules`, and the engine to bound the rate of its own callers.
//! It decides no requests, but for a dry run, which `ratelease-replay` does: what a pod does with
//! rules is the pod's own. A version is one transaction, and is acknowledged after its commit.
//!
//! # Modules
//!
//! [`document`] is pure; [`store`] holds all SQL, [`auth`] knows tokens, [`rates`] counts requests
//! and bounds what is handled at a time, and `work` keeps the permits of requests until their work
//! ends. `objects` follows the rules of a Kubernetes cluster. [`push`] serves pods, [`metrics`],
//! `page` and [`api`] serve people; [`settings`] is the command line, [`tokens`] and [`app`] are
//! what it runs.

#![forbid(unsafe_code)]

pub mod api;
pub mod app;
pub mod auth;
pub mod document;
pub mod metrics;
pub mod objects;
mod page;
pub mod push;
pub mod rates;
pub mod settings;
pub mod store;
pub mod tokens;
mod work;
