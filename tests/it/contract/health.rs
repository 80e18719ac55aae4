//! HEALTH and V9: probes over HTTP and gRPC agree, and only known service names get an answer.

use std::net::SocketAddr;
use std::time::Duration;

use tonic::Code;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::{Pod, World};
use crate::support::http;
use crate::support::ports::free_port;
use crate::support::process::{Process, leashed};
use crate::support::ratelease::{BINARY, Ratelease};

const RULES: &str = "domain: d\n";

const SOON: Duration = Duration::from_secs(10);

async fn probe(pod: &Ratelease) -> HealthClient<Channel> {
    let channel = Channel::from_shared(format!("http://{}", pod.grpc)).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

async fn serving(client: &HealthClient<Channel>, service: &str) -> Result<ServingStatus, Code> {
    let request = HealthCheckRequest { service: service.to_owned() };
    let answer = client.clone().check(request).await;
    answer.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

async fn path(pod: &Ratelease, path: &str) -> (u16, String) {
    let answer = http::get(pod.http, path).await.unwrap();
    (answer.status, answer.body)
}

/// Waits until the probes of both Envoy and Kubernetes report this health.
async fn until(process: &Process, pod: &Ratelease, client: &HealthClient<Channel>, well: bool) {
    let status = if well { ServingStatus::Serving } else { ServingStatus::NotServing };
    let page = if well { (200, "OK".to_owned()) } else { (500, String::new()) };
    let said = async || {
        serving(client, "ratelimit").await == Ok(status) && path(pod, "/healthcheck").await == page
    };
    process.until(&format!("{status:?}"), SOON, said).await;
    // In the reference, this service is always SERVING.
    assert_eq!(serving(client, "").await, Ok(status));
}

/// The reference answers 500, or does not listen, until Redis answers.
#[tokio::test]
async fn health_does_not_depend_on_redis() {
    let nowhere = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let rules = tempfile::tempdir().unwrap();
    std::fs::write(rules.path().join("d.yaml"), RULES).unwrap();
    let pod = Ratelease::start(rules.path(), &[nowhere], &[]).await;
    pod.logs("check that Redis runs there").await;
    let client = probe(&pod).await;
    until(&pod.process, &pod, &client, true).await;
    assert_eq!(serving(&client, "other").await, Err(Code::NotFound));
    assert_eq!(path(&pod, "/livez").await, (200, "OK".to_owned()));
    assert_eq!(path(&pod, "/nothing").await.0, 404);
}

/// V9.
#[tokio::test]
async fn health_follows_the_rules_where_asked_to() {
    let env = [("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")];
    let pod = Pod::start_unready(World::Memory, &[], &env).await;
    let client = probe(&pod.ratelease).await;
    let until = async |well| until(&pod.ratelease.process, &pod.ratelease, &client, well).await;
    until(false).await;
    pod.write("d.yaml", RULES);
    until(true).await;
    pod.write("d.yaml", "domain: [");
    // The load that found no file at all counts as refused too.
    pod.loaded(2, 2).await;
    until(true).await;
}

/// A directory that has only files of other endings limits nothing, and not silently.
#[tokio::test]
async fn a_start_without_a_rule_file_says_so_and_counts_what_it_left_out() {
    let pod = Pod::start_unready(World::Memory, &[("d.json", "{}"), ("README.md", "")], &[]).await;
    pod.ratelease.logs("has no rule files; put the rules there").await;
    let page = http::get(pod.ratelease.debug, "/metrics").await.unwrap().body;
    let line = "ratelease_rules_files_left_out 1";
    assert!(page.lines().any(|it| it == line), "{page}");
}

/// In the reference, a first load that fails is no reason to be unhealthy.
#[tokio::test]
async fn health_with_refused_rules_is_well_under_the_name_of_the_reference_alone() {
    let pod = Pod::start_unready(World::Memory, &[("d.yaml", "domain: [")], &[]).await;
    let client = probe(&pod.ratelease).await;
    until(&pod.ratelease.process, &pod.ratelease, &client, false).await;
    assert_eq!(path(&pod.ratelease, "/readyz").await.0, 503);
    pod.write("d.yaml", RULES);
    until(&pod.ratelease.process, &pod.ratelease, &client, true).await;

    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("config")).unwrap();
    std::fs::write(root.path().join("config/d.yaml"), "domain: [").unwrap();
    let program = root.path().join("ratelimit");
    std::os::unix::fs::symlink(BINARY, &program).unwrap();
    let env = [("RUNTIME_ROOT", root.path().to_str().unwrap()), ("USE_STATSD", "false")];
    let pod = Ratelease::run(leashed(&program), &[], &env);
    pod.says("/readyz", 503).await;
    let client = probe(&pod).await;
    until(&pod.process, &pod, &client, true).await;
    assert_eq!(path(&pod, "/readyz").await.0, 503);
}

/// The end of V9: in the reference a load that finds no file takes all rules away. Under its own
/// name ratelease keeps the last good ones.
#[tokio::test]
async fn health_with_the_last_rule_file_removed_is_the_references_under_its_name_alone() {
    let root = tempfile::tempdir().unwrap();
    let program = root.path().join("ratelimit");
    std::os::unix::fs::symlink(BINARY, &program).unwrap();
    for is_reference in [false, true] {
        let dir = root.path().join("config");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("d.yaml"), RULES).unwrap();
        let env = [
            ("RUNTIME_ROOT", root.path().to_str().unwrap()),
            ("USE_STATSD", "false"),
            ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true"),
        ];
        let mut command = leashed(if is_reference { program.as_path() } else { BINARY.as_ref() });
        command.arg("serve");
        let pod = Ratelease::run(command, &[], &env);
        pod.ready().await;
        let client = probe(&pod).await;
        until(&pod.process, &pod, &client, true).await;
        std::fs::remove_file(dir.join("d.yaml")).unwrap();
        pod.logs("has no rule files; put the rules there").await;
        until(&pod.process, &pod, &client, !is_reference).await;
    }
}
