//! Connections instead of requests.

use std::net::{IpAddr, Ipv4Addr};

use crate::recipe::Recipe;
use crate::support::http::Client;
use crate::upstream::MARK;

#[tokio::test]
async fn network() {
    let recipe = Recipe::start("network", "database").await;
    // Connections that stay open, each with two requests of its protocol, which happens to be HTTP.
    let mut open = Vec::new();
    for (client, is_admitted) in
        [(1, true), (1, true), (1, true), (1, false), (2, true), (2, true), (3, false)]
    {
        let source = IpAddr::V4(Ipv4Addr::new(127, 0, 0, client));
        let mut client = Client::connect_from(source, recipe.envoy.ingress).await.unwrap();
        // Envoy closes a connection that is over a limit, without an answer.
        let answer = client.get("/", &[]).await;
        let answered = answer.as_ref().is_ok_and(|answer| answer.header(MARK).is_some());
        assert_eq!(answered, is_admitted, "from {source}: {answer:?}");
        if is_admitted {
            assert_eq!(client.get("/", &[]).await.unwrap().status, 200);
            open.push(client);
        }
    }
    assert_eq!(recipe.envoy.counter("ratelimit.database.cx_closed").await, 2);
    drop(open);
    recipe.end(5, 2).await;
}
