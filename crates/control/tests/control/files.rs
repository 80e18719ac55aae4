//! Rule files, in and out; large and hostile ones.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::support::rng::Rng;
use super::support::{Call, Place, now, places};

/// A rule file of this many rules.
pub(crate) fn large(domain: &str, rules: usize) -> String {
    let mut yaml = format!("domain: {domain}\ndescriptors:\n");
    for at in 0..rules {
        writeln!(
            yaml,
            "- key: user_id\n  value: user-{at:06}\n  rate_limit: {{unit: minute, \
             requests_per_unit: 100}}"
        )
        .unwrap();
    }
    yaml
}

#[tokio::test]
async fn every_rule_file_comes_back_as_it_is_imported() {
    for place in places().await {
        let server = place.serve().await;
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/rules");
        let mut files = Vec::new();
        for entry in fs::read_dir(root).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            files.push(json!({"name": name, "yaml": fs::read_to_string(path).unwrap()}));
        }
        assert!(files.len() >= 3);
        let import = server.post("/v1/import", &json!({"files": files})).await;
        assert_eq!(import.status, 200, "{import:?}");
        let exported = server.json("/v1/export").await;
        assert_eq!(exported["files"].as_array().unwrap().len(), files.len());
        assert_eq!(server.publish().await, 1);
        // What comes out goes in again, and changes nothing.
        let again = server.post("/v1/import", &exported).await;
        let domains = again.json()["domains"].as_array().unwrap().clone();
        assert!(domains.iter().all(|it| it["changed"] == 0), "{again:?}");
        let check = server.post("/v1/check", &Value::Null).await;
        assert_eq!(check.json()["differences"], json!([]), "{check:?}");
        assert_eq!(server.json("/v1/export?version=1").await, exported);
        server.stop().await;
    }
}

#[tokio::test]
async fn a_faulty_file_is_refused_with_each_place_and_nothing_of_it_is_kept() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let good = large("shop", 1);
    let bad = "domain: bank\ndescriptors:\n- key: a\n  ratelimit: {}\n- value: b\n";
    let files = json!({"files": [
        {"name": "shop.yaml", "yaml": good}, {"name": "bank.yaml", "yaml": bad}
    ]});
    let answer = server.post("/v1/import", &files).await;
    assert_eq!(answer.status, 422, "{answer:?}");
    let places = ["bank.yaml:4:3", "bank.yaml:5:3"];
    assert_eq!(answer.fields(), places, "{answer:?}");
    for body in [&b"domain: \xff\xfe\n"[..], b"", b"a: [", b"domain: shop\n---\n: : :"] {
        let call = Call::new("POST", "/v1/import").body("application/yaml", body);
        let answer = server.send(call).await;
        assert!(answer.status == 422 || answer.status == 200, "{answer:?}");
    }
    assert_eq!(server.json("/v1/rules").await["rules"], json!([]));
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let huge = vec![b'#'; 50 << 20];
    for path in ["/v1/import", "/v1/rules"] {
        let call = Call::new("POST", path).body("application/yaml", &huge);
        let answer = server.send(call).await;
        assert_eq!(answer.status, 413, "{answer:?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("send less"), "{answer:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn many_rules_are_imported_published_and_changed_alone() {
    let rules: usize = std::env::var("RATELEASE_CONTROL_RULES")
        .map_or(10_000, |number| number.parse().expect("a number"));
    for place in places().await {
        // 100 000 rules are 7 MB, more than one domain may have by default.
        let server = place.serve_with(|it| it.domain_bytes_max = it.push_bytes_max).await;
        let began = now();
        let imported = server.import(&large("shop", rules)).await;
        assert_eq!(imported["domains"][0]["changed"], rules, "{imported}");
        let import = began.elapsed();
        assert_eq!(server.publish().await, 1);
        eprintln!("{rules} rules: import {import:?}, publish {:?}", began.elapsed() - import);
        let list = server.json("/v1/rules?value=user-007777").await;
        let path = format!("/v1/rules/{}", list["rules"][0]["id"].as_str().unwrap());
        let put = Call::new("PUT", &path).header("if-match", "*").json(&json!({}));
        assert_eq!(server.send(put).await.status, 200);
        let report = server.post("/v1/check", &Value::Null).await.json();
        assert_eq!(report["differences"][0]["rules"].as_array().unwrap().len(), 1);
        server.stop().await;
    }
}

/// A rule file of rules with these numbers and limits.
fn numbered(rules: &[(u64, u64)]) -> String {
    let rule = |(number, limit): &(u64, u64)| {
        format!("- key: k{number}\n  rate_limit: {{unit: hour, requests_per_unit: {limit}}}\n")
    };
    let rules: String = rules.iter().map(rule).collect();
    let rules = if rules.is_empty() { " []".to_owned() } else { format!("\n{rules}") };
    format!("domain: shop\ndescriptors:{rules}")
}

#[tokio::test]
async fn each_import_leaves_the_rules_of_its_file_in_their_order_and_touches_no_others() {
    for place in places().await {
        let mut rng = Rng::new();
        let server = place.serve().await;
        let mut former: BTreeMap<String, Value> = BTreeMap::new();
        for round in 0..30 {
            let mut rules = Vec::new();
            for _ in 0..rng.below(12) {
                let rule = (rng.below(12), 1 + rng.below(2));
                if rules.iter().all(|(number, _)| *number != rule.0) {
                    rules.push(rule);
                }
            }
            let imported = server.import(&numbered(&rules)).await;
            let list = server.json("/v1/rules?domain=shop").await["rules"].clone();
            let list = list.as_array().unwrap();
            let keys: Vec<_> = list.iter().map(|it| it["entries"][0]["key"].clone()).collect();
            let expected: Vec<_> = rules.iter().map(|(number, _)| format!("k{number}")).collect();
            assert_eq!(json!(keys), json!(expected), "round {round}");
            let mut changed = former.len();
            let mut present = BTreeMap::new();
            for (rule, (_, limit)) in list.iter().zip(&rules) {
                assert_eq!(rule["rate_limit"]["requests_per_unit"], *limit, "round {round}");
                let id = rule["id"].as_str().unwrap().to_owned();
                match former.get(&id) {
                    Some(before) if before["rate_limit"] == rule["rate_limit"] => {
                        assert_eq!(before["revision"], rule["revision"], "round {round}");
                        changed -= 1;
                    }
                    Some(_) => {}
                    None => changed += 1,
                }
                present.insert(id, rule.clone());
            }
            assert_eq!(imported["domains"][0]["changed"], changed, "round {round}");
            former = present;
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn an_import_that_changes_nothing_writes_no_rule() {
    for place in places().await {
        let server = place.serve().await;
        let yaml = large("shop", 2000);
        server.import(&yaml).await;
        server.publish().await;
        let before = server.json("/v1/rules?limit=1000").await;
        server.import(&yaml).await;
        assert_eq!(server.json("/v1/rules?limit=1000").await, before, "positions and revisions");
        assert_eq!(server.json("/v1/domains").await["domains"][0]["is_changed"], false);
        // One rule more is one row more, wherever it stands.
        let more = yaml.replacen("- key", "- key: new\n- key", 2).replacen("- key: new\n", "", 1);
        server.import(&more).await;
        let after = server.json("/v1/rules?limit=1000").await;
        let of = |list: &Value, at: usize| list["rules"][at].clone();
        assert_eq!(of(&after, 1)["entries"][0]["key"], "new");
        assert_eq!((of(&after, 0), of(&after, 2)), (of(&before, 0), of(&before, 1)));
        server.stop().await;
    }
}

#[tokio::test]
async fn all_domains_are_exported_as_one_archive_whatever_their_names() {
    let place = Place::sqlite();
    let server = place.serve().await;
    let long = "x".repeat(1000);
    for domain in ["shop", "../../etc/passwd", ".hidden", "\u{fc}ber/den", &long] {
        let yaml = large("shop", 1).replace("domain: shop", &format!("domain: {}", json!(domain)));
        server.import(&yaml).await;
    }
    let answer = server.get("/v1/export?format=tar").await;
    assert_eq!(answer.header("content-type").unwrap(), "application/x-tar");
    let file = place.dir.path().join("rules.tar");
    fs::write(&file, &answer.text).unwrap();
    let list = std::process::Command::new("tar").arg("tf").arg(&file).output().unwrap();
    let names = String::from_utf8(list.stdout).unwrap();
    let names: Vec<_> = names.lines().collect();
    assert_eq!(names[..3], ["%2E.%2F..%2Fetc%2Fpasswd.yaml", "%2Ehidden.yaml", "shop.yaml"]);
    assert!(names[3].starts_with("xxx") && names[3].len() == 222, "{names:?}");
    assert_eq!(names[4..], ["%C3%BCber%2Fden.yaml"]);
    let out = std::process::Command::new("tar").args(["xOf"]).arg(&file).arg("shop.yaml").output();
    let text = String::from_utf8(out.unwrap().stdout).unwrap();
    assert_eq!(text, server.get("/v1/export?domain=shop").await.text);
    assert_eq!(server.get("/v1/export?format=zip").await.status, 400);
    server.stop().await;
}
