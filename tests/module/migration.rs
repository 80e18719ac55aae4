//! `ratectl migrate --to-module`: three configurations in the shapes of public ones answer the same
//! requests alike, with a sidecar before and with the module after.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::envoy::{Envoy, validate};
use crate::support::files::put;
use crate::support::http::Client;
use crate::support::module::{library, migrated};
use crate::support::ratelease::Ratelease;
use crate::support::windows::early_in_a_window;

const DAY: Duration = Duration::from_secs(86_400);
const TEST_MAX: Duration = Duration::from_secs(120);

/// Path, headers, and how often.
type Requests = (&'static str, &'static [(&'static str, &'static str)], usize);

/// A configuration, its rules, and requests.
struct Scene {
    /// Fields of the connection manager, besides its filters.
    manager: &'static str,
    /// Fields of the filter.
    filter: &'static str,
    rules: &'static str,
    requests: &'static [Requests],
    /// What the migration says.
    says: &'static str,
}

/// As the example of envoyproxy/ratelimit: routes with one or two rate limits each, for requests
/// from outside.
const EXAMPLE: Scene = Scene {
    manager: "
route_config:
  virtual_hosts:
  - name: backend
    domains: ['*']
    routes:
    - match: {prefix: /test}
      route:
        cluster: mock
        rate_limits: [{actions: [{source_cluster: {}}, {destination_cluster: {}}]}]
    - match: {prefix: /header}
      route:
        cluster: mock
        rate_limits: [{actions: [{request_headers: {header_name: foo, descriptor_key: foo}}]}]
    - match: {prefix: /twoheader}
      route:
        cluster: mock
        rate_limits:
        - actions:
          - request_headers: {header_name: foo, descriptor_key: foo}
          - request_headers: {header_name: bar, descriptor_key: bar}
        - actions:
          - request_headers: {header_name: foo, descriptor_key: foo}
          - request_headers: {header_name: baz, descriptor_key: baz}
",
    filter: "request_type: external, stage: 0, rate_limited_as_resource_exhausted: true,
             enable_x_ratelimit_headers: DRAFT_VERSION_03",
    rules: "
domain: rl
descriptors:
- key: source_cluster
  value: proxy
  descriptors:
  - {key: destination_cluster, value: mock, rate_limit: {unit: day, requests_per_unit: 2}}
- key: foo
  rate_limit: {unit: day, requests_per_unit: 3}
  descriptors:
  - {key: bar, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: baz, value: shady, rate_limit: {unit: day, requests_per_unit: 1}}
",
    requests: &[
        ("/test", &[], 3),
        ("/header", &[], 2),
        ("/header", &[("foo", "a")], 4),
        ("/header", &[("foo", "b")], 1),
        ("/twoheader", &[("foo", "a"), ("bar", "x")], 3),
        ("/twoheader", &[("foo", "a"), ("bar", "y"), ("baz", "shady")], 2),
        ("/twoheader", &[("foo", "c"), ("baz", "shady")], 2),
        ("/none", &[], 1),
    ],
    says: "written out as node.cluster, proxy",
};

/// As configurations that limit by client: the virtual host has the list, and trusts a proxy.
const CLIENTS: Scene = Scene {
    manager: "
use_remote_address: false
xff_num_trusted_hops: 1
route_config:
  name: local_route
  virtual_hosts:
  - name: local_service
    domains: ['*']
    rate_limits:
    - actions: [{remote_address: {}}]
    - actions:
      - request_headers: {header_name: ':authority', descriptor_key: authority}
      - request_headers: {header_name: ':path', descriptor_key: path}
    - actions: [{masked_remote_address: {v4_prefix_mask_len: 24}}]
    routes:
    - match: {prefix: /health}
      route: {cluster: mock}
      typed_per_filter_config:
        envoy.filters.http.ratelimit:
          '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute
          vh_rate_limits: IGNORE
    - match: {prefix: /moved}
      redirect: {path_redirect: /}
    - match: {prefix: /}
      route: {cluster: mock}
",
    filter: "failure_mode_deny: true, disable_x_envoy_ratelimited_header: true",
    rules: "
domain: rl
descriptors:
- {key: remote_address, rate_limit: {unit: day, requests_per_unit: 4}}
- {key: remote_address, value: 10.0.0.9, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: masked_remote_address, value: 10.0.1.0/24, rate_limit: {unit: day, requests_per_unit: 3}}
- key: authority
  value: test
  descriptors:
  - {key: path, value: /login, rate_limit: {unit: day, requests_per_unit: 2}}
",
    requests: &[
        ("/", &[("x-forwarded-for", "10.0.0.1, 192.0.2.1")], 5),
        ("/", &[("x-forwarded-for", "10.0.0.9, 192.0.2.1")], 1),
        ("/login", &[("x-forwarded-for", "10.0.0.2, 192.0.2.1")], 3),
        ("/a", &[("x-forwarded-for", "10.0.1.1, 192.0.2.1")], 2),
        ("/a", &[("x-forwarded-for", "10.0.1.2, 192.0.2.1")], 2),
        ("/health", &[("x-forwarded-for", "10.0.0.9, 192.0.2.1")], 1),
        ("/moved", &[("x-forwarded-for", "10.0.0.9, 192.0.2.1")], 1),
    ],
    says: "moved all",
};

/// As a comparison of global and local limits: routes that include the list of their virtual host,
/// or do not.
const GLOBAL_AND_LOCAL: Scene = Scene {
    manager: "
route_config:
  virtual_hosts:
  - name: all
    domains: ['*']
    rate_limits: [{actions: [{generic_key: {descriptor_value: global}}]}]
    routes:
    - match: {prefix: /one/}
      route:
        cluster: mock
        include_vh_rate_limits: true
        rate_limits:
        - actions: [{generic_key: {descriptor_value: local}}]
        - actions:
          - header_value_match:
              descriptor_value: get
              headers: [{name: ':method', string_match: {exact: GET}}]
    - match: {prefix: /two/}
      route:
        cluster: mock
        rate_limits:
        - actions:
          - {generic_key: {descriptor_value: local}}
          - {query_parameters: {query_parameter_name: user, descriptor_key: user}}
    - match: {prefix: /}
      route: {cluster: mock}
",
    filter: "rate_limited_status: {code: 503}",
    rules: "
domain: rl
descriptors:
- {key: generic_key, value: global, rate_limit: {unit: day, requests_per_unit: 4}}
- key: generic_key
  value: local
  rate_limit: {unit: day, requests_per_unit: 3}
  descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 1}}]
- {key: header_match, value: get, rate_limit: {unit: day, requests_per_unit: 2}}
",
    requests: &[
        ("/one/", &[], 3),
        ("/two/?user=a%20b", &[], 2),
        ("/two/?user=c", &[], 1),
        ("/two/", &[], 2),
        ("/", &[], 3),
        ("/one/", &[], 1),
    ],
    says: "moved all",
};

impl Scene {
    /// The bootstrap of an Envoy that asks a service at this port.
    fn bootstrap(&self, service: u16, upstream: &Path) -> String {
        let Self { manager, filter, .. } = self;
        let filter = filter.replace('\n', " ");
        let manager = manager.replace('\n', "\n          ");
        let upstream = upstream.display();
        format!(
            "
# A comment.
node: {{id: edge, cluster: proxy}}
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: ingress
    address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          codec_type: AUTO
          stat_prefix: ingress
          http_filters:
          - name: envoy.filters.http.ratelimit
            typed_config: {{
              '@type': type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit,
              domain: rl, timeout: 5s, {filter},
              rate_limit_service: {{transport_api_version: V3, grpc_service: {{envoy_grpc: {{cluster_name: limits}}}}}}}}
          - name: envoy.filters.http.router
            typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          {manager}
  - name: upstream
    address: {{pipe: {{path: '{upstream}'}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: upstream
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{'@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
          route_config: {{virtual_hosts: [{{name: all, domains: ['*'], routes: [
            {{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}
  clusters:
  - name: limits
    connect_timeout: 1s
    http2_protocol_options: {{}}
    load_assignment:
      cluster_name: limits
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {service}}}}}}}}}]}}]
  - name: mock
    connect_timeout: 1s
    load_assignment:
      cluster_name: mock
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{pipe: {{path: '{upstream}'}}}}}}}}]}}]
"
        )
    }

    /// What a client sees of each answer.
    async fn answers(&self, envoy: &Envoy) -> String {
        let mut client = Client::connect(envoy.ingress).await.unwrap();
        let mut seen = String::new();
        for (path, headers, times) in self.requests {
            for _ in 0..*times {
                let answer = client.get(path, headers).await.unwrap();
                write!(seen, "{path} {headers:?}: {} {:?}", answer.status, answer.body).unwrap();
                for name in ["x-envoy-ratelimited", "x-ratelimit-limit", "x-ratelimit-remaining"] {
                    write!(seen, " {:?}", answer.header(name)).unwrap();
                }
                seen.push('\n');
            }
        }
        seen
    }

    async fn answers_alike_before_and_after(&self) {
        early_in_a_window(DAY, TEST_MAX).await;
        let root = TempDir::new().unwrap();
        let rules = root.path().join("ratelimit/config");
        std::fs::create_dir_all(&rules).unwrap();
        put(rules.join("rules.yaml"), self.rules);
        let pod = Ratelease::start(&rules, &[], &[("LEASE_MAX_WAIT", "5s")]).await;
        let files = TempDir::new().unwrap();
        let bootstrap = self.bootstrap(pod.grpc.port(), &files.path().join("upstream.sock"));
        let (is_valid, log) = validate(&bootstrap, &[]);
        assert!(is_valid, "{log}");
        let path = root.path().join("envoy.yaml");
        put(path.clone(), &bootstrap);
        let (moved, says) = migrated(&path);
        assert!(says.contains(self.says), "{says}");
        assert!(!moved.contains("cluster_name: limits"), "the service's cluster is gone:\n{moved}");
        let envoy = Envoy::run(files, &bootstrap, 1, "ingress").await;
        let before = self.answers(&envoy).await;
        envoy.stop().await;
        pod.stop().await;

        let library = library();
        let dir = library.parent().unwrap().to_str().unwrap();
        let root = root.path().to_str().unwrap();
        let env = [
            ("ENVOY_DYNAMIC_MODULES_SEARCH_PATH", dir),
            ("RUNTIME_ROOT", root),
            ("RUNTIME_SUBDIRECTORY", "ratelimit"),
            ("LEASE_MAX_WAIT", "5s"),
        ];
        let files = TempDir::new().unwrap();
        let (old, new) = (socket_in(&bootstrap), files.path().join("upstream.sock"));
        let moved = moved.replace(&old, new.to_str().unwrap());
        let (is_valid, log) = validate(&moved, &env);
        assert!(is_valid, "{log}");
        let envoy = Envoy::run_in(files, &moved, 1, "ingress", &env).await;
        let after = self.answers(&envoy).await;
        envoy.stop().await;
        assert_eq!(before, after);
        assert!(before.contains(": 200"), "{before}");
        assert!(before.contains(": 429") || before.contains(": 503"), "{before}");
    }
}

/// The path of the upstream's socket in a bootstrap.
fn socket_in(bootstrap: &str) -> String {
    let (_, after) = bootstrap.split_once("pipe: {path: '").unwrap();
    after.split_once('\'').unwrap().0.to_owned()
}

#[tokio::test]
async fn the_example_of_the_reference_answers_alike() {
    EXAMPLE.answers_alike_before_and_after().await;
}

#[tokio::test]
async fn limits_of_clients_on_a_virtual_host_answer_alike() {
    CLIENTS.answers_alike_before_and_after().await;
}

#[tokio::test]
async fn global_and_local_limits_answer_alike() {
    GLOBAL_AND_LOCAL.answers_alike_before_and_after().await;
}
