use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::task::JoinSet;

use crate::stand::{Options, Rules, assert_no_harm, by_path, delay, end, file, rule};
use crate::support::envoy::Envoy;
use crate::support::http::{Answer, Client};
use crate::support::load::Load;
use crate::support::now;
use crate::support::ports::free_port;
use crate::support::redis_cluster::Cluster;

/// Requests of a rule that lets one pass each second, and others wait.
const SLOW: &str = "domain: slow\ndescriptors:\n- key: path\n  rate_limit: \
    {algorithm: leaky_bucket, unit: second, requests_per_unit: 1, max_delay: 60s}\n";

/// The number of requests that Envoy has at present.
async fn active(envoy: &Envoy) -> u64 {
    envoy.counter("http.ingress.downstream_rq_active").await
}

/// Starts so many requests, each on a connection of its own.
fn begin(envoy: &Envoy, path: &str, count: usize) -> JoinSet<std::io::Result<Answer>> {
    let (ingress, path) = (envoy.ingress, path.to_owned());
    (0..count)
        .map(|_| {
            let path = path.clone();
            async move { Client::connect(ingress).await?.get(&path, &[]).await }
        })
        .collect()
}

/// What `/status` of the engine says was decided in this way.
async fn decided(envoy: &Envoy, how: &str) -> u64 {
    let status: Value = serde_json::from_str(&envoy.admin("/ratelease/status").await).unwrap();
    status["decisions"]["by_how"][how].as_u64().unwrap_or_else(|| panic!("no {how} in {status}"))
}

/// A count of the engine.
async fn counted(envoy: &Envoy, name: &str) -> u64 {
    let status: Value = serde_json::from_str(&envoy.admin("/ratelease/status").await).unwrap();
    status["counts"][name].as_u64().unwrap_or_else(|| panic!("no {name} in {status}"))
}

#[tokio::test]
async fn requests_of_new_keys_wait_for_their_leases_with_their_bodies() {
    let rules = Rules::new(&file("cold", &[rule("path", 5, "")]));
    let places = Cluster::shared().places();
    let envoy = Options::new("cold", &rules).on_cluster(&places).start().await;
    let mut client = Client::connect(envoy.ingress).await.unwrap();
    let body = "x".repeat(300_000);
    for key in 0..100 {
        let answer = client.send("POST", &format!("/{key}"), &[], &body).await.unwrap();
        assert_eq!((answer.status, &*answer.body), (200, "ok\n"));
    }
    // A request whose tokens arrive between the look in its worker and that in the engine's thread
    // finds them there.
    let of_leases = decided(&envoy, "leased").await + decided(&envoy, "local").await;
    assert_eq!(of_leases, 100, "none was decided without the store");
    end(envoy).await;
}

#[tokio::test]
async fn an_answer_that_waits_for_its_slot_comes_when_the_slot_begins() {
    let rules = Rules::new(&SLOW.replace("requests_per_unit: 1", "requests_per_unit: 4"));
    let envoy = Options::new("slow", &rules).start().await;
    let start = now();
    let answers = begin(&envoy, "/a", 5).join_all().await;
    let statuses: Vec<_> = answers.into_iter().map(|answer| answer.unwrap().status).collect();
    assert_eq!(statuses, [200; 5]);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(950), "four slots of 250 ms in {took:?}");
    end(envoy).await;
}

#[tokio::test]
async fn a_wait_that_is_longer_than_the_timeout_ends_by_the_failure_mode() {
    let rules = Rules::new(&SLOW.replace("unit: second", "unit: minute"));
    for (deny, expected) in [(true, 500), (false, 200)] {
        // The first is in time on a busy machine too, and the slot of the second is a minute away.
        let filter = json!({"timeout": "2s", "failure_mode_deny": deny});
        let envoy = Options::new("slow", &rules).filter(filter).start().await;
        assert_eq!(envoy.get("/a", &[]).await.status, 200);
        let late = envoy.get("/a", &[]).await;
        assert_eq!(late.status, expected, "{late:?}");
        assert_eq!(envoy.counter("ratelease.error").await, 1);
        let allowed = u64::from(!deny);
        assert_eq!(envoy.counter("ratelease.failure_mode_allowed").await, allowed);
        end(envoy).await;
    }
}

#[tokio::test]
async fn clients_that_leave_while_they_wait_leave_nothing_behind() {
    let rules = Rules::new(SLOW);
    let envoy = Options::new("slow", &rules).filter(json!({"timeout": "10s"})).start().await;
    for round in 0..5 {
        let requests = begin(&envoy, &format!("/{round}"), 40);
        envoy.until("waiting", async || active(&envoy).await >= 30).await;
        drop(requests);
        envoy.until("without requests", async || active(&envoy).await == 0).await;
    }
    assert_eq!(envoy.get("/other", &[]).await.status, 200);
    assert_no_harm(&envoy);
    end(envoy).await;
}

/// As an attacker would: each request has a long header, which twenty descriptors repeat.
#[tokio::test]
async fn requests_with_long_headers_that_wait_have_a_bound_in_bytes_and_beyond_it_are_errors() {
    const CLIENTS: u64 = 64;
    const ROOM: u64 = 2 << 20;
    let rules = Rules::new(SLOW);
    let mut options = Options::new("slow", &rules);
    let key = |at| if at == 0 { "path" } else { "free" };
    let repeated = (0..20).map(|at| by_header("x-long", key(at), json!({"number": 1})));
    options.rate_limits = repeated.collect();
    let envoy = options.start().await;
    let long = "x".repeat(55_000);
    assert_eq!(envoy.get("/", &[("x-long", &long)]).await.status, 200);
    let before = envoy.process().memory("VmRSS");

    let (ingress, text) = (envoy.ingress, std::sync::Arc::<str>::from(long));
    let mut requests = JoinSet::new();
    for _ in 0..CLIENTS {
        let text = std::sync::Arc::clone(&text);
        requests.spawn(async move {
            Client::connect(ingress).await?.get("/", &[("x-long", &text)]).await
        });
    }
    let refused = async || envoy.counter("ratelease.error").await;
    envoy.until("refusing", async || refused().await >= CLIENTS - ROOM / 55_000).await;
    let kept = counted(&envoy, "message_bytes").await;
    assert!((ROOM / 2..=ROOM).contains(&kept), "{kept} bytes wait");
    assert!(counted(&envoy, "shed").await >= CLIENTS - ROOM / 55_000, "they are counted");
    let grown = envoy.process().memory("VmRSS").saturating_sub(before);
    assert!(grown < 64 << 20, "{CLIENTS} requests took {grown} bytes");

    // Though the filter lets other errors pass.
    while requests.join_next().await.unwrap().unwrap().unwrap().status != 431 {}
    requests.shutdown().await;
    envoy.until("without requests", async || active(&envoy).await == 0).await;
    envoy.until("without waits", async || counted(&envoy, "message_bytes").await == 0).await;
    let other = "y".repeat(55_000);
    assert_eq!(envoy.get("/", &[("x-long", &other)]).await.status, 200);
    end(envoy).await;
}

#[tokio::test]
async fn an_envoy_that_ends_while_requests_wait_ends_well() {
    let rules = Rules::new(SLOW);
    for settings in [true, false] {
        let mut options = Options::new("slow", &rules).filter(json!({"timeout": "10s"}));
        let env = rules.path().to_str().unwrap().to_owned();
        let env = [("RUNTIME_ROOT", &*env), ("RUNTIME_APPDIRECTORY", ".")];
        if !settings {
            options.settings = None;
        }
        let envoy = options.start_in(if settings { &[] } else { &env }).await;
        let _requests = begin(&envoy, "/a", 60);
        envoy.until("waiting", async || active(&envoy).await >= 40).await;
        end(envoy).await;
    }
}

#[tokio::test]
async fn without_redis_the_failure_mode_of_the_rule_decides_and_an_error_that_of_the_filter() {
    let nobody = std::net::SocketAddr::from(([127, 0, 0, 1], free_port()));
    for (mode, deny, expected) in
        [("allow", true, 200), ("deny", false, 429), ("error", true, 500), ("error", false, 200)]
    {
        let mode = format!(", failure_mode: {mode}");
        let rules = Rules::new(&file("alone", &[rule("path", 100, &mode)]));
        let options = Options::new("alone", &rules).on_cluster(&[nobody]);
        let envoy = options.filter(json!({"failure_mode_deny": deny})).start().await;
        let answer = envoy.get("/a", &[]).await;
        assert_eq!(answer.status, expected, "{mode} {deny}: {answer:?}");
        end(envoy).await;
    }
}

#[tokio::test]
async fn slots_are_held_by_the_stream_itself_and_come_back_when_it_ends_or_its_client_leaves() {
    let rules = Rules::new(
        "domain: slots\ndescriptors:\n- key: path\n  descriptors:\n  - key: request_id\n    \
         rate_limit: {algorithm: concurrency, requests_per_unit: 2, hold: {for: 60s}}\n",
    );
    let mut options = Options::new("slots", &rules);
    let mut actions = by_path()[0]["actions"].as_array().unwrap().clone();
    let named = json!({"descriptor_key": "request_id", "descriptor_value": "ratelease.stream"});
    actions.push(json!({"generic_key": named}));
    options.rate_limits = json!([{"actions": actions}]);
    options.after = vec![delay("6s")];
    let envoy = options.start().await;

    // Envoy counts a request before the filter has taken its slot, and no longer before it is back.
    let holds = async |count| counted(&envoy, "holds").await == count;
    let running = begin(&envoy, "/a", 2);
    envoy.until("holding both slots", async || holds(2).await).await;
    assert_eq!(envoy.get("/a", &[]).await.status, 429, "both slots are taken");
    let ended: Vec<_> = running.join_all().await.into_iter().map(|it| it.unwrap().status).collect();
    assert_eq!(ended, [200, 200]);
    envoy.until("without slots", async || holds(0).await).await;

    let running = begin(&envoy, "/a", 2);
    envoy.until("holding both slots", async || holds(2).await).await;
    drop(running);
    envoy.until("without slots", async || holds(0).await).await;
    let again = begin(&envoy, "/a", 1).join_all().await;
    assert_eq!(again[0].as_ref().unwrap().status, 200, "the clients have left");
    end(envoy).await;
}

/// A `RateLimit` that sends the value of a header as `key`.
fn by_header(header: &str, key: &str, hits: Value) -> Value {
    let action = json!({"header_name": header, "descriptor_key": key});
    json!({"actions": [{"request_headers": action}], "hits_addend": hits})
}

/// What the answer to a request with these headers says is left.
async fn left(envoy: &Envoy, headers: &[(&str, &str)]) -> u64 {
    let answer = envoy.get("/", headers).await;
    let left = answer.header("x-ratelimit-remaining").and_then(|left| left.parse().ok());
    left.unwrap_or_else(|| panic!("nothing is left by {answer:?}"))
}

#[tokio::test]
async fn a_cost_and_a_refund_of_a_request_that_waits_are_counted_once() {
    let cost = rule("cost", 1_000, ", settle: true");
    let rules = Rules::new(&file("once", &[rule("new", 9, ""), cost, rule("bank", 100, "")]));
    let mut options = Options::new("once", &rules)
        .filter(json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"}))
        .on_cluster(&Cluster::shared().places());
    options.rate_limits = json!([
        by_header("x-new", "new", json!({"number": 1})),
        by_header("x-cost", "cost", json!({"number": 7})),
        by_header("x-cost-look", "cost", json!({"number": 0})),
        by_header("x-spend", "bank", json!({"number": 50})),
        by_header("x-refund", "bank", json!({"number": 5, "is_negative_hits": true})),
        by_header("x-bank-look", "bank", json!({"number": 0})),
    ]);
    let envoy = options.start().await;
    assert_eq!(left(&envoy, &[("x-spend", "k")]).await, 50);
    end(envoy).await;
    let envoy = options.start().await;
    assert_eq!(envoy.get("/", &[("x-refund", "k"), ("x-new", "1")]).await.status, 200);
    assert_eq!(left(&envoy, &[("x-bank-look", "k")]).await, 55);
    assert_eq!(envoy.get("/", &[("x-cost", "k"), ("x-new", "2")]).await.status, 200);
    assert_eq!(left(&envoy, &[("x-cost-look", "k")]).await, 993);
    end(envoy).await;
}

/// Each key is new, so that its request waits: most clients leave within the moment between the
/// engine's answer and the stream's turn to see it, or before, or after.
#[tokio::test]
async fn slots_and_estimates_of_clients_that_leave_at_once_come_back() {
    let rules = Rules::new(
        "domain: left\ndescriptors:\n- key: path\n  descriptors:\n  - key: slot\n    \
         rate_limit: {algorithm: concurrency, requests_per_unit: 9, hold: {for: 1h}}\n  - \
         key: estimate\n    rate_limit: {unit: day, requests_per_unit: 9, hold: {for: 1h}}\n",
    );
    let mut options = Options::new("left", &rules);
    let named = |key: &str| {
        let name = json!({"descriptor_key": key, "descriptor_value": "ratelease.stream"});
        json!({"generic_key": name})
    };
    let path = by_path()[0]["actions"][0].clone();
    let settled = json!({"descriptor_key": "ratelease.settle", "descriptor_value": "1"});
    options.rate_limits = json!([
        {"actions": [path, named("slot")]},
        {"actions": [path, named("estimate")], "hits_addend": {"number": 3}},
        {"actions": [path, named("estimate"), {"generic_key": settled}], "apply_on_stream_done": true},
    ]);
    let envoy = options.start().await;
    for round in 0..5 {
        for at in 0..40 {
            let mut client = tokio::net::TcpStream::connect(envoy.ingress).await.unwrap();
            let request = format!("GET /{round}/{at} HTTP/1.1\r\nhost: a\r\n\r\n");
            client.write_all(request.as_bytes()).await.unwrap();
        }
        envoy.until("without requests", async || active(&envoy).await == 0).await;
    }
    envoy.until("without holds", async || counted(&envoy, "holds").await == 0).await;
    end(envoy).await;
}

/// As in Envoy's filter: a stream that another filter has answered before counts nothing at its end,
/// nor does one that ended while it waited.
#[tokio::test]
async fn the_end_of_a_stream_counts_only_if_its_request_got_past_the_filter() {
    let rules = Rules::new(&format!(
        "{SLOW}- key: done\n  rate_limit: {{unit: day, requests_per_unit: 9}}\n"
    ));
    let mut options = Options::new("slow", &rules)
        .filter(json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"}));
    let mut at_end = by_header("x-done", "done", json!({"number": 1}));
    at_end["apply_on_stream_done"] = json!(true);
    let look = by_header("x-look", "done", json!({"number": 0}));
    options.rate_limits = json!([at_end, look, by_header("x-slow", "path", json!({"number": 1}))]);
    options.filters = vec![denying("x-deny")];
    let envoy = options.start().await;
    assert_eq!(envoy.get("/", &[("x-done", "a"), ("x-deny", "1")]).await.status, 403);
    assert_eq!(envoy.get("/", &[("x-slow", "a")]).await.status, 200);
    let mut client = tokio::net::TcpStream::connect(envoy.ingress).await.unwrap();
    let request = b"GET / HTTP/1.1\r\nhost: a\r\nx-done: a\r\nx-slow: a\r\n\r\n";
    client.write_all(request).await.unwrap();
    envoy.until("waiting", async || active(&envoy).await == 1).await;
    drop(client);
    envoy.until("without requests", async || active(&envoy).await == 0).await;
    assert_eq!(envoy.get("/", &[("x-done", "a")]).await.status, 200);
    let counted = async || left(&envoy, &[("x-look", "a")]).await < 9;
    envoy.until("done counting", counted).await;
    assert_eq!(left(&envoy, &[("x-look", "a")]).await, 8);
    end(envoy).await;
}

/// A filter that denies requests with this header.
fn denying(header: &str) -> Value {
    let permission = json!({"header": {"name": header, "present_match": true}});
    let policy = json!({"principals": [{"any": true}], "permissions": [permission]});
    let kind = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let rules = json!({"action": "DENY", "policies": {"denied": policy}});
    json!({"name": "envoy.filters.http.rbac", "typed_config": {"@type": kind, "rules": rules}})
}

#[tokio::test]
async fn an_envoy_that_ends_under_load_answers_or_closes_each_request() {
    let rules = Rules::new(&file("ending", &[rule("path", 1_000_000, "")]));
    let places = Cluster::shared().places();
    let envoy = Options::new("ending", &rules).on_cluster(&places).start().await;
    let load = envoy.load(Load::new("/a", 16, u64::MAX));
    envoy.until("loaded", async || envoy.counter("ratelease.ok").await > 500).await;
    end(envoy).await;
    let tally = load.stop().await;
    assert!(tally.passed() > 500 && tally.limited() == 0, "{tally:?}");
}
