//! Tens of thousands of distinct keys: memory stays within its bound, and a legitimate hot key
//! beside them is exact. `RATELEASE_TEST_KEYS=1000000` tests the promise at its full scale.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Code;

use super::{descriptor, request};
use crate::support::files::dir_of;
use crate::support::ratelease::Ratelease;
use crate::support::raw_grpc::Connection;
use crate::support::redis::Cluster;

/// Calls under way at once, and keys in each call.
const CALLS: u64 = 8;
const KEYS_EACH: u64 = 200;

const MIB: u64 = 1 << 20;

/// Memory apart from the buffers, in a build with debug assertions: the program, its stacks,
/// connections, and calls under way. 40 to 46 MiB were measured, of which more than 21 are pages of
/// the program's file and 3 the allocator's; 60 000 keys would take 15 MiB more.
const BESIDE_MAX: u64 = 50 * MIB;

/// The default memory for buffers, and for the whole process.
const DEFAULT_BUDGET: u64 = 64 * MIB;
const PROCESS_MAX: u64 = 128 * MIB;

struct Scale {
    keys: u64,
    budget: u64,
    process_max: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_keys_leaves_memory_bounded_and_a_hot_key_exact() {
    let Scale { keys, budget, process_max } = Scale::chosen();
    let calls = keys / KEYS_EACH;
    let limit = calls / 2;
    let (pod, _rules) = pod(limit, budget).await;
    let next = Arc::new(AtomicU64::new(0));
    let mut callers = JoinSet::new();
    for _ in 0..CALLS {
        let (connection, next) = (Connection::open(pod.grpc).await, Arc::clone(&next));
        callers.spawn(async move {
            let mut admitted = 0;
            loop {
                let call = next.fetch_add(1, Ordering::Relaxed);
                if call >= calls {
                    return admitted;
                }
                flood(&connection, call).await;
                admitted += u64::from(hot(&connection).await);
            }
        });
    }
    let admitted: u64 = callers.join_all().await.into_iter().sum();
    let most = pod.process.memory("VmHWM");
    let (now, mib) = (pod.process.memory("VmRSS"), |bytes: u64| bytes as f64 / MIB as f64);
    println!(
        "{keys} keys, buffers of {:.0} MiB: process {:.1} MiB at most, {:.1} MiB at the end; \
         hot key: {admitted} of {limit} admitted",
        mib(budget),
        mib(most),
        mib(now)
    );
    assert_eq!(admitted, limit, "of {calls} hits on the hot key");
    assert!(most <= process_max, "{:.1} MiB, more than {:.1}", mib(most), mib(process_max));
    pod.is_unharmed();
}

impl Scale {
    /// Even at small scale there are more keys than fit within the bound.
    fn chosen() -> Self {
        match std::env::var("RATELEASE_TEST_KEYS").ok().and_then(|keys| keys.parse().ok()) {
            Some(keys) => Self { keys, budget: DEFAULT_BUDGET, process_max: PROCESS_MAX },
            None => Self { keys: 60_000, budget: 2 * MIB, process_max: 2 * MIB + BESIDE_MAX },
        }
    }
}

/// A pod on the cluster, so that its memory is its own: the embedded store would keep every key.
async fn pod(limit: u64, budget: u64) -> (Ratelease, TempDir) {
    // Redis does not count requests that are answered without it, so those of the hot key are
    // repeated.
    let text = format!(
        "domain: test\n\
         defaults: {{failure_mode: error}}\n\
         descriptors:\n\
         - {{key: hot, rate_limit: {{unit: year, requests_per_unit: {limit}}}}}\n\
         - {{key: flood, rate_limit: {{unit: year, requests_per_unit: 1, failure_mode: allow}}}}\n"
    );
    let rules = dir_of(&[("test.yaml", &text)]);
    let nodes = Cluster::shared().places();
    let budget = budget.to_string();
    let env = [
        ("BUFFER_MEMORY", budget.as_str()),
        ("LEASE_MAX_WAIT", "5s"),
        ("REDIS_TIMEOUT", "8s"),
        ("CACHE_KEY_PREFIX", "cardinality:"),
    ];
    (Ratelease::start(rules.path(), &nodes, &env).await, rules)
}

/// Sends new keys, and checks that they all pass.
async fn flood(connection: &Connection, call: u64) {
    let keys =
        (call * KEYS_EACH..(call + 1) * KEYS_EACH).map(|n| descriptor("flood", n.to_string()));
    let reply = connection.call(&request("test", &keys.collect::<Vec<_>>())).await;
    assert_eq!(reply.is_over_limit(), Some(false), "{reply:?}");
}

/// Whether a hit on the hot key was admitted.
async fn hot(connection: &Connection) -> bool {
    let message = request("test", &[descriptor("hot", "key")]);
    loop {
        let reply = connection.call(&message).await;
        if let Some(over) = reply.is_over_limit() {
            return !over;
        }
        assert_eq!(reply.code, Code::Unavailable, "{reply:?}");
    }
}
