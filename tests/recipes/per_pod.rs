//! ratelease in each pod of Envoy Gateway's Envoys.

use serde_json::Value;

use crate::objects::{document, items, text};
use crate::recipe::{Recipe, assert_quota};

#[tokio::test]
async fn envoy_gateway_pod() {
    let recipe = Recipe::start("envoy-gateway-pod", "default/eg/http").await;
    let mut cluster = document(&recipe.file("unpatched.yaml"));
    for patch in items(&document(&recipe.file("envoypatchpolicy.yaml"))["spec"]["jsonPatches"]) {
        assert_eq!(patch["name"], cluster["name"]);
        apply(&mut cluster, &patch["operation"]);
    }
    let bootstrap = recipe.bootstrap();
    let clusters = items(&bootstrap["static_resources"]["clusters"]);
    assert!(clusters.contains(&cluster), "not in the bootstrap: {cluster}");

    for user in ["alice", "bob"] {
        for (status, left) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
            let answer = recipe.get("/", &[("x-user-id", user)]).await;
            assert_quota(&answer, status, "3, 3;w=3600", left);
        }
    }
    recipe.end(6, 2).await;
}

/// Applies an operation of JSON Patch, which is `replace` or `remove`.
fn apply(to: &mut Value, operation: &Value) {
    let path = text(&operation["path"]);
    match text(&operation["op"]) {
        "replace" => {
            let at = to.pointer_mut(path).unwrap_or_else(|| panic!("no {path} to replace"));
            *at = operation["value"].clone();
        }
        "remove" => {
            let (parent, name) = path.rsplit_once('/').expect("a path below the root");
            let parent = to.pointer_mut(parent).and_then(Value::as_object_mut);
            let removed = parent.and_then(|parent| parent.remove(name));
            assert!(removed.is_some(), "no {path} to remove");
        }
        other => panic!("another operation: {other}"),
    }
}
