//! The status of a pod, read from its `/status` for display. Fields that a pod's version lacks, or
//! has in another form, are left empty, so that the others are still shown.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use ratelease_cli::client::{self, Page, span_above_zero};
use ratelease_cli::out::CliError;
use ratelease_cli::safe::Safe;
use ratelease_cli::settings::{DebugListener, Flags, HostPort, Listeners, call_at};
use ratelease_rules::DEFAULT_STORE;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Path of the status page.
const PATH: &str = "/status";

/// The body is the page.
const HTTP_OK: u16 = 200;

/// The debug port wants a token.
const HTTP_UNAUTHORIZED: u16 = 401;

/// The pod cannot answer; the body says why.
const HTTP_UNAVAILABLE: u16 = 503;

/// Flags that say which pod.
#[derive(Debug, Args)]
pub struct PodFlags {
    /// Debug address of the pod [default: DEBUG_HOST and DEBUG_PORT]
    #[arg(long, value_name = "HOST:PORT", value_parser = client::host_port)]
    debug: Option<HostPort>,
    /// Maximum time for an answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = span_above_zero)]
    timeout: Duration,
    #[command(flatten)]
    listener: Flags<DebugListener>,
}

/// The content of `/status`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PodStatus {
    pub version: String,
    pub uptime: Duration,
    pub store: String,
    pub rules: RulesState,
    pub shards: Vec<Shard>,
    pub invariant_violations: u64,
    pub counts: BTreeMap<String, u64>,
    pub decisions: Option<Decisions>,
    /// Busiest rules first.
    pub rules_busiest: Vec<BusyRule>,
    pub hot_keys: HotKeys,
    pub blocked: BlockedKeys,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct RulesState {
    pub version: Option<String>,
    pub count: u64,
    pub loads_ok: u64,
    pub loads_failed: u64,
    /// Why the last load was refused; `None` if it was not.
    pub last_fault: Option<String>,
    pub from_snapshot: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Shard {
    /// The name of its store; empty where the server does not say it.
    pub store: String,
    pub shard: u64,
    /// The address of its server, if it is known.
    pub server: Option<String>,
    /// `closed`, `open` or `probing`.
    pub breaker: String,
    /// How often the breaker opened.
    pub opened: u64,
    pub round_trip_ms: f64,
    /// Why an ask failed last, if one did lately.
    pub last_failure: Option<String>,
    pub hot_key: Option<HotKey>,
}

/// Decisions since the process started.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Decisions {
    pub ok: u64,
    pub over_limit: u64,
    pub errors: u64,
    pub by_how: BTreeMap<String, u64>,
    pub p50_us: Option<f64>,
    pub p99_us: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BusyRule {
    pub rule: String,
    pub ok: u64,
    pub over_limit: u64,
    pub shadow: u64,
}

/// The keys that are blocked by order.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BlockedKeys {
    pub count: usize,
    /// The first of them.
    pub keys: Vec<BlockedKey>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct BlockedKey {
    /// The key's hash.
    pub key: String,
    pub seconds: f64,
    pub by: String,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HotKeys {
    pub requested: Vec<HotKey>,
    pub denied: Vec<HotKey>,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HotKey {
    /// The key's hash.
    pub key: String,
    pub rule: String,
    pub count: u64,
    /// The key's part of all decisions, 0 to 1.
    pub share: f64,
    /// The entries of the key, if the pod may show them.
    pub values: Option<String>,
}

// === impl PodFlags ===

impl PodFlags {
    /// Returns the address of the pod.
    ///
    /// # Errors
    /// The environment names no usable address, and no flag does.
    pub fn server(&self) -> Result<HostPort, CliError> {
        let of_environment = || {
            self.listener.read(|values, faults| {
                call_at(Listeners::read(values, faults).debug(), "DEBUG_PORT", faults)
            })
        };
        Ok(self.debug.clone().map_or_else(of_environment, Ok)?)
    }

    /// Requests the pod's status.
    ///
    /// # Errors
    /// The pod cannot be reached, or the answer is no page of a pod's debug port.
    pub fn ask(&self) -> Result<Value, CliError> {
        let server = self.server()?;
        let listeners = self.listener.read(Listeners::read)?;
        let page = client::get_with(&server, PATH, &listeners.debug_token, self.timeout)?;
        checked(&server, PATH, page)
    }
}

/// Returns the object that a page of a pod's debug port is.
///
/// # Errors
/// The pod requires a token, or the page is not one of a debug port.
pub fn checked(server: &HostPort, path: &str, page: Page) -> Result<Value, CliError> {
    if page.status == HTTP_UNAUTHORIZED {
        let needs = "requires a token; set DEBUG_TOKEN or DEBUG_TOKEN_FILE as for the pod";
        return Err(CliError::new(format_args!("{server}: {needs}")));
    }
    if page.status == HTTP_UNAVAILABLE {
        let why = String::from_utf8_lossy(&page.body);
        return Err(CliError::new(format_args!("{server}: {}", Safe(why.trim_end()))));
    }
    let status: Option<Value> = serde_json::from_slice(&page.body).ok();
    match status.filter(|status| page.status == HTTP_OK && status.is_object()) {
        Some(status) => Ok(status),
        None => Err(CliError::new(format_args!(
            "{server}: answered {} without the page {path} of a pod; is it the debug port?",
            page.status
        ))),
    }
}

// === impl PodStatus ===

impl PodStatus {
    /// Parses what [`PodFlags::ask`] returned.
    pub fn parse(status: &Value) -> Self {
        let seconds: f64 = part(status, "uptime_seconds");
        Self {
            version: part(status, "version"),
            uptime: Duration::try_from_secs_f64(seconds).unwrap_or_default(),
            store: part(status, "store"),
            rules: part(status, "rules"),
            shards: part(status, "shards"),
            invariant_violations: part(status, "invariant_violations"),
            counts: part(status, "counts"),
            decisions: part(status, "decisions"),
            rules_busiest: part(status, "rules_busiest"),
            hot_keys: part(status, "hot_keys"),
            blocked: part(status, "blocked"),
        }
    }

    /// Returns the pod's problems, one line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(fault) = &self.rules.last_fault {
            problems.push(format!("the last load of the rules was refused: {fault}"));
        } else if self.rules.version.is_none() {
            problems.push("no rules are in force".to_owned());
        }
        let open = self.shards.iter().filter(|shard| shard.is_open());
        problems.extend(open.map(|shard| {
            let why = shard.last_failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("the breaker of shard {} is {}{why}", shard.name(), shard.breaker)
        }));
        if self.invariant_violations > 0 {
            problems.push(format!("invariants were violated: {}", self.invariant_violations));
        }
        problems
    }
}

impl Decisions {
    /// Returns the ways of deciding that occurred, and how often.
    pub fn used(&self) -> impl Iterator<Item = (&str, u64)> {
        let used = self.by_how.iter().filter(|(_, count)| **count > 0);
        used.map(|(how, count)| (how.as_str(), *count))
    }
}

impl Shard {
    /// Returns the number, with the name of the store unless that is the default one.
    pub fn name(&self) -> String {
        match self.store.as_str() {
            "" | DEFAULT_STORE => self.shard.to_string(),
            store => format!("{} of {store}", self.shard),
        }
    }

    /// Returns how far its server is, and where that is if it is known.
    pub fn away(&self) -> String {
        let at = self.server.as_ref().map(|server| format!(" at {}", Safe(server)));
        format!("{:.2} ms away{}", self.round_trip_ms, at.unwrap_or_default())
    }

    /// Returns whether the breaker is open or probing.
    pub fn is_open(&self) -> bool {
        self.breaker != "closed"
    }
}

fn part<T: DeserializeOwned + Default>(status: &Value, name: &str) -> T {
    status.get(name).and_then(|part| T::deserialize(part).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn missing_or_malformed_fields_are_empty_and_the_rest_is_kept() {
        let pod = PodStatus::parse(&json!({
            "version": "9", "uptime_seconds": 1.5, "store": {"kind": "other"},
            "rules": {"version": "ab", "count": 3, "new": 1},
            "shards": [{"shard": 2, "breaker": "closed", "hot_key": {"key": "k", "share": 0.25}}],
            "decisions": {"ok": 5},
        }));
        assert_eq!((pod.version.as_str(), pod.store.as_str()), ("9", ""));
        assert_eq!(pod.uptime, Duration::from_millis(1500));
        assert_eq!((pod.rules.count, pod.rules.version.as_deref()), (3, Some("ab")));
        assert_eq!(pod.shards[0].hot_key.as_ref().unwrap().share, 0.25);
        assert_eq!(pod.decisions.as_ref().unwrap().ok, 5);
        assert_eq!((pod.hot_keys.requested.len(), pod.problems().len()), (0, 0));
        assert_eq!(PodStatus::parse(&json!({})).decisions, None);
    }

    #[test]
    fn each_problem_is_reported() {
        let pod = PodStatus::parse(&json!({
            "rules": {"version": "ab", "last_fault": "a.yaml:1:1: bad"},
            "shards": [
                {"shard": 2, "breaker": "open"},
                {"shard": 3, "store": "default", "breaker": "probing"},
                {"shard": 2048, "store": "premium", "breaker": "open"},
            ],
            "invariant_violations": 4,
        }));
        assert_eq!(
            pod.problems(),
            [
                "the last load of the rules was refused: a.yaml:1:1: bad",
                "the breaker of shard 2 is open",
                "the breaker of shard 3 is probing",
                "the breaker of shard 2048 of premium is open",
                "invariants were violated: 4",
            ]
        );
        assert_eq!(PodStatus::default().problems(), ["no rules are in force"]);
    }
}
