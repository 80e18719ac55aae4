//! HTTP/2 conformance by an external suite: h2spec, 145 cases of RFC 9113 and RFC 7541. One of them
//! is tested in `split` instead.

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

/// Case 1 of section 5.1.2. It sends a request more than may be under way at once, and keeps the
/// first ones under way by a window of zero. A pod resets all but a few calls whose answers are not
/// read, so the last request is refused only if the pod had read it before the first answer.
/// `split::a_call_beyond_the_maximum_is_refused_alone` tests the maximum with calls that stay.
const CONCURRENCY_CASE: &str =
    "1: Sends HEADERS frames that causes their advertised concurrent stream limit to be exceeded";

/// `/healthcheck` is a plain route whose answer has a body. Another library serves HTTP.
#[tokio::test(flavor = "multi_thread")]
async fn every_case_of_the_suite_passes_on_the_grpc_port() {
    let (pod, _rules) = pod().await;
    let mut suite = Command::new(binary());
    suite.args(["--host", &pod.grpc.ip().to_string(), "--port", &pod.grpc.port().to_string()]);
    suite.args(["--path", "/healthcheck"]).stdin(Stdio::null()).kill_on_drop(true);
    let ran = timeout(SUITE_MAX, suite.output()).await.expect("an end").unwrap();
    let report = String::from_utf8_lossy(&ran.stdout);
    let (_, failures) = report.split_once("Failures:").unwrap_or_default();
    let failed = failures.lines().filter_map(|line| line.trim().strip_prefix("\u{d7} "));
    let unexpected: Vec<_> = failed.filter(|case| *case != CONCURRENCY_CASE).collect();
    assert_eq!(unexpected, [""; 0], "{failures}");
    let is_whole = ["145 tests, 145 passed, 0 skipped,", "145 tests, 144 passed, 0 skipped,"];
    assert!(is_whole.iter().any(|counts| report.contains(counts)), "{report}");
    pod.is_unharmed();
}
