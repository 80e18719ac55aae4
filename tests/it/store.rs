//! The contract of `Store`: one set of checks that run on every implementation, and checks of Redis
//! alone.

mod acl;
mod ahead;
mod algorithms;
mod answers;
mod at_most_once;
mod budget;
mod calendar;
mod certificates;
mod cluster;
mod contract;
mod debts;
mod flooded;
mod foreign;
mod garbled;
mod heartbeat;
mod hostile;
mod model;
mod numbers;
mod orders;
mod outage;
mod pools;
mod proxies;
mod redirected;
mod redis;
mod refunds;
mod renames;
mod scripted;
mod scripts;
mod sentinels;
mod silence;
mod slots;

use futures_util::future::join_all;
use ratelease_engine::counter::{Counter, RedisCounter};
use ratelease_engine::store::redis::RedisSettings;
use ratelease_engine::store::redis::RedisStore;
use ratelease_engine::store::{Ask, Grant, Store, StoreError};
use ratelease_rules::key::Key;
use ratelease_rules::{Algorithm, Limit, Unit};

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Interval at which [`until`] checks.
const POLL: Duration = Duration::from_millis(5);

/// A key that no other test uses.
fn fresh_key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    Key::for_test(NEXT.fetch_add(1, Ordering::Relaxed))
}

/// An ask for tokens of a fresh key; a year's window does not end while the test runs.
fn ask(requests_per_unit: u64, want: u64, need: u64) -> Ask {
    let limit = Limit::fixed_window(requests_per_unit, Unit::Year);
    Ask { want, need, charge_denied: true, ..Ask::look(fresh_key(), limit) }
}

/// Every algorithm that counts what was spent, with a window in which a limit of 10 has ten tokens at
/// once, none of which becomes available again while the test runs. Slots are held, not spent: see
/// [`slots`].
const ALGORITHMS: [(Algorithm, Unit); Algorithm::ALL.len() - 1] = {
    let mut all = [(Algorithm::FixedWindow, Unit::Year); Algorithm::ALL.len() - 1];
    let (mut at, mut nth) = (0, 0);
    while at < all.len() {
        if matches!(Algorithm::ALL[nth], Algorithm::Concurrency) {
            nth += 1;
        }
        all[at] = match Algorithm::ALL[nth] {
            // One slot in six minutes, the tenth after 54 minutes.
            Algorithm::LeakyBucket { .. } => {
                (Algorithm::LeakyBucket { max_delay_us: 54 * 60 * 1_000_000 }, Unit::Hour)
            }
            other => (other.with_burst(10), Unit::Year),
        };
        (at, nth) = (at + 1, nth + 1);
    }
    all
};

/// As [`ask`], with another algorithm.
fn ask_by((algorithm, unit): (Algorithm, Unit), want: u64, need: u64) -> Ask {
    let limit = Limit { algorithm, ..Limit::fixed_window(10, unit) };
    let ttl = Duration::from_secs(60);
    Ask { want, need, charge_denied: true, ttl, ..Ask::look(fresh_key(), limit) }
}

/// The reply to one ask.
async fn one(store: &dyn Store, ask: Ask) -> Result<Grant, StoreError> {
    store.lend(&ask).await
}

/// The replies to asks that are sent at once, in their order.
async fn exchange(store: &dyn Store, asks: &[Ask]) -> Vec<Result<Grant, StoreError>> {
    join_all(asks.iter().map(|ask| store.lend(ask))).await
}

async fn granted(store: &dyn Store, ask: Ask) -> Grant {
    one(store, ask).await.unwrap_or_else(|error| panic!("{ask:?}: {error}"))
}

/// For stores whose tests are not about the time-out: a busy machine may delay an exchange for
/// longer than the default.
fn patient(config: RedisSettings) -> RedisSettings {
    RedisSettings { timeout: Duration::from_secs(8), ..config }
}

/// A store that is connected.
async fn connected(config: RedisSettings) -> Arc<RedisStore> {
    connected_under(config, "").await
}

async fn connected_under(config: RedisSettings, key_prefix: &str) -> Arc<RedisStore> {
    let store = RedisStore::spawn(config, key_prefix);
    within(10, "the store connects", store.ready()).await;
    store
}

/// One of the store's counters.
#[track_caller]
fn count(store: &dyn Store, counter: impl Into<RedisCounter>) -> u64 {
    let counter = counter.into();
    let counts = store.counts();
    let found = counts.iter().find(|(other, _)| *other == Counter::Redis(counter));
    found.unwrap_or_else(|| panic!("no {counter:?} in {counts:?}")).1
}

async fn within<T>(seconds: u64, what: &str, future: impl Future<Output = T>) -> T {
    let patience = Duration::from_secs(seconds);
    let done = tokio::time::timeout(patience, future).await;
    done.unwrap_or_else(|_| panic!("timed out after {patience:?}: {what}"))
}

/// Waits until `is_so`, and fails the test after `seconds`.
async fn until(seconds: u64, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    within(seconds, what, async {
        while !is_so().await {
            tokio::time::sleep(POLL).await;
        }
    })
    .await;
}

/// Asks until the store grants.
async fn until_granted(store: &dyn Store, ask: Ask, seconds: u64) -> Grant {
    let mut reply = None;
    until(seconds, "the store grants again", async || {
        reply = one(store, ask).await.ok();
        reply.is_some()
    })
    .await;
    reply.expect("a grant ends the wait")
}
