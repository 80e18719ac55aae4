use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::stand::{Options, Rules, by_path, end, file, rule};
use crate::support::envoy::{Envoy, EnvoyOptions};
use crate::support::files::put;
use crate::support::http::Client;
use crate::support::load::{Load, Tally};
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;

/// Maximum time until a limit is used up, which includes the return of leases that are not spent.
const USED_UP_MAX: Duration = Duration::from_secs(20);

#[tokio::test]
async fn a_limit_of_the_memory_store_is_exact_and_denials_are_as_envoys_own_filter_gives_them() {
    let rules = Rules::new(&file("first", &[rule("path", 3, "")]));
    let options = Options::new("first", &rules);
    let envoy =
        options.filter(json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"})).start().await;
    let mut client = Client::connect(envoy.ingress).await.unwrap();
    for (status, left) in [(200, "2"), (200, "1"), (200, "0"), (429, "0"), (429, "0")] {
        let answer = client.get("/a", &[]).await.unwrap();
        assert_eq!(answer.status, status, "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3, 3;w=86400"), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
        let limited = (status == 429).then_some("true");
        assert_eq!(answer.header("x-envoy-ratelimited"), limited);
    }
    assert_eq!(envoy.counter("ratelease.ok").await, 3);
    assert_eq!(envoy.counter("ratelease.over_limit").await, 2);
    end(envoy).await;
}

#[tokio::test]
async fn many_clients_of_two_workers_pass_as_often_as_a_limit_in_redis_says() {
    const L: u64 = 2_000;
    let rules = Rules::new(&file("module-many", &[rule("path", L, "")]));
    let options = Options::new("module-many", &rules).on_cluster(&Cluster::shared().places());
    let envoy = options.start().await;
    let tally = envoy.load(Load::new("/many", 16, 2 * L)).finish().await;
    assert_eq!(tally, Tally { statuses: [(200, L), (429, L)].into(), broken: 0 });
    end(envoy).await;
}

/// Has Envoy log lines of this format to a file.
fn access_log(path: &Path, format: &str) -> Value {
    let kind = "type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog";
    let format = json!({"text_format_source": {"inline_string": format!("{format}\n")}});
    json!({"access_log": [{
        "name": "envoy.access_loggers.file",
        "typed_config": {"@type": kind, "path": path, "log_format": format},
    }]})
}

/// Waits until the log has so many lines.
async fn lines(envoy: &Envoy, log: &Path, count: usize) -> Vec<String> {
    let read = || {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Envoy writes its log when it is asked to, or after ten seconds.
    let logged = async || {
        envoy.post("/reopen_logs").await;
        read().len() >= count
    };
    envoy.until("done with its access log", logged).await;
    read()
}

#[tokio::test]
async fn the_access_log_has_details_flags_and_the_metadata_of_the_answer() {
    let rules = Rules::new(
        "domain: told\ndescriptors:\n- key: path\n  metadata: {team: [a, {b: 1.5}]}\n  \
         rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let logs = TempDir::new().unwrap();
    let log = logs.path().join("log");
    let format = "%RESPONSE_CODE% %RESPONSE_CODE_DETAILS% %CUSTOM_FLAGS% \
                  %DYNAMIC_METADATA(envoy.filters.http.ratelimit)%";
    let mut options = Options::new("told", &rules).set("RESPONSE_DYNAMIC_METADATA", true);
    options.manager = access_log(&log, format);
    let envoy = options.start().await;
    assert_eq!(envoy.get("/a", &[]).await.status, 200);
    // Another worker, which may have the second request, would write its line first.
    lines(&envoy, &log, 1).await;
    let denied = envoy.get("/a", &[]).await;
    assert_eq!((denied.status, &*denied.body), (429, ""));
    let lines = lines(&envoy, &log, 2).await;
    let metadata =
        |line: &str| -> Value { serde_json::from_str(&line[line.find('{').unwrap()..]).unwrap() };
    assert!(lines[0].starts_with("200 via_upstream  {"), "{lines:?}");
    let passed = metadata(&lines[0]);
    assert_eq!(passed["metadata"], json!({"team": ["a", {"b": 1.5}]}), "{lines:?}");
    assert_eq!(passed["descriptors"][0]["entries"], json!(["path=/a"]));
    assert!(lines[1].starts_with("429 request_rate_limited RL "), "{lines:?}");
    assert_eq!(metadata(&lines[1])["denied"], json!({"team": ["a", {"b": 1.5}]}), "{lines:?}");
    end(envoy).await;
}

#[tokio::test]
async fn a_denied_call_of_grpc_gets_a_status_of_grpc_that_is_no_success() {
    let rules = Rules::new(&file("calls", &[rule("path", 1, "")]));
    for (exhausted, expected) in [(false, "14"), (true, "8")] {
        let options = Options::new("calls", &rules);
        let filter = json!({"rate_limited_as_resource_exhausted": exhausted});
        let envoy = options.filter(filter).start().await;
        let mut client = Client::connect(envoy.ingress).await.unwrap();
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        let first = client.send("POST", "/a.B/C", &headers, "").await.unwrap();
        assert_eq!(first.header("x-envoy-ratelimited"), None, "{first:?}");
        let denied = client.send("POST", "/a.B/C", &headers, "").await.unwrap();
        assert_eq!((denied.status, denied.header("grpc-status")), (200, Some(expected)));
        let statuses = denied.headers.iter().filter(|(name, _)| name == "grpc-status").count();
        assert_eq!(statuses, 1, "{denied:?}");
        assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
        end(envoy).await;
    }
}

#[tokio::test]
async fn denials_have_the_status_and_the_headers_of_the_configuration() {
    let rules = Rules::new(&file("dressed", &[rule("path", 1, "")]));
    let header = |key: &str, value: &str, action: &str| json!({"header": {"key": key, "value": value}, "append_action": action});
    let options = Options::new("dressed", &rules).filter(json!({
        "rate_limited_status": {"code": "ServiceUnavailable"},
        "disable_x_envoy_ratelimited_header": true,
        "enable_retry_after_header": true,
        "response_headers_to_add": [
            header("x-why", "over 9%% of it", "APPEND_IF_EXISTS_OR_ADD"),
            header("Retry-After", "7", "OVERWRITE_IF_EXISTS"),
        ],
    }));
    let envoy = options.start().await;
    let passed = envoy.get("/a", &[]).await;
    assert_eq!((passed.status, passed.header("x-why")), (200, None));
    let denied = envoy.get("/a", &[]).await;
    assert_eq!((denied.status, denied.header("x-why")), (503, Some("over 9% of it")));
    assert_eq!(denied.header("retry-after"), Some("7"));
    assert_eq!(denied.header("x-envoy-ratelimited"), None);
    end(envoy).await;
}

#[tokio::test]
async fn denials_that_are_not_enforced_pass_with_headers_and_are_counted() {
    let rules = Rules::new(&file("soft", &[rule("path", 1, "")]));
    let never = json!({"default_value": {"numerator": 0}});
    let options = Options::new("soft", &rules).filter(json!({
        "filter_enforced": never, "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
    }));
    let envoy = options.start().await;
    for left in ["0", "0", "0"] {
        let answer = envoy.get("/a", &[]).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(left)));
    }
    assert_eq!(envoy.counter("ratelease.over_limit").await, 2);
    end(envoy).await;

    let off = Options::new("soft", &rules).filter(json!({"filter_enabled": never}));
    let envoy = off.start().await;
    for _ in 0..3 {
        assert_eq!(envoy.get("/a", &[]).await.status, 200);
    }
    assert_eq!(envoy.counter("ratelease.ok").await, 0, "nothing was decided");
    end(envoy).await;
}

#[tokio::test]
async fn hits_that_a_stream_has_cost_are_counted_when_it_ends() {
    let rules = Rules::new(&file("costs", &[rule("path", 10, "")]));
    let mut options = Options::new("costs", &rules)
        .filter(json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"}));
    // Envoy lowers the gauge of active requests before it tells the filters that a stream has ended.
    // One worker does both before it serves the next request; of two, the other could serve it in
    // between.
    options.concurrency = 1;
    let path = &by_path()[0]["actions"];
    options.rate_limits = json!([
        {"actions": path, "hits_addend": {"number": 0}},
        {"actions": path, "hits_addend": {"format": "%BYTES_SENT%"}, "apply_on_stream_done": true},
    ]);
    let envoy = options.start().await;
    // Each answer has the three bytes of `ok\n`. A request of no hits passes until more is spent
    // than there was.
    for left in ["10", "7", "4", "1"] {
        let answer = envoy.get("/a", &[]).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(left)));
        let ended = async || envoy.counter("http.ingress.downstream_rq_active").await == 0;
        envoy.until("done with the stream", ended).await;
    }
    let last = envoy.get("/a", &[]).await;
    assert_eq!(last.header("x-ratelimit-remaining"), Some("0"), "{last:?}");
    end(envoy).await;
}

#[tokio::test]
async fn two_filters_count_in_domains_of_their_own() {
    let rules = Rules::new(&file("outer", &[rule("path", 2, "")]));
    put(rules.path().join("inner.yaml"), file("inner", &[rule("generic_key", 3, "")]));
    let mut options = Options::new("outer", &rules);
    let all = json!([{"actions": [{"generic_key": {"descriptor_value": "all"}}]}]);
    let inner = Options::new("inner", &rules).filter(json!({
        "rate_limits": all, "rate_limited_status": {"code": "ServiceUnavailable"},
    }));
    let mut inner = inner.http_filter();
    inner["name"] = json!("inner");
    options.after = vec![inner];
    let envoy = options.start().await;
    for (path, status) in [("/a", 200), ("/a", 200), ("/a", 429), ("/b", 200), ("/c", 503)] {
        assert_eq!(envoy.get(path, &[]).await.status, status, "{path}");
    }
    end(envoy).await;
}

#[tokio::test]
async fn a_header_of_a_mebibyte_is_counted_like_any_other() {
    let rules = Rules::new(&file("long", &[rule("long", 2, "")]));
    let mut options = Options::new("long", &rules);
    options.manager = json!({"max_request_headers_kb": 2048});
    let header = json!({"header_name": "x-long", "descriptor_key": "long"});
    options.rate_limits = json!([{"actions": [{"request_headers": header}]}]);
    let envoy = options.start().await;
    let (long, other) = ("x".repeat(1 << 20), "y".repeat(1 << 20));
    for (value, status) in [(&long, 200), (&long, 200), (&long, 429), (&other, 200)] {
        assert_eq!(envoy.get("/", &[("x-long", value)]).await.status, status);
    }
    end(envoy).await;
}

#[tokio::test]
async fn four_envoys_with_modules_and_four_with_sidecars_share_one_limit_exactly() {
    const L: u64 = 4_000;
    let rules = Rules::new(&file("both", &[rule("path", L, "")]));
    let places = Cluster::shared().places();
    let env = [("LEASE_MAX_WAIT", "5s"), ("REDIS_TIMEOUT", "5s")];
    let (mut pods, mut envoys) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let pod = Ratelease::start(rules.path(), &places, &env).await;
        let timeout = Duration::from_secs(8);
        let asks = EnvoyOptions { timeout, ..EnvoyOptions::new("both", &[pod.grpc]) };
        pods.push(pod);
        envoys.push(Envoy::start(asks).await);
        envoys.push(Options::new("both", &rules).on_cluster(&places).start().await);
    }
    let loads: Vec<_> = envoys.iter().map(|envoy| envoy.load(Load::new("/a", 4, L / 4))).collect();
    let mut all = Tally::default();
    for load in loads {
        all.add(load.finish().await);
    }
    assert_eq!((all.faults(), all.passed() + all.limited()), (0, 2 * L), "{all:?}");
    println!("{} of {L} passed at once", all.passed());
    // What one still holds, while another is denied, it spends on the next request or returns.
    let rest = async {
        while all.passed() < L {
            for envoy in &envoys {
                all.add(envoy.load(Load::new("/a", 1, 1)).finish().await);
            }
        }
    };
    tokio::time::timeout(USED_UP_MAX, rest).await.expect("the whole limit is used");
    for envoy in &envoys {
        all.add(envoy.load(Load::new("/a", 1, 20)).finish().await);
    }
    assert_eq!((all.faults(), all.passed()), (0, L), "{all:?}");
    for (at, envoy) in envoys.into_iter().enumerate() {
        if at % 2 == 1 { end(envoy).await } else { envoy.stop().await }
    }
    assert_eq!(Ratelease::stop_all(&pods).await, [0; 4]);
}
