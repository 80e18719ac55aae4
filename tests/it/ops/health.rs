//! `health`, against a pod.

use super::{RULES, Ran, nowhere, pod, rules, run, run_with};
use crate::support::ratelease::Ratelease;

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_pod_is_found_by_its_environment_and_nothing_is_said() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let (http, grpc) = (pod.http.port().to_string(), pod.grpc.port().to_string());
    let env = [
        ("HOST", "0.0.0.0"),
        ("PORT", http.as_str()),
        ("GRPC_HOST", "0.0.0.0"),
        ("GRPC_PORT", grpc.as_str()),
        ("GRPC_UDS", ""),
    ];
    for flags in [&["health"][..], &["health", "--grpc"]] {
        let Ran { out, err, .. } = run_with(flags, &env, "").await.ended(0);
        assert_eq!((out.as_str(), err.as_str()), ("", ""), "{flags:?}");
    }
    let (http, grpc) = (pod.http.to_string(), pod.grpc.to_string());
    let ran = run(&["health", "--http", &http, "--json"]).await.ended(0);
    let expected = serde_json::json!({"healthy": true, "target": http, "answer": "200 OK"});
    assert_eq!(ran.json(), [expected]);
    for grpc in [
        &["health", &format!("--grpc={grpc}"), "--json"][..],
        &["health", "--grpc", &grpc, "--json"],
    ] {
        assert_eq!(run(grpc).await.ended(0).json()[0]["answer"], "SERVING");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_rules_is_not_healthy_where_it_has_to_have_some() {
    let empty = tempfile::TempDir::new().unwrap();
    let env = [("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")];
    let pod = Ratelease::spawn(empty.path(), &[], &env);
    pod.says("/healthcheck", 500).await;
    let ran = run(&["health", "--http", &pod.http.to_string()]).await.ended(1);
    assert!(ran.err.contains(" is not healthy: 500") && ran.out.is_empty(), "{ran:?}");
    let ran = run(&["health", &format!("--grpc={}", pod.grpc)]).await.ended(1);
    assert!(ran.err.contains(" is not healthy: NOT_SERVING"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_of_http_that_is_asked_by_grpc_is_called_so() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    for (port, name) in [(pod.http, "JSON, PORT"), (pod.debug, "the debug port, DEBUG_PORT")] {
        let ran = run(&["health", &format!("--grpc={port}")]).await.ended(2);
        assert!(ran.err.contains(name) && ran.err.contains("name the pod's GRPC_PORT"), "{ran:?}");
    }
}

fn port(address: &str) -> &str {
    address.rsplit_once(':').unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_differs_from_an_unhealthy_one() {
    let nowhere = nowhere();
    for args in [["--http", &nowhere].as_slice(), &[&format!("--grpc={nowhere}")]] {
        let ran = run(&[&["health"], args].concat()).await.ended(2);
        assert!(ran.err.contains("cannot be reached: "), "{ran:?}");
    }
    for (args, env, hint) in [
        (&["health"][..], &[("PORT", port(&nowhere))][..], "from HOST and PORT"),
        (&["health", "--live"], &[("PORT", port(&nowhere))], "from HOST and PORT"),
        (&["health", "--grpc"], &[("GRPC_PORT", port(&nowhere))], "from GRPC_HOST and GRPC_PORT"),
        (&["health", "--grpc"], &[("GRPC_UDS", "/nowhere/pod.sock")], "from GRPC_UDS"),
    ] {
        let ran = run_with(args, env, "").await.ended(2);
        assert!(ran.err.contains("start the server there; this address is "), "{ran:?}");
        assert!(ran.err.contains(hint), "{ran:?}");
    }
    // It accepts connections, and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let hangs = listener.local_addr().unwrap().to_string();
    for args in [["--http", &hangs].as_slice(), &[&format!("--grpc={hangs}")]] {
        let ran = run(&[&["health", "--timeout", "100ms"], args].concat()).await.ended(2);
        assert!(ran.err.contains("no answer within 100ms"), "{ran:?}");
    }
    run(&["health", "--http", "a:1", "--grpc"]).await.ended(2);
    run_with(&["health"], &[("PORT", "http")], "").await.ended(2);
}
