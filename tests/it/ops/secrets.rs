//! No secret leaves the process: not in logs at any level, pages, errors, spans or `ps`, whether
//! logins succeed or fail.

use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::{RULES, nowhere, rules, run_with};
use crate::support::collector::Collector;
use crate::support::files::put;
use crate::support::http::{self, Client};
use crate::support::ratelease::Ratelease;
use crate::support::redis::Server;

/// A mark that each secret of these tests contains, and that no other text does.
const MARK: &str = "7f3a9c51";

/// Each secret setting, with a value that is valid where nothing checks it.
const SECRETS: [(&str, &str); 7] = [
    ("REDIS_AUTH", "default:auth-7f3a9c51"),
    ("REDIS_SENTINEL_AUTH", "sentinel-7f3a9c51"),
    ("REDIS_PERSECOND_AUTH", "default:second-7f3a9c51"),
    ("REDIS_PERSECOND_SENTINEL_AUTH", "second-sentinel-7f3a9c51"),
    ("KEY_SECRET", "key-7f3a9c51"),
    ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20common-7f3a9c51"),
    ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "authorization=Bearer%20traces-7f3a9c51"),
];

const PAGES: [&str; 6] = ["/healthcheck", "/livez", "/readyz", "/json", "/metrics", "/"];
const DEBUG_PAGES: [&str; 5] = ["/", "/rlconfig", "/status", "/live", "/metrics"];

/// The settings beside the secrets, for Redis at `main` and `second` and a collector at
/// `collector`.
fn setup(main: &str, second: &str, collector: &str) -> Vec<(&'static str, String)> {
    [
        ("REDIS_URL", format!("redis://url-{MARK}:url-{MARK}@{main}")),
        ("REDIS_PERSECOND", "true".to_owned()),
        ("REDIS_PERSECOND_URL", format!("redis://:url-{MARK}@{second}")),
        ("TRACING_ENABLED", "true".to_owned()),
        ("TRACING_EXPORTER_PROTOCOL", "grpc".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.to_owned()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc".to_owned()),
        ("OTEL_METRICS_EXPORTER", "otlp".to_owned()),
        ("OTEL_METRIC_EXPORT_INTERVAL", "1000".to_owned()),
        ("LOG_LEVEL", "trace".to_owned()),
        ("LOG_VALUES", "true".to_owned()),
        ("LOG_LINES_PER_SECOND", "10000".to_owned()),
        ("RUST_BACKTRACE", "full".to_owned()),
        ("DRAIN_TIMEOUT", "200ms".to_owned()),
    ]
    .into()
}

/// Adds the secrets to `env`, either as values or each in a file of `dir`.
fn with_secrets(env: &mut Vec<(&'static str, String)>, dir: Option<&TempDir>) {
    for (name, secret) in SECRETS {
        let Some(dir) = dir else {
            env.push((name, secret.to_owned()));
            continue;
        };
        let path = dir.path().join(name);
        fs::write(&path, format!("{secret}\n")).unwrap();
        let name_of_file: &'static str = format!("{name}_FILE").leak();
        env.push((name_of_file, path.display().to_string()));
    }
}

async fn spawn(rules: &TempDir, env: &[(&'static str, String)]) -> Ratelease {
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let pod = Ratelease::spawn(rules.path(), &[], &env);
    pod.says("/livez", 200).await;
    pod
}

/// Requests decisions, reads every page, breaks the rules and repairs them, and ends the pod.
/// Returns all text that the pod has shown.
async fn seen(pod: &Ratelease, rules: &TempDir) -> String {
    let mut seen = String::new();
    for _ in 0..5 {
        seen += &page(decided(pod, "ann").await);
    }
    for (addr, paths) in [(pod.http, &PAGES[..]), (pod.debug, &DEBUG_PAGES)] {
        for path in paths {
            seen += &page(http::get(addr, path).await);
        }
    }
    put(rules.path().join("shop.yaml"), "domain: [");
    pod.logs("shop.yaml").await;
    seen += &page(http::get(pod.debug, "/rlconfig").await);
    put(rules.path().join("shop.yaml"), RULES);
    let pid = pod.process.pid();
    seen += &fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    seen += &fs::read_to_string(format!("/proc/{pid}/comm")).unwrap();
    assert_eq!(pod.stop().await, 0);
    seen + &pod.process.log()
}

/// Requests a decision for a user over HTTP.
async fn decided(pod: &Ratelease, user: &str) -> std::io::Result<http::Answer> {
    let entries = format!(r#"[{{"key":"user","value":"{user}"}}]"#);
    let body = format!(r#"{{"domain":"shop","descriptors":[{{"entries":{entries}}}]}}"#);
    let mut client = Client::connect(pod.http).await?;
    client.send("POST", "/json", &[("content-type", "application/json")], body).await
}

fn page(answer: std::io::Result<http::Answer>) -> String {
    let http::Answer { headers, body, .. } = answer.unwrap();
    format!("{headers:?}\n{body}\n")
}

#[track_caller]
fn shows_no_secret(text: &str) {
    let marked: Vec<_> = text.lines().filter(|line| line.contains(MARK)).take(5).collect();
    assert!(marked.is_empty(), "{} bytes, in which: {marked:#?}", text.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_shows_while_all_is_well() {
    for in_files in [false, true] {
        let main = Server::start_protected(&[], "auth-7f3a9c51");
        let second = Server::start_protected(&[], "second-7f3a9c51");
        let (collector, otlp) = Collector::grpc().await;
        let at = |server: &Server| format!("127.0.0.1:{}", server.port());
        let mut env = setup(&at(&main), &at(&second), &format!("http://{otlp}"));
        let (rules, dir) = (rules(RULES), TempDir::new().unwrap());
        with_secrets(&mut env, in_files.then_some(&dir));
        let pod = spawn(&rules, &env).await;
        pod.ready().await;
        let has_exported = async || {
            let sent = collector.header("authorization");
            sent.iter().any(|value| *value == format!("Bearer common-{MARK}"))
        };
        pod.process.until("exporting", Duration::from_secs(20), has_exported).await;
        // Not left to the end of the process, which may be too short on a busy machine.
        decided(&pod, "ann").await.unwrap();
        let has_spans = async || !collector.spans().is_empty();
        pod.process.until("traced", Duration::from_secs(20), has_spans).await;
        let seen = seen(&pod, &rules).await;
        assert!(seen.contains("per_user") && seen.len() > 10_000, "{} bytes", seen.len());
        assert!(main.calls("evalsha") + main.calls("eval") > 0, "it is logged in");
        shows_no_secret(&seen);
        shows_no_secret(&format!("{:?}{:?}", collector.spans(), collector.metrics()));
        shows_no_secret(&collector.resources().join("\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_shows_while_every_login_fails() {
    let main = Server::start_protected(&[], "another");
    let at = format!("127.0.0.1:{}", main.port());
    let env = |main: &str| {
        let mut env = setup(main, &nowhere(), &format!("http://{}", nowhere()));
        with_secrets(&mut env, None);
        env
    };
    for (redis, why) in [(at.as_str(), "WRONGPASS"), (nowhere().as_str(), "refused")] {
        let rules = rules(RULES);
        let pod = spawn(&rules, &env(redis)).await;
        pod.logs(why).await;
        shows_no_secret(&seen(&pod, &rules).await);
    }
    // Two of the sentinels fail: one requires another password, and one is gone.
    let (gone, rules) = (nowhere(), rules(RULES));
    let mut env = env(&format!("{at},redis://sentinel-{MARK}:url-{MARK}@{gone}"));
    env.retain(|(name, _)| *name != "REDIS_URL");
    let url = format!("mymaster,redis://url:url-{MARK}@{at},{gone}");
    env.extend([("REDIS_TYPE", "sentinel".to_owned()), ("REDIS_URL", url)]);
    let pod = spawn(&rules, &env).await;
    pod.logs("sentinel").await;
    shows_no_secret(&seen(&pod, &rules).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_shows_in_a_fault_of_its_own_setting() {
    let marked = |text: &str| text.replace('@', MARK);
    let rules = rules(RULES);
    let dir = rules.path().display().to_string();
    for (name, faulty) in [
        ("REDIS_URL", format!("redis://:{MARK}@redis:port")),
        ("REDIS_URL", format!("http://me:{MARK}@redis")),
        ("REDIS_AUTH", marked("@:")),
        ("REDIS_SENTINEL_AUTH", marked("user@:")),
        ("OTEL_EXPORTER_OTLP_HEADERS", MARK.to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://me:{MARK}@collector:4317")),
    ] {
        let base = [("REDIS_URL", "redis:6379"), ("TRACING_ENABLED", "true")];
        let mut env: Vec<_> = base.iter().filter(|(other, _)| *other != name).copied().collect();
        env.push((name, &faulty));
        let ran = run_with(&["serve", "--rules", &dir], &env, "").await.ended(2);
        assert!(ran.err.contains(name), "{ran:?}");
        shows_no_secret(&format!("{}{}", ran.out, ran.err));
    }
    for flag in ["--redis-auth", "--key-secret", "--redis-persecond-auth"] {
        let ran = run_with(&["serve", flag, MARK], &[], "").await.ended(2);
        assert!(ran.err.contains("shows in ps"), "{ran:?}");
        shows_no_secret(&format!("{}{}", ran.out, ran.err));
    }
}

/// The password is changed on the server and in the file while the pod runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_in_a_file_is_read_again_for_each_connection() {
    let server = Server::start_protected(&[], "first");
    let (rules, dir) = (rules(RULES), TempDir::new().unwrap());
    let path = dir.path().join("auth");
    fs::write(&path, "first\n").unwrap();
    let env = [
        ("REDIS_URL", format!("127.0.0.1:{}", server.port())),
        ("REDIS_AUTH_FILE", path.display().to_string()),
        // So that only Redis decides: a busy machine may need more than 5 ms for its answer.
        ("LEASE_MAX_WAIT", "5s".to_owned()),
    ];
    let pod = spawn(&rules, &env).await;
    pod.ready().await;
    let asked = async || decided(&pod, "bo").await.unwrap().status;
    assert_eq!(asked().await, 200);
    put(&path, "second\n");
    let mut redis = server.connect();
    redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("second").exec(&mut redis).unwrap();
    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut redis).unwrap();
    let has_connected = async || pod.count("redis_connects") > 1;
    pod.process.until("connecting again", Duration::from_secs(20), has_connected).await;
    pod.logs("connected to Redis again").await;
    assert_eq!(pod.count("redis_connect_errors"), 0, "the first attempt has the new password");
    assert_eq!(asked().await, 200);
}
