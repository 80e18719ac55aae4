//! The recipes once more with the engine within Envoy, whose bootstrap is what `ratectl migrate
//! --to-module` makes of the recipe's: the same requests get the same answers. A recipe for
//! connections has no such form: the module is a filter of HTTP.

use crate::recipe::Recipe;
use crate::{controllers, istio, mcp, plain, replies, tarpit, users};

async fn within_envoy(name: &str) -> Recipe {
    Recipe::start_within_envoy(name, "ingress").await
}

#[tokio::test]
async fn plain_tcp() {
    plain::limits_each_client(within_envoy("plain-tcp").await).await;
}

#[tokio::test]
async fn plain_uds() {
    plain::limits_each_client(within_envoy("plain-uds").await).await;
}

#[tokio::test]
async fn istio_loopback() {
    let recipe = Recipe::start_within_envoy("istio-loopback", "virtualInbound").await;
    istio::limits_each_client(recipe).await;
}

#[tokio::test]
async fn istio_gateway() {
    let recipe = Recipe::start_within_envoy("istio-gateway", "0.0.0.0_80").await;
    istio::limits_at_a_gateway(recipe).await;
}

#[tokio::test]
async fn contour() {
    let recipe = Recipe::start_within_envoy("contour", "ingress_http").await;
    controllers::limits_as_contour(recipe).await;
}

#[tokio::test]
async fn emissary() {
    let recipe = Recipe::start_within_envoy("emissary", "emissary").await;
    controllers::limits_as_emissary(recipe).await;
}

#[tokio::test]
async fn kgateway() {
    let recipe = Recipe::start_within_envoy("kgateway", "listener~80").await;
    controllers::limits_as_kgateway(recipe).await;
}

#[tokio::test]
async fn user_or_address() {
    users::limits_users_or_addresses(within_envoy("user-or-address").await).await;
}

#[tokio::test]
async fn tiers() {
    users::limits_by_plan(within_envoy("tiers").await).await;
}

#[tokio::test]
async fn api_key_organisation() {
    users::limits_keys_and_organisations(within_envoy("api-key-organisation").await).await;
}

#[tokio::test]
async fn retry_after() {
    replies::says_when_to_retry(within_envoy("retry-after").await).await;
}

#[tokio::test]
async fn status_by_rule() {
    replies::denies_as_the_rule_says(within_envoy("status-by-rule").await).await;
}

#[tokio::test]
async fn tarpit_holds() {
    tarpit::holds_requests(within_envoy("tarpit").await).await;
}

#[tokio::test]
async fn mcp_tools() {
    mcp::limits_tools(within_envoy("mcp-tools").await).await;
}
