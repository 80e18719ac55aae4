//! The client side of Envoy's rate limit protocol. The only file of the tools that names Envoy's
//! types.

use bytes::Bytes;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value as PbValue, value::Kind};
use pb::rate_limit_response::{Code, DescriptorStatus, rate_limit::Unit as PbUnit};
use pb::rate_limit_service_client::RateLimitServiceClient;
use prost::{DecodeError, Message};
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Limit, Unit};
use serde::Serialize;
use serde_json::{Map, Value};
use tonic::Status;
use tonic::transport::Channel;

/// Maximum depth of metadata that is shown.
const METADATA_DEPTH_MAX: usize = 64;

/// A server's answer, as received and unchecked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Reply {
    /// `OK`, `OVER_LIMIT` or `UNKNOWN`; the number of a code without a name.
    pub(crate) code: String,
    /// One for each descriptor, if the server keeps the contract.
    pub(crate) statuses: Vec<DescriptorReply>,
    /// Headers for the client.
    pub(crate) response_headers: Vec<(String, String)>,
    /// Headers for the upstream.
    pub(crate) request_headers: Vec<(String, String)>,
    /// Dynamic metadata for Envoy.
    pub(crate) metadata: Option<Value>,
    /// The body of a local answer; empty for none.
    pub(crate) body: String,
}

/// The status of one descriptor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct DescriptorReply {
    /// As [`Reply::code`].
    pub(crate) code: String,
    /// The limit that applied, if any.
    pub(crate) limit: Option<ReplyLimit>,
    /// Tokens that remain.
    pub(crate) remaining: u32,
    /// Seconds until the limit is reset.
    pub(crate) reset_seconds: Option<f64>,
}

/// A limit, in the protocol's form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct ReplyLimit {
    /// Name of the rule; often empty.
    pub(crate) name: String,
    /// Number of requests.
    pub(crate) requests_per_unit: u32,
    /// Unit of the window.
    pub(crate) unit: String,
}

/// Sends one call over `channel`.
///
/// # Errors
/// The server's status if it is not OK, or the failure of the connection.
pub(super) async fn ask(channel: Channel, request: &Request<'_>) -> Result<Reply, Status> {
    let mut client = RateLimitServiceClient::new(channel);
    let response = client.should_rate_limit(encode(request)).await?;
    Ok(reply(response.into_inner()))
}

/// Returns the message of `request`, without the frame of gRPC.
pub(crate) fn message(request: &Request<'_>) -> Bytes {
    encode(request).encode_to_vec().into()
}

/// Reads the message of an answer.
///
/// # Errors
/// It is no such message.
pub(crate) fn read_reply(message: Bytes) -> Result<Reply, DecodeError> {
    pb::RateLimitResponse::decode(message).map(reply)
}

/// A request as received.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ReceivedRequest(pb::RateLimitRequest);

fn reply(response: pb::RateLimitResponse) -> Reply {
    Reply {
        code: code(response.overall_code),
        statuses: response.statuses.iter().map(descriptor_reply).collect(),
        response_headers: response.response_headers_to_add.into_iter().map(header).collect(),
        request_headers: response.request_headers_to_add.into_iter().map(header).collect(),
        metadata: response.dynamic_metadata.map(|fields| object(fields, 0)),
        body: String::from_utf8_lossy(&response.raw_body).into_owned(),
    }
}

fn encode(request: &Request<'_>) -> pb::RateLimitRequest {
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().map(|entry| {
            let (key, value) = (entry.key.to_owned(), entry.value.to_owned());
            descriptor_pb::rate_limit_descriptor::Entry { key, value }
        });
        let limit = descriptor.limit.map(|limit| {
            let unit = i32::from(limit.unit.number());
            let requests_per_unit = limit.requests_per_unit;
            descriptor_pb::rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit }
        });
        descriptor_pb::RateLimitDescriptor {
            entries: entries.collect(),
            limit,
            hits_addend: descriptor.hits_addend.map(|value| UInt64Value { value }),
            is_negative_hits: descriptor.refund,
        }
    });
    pb::RateLimitRequest {
        domain: request.domain.to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: request.hits_addend,
    }
}

fn code(code: i32) -> String {
    Code::try_from(code).map_or(code.to_string(), |code| code.as_str_name().to_owned())
}

fn descriptor_reply(status: &DescriptorStatus) -> DescriptorReply {
    let limit = status.current_limit.as_ref().map(|limit| ReplyLimit {
        name: limit.name.clone(),
        requests_per_unit: limit.requests_per_unit,
        unit: PbUnit::try_from(limit.unit)
            .map_or(limit.unit.to_string(), |unit| unit.as_str_name().to_owned()),
    });
    let reset = status.duration_until_reset.as_ref();
    DescriptorReply {
        code: code(status.code),
        limit,
        remaining: status.limit_remaining,
        reset_seconds: reset.map(|span| span.seconds as f64 + f64::from(span.nanos) / 1e9),
    }
}

fn header(HeaderValue { key, value, .. }: HeaderValue) -> (String, String) {
    (key, value)
}

fn object(fields: Struct, depth: usize) -> Value {
    let fields = fields.fields.into_iter();
    fields.map(|(name, value)| (name, json(value, depth + 1))).collect::<Map<_, _>>().into()
}

fn json(value: PbValue, depth: usize) -> Value {
    match value.kind {
        _ if depth > METADATA_DEPTH_MAX => Value::Null,
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(yes)) => yes.into(),
        Some(Kind::StructValue(fields)) => object(fields, depth),
        Some(Kind::ListValue(list)) => {
            list.values.into_iter().map(|value| json(value, depth + 1)).collect()
        }
    }
}

// === impl ReceivedRequest ===

impl ReceivedRequest {
    /// Reads the message of a request.
    ///
    /// # Errors
    /// It is no such message.
    pub(crate) fn read(message: Bytes) -> Result<Self, DecodeError> {
        pb::RateLimitRequest::decode(message).map(Self)
    }

    /// Returns the request as the rules take it. An override with a unit that does not exist is
    /// left out.
    pub(crate) fn request(&self) -> Request<'_> {
        let Self(pb::RateLimitRequest { domain, descriptors, hits_addend }) = self;
        let descriptors = descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter();
            let limit = descriptor.limit.as_ref().and_then(|limit| {
                let unit = Unit::from_number(limit.unit.into())?;
                Some(Limit::fixed_window(limit.requests_per_unit, unit))
            });
            Descriptor {
                entries: entries.map(|it| Entry { key: &it.key, value: &it.value }).collect(),
                limit,
                hits_addend: descriptor.hits_addend.as_ref().map(|hits| hits.value),
                refund: descriptor.is_negative_hits,
            }
        });
        Request { domain, descriptors: descriptors.collect(), hits_addend: *hits_addend }
    }
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn a_request_is_sent_with_all_that_it_holds() {
        let entries = smallvec![Entry { key: "k", value: "v" }, Entry { key: "l", value: "" }];
        let limit = Some(Limit::fixed_window(7, Unit::Week));
        let sent = Request {
            domain: "d",
            descriptors: smallvec![Descriptor { entries, limit, ..Descriptor::default() }],
            hits_addend: 3,
        };
        let sent = encode(&sent);
        assert_eq!((sent.domain.as_str(), sent.hits_addend), ("d", 3));
        let [descriptor] = &sent.descriptors[..] else { panic!("{sent:?}") };
        let entries = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value));
        assert_eq!(entries.collect::<Vec<_>>(), [("k", "v"), ("l", "")]);
        let limit = descriptor.limit.as_ref().expect("an override");
        assert_eq!((limit.requests_per_unit, limit.unit), (7, PbUnit::Week.into()));
    }

    #[test]
    fn a_request_that_is_received_is_the_one_that_was_sent() {
        let entries = smallvec![Entry { key: "k", value: "v" }];
        let limit = Some(Limit::fixed_window(7, Unit::Week));
        let of = |hits_addend, refund| Descriptor {
            entries: entries.clone(),
            limit,
            hits_addend,
            refund,
        };
        let sent = || {
            let descriptors = smallvec![of(Some(0), false), of(None, true)];
            Request { domain: "d", descriptors, hits_addend: 3 }
        };
        let received = ReceivedRequest::read(message(&sent())).unwrap();
        // As text: the compiler would want values that are compared to live equally long.
        assert_eq!(format!("{:?}", received.request()), format!("{:?}", sent()));
        assert!(ReceivedRequest::read(Bytes::from_static(b"\xff")).is_err());
        assert!(read_reply(Bytes::from_static(b"\xff")).is_err());
    }

    #[test]
    fn codes_without_a_name_are_numbers() {
        assert_eq!([code(0), code(1), code(2), code(9)], ["UNKNOWN", "OK", "OVER_LIMIT", "9"]);
    }

    #[test]
    fn metadata_is_shown_as_json_and_not_too_deep() {
        let leaf = PbValue { kind: Some(Kind::NumberValue(1.5)) };
        let of = |value| Struct { fields: [("a".to_owned(), value)].into_iter().collect() };
        assert_eq!(object(of(leaf.clone()), 0), serde_json::json!({"a": 1.5}));
        let deep =
            (0..1000).fold(leaf, |value, _| PbValue { kind: Some(Kind::StructValue(of(value))) });
        assert!(object(of(deep), 0).to_string().contains("null"));
    }
}
