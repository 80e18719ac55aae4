//! HTTP/2 conformance by an external suite: h2spec, 145 cases of RFC 9113 and RFC 7541.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use super::pod;

/// The suite takes a second; one case that hangs takes two.
const SUITE_MAX: Duration = Duration::from_secs(60);

/// h2spec's binary: `H2SPEC_BIN`, or the path where `scripts/test` installs it.
fn binary() -> PathBuf {
    let installed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/bin/h2spec");
    let path = std::env::var_os("H2SPEC_BIN").map_or_else(installed, PathBuf::from);
    assert!(
        path.is_file(),
        "no h2spec at {}: run scripts/test once, which installs it, or name another by H2SPEC_BIN",
        path.display()
    );
    path
}

/// `/healthcheck` is a plain route whose answer has a body. Another library serves HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn every_case_of_the_suite_passes_on_the_grpc_port() {
    let (pod, _rules) = pod().await;
    let mut suite = Command::new(binary());
    suite.args(["--host", &pod.grpc.ip().to_string(), "--port", &pod.grpc.port().to_string()]);
    suite.args(["--path", "/healthcheck"]).stdin(Stdio::null()).kill_on_drop(true);
    let ran = timeout(SUITE_MAX, suite.output()).await.expect("an end").unwrap();
    let reported = String::from_utf8_lossy(&ran.stdout);
    let failures = reported.split_once("Failures:").map_or(&*reported, |(_, failures)| failures);
    assert!(reported.contains("145 tests, 145 passed, 0 skipped, 0 failed"), "{failures}");
    pod.is_unharmed();
}
