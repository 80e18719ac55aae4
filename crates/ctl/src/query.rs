//! `ratectl query`: sends one rate limit call to a server of Envoy's protocol and prints the
//! answer.

use std::fmt::Write;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3 as descriptor_pb;
use envoy_types::pb::envoy::service::ratelimit::v3 as pb;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value as PbValue};
use pb::rate_limit_response::rate_limit::Unit as PbUnit;
use pb::rate_limit_response::{Code, DescriptorStatus};
use pb::rate_limit_service_client::RateLimitServiceClient;
use prost::{DecodeError, Message};
use ratelease_cli::client::{Target, TlsFlags};
use ratelease_cli::out::{CliError, CliResult, Completion, Out, OutFlags, Painter, Style};
use ratelease_cli::safe::Safe;
use ratelease_engine::time::Clock;
use ratelease_rules::parse_duration;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{Limit, Unit};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use tonic::Status;
use tonic::transport::Channel;

use crate::descriptor::DescriptorArg;

/// The protocol's name of a denial.
const OVER_LIMIT: &str = "OVER_LIMIT";

/// Sends the calls and prints the answers. A denial is a finding, and so is an answer that is
/// neither OK nor a denial.
pub fn run(flags: &QueryFlags, out: &mut Out) -> CliResult {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        CliError::new(format_args!("cannot start: {error}; raise the limit on open files"))
    })?;
    let answered = runtime.block_on(query(flags, out));
    if let Err(error) = &answered
        && flags.out.json
    {
        let target = flags.target.to_string();
        out.json(&json!({ "target": target, "error": error.to_string() }))?;
    }
    answered
}

async fn query(flags: &QueryFlags, out: &mut Out) -> CliResult {
    let tls = flags.tls.config()?;
    let request = flags.request();
    let channel = flags.target.connect(tls, flags.timeout).await?;
    let clock = Clock::start();
    let mut passed = 0;
    let mut denied = 0;
    for number in 1..=flags.repeat {
        let sent = clock.now();
        let reply = answer(flags, channel.clone(), &request).await?;
        let took = clock.now().since(sent);
        match reply.code.as_str() {
            "OK" => passed += 1,
            _ => denied += 1,
        }
        print(flags, (number, &reply, took), out)?;
        // Flushed so that each answer is shown when it arrives.
        out.flush()?;
        if out.is_closed() {
            break;
        }
    }
    if flags.repeat > 1 && !flags.out.json {
        out.line(format_args!("{passed} passed, {denied} denied"))?;
    }
    Ok(Completion::clean_if(denied == 0))
}

async fn answer(
    flags: &QueryFlags,
    channel: Channel,
    request: &Request<'_>,
) -> Result<Reply, CliError> {
    let QueryFlags { target, timeout: within, .. } = flags;
    match timeout(*within, ask(channel, request)).await {
        Ok(reply) => reply.map_err(|status| target.refused_or_http(&status)),
        Err(_) => Err(target.late(*within)),
    }
}

fn print(
    flags: &QueryFlags,
    (number, reply, took): (u32, &Reply, Duration),
    out: &mut Out,
) -> Result<(), CliError> {
    if flags.out.json {
        let mut line = json!(reply);
        line["target"] = flags.target.to_string().into();
        line["took_ms"] = (took.as_secs_f64() * 1e3).into();
        return out.json(&line);
    }
    if flags.repeat > 1 {
        return out.line(brief(number, reply, out.painter()));
    }
    out.line(full(&flags.descriptors, reply, took, out.painter()))
}

// === Flags ===
//
// The command line of `query`.

/// Maximum number of calls in one run.
const REPEAT_MAX: i64 = 1_000_000;

/// Maximum timeout.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

pub const NOTES: &str = "\
Each argument is one descriptor: key=value, further entries after commas. A backslash escapes
a comma, an equals sign or a backslash: path=/a\\,b.

Exit status: 0 the server answered OK, 1 OVER_LIMIT (of several calls: at least once), 2 it
cannot be called, or answered with an error.

Examples:
  ratectl query --domain demo generic_key=hello
  ratectl query --domain shop user_id=alice path=/checkout --hits 3 --json
  ratectl query --target ratelimit.example:8081 --ca ca.pem --domain shop plan=free,user_id=7";

/// Flags of `query`.
#[derive(Debug, Args)]
pub struct QueryFlags {
    /// gRPC address of the server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "TARGET", default_value = "127.0.0.1:8081",
          value_parser = Target::parse)]
    pub target: Target,
    /// Domain of the request
    #[arg(long, value_name = "NAME")]
    domain: String,
    /// Descriptors of the request: key=value,key=value
    #[arg(required = true, value_name = "DESCRIPTOR", value_parser = DescriptorArg::parse)]
    pub descriptors: Vec<DescriptorArg>,
    /// Hits to charge; 0 looks at what is left, and charges nothing
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    hits: u64,
    /// A limit that overrides the rules: COUNT/UNIT, as in 10/minute
    #[arg(long, value_name = "LIMIT", value_parser = limit)]
    limit: Option<Limit>,
    /// Number of calls, one after another
    #[arg(long, value_name = "COUNT", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=REPEAT_MAX))]
    pub repeat: u32,
    /// Maximum time for connecting, and for each answer, a duration
    #[arg(long, value_name = "SPAN", default_value = "5s", value_parser = parse_timeout)]
    pub timeout: Duration,
    #[command(flatten)]
    pub out: OutFlags,
    #[command(flatten)]
    pub tls: TlsFlags,
}

// === impl QueryFlags ===

impl QueryFlags {
    /// Returns the request to send.
    pub fn request(&self) -> Request<'_> {
        // In the request as a whole, 0 stands for the default of 1.
        let hits_addend = (self.hits == 0).then_some(self.hits);
        let descriptors = self.descriptors.iter().map(|typed| Descriptor {
            limit: self.limit,
            hits_addend,
            ..typed.descriptor()
        });
        Request { domain: &self.domain, descriptors: descriptors.collect(), hits_addend: self.hits }
    }
}

fn limit(text: &str) -> Result<Limit, String> {
    let parsed = text.split_once('/').and_then(|(count, unit)| {
        Some(Limit::fixed_window(count.parse::<u32>().ok()?.into(), Unit::parse(unit)?))
    });
    parsed.ok_or_else(|| {
        let units = Unit::ALL.map(|unit| unit.name().to_lowercase());
        format!("expected COUNT/UNIT, as in 10/minute, with a unit of {}", units.join(", "))
    })
}

fn parse_timeout(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).filter(|span| !span.is_zero() && *span <= TIMEOUT_MAX);
    span.ok_or_else(|| "expected a duration of at most 1h with its unit, as in 5s".to_owned())
}

// === Wire ===
//
// The client side of Envoy's rate limit protocol. The only file of the tools that names Envoy's
// types.

/// Maximum depth of metadata that is shown.
const METADATA_DEPTH_MAX: usize = 64;

/// A server's answer, as received and unchecked.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reply {
    /// `OK`, `OVER_LIMIT` or `UNKNOWN`; the number of a code without a name.
    pub code: String,
    /// One for each descriptor, if the server keeps the contract.
    pub statuses: Vec<DescriptorReply>,
    /// Headers for the client.
    pub response_headers: Vec<(String, String)>,
    /// Headers for the upstream.
    pub request_headers: Vec<(String, String)>,
    /// Dynamic metadata for Envoy.
    pub metadata: Option<Value>,
    /// The body of a local answer; empty for none.
    pub body: String,
}

/// The status of one descriptor.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DescriptorReply {
    /// The code of the descriptor, in the form of [`Reply::code`].
    pub code: String,
    /// The limit that applied, if any.
    pub limit: Option<ReplyLimit>,
    /// Tokens that remain.
    pub remaining: u32,
    /// Seconds until the limit is reset.
    pub reset_seconds: Option<f64>,
}

/// A limit, in the protocol's form.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplyLimit {
    /// Name of the rule; often empty.
    pub name: String,
    /// Number of requests.
    pub requests_per_unit: u32,
    /// Unit of the window.
    pub unit: String,
}

/// Sends one call over `channel`.
///
/// # Errors
/// The server's status if it is not OK, or the failure of the connection.
async fn ask(channel: Channel, request: &Request<'_>) -> Result<Reply, Status> {
    let mut client = RateLimitServiceClient::new(channel);
    let response = client.should_rate_limit(encode(request)).await?;
    Ok(reply(response.into_inner()))
}

/// Returns the message of `request`, without the frame of gRPC.
pub fn message(request: &Request<'_>) -> Bytes {
    encode(request).encode_to_vec().into()
}

/// Reads the message of an answer.
///
/// # Errors
/// It is no such message.
pub fn read_reply(message: Bytes) -> Result<Reply, DecodeError> {
    pb::RateLimitResponse::decode(message).map(reply)
}

/// A request as received.
#[derive(Debug, Clone, PartialEq)]
pub struct ReceivedRequest(pb::RateLimitRequest);

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
    // The request as a whole has 32 bits for its hits, a descriptor 64.
    let hits_addend = u32::try_from(request.hits_addend).ok();
    let of_each = if hits_addend.is_none() { Some(request.hits_addend) } else { None };
    let descriptors = request.descriptors.iter().map(|descriptor| {
        let entries = descriptor.entries.iter().map(|entry| {
            let key = entry.key.to_owned();
            let value = entry.value.to_owned();
            descriptor_pb::rate_limit_descriptor::Entry { key, value }
        });
        let limit = descriptor.limit.map(|limit| {
            let unit = i32::from(limit.unit.number());
            let requests_per_unit = u32::try_from(limit.requests_per_unit).unwrap_or(u32::MAX);
            descriptor_pb::rate_limit_descriptor::RateLimitOverride { requests_per_unit, unit }
        });
        descriptor_pb::RateLimitDescriptor {
            entries: entries.collect(),
            limit,
            hits_addend: descriptor.hits_addend.or(of_each).map(|value| UInt64Value { value }),
            is_negative_hits: descriptor.refund,
        }
    });
    pb::RateLimitRequest {
        domain: request.domain.to_owned(),
        descriptors: descriptors.collect(),
        hits_addend: hits_addend.unwrap_or_default(),
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
    pub fn read(message: Bytes) -> Result<Self, DecodeError> {
        pb::RateLimitRequest::decode(message).map(Self)
    }

    /// Returns the request as the rules take it. An override with a unit that does not exist is
    /// left out.
    pub fn request(&self) -> Request<'_> {
        let Self(pb::RateLimitRequest { domain, descriptors, hits_addend }) = self;
        let descriptors = descriptors.iter().map(|descriptor| {
            let entries = descriptor.entries.iter();
            let limit = descriptor.limit.as_ref().and_then(|limit| {
                let unit = Unit::from_number(limit.unit.into())?;
                Some(Limit::fixed_window(limit.requests_per_unit.into(), unit))
            });
            Descriptor {
                entries: entries.map(|it| Entry { key: &it.key, value: &it.value }).collect(),
                limit,
                hits_addend: descriptor.hits_addend.as_ref().map(|hits| hits.value),
                refund: descriptor.is_negative_hits,
            }
        });
        Request { domain, descriptors: descriptors.collect(), hits_addend: (*hits_addend).into() }
    }
}

// === Show ===
//
// Prints an answer as text.

/// Formats one of several calls on one line.
fn brief(number: u32, reply: &Reply, painter: Painter) -> String {
    let statuses = reply.statuses.iter().map(|status| match &status.limit {
        Some(_) => status.remaining.to_string(),
        None => "-".to_owned(),
    });
    let remaining = statuses.collect::<Vec<_>>().join(", ");
    format!("{number}: {}, remaining {remaining}", painted(&reply.code, painter))
}

/// Formats the whole answer.
fn full(descriptors: &[DescriptorArg], reply: &Reply, took: Duration, painter: Painter) -> String {
    let mut text =
        format!("{}  in {:.1} ms", painted(&reply.code, painter), took.as_secs_f64() * 1e3);
    for (at, status) in reply.statuses.iter().enumerate() {
        let of = descriptors.get(at).map_or_else(|| "?".to_owned(), name);
        // Writing to a string cannot fail.
        let _ = write!(text, "\n  {of}: {}", status_line(status, painter));
    }
    if reply.statuses.len() != descriptors.len() {
        let got = reply.statuses.len();
        let sent = descriptors.len();
        let _ = write!(text, "\n  {got} statuses for {sent} descriptors");
    }
    for (what, headers) in
        [("response", &reply.response_headers), ("request", &reply.request_headers)]
    {
        for (name, value) in headers {
            let _ = write!(text, "\n  {what} header {}: {}", Safe(name), Safe(value));
        }
    }
    if let Some(metadata) = &reply.metadata {
        let _ = write!(text, "\n  metadata {}", Safe(metadata));
    }
    if !reply.body.is_empty() {
        let _ = write!(text, "\n  body {:?}", reply.body);
    }
    text
}

fn name(typed: &DescriptorArg) -> String {
    let entries = typed.descriptor().entries;
    let entries: Vec<_> = entries.iter().map(|e| format!("{}={}", e.key, e.value)).collect();
    entries.join(",")
}

fn status_line(status: &DescriptorReply, painter: Painter) -> String {
    let code = painted(&status.code, painter);
    let Some(limit) = &status.limit else {
        return match status.remaining {
            u32::MAX => format!("{code}, unlimited"),
            _ => format!("{code}, no limit"),
        };
    };
    let requests = limit.requests_per_unit;
    // The protocol has no word for a limit without windows.
    let unit = match limit.unit.as_str() {
        "UNKNOWN" => "at a time".to_owned(),
        unit => format!("per {}", unit.to_lowercase()),
    };
    let mut text = format!("{code}, {} of {requests} {unit} left", status.remaining);
    if let Some(reset) = status.reset_seconds {
        let _ = write!(text, ", resets in {reset} s");
    }
    if !limit.name.is_empty() {
        let _ = write!(text, " (rule {})", Safe(&limit.name));
    }
    text
}

fn painted(code: &str, painter: Painter) -> String {
    let style = match code {
        "OK" => Style::Good,
        OVER_LIMIT => Style::Bad,
        _ => Style::Doubtful,
    };
    painter.paint(style, code).to_string()
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    #[test]
    fn a_limit_is_a_count_and_a_unit() {
        assert_eq!(limit("10/minute"), Ok(Limit::fixed_window(10, Unit::Minute)));
        assert_eq!(limit("0/DAY"), Ok(Limit::fixed_window(0, Unit::Day)));
        for bad in ["10", "10/", "/minute", "-1/minute", "10/fortnight", "10/unknown"] {
            assert!(limit(bad).is_err_and(|why| why.contains("second, minute")), "{bad}");
        }
    }

    #[test]
    fn a_timeout_is_above_zero() {
        assert_eq!(parse_timeout("20ms"), Ok(Duration::from_millis(20)));
        for bad in ["0", "0s", "5", "2h"] {
            assert!(parse_timeout(bad).is_err(), "{bad}");
        }
    }

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
        // The requests are compared as text: the compiler would want compared values to live
        // equally long.
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
