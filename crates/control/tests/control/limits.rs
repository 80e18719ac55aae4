//! What one client may take from others: rates, places, sizes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use ratelease_control::RateSettings;
use ratelease_control::Store;
use serde_json::{Value, json};
use sqlx::Connection;

use super::faults::REFUSED_WITHIN;
use super::files::large;
use super::support::{Answer, Call, Place, now, places, rule};
use super::tokens::token;

/// Rates that a test reaches.
fn rates(token_requests: u32, failed_tokens: u32) -> RateSettings {
    let number = |number| NonZeroU32::new(number).unwrap();
    let (token_requests, failed_tokens) = (number(token_requests), number(failed_tokens));
    RateSettings { token_requests, failed_tokens, ..RateSettings::default() }
}

fn number(answer: &Answer, header: &str) -> u64 {
    let value = answer.header(header).unwrap_or_else(|| panic!("no {header}: {answer:?}"));
    value.parse().unwrap()
}

#[tokio::test]
async fn probes_and_metrics_have_a_port_of_their_own_and_nothing_else_is_there() {
    let place = Place::sqlite();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = place.serve_with(|settings| settings.probe_listen = Some(any)).await;
    let probes = server.probes.expect("a port");
    for (path, status) in [("/healthz", 200), ("/metrics", 200), ("/v1/domains", 404), ("/", 404)] {
        let answer = Call::new("GET", path).token(&server.token).to(probes).await.unwrap();
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_asks_too_often_waits_and_others_do_not() {
    let place = Place::sqlite();
    // A sixth of 6 may come at once, and one every ten seconds after that, which no stall lasts.
    let server = place.serve_with(|settings| settings.rates = rates(6, 10)).await;
    let other = token(&place, &["create", "--name", "other"]).await.unwrap();
    let first = server.get("/v1/domains").await;
    assert_eq!((first.status, number(&first, "ratelimit-limit")), (200, 1), "{first:?}");
    assert_eq!(number(&first, "ratelimit-remaining"), 0, "{first:?}");
    let refused = server.get("/v1/domains").await;
    assert_eq!((refused.status, refused.fields()), (429, vec![]), "{refused:?}");
    assert!((1..=10).contains(&number(&refused, "retry-after")), "{refused:?}");
    assert_eq!(number(&refused, "ratelimit-remaining"), 0);
    assert_eq!(refused.json()["type"], "urn:ratelease:problem:too-many-requests");
    // A write that is refused is not done.
    assert_eq!(server.post("/v1/rules", &rule("shop", "user", "1", 5)).await.status, 429);
    let call = Call::new("GET", "/v1/rules").token(&other);
    let list = server.send(call).await;
    assert_eq!((list.status, &list.json()["rules"]), (200, &json!([])), "{list:?}");
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_publishes_too_often_waits_and_others_do_not() {
    let place = Place::sqlite();
    let few =
        RateSettings { token_versions: NonZeroU32::new(2).unwrap(), ..RateSettings::default() };
    let server = place.serve_with(|settings| settings.rates = few).await;
    let of = async |domain| {
        let create = ["create", "--name", domain, "--access", "write", "--domains", domain];
        token(&place, &create).await.unwrap()
    };
    let (shop, bank) = (of("shop").await, of("bank").await);
    let publish = async |token: &str, domain: &str, value: &str| {
        let call = Call::new("POST", "/v1/rules?publish=true").token(token);
        server.send(call.json(&rule(domain, "user", value, 5))).await
    };
    for value in ["1", "2"] {
        assert_eq!(publish(&shop, "shop", value).await.status, 201);
    }
    let refused = publish(&shop, "shop", "3").await;
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!((1..=30).contains(&number(&refused, "retry-after")), "{refused:?}");
    assert_eq!(refused.json()["type"], "urn:ratelease:problem:too-many-versions");
    assert!(refused.text.contains("leave out 'publish'"), "{refused:?}");
    // The draft goes on, and so do other tokens and operators.
    let draft = Call::new("POST", "/v1/rules").token(&shop).json(&rule("shop", "user", "3", 5));
    assert_eq!(server.send(draft).await.status, 201);
    assert_eq!(publish(&bank, "bank", "1").await.status, 201);
    for value in ["2", "3", "4"] {
        assert_eq!(publish(&server.token, "bank", value).await.status, 201);
    }
    server.stop().await;
}

#[tokio::test]
async fn steps_of_rollouts_are_versions_that_a_token_publishes() {
    let place = Place::sqlite();
    let few =
        RateSettings { token_versions: NonZeroU32::new(3).unwrap(), ..RateSettings::default() };
    let server = place.serve_with(|settings| settings.rates = few).await;
    let create = ["create", "--name", "shop", "--access", "write", "--domains", "shop"];
    let shop = token(&place, &create).await.unwrap();
    server.add(&rule("shop", "user", "", 5)).await;
    server.publish().await;
    server.add(&rule("shop", "user", "x", 5)).await;
    let steps: Vec<_> = (1..20).map(|at| json!({"percent": 5 * at})).collect();
    let send = async |path: &str, body: Value| {
        server.send(Call::new("POST", path).token(&shop).json(&body)).await
    };
    assert_eq!(send("/v1/rollouts", json!({"steps": steps})).await.status, 201);
    for status in [200, 200, 429] {
        let taken = send("/v1/rollouts/1/advance", json!({"force": true})).await;
        assert_eq!(taken.status, status, "{taken:?}");
    }
    let stopped = send("/v1/rollouts/1/abort", Value::Null).await;
    assert_eq!(stopped.status, 200, "one can always stop: {stopped:?}");
    assert_eq!(send("/v1/rollouts", json!({"steps": steps})).await.status, 429);
    server.stop().await;
}

#[tokio::test]
async fn an_address_that_guesses_tokens_is_refused_and_those_who_have_one_are_not() {
    for place in places().await {
        let server = place.serve_with(|settings| settings.rates = rates(6000, 3)).await;
        assert_eq!(server.get("/v1/domains").await.status, 200);
        let late = token(&place, &["create", "--name", "late"]).await.unwrap();
        let guess = |at: usize| {
            let mut guess = server.token.clone();
            guess.replace_range(16..20, &format!("{at:04}"));
            Call::new("GET", "/v1/domains").token(&guess)
        };
        for at in 0..3 {
            assert_eq!(server.send(guess(at)).await.status, 401);
        }
        let refused = server.send(guess(3)).await;
        assert_eq!((refused.status, refused.fields()), (429, vec![]), "{refused:?}");
        assert!((1..=20).contains(&number(&refused, "retry-after")), "{refused:?}");
        // Not even a valid one, which would tell it from the others. One that was used before is.
        let call = Call::new("GET", "/v1/domains").token(&late);
        assert_eq!(server.send(call).await.status, 429);
        assert_eq!(server.get("/v1/domains").await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn tokens_that_are_guessed_at_the_same_time_are_counted_as_well() {
    let place = Place::sqlite();
    let server = place.serve_with(|settings| settings.rates = rates(6000, 3)).await;
    let guesses = (0..40).map(|at| {
        let mut guess = server.token.clone();
        guess.replace_range(16..20, &format!("{at:04}"));
        let call = Call::new("GET", "/v1/domains").token(&guess);
        async { server.send(call).await.status }
    });
    let statuses = futures_util::future::join_all(guesses).await;
    let looked_up = statuses.iter().filter(|status| **status == 401).count();
    assert_eq!((looked_up, statuses.iter().filter(|it| **it == 429).count()), (3, 37));
    server.stop().await;
}

#[tokio::test]
async fn a_token_that_has_kept_its_bytes_writes_no_more_and_others_do() {
    const BYTES_MAX: i64 = 100_000;
    for place in places().await {
        let server = place.serve_with(|settings| settings.token_bytes_max = BYTES_MAX).await;
        let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop"];
        let (own, other) =
            (token(&place, &create).await.unwrap(), token(&place, &create).await.unwrap());
        let kept = async |token: &str| {
            let own = server.send(Call::new("GET", "/v1/token").token(token)).await.json();
            assert_eq!(own["kept_bytes_max"], BYTES_MAX, "{own}");
            own["kept_bytes"].as_i64().unwrap()
        };
        assert_eq!(kept(&own).await, 0);
        // The text of a version is kept, and that of the same rules only once.
        let import = |token: &str| {
            let call = Call::new("POST", "/v1/import?publish=true").token(token);
            call.body("application/yaml", large("shop", 100).as_bytes())
        };
        assert_eq!(server.send(import(&own)).await.status, 200);
        let of_version = kept(&own).await;
        assert!(of_version > 2 * 100 * 60, "history and text: {of_version}");
        assert_eq!(server.send(import(&own)).await.status, 200);
        assert!(kept(&own).await - of_version < 1000, "the text and history are there");

        // Writes that change nothing leave something too.
        let path = format!("/v1/import?reason={}", "r".repeat(1000));
        let write = |token: &str, key: usize| {
            let call = Call::new("POST", &path).token(token);
            let call = call.header("idempotency-key", &key.to_string());
            call.body("application/yaml", large("shop", 100).as_bytes())
        };
        let mut done = 0;
        let refused = loop {
            let answer = server.send(write(&own, done)).await;
            if answer.status != 200 {
                break answer;
            }
            done += 1;
            assert!(i64::try_from(done).unwrap() * 1000 < BYTES_MAX, "no write is refused");
        };
        assert_eq!((refused.status, refused.fields()), (403, vec![]), "{refused:?}");
        assert_eq!(refused.json()["type"], "urn:ratelease:problem:quota-used");
        assert!(refused.text.contains("--token-bytes-max"), "{refused:?}");
        let used = kept(&own).await;
        assert!((BYTES_MAX..BYTES_MAX + 3000).contains(&used), "{used}");
        // The answer of a write that was done is still there, and reads go on.
        assert_eq!(server.send(write(&own, done - 1)).await.status, 200);
        assert_eq!(server.send(Call::new("GET", "/v1/rules").token(&own)).await.status, 200);
        let back = Call::new("POST", "/v1/rollback").token(&own).json(&json!({"version": 1}));
        assert_eq!(server.send(back).await.status, 403);
        // Another token writes, and an operator sees who has kept how much.
        assert_eq!(server.send(write(&other, 0)).await.status, 200);
        assert!(token(&place, &["list"]).await.unwrap().contains(&format!("kept: {used} bytes")));
        server.stop().await;
        let server = place.serve_with(|settings| settings.token_bytes_max = 2 * BYTES_MAX).await;
        assert_eq!(server.send(write(&own, done)).await.status, 200, "the setting was raised");
        server.stop().await;
        // An operator's token has no bound.
        let server = place.serve_with(|settings| settings.token_bytes_max = 1).await;
        for key in 0..2 {
            assert_eq!(server.send(write(&server.token, key)).await.status, 200);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn publishers_of_two_replicas_lose_nothing() {
    let place = Place::postgres().await;
    let servers = [place.serve().await, place.serve().await];
    let publish = async |at: usize, number: usize| {
        let rule = rule(&format!("domain{at}"), "user", &number.to_string(), 5);
        servers[at].post("/v1/rules?publish=true", &rule).await
    };
    let both = async |at: usize| {
        for number in 0..10 {
            let done = publish(at, number).await;
            assert_eq!(done.status, 201, "{done:?}");
        }
    };
    tokio::join!(both(0), both(1));
    let versions = servers[0].json("/v1/versions").await;
    assert_eq!(versions["versions"][0]["version"], 20, "{versions}");
    let export = servers[1].json("/v1/export?version=20").await;
    let texts: Vec<_> = export["files"].as_array().unwrap().iter().map(|it| &it["yaml"]).collect();
    assert_eq!(texts.len(), 2);
    for text in texts {
        assert_eq!(text.as_str().unwrap().matches("- key: user").count(), 10, "{text}");
    }
    let checked = servers[0].post("/v1/check", &Value::Null).await;
    assert_eq!(checked.json()["differences"], json!([]), "what is published is not the draft");
    let [first, second] = servers;
    first.stop().await;
    second.stop().await;
}

#[tokio::test]
async fn a_publisher_waits_for_another_replica_and_is_refused_in_time() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    let other = Store::open(&place.database()).await.unwrap();
    let publish = async |value: &str| {
        server.post("/v1/rules?publish=true", &rule("shop", "user", value, 5)).await
    };
    let held = other.lock_publishers().await.unwrap();
    let release = async {
        place.postgres.as_ref().unwrap().waits_for_lock("advisory").await;
        // Neither reads nor other writes wait for it.
        server.add(&rule("bank", "card", "", 5)).await;
        assert_eq!(server.json("/v1/versions").await["versions"], json!([]));
        drop(held);
    };
    let (published, ()) = tokio::join!(publish("1"), release);
    assert_eq!(published.status, 201, "{published:?}");

    let held = other.lock_publishers().await.unwrap();
    let began = now();
    let refused = publish("2").await;
    assert_eq!((refused.status, refused.fields()), (503, vec![]), "{refused:?}");
    assert_eq!(refused.json()["type"], "urn:ratelease:problem:unavailable");
    assert_eq!(refused.header("retry-after").as_deref(), Some("1"), "{refused:?}");
    assert!(began.elapsed() < REFUSED_WITHIN, "{:?}", began.elapsed());
    drop(held);
    // What was refused is not done later, and holds up no other publisher.
    assert_eq!(publish("3").await.status, 201);
    let text = server.get("/v1/export?domain=shop&version=2").await.text;
    assert_eq!((text.matches("- key: user").count(), text.contains("value: \"2\"")), (2, false));
    other.close().await;
    server.stop().await;
}

#[tokio::test]
async fn writes_do_not_wait_for_what_is_compiled() {
    let place = Place::postgres().await;
    // Pods with the default limit have no memory for so many rules of one domain.
    let server = place.serve_with(|settings| settings.pod_memory = 256 << 20).await;
    let mut rounds = Vec::new();
    // A busy machine may delay a write in some rounds; a write that waits for the compiler does so
    // in each.
    for round in 0..10 {
        server.import(&large("large", 20_000 + round)).await;
        let (done, began) = (Cell::new(false), now());
        let publish = async {
            let published = server.post("/v1/publish", &json!({"domains": ["large"]})).await;
            assert_eq!(published.status, 200, "{published:?}");
            done.set(true);
            began.elapsed()
        };
        let writes = async {
            let mut slowest = Duration::ZERO;
            while !done.get() {
                let began = now();
                let value = format!("{began:?}");
                server.add(&rule("shop", "user", &value, 5)).await;
                slowest = slowest.max(began.elapsed());
            }
            slowest
        };
        let (took, slowest) = tokio::join!(publish, writes);
        rounds.push((took, slowest));
        if slowest < took / 3 {
            return server.stop().await;
        }
    }
    panic!("publications, and the slowest write of each: {rounds:?}");
}

#[tokio::test]
async fn reads_of_a_token_leave_connections_to_others_and_end_in_their_time() {
    let place = Place::postgres().await;
    let server = place.serve().await;
    server.add(&rule("shop", "user", "", 5)).await;
    let foe = token(&place, &["create", "--name", "foe"]).await.unwrap();
    let postgres = place.postgres.as_ref().unwrap();
    let mut connection = sqlx::PgConnection::connect(&postgres.url()).await.unwrap();
    let mut held = connection.begin().await.unwrap();
    let lock = "LOCK TABLE rules IN ACCESS EXCLUSIVE MODE";
    sqlx::raw_sql(lock).execute(&mut *held).await.unwrap();
    let reads = (0..24).map(|_| {
        let call = Call::new("GET", "/v1/rules?domain=shop").token(&foe);
        async { server.send(call).await.status }
    });
    let (are_over, began) = (Cell::new(false), now());
    let reads = async {
        let statuses = futures_util::future::join_all(reads).await;
        are_over.set(true);
        statuses
    };
    let others = async {
        postgres.waits_for_lock("relation").await;
        for _ in 0..50 {
            let read = server.get("/v1/versions").await;
            assert_eq!(read.status, 200, "{read:?}");
        }
        assert!(!are_over.get(), "they waited for those of the token: {:?}", began.elapsed());
    };
    let (statuses, ()) = tokio::join!(reads, others);
    assert!(statuses.iter().all(|status| *status == 503), "{statuses:?}");
    // Three at a time, each for the 5 s of a statement, they would take 40 s.
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    held.rollback().await.unwrap();
    assert_eq!(server.send(Call::new("GET", "/v1/rules").token(&foe)).await.status, 200);
    server.stop().await;
}

#[tokio::test]
async fn the_drafts_of_a_tokens_domains_have_together_what_one_domain_may() {
    // One database, since 45 MB take their time.
    for place in [Place::postgres().await] {
        let server = place.serve().await;
        let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop,bank,card"];
        let own = token(&place, &create).await.unwrap();
        // 15 MB, of which the metadata is nearly all.
        let yaml = |domain: &str| {
            let text = "m".repeat(60_000);
            let rule = |at| format!("- {{key: k{at}, metadata: {{m: {text}}}}}\n");
            let rules: String = (0..250).map(rule).collect();
            format!("domain: {domain}\ndescriptors:\n{rules}")
        };
        let import = async |domain: &str, token: &str| {
            let call = Call::new("POST", "/v1/import").token(token);
            server.send(call.body("application/yaml", yaml(domain).as_bytes())).await
        };
        for domain in ["shop", "bank"] {
            let imported = import(domain, &own).await;
            assert_eq!(imported.status, 200, "{imported:?}");
        }
        let refused = import("card", &own).await;
        assert_eq!(refused.status, 409, "{refused:?}");
        assert!(refused.text.contains("the token's domains together"), "{refused:?}");
        // One that is for all domains has no share of its own, and what is less is allowed.
        assert_eq!(import("card", &server.token).await.status, 200);
        let less = Call::new("POST", "/v1/import").token(&own);
        let less = less.body("application/yaml", large("shop", 1).as_bytes());
        assert_eq!(server.send(less).await.status, 200);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_published_rules_of_a_tokens_domains_have_together_what_one_domain_may() {
    let place = Place::sqlite();
    let server = place.serve_with(|settings| settings.domain_bytes_max = 100_000).await;
    let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop,bank"];
    let own = token(&place, &create).await.unwrap();
    let import = async |domain: &str, rules: usize, token: &str| {
        let call = Call::new("POST", "/v1/import?publish=true").token(token);
        server.send(call.body("application/yaml", large(domain, rules).as_bytes())).await
    };
    assert_eq!(import("shop", 600, &own).await.status, 200);
    let refused = import("bank", 900, &own).await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text.contains("the token's domains together"), "{refused:?}");
    assert_eq!(import("bank", 900, &server.token).await.status, 200);
    // It has more than its share now, and may have less.
    assert_eq!(import("bank", 901, &own).await.status, 409);
    assert_eq!(import("bank", 800, &own).await.status, 200);
    server.stop().await;
}
