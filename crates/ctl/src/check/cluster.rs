//! The cluster of ratelease: whether a burst of calls arrives, and an idle connection stays.

use std::time::Duration;

use ratelease_rules::yaml::{Yaml, YamlKind};

use super::finding::{At, Finding, Reading, own_default};
use crate::yaml_documents::{duration, field, items, text};

/// Fields of which a cluster has at least one, besides its name.
const FIELDS: [&str; 4] = [
    "load_assignment",
    "connect_timeout",
    "eds_cluster_config",
    "typed_extension_protocol_options",
];

/// The streams that ratelease takes on one connection.
const STREAMS_MAX: u64 = 1024;

/// Envoy's own `max_requests` and `max_pending_requests`.
const BREAKER_DEFAULT: u64 = 1024;

/// Calls at once for which there has to be room: so many streams end when an upstream fails.
const BURST: u64 = 2000;

/// Envoy's own `idle_timeout` of a cluster.
const IDLE_DEFAULT: Duration = Duration::from_secs(3600);

/// A cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) name: String,
    at: At,
    streams_max: Option<u64>,
    /// The smaller one of its breakers for requests.
    breaker: Option<u64>,
    idle_timeout: Option<Duration>,
}

// === impl Cluster ===

impl Cluster {
    /// Reads a `Cluster` message; `None` for another one.
    pub(super) fn read(of: &Yaml, reading: &Reading) -> Option<Self> {
        let name = field(of, "name").and_then(text)?.to_owned();
        FIELDS.iter().find_map(|name| field(of, name))?;
        let within = |message, name| find(of, message).and_then(|it| field(it, name));
        let streams_max = within("http2_protocol_options", "max_concurrent_streams");
        let common = find(of, "common_http_protocol_options");
        Some(Self {
            name,
            at: reading.at(of.place),
            streams_max: streams_max.and_then(number),
            breaker: breaker(of),
            idle_timeout: common.and_then(|it| duration(it, "idle_timeout")),
        })
    }

    /// Reports settings by which calls do not arrive, or the connection closes.
    pub(super) fn review(&self) -> Vec<Finding> {
        let warning = |problem, fix| Finding::warning(self.at.clone(), problem, String::from(fix));
        let mut findings = Vec::new();
        if self.streams_max.is_none_or(|max| max > STREAMS_MAX) {
            let problem = format!(
                "cluster '{}' may open more streams on a new connection than ratelease takes, and \
                 those fail",
                self.name
            );
            findings.push(warning(
                problem,
                "set max_concurrent_streams: 256 in http2_protocol_options",
            ));
        }
        let breaker = self.breaker.unwrap_or(BREAKER_DEFAULT);
        if breaker < BURST {
            let problem = format!(
                "the circuit breaker of cluster '{}' admits {breaker} calls at a time{}: the others \
                 of a burst fail",
                self.name,
                own_default(self.breaker.is_none())
            );
            findings.push(warning(
                problem,
                "set circuit_breakers: {thresholds: [{max_requests: 100000, \
                 max_pending_requests: 100000}]}",
            ));
        }
        let idle = self.idle_timeout.unwrap_or(IDLE_DEFAULT);
        if !idle.is_zero() {
            let problem = format!(
                "the idle_timeout of cluster '{}' is {idle:?}{}: an Envoy that closes its \
                 connections counts as gone, and its slots come back while requests run",
                self.name,
                own_default(self.idle_timeout.is_none())
            );
            findings.push(warning(problem, "set common_http_protocol_options: {idle_timeout: 0s}"));
        }
        findings
    }
}

/// The smaller one of `max_requests` and `max_pending_requests`, of the default priority.
fn breaker(cluster: &Yaml) -> Option<u64> {
    let mut thresholds = items(field(field(cluster, "circuit_breakers")?, "thresholds")).iter();
    let is_default = |it: &&Yaml| {
        field(it, "priority").and_then(text).is_none_or(|priority| priority == "DEFAULT")
    };
    let threshold = thresholds.find(is_default)?;
    let of = |name| field(threshold, name).and_then(number).unwrap_or(BREAKER_DEFAULT);
    Some(of("max_requests").min(of("max_pending_requests")))
}

fn number(of: &Yaml) -> Option<u64> {
    text(of)?.parse().ok()
}

/// The first field of a name that a value has anywhere.
fn find<'y>(of: &'y Yaml, name: &str) -> Option<&'y Yaml> {
    if let Some(found) = field(of, name) {
        return Some(found);
    }
    match &of.kind {
        YamlKind::List(items) => items.iter().find_map(|item| find(item, name)),
        YamlKind::Map(pairs) => pairs.iter().find_map(|(_, value)| find(value, name)),
        YamlKind::Null | YamlKind::Scalar(_) => None,
    }
}

/// The cluster of a message with a `grpc_service`.
pub(super) fn grpc_cluster(of: &Yaml) -> Option<&str> {
    field(field(field(of, "grpc_service")?, "envoy_grpc")?, "cluster_name").and_then(text)
}
