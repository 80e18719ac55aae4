//! Compares the decoder with prost: both read the same requests, and both refuse the same messages.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use proptest::prelude::*;
use prost::Message;

use super::super::*;

fn entry() -> impl Strategy<Value = descriptor_pb::rate_limit_descriptor::Entry> {
    (".{0,12}", ".{0,12}")
        .prop_map(|(key, value)| descriptor_pb::rate_limit_descriptor::Entry { key, value })
}

fn descriptor() -> impl Strategy<Value = descriptor_pb::RateLimitDescriptor> {
    let limit = proptest::option::of((any::<u32>(), 0..9_i32));
    let hits = proptest::option::of(any::<u64>());
    (proptest::collection::vec(entry(), 0..6), limit, hits, any::<bool>()).prop_map(
        |(entries, limit, hits, is_negative_hits)| {
            let limit = limit.map(|(requests_per_unit, unit)| {
                descriptor_pb::rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit }
            });
            let hits_addend =
                hits.map(|value| envoy_types::pb::google::protobuf::UInt64Value { value });
            descriptor_pb::RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
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

/// The request in prost's message, or the reason to refuse it.
fn decoded(sent: &pb::RateLimitRequest) -> Result<Request<'_>, DecodeError> {
    let mut request = Request {
        domain: &sent.domain,
        descriptors: Few::new(),
        hits_addend: sent.hits_addend.into(),
    };
    for (at, sent) in sent.descriptors.iter().enumerate() {
        let limit = match &sent.limit {
            None => None,
            Some(limit) => {
                let unit = Unit::from_number(limit.unit.into());
                let unit = unit.ok_or(DecodeError::Invalid(InvalidRequest::Unit(at)))?;
                Some(Limit::fixed_window(limit.requests_per_unit.into(), unit))
            }
        };
        let entries = sent.entries.iter().map(|it| Entry { key: &it.key, value: &it.value });
        request.descriptors.push(Descriptor {
            entries: entries.collect(),
            limit,
            hits_addend: sent.hits_addend.as_ref().map(|hits| hits.value),
            refund: sent.is_negative_hits,
        });
    }
    Ok(request)
}

/// Whether `bytes` are a request; both readers must agree.
fn agree(bytes: &[u8]) -> bool {
    let theirs = pb::RateLimitRequest::decode(bytes);
    let read = read(bytes);
    match &theirs {
        // This decoder may refuse a message before the rest of it is read.
        Err(error) => assert!(read.is_err(), "{read:?}, and prost says {error}"),
        Ok(theirs) => assert_eq!(read, decoded(theirs)),
    }
    read.is_ok()
}

proptest! {
    #[test]
    fn every_request_is_read_as_prost_reads_it(message in message()) {
        let units = message.descriptors.iter().filter_map(|it| it.limit.as_ref());
        let known = { units }.all(|limit| Unit::from_number(limit.unit.into()).is_some());
        prop_assert_eq!(agree(&message.encode_to_vec()), known);
    }

    #[test]
    fn damaged_requests_are_read_alike(
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
    fn any_bytes_are_read_alike(
        bytes in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        agree(&bytes);
    }

    #[test]
    fn a_message_in_two_parts_is_put_together(first in message(), second in message()) {
        let both = [first.encode_to_vec(), second.encode_to_vec()].concat();
        agree(&both);
    }
}

fn many(descriptors: usize, entries: usize) -> Vec<u8> {
    let entry = descriptor_pb::rate_limit_descriptor::Entry::default();
    let descriptor =
        descriptor_pb::RateLimitDescriptor { entries: vec![entry; entries], ..Default::default() };
    let descriptors = vec![descriptor; descriptors];
    pb::RateLimitRequest { descriptors, ..Default::default() }.encode_to_vec()
}

#[test]
fn as_many_descriptors_and_entries_as_may_be_are_read_and_one_more_is_refused() {
    assert!(agree(&many(DESCRIPTORS_MAX, ENTRIES_MAX)));
    for (message, fault) in [
        (many(DESCRIPTORS_MAX + 1, 1), InvalidRequest::Descriptors),
        (many(1, ENTRIES_MAX + 1), InvalidRequest::Entries(0)),
        ([many(3, 1), many(1, 10_000)].concat(), InvalidRequest::Entries(3)),
    ] {
        assert_eq!(read(&message), Err(DecodeError::Invalid(fault)));
    }
}

/// The rest is not read: it contains a different fault.
#[test]
fn a_message_is_refused_where_it_breaks_a_bound() {
    let tail = vec![0xff; 1 << 20];
    let descriptors = [[0x12, 0].repeat(DESCRIPTORS_MAX + 1), tail.clone()].concat();
    assert_eq!(read(&descriptors), Err(DecodeError::Invalid(InvalidRequest::Descriptors)));
    let mut entries = [0x0a, 0].repeat(ENTRIES_MAX + 1);
    entries.extend(&tail);
    let mut message = vec![0x12];
    prost::encoding::encode_varint(entries.len() as u64, &mut message);
    message.extend(&entries);
    assert_eq!(read(&message), Err(DecodeError::Invalid(InvalidRequest::Entries(0))));
}

#[test]
fn unknown_fields_are_skipped_whatever_they_are() {
    let good = many(1, 1);
    for unknown in [
        &[0x78, 1][..],
        &[0x79, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0x7a, 2, 1, 2],
        &[0x7d, 1, 2, 3, 4],
        &[0x7b, 0x78, 1, 0x7a, 1, 1, 0x7d, 1, 2, 3, 4, 0x83, 1, 0x84, 1, 0x7c],
    ] {
        assert!(agree(&[unknown, &good].concat()), "{unknown:?}");
        assert!(agree(&[&good, unknown].concat()), "{unknown:?}");
    }
    for faulty in [&[0x7b][..], &[0x7c], &[0x7b, 0x84, 1], &[0x7b, 0x7f], &[0x7b, 0x7a, 9]] {
        assert!(!agree(&[&good, faulty].concat()), "{faulty:?}");
    }
    assert!(!agree(&[0x7b; 10_000]));
}
