//! What Envoy hands the module, through its hooks: configurations of filters, routes and the
//! extension, which are refused or made, and streams of those that are made.

use ratelease::RateleaseModule;
use ratelease_envoy_abi::fake_host::{
    FakeConfig, FakeExtension, FakeRoute, FakeStream, set_validation_mode,
};
use ratelease_envoy_abi::panics;

use crate::run;

ratelease_envoy_abi::fake_host!();

/// Runs `make` on mutations. A panic is one although the hook has caught it. No engine is started.
fn without_panics(name: &str, words: &'static [&'static str], make: impl Fn(&[u8]) -> bool) {
    set_validation_mode(true);
    run::mutated(name, words, 5_000, |bytes| {
        let before = panics();
        let is_made = make(bytes);
        assert_eq!(panics(), before, "a hook has caught a panic");
        is_made
    });
}

#[test]
fn a_configuration_of_a_filter_is_refused_or_makes_filters() {
    without_panics("filter", &["\u{a}\u{4}shop", "\u{1a}\u{4}both", "\u{20}\u{1}"], |bytes| {
        let Some(config) = FakeConfig::<RateleaseModule>::new(bytes) else { return false };
        let running = config.begin(FakeStream::with(&[("x-user", "a")]));
        running.request_headers();
        running.response_headers();
        running.complete();
        true
    });
}

#[test]
fn a_configuration_of_a_route_is_refused_or_made() {
    let words = &["\u{1a}\u{4}\u{1a}\u{2}\u{22}\0", "(?i)[^a-z\\d]", "%REQ(a)%", "\u{2a}\u{3}"];
    without_panics("actions", words, |bytes| FakeRoute::<RateleaseModule>::new(bytes).is_some());
}

#[test]
fn settings_of_the_extension_are_refused_or_read() {
    let words = &["\"PORT\":", "\"REDIS_URL\":", "\"--rules\":", "null", "[", "{", "true"];
    without_panics("extension", words, |bytes| {
        let extension = FakeExtension::<RateleaseModule>::new(bytes);
        extension.is_some_and(|it| it.admin(bytes) == 503)
    });
}
