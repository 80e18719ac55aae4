//! The settings of one pod's sidecar, of its annotations and the defaults; and the quantities of
//! Kubernetes that some of them are.

use std::cmp::{max_by_key, min_by_key};

use crate::annotation::Lookup;
use crate::fault::Fault;
use crate::value::{self, SecretKey};

/// Settings that can be injected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub mode: Mode,
    /// The sidecar's, or that with the library.
    pub image: String,
    pub pull_policy: String,
    pub rules: RuleSource,
    /// Secret with the certificates for TLS to the xDS server, if rules come from one.
    pub xds_tls: Option<String>,
    pub redis: Redis,
    /// Secret of `KEY_SECRET`.
    pub key_secret: Option<SecretKey>,
    /// The secret that it replaces.
    pub previous: Option<Previous>,
    pub listen: Listen,
    /// Containers with an Envoy, which get the socket or the module.
    pub envoy_containers: Vec<String>,
    pub http_port: u16,
    pub metrics_port: u16,
    pub resources: Resources,
    pub native: NativeSidecar,
    pub log_level: String,
    /// Further variables.
    pub env: Vec<(String, String)>,
}

/// What is added to the pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A container that Envoy asks.
    Sidecar,
    /// A container that brings Envoy the library, and ends.
    Module,
}

/// Where rules come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RuleSource {
    /// A ConfigMap; only this domain's file of it if there is one.
    ConfigMap { name: String, domain: Option<String> },
    /// An xDS server, host:port.
    Xds(String),
}

/// Where counts are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Redis {
    /// In the memory of each pod.
    Embedded,
    /// In servers.
    Servers {
        url: RedisUrl,
        /// `cluster`, `single` or `sentinel`.
        kind: String,
        auth: Option<SecretKey>,
    },
}

/// The addresses of Redis.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RedisUrl {
    Plain(String),
    Secret(SecretKey),
}

/// What `KEY_SECRET` replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Previous {
    /// No secret.
    None,
    Secret(SecretKey),
}

/// Where the sidecar answers Envoy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// On this port of loopback.
    Tcp(u16),
    /// On a socket in a volume that Envoy's container mounts too.
    Unix,
}

/// Whether the sidecar is an init container that goes on running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NativeSidecar {
    /// If the cluster is new enough.
    Auto,
    Always,
    Never,
}

/// Requests and limits; `None` leaves one out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resources {
    pub cpu: [Option<Quantity>; 2],
    pub memory: [Option<Quantity>; 2],
    /// Whether the limit of CPU depends on the other containers.
    is_cpu_limit_auto: bool,
}

/// A quantity of Kubernetes above zero, such as `20m` and `64Mi`, as far as it has to be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quantity {
    /// As written.
    pub text: String,
    /// In billionths, the smallest unit that Kubernetes knows.
    pub nanos: u128,
}

/// What a limit may be beside a quantity.
const AUTO: &str = "auto";
const NONE: &str = "none";

/// The limit of CPU in a pod whose other containers have one, in thousandths. With it a pod answers
/// 2000 requests a second and is not throttled (docs/performance.md, In 64 MiB and 0.2 CPU).
const CPU_LIMIT_MILLIS: u32 = 200;

/// The problem of a setting that has to be set.
pub const MISSING: &str = "missing";

// === impl Settings ===

impl Settings {
    /// Reads all settings, or adds a fault for each one that is missing or faulty.
    pub fn read(from: &Lookup<'_>, faults: &mut Vec<Fault>) -> Option<Self> {
        let rules = rules(from, faults);
        let xds_tls = from.parse("xds-tls", faults, value::name);
        let redis = redis(from, faults);
        let key_secret = from.parse("key-secret", faults, value::secret_key);
        let previous = from.parse("key-secret-previous", faults, previous);
        let listen = from.parse("listen", faults, listen);
        let envoy_containers = from.parse("envoy-containers", faults, value::containers);
        let http_port = from.parse("http-port", faults, value::port);
        let metrics_port = from.parse("metrics-port", faults, value::port);
        let mode = from.parse("mode", faults, mode);
        let image = match mode {
            Some(Some(Mode::Module)) => from.parse("module-image", faults, value::image),
            _ => from.parse("image", faults, value::image),
        };
        let policies = value::word(&["Always", "IfNotPresent", "Never"]);
        let pull_policy = from.parse("image-pull-policy", faults, policies);
        let resources = resources(from, faults);
        let native = from.parse("native-sidecar", faults, native);
        let levels = value::word(&["error", "warn", "info", "debug", "trace"]);
        let log_level = from.parse("log-level", faults, levels);
        let env = from.parse("env", faults, value::environment);
        Some(Self {
            mode: mode??,
            image: image??,
            pull_policy: pull_policy??,
            xds_tls: xds_tls?.filter(|_| matches!(rules, Some(RuleSource::Xds(_)))),
            rules: rules?,
            redis: redis?,
            key_secret: key_secret?,
            previous: previous?,
            listen: listen??,
            envoy_containers: envoy_containers??,
            http_port: http_port??,
            metrics_port: metrics_port??,
            resources: resources?,
            native: native??,
            log_level: log_level??,
            env: env?.unwrap_or_default(),
        })
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "sidecar" => Ok(Mode::Sidecar),
        "module" => Ok(Mode::Module),
        _ => Err("expected sidecar or module".to_owned()),
    }
}

fn missing<T>(from: &Lookup<'_>, name: &str, fix: &str, faults: &mut Vec<Fault>) -> Option<T> {
    let fix = format!("set the annotation, {fix}, or a default of the injector");
    faults.push(Fault::new(from.place(name), MISSING, fix));
    None
}

fn rules(from: &Lookup<'_>, faults: &mut Vec<Fault>) -> Option<RuleSource> {
    let source = from.parse("rules", faults, rule_source);
    let domain = from.parse("domain", faults, value::domain);
    let Some(source) = source? else {
        return missing(from, "rules", "the name of a ConfigMap", faults);
    };
    match (source, domain?) {
        (RuleSource::ConfigMap { name, .. }, domain) => {
            Some(RuleSource::ConfigMap { name, domain })
        }
        (RuleSource::Xds(_), Some(_)) => {
            let problem = "names a file of a ConfigMap, and the rules come over xDS";
            faults.push(Fault::new(from.place("domain"), problem, "remove it"));
            None
        }
        (source, None) => Some(source),
    }
}

fn rule_source(text: &str) -> Result<RuleSource, String> {
    match text.split_once(':') {
        None => value::name(text),
        Some(("configmap", name)) => value::name(name),
        Some(("xds", server)) => return Ok(RuleSource::Xds(server.to_owned())),
        Some((scheme, _)) => Err(format!(
            "unknown source of rules {scheme:?}, expected the name of a ConfigMap, or xds:HOST:PORT"
        )),
    }
    .map(|name| RuleSource::ConfigMap { name, domain: None })
}

fn redis(from: &Lookup<'_>, faults: &mut Vec<Fault>) -> Option<Redis> {
    let kinds = value::word(&["cluster", "single", "sentinel"]);
    let kind = from.parse("redis-type", faults, kinds);
    let auth = from.parse("redis-auth", faults, value::secret_key);
    let url = from.parse("redis", faults, redis_url)?;
    match (from.get("redis"), url) {
        ("", _) | (_, None) => {
            let fix = "host:port, or embedded for counts in each pod apart";
            missing(from, "redis", fix, faults)
        }
        ("embedded", _) => Some(Redis::Embedded),
        (_, Some(url)) => Some(Redis::Servers { url, kind: kind??, auth: auth? }),
    }
}

/// The sidecar's own parser checks the addresses.
fn redis_url(text: &str) -> Result<RedisUrl, String> {
    match text.strip_prefix("secret:") {
        Some(key) => value::secret_key(key).map(RedisUrl::Secret),
        None => Ok(RedisUrl::Plain(text.to_owned())),
    }
}

fn previous(text: &str) -> Result<Previous, String> {
    match text {
        NONE => Ok(Previous::None),
        text => value::secret_key(text)
            .map(Previous::Secret)
            .map_err(|expected| format!("{expected}, or {NONE} if there was no secret")),
    }
}

fn listen(text: &str) -> Result<Listen, String> {
    match text {
        "uds" => Ok(Listen::Unix),
        text => {
            value::port(text).map(Listen::Tcp).map_err(|expected| format!("{expected}, or uds"))
        }
    }
}

fn native(text: &str) -> Result<NativeSidecar, String> {
    match text {
        "auto" => Ok(NativeSidecar::Auto),
        "true" => Ok(NativeSidecar::Always),
        "false" => Ok(NativeSidecar::Never),
        _ => Err("expected auto, true or false".to_owned()),
    }
}

/// Parses a limit; `None` stands for no quantity.
type ParseLimit = fn(&str) -> Result<Option<Quantity>, String>;

fn resources(from: &Lookup<'_>, faults: &mut Vec<Fault>) -> Option<Resources> {
    let mut pair = |request: &str, limit: &str, parse: ParseLimit| {
        let low = from.parse(request, faults, Quantity::parse);
        let high = from.parse(limit, faults, parse);
        let low = low?;
        let high = high?.flatten();
        if let (Some(low), Some(high)) = (&low, &high)
            && low.nanos > high.nanos
        {
            let problem = format!("{} is more than the limit, {}", low.text, high.text);
            let fix = format!("lower it, or raise {}", from.place(limit));
            faults.push(Fault::new(from.place(request), problem, fix));
            return None;
        }
        Some([low, high])
    };
    let cpu = pair("cpu-request", "cpu-limit", cpu_limit);
    let memory = pair("memory-request", "memory-limit", |text| Quantity::parse(text).map(Some));
    let is_cpu_limit_auto = from.get("cpu-limit") == AUTO;
    Some(Resources { cpu: cpu?, memory: memory?, is_cpu_limit_auto })
}

fn cpu_limit(text: &str) -> Result<Option<Quantity>, String> {
    match text {
        AUTO | NONE => Ok(None),
        text => Quantity::parse(text)
            .map(Some)
            .map_err(|expected| format!("{expected}, {AUTO} or {NONE}")),
    }
}

// === impl Resources ===

impl Resources {
    /// Sets the limit of CPU that `auto` stands for: none, unless all other containers have a
    /// limit, of which `largest_other` is the largest. A ResourceQuota of limits refuses a pod with
    /// a container that has none, and a LimitRange one with a container that has too large a limit.
    pub fn resolve_cpu_limit(&mut self, largest_other: Option<Quantity>) {
        let Some(largest_other) = largest_other.filter(|_| self.is_cpu_limit_auto) else { return };
        let nanos = |quantity: &Quantity| quantity.nanos;
        let own = Quantity::of_millis(CPU_LIMIT_MILLIS);
        let own = min_by_key(own, largest_other, nanos);
        let [request, limit] = &mut self.cpu;
        // A limit below the request would be refused.
        *limit = Some(match request {
            Some(request) => max_by_key(own, request.clone(), nanos),
            None => own,
        });
    }
}

/// Suffixes of quantities, each with how many billionths it stands for.
const SUFFIXES: [(&str, u128); 16] = [
    ("Ki", NANOS << 10),
    ("Mi", NANOS << 20),
    ("Gi", NANOS << 30),
    ("Ti", NANOS << 40),
    ("Pi", NANOS << 50),
    ("Ei", NANOS << 60),
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("k", NANOS * 1_000),
    ("M", NANOS * 1_000_000),
    ("G", NANOS * 1_000_000_000),
    ("T", NANOS * 1_000_000_000_000),
    ("P", NANOS * 1_000_000_000_000_000),
    ("E", NANOS * 1_000_000_000_000_000_000),
    ("", NANOS),
];
const NANOS: u128 = 1_000_000_000;

/// Maximum digits on each side of a quantity's point: with them no product overflows.
const DIGITS_MAX: usize = 9;

// === impl Quantity ===

impl Quantity {
    /// Parses digits, with or without a point, and a suffix. Kubernetes also takes exponents.
    ///
    /// # Errors
    /// What was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || "expected a quantity above 0, such as 20m or 64Mi".to_owned();
        let nanos = nanos(text).filter(|nanos| *nanos > 0).ok_or_else(expected)?;
        Ok(Self { text: text.to_owned(), nanos })
    }

    /// A number of thousandths, above zero.
    pub fn of_millis(millis: u32) -> Self {
        Self { text: format!("{millis}m"), nanos: u128::from(millis) * (NANOS / 1000) }
    }
}

fn nanos(text: &str) -> Option<u128> {
    let (number, unit) =
        SUFFIXES.iter().find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let is_digits =
        |part: &str| part.len() <= DIGITS_MAX && part.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || number.ends_with('.') || !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let mut nanos = whole.parse::<u128>().ok()?.checked_mul(unit)?;
    let mut part = unit;
    for digit in fraction.bytes() {
        part /= 10;
        nanos = nanos.checked_add(part.checked_mul(u128::from(digit - b'0'))?)?;
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_any_unit_can_be_compared() {
        for (text, expected) in [
            ("20m", 20_000_000),
            ("0.5", NANOS / 2),
            ("1", NANOS),
            ("1k", 1000 * NANOS),
            ("1Ki", 1024 * NANOS),
            ("64Mi", (64 << 20) * NANOS),
            ("1.5Gi", (3 << 29) * NANOS),
            ("7n", 7),
        ] {
            assert_eq!(Quantity::parse(text).unwrap().nanos, expected, "{text}");
        }
    }

    #[test]
    fn thousandths_are_written_as_kubernetes_reads_them() {
        let quantity = Quantity::of_millis(200);
        assert_eq!(Quantity::parse(&quantity.text), Ok(quantity));
    }

    #[test]
    fn what_the_api_server_would_refuse_is_no_quantity() {
        for text in ["", "0", "0Mi", "-1", "64MB", "64 Mi", ".5", "1.", "m", "Mi", "x", "1.2.3"] {
            let error = Quantity::parse(text).unwrap_err();
            assert!(error.starts_with("expected a quantity above 0"), "{text}: {error}");
        }
        assert!(Quantity::parse("999999999Ei").is_ok(), "the largest does not overflow");
    }
}
