//! Istio's sidecar, with ratelease on a port of the pod's loopback, and on a Unix socket; Istio's
//! gateway. `scripts/test-istio` has istiod make these configurations.

use std::net::Ipv4Addr;

use serde_json::Value;

use crate::objects::{all, documents, includes, items, text};
use crate::recipe::{Recipe, all_spellings, assert_quota};

#[tokio::test]
async fn istio_loopback() {
    limits_each_client(Recipe::start("istio-loopback", "virtualInbound").await).await;
}

#[tokio::test]
async fn istio_pipe() {
    limits_each_client(Recipe::start("istio-pipe", "virtualInbound").await).await;
}

#[tokio::test]
async fn istio_gateway() {
    limits_at_a_gateway(Recipe::start("istio-gateway", "0.0.0.0_80").await).await;
}

/// At a gateway a client cannot choose its address.
pub async fn limits_at_a_gateway(recipe: Recipe) {
    patches_are_in_the_bootstrap(&recipe);
    let shop = ("host", "shop.example.com");
    let (of_client, of_both) = ("4, 4;w=3600", "2, 4;w=3600, 2;w=3600");
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get("/export", &[shop]).await, status, of_both, left);
    }
    let claims = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| ("x-forwarded-for", it));
    for (claim, (status, left)) in claims.into_iter().zip([(200, 1), (200, 0), (429, 0)]) {
        assert_quota(&recipe.get("/", &[shop, claim]).await, status, of_client, left);
    }
    let (ok, denied) =
        recipe.limits_spellings("/export", 2, &[shop], &all_spellings("/export")).await;
    recipe.end(4 + ok, 2 + denied).await;
}

/// Both recipes of sidecars have the same rules: 4 requests an hour of each client, 2 of them for
/// `/export`.
pub async fn limits_each_client(recipe: Recipe) {
    patches_are_in_the_bootstrap(&recipe);
    let (of_client, of_both) = ("4, 4;w=3600", "2, 4;w=3600, 2;w=3600");
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get("/export", &[]).await, status, of_both, left);
    }
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get("/", &[]).await, status, of_client, left);
    }
    let other = Ipv4Addr::new(127, 0, 0, 2);
    assert_quota(&recipe.get_from(other, "/").await, 200, of_client, 3);
    let (ok, denied) = recipe.limits_spellings("/export", 2, &[], &all_spellings("/export")).await;
    recipe.end(5 + ok, 2 + denied).await;
}

/// The bootstrap has what Istio makes of each patch of the EnvoyFilter.
fn patches_are_in_the_bootstrap(recipe: &Recipe) {
    let bootstrap = recipe.bootstrap();
    let filters = documents(&recipe.file("envoyfilter.yaml"));
    let patches: Vec<_> =
        filters.iter().flat_map(|filter| items(&filter["spec"]["configPatches"])).collect();
    assert_eq!(patches.len(), 4);
    for patch in patches {
        let (operation, value) = (text(&patch["patch"]["operation"]), &patch["patch"]["value"]);
        let is_there = match (text(&patch["applyTo"]), operation) {
            ("CLUSTER", "ADD") => items(&bootstrap["static_resources"]["clusters"]).contains(value),
            ("HTTP_FILTER", "INSERT_BEFORE") => is_before_the_named(&bootstrap, patch),
            ("NETWORK_FILTER", "MERGE") => {
                let mut managers = all(&bootstrap, "filters").into_iter().flat_map(items);
                managers.any(|manager| includes(manager, value))
            }
            ("VIRTUAL_HOST", "MERGE") => {
                let name = &patch["match"]["routeConfiguration"]["vhost"]["name"];
                let hosts = all(&bootstrap, "virtual_hosts").into_iter().flat_map(items);
                hosts.filter(|host| host["name"] == *name).any(|host| includes(host, value))
            }
            other => panic!("an EnvoyFilter of another form: {other:?}"),
        };
        assert!(is_there, "not in the bootstrap: {patch}");
    }
}

/// Whether the patch's filter is directly before the one that it names.
fn is_before_the_named(bootstrap: &Value, patch: &Value) -> bool {
    let chain = &patch["match"]["listener"]["filterChain"];
    let next = &chain["filter"]["subFilter"]["name"];
    let filters = all(bootstrap, "http_filters").into_iter().map(items);
    filters.into_iter().any(|filters| {
        let pairs = || filters.windows(2);
        pairs().any(|pair| pair[0] == patch["patch"]["value"] && pair[1]["name"] == *next)
    })
}
