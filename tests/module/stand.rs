//! Envoy with the module in it, and the rules of a test.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::envoy::{
    ANY_PORT, Envoy, assignment, endpoint, listener, pipe, router, socket, validate,
};
use crate::support::files::put;
use crate::support::module::library;
use crate::support::ports::free_port;
use crate::support::windows::clear_of_midnight;

/// What an Envoy with the module is configured with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Fields of the filter's `RateLimit` message, besides the domain.
    pub filter: Value,
    /// The route's `rate_limits`, in Envoy's format.
    pub rate_limits: Value,
    /// Settings, in the bootstrap extension; `None` for an Envoy without the extension.
    pub settings: Option<Map<String, Value>>,
    /// Further fields of the connection manager.
    pub manager: Value,
    /// Filters that a request passes before the module's.
    pub filters: Vec<Value>,
    /// Filters that it passes after it.
    pub after: Vec<Value>,
    /// Workers.
    pub concurrency: usize,
    /// Whether the messages are given as JSON: that of the filter as text, as Envoy Gateway does,
    /// and that of the route as a `google.protobuf.Struct`.
    pub json: bool,
    domain: String,
}

/// A rules directory with one file.
pub struct Rules {
    dir: TempDir,
}

/// Envoy with its listener from a file, so that the test can replace it.
pub struct Changing {
    pub envoy: Envoy,
    files: TempDir,
}

/// The maximum drain time of 10 s, and some time for a busy machine.
const END_MAX: Duration = Duration::from_secs(15);

const DYNAMIC: &str = "type.googleapis.com/envoy.extensions.filters.http.dynamic_modules.v3";
const RATE_LIMIT: &str = "envoy.extensions.filters.http.ratelimit.v3";

/// How Envoy finds the module.
pub fn module() -> Value {
    let local = json!({"filename": library()});
    json!({"module": {"local": local}, "do_not_close": true, "metrics_namespace": "ratelease"})
}

/// A message of this type.
fn any(name: &str, mut fields: Value) -> Value {
    fields["@type"] = format!("type.googleapis.com/{name}").into();
    fields
}

/// The actions of one `RateLimit` that sends the request's path as `path`.
pub fn by_path() -> Value {
    let header = json!({"header_name": ":path", "descriptor_key": "path"});
    json!([{"actions": [{"request_headers": header}]}])
}

/// The rule file of a domain with these rules, see [`rule`].
pub fn file(domain: &str, rules: &[String]) -> String {
    format!("domain: {domain}\ndescriptors:\n{}", rules.concat())
}

/// `limit` requests a day for each value of `key`, with these further options of the limit.
pub fn rule(key: &str, limit: u64, more: &str) -> String {
    format!("- {{key: {key}, rate_limit: {{unit: day, requests_per_unit: {limit}{more}}}}}\n")
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

// === impl Options ===

impl Options {
    /// A filter of `domain`, which denies what fails, before a route that sends the path; the
    /// memory store.
    pub fn new(domain: &str, rules: &Rules) -> Self {
        let mut settings = Map::new();
        settings.insert("--rules".to_owned(), json!(rules.path()));
        Self {
            filter: json!({"failure_mode_deny": true, "timeout": "10s"}),
            rate_limits: by_path(),
            settings: Some(settings),
            manager: json!({}),
            filters: Vec::new(),
            after: Vec::new(),
            concurrency: 2,
            json: false,
            domain: domain.to_owned(),
        }
    }

    /// Adds a setting.
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.settings.get_or_insert_default().insert(name.to_owned(), value.into());
        self
    }

    /// Counts in a Redis Cluster.
    pub fn on_cluster(self, places: &[SocketAddr]) -> Self {
        let places: Vec<_> = places.iter().map(ToString::to_string).collect();
        let patient = self.set("LEASE_MAX_WAIT", "5s").set("REDIS_TIMEOUT", "5s");
        patient.set("REDIS_TYPE", "cluster").set("REDIS_URL", places.join(","))
    }

    /// Overrides fields of the filter's message.
    pub fn filter(mut self, fields: Value) -> Self {
        extend(&mut self.filter, &fields);
        self
    }

    /// The filter.
    pub fn http_filter(&self) -> Value {
        let mut fields = json!({"domain": self.domain});
        extend(&mut fields, &self.filter);
        let config = match self.json {
            true => any("google.protobuf.StringValue", json!({"value": fields.to_string()})),
            false => any(&format!("{RATE_LIMIT}.RateLimit"), fields),
        };
        json!({"name": "ratelease", "typed_config": {
            "@type": format!("{DYNAMIC}.DynamicModuleFilter"),
            "dynamic_module_config": module(),
            "filter_name": "ratelease",
            "filter_config": config,
        }})
    }

    /// What the route configures for it.
    pub fn per_route(&self) -> Value {
        let fields = json!({"rate_limits": self.rate_limits});
        let config = match self.json {
            true => any("google.protobuf.Struct", json!({"value": fields})),
            false => any(&format!("{RATE_LIMIT}.RateLimitPerRoute"), fields),
        };
        json!({"ratelease": {
            "@type": format!("{DYNAMIC}.DynamicModuleFilterPerRoute"),
            "dynamic_module_config": module(),
            "filter_config": config,
        }})
    }

    /// The listener `ingress`.
    pub fn listener(&self, address: Value) -> Value {
        let route = json!({
            "route": {"cluster": "upstream"},
            "typed_per_filter_config": self.per_route(),
        });
        let mut filters = self.filters.clone();
        filters.push(self.http_filter());
        filters.extend(self.after.clone());
        filters.push(router());
        let mut listener = listener("ingress", address, &filters, route);
        let manager = &mut listener["filter_chains"][0]["filters"][0]["typed_config"];
        extend(manager, &self.manager);
        listener
    }

    /// The whole configuration, with the upstream on a socket in this directory.
    pub fn bootstrap(&self, files: &Path) -> Value {
        let upstream = pipe(&files.join("upstream.sock"));
        let ok = json!({"direct_response": {"status": 200, "body": {"inline_string": "ok\n"}}});
        let filters = [whole_body(), router()];
        let mut upstream_listener = listener("upstream", upstream.clone(), &filters, ok);
        let manager = &mut upstream_listener["filter_chains"][0]["filters"][0]["typed_config"];
        extend(manager, &json!({"max_request_headers_kb": 8192}));
        let mut bootstrap = json!({
            "admin": {"address": socket(ANY_PORT)},
            "static_resources": {
                "listeners": [
                    self.listener(socket(ANY_PORT)),
                    upstream_listener,
                ],
                "clusters": [{
                    "name": "upstream",
                    "connect_timeout": "1s",
                    "load_assignment": assignment("upstream", &[endpoint(upstream)]),
                }],
            },
        });
        if let Some(settings) = &self.settings {
            let extension = "envoy.extensions.bootstrap.dynamic_modules.v3.\
                             DynamicModuleBootstrapExtension";
            bootstrap["bootstrap_extensions"] = json!([{
                "name": "envoy.bootstrap.dynamic_modules",
                "typed_config": {
                    "@type": format!("type.googleapis.com/{extension}"),
                    "dynamic_module_config": module(),
                    "extension_name": "ratelease",
                    "extension_config": {
                        "@type": "type.googleapis.com/google.protobuf.Struct",
                        "value": settings,
                    },
                },
            }]);
        }
        bootstrap
    }

    /// Starts Envoy.
    pub async fn start(&self) -> Envoy {
        self.start_in(&[]).await
    }

    /// Starts Envoy with these variables in its environment.
    pub async fn start_in(&self, env: &[(&str, &str)]) -> Envoy {
        clear_of_midnight().await;
        let files = TempDir::new().expect("a temporary directory");
        let bootstrap = self.bootstrap(files.path()).to_string();
        Envoy::run_in(files, &bootstrap, self.concurrency, "ingress", env).await
    }

    /// What Envoy says of the configuration, and whether it is valid.
    pub fn validate(&self) -> (bool, String) {
        let files = TempDir::new().expect("a temporary directory");
        validate(&self.bootstrap(files.path()).to_string(), &[])
    }
}

// === impl Changing ===

impl Changing {
    /// With these further flags of Envoy.
    pub async fn start(options: &Options, flags: &[&str]) -> Self {
        clear_of_midnight().await;
        let files = TempDir::new().expect("a temporary directory");
        let within = TempDir::new().expect("a temporary directory");
        let mut bootstrap = options.bootstrap(within.path());
        let listeners = bootstrap["static_resources"]["listeners"].as_array_mut();
        listeners.expect("a list").remove(0);
        // Not a port that Envoy chooses: a change of the address would close the socket, and
        // reset what has not been accepted.
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        write(&files, &options.listener(socket(address)));
        let at = json!({"path": files.path().join("lds.json")});
        let source = json!({"resource_api_version": "V3", "path_config_source": at});
        bootstrap["dynamic_resources"] = json!({"lds_config": source});
        bootstrap["node"] = json!({"id": "test", "cluster": "test"});
        let count = options.concurrency;
        let more = |command: &mut Command| {
            command.args(flags);
        };
        let envoy = Envoy::run_with(within, &bootstrap.to_string(), count, "ingress", more).await;
        Self { envoy, files }
    }

    pub fn replace(&self, options: &Options) {
        write(&self.files, &options.listener(socket(self.envoy.ingress)));
    }

    /// A counter of the listeners.
    pub async fn count(&self, name: &str) -> u64 {
        self.envoy.counter(&format!("listener_manager.{name}")).await
    }
}

fn write(files: &TempDir, listener: &Value) {
    let mut listener = listener.clone();
    listener["@type"] = json!("type.googleapis.com/envoy.config.listener.v3.Listener");
    let version = listener.to_string().len().to_string();
    put(
        files.path().join("lds.json"),
        json!({"version_info": version, "resources": [listener]}).to_string(),
    );
}

/// Ends Envoy as an operator does, and checks that it ended well and that nothing panicked.
pub async fn end(envoy: Envoy) {
    envoy.process().signal("TERM");
    let status = envoy.process().exit(END_MAX).await;
    assert_eq!(status, 0, "{}", envoy.process().log());
    assert_no_harm(&envoy);
}

/// Checks that nothing panicked.
pub fn assert_no_harm(envoy: &Envoy) {
    let log = envoy.process().log();
    let harm = ["panic", "invariant violated", "AddressSanitizer", "assert failure"];
    let found = harm.iter().find(|harm| log.contains(**harm));
    assert!(found.is_none(), "{found:?} in the log:\n{log}");
}

/// A filter that delays each request.
pub fn delay(span: &str) -> Value {
    let delay = json!({"fixed_delay": span, "percentage": {"numerator": 100}});
    let kind = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
    json!({"name": "envoy.filters.http.fault", "typed_config": {"@type": kind, "delay": delay}})
}

/// A filter that waits for the whole body: an answer that comes before it ends the connection.
fn whole_body() -> Value {
    let kind = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    json!({"name": "envoy.filters.http.buffer", "typed_config": {
        "@type": kind, "max_request_bytes": 8 << 20,
    }})
}

/// Adds the fields of `more`, which override those that are there.
pub fn extend(object: &mut Value, more: &Value) {
    if let (Some(object), Some(more)) = (object.as_object_mut(), more.as_object()) {
        object.extend(more.clone());
    }
}
