//! Messages of gRPC: our decoder against prost's.

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Limit, Unit};

use crate::run;

#[test]
fn what_is_read_at_once_is_what_prost_reads() {
    run::mutated(
        "request",
        &["\u{a}\u{1}d", "\u{12}\0", "\u{18}\u{1}", "\u{a}\0"],
        20_000,
        |message| {
            let theirs = RateLimitRequest::decode(message);
            let Ok(read) = ratelease_server::grpc::read(message) else { return false };
            assert_eq!(read, of(theirs.as_ref().expect("what is read is a message")));
            true
        },
    );
}

fn of(message: &RateLimitRequest) -> Request<'_> {
    let descriptors = message.descriptors.iter().map(|sent| {
        let limit = sent.limit.as_ref().map(|limit| {
            let unit = Unit::from_number(limit.unit.into()).expect("a unit that exists");
            Limit::fixed_window(limit.requests_per_unit.into(), unit)
        });
        let entries = sent.entries.iter().map(|it| Entry { key: &it.key, value: &it.value });
        let hits_addend = sent.hits_addend.as_ref().map(|hits| hits.value);
        let refund = sent.is_negative_hits;
        Descriptor { entries: entries.collect(), limit, hits_addend, refund }
    });
    let descriptors = descriptors.collect();
    Request { domain: &message.domain, descriptors, hits_addend: message.hits_addend.into() }
}
