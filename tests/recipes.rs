//! Tests of the recipes in `envoy/recipes`: each starts a ratelease with the recipe's rules on a
//! Redis Cluster, a real Envoy with the recipe's bootstrap, and an upstream, and checks the
//! verdicts one by one. docs/recipes.md describes the recipes.
#![cfg(test)]
// Helpers outside of test functions may fail a test too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// `pub` means "for the other modules" here: nothing is exported from a test binary.
#![allow(unreachable_pub)]

/// Starts the processes that the tests talk to.
#[path = "it/support/mod.rs"]
mod support;

/// Reads YAML files and compares parts of them.
#[path = "recipes/objects.rs"]
mod objects;
/// Starts a recipe, and sends requests through it.
#[path = "recipes/recipe.rs"]
mod recipe;
/// The application behind Envoy.
#[path = "recipes/upstream.rs"]
mod upstream;

/// Contour, Emissary and kgateway.
#[path = "recipes/controllers.rs"]
mod controllers;
/// The scenarios that Envoy Gateway tests for global rate limits.
#[path = "recipes/envoy_gateway.rs"]
mod envoy_gateway;
/// Every recipe has its files, and the page names it.
#[path = "recipes/files.rs"]
mod files;
/// Istio, to a port and to a socket.
#[path = "recipes/istio.rs"]
mod istio;
/// Tokens of language models.
#[path = "recipes/llm.rs"]
mod llm;
/// Tools of agents.
#[path = "recipes/mcp.rs"]
mod mcp;
/// Connections instead of requests.
#[path = "recipes/network.rs"]
mod network;
/// Envoy without a mesh, over TCP and on a Unix socket.
#[path = "recipes/plain.rs"]
mod plain;
/// Other answers than 429, and headers of answers.
#[path = "recipes/replies.rs"]
mod replies;
/// Requests that are held instead of denied.
#[path = "recipes/tarpit.rs"]
mod tarpit;
/// Limits by user, plan and organisation.
#[path = "recipes/users.rs"]
mod users;
/// The recipes with the engine within Envoy.
#[path = "recipes/within_envoy.rs"]
mod within_envoy;
