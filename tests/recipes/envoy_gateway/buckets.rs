//! Rules that share counts, cost more than one, or only count.

use std::cell::Cell;
use std::time::Duration;

use super::{Gateway, Request};
use crate::recipe::{Headers, assert_quota};

const ONLY_ONE: Headers<'_> = &[("x-user-id", "one")];

/// Maximum time until a charge at the end of a request has been counted.
const CHARGED_MAX: Duration = Duration::from_secs(10);

/// A request is admitted while anything is left, and charged when it ends, by what its answer says.
pub async fn usage(gateway: &mut Gateway) {
    let request = Request::of("usage.example.com");
    let costs = |cost| [("x-user-id", "one"), ("x-answer-cost", cost)];
    let (ten, none) = (costs("10"), costs("0"));
    let mut passed = 0;
    for left in [21, 11, 1] {
        // The charge of the request before may still be under way; this one costs nothing.
        let header = "x-ratelimit-remaining";
        let expected = left.to_string();
        let asked = Cell::new(0);
        let is_charged = async || {
            asked.set(asked.get() + 1);
            gateway.send(request.with(&none)).await.header(header) == Some(&*expected)
        };
        let what = format!("counting {left} tokens as left");
        gateway.recipe.pod().process.until(&what, CHARGED_MAX, is_charged).await;
        assert_quota(&gateway.send(request.with(&ten)).await, 200, "21, 21;w=3600", left);
        passed += 1 + asked.get();
    }
    let mut denied = 0;
    let answer = loop {
        let answer = gateway.send(request.with(&none)).await;
        if answer.status == 429 {
            denied += 1;
            break answer;
        }
        passed += 1;
        assert!(passed < 1000, "the last charge was not counted");
    };
    assert_quota(&answer, 429, "21, 21;w=3600", 0);
    gateway.is_free(request.with(&[("x-user-id", "two")])).await;
    gateway.ends(passed, denied).await;
}

pub async fn shared_cidr_match(gateway: &mut Gateway) {
    let host = "shared-cidr.example.com";
    for (path, status) in
        [("/foo", 200), ("/bar", 200), ("/foo", 200), ("/bar", 429), ("/foo", 429)]
    {
        gateway.status(Request { path, ..Request::of(host) }, status).await;
    }
    gateway.ends(3, 2).await;
}

pub async fn shared_header_match_of_a_gateway(gateway: &mut Gateway) {
    let request = |path| Request::on("default/shared/http-8085", path);
    for (path, status) in
        [("/foo", 200), ("/bar", 200), ("/foo", 200), ("/bar", 429), ("/foo", 429)]
    {
        gateway.status(request(path).with(ONLY_ONE), status).await;
    }
    gateway.is_free(request("/foo").with(&[("x-user-id", "two")])).await;
    gateway.ends(3, 2).await;
}

/// Four rules of 3 requests an hour, of a route's policy and of its Gateway's, and one of 30 for
/// all requests of the Gateway.
pub async fn shared_and_unshared_rules_merged(gateway: &mut Gateway) {
    let request = |path| Request::on("default/merged/http-8087", path);
    let shared = [("/bar", 200), ("/foo", 200), ("/bar", 200), ("/foo", 429)];
    let unshared = ["/foo", "/bar"].map(|path| [200, 200, 200, 429].map(|status| (path, status)));
    let unshared = unshared.concat();
    for (user, answers) in
        [("one", &shared[..]), ("two", &unshared), ("three", &shared), ("four", &unshared)]
    {
        for (path, status) in answers {
            let headers = [("x-user-id", user)];
            gateway.status(request(path).with(&headers), *status).await;
        }
    }
    // The rule for all requests is asked first, in a call of its own, so that it counts all but the
    // one that the same call denies: 23.
    for left in (0..7).rev() {
        assert_quota(&gateway.send(request("/foo")).await, 200, "30, 30;w=3600", left);
    }
    assert_quota(&gateway.send(request("/bar")).await, 429, "30, 30;w=3600", 0);
    // 23 and 7 calls for all requests, and one more for each that
    // passed of users one, two and four.
    gateway.ends(23 + 7 + 3 + 6 + 6, 1 + 2 + 1 + 2 + 1).await;
}

pub async fn shadow_mode(gateway: &mut Gateway) {
    let request = Request::of("shadow.example.com");
    for left in [2, 1, 0, 0, 0] {
        assert_quota(&gateway.send(request).await, 200, "3, 3;w=3600", left);
    }
    gateway.ends(5, 0).await;
}

pub async fn shared_with_cost(gateway: &mut Gateway) {
    let request = |path| Request::on("default/cost/http-8086", path);
    let user = [("x-user-id", "cost-test")];
    for (path, status, left) in [("/foo", 200, 2), ("/bar", 200, 0), ("/bar", 429, 0)] {
        let answer = gateway.send(request(path).with(&user)).await;
        assert_quota(&answer, status, "4, 4;w=3600", left);
    }
    gateway.is_free(request("/foo").with(ONLY_ONE)).await;
    gateway.ends(2, 1).await;
}
