//! Attacks on the API: by clients without a token, and by holders of a token of one domain.

use std::time::Duration;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::scene::{ATTACKED, Scene, is_full};
use crate::support::{Call, now};

/// Requests that are given up, and after what time: their work has begun.
const GIVEN_UP: usize = 24;
const GIVEN_UP_AFTER: Duration = Duration::from_millis(300);

/// Threads that may be at work for requests: those of four long ones, and a few for files.
const THREADS_MAX: usize = 8;

/// Connections without a request: more than the API has.
const SILENT: usize = 1200;

/// Exports of 5 MB that nobody reads, and by how much they may make the process grow.
const UNREAD: usize = 80;
const UNREAD_GROWTH_MAX: u64 = 192 << 20;

/// Bodies that do not arrive, of each of two tokens; and the time of a request beside them.
const TRICKLING: usize = 6;
const BESIDE_MAX: Duration = Duration::from_secs(10);

/// Maximum time of an honest request beside imports.
const BESIDE_IMPORTS_MAX: Duration = Duration::from_millis(1500);

/// Rules that one import of a token for some domains may add.
const IMPORTED_MAX: usize = 25_000;

/// A rule file of this many rules.
fn rules(count: usize) -> String {
    let rule =
        |at| format!("- key: k{at:06}\n  rate_limit: {{unit: hour, requests_per_unit: 9}}\n");
    let rules: String = (0..count).map(rule).collect();
    format!("domain: {ATTACKED}\ndescriptors:\n{rules}")
}

/// Requests that are given up leave no more threads at work than requests may have.
async fn give_up(scene: &mut Scene, call: impl Fn() -> Call<'static>) {
    let before = scene.process.threads();
    for _ in 0..GIVEN_UP {
        let call = call();
        scene.sent += call.bytes() as u64;
        // The client goes away while the server is at work.
        let _ = tokio::time::timeout(GIVEN_UP_AFTER, call.to(scene.process.http)).await;
    }
    let more = scene.process.threads().saturating_sub(before);
    scene.row.note(&format!("{more} more threads"));
    scene.row.holds(more <= THREADS_MAX, &format!("{more} threads are at work"));
}

#[tokio::test(flavor = "multi_thread")]
async fn c2a_imports_that_are_given_up() {
    let scene = Scene::begin("C2a", "imports that are given up").await;
    let yaml = rules(if is_full() { 200_000 } else { 20_000 });
    let token = scene.foe.clone();
    let call = || {
        let call = Call::new("POST", "/v1/import?publish=true").token(&token);
        call.body("application/yaml", yaml.as_bytes())
    };
    scene.attacked_by(async |scene: &mut Scene| give_up(scene, call).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c2b_published_changes_that_are_given_up() {
    // Pods with the default limit have no memory for so many rules of one domain.
    let flags = ["--pod-memory", "512Mi"];
    let scene = Scene::begin_with("C2b", "published changes that are given up", &flags).await;
    let token = scene.foe.clone();
    let yaml = rules(if is_full() { IMPORTED_MAX } else { 10_000 });
    let import = Call::new("POST", "/v1/import?publish=true").token(&token);
    let import = import.body("application/yaml", yaml.as_bytes());
    assert_eq!(import.to(scene.process.http).await.unwrap().status, 200);
    let rule = json!({"domain": ATTACKED, "entries": [{"key": "new"}]});
    let call = || Call::new("POST", "/v1/rules?publish=true").token(&token).json(&rule);
    scene.attacked_by(async |scene: &mut Scene| give_up(scene, call).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c3a_replays_that_fill_a_template_with_a_long_field() {
    let scene = Scene::begin("C3a", "a replay with long fields in long templates").await;
    let line = json!({"time": 1, "x": "x".repeat(60_000)}).to_string();
    let templates = vec![format!("k={}", "%x%%%".repeat(100)); 256];
    let body = json!({"log": line, "domain": ATTACKED, "descriptors": templates});
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let call = Call::new("POST", "/v1/replay").token(&scene.foe).json(&body);
            scene.sent += call.bytes() as u64;
            let answer = call.to(scene.process.http).await.unwrap();
            scene.row.holds(answer.status == 200, &format!("{answer:?}"));
        }
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c1a_tokens_that_are_not_valid() {
    let scene = Scene::begin("C1a", "tokens that are not valid").await;
    let attack = async |scene: &mut Scene| {
        let (http, end) = (scene.process.http, now() + scene.lasts());
        let guess = |at: usize| format!("{:.16}{at:04}{}", scene.foe, &scene.foe[20..]);
        let mut refused = 0_u64;
        let mut at = 0;
        while now() < end {
            let calls = (0..16).map(|_| {
                at += 1;
                Call::new("GET", "/v1/domains").token(&guess(at % 10_000)).to(http)
            });
            let answers = futures_util::future::join_all(calls).await;
            refused += answers.iter().flatten().filter(|it| it.status == 429).count() as u64;
            scene.sent += 16 * 200;
        }
        scene.row.line["refused"] = refused.into();
        scene.row.holds(refused > 0, "no guess was refused");
    };
    scene.attacked_by(attack).await;
}

/// A rule file of so many rules, each with 60 KB of metadata.
fn long_metadata(rules: usize) -> String {
    let rule = |at| {
        let text = "a".repeat(60_000);
        format!(
            "- key: k{at}\n  rate_limit: {{unit: hour, requests_per_unit: 9}}\n  \
             metadata: {{a: {text}}}\n"
        )
    };
    let yaml = (0..rules).map(rule).collect::<String>();
    format!("domain: {ATTACKED}\ndescriptors:\n{yaml}")
}

/// Imports this file with the attacker's token.
async fn import(scene: &Scene, yaml: &str) {
    let import = Call::new("POST", "/v1/import").token(&scene.foe);
    let import = import.body("application/yaml", yaml.as_bytes());
    assert_eq!(import.to(scene.process.http).await.unwrap().status, 200);
}

/// Keeps an HTTP/2 connection open without a request: only pings are answered.
async fn stay_silent(mut stream: TcpStream) {
    const PING: u8 = 6;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let begun = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    if stream.write_all(&begun).await.is_err() {
        return;
    }
    loop {
        let mut head = [0; 9];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        if stream.read_exact(&mut payload).await.is_err() {
            return;
        }
        if head[3] == PING && head[4] == 0 {
            head[4] = 1;
            let _ = stream.write_all(&[&head[..], &payload].concat()).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c6a_connections_that_answer_pings_and_ask_for_nothing() {
    let scene = Scene::begin("C6a", "connections that only answer pings").await;
    let attack = async |scene: &mut Scene| {
        let http = scene.process.http;
        let silent: Vec<_> = (0..SILENT)
            .map(|_| {
                tokio::spawn(async move {
                    loop {
                        // The next one is opened as soon as this one is closed.
                        match TcpStream::connect(http).await {
                            Ok(stream) => stay_silent(stream).await,
                            Err(_) => sleep(Duration::from_millis(20)).await,
                        }
                        sleep(Duration::from_millis(100)).await;
                    }
                })
            })
            .collect();
        sleep(scene.lasts()).await;
        scene.sent += SILENT as u64 * 33;
        silent.iter().for_each(tokio::task::JoinHandle::abort);
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c7a_exports_that_nobody_reads() {
    let scene = Scene::begin("C7a", "exports that nobody reads").await;
    import(&scene, &long_metadata(84)).await;
    let attack = async |scene: &mut Scene| {
        let (mut unread, mut growth) = (Vec::new(), 0);
        let request = format!(
            "GET /v1/export?domain={ATTACKED} HTTP/1.1\r\nhost: x\r\n\
             authorization: Bearer {}\r\n\r\n",
            scene.foe
        );
        for _ in 0..UNREAD {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            let mut stream = socket.connect(scene.process.http).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            scene.sent += request.len() as u64;
            // The answer has begun.
            let _ = stream.read(&mut [0; 1]).await;
            unread.push(stream);
            growth = growth.max(scene.growth());
        }
        scene.row.note(&format!("{} MiB more", growth >> 20));
        let holds = growth <= UNREAD_GROWTH_MAX;
        scene.row.holds(holds, &format!("unread answers took {} MiB", growth >> 20));
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c8a_bodies_that_do_not_arrive() {
    let scene = Scene::begin("C8a", "bodies that do not arrive").await;
    let tokens = [scene.foe.clone(), scene.another_foe().await];
    let attack = async |scene: &mut Scene| {
        let mut open = Vec::new();
        for token in tokens.iter().flat_map(|token| [token; TRICKLING]) {
            let mut stream = TcpStream::connect(scene.process.http).await.unwrap();
            let head = format!(
                "POST /v1/import HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\
                 content-length: 1000000\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).await.unwrap();
            scene.sent += head.len() as u64;
            open.push(stream);
        }
        sleep(Duration::from_millis(500)).await;
        let took = scene.honest_call("GET", "/v1/rollouts").await;
        scene.row.note(&format!("a list of rollouts took {} ms", took.as_millis()));
        scene
            .row
            .holds(took <= BESIDE_MAX, &format!("a list of rollouts beside them took {took:?}"));
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4a_searches_for_a_text_that_nearly_matches_everywhere() {
    let scene = Scene::begin("C4a", "searches that nearly match everywhere").await;
    // All that a domain may have: each rule's metadata is almost what is searched for.
    import(&scene, &long_metadata(250)).await;
    let path = format!("/v1/rules?domain={ATTACKED}&limit=1&q={}b", "a".repeat(127));
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let call = || Call::new("GET", &path).token(&scene.foe).to(scene.process.http);
            futures_util::future::join_all((0..24).map(|_| call())).await;
            scene.sent += 24 * 300;
        }
    };
    scene.attacked_by(attack).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c5a_imports_that_change_nothing() {
    let scene = Scene::begin("C5a", "imports that change nothing, side by side").await;
    let count = if is_full() { 30_000 } else { 20_000 };
    let yaml = rules(count);
    let imported = async |scene: &Scene| {
        let call = Call::new("POST", "/v1/import").token(&scene.foe);
        call.body("application/yaml", yaml.as_bytes()).to(scene.process.http).await.unwrap().status
    };
    // A part after the other: one import may add so many.
    for end in (IMPORTED_MAX..count).step_by(IMPORTED_MAX) {
        import(&scene, &rules(end)).await;
    }
    assert_eq!(imported(&scene).await, 200);
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let imports = (0..3).map(|_| imported(scene));
            let statuses = futures_util::future::join_all(imports).await;
            scene.sent += 3 * yaml.len() as u64;
            scene.row.holds(statuses == [200; 3], &format!("{statuses:?}"));
        }
    };
    scene.attacked_by(attack).await;
}

/// Imports that write as much as one may, and those that are published: each compiles and writes while
/// an honest change waits for its turn.
#[tokio::test(flavor = "multi_thread")]
async fn c10a_imports_that_change_all_rules_again_and_again() {
    let mut scene = Scene::begin("C10a", "imports that change all rules").await;
    scene.slowest_max = Some(BESIDE_IMPORTS_MAX);
    let tokens = [scene.foe.clone(), scene.foe_of("published").await];
    let attack = async |scene: &mut Scene| {
        let (http, end) = (scene.process.http, now() + scene.lasts());
        let imports = tokens.iter().enumerate().map(|(at, token)| async move {
            let count = if is_full() { [12_000, 5000] } else { [2000, 1000] }[at];
            let path = ["/v1/import", "/v1/import?publish=true"][at];
            let (mut sent, mut statuses) = (0, std::collections::BTreeMap::new());
            for limit in (1..9).cycle() {
                let yaml = rules(count).replace("unit: 9", &format!("unit: {limit}"));
                let yaml = yaml.replacen(ATTACKED, [ATTACKED, "published"][at], 1);
                let call = Call::new("POST", path).token(token);
                let answer = call.body("application/yaml", yaml.as_bytes()).to(http).await.unwrap();
                *statuses.entry(answer.status).or_insert(0) += 1;
                sent += yaml.len() as u64;
                if now() > end {
                    break;
                }
            }
            (sent, statuses)
        });
        for (sent, statuses) in futures_util::future::join_all(imports).await {
            scene.sent += sent;
            scene.row.note(&format!("{statuses:?}"));
        }
    };
    scene.attacked_by(attack).await;
}

/// Files of many small rules, each of which took 74 times its size.
#[tokio::test(flavor = "multi_thread")]
async fn c11a_imports_of_more_rules_than_a_pod_loads() {
    let scene = Scene::begin("C11a", "imports of 8 MB by three tenants").await;
    let tokens = [scene.foe.clone(), scene.foe_of("second").await, scene.foe_of("third").await];
    let domains = [ATTACKED, "second", "third"];
    let texts = domains.map(|domain| rules(130_000).replacen(ATTACKED, domain, 1));
    let attack = async |scene: &mut Scene| {
        let (http, end) = (scene.process.http, now() + scene.lasts());
        while now() < end {
            let imports = tokens.iter().zip(&texts).map(async |(token, yaml)| {
                let call = Call::new("POST", "/v1/import").token(token);
                let call = call.body("application/yaml", yaml.as_bytes());
                call.to(http).await.unwrap().status
            });
            let statuses = futures_util::future::join_all(imports).await;
            scene.sent += texts.iter().map(|text| text.len() as u64).sum::<u64>();
            scene.row.holds(statuses == [422; 3], &format!("{statuses:?}"));
        }
    };
    scene.attacked_by(attack).await;
}

/// A body of 0.4 MB that would take gigabytes: each leaf has the text of the key above it.
#[tokio::test(flavor = "multi_thread")]
async fn c9a_imports_of_a_long_key_above_many_rules() {
    let mut scene = Scene::begin("C9a", "imports of a long key above many rules").await;
    let leaves: String = (0..12_000).map(|n| format!("  - key: k{n}\n")).collect();
    let yaml = |domain: &str| {
        let key = "k".repeat(250_000);
        format!("domain: {domain}\ndescriptors:\n- key: {key}\n  descriptors:\n{leaves}")
    };
    let imported = async |scene: &Scene, yaml: &str| {
        let call = Call::new("POST", "/v1/import").token(&scene.foe);
        call.body("application/yaml", yaml.as_bytes()).to(scene.process.http).await.unwrap().status
    };
    // A token for another domain is refused before the file is read.
    let [own, other] = [ATTACKED, "another"].map(yaml);
    let status = imported(&scene, &other).await;
    scene.row.holds(status == 403, &format!("{status} for another domain"));
    let attack = async |scene: &mut Scene| {
        let end = now() + scene.lasts();
        while now() < end {
            let imports = (0..3).map(|_| imported(scene, &own));
            let statuses = futures_util::future::join_all(imports).await;
            scene.sent += 3 * own.len() as u64;
            scene.row.holds(statuses == [422; 3], &format!("{statuses:?}"));
        }
    };
    scene.attacked_by(attack).await;
}
