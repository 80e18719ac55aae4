//! Rules that select requests: by address, method, path, header, claim, listener or query.

use std::net::Ipv4Addr;

use super::{Gateway, Request};
use crate::recipe::{Headers, all_spellings, is_denied};

/// Tokens that the recipe's key has signed, for the claims `name: John Doe` and `name: Tom`.
const JOHN: &str = "Bearer eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCIsImtpZCI6InJlY2lwZSJ9.\
    eyJuYW1lIjoiSm9obiBEb2UifQ.0GFQ98_rMJ1cAy7qozQLTeCFJkI0qqLj6WmoAPxRtjqOB6maOnojijIMD0IGluqL\
    QLNvpW7TIUFvE5LF63MzBA";
const TOM: &str = "Bearer eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCIsImtpZCI6InJlY2lwZSJ9.\
    eyJuYW1lIjoiVG9tIn0.KDTbNIicIws5C6PoqXd86VuOxC_PJQwDRdU3fcnHZsh3p12Hl8tQaEMBTVS1mx18NloINT\
    Bejlle5uF2TVMFAw";

const ONE_ACME: Headers<'_> = &[("x-user-id", "one"), ("x-user-org", "acme")];
const ONLY_ONE: Headers<'_> = &[("x-user-id", "one")];

/// The address of a second client.
const SECOND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub async fn cidr_match(gateway: &mut Gateway) {
    let first = Request::of("cidr-match.example.com");
    gateway.exhausts(first, 3).await;
    // Each address has its own count.
    gateway.exhausts(Request { client: SECOND, ..first }, 3).await;
    // Two listeners on one port, which differ in their host.
    for host in ["app1.example.com", "app2.example.com"] {
        let listener = "default/hosts/http-1";
        gateway.exhausts(Request { listener, ..Request::of(host) }, 3).await;
    }
    gateway.ends(12, 4).await;
}

pub async fn cidr_invert_match(gateway: &mut Gateway) {
    let first = Request::of("cidr-invert.example.com");
    gateway.exhausts(first, 2).await;
    // Not distinct: all addresses have one count.
    gateway.status(Request { client: SECOND, ..first }, 429).await;
    gateway.ends(2, 2).await;
}

pub async fn cidr_invert_match_of_all(gateway: &mut Gateway) {
    for _ in 0..4 {
        gateway.is_free(Request::of("cidr-exempt.example.com")).await;
    }
    gateway.ends(0, 0).await;
}

pub async fn method_match(gateway: &mut Gateway) {
    let get = Request::of("method.example.com");
    gateway.exhausts(Request { method: "POST", ..get }, 3).await;
    // Both methods have one count.
    gateway.status(Request { method: "DELETE", ..get }, 429).await;
    gateway.is_free(get).await;
    gateway.ends(3, 2).await;
}

pub async fn path_match(gateway: &mut Gateway) {
    let path = |path| Request { path, ..Request::of("path.example.com") };
    gateway.exhausts(path("/get/specific-path"), 3).await;
    let mut denied = 1;
    let mut of_prefix = all_spellings("/get/specific-path");
    of_prefix.push("/get/specific-path/subpath".to_owned());
    for spelling in &of_prefix {
        denied += is_denied(&gateway.send(path(spelling)).await, spelling);
    }
    for other in ["/get/specific-path2", "/get/no-specific-path"] {
        gateway.is_free(path(other)).await;
    }
    gateway.ends(3, denied).await;
}

pub async fn header_match(gateway: &mut Gateway) {
    let request = Request::of("headers.example.com");
    gateway.exhausts(request.with(ONE_ACME), 3).await;
    gateway.is_free(request.with(ONLY_ONE)).await;
    gateway.ends(3, 1).await;
}

pub async fn header_invert_match(gateway: &mut Gateway) {
    let request = Request::of("headers-invert.example.com");
    for user in ["alice", "bob"] {
        gateway.exhausts(request.with(&[("x-user-name", user)]), 3).await;
    }
    for _ in 0..4 {
        gateway.is_free(request.with(&[("x-user-name", "admin")])).await;
    }
    gateway.ends(6, 2).await;
}

pub async fn headers_disabled(gateway: &mut Gateway) {
    let request = Request::on("default/quiet/http-8082", "/").with(ONE_ACME);
    for status in [200, 200, 200, 429] {
        let answer = gateway.send(request).await;
        assert_eq!(answer.status, status, "{answer:?}");
        let mut names = answer.headers.iter().map(|(name, _)| name);
        assert!(!names.any(|name| name.starts_with("x-ratelimit")), "{answer:?}");
    }
    gateway.is_free(request.with(ONLY_ONE)).await;
    gateway.ends(3, 1).await;
}

pub async fn jwt_claims(gateway: &mut Gateway) {
    let request = Request::of("jwt.example.com");
    gateway.exhausts(request.with(&[("authorization", JOHN)]), 3).await;
    for _ in 0..4 {
        gateway.is_free(request.with(&[("authorization", TOM)])).await;
    }
    gateway.status(request, 401).await;
    gateway.ends(3, 1).await;
}

pub async fn multiple_listeners(gateway: &mut Gateway) {
    for listener in ["default/two/http-8083", "default/two/http-8084"] {
        gateway.exhausts(Request::on(listener, "/"), 3).await;
    }
    gateway.ends(6, 2).await;
}

pub async fn headers_and_cidr_match(gateway: &mut Gateway) {
    let request = Request::of("headers-and-cidr.example.com");
    gateway.exhausts(request.with(ONE_ACME), 3).await;
    let second = Request { client: SECOND, ..request };
    gateway.exhausts(second.with(ONE_ACME), 3).await;
    gateway.is_free(request.with(ONLY_ONE)).await;
    gateway.is_free(request).await;
    gateway.ends(6, 2).await;
}

pub async fn query_parameters(gateway: &mut Gateway) {
    let path = |path| Request { path, ..Request::of("query.example.com") };
    gateway.exhausts(path("/get?user=alice"), 3).await;
    for other in ["/get?user=bob", "/get?name=alice", "/get"] {
        gateway.is_free(path(other)).await;
    }
    gateway.ends(3, 1).await;
}
