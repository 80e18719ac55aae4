//! **Push**: each published version to every pod, by xDS (ADS, state of the world).
//!
//! ```text
//! database ─▶ published: what each pod gets ─▶ server: a task for each stream ─▶ pods
//!                                                │ accepted, refused
//!                                                ├▶ streams ─▶ database: what pods run
//!                                                └▶ load_reports ─▶ database: hits, a roll back
//!                                                   └▶ fleet ─▶ database: what pods deny
//! ```
//! `service` is the port, and `connections` the state that the streams of one connection share.
//! `selection` decides which domains a pod may have, and `deliveries` bounds the responses on their
//! way.
//!
//! Pods report hits and hot keys (LRS); a rollout ends if too much is denied. A pod gets a set when
//! the set would change its rules, and the next one when it has answered that one.

use std::time::Duration;

use tokio::time::timeout;

use crate::store::{StoreError, StoreResult};

mod connections;
mod deliveries;
mod fleet;
mod load_reports;
mod published;
mod rollout_counts;
mod selection;
mod server;
mod service;
mod streams;

#[cfg(test)]
mod tests;

pub use fleet::FleetView;
pub use fleet::{Fleet, report_fleet};
pub use published::follow;
pub use published::listen;
pub use published::{PublishedDomain, PublishedSet};
pub use rollout_counts::RolloutCounts;
pub use rollout_counts::watch_rollout;
pub use rollout_counts::{AUTHOR as ROLLOUT_AUTHOR, ROLLBACK_REASON};
pub use selection::Selection;
pub use server::PodServer;
pub use service::TLS_PORT;
pub use service::serve;
pub use streams::LAG_BOUNDS;
pub use streams::report;
pub use streams::{Lag, StreamStates, Streams};

/// Maximum time of a look. A database that hangs is asked again.
const LOOK_MAX: Duration = Duration::from_secs(10);

/// Waits for the database, [`LOOK_MAX`] at most.
async fn in_time<T>(reply: impl Future<Output = StoreResult<T>>) -> StoreResult<T> {
    let reply = timeout(LOOK_MAX, reply).await;
    reply.unwrap_or_else(|_| Err(StoreError::Unavailable(format!("silent for {LOOK_MAX:?}"))))
}
