//! Layers inside each crate: a module names only those before it, so that no modules form a cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::list;
use super::scan::Source;

/// Each crate's directory, and its modules in layers, the lowest first.
const LAYERS: [(&str, &str); 12] = [
    ("crates/tls/src", "fault certificate pem server client"),
    (
        "crates/rules/src",
        "duration display_safety memory fault text node reader store limit small_map wildcard \
         source \
         metadata takes options rule request key stats tree rules file yaml compile schema \
         directory",
    ),
    (
        "crates/engine/src",
        "invariant rng stripe time backoff counter buckets striped latency sketch secret \
         span_context ask algorithm store verdict observer buffer lease limiter",
    ),
    (
        "crates/cli/src",
        "grpc_codes safe log_limiter awaited_files settings out source fetch target channel check \
         health grammar commands migration",
    ),
    (
        "crates/ctl/src",
        "signals progress_line yaml_documents descriptor rule status_client \
         rule_tests check diff explain migrate plan query replay compare status top \
         manual",
    ),
    ("crates/replay/src", "timestamp record exact_limiter line_format counts"),
    (
        "crates/injector/src",
        "fault value quantity annotation settings environment sidecar edit inject review manifest \
         certificate cluster server command",
    ),
    (
        "crates/listener/src",
        "frames pool http2_limits turn wire_meter io cores accept tls http unread",
    ),
    ("crates/otlp/src", "origin failure_log transport span_pipeline metrics_client"),
    (
        "crates/server/src",
        "transport request_error current_rules metrics hot_keys samples trace observe \
         service grpc",
    ),
    (
        "crates/control/src",
        "document connections places store work auth rates push metrics page api settings tokens \
         app",
    ),
    (
        "crates/sidecar/src",
        "supervise telemetry file_watch certificates rule_source admin http app",
    ),
];

/// Where the order is, for the message of a fault.
const ORDER: &str = "LAYERS in tests/it/tidy/layers.rs is the order, docs/design.md draws it";

/// A module by its path from the root of its crate.
type Module = Vec<String>;

/// The modules of one crate.
struct Tree {
    /// Each module, with its file and the file's text.
    files: BTreeMap<Module, (String, String)>,
}

#[test]
fn modules_name_only_those_of_layers_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (dir, layers) in LAYERS {
        let tree = Tree::read(root, dir);
        let layers: Vec<_> = layers.split_whitespace().collect();
        let faults = tree.faults(&layers);
        assert!(faults.is_empty(), "{dir}: {} faults\n{}", faults.len(), faults.join("\n"));
    }
}

#[test]
fn each_fault_of_layers_is_found_and_nothing_else() {
    for (file, text, expected) in [
        ("b.rs", "use crate::a::A;\n", ""),
        ("a.rs", "use crate::b::B;\n", "a.rs:1: names b: not of a layer before a"),
        ("a.rs", "//! crate::b\nfn f() -> crate::b::B { \"crate::b\" }\n", "a.rs:2: names b: not"),
        ("a.rs", "#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n", ""),
        ("a/one.rs", "use super::super::b::B;\n", "a/one.rs:1: names b: not of a layer before a"),
        ("a/one.rs", "use crate::a::two::C;\nuse super::A;\n", ""),
        ("a/two.rs", "use crate::Root;\n", "a/two.rs:1: names crate::Root: of the crate's root"),
        ("c.rs", "fn f() {}\n", "c is in no layer"),
    ] {
        let mut files = BTreeMap::new();
        for name in ["a.rs", "a/one.rs", "a/two.rs", "b.rs", file] {
            let text = if name == file { text } else { "" };
            files.insert(module(name), (name.to_owned(), text.to_owned()));
        }
        let faults = Tree { files }.faults(&["a", "b"]);
        let same = match expected {
            "" => faults.is_empty(),
            expected => faults.len() == 1 && faults[0].starts_with(expected),
        };
        assert!(same, "{file}: {text}\nexpected {expected:?}, found {faults:?}");
    }
}

#[test]
fn a_cycle_of_modules_side_by_side_is_found() {
    let files = [("a.rs", ""), ("a/x.rs", "use super::y::Y;"), ("a/y.rs", "use super::x::z::Z;")];
    let files = files.map(|(name, text)| (module(name), (name.to_owned(), text.to_owned())));
    let faults = Tree { files: files.into() }.faults(&["a"]);
    assert_eq!(faults, ["a::x, a::y: each leads to the others, which is a cycle"]);
}

/// The module of a file, by its path below `src`.
fn module(file: &str) -> Module {
    let path = file.trim_end_matches(".rs");
    path.split('/').filter(|name| !["lib", "main"].contains(name)).map(str::to_owned).collect()
}

// === impl Tree ===

impl Tree {
    fn read(root: &Path, dir: &str) -> Self {
        let mut paths: Vec<PathBuf> = Vec::new();
        list(&root.join(dir), &mut paths);
        let mut files = BTreeMap::new();
        for path in paths {
            let name = path.strip_prefix(root.join(dir)).unwrap().to_str().unwrap();
            let is_test = name.trim_end_matches(".rs").split('/').any(|part| part == "tests");
            // `main.rs` is a crate of its own.
            if !is_test && name != "main.rs" {
                files.insert(module(name), (name.to_owned(), fs::read_to_string(&path).unwrap()));
            }
        }
        assert!(files.len() > 5, "{dir}: nothing was looked at");
        Self { files }
    }

    fn faults(&self, layers: &[&str]) -> Vec<String> {
        let tops: BTreeSet<&str> =
            self.files.keys().filter_map(|of| of.first()).map(|it| &**it).collect();
        let unlisted = tops.iter().filter(|top| !layers.contains(top));
        let mut faults: Vec<_> =
            unlisted.map(|top| format!("{top} is in no layer; {ORDER}")).collect();
        let gone = layers.iter().filter(|layer| !tops.contains(**layer));
        faults.extend(gone.map(|layer| format!("{layer} is a layer and no module")));
        // The edges between sibling modules, by their parent module.
        let mut beside: BTreeMap<Module, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
        for (from, line, to, path) in self.edges() {
            let (file, _) = &self.files[&from];
            let depth = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            match (from.get(depth), to.get(depth)) {
                (Some(a), Some(b)) if depth == 0 => {
                    let at = |name: &str| layers.iter().position(|layer| *layer == name);
                    if at(b) >= at(a) {
                        let why = format!("not of a layer before {a}; {ORDER}");
                        faults.push(format!("{file}:{line}: names {b}: {why}"));
                    }
                }
                (Some(a), Some(b)) => {
                    let edges = beside.entry(from[..depth].to_vec()).or_default();
                    edges.entry(a.clone()).or_default().insert(b.clone());
                }
                (Some(_), None) if depth == 0 => {
                    faults.push(format!("{file}:{line}: names {path}: of the crate's root"));
                }
                // A module and those within it may name each other.
                _ => {}
            }
        }
        let cycles = beside.iter().filter_map(|(within, edges)| cycle(within, edges));
        faults.extend(cycles);
        faults
    }

    /// Each path to our own modules in the source: the module, the line, the module that it leads
    /// to, the path.
    fn edges(&self) -> Vec<(Module, usize, Module, String)> {
        let mut edges = Vec::new();
        for (from, (_, text)) in self.files.iter().filter(|(from, _)| !from.is_empty()) {
            for path in Source::new(text).without_tests().paths() {
                let mut to = match path.segments.first() {
                    Some(&"crate") => Vec::new(),
                    Some(&("self" | "super")) => from.clone(),
                    _ => continue,
                };
                let names = path.segments.iter().filter(|name| !["crate", "self"].contains(*name));
                for name in names {
                    match *name {
                        "super" => drop(to.pop()),
                        name => to.push(name.to_owned()),
                    }
                }
                while !to.is_empty() && !self.files.contains_key(&to) {
                    to.pop();
                }
                edges.push((from.clone(), path.line, to, path.segments.join("::")));
            }
        }
        edges
    }
}

/// The modules within `within` that depend on themselves.
fn cycle(within: &Module, edges: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let leads_back = |start: &&String| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![*start]);
        while let Some(next) = left.pop() {
            let further = edges.get(next).into_iter().flatten();
            left.extend(further.filter(|module| seen.insert(*module)));
        }
        seen.contains(start)
    };
    let turning: Vec<_> = edges.keys().filter(leads_back).collect();
    let named = turning.iter().map(|name| format!("{}::{name}", within.join("::")));
    let named: Vec<_> = named.collect();
    (!named.is_empty())
        .then(|| format!("{}: each leads to the others, which is a cycle", named.join(", ")))
}
