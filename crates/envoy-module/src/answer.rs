//! The answer that a stream gets for a verdict: as Envoy's rate limit filter gives it.

use envoy_types::pb::google::protobuf as pb;
use prost::Message;
use ratelease_engine::verdict::{Code, Status};
use ratelease_envoy_abi::{Headers, Stream};
use ratelease_rules::request::Few;
use ratelease_server::request::RequestError;
use ratelease_server::service::{Answer, quoted};
use serde_json::{Map, Value};
use smallvec::SmallVec;

use crate::actions::RateLimitHeaders;
use crate::config::{AddedHeader, Counters, Existing, FilterConfig};

/// The effects of an answer on its stream, without references to the answer.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    /// Whether a limit is exceeded.
    pub is_over: bool,
    /// Headers of the response, whatever becomes of the request.
    pub headers: Vec<(String, String)>,
    /// Seconds until the limits that were exceeded have reset.
    pub retry_after: Option<u64>,
    /// Dynamic metadata, as a serialized struct.
    pub metadata: Option<Vec<u8>>,
    /// Descriptors that have taken slots, by their indexes.
    pub slots: SmallVec<[usize; 2]>,
    /// Descriptors that may hold tokens until their cost is known, by their indexes.
    pub held: SmallVec<[usize; 2]>,
}

/// How the descriptors of a request show in headers.
#[derive(Debug, Clone, Default)]
pub struct Shown {
    /// The headers that each descriptor asks for. Empty if all descriptors inherit from the filter.
    pub each: Few<RateLimitHeaders>,
    /// Whether the filter's configuration asks for headers of draft 03.
    pub by_filter: bool,
}

/// The state of a request after its verdict.
pub enum Concluded<'h, R> {
    /// The request passes, and its stream goes on.
    Passes(Stream<'h, R>),
    /// The request has been answered.
    Answered,
}

/// Response code details of a denial, as Envoy's filter names it.
const DENIED: &str = "request_rate_limited";

/// Response code details of a request that failed, as Envoy's filter names it.
const FAILED: &str = "rate_limiter_error";

/// The flag of a denied request, as Envoy's filter sets it; a module has custom flags only.
const DENIED_FLAG: &str = "RL";

/// The flag of a request that failed.
const FAILED_FLAG: &str = "RLSE";

/// The gRPC status of denials by default.
const UNAVAILABLE: &str = "14";

/// The gRPC status of denials under `rate_limited_as_resource_exhausted`.
const RESOURCE_EXHAUSTED: &str = "8";

// === impl Outcome ===

impl Outcome {
    /// Translates `answer` for a stream whose descriptors show as `shown` says.
    pub fn of(answer: &Answer<'_>, shown: &Shown) -> Self {
        let Answer { verdict, headers } = answer;
        let is_over = verdict.code == Code::OverLimit;
        let mut all = x_ratelimit(&verdict.statuses, shown);
        all.extend(headers.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.clone())));
        let (mut slots, mut held) = (SmallVec::new(), SmallVec::new());
        let statuses = verdict.statuses.iter().enumerate().filter(|_| !is_over);
        for (at, applied) in statuses.filter_map(|(at, status)| Some((at, status.limit?))) {
            if !applied.limit.algorithm.has_window() {
                slots.push(at);
            } else if applied.rule.is_some_and(|rule| rule.hold.is_some()) {
                held.push(at);
            }
        }
        Self {
            is_over,
            headers: all,
            retry_after: is_over.then(|| verdict.retry_after_seconds()),
            metadata: verdict.metadata.as_ref().map(|fields| structure(fields).encode_to_vec()),
            slots,
            held,
        }
    }
}

/// The X-RateLimit headers of draft 03. They describe the limit with the fewest tokens among the
/// limits of the descriptors that show; without such a limit there are no headers.
fn x_ratelimit(statuses: &[Status<'_>], shown: &Shown) -> Vec<(String, String)> {
    let is_shown = |at: usize| match shown.each.get(at) {
        None | Some(RateLimitHeaders::Inherit) => shown.by_filter,
        Some(RateLimitHeaders::Off) => false,
        Some(RateLimitHeaders::Draft03) => true,
    };
    if !shown.by_filter && shown.each.is_empty() {
        return Vec::new();
    }
    let shown = statuses.iter().enumerate().filter(|(at, _)| is_shown(*at));
    let limited: Few<_> = shown.filter_map(|(_, it)| it.limit.map(|limit| (it, limit))).collect();
    let Some((status, applied)) = limited.iter().min_by_key(|(status, _)| status.remaining) else {
        return Vec::new();
    };
    let mut limit = applied.limit.requests_per_unit.to_string();
    for (_, applied) in &limited {
        if applied.limit.window_unit().is_none() {
            continue;
        }
        let (requests, window) = (applied.limit.requests_per_unit, applied.limit.window_seconds());
        limit += &format!(", {requests};w={window}");
        if let Some(rule) = applied.rule.filter(|rule| !rule.name.is_empty()) {
            limit += &format!(";name={}", quoted(&rule.name));
        }
    }
    vec![
        ("x-ratelimit-limit".to_owned(), limit),
        ("x-ratelimit-remaining".to_owned(), status.remaining.to_string()),
        ("x-ratelimit-reset".to_owned(), status.reset_seconds().unwrap_or_default().to_string()),
    ]
}

fn structure(fields: &Map<String, Value>) -> pb::Struct {
    let fields = fields.iter().map(|(name, it)| (name.clone(), value(it)));
    pb::Struct { fields: fields.collect() }
}

/// The depth is bounded when rules are read.
fn value(of: &Value) -> pb::Value {
    use pb::value::Kind;
    let kind = match of {
        Value::Null => Kind::NullValue(0),
        Value::Bool(is) => Kind::BoolValue(*is),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(values) => {
            Kind::ListValue(pb::ListValue { values: values.iter().map(value).collect() })
        }
        Value::Object(fields) => Kind::StructValue(structure(fields)),
    };
    pb::Value { kind: Some(kind) }
}

/// Applies `outcome` to `stream`. Headers for the response of a request that passes are added to
/// `response`.
pub fn conclude<'h, R>(
    config: &FilterConfig,
    mut stream: Stream<'h, R>,
    outcome: Result<Outcome, RequestError>,
    response: &mut Vec<(String, String)>,
) -> Concluded<'h, R> {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(error) => return fail(config, stream, &error),
    };
    if let Some(metadata) = &outcome.metadata {
        stream.set_metadata(&config.metadata_namespace, metadata);
    }
    let counter = if outcome.is_over { config.counters.over_limit } else { config.counters.ok };
    if let Some(counter) = counter {
        stream.increment(counter);
    }
    if outcome.is_over && config.enforced.draw() {
        return deny(config, stream, &outcome);
    }
    *response = outcome.headers;
    Concluded::Passes(stream)
}

fn deny<'h, R>(
    config: &FilterConfig,
    mut stream: Stream<'h, R>,
    outcome: &Outcome,
) -> Concluded<'h, R> {
    stream.add_flag(DENIED_FLAG);
    let mut headers = outcome.headers.clone();
    let has_retry_after = headers.iter().any(|(name, _)| name == "retry-after");
    if let Some(seconds) = outcome.retry_after.filter(|_| config.retry_after && !has_retry_after) {
        headers.push(("retry-after".to_owned(), seconds.to_string()));
    }
    if config.ratelimited_header {
        headers.push(("x-envoy-ratelimited".to_owned(), "true".to_owned()));
    }
    config.headers.iter().for_each(|added| added.add_to(&mut headers));
    let grpc = match config.resource_exhausted {
        true => RESOURCE_EXHAUSTED,
        false => grpc_status(config.status),
    };
    answer(stream, config.status, headers, grpc, DENIED)
}

/// Request Header Fields Too Large, of RFC 6585.
const TOO_LARGE: u32 = 431;

/// A request without an answer passes or is denied, by the failure mode of the filter. One that is
/// too large to wait is denied in any case: its client chose its size, and nothing has charged it.
fn fail<'h, R>(
    config: &FilterConfig,
    mut stream: Stream<'h, R>,
    why: &RequestError,
) -> Concluded<'h, R> {
    let Counters { error, failure_mode_allowed, .. } = config.counters;
    error.iter().for_each(|counter| stream.increment(*counter));
    let is_too_large = matches!(why, RequestError::NoRoom);
    if !is_too_large && !config.failure_deny.draw() {
        failure_mode_allowed.iter().for_each(|counter| stream.increment(*counter));
        return Concluded::Passes(stream);
    }
    stream.add_flag(FAILED_FLAG);
    let status = if is_too_large { TOO_LARGE } else { config.status_on_error };
    answer(stream, status, Vec::new(), grpc_status(status), FAILED)
}

/// Sends a local reply. Envoy makes it one of gRPC for a request of gRPC, but of status 0, which
/// would be success: so the header is given.
fn answer<'h, R>(
    stream: Stream<'h, R>,
    status: u32,
    mut headers: Vec<(String, String)>,
    grpc: &str,
    details: &str,
) -> Concluded<'h, R> {
    if is_grpc(&stream) {
        headers.push(("grpc-status".to_owned(), grpc.to_owned()));
    }
    let pairs: Vec<_> =
        headers.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes())).collect();
    let _answered = stream.respond(status, &pairs, b"", details);
    Concluded::Answered
}

fn is_grpc<R>(stream: &Stream<'_, R>) -> bool {
    let kind = stream.header(Headers::Request, b"content-type", 0);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';' | b' ')))
}

/// The status of gRPC that stands for one of HTTP, by gRPC's own table.
fn grpc_status(status: u32) -> &'static str {
    match status {
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        429 | 502 | 503 | 504 => UNAVAILABLE,
        _ => "2",
    }
}

// === impl AddedHeader ===

impl AddedHeader {
    fn add_to(&self, headers: &mut Vec<(String, String)>) {
        let is_there = headers.iter().any(|(name, _)| *name == self.name);
        match (self.existing, is_there) {
            (Existing::Keep, true) | (Existing::ReplaceOnly, false) => return,
            (Existing::Replace | Existing::ReplaceOnly, true) => {
                headers.retain(|(name, _)| *name != self.name);
            }
            _ => {}
        }
        headers.push((self.name.clone(), self.value.clone()));
    }
}
