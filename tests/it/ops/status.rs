//! `status`, against a pod.

use super::{RULES, nowhere, pod, rules, run, run_with};
use crate::support::files::put;

#[tokio::test(flavor = "multi_thread")]
async fn a_good_pod_is_shown_and_a_refused_load_is_a_finding() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let debug = pod.debug.to_string();
    let ran = run(&["status", "--debug", &debug]).await.ended(0);
    assert!(ran.out.contains(", 2 rules, loads: 1 accepted, 0 refused\n"), "{ran:?}");
    assert!(ran.out.starts_with("ratelease   ") && ran.out.contains("store memory"), "{ran:?}");

    put(rules.path().join("bad.yaml"), "domain: [");
    let refused = async || run(&["status", "--debug", &debug]).await.status == Some(1);
    pod.process.until("reporting the fault", super::RUN_MAX, refused).await;
    let ran = run(&["status", "--debug", &debug]).await.ended(1);
    assert!(ran.out.starts_with("problem: the last load of the rules was refused: "), "{ran:?}");
    assert!(ran.out.contains(" bad.yaml:2:1: "), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn json_is_what_the_pod_says_and_the_environment_says_where_it_is() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let port = pod.debug.port().to_string();
    let env = [("DEBUG_HOST", "0.0.0.0"), ("DEBUG_PORT", port.as_str())];
    let ran = run_with(&["status", "--json"], &env, "").await.ended(0);
    let status = &ran.json()[0];
    assert_eq!(status["rules"]["version"], pod.status()["rules"]["version"]);
    assert_eq!(status["version"], env!("CARGO_PKG_VERSION"));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_that_only_the_reference_has_name_those_that_have_their_data() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    for (port, path, pointers) in [
        (pod.debug, "/stats", &["/metrics", "/status"][..]),
        (pod.debug, "/debug/pprof/", &["/metrics", "/status"]),
        (pod.debug, "/debug/pprof/heap", &["/metrics"]),
        (pod.debug, "/nothing", &["/ lists all"]),
        (pod.http, "/", &["/json", "/readyz", "debug port"]),
    ] {
        let answer = crate::support::http::get(port, path).await.unwrap();
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert!(pointers.iter().all(|pointer| answer.body.contains(pointer)), "{path}: {answer:?}");
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"), "{path}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_not_there_cannot_be_asked() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let (http, nowhere) = (pod.http.to_string(), nowhere());
    for (args, reason) in [
        (["--debug", nowhere.as_str()], "cannot be reached: "),
        (["--debug", &http], "is it the debug port?"),
        (["--debug", "6070"], "expected HOST:PORT"),
        (["--timeout", "1"], "expected a duration"),
    ] {
        let ran = run(&[&["status"], &args[..]].concat()).await.ended(2);
        assert!(ran.err.contains(reason), "{ran:?}");
    }
    let ran = run_with(&["status"], &[("DEBUG_PORT", "x")], "").await.ended(2);
    let expected = "DEBUG_PORT: expected a port from 0 to 65535, found \"x\"";
    assert!(ran.err.contains(expected), "{ran:?}");
}
