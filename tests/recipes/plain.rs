//! Envoy without a mesh: over TCP, on a Unix socket, and in the demo.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use tempfile::TempDir;

use crate::recipe::{Recipe, all_spellings, assert_quota, placed};
use crate::support::asked::Asked;
use crate::support::envoy::Envoy;
use crate::upstream;

#[tokio::test]
async fn plain_tcp() {
    limits_each_client(Recipe::start("plain-tcp", "ingress").await).await;
}

#[tokio::test]
async fn plain_uds() {
    limits_each_client(Recipe::start("plain-uds", "ingress").await).await;
}

/// Both recipes have the same rules: 5 requests an hour of each client, 3 of them for `/search`.
pub async fn limits_each_client(recipe: Recipe) {
    let other = Ipv4Addr::new(127, 0, 0, 2);
    let (of_client, of_both) = ("5, 5;w=3600", "3, 5;w=3600, 3;w=3600");
    for left in [2, 1, 0] {
        assert_quota(&recipe.get("/search", &[]).await, 200, of_both, left);
    }
    // The limit of all requests is not spent by a request that the other limit denies.
    assert_quota(&recipe.get("/search", &[]).await, 429, of_both, 0);
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get("/", &[]).await, status, of_client, left);
    }
    assert_quota(&recipe.get_from(other, "/").await, 200, of_client, 4);
    assert_quota(&recipe.get_from(other, "/search").await, 200, of_both, 2);
    let (ok, denied) = recipe.limits_spellings("/search", 3, &[], &all_spellings("/search")).await;
    recipe.end(7 + ok, 2 + denied).await;
}

#[tokio::test]
async fn the_demo_sends_one_path_for_each_spelling() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy/envoy.yaml");
    let demo = fs::read_to_string(demo).unwrap();
    // The demo's application is a listener of the same Envoy; the test has its own.
    let (listeners, clusters) = demo.split_once("  clusters:\n").unwrap();
    let demo = format!("{listeners}  clusters:\n{}", clusters.replace("9999}", "8000}"));
    let asked = Asked::default();
    let demo = placed(&demo, asked.serve().await, upstream::address());
    let envoy = Envoy::run(TempDir::new().unwrap(), &demo, 1, "ingress").await;
    envoy.healthy(2).await;

    let limited = "demo: path=/limited; remote_address=127.0.0.1";
    for spelling in all_spellings("/limited") {
        let status = envoy.get(&spelling, &[]).await.status;
        let expected = if status == 307 { vec![] } else { vec![limited.to_owned()] };
        assert_eq!((status == 200, asked.entries()), (status != 307, expected), "{spelling}");
    }
    envoy.stop().await;
}
