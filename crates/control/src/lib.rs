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
//! `document` is pure; `store` holds all SQL, `auth` knows tokens, `oidc` has people sign in, `rates`
//! counts requests, `permits` bounds how many are handled at a time, and `work` keeps the permits of
//! requests until their work ends. `objects` follows the rules of a Kubernetes cluster. `push` serves pods, `metrics`,
//! `page` and `api` serve people; `settings` is the command line, `tokens` and `app` are
//! what it runs.

#![forbid(unsafe_code)]
#![allow(unreachable_pub, reason = "`pub` in a private module is what another file uses")]

mod api;
mod app;
mod auth;
mod document;
mod gate;
mod metrics;
mod objects;
mod oidc;
mod page;
mod permits;
mod push;
mod rates;
pub mod settings;
mod steps;
mod store;
pub mod tokens;
mod work;

pub use api::openapi;
pub use app::Control;
pub use push::Selection;
pub use rates::RateSettings;
pub use store::{Author, CountKey, Database, HitCount, PodRow, ReplicaCount, Store};
