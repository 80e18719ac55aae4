//! An Envoy around which all changes: its listener, its Redis, its clients, and itself. For half a
//! minute, or for `RATELEASE_SOAK_SECONDS`.

use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;

use crate::stand::{Changing, Options, Rules, assert_no_harm, by_path, end, file, rule};
use crate::support::envoy::Envoy;
use crate::support::http::Client;
use crate::support::load::Load;
use crate::support::now;
use crate::support::redis_server::Server;

/// How the three lives of an Envoy end.
const ENDS: [&str; 3] = ["TERM", "KILL", "TERM"];

/// Connections of the load that goes on all the time.
const LOADED: usize = 8;

/// Requests of each round that wait, and whose clients leave.
const LEAVING: usize = 20;

/// After so many rounds Envoy's caches are as large as they get.
const WARM: usize = 4;

/// How long the store may take to decide again after Redis was stopped, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// What a life may add to the memory of a warm Envoy. Listeners that drain are part of it.
const GROWTH_MAX: u64 = 32 << 20;

fn options(rules: &Rules, redis: &Server) -> Options {
    let mut options = Options::new("churn", rules)
        .filter(json!({"timeout": "5s"}))
        .set("REDIS_TYPE", "single")
        .set("REDIS_URL", format!("127.0.0.1:{}", redis.port()));
    let slow = json!({"header_name": "x-slow", "descriptor_key": "slow"});
    let slow = json!({"actions": [{"request_headers": slow}]});
    options.rate_limits = json!([by_path()[0], slow]);
    options
}

/// Requests of a new key: one passes, and the others wait.
fn begin(envoy: &Envoy, key: usize) -> JoinSet<()> {
    let ingress = envoy.ingress;
    let request = move || async move {
        if let Ok(mut client) = Client::connect(ingress).await {
            // It may be cut off: its client leaves, and listeners drain.
            let _ = client.get("/slow", &[("x-slow", &key.to_string())]).await;
        }
    };
    (0..LEAVING).map(|_| request()).collect()
}

async fn active(envoy: &Envoy) -> u64 {
    envoy.counter("http.ingress.downstream_rq_active").await
}

/// Returns once most of the requests wait, or all of them have ended, and whether they wait. A
/// stall of a busy machine opens the breaker: then the pod's own part of the limit decides at once.
async fn are_waiting(envoy: &Envoy, requests: &mut JoinSet<()>) -> bool {
    let most = async || active(envoy).await >= (LEAVING / 2) as u64;
    let all_end = async { while requests.join_next().await.is_some() {} };
    tokio::select! {
        () = envoy.until("waiting", most) => true,
        () = all_end => false,
    }
}

/// One change of each kind. Returns whether requests have waited meanwhile.
async fn churn(changing: &Changing, options: &Options, redis: &Server, round: usize) -> bool {
    let envoy = &changing.envoy;
    let namespace = "n".repeat(1 + round % 50);
    let is_stopped = round % 3 == 2;
    if is_stopped {
        redis.stop();
    }
    let mut leaving = begin(envoy, round);
    let changes = changing.count("listener_modified").await;
    changing.replace(&options.clone().filter(json!({"metadata_namespace": namespace})));
    // Without Redis the pod's own part of the limit decides at once.
    let have_waited = !is_stopped && are_waiting(envoy, &mut leaving).await;
    let changed = async || changing.count("listener_modified").await > changes;
    envoy.until("changed", changed).await;
    drop(leaving);
    redis.cont();
    have_waited
}

/// An Envoy from its start to its end by a signal, under load.
async fn live(options: &Options, redis: &Server, lasts: Duration, signal: &str) {
    let changing = Changing::start(options, &["--drain-time-s", "1"]).await;
    let envoy = &changing.envoy;
    let load = envoy.load(Load::new("/hot", LOADED, u64::MAX));
    let (began, mut warm, mut waits) = (now(), 0, 0);
    for round in 0.. {
        waits += u32::from(churn(&changing, options, redis, round).await);
        if round == WARM {
            warm = envoy.process().memory("VmRSS");
        }
        if round >= 2 * WARM && began.elapsed() >= lasts {
            break;
        }
    }
    let tally = load.stop().await;
    envoy.until("without requests", async || active(envoy).await == 0).await;
    let grown = envoy.process().memory("VmRSS").saturating_sub(warm);
    assert!(grown < GROWTH_MAX, "{grown} bytes more than after {WARM} rounds");
    assert!(tally.passed() > 100, "{tally:?}");
    assert!(waits > 0, "no requests have waited in any round");
    assert_no_harm(envoy);
    let end_by = now() + PATIENCE;
    let mut key = usize::MAX;
    let mut leaving = begin(envoy, key);
    while !are_waiting(envoy, &mut leaving).await {
        assert!(now() < end_by, "the store does not decide again");
        key -= 1;
        leaving = begin(envoy, key);
    }
    if signal == "TERM" {
        return end(changing.envoy).await;
    }
    envoy.process().signal(signal);
    assert_eq!(envoy.process().exit(Duration::from_secs(5)).await, 128 + 9);
}

#[tokio::test]
async fn each_stream_of_an_envoy_ends_while_its_listener_its_redis_and_its_clients_change() {
    let seconds = std::env::var("RATELEASE_SOAK_SECONDS").ok();
    let seconds = seconds.map_or(30, |text| text.parse().expect("a number of seconds"));
    let each = Duration::from_secs(seconds) / u32::try_from(ENDS.len()).unwrap();
    let redis = Server::start(&[]);
    let slow = "- key: slow\n  rate_limit: {algorithm: leaky_bucket, unit: second, \
                requests_per_unit: 1, max_delay: 60s}\n";
    let hot = rule("path", 1_000_000_000, ", failure_mode: allow");
    let rules = Rules::new(&file("churn", &[hot, slow.to_owned()]));
    let options = options(&rules, &redis);
    for signal in ENDS {
        live(&options, &redis, each, signal).await;
    }
}
