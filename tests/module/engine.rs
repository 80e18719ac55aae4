use serde_json::json;

use crate::stand::{Changing, Options, Rules, assert_no_harm, end, file, rule};
use crate::support::http;
use crate::support::load::Load;
use crate::support::ports::free_port;
use crate::support::redis_cluster::Cluster;

#[tokio::test]
async fn the_pages_of_the_engine_are_on_envoys_admin_port_and_on_a_port_that_is_asked_for() {
    let rules = Rules::new(&file("paged", &[rule("path", 5, "")]));
    let port = free_port();
    let options = Options::new("paged", &rules).set("DEBUG_PORT", port);
    let envoy = options.start().await;
    assert_eq!(envoy.get("/a", &[]).await.status, 200);
    let debug = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    for page in ["/status", "/metrics", "/rlconfig", "/hotkeys", ""] {
        let within = envoy.admin(&format!("/ratelease{page}")).await;
        let beside = http::get(debug, if page.is_empty() { "/" } else { page }).await.unwrap();
        assert_eq!(beside.status, 200);
        let first = |page: &str| page.lines().next().unwrap().chars().take(9).collect::<String>();
        assert_eq!(first(&within), first(&beside.body), "{page}");
    }
    let index = envoy.admin("/ratelease").await;
    let listed: Vec<_> = index.lines().filter(|line| line.starts_with('/')).collect();
    let paths = listed.iter().map(|line| line.split(' ').next().unwrap());
    let below = ["", "/hotkeys", "/metrics", "/rlconfig", "/status"];
    assert_eq!(paths.collect::<Vec<_>>(), below.map(|page| format!("/ratelease{page}")));
    let counted = envoy.admin("/ratelease/metrics").await;
    assert!(counted.contains(r#"total_hits{domain="paged",key1="path"} 1"#), "{counted}");
    assert!(envoy.admin("/help").await.contains("/ratelease"));
    end(envoy).await;
}

#[tokio::test]
async fn values_of_hot_keys_are_on_the_debug_port_only() {
    let rules = Rules::new(&file("guarded", &[rule("path", 5, "")]));
    let port = free_port();
    let options = Options::new("guarded", &rules).set("DEBUG_PORT", port);
    let envoy = options.set("HOT_KEYS_VALUES", true).set("HOT_KEYS_SAMPLE", 1).start().await;
    assert_eq!(envoy.get("/alice", &[]).await.status, 200);
    let debug = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    for page in ["/hotkeys", "/status"] {
        let within = envoy.admin(&format!("/ratelease{page}")).await;
        let beside = http::get(debug, page).await.unwrap().body;
        let count = |page: &str| page.matches(r#""rule":"guarded.path""#).count();
        assert_eq!(count(&within), count(&beside), "the keys are on both: {within}");
        assert!(beside.contains("path=/alice") && !within.contains("alice"), "{within} {beside}");
    }
    end(envoy).await;
}

#[tokio::test]
async fn a_debug_token_keeps_the_pages_off_envoys_admin_port() {
    let rules = Rules::new(&file("token", &[rule("path", 5, "")]));
    let port = free_port();
    let options = Options::new("token", &rules).set("DEBUG_PORT", port);
    let envoy = options.start_in(&[("DEBUG_TOKEN", "hunter2")]).await;
    let page = envoy.admin("/ratelease").await;
    assert!(page.starts_with("invalid path") && !page.contains("ratelease:"), "{page}");
    let is_told = async || envoy.process().log().contains("which hands over no DEBUG_TOKEN");
    envoy.until("told why there are no pages", is_told).await;
    let debug = std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let mut client = http::Client::connect(debug).await.unwrap();
    for (token, status) in [("Bearer hunter2", 200), ("Bearer hunter3", 401)] {
        let answer = client.get("/status", &[("authorization", token)]).await.unwrap();
        assert_eq!(answer.status, status, "{token}");
    }
    end(envoy).await;
}

#[tokio::test]
async fn two_envoys_of_one_host_open_no_port_unless_it_is_asked_for() {
    let rules = Rules::new(&file("ports", &[rule("path", 5, "")]));
    let options = Options::new("ports", &rules);
    let (first, second) = (options.start().await, options.start().await);
    for envoy in [&first, &second] {
        assert_eq!(envoy.get("/a", &[]).await.status, 200);
    }
    end(first).await;
    end(second).await;
}

#[tokio::test]
async fn an_envoy_without_the_extension_has_its_settings_from_the_environment() {
    let rules = Rules::new(&file("plain", &[rule("path", 2, "")]));
    let mut options = Options::new("plain", &rules);
    options.settings = None;
    let root = rules.path().to_str().unwrap();
    let envoy = options.start_in(&[("RUNTIME_ROOT", root), ("RUNTIME_APPDIRECTORY", ".")]).await;
    for status in [200, 200, 429] {
        assert_eq!(envoy.get("/a", &[]).await.status, status);
    }
    end(envoy).await;
}

#[tokio::test]
async fn rules_that_change_are_in_force_soon_and_faulty_ones_leave_the_last_good_ones() {
    let rules = Rules::new("domain: [");
    let envoy = Options::new("mended", &rules).start().await;
    assert_eq!(envoy.get("/a", &[]).await.status, 500, "there are no rules");
    let answers = async |status| envoy.get("/a", &[]).await.status == status;
    rules.replace(&file("mended", &[rule("path", 1, "")]));
    envoy.until("limited", async || answers(429).await).await;
    rules.replace("domain: mended\ndescriptors: [{ky: path}]\n");
    let refused = async || envoy.admin("/ratelease/status").await.contains("unknown key");
    envoy.until("told of the faults", refused).await;
    assert!(answers(429).await, "the last good rules are in force");
    rules.replace(&file("mended", &[rule("path", 1_000, "")]));
    envoy.until("limited less", async || answers(200).await).await;
    end(envoy).await;
}

#[tokio::test]
async fn rules_of_a_filters_configuration_are_in_force_with_it_beside_those_of_files() {
    let rules = Rules::new(&file("filed", &[rule("path", 1, "")]));
    let mut options = Options::new("brought", &rules);
    options.json = true;
    let brings = |limit: u64| {
        let text = file("brought", &[rule("path", limit, "")]);
        options.clone().filter(json!({"rules": text}))
    };
    let changing = Changing::start(&brings(2), &[]).await;
    let envoy = &changing.envoy;
    for status in [200, 200, 429] {
        assert_eq!(envoy.get("/a", &[]).await.status, status);
    }
    assert!(envoy.admin("/ratelease/rlconfig").await.contains("filed"), "the file has its domain");

    changing.replace(&brings(4));
    envoy.until("changed", async || changing.count("listener_modified").await == 1).await;
    let shown = envoy.admin("/ratelease/rlconfig").await;
    assert!(shown.contains("requests_per_unit=4"), "in force before the listener: {shown}");
    for status in [200, 200, 429] {
        assert_eq!(envoy.get("/a", &[]).await.status, status, "two of four were spent");
    }

    for (rejected, (domain, fault)) in
        (1..).zip([("brought", "expected the filter's own domain"), ("filed", "a file has rules")])
    {
        let fields = json!({"rules": "domain: filed", "domain": domain});
        changing.replace(&options.clone().filter(fields));
        let count = async || envoy.counter("listener_manager.lds.update_rejected").await;
        envoy.until("told of the fault", async || count().await == rejected).await;
        let log = envoy.process().log();
        assert!(log.contains(fault), "{log}");
        assert_eq!(envoy.get("/a", &[]).await.status, 429, "the last good rules are in force");
    }
    end(changing.envoy).await;
}

#[tokio::test]
async fn rules_move_from_the_only_file_into_a_filter() {
    let text = |limit| file("moving", &[rule("path", limit, "")]);
    let rules = Rules::new(&text(1));
    let mut options = Options::new("moving", &rules);
    options.json = true;
    let changing = Changing::start(&options, &[]).await;
    let envoy = &changing.envoy;
    for status in [200, 429] {
        assert_eq!(envoy.get("/a", &[]).await.status, status);
    }
    std::fs::remove_file(rules.path().join("rules.yaml")).unwrap();
    let missed = async || envoy.admin("/ratelease/status").await.contains("has no rule files");
    envoy.until("missing the file", missed).await;
    assert_eq!(envoy.get("/a", &[]).await.status, 429, "the last good rules are in force");
    changing.replace(&options.clone().filter(json!({"rules": text(9)})));
    envoy.until("changed", async || changing.count("listener_modified").await == 1).await;
    assert_eq!(envoy.get("/a", &[]).await.status, 200);
    assert!(!missed().await, "no file is missed");
    end(changing.envoy).await;
}

#[tokio::test]
async fn an_envoy_whose_filter_brings_the_rules_needs_no_file() {
    let mut options = Options::new("alone", &Rules::new("domain: unused"));
    (options.json, options.settings) = (true, None);
    let options = options.filter(json!({"rules": file("alone", &[rule("path", 1, "")])}));
    let envoy = options.start().await;
    for status in [200, 429] {
        assert_eq!(envoy.get("/a", &[]).await.status, status);
    }
    assert_no_harm(&envoy);
}

#[tokio::test]
async fn leases_go_back_when_envoy_ends() {
    const L: u64 = 1_000;
    let rules = Rules::new(&file("back", &[rule("path", L, "")]));
    let places = Cluster::shared().places();
    let options = Options::new("back", &rules)
        .filter(json!({"enable_x_ratelimit_headers": "DRAFT_VERSION_03"}))
        .on_cluster(&places);
    for round in 0..3_u64 {
        let envoy = options.start().await;
        for taken in 1..=5 {
            let answer = envoy.get("/a", &[]).await;
            let left = (L - 5 * round - taken).to_string();
            assert_eq!(answer.header("x-ratelimit-remaining"), Some(&*left), "round {round}");
        }
        end(envoy).await;
    }
}

#[tokio::test]
async fn a_change_of_the_listener_keeps_the_counts_and_a_faulty_one_the_listener() {
    let rules = Rules::new(&file("moved", &[rule("path", 3, "")]));
    let mut options = Options::new("moved", &rules);
    let changing = Changing::start(&options, &[]).await;
    let envoy = &changing.envoy;
    for status in [200, 200] {
        assert_eq!(envoy.get("/a", &[]).await.status, status);
    }
    options = options.filter(json!({"rate_limited_status": {"code": "ServiceUnavailable"}}));
    changing.replace(&options);
    envoy.until("changed", async || changing.count("listener_modified").await == 1).await;
    assert_eq!(envoy.get("/a", &[]).await.status, 200, "two of three were spent");
    let denied = async || envoy.get("/a", &[]).await.status == 503;
    envoy.until("denying as the new filter says", denied).await;

    changing.replace(&options.clone().filter(json!({"request_type": "none"})));
    let refused = async || envoy.counter("listener_manager.lds.update_rejected").await == 1;
    envoy.until("told of the fault", refused).await;
    let log = envoy.process().log();
    assert!(log.contains("request_type: \"none\"; expected internal"), "{log}");
    assert_eq!(envoy.get("/a", &[]).await.status, 503);
    end(changing.envoy).await;
}

#[tokio::test]
async fn a_listener_that_changes_all_the_time_under_load_fails_no_request() {
    const CHANGES: u64 = 60;
    let rules = Rules::new(&file("churn", &[rule("path", 1_000_000_000, "")]));
    let options = Options::new("churn", &rules);
    let changing = Changing::start(&options, &[]).await;
    let envoy = &changing.envoy;
    let load = envoy.load(Load::new("/a", 8, u64::MAX));
    for change in 1..=CHANGES {
        // Ever longer, so that each version has a name of its own.
        let prefix = "p".repeat(usize::try_from(change).unwrap());
        changing.replace(&options.clone().filter(json!({"metadata_namespace": prefix})));
        let changed = async || changing.count("listener_modified").await >= change;
        envoy.until("changed", changed).await;
    }
    let tally = load.stop().await;
    assert_eq!((tally.broken, tally.faults()), (0, 0), "{tally:?}");
    assert!(tally.passed() > CHANGES, "{tally:?}");
    assert_no_harm(envoy);
    end(changing.envoy).await;
}
