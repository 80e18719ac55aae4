//! Against prost: what both read is the same.

use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::grpc::wire::{self, pb};

fn entry() -> impl Strategy<Value = wire::descriptor_pb::rate_limit_descriptor::Entry> {
    (".{0,12}", ".{0,12}")
        .prop_map(|(key, value)| wire::descriptor_pb::rate_limit_descriptor::Entry { key, value })
}

fn descriptor() -> impl Strategy<Value = wire::descriptor_pb::RateLimitDescriptor> {
    let limit = proptest::option::of((any::<u32>(), 0..9_i32));
    let hits = proptest::option::of(any::<u64>());
    (proptest::collection::vec(entry(), 0..6), limit, hits, any::<bool>()).prop_map(
        |(entries, limit, hits, is_negative_hits)| {
            let limit = limit.map(|(requests_per_unit, unit)| {
                wire::descriptor_pb::rate_limit_descriptor::RateLimitOverride {
                    requests_per_unit,
                    unit,
                }
            });
            let hits_addend =
                hits.map(|value| envoy_types::pb::google::protobuf::UInt64Value { value });
            wire::descriptor_pb::RateLimitDescriptor {
                entries,
                limit,
                hits_addend,
                is_negative_hits,
            }
        },
    )
}

fn message() -> impl Strategy<Value = pb::RateLimitRequest> {
    (".{0,12}", proptest::collection::vec(descriptor(), 0..4), any::<u32>()).prop_map(
        |(domain, descriptors, hits_addend)| pb::RateLimitRequest {
            domain,
            descriptors,
            hits_addend,
        },
    )
}

/// What is plain here is what prost makes of it; the rest is prost's alone.
fn agree(bytes: &[u8]) -> bool {
    let Ok(read) = request(bytes) else { return false };
    let theirs = pb::RateLimitRequest::decode(bytes).expect("what is plain is a message");
    assert_eq!(Ok(read), wire::decode(&theirs));
    true
}

proptest! {
    #[test]
    fn every_request_is_read_as_prost_reads_it(message in message()) {
        let units = message.descriptors.iter().filter_map(|it| it.limit.as_ref());
        let known = { units }.all(|limit| Unit::from_number(limit.unit.into()).is_some());
        prop_assert_eq!(agree(&message.encode_to_vec()), known);
    }

    #[test]
    fn damaged_requests_are_read_alike_or_left_to_prost(
        message in message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut bytes = message.encode_to_vec();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            agree(&bytes);
            agree(&bytes[..at]);
        }
    }

    #[test]
    fn any_bytes_are_read_alike_or_left_to_prost(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        agree(&bytes);
    }

    #[test]
    fn a_message_in_two_parts_is_put_together(first in message(), second in message()) {
        let both = [first.encode_to_vec(), second.encode_to_vec()].concat();
        agree(&both);
    }
}

#[test]
fn bounds_are_left_to_whoever_tells_of_them() {
    let many = |descriptors, entries| {
        let entry = wire::descriptor_pb::rate_limit_descriptor::Entry::default();
        let descriptor = wire::descriptor_pb::RateLimitDescriptor {
            entries: vec![entry; entries],
            ..Default::default()
        };
        let descriptors = vec![descriptor; descriptors];
        pb::RateLimitRequest { descriptors, ..Default::default() }.encode_to_vec()
    };
    assert!(request(&many(DESCRIPTORS_MAX, ENTRIES_MAX)).is_ok());
    assert!(request(&many(DESCRIPTORS_MAX + 1, 1)).is_err());
    assert!(request(&many(1, ENTRIES_MAX + 1)).is_err());
}
