//! The configuration of a test's Envoy, as JSON in place of YAML.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// How Envoy calls the pods, and which pods.
#[derive(Debug, Clone)]
pub(crate) struct EnvoyOptions {
    /// The domain of the rules.
    pub(crate) domain: String,
    /// The pods' gRPC addresses. Envoy uses them in turn.
    pub(crate) ratelease: Vec<SocketAddr>,
    /// More pods, on Unix sockets.
    pub(crate) pipes: Vec<PathBuf>,
    /// Number of pods that must be healthy before [`Envoy::start`] returns.
    pub(crate) healthy: usize,
    /// How long Envoy waits for an answer. 250 ms by default, not Envoy's 20 ms: the machine may be
    /// compiling, and a test that is about time sets its own.
    pub(crate) timeout: Duration,
    /// Whether a request whose rate limit call failed gets 500 (the default here) or passes.
    pub(crate) failure_mode_deny: bool,
    /// The route's `rate_limits`, in Envoy's format.
    pub(crate) rate_limits: Value,
    /// Additional fields of the filter's configuration, which override those above.
    pub(crate) filter: Value,
    /// Additional fields of the connection manager of requests, such as `access_log`.
    pub(crate) manager: Value,
    /// Filters that a request passes before the rate limit filter, see [`filter`].
    pub(crate) filters: Vec<Value>,
    /// Worker threads; each has connections of its own to the pods.
    pub(crate) concurrency: usize,
    /// The `tls_context` for connections to the pods, in Envoy's format; `None` for plaintext.
    pub(crate) tls: Option<Value>,
}

/// Makes Envoy choose a port, which it reports on its admin page.
pub(crate) const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

// === impl EnvoyOptions ===

impl EnvoyOptions {
    /// Each request is sent with three descriptors: `path`, the request's path; `user`, its header
    /// `x-user`, if present; and `generic_key` with the value `all`.
    pub(crate) fn new(domain: &str, ratelease: &[SocketAddr]) -> Self {
        let header = |name: &str, key: &str| {
            let header = json!({"header_name": name, "descriptor_key": key});
            json!({"actions": [{"request_headers": header}]})
        };
        Self {
            domain: domain.to_owned(),
            ratelease: ratelease.to_vec(),
            pipes: Vec::new(),
            healthy: ratelease.len(),
            timeout: Duration::from_millis(250),
            failure_mode_deny: true,
            rate_limits: json!([
                header(":path", "path"),
                header("x-user", "user"),
                {"actions": [{"generic_key": {"descriptor_value": "all"}}]},
            ]),
            filter: json!({}),
            manager: json!({}),
            filters: Vec::new(),
            concurrency: 2,
            tls: None,
        }
    }

    /// The configuration of the rate limit filter.
    pub(crate) fn filter_config(&self) -> Value {
        let mut config = json!({
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": self.domain,
            "timeout": format!("{}s", self.timeout.as_secs_f64()),
            "failure_mode_deny": self.failure_mode_deny,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": {"envoy_grpc": {"cluster_name": "ratelease"}},
            },
        });
        if let (Some(config), Some(more)) = (config.as_object_mut(), self.filter.as_object()) {
            config.extend(more.clone());
        }
        config
    }

    /// The whole configuration, with the upstream on a socket at this path.
    pub(super) fn bootstrap(&self, upstream: &Path) -> Value {
        let upstream = pipe(upstream);
        let ingress = json!({"route": {"cluster": "upstream", "rate_limits": self.rate_limits}});
        let ok = json!({"direct_response": {"status": 200, "body": {"inline_string": "ok\n"}}});
        let mut filters = self.filters.clone();
        filters.extend([filter("ratelimit", self.filter_config()), router()]);
        let pods = self.ratelease.iter().map(|&pod| socket(pod));
        let pods: Vec<_> =
            pods.chain(self.pipes.iter().map(|path| pipe(path))).map(endpoint).collect();
        let mut requests = listener("ingress", socket(ANY_PORT), &filters, ingress);
        let manager = &mut requests["filter_chains"][0]["filters"][0]["typed_config"];
        if let (Some(manager), Some(more)) = (manager.as_object_mut(), self.manager.as_object()) {
            manager.extend(more.clone());
        }
        json!({
            "node": {"id": "envoy-of-a-test", "cluster": "tests"}, // for access logs
            "admin": {"address": socket(ANY_PORT)},
            "static_resources": {
                "listeners": [
                    requests,
                    listener("upstream", upstream.clone(), &[router()], ok),
                ],
                "clusters": [
                    ratelease_cluster(&pods, self.tls.as_ref()),
                    {
                        "name": "upstream",
                        "connect_timeout": "1s",
                        "load_assignment": assignment("upstream", &[endpoint(upstream)]),
                    },
                ],
            },
        })
    }
}

// === The parts ===

pub(crate) fn socket(addr: SocketAddr) -> Value {
    json!({"socket_address": {"address": addr.ip().to_string(), "port_value": addr.port()}})
}

pub(crate) fn pipe(path: &Path) -> Value {
    json!({"pipe": {"path": path}})
}

pub(crate) fn endpoint(address: Value) -> Value {
    json!({"endpoint": {"address": address}})
}

pub(crate) fn assignment(cluster: &str, endpoints: &[Value]) -> Value {
    json!({"cluster_name": cluster, "endpoints": [{"lb_endpoints": endpoints}]})
}

/// An HTTP filter, by the last part of its name.
pub(crate) fn filter(name: &str, config: Value) -> Value {
    json!({"name": format!("envoy.filters.http.{name}"), "typed_config": config})
}

pub(crate) fn router() -> Value {
    let kind = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
    filter("router", json!({"@type": kind}))
}

/// A listener that sends every request to one `route`.
pub(crate) fn listener(name: &str, address: Value, filters: &[Value], route: Value) -> Value {
    let mut route = route;
    route["match"] = json!({"prefix": "/"});
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.\
                  http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
    });
    let manager =
        json!({"name": "envoy.filters.network.http_connection_manager", "typed_config": manager});
    json!({"name": name, "address": address, "filter_chains": [{"filters": [manager]}]})
}

/// The pods, over HTTP/2, with ten health checks a second each.
fn ratelease_cluster(pods: &[Value], tls: Option<&Value>) -> Value {
    let options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    let mut cluster = json!({
        "name": "ratelease",
        "connect_timeout": "1s",
        "load_assignment": assignment("ratelease", pods),
        // A pod that reports that it is not serving gets nothing, even if no other is left.
        "common_lb_config": {"healthy_panic_threshold": {"value": 0}},
        "health_checks": [{
            "timeout": "1s",
            "interval": "0.1s",
            "no_traffic_interval": "0.1s",
            "unhealthy_threshold": 1,
            "healthy_threshold": 1,
            "grpc_health_check": {"service_name": "ratelimit"},
        }],
        "typed_extension_protocol_options": {options: {
            "@type": format!("type.googleapis.com/{options}"),
            "explicit_http_config": {"http2_protocol_options": {}},
        }},
    });
    if let Some(tls) = tls {
        let mut tls = tls.clone();
        tls["@type"] = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.\
                        UpstreamTlsContext"
            .into();
        cluster["transport_socket"] =
            json!({"name": "envoy.transport_sockets.tls", "typed_config": tls});
    }
    cluster
}
