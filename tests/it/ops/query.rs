//! `query`, against a pod.

use super::{RULES, nowhere, pod, rules, run};
use crate::support::ratelease::Ratelease;

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_shown_whole_and_a_denial_is_a_finding() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let target = pod.grpc.to_string();
    let ask = ["query", "--target", &target, "--domain", "shop", "user=alice", "path=/free"];
    let ran = run(&ask).await.ended(0);
    assert!(ran.out.starts_with("OK  in "), "{ran:?}");
    assert!(ran.out.contains("\n  user=alice: OK, 2 of 3 per year left, resets in "), "{ran:?}");
    assert!(ran.out.contains(" s (rule per_user)\n  path=/free: OK, unlimited\n"), "{ran:?}");

    let ran = run(&[&ask[..], &["--hits", "3", "--json"]].concat()).await.ended(1);
    let answer = &ran.json()[0];
    assert_eq!((&answer["code"], &answer["target"]), (&"OVER_LIMIT".into(), &target.into()));
    let status = &answer["statuses"][0];
    assert_eq!((&status["code"], &status["remaining"]), (&"OVER_LIMIT".into(), &0.into()));
    let limit = serde_json::json!({"name": "per_user", "requests_per_unit": 3, "unit": "YEAR"});
    assert_eq!(status["limit"], limit);
    assert!(answer["took_ms"].as_f64().is_some_and(|took| took > 0.0), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_port_of_the_pod_is_named_with_the_one_to_ask() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    for (address, port) in
        [(pod.http, "the port of HTTP and JSON, PORT"), (pod.debug, "the debug port, DEBUG_PORT")]
    {
        let target = address.to_string();
        let query = ["query", "--target", &target, "--domain", "shop", "user=x"];
        let ran = run(&query).await.ended(2);
        let expected =
            format!("{target}: this is {port}, which does not speak gRPC; name the pod's");
        assert!(ran.err.contains(&expected), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_without_windows_is_one_of_requests_at_a_time() {
    let limit = "{algorithm: concurrency, requests_per_unit: 3, hold: {for: 1m}}";
    let rules = rules(&format!("domain: d\ndescriptors:\n- {{key: m, rate_limit: {limit}}}\n"));
    let pod = pod(&rules).await;
    let target = pod.grpc.to_string();
    let query = ["query", "--target", &target, "--domain", "d", "m=a"];
    let ran = run(&query).await.ended(0);
    assert!(ran.out.contains(": OK, 2 of 3 at a time left"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_repeated_and_a_limit_may_come_with_them() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let target = pod.grpc.to_string();
    let ask = ["query", "--target", &target, "--domain", "shop", "user=bob", "--repeat", "4"];
    let ran = run(&ask).await.ended(1);
    let lines: Vec<_> = ran.out.lines().collect();
    let expected = [
        "1: OK, remaining 2",
        "2: OK, remaining 1",
        "3: OK, remaining 0",
        "4: OVER_LIMIT, remaining 0",
        "3 passed, 1 denied",
    ];
    assert_eq!(lines, expected, "{ran:?}");
    let ran = run(&[&ask[..], &["--limit", "1/day", "--json"]].concat()).await.ended(1);
    let codes: Vec<_> = ran.json().iter().map(|answer| answer["code"].clone()).collect();
    assert_eq!(codes, ["OK", "OVER_LIMIT", "OVER_LIMIT", "OVER_LIMIT"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_hits_are_a_look_that_charges_nothing() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let target = pod.grpc.to_string();
    let ask = ["query", "--target", &target, "--domain", "shop", "user=look", "--json"];
    for (hits, remaining) in [("0", 3), ("1", 2), ("0", 2), ("0", 2), ("2", 0)] {
        let ran = run(&[&ask[..], &["--hits", hits]].concat()).await.ended(0);
        let status = &ran.json()[0]["statuses"][0];
        assert_eq!(status["remaining"], remaining, "{hits}: {ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_cannot_be_called_is_reported_in_json_too() {
    let nowhere = nowhere();
    let query = ["query", "--target", &nowhere, "--domain", "shop", "user=x", "--json"];
    for args in [&query[..], &["health", "--http", &nowhere, "--json"]] {
        let ran = run(args).await.ended(2);
        let error = ran.json()[0]["error"].as_str().map(str::to_owned);
        assert!(error.is_some_and(|error| error.contains("cannot be reached")), "{ran:?}");
        assert!(ran.err.contains("cannot be reached"), "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_is_asked_too() {
    let rules = rules(RULES);
    let socket = rules.path().join("grpc.sock");
    let socket = socket.to_str().unwrap();
    let pod = Ratelease::start(rules.path(), &[], &[("GRPC_UDS", socket)]).await;
    let target = format!("unix:{socket}");
    run(&["query", "--target", &target, "--domain", "shop", "user=eve"]).await.ended(0);
    run(&["health", &format!("--grpc={target}")]).await.ended(0);
    drop(pod);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_sent_is_reported_in_one_line() {
    let rules = rules(RULES);
    let pod = pod(&rules).await;
    let (target, nowhere) = (pod.grpc.to_string(), nowhere());
    for (args, reason) in [
        (["--target", &nowhere, "--domain", "shop"], "cannot be reached: "),
        (["--target", &target, "--domain", ""], "answered Unknown: "),
        (["--target", "8081", "--domain", "shop"], "expected HOST:PORT or unix:PATH"),
        (["--target", &target, "--ca", "/nowhere.pem"], "--domain"),
    ] {
        let ran = run(&[&["query"], &args[..], &["user=x"]].concat()).await.ended(2);
        assert!(ran.err.contains(reason), "{ran:?}");
        assert_eq!(ran.out, "", "{ran:?}");
    }
    let base = ["query", "--target", &target, "--domain", "shop"];
    for (args, reason) in [
        (&["user"][..], "write key=value,key=value"),
        (&["user=x", "--limit", "5"], "expected COUNT/UNIT"),
        (&["user=x", "--timeout", "0s"], "expected a duration"),
        (&["user=x", "--ca", "/nowhere.pem"], "/nowhere.pem: No such file"),
        (&["user=x", "--cert", "/nowhere.pem"], "--key"),
    ] {
        let ran = run(&[&base[..], args].concat()).await.ended(2);
        assert!(ran.err.contains(reason), "{reason}: {ran:?}");
    }
}
