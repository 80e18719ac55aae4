//! Who may do what.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::people::{Person, run_sql, sign_in};
use super::support::{Answer, Call, Place, Server, places, rule};

/// Runs `ratelease-control token …` on the database of a place.
pub(crate) async fn token(place: &Place, args: &[&str]) -> Result<String, String> {
    place.token(args).await
}

async fn status(server: &Server, token: &str, method: &str, path: &str, body: &Value) -> u16 {
    let call = Call::new(method, path).token(token).json(body);
    let answer = server.send(call).await;
    if answer.status >= 400 {
        answer.fields(); // is a problem
    }
    answer.status
}

#[tokio::test]
async fn a_token_does_what_it_is_for_and_nothing_else() {
    for place in places().await {
        let server = place.serve().await;
        let (bank, _) = server.add(&rule("bank", "card", "", 5)).await;
        let bank = format!("/v1/rules/{}", bank["id"].as_str().unwrap());
        let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop"];
        let write = token(&place, &create).await.unwrap();
        let read = token(&place, &["create", "--name", "viewer"]).await.unwrap();
        let many = (0..=256).map(|at| format!("d{at}")).collect::<Vec<_>>().join(",");
        let refused = token(&place, &["create", "--name", "many", "--domains", &many]).await;
        assert_eq!(refused.unwrap_err(), "--domains: expected at most 256 domains");
        let pattern = token(&place, &["create", "--name", "team", "--domains", "team-*"]).await;
        let why = pattern.unwrap_err();
        assert!(why.contains("'team-*' has a '*'") && why.contains("name each domain"), "{why}");
        let shop = rule("shop", "user", "7", 5);
        let put = json!({"rate_limit": {"unlimited": true}});
        let domains = json!({"domains": ["bank"]});
        for (token, method, path, body, expected) in [
            (&write, "POST", "/v1/rules", &shop, 201),
            (&write, "POST", "/v1/rules", &rule("bank", "user", "7", 5), 403),
            (&write, "GET", &*bank, &Value::Null, 404),
            (&write, "PUT", &*bank, &put, 404),
            (&write, "DELETE", &*bank, &put, 404),
            (&write, "GET", &format!("{bank}/history"), &Value::Null, 404),
            (&write, "GET", "/v1/rules?domain=bank", &Value::Null, 403),
            (&write, "GET", "/v1/export?domain=bank", &Value::Null, 403),
            (&write, "POST", "/v1/publish", &domains, 403),
            (&write, "POST", "/v1/check", &domains, 403),
            (&write, "GET", "/v1/audit", &Value::Null, 403),
            (&read, "GET", &*bank, &Value::Null, 200),
            (&read, "POST", "/v1/rules", &rule("shop", "user", "8", 5), 403),
            (&read, "POST", "/v1/publish", &Value::Null, 403),
            (&read, "POST", "/v1/import", &Value::Null, 403),
        ] {
            let found = status(&server, token, method, path, body).await;
            assert_eq!(found, expected, "{method} {path}");
        }
        // Lists have what the token may see, and publishing takes what it may publish.
        let call = Call::new("GET", "/v1/rules").token(&write);
        assert_eq!(server.send(call).await.json()["rules"].as_array().unwrap().len(), 1);
        let published = server.send(Call::new("POST", "/v1/publish").token(&write)).await;
        assert_eq!(published.json()["domains"], json!(["shop"]), "{published:?}");
        let last = server.json("/v1/versions").await["versions"][0]["author"].clone();
        assert!(last.as_str().unwrap().starts_with("ci/"), "{last}");
        server.stop().await;
    }
}

/// What continuous integration does for a pull request.
#[tokio::test]
async fn a_token_that_may_read_checks_drafts_and_files_and_changes_nothing() {
    for place in places().await {
        let server = place.serve().await;
        server.add(&rule("shop", "user", "7", 5)).await;
        let create = ["create", "--name", "ci", "--domains", "shop"];
        let read = token(&place, &create).await.unwrap();
        let check = async |kind: &str, body: &str| {
            let call = Call::new("POST", "/v1/check").token(&read);
            server.send(call.body(kind, body.as_bytes())).await
        };
        let draft = check("application/json", "{}").await;
        assert_eq!(draft.status, 200, "{draft:?}");
        assert!(draft.json()["etag"].is_string() && draft.json()["rules"] == 1, "{draft:?}");
        let file = "domain: shop\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true}\n\
                    - key: b\n  rate_limit: {unlimited: true}\n";
        let found = check("application/yaml", file).await;
        assert_eq!((found.status, &found.json()["rules"]), (200, &json!(2)), "{found:?}");
        let added = found.json()["differences"][0]["rules"].clone();
        assert_eq!(added.as_array().unwrap().len(), 2, "{found:?}");
        assert!(found.json().get("etag").is_none(), "{found:?}");
        let many = json!({"files": [{"name": "shop.yaml", "yaml": file}]}).to_string();
        assert_eq!(check("application/json", &many).await.json(), found.json());
        let faulty = check("application/yaml", &file.replace("unlimited", "unlimted")).await;
        assert_eq!((faulty.status, faulty.fields().len()), (422, 4), "{faulty:?}");
        assert!(faulty.fields()[0].starts_with("check.yaml:"), "{faulty:?}");
        let other = check("application/yaml", &file.replace("domain: shop", "domain: bank")).await;
        assert_eq!(other.status, 403, "{other:?}");
        let both = json!({"domains": ["shop"], "files": []}).to_string();
        assert_eq!(check("application/json", &both).await.status, 422);
        let domains = server.json("/v1/domains").await;
        assert_eq!(domains["domains"][0]["rules"], 1, "{domains}");
        server.stop().await;
    }
}

#[tokio::test]
async fn without_a_valid_token_nothing_is_told() {
    for place in places().await {
        let server = place.serve().await;
        let made = token(&place, &["create", "--name", "x", "--access", "admin"]).await.unwrap();
        assert_eq!(status(&server, &made, "GET", "/v1/audit", &Value::Null).await, 200);
        let id = made.split('_').nth(1).unwrap();
        assert!(token(&place, &["list"]).await.unwrap().contains(id));
        assert!(!token(&place, &["list"]).await.unwrap().contains(&made[18..]));
        token(&place, &["revoke", id]).await.unwrap();
        assert!(token(&place, &["revoke", id]).await.is_err());
        let mut forged = server.token.clone();
        forged.replace_range(16..20, "AAAA");
        let expired = token(&place, &["create", "--name", "y", "--days", "0"]).await.unwrap();
        let long = "x".repeat(5000);
        for token in [&made, &forged, &expired, "", "rlc_", "rlc_x_y", "' OR 1=1--", &long] {
            let found = status(&server, token, "GET", "/v1/rules", &Value::Null).await;
            assert_eq!(found, 401, "{token}");
        }
        let bare = Call::new("GET", "/v1/rules").to(server.http).await.unwrap();
        assert_eq!(bare.status, 401);
        assert!(bare.header("www-authenticate").unwrap().starts_with("Bearer"), "{bare:?}");
        for open in ["/", "/healthz", "/metrics", "/openapi.json"] {
            let answer = Call::new("GET", open).to(server.http).await.unwrap();
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn the_first_token_is_shown_once_and_a_file_keeps_its_own() {
    let place = Place::sqlite();
    let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let start = async |file: Option<std::path::PathBuf>| {
        let settings = ratelease_control::settings::Settings {
            database: place.database(),
            http_listen: any,
            pods_listen: any,
            probe_listen: None,
            pods_tls: None,
            sign_in: None,
            token_file: file,
            selection: ratelease_control::Selection::default(),
            kubernetes_rules: None,
            push_bytes_max: 1 << 20,
            pod_memory: 64 << 20,
            domain_bytes_max: 1 << 20,
            token_bytes_max: 1 << 30,
            rates: ratelease_control::RateSettings::default(),
        };
        ratelease_control::Control::start(settings).await
    };
    let first = start(None).await.unwrap();
    assert!(first.first_token.as_ref().is_some_and(|it| it.starts_with("rlc_")));
    assert_eq!(start(None).await.unwrap().first_token, None);
    assert_eq!(start(Some(place.token_file())).await.unwrap().first_token, None);
    let kept = std::fs::read_to_string(place.token_file()).unwrap();
    let server = place.serve().await;
    assert_eq!(server.token, kept);
    assert_eq!(server.get("/v1/rules").await.status, 200);
    server.stop().await;
    for path in [place.token_file(), place.dir.path().join("rules.db")] {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{path:?} can be read by others");
    }
    std::fs::write(place.token_file(), "not a token").unwrap();
    let refused = start(Some(place.token_file())).await.err().unwrap().to_string();
    assert!(refused.contains("holds no token"), "{refused}");
}

#[tokio::test]
async fn a_revoked_token_of_a_file_stays_revoked_after_a_restart() {
    for place in places().await {
        let server = place.serve().await;
        let other = token(&place, &["create", "--name", "x", "--access", "admin"]).await.unwrap();
        let kept = server.token.clone();
        token(&place, &["revoke", kept.split('_').nth(1).unwrap()]).await.unwrap();
        server.stop().await;
        let server = place.serve().await;
        assert_eq!(server.token, kept, "the file has the same token");
        assert_eq!(status(&server, &kept, "GET", "/v1/audit", &Value::Null).await, 401);
        assert_eq!(status(&server, &other, "GET", "/v1/audit", &Value::Null).await, 200);
        // Removing the file makes another token, as the warning says.
        server.stop().await;
        std::fs::remove_file(place.token_file()).unwrap();
        let server = place.serve().await;
        assert_ne!(server.token, kept);
        assert_eq!(server.get("/v1/audit").await.status, 200);
        // A token of less access is not raised by being in the file.
        let read = token(&place, &["create", "--name", "viewer"]).await.unwrap();
        server.stop().await;
        std::fs::write(place.token_file(), &read).unwrap();
        let server = place.serve().await;
        assert_eq!(status(&server, &read, "GET", "/v1/audit", &Value::Null).await, 403);
        server.stop().await;
    }
}

#[tokio::test]
async fn every_call_of_the_openapi_document_exists_and_needs_a_token() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let document = server.json("/openapi.json").await;
    let mut calls = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, call) in methods.as_object().unwrap() {
            let method = method.to_uppercase();
            let request = Call::new(&method, &path.replace("{id}", "x"));
            let answer = request.to(server.http).await.unwrap();
            let is_public = call["security"] == json!([{}]);
            // No provider is configured here, where people could sign in.
            let is_absent = path.starts_with("/v1/sign-in");
            let expected = match (is_public, is_absent) {
                (true, true) => 404,
                (true, false) => 200,
                (false, _) => 401,
            };
            assert_eq!(answer.status, expected, "{method} {path}: {answer:?}");
            let is_kept = answer.header("cache-control");
            assert_eq!(is_kept.as_deref(), Some("no-store"), "{method} {path}");
            let described = call["responses"].as_object().unwrap();
            assert!(described.contains_key(&expected.to_string()), "{method} {path}");
            calls += 1;
        }
    }
    for path in ["/v1/rules", "/v1/token", "/v1/rules/x", "/unknown"] {
        let answer = server.get(path).await;
        assert_eq!(answer.header("cache-control").as_deref(), Some("no-store"), "{answer:?}");
    }
    assert!(calls >= 20, "only {calls} calls in {document}");
    // Each schema that is referred to is there.
    let text = document.to_string();
    let names = text.split("#/components/schemas/").skip(1).filter_map(|it| it.split('"').next());
    for name in names {
        assert!(document["components"]["schemas"][name].is_object(), "no schema {name}");
    }
    server.stop().await;
}

#[tokio::test]
async fn an_id_of_another_domain_is_answered_as_one_that_is_not_there() {
    for place in places().await {
        let server = place.serve().await;
        let (present, _) = server.add(&rule("bank", "card", "", 5)).await;
        let (removed, tag) = server.add(&rule("bank", "iban", "", 5)).await;
        let path = format!("/v1/rules/{}", removed["id"].as_str().unwrap());
        let remove = Call::new("DELETE", &path).header("if-match", &tag);
        assert_eq!(server.send(remove).await.status, 204);
        let create = ["create", "--name", "ci", "--access", "write", "--domains", "shop,default"];
        let token = token(&place, &create).await.unwrap();
        let put = json!({"rate_limit": {"unlimited": true}});
        let scoped = json!({"scope": "user", "max_requests": 5, "window_seconds": 60});
        for (method, path, body) in [
            ("GET", "/v1/rules/{id}", &Value::Null),
            ("PUT", "/v1/rules/{id}", &put),
            ("PUT", "/v1/rules/{id}?publish=true", &put),
            ("DELETE", "/v1/rules/{id}", &Value::Null),
            ("GET", "/v1/rules/{id}/history", &Value::Null),
            ("GET", "/rules/{id}", &Value::Null),
            ("PUT", "/rules/{id}", &scoped),
            ("DELETE", "/rules/{id}", &Value::Null),
        ] {
            let answer = async |id: &str| {
                let call = Call::new(method, &path.replace("{id}", id)).token(&token);
                let call = call.header("if-match", "*");
                let call = if body.is_null() { call } else { call.json(body) };
                let answer = server.send(call).await;
                (answer.status, answer.text.replace(id, "ID"))
            };
            let absent = answer("0000000000000000").await;
            assert_eq!(absent.0, 404, "{method} {path}: {absent:?}");
            for rule in [&present, &removed] {
                assert_eq!(answer(rule["id"].as_str().unwrap()).await, absent, "{method} {path}");
            }
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn a_token_that_is_revoked_while_its_request_is_under_way_writes_nothing() {
    for place in places().await {
        let server = place.serve().await;
        let made = token(&place, &["create", "--name", "x", "--access", "write"]).await.unwrap();
        let body = rule("shop", "user", "", 5).to_string();
        let mut stream = TcpStream::connect(server.http).await.unwrap();
        let head = format!(
            "POST /v1/rules HTTP/1.1\r\nhost: test\r\nconnection: close\r\nexpect: 100-continue\r\n\
             authorization: Bearer {made}\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The token was valid: without one, the body is not asked for.
        let mut asked = [0; 25];
        stream.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        token(&place, &["revoke", made.split('_').nth(1).unwrap()]).await.unwrap();
        stream.write_all(body.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
        assert_eq!(server.json("/v1/rules").await["rules"], json!([]));
        server.stop().await;
    }
}

#[tokio::test]
async fn an_administrator_lists_makes_and_revokes_tokens_by_the_api() {
    for place in places().await {
        let server = place.serve().await;
        let body = json!({"name": "ci", "access": "write", "domains": ["shop"], "days": 7});
        let call = || Call::new("POST", "/v1/tokens").header("idempotency-key", "k").json(&body);
        let made = server.send(call()).await;
        assert_eq!(made.status, 201, "{made:?}");
        let made = made.json();
        let ci = made["token"].as_str().unwrap();
        let own = server.send(Call::new("GET", "/v1/token").token(ci)).await.json();
        assert_eq!((&own["access"], &own["domains"]), (&json!("write"), &json!(["shop"])));
        // The token is not kept, not even for a repeat.
        let again = server.send(call()).await;
        assert_eq!((again.status, again.json()), (201, json!({"id": made["id"], "token": null})));
        let listed = server.json("/v1/tokens?limit=1").await;
        let first = &listed["tokens"][0];
        assert_eq!((&first["id"], &first["is_valid"]), (&made["id"], &json!(true)));
        let admin = server.token.split('_').nth(1).unwrap();
        assert_eq!(first["made_by"], admin);
        let secret = ci.splitn(3, '_').last().unwrap();
        assert!(secret.len() > 20 && !listed.to_string().contains(secret), "{listed}");
        let next = listed["next"].as_str().unwrap();
        let rest = server.json(&format!("/v1/tokens?before={next}")).await;
        assert_eq!(rest["tokens"][0]["id"], admin);
        let path = format!("/v1/tokens/{}", made["id"].as_str().unwrap());
        let refused = server.send(Call::new("DELETE", &path).token(ci)).await;
        assert_eq!(refused.status, 403);
        assert_eq!(server.send(Call::new("DELETE", &path)).await.status, 204);
        assert_eq!(server.send(Call::new("DELETE", &path)).await.status, 404);
        assert_eq!(server.send(Call::new("GET", "/v1/token").token(ci)).await.status, 401);
        server.stop().await;
    }
}

#[tokio::test]
async fn the_list_of_tokens_says_what_each_may_change() {
    for place in places().await {
        let server = place.serve().await;
        token(&place, &["create", "--name", "ci", "--access", "write", "--domains", "shop"])
            .await
            .unwrap();
        for (id, writable) in [("some", "'[\"shop\"]'"), ("all", "NULL"), ("former", "''")] {
            let sql = format!(
                "INSERT INTO tokens (id, name, hash, access, domains, created_at, issuer, subject, \
                 writable) VALUES ('{id}', 'Ann', '', 'write', NULL, 1, 'https://i', '{id}', \
                 {writable})"
            );
            run_sql(&place, sql).await;
        }
        let list = server.json("/v1/tokens").await;
        let of = |subject: &str| {
            let is = |it: &&Value| it["person"] == format!("https://i#{subject}");
            list["tokens"].as_array().unwrap().iter().find(is).unwrap().get("writable").cloned()
        };
        assert_eq!(of("some"), Some(json!(["shop"])));
        assert_eq!(of("all"), Some(Value::Null));
        assert_eq!(of("former"), None, "it is not known");
        let own = list["tokens"].as_array().unwrap().iter().find(|it| it["name"] == "ci").unwrap();
        assert_eq!(own["writable"], json!(["shop"]));
        server.stop().await;
    }
}

#[tokio::test]
async fn nobody_but_an_administrator_makes_tokens_and_faults_are_told_together() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let write = token(&place, &["create", "--name", "w", "--access", "write"]).await.unwrap();
    for access in ["read", "write", "admin"] {
        let body = json!({"name": "x", "access": access});
        assert_eq!(status(&server, &write, "POST", "/v1/tokens", &body).await, 403);
    }
    assert_eq!(status(&server, &write, "GET", "/v1/tokens", &Value::Null).await, 403);
    let body = json!({"name": "a/b", "access": "admin", "domains": ["shop"], "days": 0});
    let refused = server.post("/v1/tokens", &body).await;
    assert_eq!(
        (refused.status, refused.fields()),
        (422, ["domains", "name", "days"].map(String::from).to_vec())
    );
    server.stop().await;
}

#[tokio::test]
async fn a_revocation_ends_all_tokens_that_it_had_the_api_make() {
    for place in places().await {
        let server = place.serve_with(|it| it.sign_in = Some(sign_in())).await;
        let ann = Person::sign_in(&place, "Ann", "users/0123456789ab", "admin").await;
        let body = json!({"name": "x", "access": "admin"});
        let made = |it: Answer| {
            assert_eq!(it.status, 201, "{it:?}");
            let made = it.json();
            ["id", "token"].map(|field| made[field].as_str().unwrap().to_owned())
        };
        let by = async |token: &str| {
            made(server.send(Call::new("POST", "/v1/tokens").token(token).json(&body)).await)
        };
        let by_ann = async || made(server.send(ann.call("POST", "/v1/tokens").json(&body)).await);
        let [first, second] = [by_ann().await, by_ann().await];
        let third = by(&first[1]).await;
        let fourth = by(&third[1]).await;
        let state = async |token: &str| {
            server.send(Call::new("GET", "/v1/token").token(token)).await.status
        };
        for token in [&first, &second, &third, &fourth] {
            assert_eq!(state(&token[1]).await, 200);
        }
        // A token ends those that it made, and theirs, and no other one of the person.
        let revoke = async |id: &str| {
            server.send(Call::new("DELETE", &format!("/v1/tokens/{id}"))).await.status
        };
        assert_eq!(revoke(&first[0]).await, 204);
        for (token, expected) in [(&first, 401), (&second, 200), (&third, 401), (&fourth, 401)] {
            assert_eq!(state(&token[1]).await, expected);
        }
        let listed = server.json("/v1/tokens").await;
        let mut others = [&*third[0], &*fourth[0]];
        for item in listed["tokens"].as_array().unwrap() {
            let is_ended = [&first[0], &third[0], &fourth[0]].iter().any(|it| item["id"] == ***it);
            assert_eq!(item["is_valid"], !is_ended, "{item}");
        }
        others.sort_unstable();
        let action = &server.json("/v1/audit?limit=1").await["actions"][0];
        let expected = format!("{}, and what it had made: {}", first[0], others.join(", "));
        assert_eq!(
            (&action["action"], &action["subject"]),
            (&json!("token.revoke"), &json!(expected))
        );
        assert_eq!(revoke(&ann.id).await, 204);
        assert_eq!(state(&second[1]).await, 401);
        assert_eq!(server.send(ann.call("GET", "/v1/token")).await.status, 401);
        assert_eq!(state(&server.token).await, 200);
        // The command line too.
        let one = by(&server.token).await;
        let admin = server.token.split('_').nth(1).unwrap().to_owned();
        token(&place, &["revoke", &admin]).await.unwrap();
        assert_eq!(state(&one[1]).await, 401);
        server.stop().await;
    }
}
