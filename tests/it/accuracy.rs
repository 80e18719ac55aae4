//! How near a fleet comes to one exact server: four pods on a real cluster under a demand that does
//! not wait for answers. Each test prints what it measured (`-- --nocapture`).
//!
//! `benches/accuracy.rs` measures the same on many more cells, with these parts.

pub mod demand; // requests by a seed
pub mod drive; // sends them when they are due
pub mod fleet; // pods with a store each
pub mod oracle; // what an exact server says

mod bounds; // no algorithm admits more than it may
mod hand_over; // what a pod that ends had left
mod limits; // as many pass as may, and few are denied too early
mod parts; // the parts themselves
mod trips; // commands for 1000 decisions

use std::time::{Duration, UNIX_EPOCH};

/// Longer than the product's, so that a busy machine fails no request: what is measured here is
/// who passes, not when.
const MAX_WAIT: Duration = Duration::from_secs(2);

/// The wall clock, since the Unix epoch: the cluster's, which is on this machine.
fn wall_clock() -> Duration {
    #[allow(clippy::disallowed_methods, reason = "windows are the wall clock's")]
    std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// Returns once a window of this length has at least `rest` to go.
async fn early_in_a_window(length: Duration, rest: Duration) {
    let into =
        Duration::from_nanos(u64::try_from(wall_clock().as_nanos() % length.as_nanos()).unwrap());
    if into + rest > length {
        tokio::time::sleep(length - into).await;
    }
}
