//! Forbidden dependencies: the rules at the top of each crate's `lib.rs` about names that a module
//! may not use.

use super::scan::Source;

struct Edge {
    within: Modules,
    never: &'static [Name],
    reason: &'static str,
}

/// A set of modules, by their path without `src/` and `.rs`, after the name of their crate unless
/// it is the sidecar: `engine/lease` is `lease.rs` and all of `lease/` in `crates/engine/src`.
enum Modules {
    These(&'static [&'static str]),
    AllBut(&'static [&'static str]),
}

/// A name that a module may not use.
enum Name {
    /// A crate, at the root of a path.
    Crate(&'static str),
    /// A top-level module of ours.
    Module(&'static str),
    /// These segments, side by side anywhere in a path.
    Path(&'static [&'static str]),
    /// A call of this method.
    Method(&'static str),
}

/// Tests may name anything.
const EDGES: [Edge; 10] = [
    Edge {
        // `ctl/explain` asks for no tokens, and handles no requests; `trace` wraps a store.
        within: Modules::AllBut(&["engine/lease", "engine/store", "ctl/explain", "server/trace"]),
        never: &[Name::Method("lend")],
        reason: "only the lease client asks the store; a request handler never does",
    },
    Edge {
        within: Modules::These(&["engine/buffer"]),
        never: &[Name::Module("lease")],
        reason: "buffer and lease meet only in limiter",
    },
    Edge {
        within: Modules::These(&["engine/lease"]),
        never: &[Name::Module("buffer")],
        reason: "buffer and lease meet only in limiter",
    },
    Edge {
        within: Modules::AllBut(&[
            "server/grpc/wire",
            "control/push/wire",
            "ctl/query",
            "sidecar/rule_source/xds/wire",
        ]),
        never: &[Name::Crate("envoy_types")],
        reason: "only modules that speak Envoy's protocol name its types; have one export yours",
    },
    Edge {
        within: Modules::AllBut(&["engine/store/redis"]),
        never: &[Name::Crate("redis")],
        reason: "only store/redis names the Redis client (if you mean our module, import its item)",
    },
    Edge {
        within: Modules::AllBut(&["otlp"]),
        never: &[Name::Path(&["hyper_util", "client"])],
        reason: "only ratelease-otlp sends to a collector: have it send what you need sent",
    },
    Edge {
        within: Modules::These(&[
            "engine/algorithm",
            "engine/ask",
            "engine/buffer",
            "engine/lease/size",
            "engine/verdict",
            "rules",
        ]),
        never: &[
            Name::Crate("tokio"),
            Name::Crate("rand"),
            Name::Module("rng"),
            Name::Path(&["Instant", "now"]),
            Name::Path(&["SystemTime", "now"]),
            Name::Path(&["std", "net"]),
        ],
        reason: "the core reads no clock, no rng and no socket: take `now` as an argument",
    },
    Edge {
        within: Modules::AllBut(&[]),
        never: &[Name::Path(&["unbounded_channel"]), Name::Path(&["mpsc", "unbounded"])],
        reason: "every map, queue, wait and batch has a named ceiling",
    },
    Edge {
        within: Modules::These(&["control/api"]),
        never: &[Name::Path(&["spawn_blocking"])],
        reason: "`work::heavy` keeps the permits of a request until its work ends",
    },
    Edge {
        within: Modules::AllBut(&["main", "sidecar/app", "ctl"]),
        never: &[Name::Path(&["process", "exit"]), Name::Path(&["process", "abort"])],
        reason: "no input can make the process exit: return an error",
    },
];

/// The faults of one file, as `file:line: what`.
pub(super) fn check(file: &str, source: &Source) -> Vec<String> {
    let Some(module) = module_of(file) else { return Vec::new() };
    let product = source.without_tests();
    let mut faults = Vec::new();
    for Edge { never, reason, .. } in EDGES.iter().filter(|edge| edge.within.contain(&module)) {
        let named = never.iter().flat_map(|name| name.find(&product));
        faults.extend(named.map(|(line, name)| format!("{file}:{line}: names {name}: {reason}")));
    }
    faults
}

/// The module as [`Modules`] names it: `crates/engine/src/lease.rs` is `engine/lease`. `None` for
/// tests.
pub(super) fn module_of(file: &str) -> Option<String> {
    let file = file.strip_suffix(".rs")?;
    if let Some(module) = file.strip_prefix("src/") {
        return Some(module.to_owned());
    }
    let (of, module) = file.strip_prefix("crates/")?.split_once("/src/")?;
    Some(format!("{of}/{module}"))
}

// === impl Modules ===

impl Modules {
    fn contain(&self, module: &str) -> bool {
        let is_of = |of: &&str| {
            module.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        // Unit tests in files of their own: `foo/tests.rs`, `foo/tests/bar.rs`.
        !module.split('/').any(|part| part == "tests")
            && match self {
                Self::These(these) => these.iter().any(is_of),
                Self::AllBut(these) => !these.iter().any(is_of),
            }
    }
}

// === impl Name ===

impl Name {
    /// The lines where the name occurs, with a description of it.
    fn find(&self, source: &Source) -> Vec<(usize, String)> {
        if let Self::Method(method) = self {
            let calls = source.tokens.windows(3).filter(|call| {
                call[0].text == "." && call[1].text == *method && call[2].text == "("
            });
            return calls.map(|call| (call[1].line, format!(".{method}()"))).collect();
        }
        let paths = source.paths().into_iter().filter(|path| self.is_in(&path.segments));
        paths.map(|path| (path.line, path.segments.join("::"))).collect()
    }

    fn is_in(&self, path: &[&str]) -> bool {
        match self {
            Self::Crate(name) => path.first() == Some(name),
            Self::Module(name) => {
                let ours = |segment: &&&str| ["crate", "self", "super"].contains(*segment);
                path.iter().find(|segment| !ours(segment)) == Some(name)
            }
            Self::Path(names) => path.windows(names.len()).any(|part| part == *names),
            Self::Method(_) => false,
        }
    }
}
