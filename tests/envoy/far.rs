//! A Redis that is healthy and ten milliseconds away: farther than `LEASE_MAX_WAIT`, and near
//! enough for Envoy's own timeout.

use std::time::Duration;

use serde_json::json;

use crate::stand::{Asker, MACHINE, Rules, before, clear_of_midnight, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::http::Client;
use crate::support::probe::Probe;
use crate::support::proxy::{Fault, Proxy};
use crate::support::ratelease::Ratelease;
use crate::support::redis_server::Server;

const AWAY: Duration = Duration::from_millis(9);

const LIMIT: usize = 5;
const USERS: usize = 10;

/// Maximum number of rounds, one of which must have no late answer, apart from those that a
/// concurrent probe attributes to the machine. A fault of the product would delay most requests of
/// each round.
const ROUNDS_MAX: usize = 10;

/// Maximum wait of a request for Redis by default, under Envoy's timeout.
const WAIT_LIMIT: Duration = Duration::from_millis(15);

#[tokio::test]
async fn a_redis_ten_milliseconds_away_is_waited_for_under_envoys_default_timeout() {
    let _alone = MACHINE.write().await;
    clear_of_midnight().await;
    let server = Server::start(&[]);
    let proxy = Proxy::start().leading_to(server.port());
    let rules = Rules::new(&file("far", &[rule("user", None, LIMIT as u64)]));
    let redis = proxy.addr.to_string();
    let env = [("REDIS_TYPE", "single"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", &*redis)];
    let pod = Ratelease::start(rules.path(), &[], &env).await;
    let options = EnvoyOptions {
        filter: json!({"timeout": null}), // Envoy's default, 20 ms
        ..before("far", &[&pod])
    };
    let envoy = Envoy::start(options).await;
    proxy.set(Fault::Latency { delay: AWAY, jitter: Duration::ZERO });
    let alone = || pod.count("failure_mode_local");

    // A caller that sends no deadline is answered after 5 ms, without the store.
    let asker = Asker::connect(&pod).await;
    for user in 0..USERS {
        asker.ask("far", &[("user", &format!("hasty-{user}"))], 1).await;
    }
    assert!(alone() >= USERS as u64 / 2, "{} of {USERS} admitted here alone", alone());

    let mut rounds = Vec::new();
    // Requests that passed, that were admitted locally, and that the machine excuses.
    let is_clean = |&(passed, alone, excused): &(usize, u64, u64)| {
        passed.abs_diff(LIMIT * USERS) as u64 <= excused && alone <= excused
    };
    while rounds.len() < ROUNDS_MAX && !rounds.last().is_some_and(is_clean) {
        let (before, probe) = (alone(), Probe::start(proxy.addr));
        let passed = passed(&envoy, rounds.len()).await;
        let excused = probe.stop().late_of((2 * LIMIT * USERS) as u64, WAIT_LIMIT);
        rounds.push((passed, alone() - before, excused));
    }
    println!("passed of {}, admitted here alone, excused: {rounds:?}", LIMIT * USERS);
    assert!(rounds.last().is_some_and(is_clean), "in each round: {rounds:?}");
}

/// Number of requests that pass, of twice as many as each user may send.
async fn passed(envoy: &Envoy, round: usize) -> usize {
    let mut client = Client::connect(envoy.ingress).await.unwrap();
    let mut passed = 0;
    for user in 0..USERS {
        let user = format!("patient-{round}-{user}");
        for _ in 0..2 * LIMIT {
            let answer = client.get("/", &[("x-user", &user)]).await.unwrap();
            passed += usize::from(answer.status == 200);
        }
    }
    passed
}
