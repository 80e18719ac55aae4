//! **Push**: each published version to every pod, by xDS (ADS, state of the world).
//!
//! ```text
//! database ─▶ published: what each pod gets ─▶ server: a task for each stream ─▶ pods
//!                                                │ accepted, refused
//!                                                ├▶ streams ─▶ database: what pods run
//!                                                └▶ load_reports ─▶ database: hits, a roll back
//!                                                   └▶ fleet ─▶ database: what pods deny
//! ```
//! `service` is the port, and `connections` what the streams of one connection share; `selection`
//! says which domains a pod may have, and `deliveries` bounds the responses on their way.
//!
//! Pods report hits and hot keys (LRS); a rollout ends if too much is denied. A pod gets
//! a set when what it would get differs from what it has, and the next one when it has answered
//! that one.

mod connections;
mod deliveries;
mod fleet;
mod load_reports;
mod published;
mod selection;
mod server;
mod service;
mod streams;

#[cfg(test)]
mod tests;

pub use fleet::FleetView;
pub use fleet::{Fleet, report_fleet};
pub use load_reports::RolloutCounts;
pub use load_reports::watch_rollout;
pub use load_reports::{AUTHOR as ROLLOUT_AUTHOR, ROLLBACK_REASON};
pub use published::follow;
pub use published::listen;
pub use published::{PublishedDomain, PublishedSet};
pub use selection::Selection;
pub use server::PodServer;
pub use service::TLS_PORT;
pub use service::serve;
pub use streams::LAG_BOUNDS;
pub use streams::report;
pub use streams::{Lag, StreamStates, Streams};
