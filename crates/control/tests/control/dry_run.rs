//! What a draft would change: differences of rules, and decisions of a log.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::support::{Call, Place, Server, now, places, rule};
use super::tokens::token;

/// Lines of requests with one entry: second of the minute, domain, key and value.
fn log(requests: &[(u32, &str, &str, &str)]) -> String {
    let lines = requests.iter().map(|(second, domain, key, value)| {
        let entries = json!([{"key": key, "value": value}]);
        let time = format!("2026-11-23T19:00:{second:02}Z");
        json!({"time": time, "domain": domain, "descriptors": [{"entries": entries}]}).to_string()
    });
    lines.collect::<Vec<_>>().join("\n")
}

async fn replay(server: &Server, body: &Value) -> Value {
    let answer = server.post("/v1/replay", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

#[tokio::test]
async fn a_log_is_decided_by_the_draft_and_by_what_is_published() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "user", "", 3)).await;
        server.add(&rule("bank", "card", "", 1)).await;
        server.publish().await;
        let same = json!({"log": log(&[(0, "bank", "card", "1"), (1, "bank", "card", "1")])});
        let report = replay(&server, &same).await;
        assert_eq!((&report["newly_denied"], &report["newly_passed"]), (&json!(0), &json!(0)));
        assert_eq!(report["published"], json!({"passed": 1, "denied": 1}), "{report}");

        // One limit is raised, another one lowered.
        for (domain, key, requests) in [("shop", "user", 1), ("bank", "card", 2)] {
            let changed = rule(domain, key, "", requests);
            let path = format!("/v1/rules?domain={domain}");
            let id = server.json(&path).await["rules"][0]["id"].as_str().unwrap().to_owned();
            let call = Call::new("PUT", &format!("/v1/rules/{id}")).header("if-match", "*");
            assert_eq!(server.send(call.json(&changed)).await.status, 200);
        }
        let lines = [
            (0, "shop", "user", "7"),
            (1, "shop", "user", "7"),
            (2, "shop", "user", "<b>"),
            (3, "bank", "card", "1"),
            (4, "bank", "card", "1"),
            (3, "other", "card", "1"),
        ];
        let report = replay(&server, &json!({"log": log(&lines) + "\nnonsense\n\n"})).await;
        let expected = json!({
            "lines": 7, "requests": 6, "other_domains": 1, "newly_denied": 1, "newly_passed": 1,
            "published": {"passed": 5, "denied": 1}, "draft": {"passed": 5, "denied": 1},
            "unreadable": 1, "without_descriptor": 0, "out_of_order": 1,
            "from": "2026-11-23T19:00:00Z", "to": "2026-11-23T19:00:04Z",
        });
        for (name, value) in expected.as_object().unwrap() {
            assert_eq!(report[name], *value, "{name} of {report}");
        }
        assert_eq!(report["first_unreadable"][0]["line"], 7, "{report}");
        let example = |line: u32, domain: &str, entries: &str, is_denied: bool| {
            json!({"line": line, "requests": 1, "domain": domain, "descriptors": [entries],
                "is_denied": is_denied})
        };
        let examples = [example(2, "shop", "user=7", true), example(5, "bank", "card=1", false)];
        assert_eq!(report["examples"], json!(examples));
        let of_user = report["rules"].as_array().unwrap().iter();
        let of_user = of_user.filter(|it| it["rule"] == "shop.user").collect::<Vec<_>>();
        assert_eq!(of_user[0]["draft"], json!({"passed": 2, "denied": 1, "shadow": 0}), "{report}");
        server.stop().await;
    }
}

#[tokio::test]
async fn samples_of_pods_and_access_logs_are_read_and_bad_input_names_its_field() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "path", "", 1)).await;
    let sample = |second: u32| {
        let at = format!("2026-11-23T19:00:{second:02}Z");
        json!({"@timestamp": at, "target": "ratelease::decision", "@message": "decided",
            "domain": "shop", "values": "path=/a", "hits": 1})
        .to_string()
    };
    let samples = sample(0) + "\n" + &sample(1);
    let report = replay(&server, &json!({"log": samples})).await;
    assert_eq!((&report["requests"], &report["newly_denied"]), (&json!(2), &json!(1)), "{report}");

    let line = "[2026-11-23T19:00:00.000Z] \"GET /a?b=c HTTP/1.1\" 200 - 0 0 1 1 \"-\" \"-\"";
    let log = [line, line].join("\n");
    let access =
        json!({"log": log, "domain": "shop", "descriptors": ["path=%path_without_query%"]});
    let report = replay(&server, &access).await;
    assert_eq!((&report["requests"], &report["newly_denied"]), (&json!(2), &json!(1)), "{report}");
    assert_eq!(report["examples"][0]["descriptors"], json!(["path=/a"]));

    let request = r#"{"time": 1, "descriptors": []}"#;
    for (body, status, fields) in [
        (json!({"log": log, "domain": "shop"}), 422, vec!["descriptors"]),
        (json!({"log": log, "descriptors": ["path=%path%"]}), 422, vec!["domain"]),
        (json!({"log": request}), 422, vec!["domain"]),
        (
            json!({"log": "", "descriptors": ["k=%a", "k=v", "k"]}),
            422,
            vec!["descriptors[0]", "descriptors[2]"],
        ),
        (
            json!({"log": log, "domain": "shop", "descriptors": ["path=%nothing%"]}),
            422,
            vec!["descriptors"],
        ),
        (json!({"log": 7}), 422, vec!["log"]),
        (json!({"logs": ""}), 422, vec!["logs"]),
    ] {
        let refused = server.post("/v1/replay", &body).await;
        assert_eq!(
            (refused.status, refused.fields()),
            (status, fields.into_iter().map(str::to_owned).collect()),
            "{refused:?}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_line_of_a_log_has_at_most_64_kib() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "", 1)).await;
    let line = log(&[(0, "shop", "user", "7")]);
    // Spaces after the first brace make it exactly so long.
    let of = |bytes: usize| line.replacen('{', &format!("{{{}", " ".repeat(bytes - line.len())), 1);
    let (longest, longer) = (of(64 << 10), of((64 << 10) + 1));
    let text = [&*line, &longer, &longest].join("\n");
    let report = replay(&server, &json!({"log": text})).await;
    assert_eq!((&report["requests"], &report["unreadable"]), (&json!(2), &json!(1)), "{report}");
    let expected = json!([{"line": 2, "why": "longer than 65536 bytes"}]);
    assert_eq!(report["first_unreadable"], expected);
    server.stop().await;
}

#[tokio::test]
async fn differences_are_of_two_versions_or_of_the_draft() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "user", "", 3)).await;
        server.add(&rule("bank", "card", "", 1)).await;
        server.publish().await;
        let (added, _) = server.add(&rule("shop", "path", "/a", 4)).await;
        server.publish().await;
        let path = format!("/v1/rules/{}", added["id"].as_str().unwrap());
        let remove = Call::new("DELETE", &path).header("if-match", "*");
        assert_eq!(server.send(remove).await.status, 204);

        let domains = async |query: &str| {
            let found = server.json(&format!("/v1/differences?{query}")).await;
            let domains = found["domains"].as_array().unwrap().clone();
            let short =
                |it: &Value| json!([it["domain"], it["added"], it["changed"], it["removed"]]);
            (domains.iter().map(short).collect::<Vec<_>>(), found)
        };
        assert_eq!(domains("").await.0, [json!(["shop", 0, 0, 1])]);
        let first = [json!(["bank", 1, 0, 0]), json!(["shop", 1, 0, 0])];
        assert_eq!(domains("from=0&to=1").await.0, first);
        assert_eq!(domains("from=1&to=2").await.0, [json!(["shop", 1, 0, 0])]);
        assert_eq!(domains("to=1").await.0, [json!(["shop", 0, 0, 1])], "a roll back");
        assert_eq!(domains("from=1").await.0, Vec::<Value>::new());
        assert_eq!(domains("from=0&to=1&domain=bank").await.0, [json!(["bank", 1, 0, 0])]);
        let (_, short) = domains("from=0&to=2&limit=1").await;
        assert_eq!(short["is_truncated"], true);
        assert_eq!(short["domains"][1]["rules"], json!([]), "{short}");
        assert_eq!(short["domains"][1]["added"], 2, "{short}");
        for query in ["from=3", "to=0", "from=-1", "to=9"] {
            let answer = server.get(&format!("/v1/differences?{query}")).await;
            assert_eq!(answer.status, 404, "{query}: {answer:?}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_of_a_domain_sees_and_replays_that_one_alone() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "user", "", 1)).await;
    server.add(&rule("bank", "card", "", 1)).await;
    let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop"];
    let shop = token(&place, &create).await.unwrap();
    let get = async |path: &str| server.send(Call::new("GET", path).token(&shop)).await;
    let own = get("/v1/token").await.json();
    assert_eq!((&own["access"], &own["domains"]), (&json!("write"), &json!(["shop"])), "{own}");
    let seen = get("/v1/differences").await;
    assert!(seen.text.contains("shop") && !seen.text.contains("card"), "{seen:?}");
    assert_eq!(get("/v1/differences?domain=bank").await.status, 403);
    let lines = [(0, "bank", "card", "1"), (1, "bank", "card", "1"), (2, "shop", "user", "1")];
    let body = json!({"log": log(&lines)});
    let call = Call::new("POST", "/v1/replay").token(&shop).json(&body);
    let report = server.send(call).await.json();
    assert_eq!((&report["other_domains"], &report["newly_denied"]), (&json!(2), &json!(0)));
    let read = token(&place, &["create", "--name", "viewer"]).await.unwrap();
    let call = Call::new("POST", "/v1/replay").token(&read).json(&body);
    assert_eq!(server.send(call).await.status, 200);
    server.stop().await;
}

/// A line of a log with a field of so many bytes.
fn line(field_bytes: usize) -> String {
    json!({"time": "2026-11-23T19:00:00Z", "x": "x".repeat(field_bytes)}).to_string()
}

#[tokio::test]
async fn a_replay_makes_no_value_that_a_request_cannot_have() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "k", "", 1)).await;
    server.publish().await;
    let log = format!("{}\n{}\n{}", line(60_000), line(8), line(2000));
    let template = format!("k={}", "%x%%%".repeat(100));
    let body = json!({"log": log, "domain": "shop", "descriptors": vec![template; 200]});
    let report = replay(&server, &body).await;
    assert_eq!((&report["unreadable"], &report["requests"]), (&json!(2), &json!(1)), "{report}");
    let why = report["first_unreadable"][0]["why"].as_str().unwrap();
    assert!(why.contains("8192 bytes") && why.contains("1048576 in all"), "{report}");
    let long = json!({"log": log, "descriptors": [format!("k={}", "%x%".repeat(300))]});
    let refused = server.post("/v1/replay", &long).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["descriptors[0]".to_owned()]));
    server.stop().await;
}

#[tokio::test]
async fn a_log_that_asks_for_too_much_work_is_refused() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "k", "", 1)).await;
    server.publish().await;
    // Each line asks for most of a MiB, thousands of times its bytes.
    let (log, template) = (vec![line(40); 2_500].join("\n"), format!("k={}", "%x%".repeat(200)));
    let body = json!({"log": log, "domain": "shop", "descriptors": vec![template; 120]});
    let refused = server.post("/v1/replay", &body).await;
    assert_eq!((refused.status, refused.fields()), (422, vec!["log".to_owned()]), "{refused:?}");
    assert!(refused.text.contains("send fewer lines"), "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_replay_that_is_given_up_ends_within_a_line() {
    let place = Place::sqlite();
    let server = place.serve().await;
    server.add(&rule("shop", "k", "", 1)).await;
    server.publish().await;
    let body = |lines: usize, descriptors: usize| {
        let template = format!("k={}", "%x%".repeat(200));
        let log = vec![line(40); lines].join("\n");
        json!({"log": log, "domain": "shop", "descriptors": vec![template; descriptors]})
    };
    let long = body(500, 120);
    let given_up = timeout(Duration::from_millis(500), server.post("/v1/replay", &long));
    assert!(given_up.await.is_err(), "it takes longer");
    // A token has one replay at a time.
    let began = now();
    replay(&server, &body(1, 1)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    server.stop().await;
}
