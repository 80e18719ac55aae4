//! A burst of requests that meets a new connection to a pod: Envoy opens up to 1024 streams on it before
//! it has read the pod's settings, and takes a stream that is refused for an error.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use http::Request;
use tokio::net::TcpStream;

use crate::stand::{MACHINE, PATIENT, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions, Verdicts};
use crate::support::proxy::{Fault, Proxy};
use crate::support::ratelease::Ratelease;
use crate::support::redis_server::Server;

/// Connections of clients.
const CLIENTS: usize = 20;

/// Requests at once on each connection.
const REQUESTS: usize = 50;

/// How long the pod's settings, and Redis's replies, are on their way: longer than it takes to make all
/// requests.
const LATE: Duration = Duration::from_millis(700);

/// Makes requests on one connection, all at once. Returns their statuses.
async fn statuses(envoy: &Envoy) -> Vec<u16> {
    let stream = TcpStream::connect(envoy.ingress).await.expect("Envoy takes connections");
    let (sender, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    let driven = tokio::spawn(connection);
    let requests = (0..REQUESTS).map(async |_| {
        let request = Request::get("http://test/burst").body(()).expect("a request");
        let mut sender = sender.clone().ready().await.expect("a stream");
        let (answer, _) = sender.send_request(request, true).expect("a stream");
        answer.await.expect("an answer").status().as_u16()
    });
    let statuses = join_all(requests).await;
    driven.abort();
    statuses
}

#[tokio::test]
async fn of_a_thousand_requests_on_a_new_connection_the_limit_passes() {
    const L: u64 = 5;
    let _shared = MACHINE.read().await;
    clear_of_midnight().await;
    let (server, far) = (Server::start(&[]), Proxy::start());
    far.lead_to(server.port());
    let rules = Rules::new(&file("burst", &[rule("path", Some("/burst"), L)]));
    let redis = far.addr.to_string();
    let redis = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*redis)];
    let pod = Ratelease::start(rules.path(), &[], &[&PATIENT[..], &redis].concat()).await;
    let near = Proxy::start().leading_to(pod.grpc.port());
    let pods = vec![near.addr];
    let options = EnvoyOptions { ratelease: pods, concurrency: 1, ..before("burst", &[&pod]) };
    let envoy = Envoy::start(options).await;
    // All requests are there before the settings are, and wait for the first lease.
    for proxy in [&near, &far] {
        proxy.set(Fault::Latency { delay: LATE, jitter: Duration::ZERO });
    }
    let mut counts = BTreeMap::new();
    for status in join_all((0..CLIENTS).map(|_| statuses(&envoy))).await.concat() {
        *counts.entry(status).or_insert(0) += 1;
    }
    let resets = envoy.stat("cluster.ratelease.upstream_rq_rx_reset").await;
    println!("{counts:?}, {resets:?} resets");
    let all = (CLIENTS * REQUESTS) as u64;
    assert_eq!(counts, BTreeMap::from([(200, L), (429, all - L)]));
    let expected = Verdicts { ok: L, over_limit: all - L, ..Verdicts::default() };
    assert_eq!((envoy.verdicts().await, resets), (expected, Some(0)));
}
