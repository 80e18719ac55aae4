//! The content of `/metrics` of a server under requests, and that the docs name all of it.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;

use crate::support::files::{dir_of, put};
use crate::support::http;
use crate::support::papers::Papers;
use crate::support::ports::free_port;
use crate::support::ratelease::Ratelease;
use crate::support::redis::Cluster;
use crate::support::shop::Shop;
use crate::support::tls_files::TlsFiles;
use crate::support::xds_server::XdsServer;

/// Limit for steps that take milliseconds, on a machine that also compiles.
const SOON: Duration = Duration::from_secs(10);

/// A year's window does not end while a test runs.
const RULES: &str = "
domain: shop
descriptors:
  - key: plain
    rate_limit: {unit: year, requests_per_unit: 4}
  - key: many
    rate_limit: {unit: year, requests_per_unit: 10}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: year, requests_per_unit: 1}
  - key: each
    detailed_metric: true
    descriptors:
      - key: user
        detailed_metric: true
        descriptors:
          - key: deep
            detailed_metric: true
            rate_limit: {unit: year, requests_per_unit: 100}
";

fn rules(text: &str) -> TempDir {
    dir_of(&[("shop.yaml", text)])
}

async fn page(addr: SocketAddr, path: &str) -> String {
    let answer = http::get(addr, path).await.unwrap();
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    answer.body
}

/// The sum of the samples whose line begins with `start`.
#[track_caller]
fn sum(page: &str, start: &str) -> f64 {
    let values = page.lines().filter_map(|line| line.strip_prefix(start)?.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// The lines of the reference's hit counters, without the prefix before the kind of hit.
fn hits(page: &str) -> Vec<&str> {
    let lines = page.lines();
    lines.filter_map(|line| line.strip_prefix("ratelimit_service_rate_limit_")).collect()
}

/// Checks what Prometheus requires but does not check itself: no duplicate series, no invalid
/// number.
fn is_valid(page: &str) {
    promtool_finds_nothing(page);
    let mut seen = BTreeSet::new();
    for line in page.lines().filter(|line| !line.starts_with("# ")) {
        let (series, value) = line.rsplit_once(' ').expect("a series and its value");
        assert!(seen.insert(series), "{series} is reported twice in\n{page}");
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
    }
    let named = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
    let named: Vec<_> = named.collect();
    assert_eq!(named.len(), named.iter().collect::<BTreeSet<_>>().len(), "{named:?}");
}

fn promtool_finds_nothing(page: &str) {
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool, of Debian's package prometheus");
    child.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(output.status.success() && said.is_empty(), "{said}\nof\n{page}");
}

/// Seventeen calls, the last of which is denied.
async fn a_known_sequence(shop: &mut Shop) {
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(shop.ask("shop", &[("plain", "v")]).await, expected);
    }
    for expected in [200, 429] {
        let hits = json!({"hitsAddend": 7});
        assert_eq!(shop.ask_with("shop", &[("many", "v")], hits).await, expected);
    }
    for _ in 0..3 {
        assert_eq!(shop.ask("shop", &[("dark", "v")]).await, 200);
    }
    for (user, deep) in [("a", "x"), ("a", "y"), ("b", "x")] {
        let entries = [("each", "1.2.3.4"), ("user", user), ("deep", deep)];
        assert_eq!(shop.ask("shop", &entries).await, 200);
    }
    for value in ["a", "b"] {
        let limit = json!({"limit": {"requestsPerUnit": 5, "unit": "YEAR"}});
        assert_eq!(shop.ask_with("shop", &[("free", value)], limit).await, 200);
    }
    assert_eq!(shop.ask("unheard-of", &[("plain", "v")]).await, 200);
    assert_eq!(shop.ask("", &[("plain", "v")]).await, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_known_sequence_of_requests_is_counted_with_every_label() {
    let mut shop = Shop::open(RULES, &[("NEAR_LIMIT_RATIO", "0.5")]).await;
    a_known_sequence(&mut shop).await;
    let pod = &shop.pod;
    let page = page(pod.debug, "/metrics").await;
    let expected = [
        r#"total_hits{domain="shop",key1="dark"} 3"#,
        r#"total_hits{domain="shop",key1="each_1_2_3_4",key2="user_a"} 2"#,
        r#"total_hits{domain="shop",key1="each_1_2_3_4",key2="user_b"} 1"#,
        r#"total_hits{domain="shop",key1="many"} 14"#,
        r#"total_hits{domain="shop",key1="override"} 2"#,
        r#"total_hits{domain="shop",key1="plain"} 5"#,
        r#"over_limit{domain="shop",key1="dark"} 2"#,
        r#"over_limit{domain="shop",key1="many"} 4"#,
        r#"over_limit{domain="shop",key1="plain"} 1"#,
        r#"near_limit{domain="shop",key1="dark"} 1"#,
        r#"near_limit{domain="shop",key1="many"} 5"#,
        r#"near_limit{domain="shop",key1="plain"} 2"#,
        r#"within_limit{domain="shop",key1="dark"} 1"#,
        r#"within_limit{domain="shop",key1="each_1_2_3_4",key2="user_a"} 2"#,
        r#"within_limit{domain="shop",key1="each_1_2_3_4",key2="user_b"} 1"#,
        r#"within_limit{domain="shop",key1="many"} 7"#,
        r#"within_limit{domain="shop",key1="override"} 2"#,
        r#"within_limit{domain="shop",key1="plain"} 4"#,
        r#"shadow_mode{domain="shop",key1="dark"} 2"#,
        r#"shadow_mode{domain="shop",key1="many"} 0"#,
        r#"shadow_mode{domain="shop",key1="plain"} 0"#,
    ];
    assert_eq!(hits(&page), expected, "{page}");
    let decided = |rule: &str, verdict: &str| {
        let start = format!("ratelease_decisions_total{{domain=\"shop\",rule=\"{rule}\",");
        sum(&page, &format!("{start}verdict=\"{verdict}\","))
    };
    for (rule, ok, over) in [
        ("shop.plain", 4.0, 1.0),
        ("shop.many", 1.0, 1.0),
        ("shop.dark", 3.0, 0.0),
        ("shop.each.user.deep", 3.0, 0.0),
        ("override", 2.0, 0.0),
    ] {
        let reported = (decided(rule, "ok"), decided(rule, "over_limit"));
        assert_eq!(reported, (ok, over), "{rule} in\n{page}");
    }
    for (line, value) in [
        (r#"ratelease_decisions_total{domain="none",rule="none",verdict="ok",how="none"} "#, 1.0),
        (r#"ratelimit_service_should_rate_limit_error{err_type="service_error"} "#, 1.0),
        (r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} "#, 17.0),
        (r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} "#, 16.0),
        ("ratelease_decision_duration_seconds_count ", 16.0),
        (r#"ratelease_refusals_total{reason="empty_domain"} "#, 1.0),
        ("ratelimit_service_config_load_success ", 1.0),
        ("ratelease_rules ", 4.0),
        ("ratelease_invariant_violations_total ", 0.0),
        (r#"ratelease_breaker_open{shard="0",store="default"} "#, 0.0),
    ] {
        assert_eq!(sum(&page, line), value, "{line} in\n{page}");
    }
    let asks = sum(&page, "ratelease_lease_asks_total{");
    assert!(asks >= 1.0, "{page}");
    assert_eq!(sum(&page, "ratelease_lease_grants_total{"), asks, "{page}");
    assert!(!page.contains("unheard-of"), "no label is the client's text: {page}");
    is_valid(&page);
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_have_a_port_of_their_own_if_asked_and_decisions_are_counted_unless_not() {
    let addr = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let env = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &addr.to_string()),
        ("PROMETHEUS_PATH", "/numbers"),
        ("DISABLE_STATS", "true"),
        ("PROMETHEUS_MAPPER_YAML", "/mapper.yaml"),
    ];
    let mut shop = Shop::open(RULES, &env).await;
    assert_eq!(shop.ask("shop", &[("plain", "v")]).await, 200);
    let pod = &shop.pod;
    for (addr, path) in [(addr, "/numbers"), (pod.debug, "/metrics")] {
        let page = page(addr, path).await;
        assert!(page.contains("\nratelease_build_info{version="), "{page}");
        assert!(!page.contains("ratelease_decisions_total"), "{page}");
        is_valid(&page);
    }
    for (addr, path) in [(addr, "/metrics"), (addr, "/status"), (pod.debug, "/numbers")] {
        assert_eq!(http::get(addr, path).await.unwrap().status, 404, "{addr} {path}");
    }
    pod.logs("PROMETHEUS_MAPPER_YAML: ignored; ").await;
    pod.logs(&format!("metrics on {addr}")).await;
    assert_eq!(pod.stop().await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_the_rules_is_logged_with_its_duration() {
    let shop = Shop::open(RULES, &[]).await;
    let (pod, file) = (&shop.pod, shop.rules().join("shop.yaml"));
    let info =
        |page: &str| page.lines().find(|line| line.contains("rules_info{")).map(str::to_owned);
    let first = page(pod.debug, "/metrics").await;
    assert!(!first.contains("\nratelease_rules_propagation_seconds "), "{first}");
    assert_eq!(sum(&first, "ratelease_rules_stale "), 0.0);
    put(&file, format!("{RULES}  - key: more\n"));
    let shows = async |what: &str| {
        let reported = async || page(pod.debug, "/metrics").await.contains(what);
        pod.process.until(&format!("showing {what}"), SOON, reported).await;
        page(pod.debug, "/metrics").await
    };
    let changed = shows("\nratelease_rules_propagation_seconds ").await;
    let took = sum(&changed, "ratelease_rules_propagation_seconds ");
    assert!((0.0..SOON.as_secs_f64()).contains(&took), "{took}");
    assert!(sum(&changed, "ratelease_rules_age_seconds ") < SOON.as_secs_f64(), "{changed}");
    assert!(info(&changed).is_some() && info(&changed) != info(&first), "{changed}");
    put(&file, "domain: [");
    let refused = shows("\nratelease_rules_stale 1\n").await;
    assert_eq!(sum(&refused, r#"ratelease_rules_loads_total{result="refused"} "#), 1.0);
    assert_eq!(info(&refused), info(&changed), "the good ones stay");
    pod.is_unharmed();
}

#[tokio::test(flavor = "multi_thread")]
async fn every_token_lent_is_spent_given_back_or_expired() {
    let limit = "rate_limit: {unit: second, requests_per_unit: 100000}";
    let rules = format!("domain: shop\ndescriptors:\n- key: fast\n  {limit}\n");
    let mut shop = Shop::open(&rules, &[]).await;
    let debug = shop.pod.debug;
    let grants = async || sum(&page(debug, "/metrics").await, "ratelease_lease_grants_total{");
    for _ in 0..2 {
        // Until one window has followed another, so that tokens of the older one are left.
        let first = grants().await;
        while grants().await < first + 3.0 {
            assert_eq!(shop.ask("shop", &[("fast", "v")]).await, 200);
        }
        let forgotten =
            async || page(debug, "/metrics").await.contains("\nratelease_buffer_keys 0\n");
        shop.pod.process.until("forgetting the key", SOON, forgotten).await;
    }
    let pod = &shop.pod;
    let reported = async || {
        let page = page(debug, "/metrics").await;
        let [granted, returned, expired] = ["granted", "returned", "expired"]
            .map(|what| sum(&page, &format!("ratelease_tokens_{what}_total ")));
        let spent = sum(&page, "ratelimit_service_rate_limit_within_limit{");
        (granted, spent + returned + expired, expired)
    };
    let adds_up = async || {
        let (granted, accounted, expired) = reported().await;
        println!("{granted} lent, {accounted} accounted for, {expired} of them expired");
        granted == accounted
    };
    pod.process.until("every token accounted for", SOON, adds_up).await;
    let (granted, _, expired) = reported().await;
    assert!(granted > 0.0 && expired > 0.0, "{granted} lent, {expired} expired");
    pod.is_unharmed();
}

/// Labels contain the operator's text, even characters that would end a label or a line of the
/// page.
#[tokio::test(flavor = "multi_thread")]
async fn names_of_all_kinds_are_escaped_in_labels() {
    let key = r#"back\slash "quoted"} 7"#;
    let key = format!("{key}\nline\té\u{1f980}");
    let limit = "rate_limit: {unit: year, requests_per_unit: 9}";
    let rules = format!("domain: shop\ndescriptors:\n- key: {}\n  {limit}\n", json!(key));
    let mut shop = Shop::open(&rules, &[]).await;
    assert_eq!(shop.ask("shop", &[(&key, "v")]).await, 200);
    let page = page(shop.pod.debug, "/metrics").await;
    is_valid(&page);
    let reported = r#"total_hits{domain="shop",key1="back\\slash \"quoted\"} 7\nline"#;
    assert!(hits(&page).iter().any(|line| line.starts_with(reported)), "{page}");
    shop.pod.is_unharmed();
}

/// As in the reference, the hits count, and no decision does.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_store_leaves_unanswered_has_hits_and_no_verdict() {
    let limit = "rate_limit: {unit: year, requests_per_unit: 9, failure_mode: error}";
    let rules = rules(&format!("domain: shop\ndescriptors:\n- key: strict\n  {limit}\n"));
    // No server listens there.
    let redis = [SocketAddr::from(([127, 0, 0, 1], free_port()))];
    let pod = Ratelease::start(rules.path(), &redis, &[]).await;
    let entries = json!([{"key": "strict", "value": "v"}]);
    let body = json!({"domain": "shop", "descriptors": [{"entries": entries, "hitsAddend": 3}]});
    let mut client = http::Client::connect(pod.http).await.unwrap();
    let answer = client.send("POST", "/json", &[], body.to_string()).await.unwrap();
    assert_eq!(answer.status, 400, "{}", answer.body);
    let page = page(pod.debug, "/metrics").await;
    let expected = [("total_hits", 3.0), ("within_limit", 0.0), ("over_limit", 0.0)];
    for (name, hits) in expected {
        assert_eq!(sum(&page, &format!("ratelimit_service_rate_limit_{name}{{")), hits, "{page}");
    }
    assert_eq!(sum(&page, "ratelease_decisions_total{"), 0.0, "{page}");
    assert_eq!(sum(&page, r#"ratelease_refusals_total{reason="store"} "#), 1.0, "{page}");
    pod.is_unharmed();
}

/// The names in the first column of the tables of metrics; a row may have several.
fn documented() -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let text = fs::read_to_string(path).unwrap();
    let cells = text.lines().filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let names =
        cells.flat_map(|cell| cell.split("`, `")).filter_map(|it| it.split(['`', '{']).next());
    names.filter(|name| name.chars().any(char::is_lowercase)).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_docs_name_every_metric_and_no_other() {
    let (rules, kept) = (rules(RULES), TempDir::new().unwrap());
    let snapshot = kept.path().join("rules.snapshot");
    let tls = TlsFiles::of(&Papers::new("127.0.0.1"));
    let mut env = tls.env();
    env.push(("RULES_SNAPSHOT", snapshot.to_str().unwrap()));
    let pod = Ratelease::start(rules.path(), &Cluster::shared().places(), &env).await;
    // Rules come from files or from a server.
    let server = XdsServer::start().await;
    let at = server.addr.to_string();
    let env = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_URL", &*at)];
    let follower = Ratelease::spawn(rules.path(), &[], &env);
    follower.says("/readyz", 503).await;
    let mut reported = BTreeSet::new();
    for pod in [&pod, &follower] {
        let page = page(pod.debug, "/metrics").await;
        is_valid(&page);
        let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        reported.extend(types.map(str::to_owned));
    }
    let documented = documented();
    let missing: Vec<_> = reported.difference(&documented).collect();
    let surplus: Vec<_> = documented.difference(&reported).collect();
    assert!(missing.is_empty(), "not in docs/metrics.md: {missing:?}");
    assert!(surplus.is_empty(), "only in docs/metrics.md: {surplus:?}");
    pod.is_unharmed();
}
