//! Limits by user, plan and organisation.

use std::net::Ipv4Addr;

use crate::recipe::{Recipe, assert_quota};

#[tokio::test]
async fn user_or_address() {
    limits_users_or_addresses(Recipe::start("user-or-address", "ingress").await).await;
}

pub async fn limits_users_or_addresses(recipe: Recipe) {
    let (of_user, of_address) = ("4, 4;w=3600", "2, 2;w=3600");
    for user in ["alice", "bob"] {
        let user = [("x-user-id", user)];
        for (status, left) in [(200, 3), (200, 2), (200, 1), (200, 0), (429, 0)] {
            assert_quota(&recipe.get("/", &user).await, status, of_user, left);
        }
    }
    let first = Ipv4Addr::new(127, 0, 0, 2);
    for (status, left) in [(200, 1), (200, 0), (429, 0)] {
        assert_quota(&recipe.get_from(first, "/").await, status, of_address, left);
    }
    let second = Ipv4Addr::new(127, 0, 0, 3);
    assert_quota(&recipe.get_from(second, "/").await, 200, of_address, 1);
    recipe.end(11, 3).await;
}

#[tokio::test]
async fn tiers() {
    limits_by_plan(Recipe::start("tiers", "ingress").await).await;
}

pub async fn limits_by_plan(recipe: Recipe) {
    for (plan, limit, passes) in [
        ("gold", "4, 4;w=3600;name=\"gold\"", 4),
        ("free", "2, 2;w=3600;name=\"free\"", 2),
        // Unknown plans count apart: each has the least limit.
        ("silver", "1, 1;w=3600;name=\"other\"", 1),
        ("bronze", "1, 1;w=3600;name=\"other\"", 1),
    ] {
        let request = [("x-plan", plan), ("x-user-id", "alice")];
        for left in (0..passes).rev() {
            assert_quota(&recipe.get("/", &request).await, 200, limit, left);
        }
        assert_quota(&recipe.get("/", &request).await, 429, limit, 0);
    }
    let other = [("x-plan", "free"), ("x-user-id", "bob")];
    assert_quota(&recipe.get("/", &other).await, 200, "2, 2;w=3600;name=\"free\"", 1);
    let staff = [("x-plan", "staff"), ("x-user-id", "alice")];
    assert_eq!(recipe.statuses("/", &staff, 20).await, [200; 20]);
    recipe.end(29, 4).await;
}

#[tokio::test]
async fn api_key_organisation() {
    limits_keys_and_organisations(Recipe::start("api-key-organisation", "ingress").await).await;
}

pub async fn limits_keys_and_organisations(recipe: Recipe) {
    // Envoy names first the limit of which the fewest requests are left.
    let limit = "3, 3;w=3600;name=\"key\", 5;w=3600;name=\"organisation\"";
    let key = async |organisation: &str, key: &str, status: u16, left: u64| {
        let request = [("x-organisation", organisation), ("x-api-key", key)];
        assert_quota(&recipe.get("/", &request).await, status, limit, left);
    };
    for left in [2, 1, 0] {
        key("acme", "first", 200, left).await;
    }
    // Denied by the key's limit: the organisation's has two left all the same.
    for _ in 0..3 {
        key("acme", "first", 429, 0).await;
    }
    let second = [("x-organisation", "acme"), ("x-api-key", "second")];
    assert_eq!(recipe.statuses("/", &second, 3).await, [200, 200, 429]);
    key("other", "first", 200, 2).await;
    recipe.end(6, 4).await;
}
