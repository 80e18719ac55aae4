//! A burst of calls on a connection of Envoy that is new. Envoy opens streams before it knows how
//! many ratelease takes.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::client::{Connection, Ending};
use crate::stand::{Plan, freeze};
use crate::support::proxy::Fault;
use crate::support::windows::early_in_a_window;

/// Requests at once, fewer than the 1024 that Envoy's circuit breaker lets through.
const REQUESTS: usize = 1000;

/// Connections of the clients, each of which sends its part of the requests.
const CONNECTIONS: usize = 20;

/// Limit of the recipe for a client.
const LIMIT: usize = 5;

/// Window of the recipe's limit.
const WINDOW: Duration = Duration::from_secs(3600);

/// Setting of a cluster with which Envoy opens no more streams than ratelease takes.
const BOUND: &str = "max_concurrent_streams: 256";

/// Maximum duration of the test.
const TEST_MAX: Duration = Duration::from_secs(90);

/// How far Redis is away: until it has answered, no call ends.
const DISTANCE: Duration = Duration::from_millis(20);

/// Sends the requests of one connection, and returns the statuses of their answers.
async fn ask(connection: Connection) -> Vec<u16> {
    let mut streams = Vec::new();
    for _ in 0..REQUESTS / CONNECTIONS {
        streams.push(connection.get(&[]).await.unwrap());
    }
    let mut statuses = Vec::new();
    for mut stream in streams {
        statuses.push(stream.status().await.unwrap());
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_on_a_new_connection_passes_no_more_than_the_limit() {
    burst(Plan::of("plain-tcp")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_an_envoy_without_a_bound_passes_no_more() {
    burst(Plan { without: BOUND, ..Plan::of("plain-tcp") }).await;
}

async fn burst(plan: Plan) {
    early_in_a_window(WINDOW, TEST_MAX).await;
    let stand = Plan { is_patient: true, ..plan }.start().await;
    stand.redis_at(Fault::Latency { delay: DISTANCE, jitter: Duration::ZERO });
    // Until all calls are there.
    freeze(&stand.pod.process).await;
    let mut requests = JoinSet::new();
    for _ in 0..CONNECTIONS {
        requests.spawn(ask(Connection::open(stand.envoy.ingress, Ending::Close).await.unwrap()));
    }
    stand.until_called(REQUESTS as u64).await;
    stand.pod.process.signal("CONT");
    let statuses = requests.join_all().await.concat();

    let count = |status| statuses.iter().filter(|it| **it == status).count();
    let (passed, denied) = (count(200), count(429));
    let counter = async |name| stand.envoy.counter(&format!("cluster.ratelease.{name}")).await;
    let refused = counter("http2.rx_reset").await;
    let closed = counter("upstream_cx_destroy_remote_with_active_rq").await;
    let verdicts = stand.envoy.verdicts().await;
    println!(
        "{REQUESTS} requests: {passed} pass, where {LIMIT} may, {denied} are denied; {refused} \
         calls were refused, {closed} connections closed; {verdicts:?}"
    );
    assert_eq!(statuses.len(), passed + denied, "{statuses:?}");
    assert!(passed <= LIMIT, "{passed} of {LIMIT} pass");
    assert_eq!((refused, closed, verdicts.error), (0, 0, 0), "refused, closed, errors");
    stand.pod.is_unharmed();
}
