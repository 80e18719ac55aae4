//! **Push**: each published version to every pod, by xDS (ADS, state of the world).
//!
//! ```text
//! database ─▶ follow ─▶ PublishedSet ─▶ server: a task for each stream ─▶ pods
//!                          │                │ accepted, refused
//!                          └ translate      ├▶ streams ─▶ database: what pods run
//!                          └ rollout        └▶ load_reports ─▶ rollback ─▶ database
//! ```
//! Pods report hits of the domains of a rollout (LRS); `rollback` ends a rollout that denies too
//! much. A pod gets a set when what it would get differs from what it has, and the next one when it
//! has answered X

mod connections;
mod counts;
mod delivery;
mod follow;
mod listen;
mod load_reports;
mod node;
mod published;
mod report;
mod requests;
mod rollback;
mod rollout;
mod selection;
mod server;
mod service;
mod streams;
mod subscription;
mod translate;
mod wire;

#[cfg(test)]
mod tests;

pub use counts::RolloutCounts;
pub use follow::follow;
pub(crate) use follow::listen;
pub use listen::{PodTls, serve};
pub use published::{PublishedRollout, PublishedSet};
pub use report::report;
pub(crate) use rollback::AUTHOR as ROLLBACK_AUTHOR;
pub use rollback::watch_rollout;
pub use selection::Selection;
pub use server::PodServer;
pub(crate) use streams::LAG_BOUNDS;
pub use streams::{Lag, StreamStates, Streams};
