//! The scenarios that Envoy Gateway tests for global rate limits, with the filters, routes and
//! rules that it generates for them. docs/recipes.md lists them.

/// Rules that share counts, cost more than one, or only count.
#[path = "envoy_gateway/buckets.rs"]
mod buckets;
/// Rules that select requests.
#[path = "envoy_gateway/selectors.rs"]
mod selectors;
/// The configuration, from the policies.
#[path = "envoy_gateway/translation.rs"]
mod translation;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::recipe::{Headers, Recipe, assert_quota};
use crate::support::envoy::Verdicts;
use crate::support::http::{Answer, Client};

#[tokio::test]
async fn envoy_gateway_scenarios() {
    let mut gateway = Gateway::start().await;
    selectors::cidr_match(&mut gateway).await;
    selectors::cidr_invert_match(&mut gateway).await;
    selectors::cidr_invert_match_of_all(&mut gateway).await;
    selectors::method_match(&mut gateway).await;
    selectors::path_match(&mut gateway).await;
    selectors::header_match(&mut gateway).await;
    selectors::header_invert_match(&mut gateway).await;
    selectors::headers_disabled(&mut gateway).await;
    selectors::jwt_claims(&mut gateway).await;
    selectors::multiple_listeners(&mut gateway).await;
    selectors::headers_and_cidr_match(&mut gateway).await;
    buckets::usage(&mut gateway).await;
    buckets::shared_cidr_match(&mut gateway).await;
    buckets::shared_header_match_of_a_gateway(&mut gateway).await;
    buckets::shared_and_unshared_rules_merged(&mut gateway).await;
    buckets::shadow_mode(&mut gateway).await;
    selectors::query_parameters(&mut gateway).await;
    buckets::shared_with_cost(&mut gateway).await;
    let Verdicts { ok, over_limit, .. } = gateway.counted;
    gateway.recipe.end(ok, over_limit).await;
}

/// The recipe, and what Envoy had counted before the present scenario.
struct Gateway {
    recipe: Recipe,
    counted: Verdicts,
}

/// A request to one of the listeners.
#[derive(Clone, Copy)]
struct Request<'a> {
    listener: &'a str,
    host: &'a str,
    method: &'a str,
    path: &'a str,
    headers: Headers<'a>,
    client: Ipv4Addr,
}

// === impl Gateway ===

impl Gateway {
    async fn start() -> Self {
        let recipe = Recipe::start("envoy-gateway", "default/eg/http").await;
        Self { recipe, counted: Verdicts::default() }
    }

    async fn send(&self, request: Request<'_>) -> Answer {
        let Request { listener, host, method, path, headers, client } = request;
        let address: SocketAddr = self.recipe.envoy.listener(listener).await;
        let mut client = Client::connect_from(IpAddr::V4(client), address).await.unwrap();
        let headers = [&[("host", host)], headers].concat();
        client.send(method, path, &headers, "").await.unwrap()
    }

    /// Sends a request as often as the limit allows, each of them being counted, and once more.
    async fn exhausts(&self, request: Request<'_>, limit: u64) {
        let header = format!("{limit}, {limit};w=3600");
        for left in (0..limit).rev() {
            assert_quota(&self.send(request).await, 200, &header, left);
        }
        assert_quota(&self.send(request).await, 429, &header, 0);
    }

    /// Sends a request that no rule is for.
    async fn is_free(&self, request: Request<'_>) {
        let answer = self.send(request).await;
        assert_eq!((answer.status, answer.header("x-ratelimit-limit")), (200, None), "{answer:?}");
    }

    async fn status(&self, request: Request<'_>, status: u16) {
        let answer = self.send(request).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }

    /// Requires that Envoy has asked this often in the scenario, and had no error.
    #[track_caller]
    fn ends(&mut self, ok: u64, over_limit: u64) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.counted.ok += ok;
            self.counted.over_limit += over_limit;
            assert_eq!(self.recipe.envoy.verdicts().await, self.counted, "at {caller}");
        }
    }
}

// === impl Request ===

impl<'a> Request<'a> {
    /// A GET for `/` of a host of the listener of most scenarios.
    const fn of(host: &'a str) -> Self {
        let (listener, method, path) = ("default/eg/http", "GET", "/");
        Self { listener, host, method, path, headers: &[], client: Ipv4Addr::LOCALHOST }
    }

    /// A GET for a path of a listener that has all hosts.
    const fn on(listener: &'a str, path: &'a str) -> Self {
        Self { listener, path, ..Self::of("any.example.com") }
    }

    const fn with(self, headers: Headers<'a>) -> Self {
        Self { headers, ..self }
    }
}
