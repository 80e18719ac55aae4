//! The module of Envoy, and bootstraps that use it in place of a rate limit service.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::ratectl::ratectl;

/// The module, which cargo has built beside this test.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("the path of the test");
    let library = test.parent().expect("a directory").join("libratelease.so");
    assert!(library.is_file(), "no {}: run with cargo test --workspace", library.display());
    library
}

/// The bootstrap that `ratectl migrate --to-module` makes of a file, and what it says on standard
/// error.
pub(crate) fn migrated(bootstrap: &Path) -> (String, String) {
    let output =
        Command::new(ratectl()).args(["migrate", "--to-module"]).arg(bootstrap).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (moved, says) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{}: {says}", bootstrap.display());
    (moved, says)
}
