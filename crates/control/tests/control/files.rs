//! Rule files, in and out; large and hostile ones.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

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
