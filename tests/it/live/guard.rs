//! The requests that the debug port answers: none from a page that is open in an operator's
//! browser.

use crate::support::http::{Answer, Client};
use crate::support::ports::free_port;
use crate::support::ratectl::ratectl;
use crate::support::ratelease::Ratelease;
use crate::support::shop::Shop;

const GUARDED: [&str; 6] = ["/", "/status", "/rlconfig", "/metrics", "/live", "/live/events"];

const RULES: &str = "
domain: shop
descriptors:
- {key: k, rate_limit: {unit: day, requests_per_unit: 9}}
";

/// Sends the head of a request as a browser would, without a body.
async fn asked(pod: &Ratelease, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut client = Client::connect(pod.debug).await.unwrap();
    let headers: String =
        headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: 0\r\n\r\n");
    client.write(head.as_bytes()).await.unwrap();
    client.answer().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_made_to_lead_here_reads_nothing() {
    let Shop { pod, .. } = &Shop::open(RULES, &[]).await;
    let rebound = [("host", "evil.example:6070")];
    for path in GUARDED {
        let refused = asked(pod, "GET", path, &rebound).await;
        assert_eq!(refused.status, 403, "{path}");
        assert!(refused.body.contains("allow the name with DEBUG_ALLOWED_HOSTS"), "{refused:?}");
    }
    for host in ["localhost", "127.0.0.1:6070", "ratelease.shop.svc:6070"] {
        assert_eq!(asked(pod, "GET", "/status", &[("host", host)]).await.status, 200, "{host}");
    }
    let allowed = [("DEBUG_ALLOWED_HOSTS", "debug.example.com")];
    let Shop { pod, .. } = &Shop::open(RULES, &allowed).await;
    let host = [("host", "debug.example.com:443")];
    assert_eq!(asked(pod, "GET", "/status", &host).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_of_another_origin_loads_nothing_and_nothing_can_be_changed() {
    let Shop { pod, .. } = &Shop::open(RULES, &[]).await;
    let host = ("host", "localhost:6070");
    for path in GUARDED {
        let image = [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-dest", "image")];
        assert_eq!(asked(pod, "GET", path, &image).await.status, 403, "{path}");
        let fetched = [host, ("origin", "http://evil.example")];
        assert_eq!(asked(pod, "GET", path, &fetched).await.status, 403, "{path}");
    }
    for path in GUARDED {
        for method in ["POST", "PUT", "DELETE"] {
            assert_eq!(asked(pod, method, path, &[host]).await.status, 405, "{method} {path}");
        }
    }
    for path in ["/", "/status", "/rlconfig", "/live", "/metrics", "/nowhere"] {
        let answer = asked(pod, "GET", path, &[host]).await;
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name} of {path}");
        }
        let policy = answer.header("content-security-policy").unwrap_or_default();
        assert!(policy.starts_with("default-src 'none'; "), "{path}: {policy}");
        assert!(policy.ends_with("frame-ancestors 'none'"), "{path}: {policy}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_token_set_no_page_is_served_without_it() {
    let Shop { pod, .. } = &Shop::open(RULES, &[("DEBUG_TOKEN", "s3cret")]).await;
    let host = ("host", "localhost:6070");
    for path in GUARDED {
        for header in [("authorization", "Bearer secret"), ("x-any", "s3cret")] {
            let refused = asked(pod, "GET", path, &[host, header]).await;
            assert_eq!(refused.status, 401, "{path}");
            let way = refused.header("www-authenticate").unwrap_or_default();
            assert!(way.starts_with("Basic "), "{way}");
            assert!(!refused.body.contains("s3cret"), "{refused:?}");
        }
    }
    for path in ["/", "/status", "/rlconfig", "/metrics", "/live"] {
        let bearer = [host, ("authorization", "Bearer s3cret")];
        assert_eq!(asked(pod, "GET", path, &bearer).await.status, 200, "{path}");
        let basic = [host, ("authorization", "Basic YW55OnMzY3JldA==")]; // any:s3cret
        assert_eq!(asked(pod, "GET", path, &basic).await.status, 200, "{path}");
    }
    let status = |token: &str| {
        let debug = pod.debug.to_string();
        let mut command = std::process::Command::new(ratectl());
        command.args(["status", "--debug", &debug]).env("DEBUG_TOKEN", token);
        command.output().unwrap()
    };
    assert!(status("s3cret").status.success());
    let refused = status("");
    assert!(!refused.status.success());
    let reported = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(reported.contains("DEBUG_TOKEN"), "{reported}");
    assert!(!pod.process.log().contains("s3cret"), "{}", pod.process.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_metrics_port_looks_at_names_and_asks_scrapers_for_no_token() {
    let at = format!("127.0.0.1:{}", free_port());
    let env = [
        ("USE_PROMETHEUS", "true"),
        ("PROMETHEUS_ADDR", &at),
        ("DEBUG_TOKEN", "s3cret"),
        ("DEBUG_ALLOWED_HOSTS", "metrics.example.com"),
    ];
    let Shop { pod, .. } = &Shop::open(RULES, &env).await;
    for (host, status) in [
        ("10.1.2.3:19001", 200),
        ("ratelease-1:19001", 200),
        ("metrics.example.com", 200),
        ("evil.example", 403),
    ] {
        let mut client = Client::connect(at.parse().unwrap()).await.unwrap();
        let head = format!("GET /metrics HTTP/1.1\r\nhost: {host}\r\n\r\n");
        client.write(head.as_bytes()).await.unwrap();
        assert_eq!(client.answer().await.unwrap().status, status, "{host}");
    }
    pod.is_unharmed();
}
