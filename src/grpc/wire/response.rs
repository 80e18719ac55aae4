//! The answer's messages, by hand: Envoy's as generated do not have `unit_multiplier` yet. Numbers
//! are those of `envoy/service/ratelimit/v3/rls.proto`; fields that ratelease never sets are left
//! out, which on the wire is the same.

use super::{HeaderValue, proto};

/// `RateLimitResponse`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::grpc) struct RateLimitResponse {
    /// A `Code`.
    #[prost(int32, tag = "1")]
    pub(super) overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    pub(super) statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    pub(super) response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, optional, tag = "6")]
    pub(super) dynamic_metadata: Option<proto::Struct>,
}

/// `RateLimitResponse.DescriptorStatus`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::grpc) struct DescriptorStatus {
    /// A `Code`.
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
    #[prost(message, optional, tag = "2")]
    pub(super) current_limit: Option<RateLimit>,
    #[prost(uint32, tag = "3")]
    pub(super) limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    pub(super) duration_until_reset: Option<proto::Duration>,
}

/// `RateLimitResponse.RateLimit`.
#[derive(Clone, PartialEq, prost::Message)]
pub(in crate::grpc) struct RateLimit {
    #[prost(uint32, tag = "1")]
    pub(super) requests_per_unit: u32,
    /// A `RateLimit.Unit`.
    #[prost(int32, tag = "2")]
    pub(super) unit: i32,
    #[prost(string, tag = "3")]
    pub(super) name: String,
    /// Units in a window, if more than one: field 4 of Envoy's pull request 47307. An Envoy that
    /// does not know it (1.40) skips it.
    #[prost(message, optional, tag = "4")]
    pub(super) unit_multiplier: Option<proto::UInt32Value>,
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
    use prost::Message;

    use super::*;

    fn response(unit_multiplier: Option<proto::UInt32Value>) -> RateLimitResponse {
        let limit =
            RateLimit { requests_per_unit: 10, unit: 2, name: "n".to_owned(), unit_multiplier };
        let status = DescriptorStatus {
            code: 2,
            current_limit: Some(limit),
            limit_remaining: 7,
            duration_until_reset: Some(proto::Duration { seconds: 9, nanos: 0 }),
        };
        let header = HeaderValue { key: "k".into(), value: "v".into(), ..Default::default() };
        let metadata = [("domain".to_owned(), proto::Value::default())].into();
        RateLimitResponse {
            overall_code: 1,
            statuses: vec![status, DescriptorStatus::default()],
            response_headers_to_add: vec![header],
            dynamic_metadata: Some(proto::Struct { fields: metadata }),
        }
    }

    #[test]
    fn without_a_multiplier_every_byte_is_what_envoys_messages_make() {
        let bytes = response(None).encode_to_vec();
        let read = pb::RateLimitResponse::decode(&*bytes).unwrap();
        assert_eq!(read.encode_to_vec(), bytes);
        let limit = read.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.requests_per_unit, limit.unit, &*limit.name), (10, 2, "n"));
        assert_eq!((read.overall_code, read.statuses[0].code), (1, 2));
        assert_eq!(read.statuses[0].limit_remaining, 7);
        assert_eq!(read.statuses[0].duration_until_reset.unwrap().seconds, 9);
        assert_eq!(read.response_headers_to_add[0].value, "v");
        assert!(read.dynamic_metadata.unwrap().fields.contains_key("domain"));
    }

    #[test]
    fn a_multiplier_is_skipped_by_who_does_not_know_it() {
        let with = response(Some(proto::UInt32Value { value: 300 })).encode_to_vec();
        let without = response(None).encode_to_vec();
        assert_eq!(
            pb::RateLimitResponse::decode(&*with).unwrap(),
            pb::RateLimitResponse::decode(&*without).unwrap()
        );
        // Field 4, three bytes: their field 1, the number 300.
        let multiplier = [0x22, 3, 0x08, 0xac, 0x02];
        assert_eq!(with.len(), without.len() + multiplier.len());
        assert!(with.windows(multiplier.len()).any(|bytes| bytes == multiplier));
    }
}
