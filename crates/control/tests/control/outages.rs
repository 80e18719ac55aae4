//! PostgreSQL that is slow, hangs, or is replaced by its standby: pods keep what they have, writes
//! are refused in time, and none is half applied.

use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::google::protobuf::{Struct, Value as Field, value::Kind};
use futures_util::future::join_all;
use ratelease_control::{Database, PodRow, Store};
use serde_json::{Value, json};
use sqlx::{Connection, Executor};
use tokio::sync::watch;

use super::faults::REFUSED_WITHIN;
use super::kills::{Writes, are_whole};
use super::pods::{Pod, RULES, channel, node};
use super::rollouts::prepare_domains;
use super::support::faketime::FakeClock;
use super::support::proxy::{Fault, Proxy};
use super::support::{Call, Place, Process, Server, now, rule, url, wait_for, wait_for_seen};

/// A delay of each reply with which a write takes long, and one with which it takes too long.
const SLOW: Duration = Duration::from_millis(40);
const TOO_SLOW: Duration = Duration::from_secs(3);

/// Writes of the test of a failover, and how many of them come before it.
const WRITES: usize = 60;
const BEFORE: usize = 20;

fn text(text: &str) -> Field {
    Field { kind: Some(Kind::StringValue(text.to_owned())) }
}

/// Starts a control plane that reaches the database through a proxy.
async fn through_proxy(place: &Place) -> (Proxy, Server) {
    let proxy = Proxy::start().leading_to(place.postgres.as_ref().unwrap().port());
    let database = Database::Postgres(url(proxy.port()));
    let server = place.serve_with(|settings| settings.database = database).await;
    (proxy, server)
}

/// The same with a pod that has a first version.
async fn with_pod(place: &Place) -> (Proxy, Server, Pod) {
    let (proxy, server) = through_proxy(place).await;
    let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    assert_eq!(publish(&server, "first").await.0, 201);
    let first = pod.next().await;
    pod.accept(&first).await;
    (proxy, server, pod)
}

/// Adds a rule and publishes it. The status, and how long the answer took.
async fn publish(server: &Server, value: &str) -> (u16, Duration) {
    let began = now();
    let answer = server.post("/v1/rules?publish=true", &rule("shop", "user", value, 5)).await;
    (answer.status, began.elapsed())
}

/// Checks that each rule has its version, and that the draft is what is published.
async fn none_is_half_applied(server: &Server) {
    let list = server.json("/v1/rules?limit=1000").await;
    let versions = server.json("/v1/versions?limit=1000").await;
    let (rules, versions) = (list["rules"].as_array(), versions["versions"].as_array());
    assert_eq!(rules.unwrap().len(), versions.unwrap().len());
    assert_eq!(server.post("/v1/check", &json!({})).await.json()["differences"], json!([]));
}

/// Publishes rules until one succeeds, after a fault has ended.
async fn goes_on(server: &Server, value: &str) {
    let is_done = async || (publish(server, value).await.0 == 201).then_some(());
    wait_for("a write after the fault", is_done).await;
}

#[tokio::test]
async fn a_slow_postgres_is_waited_for_and_one_that_is_too_slow_refuses_writes_in_time() {
    let place = Place::postgres().await;
    let (proxy, server, mut pod) = with_pod(&place).await;

    proxy.set(Fault::Latency { delay: SLOW, jitter: SLOW / 4 });
    let (status, took) = publish(&server, "slow").await;
    assert_eq!(status, 201, "after {took:?}");
    assert!(took > SLOW, "the proxy delays nothing: {took:?}");
    let second = pod.next().await;
    assert_eq!(second.version_info, "2");
    pod.accept(&second).await;

    proxy.set(Fault::Latency { delay: TOO_SLOW, jitter: Duration::ZERO });
    let values: Vec<_> = (0..20).map(|at| format!("late-{at}")).collect();
    for (status, took) in join_all(values.iter().map(|value| publish(&server, value))).await {
        assert_eq!(status, 503);
        assert!(took < REFUSED_WITHIN, "{took:?}");
    }
    pod.gets_nothing().await;
    proxy.set(Fault::None);
    goes_on(&server, "after").await;
    let third = pod.next().await;
    pod.accept(&third).await;
    none_is_half_applied(&server).await;
    server.stop().await;
}

/// As a replica leaves them whose machine has stopped within a write.
#[tokio::test]
async fn rows_that_another_replica_holds_keep_none_from_reporting_its_pods() {
    let place = Place::postgres().await;
    let store = Store::open(&place.database()).await.unwrap();
    let stopped = PodRow { stream: 1, node: "stopped".to_owned(), ..PodRow::default() };
    store.change_pods("stopped", vec![stopped], Vec::new()).await.unwrap();
    let url = place.postgres.as_ref().unwrap().url();
    let mut other = sqlx::AnyConnection::connect(&url).await.unwrap();
    other.execute("UPDATE pods SET seen_at = 1 WHERE replica = 'stopped'").await.unwrap();
    let mut write = other.begin().await.unwrap();
    write.execute("UPDATE pods SET sent = 1 WHERE replica = 'stopped'").await.unwrap();

    let began = now();
    store.forget_gone_replicas().await.unwrap_err();
    // Other statements wait for a lock for 10 s.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}", began.elapsed());
    let server = place.serve().await;
    let _pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    let listed = async || {
        let list = server.json("/v1/pods").await;
        (list["pods"].as_array()?.len() == 1).then_some(())
    };
    wait_for("the pod", listed).await;
    write.rollback().await.unwrap();
    store.forget_gone_replicas().await.unwrap();
    assert!(store.refresh_pods("stopped").await.unwrap().is_empty());
    store.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_replica_that_ends_leaves_no_pods_behind() {
    let place = Place::postgres().await;
    let (first, second) = (place.serve().await, place.serve().await);
    let _pod = Pod::connect(&first, node("edge", "test"), &[RULES]).await;
    let count = async |count: usize| {
        let list = second.json("/v1/pods").await;
        (list["pods"].as_array()?.len() == count).then_some(())
    };
    wait_for("the pod", async || count(1).await).await;
    first.stop().await;
    assert_eq!(second.json("/v1/pods").await["pods"], json!([]));
    second.stop().await;
}

#[tokio::test]
async fn replicas_whose_clocks_differ_by_minutes_show_the_pods_of_both() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    let clock = FakeClock::new();
    clock.set(120.0);
    let ahead = Process::start_with(&place, &[], &clock.env());
    let _here = Pod::connect(&server, node("here", "test"), &[RULES]).await;
    let _there = Pod::over(channel(ahead.pods).await, node("there", "test"), &[RULES]).await;
    for http in [server.http, ahead.http] {
        let both = async || {
            let list = Call::new("GET", "/v1/pods").token(&server.token).to(http).await.unwrap();
            let list = list.json()["pods"].clone();
            if list.as_array().is_some_and(|it| it.len() == 2) { Ok(()) } else { Err(list) }
        };
        wait_for_seen("list of both", both).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn replicas_whose_clocks_differ_by_an_hour_take_steps_in_time() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    let clock = FakeClock::new();
    clock.set(3600.0);
    let mut ahead = Process::start_with(&place, &[], &clock.env());
    let post = async |http, path: &str, body: &Value| {
        let call = Call::new("POST", path).token(&server.token).json(body);
        call.to(http).await.unwrap()
    };
    let get = async |http, id: usize| {
        let call = Call::new("GET", &format!("/v1/rollouts/{id}")).token(&server.token);
        call.to(http).await.unwrap().json()
    };
    prepare_domains(&server, &["bank", "lab", "shop"]).await;
    let here = Pod::connect(&server, node("here", "test"), &[RULES]).await;
    let there = Pod::over(channel(ahead.pods).await, node("there", "test"), &[RULES]).await;
    [here, there].into_iter().for_each(keep_up);
    // One that waits for half an hour, one that ends by then, and one in shadow; each replica begins
    // one of each.
    let waits = json!([{"stage": "enforced", "percent": 100, "wait": "30m"}, {"percent": 100}]);
    let ends = json!([{"stage": "enforced", "percent": 100}]);
    let counts = json!([{"stage": "shadow", "percent": 100}]);
    let began = now();
    for (at, http) in [server.http, ahead.http].into_iter().enumerate() {
        for (domain, steps) in [("bank", &waits), ("lab", &ends), ("shop", &counts)] {
            let body = json!({"domains": [domain], "steps": steps, "time_limit": "30m"});
            let begun = post(http, "/v1/rollouts", &body).await;
            assert_eq!(begun.status, 201, "{begun:?}");
        }
        // Each replica looks at them every second, and reads the pods every fifth one.
        tokio::time::sleep(Duration::from_secs(7)).await;
        for id in 3 * at + 1..=3 * at + 3 {
            for seen_by in [server.http, ahead.http] {
                let shown = get(seen_by, id).await;
                assert!(shown["pods"].is_object(), "it has ended: {shown}");
                assert!(shown["step"] == 1, "{shown}");
                if id % 3 == 0 {
                    let left = seconds_left(&shown["warnings"].to_string());
                    let passed = i64::try_from(began.elapsed().as_secs()).unwrap();
                    assert!((3600 - passed..=3600).contains(&left), "{left}: {shown}");
                }
            }
            let path = format!("/v1/rollouts/{id}/abort");
            assert_eq!(post(server.http, &path, &Value::Null).await.status, 200);
        }
    }
    // A rollout that the replica ahead has begun goes on in time by the other one.
    let soon = json!([{"stage": "enforced", "percent": 100, "wait": "2s"}, {"percent": 100}]);
    let body = json!({"domains": ["bank"], "steps": soon, "time_limit": "8s"});
    assert_eq!(post(ahead.http, "/v1/rollouts", &body).await.status, 201);
    ahead.kill();
    let stepped = async || {
        let shown = get(server.http, 7).await;
        let steps = shown["steps"].as_array()?.iter().map(|it| it["stage"].clone());
        let stages: Vec<_> = steps.collect();
        (stages.last()? == "aborted").then_some(shown)
    };
    let shown = wait_for("the end of the rollout", stepped).await;
    let reasons: Vec<_> =
        shown["steps"].as_array().unwrap().iter().map(|it| &it["reason"]).collect();
    assert!(reasons.contains(&&json!("the wait is over")), "{shown}");
    server.stop().await;
}

/// Has a pod run each version.
fn keep_up(mut pod: Pod) {
    tokio::spawn(async move {
        while let Ok(Some(set)) = pod.responses.message().await {
            pod.accept(&set).await;
        }
    });
}

/// The seconds until the longest window ends, as a warning says them.
fn seconds_left(warnings: &str) -> i64 {
    let left = warnings.split("ends in ").nth(1).and_then(|it| it.split(' ').next());
    left.and_then(|it| it.parse().ok()).unwrap_or_else(|| panic!("{warnings}"))
}

#[tokio::test]
async fn a_control_plane_ends_while_its_database_is_silent() {
    let place = Place::postgres().await;
    let (proxy, server, _pod) = with_pod(&place).await;
    proxy.set(Fault::Hole);
    // What it runs is written while nothing answers.
    let _other = Pod::connect(&server, node("other", "test"), &[RULES]).await;
    tokio::time::timeout(REFUSED_WITHIN, server.stop()).await.expect("it ends");
}

#[tokio::test]
async fn many_domains_of_a_slow_postgres_reach_a_replica_that_then_publishes() {
    let place = Place::postgres().await;
    let other = place.serve().await;
    let file = |at: usize| {
        let text = "descriptors: [{key: a, rate_limit: {unlimited: true}}]";
        json!({"name": format!("{at}.yaml"), "yaml": format!("domain: d{at}\n{text}\n")})
    };
    let files: Vec<_> = (0..600).map(file).collect();
    assert_eq!(other.post("/v1/import", &json!({"files": files})).await.status, 200);
    assert_eq!(other.publish().await, 1);
    let (proxy, server) = through_proxy(&place).await;
    proxy.set(Fault::Latency { delay: SLOW, jitter: Duration::ZERO });
    let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    let first = pod.next().await;
    assert_eq!((&*first.version_info, first.resources.len()), ("1", 600));
    assert_eq!(publish(&server, "after").await.0, 201);
    server.stop().await;
    other.stop().await;
}

#[tokio::test]
async fn writes_during_a_silence_of_postgres_are_refused_in_time_and_not_half_applied() {
    let place = Place::postgres().await;
    let (proxy, server, mut pod) = with_pod(&place).await;
    // Requests arrive and replies do not, requests do not arrive either, and the server hangs.
    for (at, fault) in [Some(Fault::Deaf), Some(Fault::Hole), None].into_iter().enumerate() {
        let postgres = place.postgres.as_ref().unwrap();
        match fault {
            Some(fault) => proxy.set(fault),
            None => postgres.signal_all("STOP"),
        }
        let values: Vec<_> = (0..5).map(|value| format!("{at}-{value}")).collect();
        for (status, took) in join_all(values.iter().map(|value| publish(&server, value))).await {
            assert_eq!(status, 503, "{fault:?}");
            assert!(took < REFUSED_WITHIN, "{fault:?}: {took:?}");
        }
        pod.gets_nothing().await;
        proxy.set(Fault::None);
        postgres.signal_all("CONT");
        goes_on(&server, &format!("after-{at}")).await;
        let next = pod.next().await;
        pod.accept(&next).await;
        none_is_half_applied(&server).await;
    }
    server.stop().await;
}

#[tokio::test]
async fn a_replica_without_its_database_moves_no_pod_back_to_an_older_version() {
    let place = Place::postgres().await;
    let other = place.serve().await;
    let (proxy, server) = through_proxy(&place).await;
    assert_eq!(publish(&other, "first").await.0, 201);
    let mut old = Pod::connect(&server, node("old", "test"), &[RULES]).await;
    assert_eq!(old.next().await.version_info, "1");
    proxy.set(Fault::Hole);
    assert_eq!(publish(&other, "second").await.0, 201);

    let fields = [("rules_version".to_owned(), text("2"))].into();
    let says = Node { metadata: Some(Struct { fields }), ..node("says", "test") };
    let mut says = Pod::connect(&server, says, &[RULES]).await;
    let asks = DiscoveryRequest {
        node: Some(node("asks", "test")),
        type_url: RULES.to_owned(),
        version_info: "2".to_owned(),
        ..DiscoveryRequest::default()
    };
    let mut asks = Pod::with(channel(server.pods).await, vec![asks]).await;
    // A pod without rules gets those that are known.
    let mut new = Pod::connect(&server, node("new", "test"), &[RULES]).await;
    assert_eq!(new.next().await.version_info, "1");
    says.gets_nothing().await;
    asks.gets_nothing().await;

    proxy.set(Fault::None);
    assert_eq!(says.next().await.version_info, "2");
    assert_eq!(asks.next().await.version_info, "2");
    // The version of another database tells nothing of this one.
    let fields = [("rules_version".to_owned(), text("99"))].into();
    let moved = Node { metadata: Some(Struct { fields }), ..node("moved", "test") };
    let mut moved = Pod::connect(&server, moved, &[RULES]).await;
    assert_eq!(moved.next().await.version_info, "2");
    server.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_of_postgres_loses_no_acknowledged_write() {
    let mut place = Place::postgres().await;
    let standby = place.postgres.as_ref().unwrap().synchronous_standby().await;
    let (proxy, server) = through_proxy(&place).await;
    let mut pod = Pod::connect(&server, node("edge", "test"), &[RULES]).await;
    let (_stays, http) = watch::channel(server.http);
    let mut writes = Writes::begin(http, &server.token, WRITES);
    assert!(writes.more_than(BEFORE).await);
    place.postgres.as_mut().unwrap().crash();
    let (status, took) = publish(&server, "no-primary").await;
    assert_eq!(status, 503);
    assert!(took < REFUSED_WITHIN, "{took:?}");
    standby.promote().await;
    proxy.lead_to(standby.port());
    let count = writes.end().await;
    are_whole(&server, count).await;
    // The stream of the pod went on, and ends with the last version.
    loop {
        let set = pod.next().await;
        pod.accept(&set).await;
        if set.version_info == count.to_string() {
            break;
        }
    }
    server.stop().await;
}
