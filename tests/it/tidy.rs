//! Rules for the text of the source that no compiler or lint checks: sizes, names, stray words, and
//! allowed dependencies. Each rule is a row of a table with its reason, printed when it is broken.

use std::fs;
use std::path::{Path, PathBuf};

use scan::{Source, Token};

mod crates; // the crates that each crate may use
mod edges; // the modules that each module may name
mod layers; // the order of the layers
mod scan; // tokens and paths

/// Maximum lines of a function, and columns of a line, to keep them readable. A file holds one idea
/// whole, however long.
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// File names that say nothing: anything could be added to such a file.
const VAGUE: [&str; 6] = ["common", "helpers", "impl", "manager", "types", "util"];

/// Text that must not remain. Split here, so that this file does not break its own rule.
const STRAY: [(&str, &str); 6] = [
    (concat!("db", "g!("), "take the debug print out"),
    (concat!("to", "do!("), "finish it, or leave the whole of it out"),
    (concat!("unimpl", "emented!("), "finish it, or leave the whole of it out"),
    (concat!("FIX", "ME"), "fix it, or open an issue"),
    (concat!("XX", "X"), "fix it, or open an issue"),
    (concat!("#[ign", "ore"), "a test that is not run is not a test; a missing tool fails it"),
];

#[test]
fn the_source_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    ["src", "crates", "tests", "benches"].iter().for_each(|dir| list(&root.join(dir), &mut files));
    let mut faults = Vec::new();
    for path in &files {
        let text = fs::read_to_string(path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_str().unwrap();
        faults.extend(check(name, &text));
    }
    assert!(files.iter().any(|path| path.ends_with("src/lib.rs")), "nothing was looked at");
    assert!(faults.is_empty(), "{} faults\n{}", faults.len(), faults.join("\n"));
}

/// All `.rs` files under a directory, which need not exist.
fn list(dir: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            list(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Every fault of one file, as `file:line: what`.
fn check(file: &str, text: &str) -> Vec<String> {
    let source = Source::new(text);
    let mut faults = check_file(file, text);
    faults.extend(check_lines(file, text));
    faults.extend(check_functions(file, &source));
    faults.extend(edges::check(file, &source));
    faults
}

fn check_file(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if !text.starts_with("//!") {
        faults.push(format!("{file}:1: begin with `//!` and say what the file is for"));
    }
    let name = file.rsplit('/').next().and_then(|name| name.strip_suffix(".rs"));
    if name.is_some_and(|name| VAGUE.contains(&name)) {
        faults.push(format!("{file}:1: a name that says nothing: name it after what is in it"));
    }
    if name == Some("mod") && file != "tests/it/support/mod.rs" {
        faults.push(format!("{file}:1: a module `foo` lives in foo.rs beside foo/"));
    }
    faults
}

fn check_lines(file: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            faults.push(format!("{file}:{number}: {columns} columns, more than {COLUMNS_MAX}"));
        }
        for (word, reason) in STRAY.iter().filter(|(word, _)| line.contains(word)) {
            faults.push(format!("{file}:{number}: {word}: {reason}"));
        }
    }
    faults
}

fn check_functions(file: &str, source: &Source) -> Vec<String> {
    let long = source.functions().filter(|(_, lines)| *lines > FUNCTION_LINES_MAX);
    long.map(|(name, lines)| {
        let Token { text, line } = name;
        format!("{file}:{line}: fn {text} has {lines} lines, more than {FUNCTION_LINES_MAX}")
    })
    .collect()
}

#[test]
fn each_fault_is_found_and_nothing_else() {
    let long = format!("//! M\nfn long() {{\n{}}}\n", "    f();\n".repeat(69));
    let wide = format!("//! M\n// {}\n", "é".repeat(98));
    let unfinished = concat!("//! M\nfn f() {\n    to", "do!()\n}\n");
    let tested = "//! M\n#[cfg(test)]\nmod tests {\n    use tokio::net;\n}\nuse crate::lease;\n";
    for (file, text, expected) in [
        ("src/a.rs", "use b;\n", "1: begin with `//!`"),
        ("src/a.rs", &long, "2: fn long has 71 lines"),
        ("tests/a.rs", &wide, "2: 101 columns"),
        ("tests/a.rs", unfinished, "3: to"),
        ("src/a/mod.rs", "//! M\n", "1: a module `foo`"),
        ("src/util.rs", "//! M\n", "1: a name that says nothing"),
        ("src/grpc.rs", "//! M\nuse envoy_types::pb;\n", "2: names envoy_types::pb: only modules"),
        ("crates/server/src/grpc/wire.rs", "//! M\nuse envoy_types::pb;\n", ""),
        ("src/app.rs", "//! M\nuse crate::store::{self, redis::Redis};\n", ""),
        ("src/app.rs", "//! M\nfn f() -> redis::Value {}\n", "2: names redis::Value: only"),
        ("engine:store/redis/reconnecting.rs", "//! M\nuse redis::Value;\n", ""),
        ("engine:buffer/a.rs", "//! M\nuse super::super::lease::D;\n", "2: names super::super"),
        ("engine:buffer.rs", "//! M\nuse crate::{\n    time,\n    lease,\n};\n", "4: names crate"),
        ("engine:buffer.rs", tested, "6: names crate::lease: buffer and lease meet"),
        ("engine:buffer.rs", "//! M\n//! crate::lease\nfn f() { lease.end(\"tokio::x\") }\n", ""),
        ("engine:lease.rs", "//! M\nuse crate::buffer::Lot;\n", "2: names crate::buffer::Lot"),
        ("engine:lease.rs", "//! M\nfn f() { tokio::spawn(g()); }\n", ""),
        ("engine:lease/size.rs", "//! M\nfn f() { tokio::spawn(g()); }\n", "2: names tokio::spawn"),
        ("rules:tests.rs", "//! M\nuse tokio::time;\n", ""),
        ("rules:tests/odd.rs", "//! M\nuse tokio::time;\n", ""),
        ("rules:rules.rs", "//! M\nfn f() { let t = Instant::now(); }\n", "2: names Instant::now"),
        ("rules:rules.rs", "//! M\nfn f() -> impl A + use<'_> { tokio::x }\n", "2: names tokio::x"),
        ("rules:rules.rs", "//! M\nfn f() -> char { '\"' }\nuse tokio::x;\n", "3: names tokio::x"),
        ("rules:rules.rs", "//! M\nfn f() -> &str { r#\"\"tokio::x\"# }\n", ""),
        ("engine:lease.rs", "//! M\nfn f() { mpsc::unbounded_channel(); }\n", "2: names mpsc::unb"),
        ("src/grpc.rs", "//! M\nfn f() { std::process::exit(1) }\n", "2: names std::process::ex"),
    ] {
        let file = &match file.split_once(':') {
            Some((of, file)) => format!("crates/{of}/src/{file}"),
            None => file.to_owned(),
        };
        let faults = check(file, text);
        let expected: Vec<_> = Some(format!("{file}:{expected}"))
            .filter(|_| !expected.is_empty())
            .into_iter()
            .collect();
        let same = faults.len() == expected.len()
            && faults.iter().zip(&expected).all(|(fault, start)| fault.starts_with(start));
        assert!(same, "{text}\nexpected {expected:?}, found {faults:?}");
    }
}
