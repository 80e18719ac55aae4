//! The graph of crates: the dependencies that cargo reports.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Each of our crates with those of ours that it depends on, the lowest first.
const GRAPH: [(&str, &[&str]); 14] = [
    ("ratelease-tls", &[]),
    ("ratelease-xds", &[]),
    ("ratelease-rules", &[]),
    ("ratelease-engine", &["ratelease-rules", "ratelease-tls"]),
    ("ratelease-cli", &["ratelease-engine", "ratelease-rules", "ratelease-tls"]),
    ("ratelease-replay", &["ratelease-engine", "ratelease-rules"]),
    (
        "ratelease-ctl",
        &[
            "ratelease-cli",
            "ratelease-engine",
            "ratelease-replay",
            "ratelease-rules",
            "ratelease-tls",
        ],
    ),
    ("ratelease-injector", &["ratelease-cli", "ratelease-tls"]),
    ("ratelease-listener", &["ratelease-engine", "ratelease-rules", "ratelease-tls"]),
    ("ratelease-otlp", &["ratelease-cli", "ratelease-engine"]),
    (
        "ratelease-server",
        &[
            "ratelease-cli",
            "ratelease-engine",
            "ratelease-listener",
            "ratelease-otlp",
            "ratelease-rules",
            "ratelease-tls",
        ],
    ),
    (
        "ratelease-sidecar",
        &[
            "ratelease-cli",
            "ratelease-engine",
            "ratelease-listener",
            "ratelease-otlp",
            "ratelease-rules",
            "ratelease-server",
            "ratelease-tls",
            "ratelease-xds",
        ],
    ),
    (
        "ratelease-control",
        &[
            "ratelease-cli",
            "ratelease-engine",
            "ratelease-listener",
            "ratelease-replay",
            "ratelease-rules",
            "ratelease-tls",
            "ratelease-xds",
        ],
    ),
    ("ratelease", &["ratelease-cli", "ratelease-engine", "ratelease-sidecar"]),
];

/// Crates that no crate may depend on, directly or indirectly, with the reason.
const NEVER: [(&str, &[&str], &str); 3] = [
    (
        "ratelease-rules",
        &["tokio", "redis", "http", "hyper", "tonic", "clap", "tracing", "fastrand", "rand"],
        "rules are pure: no runtime, no clock, no socket, no rng",
    ),
    (
        "ratelease-engine",
        &["http", "hyper", "tonic", "prost", "axum", "clap", "tracing-subscriber"],
        "the engine knows nothing of gRPC, HTTP, settings, metrics or OpenTelemetry",
    ),
    (
        "ratelease",
        &[
            "ratatui",
            "hdrhistogram",
            "clap_mangen",
            "clap_complete",
            "ratelease-ctl",
            "sqlx",
            "ratelease-control",
        ],
        "what only the tools, the injector and the control plane need is not of the sidecar",
    ),
];

/// Build dependencies, without those of tests and build scripts: names by cargo's ids, and ids.
struct Graph {
    names: BTreeMap<String, String>,
    needs: BTreeMap<String, Vec<String>>,
}

#[test]
fn crates_depend_one_way() {
    let graph = Graph::read();
    let ours: BTreeSet<_> = graph.ours().collect();
    assert_eq!(ours, GRAPH.iter().map(|(name, _)| *name).collect(), "a crate in no layer");
    for (at, (name, expected)) in GRAPH.iter().enumerate() {
        let found: BTreeSet<_> =
            graph.needed(name).filter(|needed| needed.starts_with("ratelease")).collect();
        assert_eq!(found, expected.iter().copied().collect(), "what {name} is built from");
        let is_before = |needed: &&str| GRAPH[..at].iter().any(|(before, _)| before == needed);
        assert!(expected.iter().all(is_before), "{name} needs a crate that is not before it");
    }
}

#[test]
fn no_crate_is_built_from_what_it_must_not_know() {
    let graph = Graph::read();
    for (name, never, reason) in NEVER {
        let all = graph.all_needed(name);
        let wrong: Vec<_> = never.iter().filter(|never| all.contains(**never)).collect();
        assert!(wrong.is_empty(), "{name} is built from {wrong:?}: {reason}");
        assert!(all.contains(if name == "ratelease" { "tokio" } else { "smallvec" }), "{all:?}");
    }
}

/// What cargo prints.
fn cargo(args: &[&str]) -> Vec<u8> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(args).current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

// === impl Graph ===

impl Graph {
    fn read() -> Self {
        // Only for this platform: on a fresh machine, no crate of another one has been downloaded.
        let version = String::from_utf8(cargo(&["--version", "--verbose"])).expect("text");
        let host = version.lines().find_map(|line| line.strip_prefix("host: ")).expect("a host");
        let metadata = ["metadata", "--format-version", "1", "--locked", "--offline"];
        let metadata = cargo(&[&metadata[..], &["--filter-platform", host]].concat());
        let metadata: Value = serde_json::from_slice(&metadata).expect("JSON");
        let list = |value: &Value| value.as_array().expect("a list").clone();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        let packages = list(&metadata["packages"]);
        let names = packages.iter().map(|package| (text(&package["id"]), text(&package["name"])));
        // `null` is a dependency that is neither of tests nor of a build script.
        let is_normal =
            |of: &Value| list(&of["dep_kinds"]).iter().any(|kind| kind["kind"].is_null());
        let needs = list(&metadata["resolve"]["nodes"]).into_iter().map(|node| {
            let needs = list(&node["deps"]).into_iter().filter(is_normal);
            (text(&node["id"]), needs.map(|needed| text(&needed["pkg"])).collect())
        });
        Self { names: names.collect(), needs: needs.collect() }
    }

    fn ours(&self) -> impl Iterator<Item = &str> {
        self.names.values().map(String::as_str).filter(|name| name.starts_with("ratelease"))
    }

    /// The direct dependencies of `name`.
    fn needed(&self, name: &str) -> impl Iterator<Item = &str> {
        let (id, _) = self.names.iter().find(|(_, of)| *of == name).expect("the crate is there");
        self.needs[id].iter().map(|needed| self.names[needed].as_str())
    }

    /// The direct and indirect dependencies of `name`.
    fn all_needed(&self, name: &str) -> BTreeSet<&str> {
        let (id, _) = self.names.iter().find(|(_, of)| *of == name).expect("the crate is there");
        let (mut seen, mut left) = (BTreeSet::new(), vec![id]);
        while let Some(next) = left.pop() {
            left.extend(self.needs[next].iter().filter(|needed| seen.insert(*needed)));
        }
        seen.into_iter().map(|id| self.names[id].as_str()).collect()
    }
}
