//! What no compiler and no lint checks: the graph of crates, names that a module may not use, and
//! how long the documentation is.
//! clippy.toml and `[workspace.lints]` have the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{fs, iter};

use serde_json::Value;

mod imports;

/// Each of our crates with those of ours that it depends on, the lowest first.
const GRAPH: [(&str, &[&str]); 16] = [
    ("ratelease-tls", &[]),
    ("ratelease-rules", &[]),
    ("ratelease-envoy-abi", &[]),
    ("ratelease-xds", &["ratelease-rules"]),
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
    ("ratelease-listener", &["ratelease-engine", "ratelease-rules", "ratelease-tls"]),
    ("ratelease-injector", &["ratelease-cli", "ratelease-listener", "ratelease-tls"]),
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
        "ratelease-envoy-module",
        &[
            "ratelease-cli",
            "ratelease-engine",
            "ratelease-envoy-abi",
            "ratelease-rules",
            "ratelease-server",
            "ratelease-sidecar",
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

/// Names that a module may not use, by the words that its code would have.
struct Border {
    /// Modules, by their path without `src/` and `.rs`, with what is below them.
    modules: Modules,
    words: &'static [&'static str],
    reason: &'static str,
}

enum Modules {
    These(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

const BORDERS: [Border; 8] = [
    Border {
        modules: Modules::These(&["crates/engine/buffer"]),
        words: &["lease::"],
        reason: "buffer and lease meet only in limiter",
    },
    Border {
        modules: Modules::These(&["crates/engine/lease"]),
        words: &["buffer::"],
        reason: "buffer and lease meet only in limiter",
    },
    Border {
        // `explain` takes no tokens, and handles no requests; `trace` wraps a store.
        modules: Modules::AllBut(&[
            "crates/engine/lease",
            "crates/engine/store",
            "crates/ctl/explain",
            "crates/ctl/key",
            "crates/server/trace",
        ]),
        words: &[".lend("],
        reason: "only the lease client asks the store; a request handler never does",
    },
    Border {
        modules: Modules::AllBut(&["crates/engine/store/redis"]),
        words: &[" redis::", "(redis::", "<redis::"],
        reason: "only store/redis names the Redis client",
    },
    Border {
        modules: Modules::AllBut(&[
            "crates/server/grpc/wire",
            "crates/control/push",
            "crates/ctl/query",
            "crates/envoy-module/actions",
            "crates/envoy-module/answer",
            "crates/envoy-module/config",
            "crates/sidecar/rule_source/xds/wire",
            "crates/xds/config",
        ]),
        words: &["envoy_types::"],
        reason: "only modules that speak Envoy's protocol name its types",
    },
    Border {
        modules: Modules::These(&[
            "crates/engine/algorithm",
            "crates/engine/ask",
            "crates/engine/buffer",
            "crates/engine/lease/size",
            "crates/engine/verdict",
            "crates/rules",
        ]),
        words: &["tokio::", "rng::", "std::net", "fastrand::"],
        reason: "the core reads no clock, no random numbers and no socket: take them as arguments",
    },
    Border {
        modules: Modules::AllBut(&[]),
        words: &["unbounded_channel", "mpsc::unbounded"],
        reason: "every map, queue, wait and batch has a named ceiling",
    },
    Border {
        modules: Modules::These(&["crates/control/api"]),
        words: &["spawn_blocking"],
        reason: "`work::heavy` keeps the permits of a request until its work ends",
    },
];

#[test]
fn modules_use_no_names_beyond_their_borders() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    list(&root.join("crates"), &mut files);
    let mut faults = Vec::new();
    for path in &files {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        faults.extend(names_beyond(name, &fs::read_to_string(path).unwrap()));
    }
    assert!(files.len() > 100, "{} files were looked at", files.len());
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// All `.rs` files under a directory.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Every fault of a product file, as `file:line: what`. A file's comments and tests may name
/// anything.
fn names_beyond(file: &str, text: &str) -> Vec<String> {
    let Some((of, module)) = file.strip_suffix(".rs").and_then(|file| file.split_once("/src/"))
    else {
        return Vec::new();
    };
    let module = format!("{of}/{module}");
    let borders: Vec<_> = BORDERS.iter().filter(|border| border.modules.contain(&module)).collect();
    let mut faults = Vec::new();
    for (number, line) in product_lines(text) {
        for Border { words, reason, .. } in &borders {
            let found = words.iter().filter(|word| line.contains(*word));
            faults.extend(found.map(|word| format!("{file}:{number}: {word:?}: {reason}")));
        }
    }
    faults
}

/// The lines of code without comments and without the modules of tests, which are indented.
fn product_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut lines = (1..).zip(text.lines());
    let mut is_attributed = false;
    iter::from_fn(move || {
        let (number, line) = lines.next()?;
        let is_tests = is_attributed && line.starts_with("mod ") && line.ends_with('{');
        is_attributed = line == "#[cfg(test)]" || (is_attributed && line.starts_with("#["));
        if is_tests {
            lines.by_ref().take_while(|(_, line)| *line != "}").for_each(drop);
        }
        Some((number, line.split("//").next().unwrap_or_default()))
    })
}

// === impl Modules ===

impl Modules {
    fn contain(&self, module: &str) -> bool {
        let is_of = |of: &&str| {
            module.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Unit tests in files of their own: `foo/tests.rs`, `foo/tests/bar.rs`, `foo_tests.rs`.
        !module.split('/').any(|part| part == "tests" || part.ends_with("_tests"))
            && match self {
                Self::These(these) => these.iter().any(is_of),
                Self::AllBut(these) => !these.iter().any(is_of),
            }
    }
}

#[test]
fn each_name_beyond_a_border_is_found_and_nothing_else() {
    for (file, text, line) in [
        ("engine/src/buffer.rs", "use a::b;\nuse crate::lease::Ask;\n", Some(2)),
        ("engine/src/buffer/table.rs", "fn f(_: lease::Ask) {}\n", Some(1)),
        ("engine/src/buffer.rs", "/// As lease::Ask.\nuse a::b; // lease::Ask\n", None),
        ("engine/src/buffer.rs", "#[cfg(test)]\nmod tests {\n    use tokio::net;\n}\n", None),
        ("engine/src/buffer.rs", "#[cfg(test)]\nmod t {\n}\nuse tokio::a;\n", Some(4)),
        ("engine/src/buffer/tests/a.rs", "use tokio::net;\n", None),
        ("engine/src/lease/size.rs", "fn f() { tokio::spawn(g()); }\n", Some(1)),
        ("engine/src/lease.rs", "fn f() { tokio::spawn(g()); }\n", None),
        ("server/src/grpc.rs", "use envoy_types::pb;\n", Some(1)),
        ("server/src/grpc/wire.rs", "use envoy_types::pb;\n", None),
        ("server/src/service.rs", "    store.lend(&ask)\n", Some(1)),
        ("rules/tests/a.rs", "use tokio::net;\n", None),
    ] {
        let file = format!("crates/{file}");
        let faults = names_beyond(&file, text);
        let expected = line.map(|line| format!("{file}:{line}: "));
        let found = faults.first().map(|fault| &fault[..fault.find(": ").unwrap() + 2]);
        assert_eq!((found, faults.len()), (expected.as_deref(), line.iter().count()), "{text}");
    }
}

/// Pages for users, and decisions, may have so many words, as `wc -w` counts them.
const WORDS_MAX: [(&[&str], usize); 2] =
    [(&["README.md", "CONTRIBUTING.md", "docs"], 46_000), (&["docs/decisions"], 8_000)];

#[test]
fn the_documentation_is_no_longer_than_contributing_says() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (of, max) in WORDS_MAX {
        let words: usize = of.iter().map(|of| words(&root.join(of))).sum();
        assert!(words > max / 2, "{words} words were counted in {of:?}");
        assert!(words <= max, "{of:?} have {words} words, of at most {max}: say less");
    }
}

/// The words of a page, or of all pages of a directory without those of directories in it.
fn words(path: &Path) -> usize {
    if !path.is_dir() {
        return fs::read_to_string(path).unwrap().split_whitespace().count();
    }
    let paths = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let pages = paths.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    pages.map(|page| words(&page)).sum()
}
