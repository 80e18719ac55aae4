//! Envoy without a mesh, over TCP and on a Unix socket.

use std::net::Ipv4Addr;

use crate::recipe::{Recipe, assert_quota};

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
    recipe.end(7, 2).await;
}
