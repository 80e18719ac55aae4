//! Common parts of the tests: rules, pods on the cluster, requests without Envoy.
//!
//! All tests share one cluster, so each test has a domain of its own. Windows are days, and none
//! ends while a test runs: [`pod`] ensures that.

use std::path::Path;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as proto;
use envoy_types::pb::google::protobuf::UInt64Value;
use proto::rate_limit_service_client::RateLimitServiceClient;
use proto::{RateLimitRequest, RateLimitResponse};
use tempfile::TempDir;
use tokio::sync::RwLock;
use tonic::transport::{Channel, Endpoint};

use crate::support::envoy::EnvoyOptions;
use crate::support::files::put;
use crate::support::ratelease::Ratelease;
use crate::support::redis_cluster::Cluster;
pub(crate) use crate::support::windows::clear_of_midnight;

/// Held shared by every test, and exclusively by one that measures time: on a machine of two cores,
/// concurrent tests would distort its measurements.
pub static MACHINE: RwLock<()> = RwLock::const_new(());

/// For tests that count: a wait for a lease must not become an error because the machine is busy.
pub const PATIENT: [(&str, &str); 2] = [("LEASE_MAX_WAIT", "5s"), ("REDIS_TIMEOUT", "5s")];

/// Longer than that wait, for the same reason.
const ENVOY_TIMEOUT: Duration = Duration::from_secs(8);

/// A rules directory with one file.
pub struct Rules {
    dir: TempDir,
}

/// A gRPC client of a pod, without Envoy. Clones share one connection.
#[derive(Clone)]
pub struct Asker {
    client: RateLimitServiceClient<Channel>,
}

/// The rule file of a domain with these rules, see [`rule`].
pub fn file(domain: &str, rules: &[String]) -> String {
    format!("domain: {domain}\ndescriptors:\n{}", rules.concat())
}

/// `limit` requests a day for the descriptor `key`, of this value or of each value separately.
pub fn rule(key: &str, value: Option<&str>, limit: u64) -> String {
    let value = value.map(|value| format!(", value: {value}")).unwrap_or_default();
    format!("- {{key: {key}{value}, rate_limit: {{unit: day, requests_per_unit: {limit}}}}}\n")
}

/// Starts a pod with long waits on the shared cluster.
pub async fn pod(rules: &Rules) -> Ratelease {
    clear_of_midnight().await;
    Ratelease::start(rules.path(), &Cluster::shared().places(), &PATIENT).await
}

/// Options of an Envoy that waits as long as the pods.
pub fn before(domain: &str, pods: &[&Ratelease]) -> EnvoyOptions {
    let pods: Vec<_> = pods.iter().map(|pod| pod.grpc).collect();
    EnvoyOptions { timeout: ENVOY_TIMEOUT, ..EnvoyOptions::new(domain, &pods) }
}

// === impl Rules ===

impl Rules {
    pub fn new(file: &str) -> Self {
        let rules = Self { dir: TempDir::new().expect("a temporary directory") };
        rules.replace(file);
        rules
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Replaces the file atomically.
    pub fn replace(&self, file: &str) {
        put(self.dir.path().join("rules.yaml"), file);
    }
}

// === impl Asker ===

impl Asker {
    pub async fn connect(pod: &Ratelease) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://{}", pod.grpc)).expect("a URI");
        let channel = endpoint.tcp_nodelay(true).connect().await.expect("gRPC takes connections");
        Self { client: RateLimitServiceClient::new(channel) }
    }

    /// Sends a request with descriptors of one entry each, and `hits` for all of them.
    pub async fn ask(
        &self,
        domain: &str,
        descriptors: &[(&str, &str)],
        hits: u32,
    ) -> RateLimitResponse {
        let entry = |&(key, value): &(&str, &str)| descriptor_pb::rate_limit_descriptor::Entry {
            key: key.to_owned(),
            value: value.to_owned(),
        };
        let descriptors = descriptors.iter().map(|pair| descriptor_pb::RateLimitDescriptor {
            entries: vec![entry(pair)],
            ..Default::default()
        });
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.collect(),
            hits_addend: hits,
        };
        self.send(request).await
    }

    /// The remaining tokens of one descriptor's limit; spends nothing.
    pub async fn remaining(&self, domain: &str, descriptor: (&str, &str)) -> u32 {
        let (key, value) = (descriptor.0.to_owned(), descriptor.1.to_owned());
        let descriptor = descriptor_pb::RateLimitDescriptor {
            entries: vec![descriptor_pb::rate_limit_descriptor::Entry { key, value }],
            hits_addend: Some(UInt64Value { value: 0 }),
            ..Default::default()
        };
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: vec![descriptor],
            hits_addend: 0,
        };
        self.send(request).await.statuses[0].limit_remaining
    }

    async fn send(&self, request: RateLimitRequest) -> RateLimitResponse {
        let answer = self.client.clone().should_rate_limit(request).await;
        answer.unwrap_or_else(|status| panic!("gRPC status {status}")).into_inner()
    }
}
