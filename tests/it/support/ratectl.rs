//! The binary `ratectl`, and the load generator of the benches. They are not binaries of this
//! package, so that cargo does not provide their paths: they lie beside the sidecar's binary, and
//! below it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::SystemTime;

use super::ratelease::BINARY;

/// Subcommands of the sidecar; all others are those of `ratectl`.
const OF_SIDECAR: [&str; 3] = ["serve", "check", "health"];

/// The path of the binary.
static RATECTL: LazyLock<PathBuf> =
    LazyLock::new(|| built("ratectl", &["--workspace", "--bin", "ratectl"]));

/// The path of the load generator, `benches/load.rs`. Its build has the features of the tests.
static LOAD: LazyLock<PathBuf> =
    LazyLock::new(|| built("examples/load", &["--workspace", "--example", "load"]));

/// The path of the program at `program` in the directory of the sidecar's binary, after a build of
/// `target` if needed. `cargo test` builds the binaries and examples of each package whose tests it
/// runs; where only some tests run, it may be missing, or older than its source. A build of the whole
/// workspace has the features that the tests have, so that what they depend on is not built again.
pub(super) fn built(program: &str, target: &[&str]) -> PathBuf {
    let path = Path::new(BINARY).with_file_name(program);
    if fs::metadata(&path).and_then(|built| built.modified()).is_ok_and(|built| built >= source()) {
        return path;
    }
    let profile = match Path::new(BINARY).parent().and_then(Path::file_name) {
        Some(name) if name != "debug" => name.to_str().expect("a profile"),
        _ => "dev",
    };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--locked"]).args(target);
    build.args(["--profile", profile]).current_dir(env!("CARGO_MANIFEST_DIR"));
    assert!(build.status().expect("cargo runs").success(), "{program} cannot be built");
    path
}

/// The path of `ratectl`.
pub(crate) fn ratectl() -> &'static Path {
    &RATECTL
}

/// The path of the load generator.
pub(crate) fn load() -> &'static Path {
    &LOAD
}

/// The program with the subcommand that `args` begin with.
pub(crate) fn program_of(args: &[impl AsRef<std::ffi::OsStr>]) -> &'static Path {
    let first = args.first().and_then(|first| first.as_ref().to_str()).unwrap_or("");
    let is_of_sidecar = first.starts_with('-') || OF_SIDECAR.contains(&first);
    if is_of_sidecar { Path::new(BINARY) } else { ratectl() }
}

/// The last change of the source of the programs.
fn source() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut newest = SystemTime::UNIX_EPOCH;
    let mut left = vec![root.join("crates"), root.join("benches")];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("the source is there");
            let entries = entries.map(|entry| entry.unwrap().path());
            // Tests do not belong to the binary.
            left.extend(entries.filter(|path| path.file_stem().is_none_or(|it| it != "tests")));
        } else if path.extension().is_some_and(|extension| extension != "md") {
            newest = newest.max(fs::metadata(&path).unwrap().modified().unwrap());
        }
    }
    newest
}
