//! The configuration of a filter, of a route and of the bootstrap extension, from what Envoy hands
//! over: messages of the rate limit filter, serialized or as JSON, and JSON of settings.
//!
//! Every fault is reported, with its place. A setting that a module cannot honour is a fault.

mod json;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3 as core;
use envoy_types::pb::envoy::extensions::filters::http::ratelimit::v3 as pb;
use envoy_types::pb::envoy::r#type::v3 as kinds;
use prost::{Message, Name};
use ratelease_envoy_abi::{Counter, Setup};
use ratelease_sidecar::rule_source::directory::{self, Given};
use serde_json::Value;

use crate::actions::{Actions, Faults, Phase};
use crate::engine::{self, Engine, Overrides};
use crate::runtime::{ENABLED, ENFORCING, Fraction};

/// Timeout where the configuration names none, as in Envoy's filter.
const TIMEOUT: Duration = Duration::from_millis(20);

/// The longest that a configuration may say: a call of gRPC takes no longer either.
const TIMEOUT_MAX: Duration = Duration::from_secs(10);

/// Where Envoy's filter writes dynamic metadata if its configuration does not say.
const METADATA_NAMESPACE: &str = "envoy.filters.http.ratelimit";

/// Maximum number of added headers, by the rules of Envoy's messages. Envoy does not check them
/// itself, as it does not look into the configuration of a module.
const HEADERS_MAX: usize = 10;

/// Maximum bytes of an added header's name or value, by these rules.
const HEADER_BYTES_MAX: usize = 16_384;

/// One filter in Envoy's configuration.
pub struct FilterConfig {
    /// The domain of requests; a route may name another.
    pub domain: String,
    /// The rate limits of this stage are applied.
    pub stage: u32,
    /// The requests that are limited.
    pub kind: RequestKind,
    /// How long a request may wait; then the failure mode decides.
    pub timeout: Duration,
    /// The part of requests without an answer that are denied.
    pub failure_deny: Fraction,
    /// `true`: denied requests of gRPC get `RESOURCE_EXHAUSTED`. `false`: they get `UNAVAILABLE`.
    pub resource_exhausted: bool,
    /// Answers carry X-RateLimit headers.
    pub x_ratelimit: bool,
    /// Denials carry `retry-after`.
    pub retry_after: bool,
    /// Denials carry `x-envoy-ratelimited`.
    pub ratelimited_header: bool,
    /// The status of denials.
    pub status: u32,
    /// The status of requests without an answer that are denied.
    pub status_on_error: u32,
    /// Headers of denials.
    pub headers: Vec<AddedHeader>,
    /// The part of requests that are decided.
    pub enabled: Fraction,
    /// The part of denials that are enforced.
    pub enforced: Fraction,
    /// Where dynamic metadata is written.
    pub metadata_namespace: String,
    /// The rate limits of routes without their own.
    pub limits: Limits,
    /// Envoy's own statistics of the filter.
    pub counters: Counters,
    /// `None` while Envoy only checks its configuration.
    pub engine: Option<Arc<Engine>>,
    /// The rules that the filter brings for its domain.
    given: Option<Given>,
}

/// The configuration of one route or virtual host.
#[derive(Debug)]
pub struct RouteConfig {
    /// Replaces the filter's domain; empty if the route does not name one.
    pub domain: String,
    /// Replaces the filter's rate limits, if there are any.
    pub limits: Limits,
}

/// Rate limits.
#[derive(Debug)]
pub struct Limits {
    /// The actions.
    pub actions: Actions,
}

/// Envoy's statistics of a filter.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Requests within their limits.
    pub ok: Option<Counter>,
    /// Requests over a limit.
    pub over_limit: Option<Counter>,
    /// Requests that got no answer.
    pub error: Option<Counter>,
    /// Requests that got no answer and passed.
    pub failure_mode_allowed: Option<Counter>,
}

/// Requests that a filter limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestKind {
    /// All requests.
    Both,
    /// Requests with `x-envoy-internal: true`.
    Internal,
    /// Requests without that header, or with another value of it.
    External,
}

/// A header that denials get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddedHeader {
    /// In lower case.
    pub name: String,
    /// The value.
    pub value: String,
    /// The fate of headers of this name that the answer has.
    pub existing: Existing,
}

/// The way in which an added header meets headers of its name in the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// The header stands beside them.
    Beside,
    /// The header is left out.
    Keep,
    /// The header takes their place.
    Replace,
    /// The header takes their place, and is left out if there are none.
    ReplaceOnly,
}

/// Why bytes are no configuration, one line for each fault.
type Refused = String;

// === impl FilterConfig ===

impl FilterConfig {
    /// Reads a `RateLimit` message, serialized or as JSON, for the filter of this name. The JSON
    /// may have the rules of its domain too; then it waits until they are in force.
    ///
    /// # Errors
    ///
    /// All faults, or why the engine cannot start.
    pub fn read(
        setup: &mut Setup<'_>,
        name: &[u8],
        bytes: &[u8],
        validates: bool,
    ) -> Result<Self, Refused> {
        let mut faults = Faults::default();
        let message: pb::RateLimit = decode(bytes, "filter_config", json::FILTER, &mut faults)?;
        expect_own_name(name, "filter_name", &mut faults);
        let mut config = Self::compile(&message, &mut faults);
        let rules = json::text(bytes, RULES, &mut faults);
        if let Some(text) = &rules {
            check_rules(&config.domain, text, &mut faults);
        }
        if !faults.is_empty() {
            return Err(faults.to_string());
        }
        config.counters = Counters::define(setup, &message.stat_prefix);
        if !validates {
            config.given = rules.map(|text| engine::give(&config.domain, &text));
            config.engine = Some(Engine::of_process(None)?);
            config.given.as_ref().map_or(Ok(()), engine::wait_for)?;
        }
        Ok(config)
    }

    fn compile(message: &pb::RateLimit, faults: &mut Faults) -> Self {
        if message.domain.is_empty() {
            faults.add("domain", "missing");
        }
        if message.stage > crate::actions::STAGE_MAX {
            let most = crate::actions::STAGE_MAX;
            faults.add("stage", format!("{}; expected 0 to {most}", message.stage));
        }
        let deny = Fraction::new(if message.failure_mode_deny { 1.0 } else { 0.0 });
        let percent = message.failure_mode_deny_percent.as_ref();
        Self {
            domain: message.domain.clone(),
            stage: message.stage,
            kind: RequestKind::read(&message.request_type, faults),
            timeout: timeout_of(message, faults),
            failure_deny: fraction_of(percent, deny, "failure_mode_deny_percent", faults),
            resource_exhausted: message.rate_limited_as_resource_exhausted,
            x_ratelimit: x_ratelimit_of(message.enable_x_ratelimit_headers, faults),
            retry_after: message.enable_retry_after_header,
            ratelimited_header: !message.disable_x_envoy_ratelimited_header,
            status: status_of(
                message.rate_limited_status.as_ref(),
                429,
                "rate_limited_status",
                faults,
            ),
            status_on_error: status_of(
                message.status_on_error.as_ref(),
                500,
                "status_on_error",
                faults,
            ),
            headers: headers_of(&message.response_headers_to_add, faults),
            enabled: match &message.filter_enabled {
                None => Fraction::at_known(ENABLED).unwrap_or(Fraction::ALL),
                some => fraction_of(some.as_ref(), Fraction::ALL, "filter_enabled", faults),
            },
            enforced: match &message.filter_enforced {
                None => Fraction::at_known(ENFORCING).unwrap_or(Fraction::ALL),
                some => fraction_of(some.as_ref(), Fraction::ALL, "filter_enforced", faults),
            },
            metadata_namespace: match &*message.metadata_namespace {
                "" => METADATA_NAMESPACE.to_owned(),
                namespace => namespace.to_owned(),
            },
            limits: Limits::compile(&message.rate_limits, faults),
            counters: Counters::default(),
            engine: None,
            given: None,
        }
    }
}

/// The name of the filter and of the extension, the only ones that the module has.
const NAME: &str = "ratelease";

fn expect_own_name(name: &[u8], place: &str, faults: &mut Faults) {
    if !name.is_empty() && name != NAME.as_bytes() {
        let name = String::from_utf8_lossy(name);
        faults.add(place, format!("{name:?}; the module has no other than {NAME}"));
    }
}

/// How long a request may wait.
fn timeout_of(message: &pb::RateLimit, faults: &mut Faults) -> Duration {
    let Some(timeout) = message.timeout else { return TIMEOUT };
    let nanos = u32::try_from(timeout.nanos).ok();
    let read = u64::try_from(timeout.seconds).ok().zip(nanos);
    match read.map(|(seconds, nanos)| Duration::new(seconds, nanos)) {
        Some(timeout) if timeout <= TIMEOUT_MAX && !timeout.is_zero() => timeout,
        _ => {
            let most = TIMEOUT_MAX.as_secs();
            faults.add("timeout", format!("expected more than 0 s and at most {most} s"));
            TIMEOUT
        }
    }
}

/// A status that denies; as in Envoy's filter, one below 400 is not used.
fn status_of(
    status: Option<&kinds::HttpStatus>,
    default: u32,
    place: &str,
    faults: &mut Faults,
) -> u32 {
    let Some(kinds::HttpStatus { code }) = status else { return default };
    if matches!(kinds::StatusCode::try_from(*code), Err(_) | Ok(kinds::StatusCode::Empty)) {
        let text = format!("{code}; expected a status that Envoy knows, such as {default}");
        faults.add(format_args!("{place}.code"), text);
    }
    u32::try_from(*code).ok().filter(|code| *code >= 400).unwrap_or(default)
}

fn x_ratelimit_of(version: i32, faults: &mut Faults) -> bool {
    if !matches!(version, 0 | 1) {
        let text = format!("{version}; expected OFF or DRAFT_VERSION_03");
        faults.add("enable_x_ratelimit_headers", text);
    }
    version == 1
}

fn headers_of(messages: &[core::HeaderValueOption], faults: &mut Faults) -> Vec<AddedHeader> {
    if messages.len() > HEADERS_MAX {
        let text = format!("{} headers; expected at most {HEADERS_MAX}", messages.len());
        faults.add("response_headers_to_add", text);
    }
    let read = messages.iter().enumerate().filter_map(|(at, message)| {
        let place = format!("response_headers_to_add[{at}]");
        AddedHeader::read(message, &place, faults)
    });
    read.collect()
}

// === impl RouteConfig ===

impl RouteConfig {
    /// Reads a `RateLimitPerRoute` message, serialized or as JSON.
    ///
    /// # Errors
    ///
    /// All faults.
    pub fn read(bytes: &[u8]) -> Result<Self, Refused> {
        let mut faults = Faults::default();
        let message: pb::RateLimitPerRoute =
            decode(bytes, "typed_per_filter_config", json::ROUTE, &mut faults)?;
        if message.vh_rate_limits == 1 {
            let text = "a module of Envoy sees the most specific list alone, and includes no \
                        other; write the rate limits of the virtual host into this list too";
            faults.add("vh_rate_limits", text);
        }
        expect_number(message.vh_rate_limits, 2, "vh_rate_limits", &mut faults);
        expect_number(message.override_option, 3, "override_option", &mut faults);
        let limits = Limits::compile(&message.rate_limits, &mut faults);
        match faults.is_empty() {
            true => Ok(Self { domain: message.domain, limits }),
            false => Err(faults.to_string()),
        }
    }
}

/// Notes a number above the last one of an enumeration that begins with 0.
fn expect_number(number: i32, last: i32, place: &str, faults: &mut Faults) {
    if !(0..=last).contains(&number) {
        faults.add(place, format!("{number}; expected 0 to {last}"));
    }
}

// === impl Limits ===

impl Limits {
    fn compile(
        messages: &[envoy_types::pb::envoy::config::route::v3::RateLimit],
        faults: &mut Faults,
    ) -> Self {
        let mut actions = Actions::compile(messages, "rate_limits", faults);
        actions.read_runtime(Fraction::at);
        Self { actions }
    }

    /// Whether the end of a stream of this stage has something to count.
    pub fn ends_streams(&self, stage: u32) -> bool {
        self.actions.apply_in(Phase::Done, stage)
    }
}

// === impl Counters ===

impl Counters {
    fn define(setup: &mut Setup<'_>, prefix: &str) -> Self {
        let mut define = |name: &str| match prefix {
            "" => setup.counter(name),
            prefix => setup.counter(&format!("{prefix}.{name}")),
        };
        Self {
            ok: define("ok"),
            over_limit: define("over_limit"),
            error: define("error"),
            failure_mode_allowed: define("failure_mode_allowed"),
        }
    }
}

// === impl RequestKind ===

impl RequestKind {
    fn read(text: &str, faults: &mut Faults) -> Self {
        match text {
            "" | "both" => Self::Both,
            "internal" => Self::Internal,
            "external" => Self::External,
            other => {
                let text = format!("{other:?}; expected internal, external or both");
                faults.add("request_type", text);
                Self::Both
            }
        }
    }
}

/// The part at the runtime's key; without one, the part that the message states; without both,
/// `default`.
fn fraction_of(
    message: Option<&core::RuntimeFractionalPercent>,
    default: Fraction,
    place: &str,
    faults: &mut Faults,
) -> Fraction {
    let Some(message) = message else { return default };
    if message.default_value.is_none() {
        faults.add(format_args!("{place}.default_value"), "missing");
    }
    let written = message.default_value.as_ref().map(|percent| {
        let of = match percent.denominator {
            0 => 100.0,
            1 => 10_000.0,
            2 => 1_000_000.0,
            other => {
                let text = format!("{other}; expected HUNDRED, TEN_THOUSAND or MILLION");
                faults.add(format_args!("{place}.default_value.denominator"), text);
                100.0
            }
        };
        Fraction::new(f64::from(percent.numerator) / of)
    });
    let key = Some(&*message.runtime_key).filter(|key| !key.is_empty());
    key.and_then(Fraction::at).or(written).unwrap_or(default)
}

// === impl AddedHeader ===

impl AddedHeader {
    fn read(message: &core::HeaderValueOption, place: &str, faults: &mut Faults) -> Option<Self> {
        let Some(header) = &message.header else {
            faults.add(format_args!("{place}.header"), "missing");
            return None;
        };
        let existing = existing_of(message, place, faults)?;
        expect_name(&header.key, place, faults);
        let value = match header.raw_value.is_empty() {
            true => header.value.clone(),
            false => String::from_utf8_lossy(&header.raw_value).into_owned(),
        };
        expect_line(&value, place, "header.value", faults);
        let plain = value.replace("%%", "");
        if plain.contains('%') {
            let text = "a module of Envoy cannot substitute %…% in a header; write the value, and \
                        %% for a percent sign";
            faults.add(format_args!("{place}.header.value"), text);
        }
        let (name, value) = (header.key.to_ascii_lowercase(), value.replace("%%", "%"));
        (!value.is_empty() || message.keep_empty_value).then_some(Self { name, value, existing })
    }
}

/// Notes a name that Envoy does not let a configuration add.
fn expect_name(name: &str, place: &str, faults: &mut Faults) {
    if name.is_empty() {
        faults.add(format_args!("{place}.header.key"), "missing");
    }
    if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
        let text = format!("{name:?}; expected a name other than host, and without a first colon");
        faults.add(format_args!("{place}.header.key"), text);
    }
    expect_line(name, place, "header.key", faults);
}

/// Notes text that would end its header, or is too long for one.
fn expect_line(text: &str, place: &str, field: &str, faults: &mut Faults) {
    if text.contains(['\0', '\r', '\n']) {
        let text = "holds a NUL or the end of a line; expected one line";
        faults.add(format_args!("{place}.{field}"), text);
    }
    if text.len() > HEADER_BYTES_MAX {
        let text = format!("{} bytes; expected at most {HEADER_BYTES_MAX}", text.len());
        faults.add(format_args!("{place}.{field}"), text);
    }
}

#[allow(deprecated, reason = "Envoy reads `append` too")]
fn existing_of(
    message: &core::HeaderValueOption,
    place: &str,
    faults: &mut Faults,
) -> Option<Existing> {
    match (message.append.map(|append| append.value), message.append_action) {
        (Some(false), _) | (None, 2) => Some(Existing::Replace),
        (Some(true), _) | (None, 0) => Some(Existing::Beside),
        (None, 1) => Some(Existing::Keep),
        (None, 3) => Some(Existing::ReplaceOnly),
        (None, other) => {
            let text = format!("{other}; expected an action of HeaderAppendAction");
            faults.add(format_args!("{place}.append_action"), text);
            None
        }
    }
}

/// Decodes the message at `place`. A `{` marks JSON, since no message begins so. Faults of JSON are
/// noted, and its faulty parts are left out.
fn decode<M: Message + Default + Name>(
    bytes: &[u8],
    place: &str,
    fields: &[json::Field],
    faults: &mut Faults,
) -> Result<M, Refused> {
    let serialized = match bytes.first() {
        Some(b'{') => Cow::Owned(json::serialize(bytes, fields, faults)),
        _ => Cow::Borrowed(bytes),
    };
    M::decode(&*serialized).map_err(|error| {
        format!("{place}: {error}; expected \"@type\": {}, or its JSON", M::type_url())
    })
}

/// The field with the rules of a filter: the text of a rule file. Envoy's message has none.
const RULES: &str = "rules";

/// Checks rules that a filter brings for its domain, by the settings of the process.
fn check_rules(domain: &str, text: &str, faults: &mut Faults) {
    let settings = match engine::claim(None).and_then(|named| engine::settings(&named)) {
        Ok(settings) => settings,
        Err(error) => return faults.add(RULES, format!("the settings have faults: {error}")),
    };
    if settings.xds.is_some() {
        let text = "the settings have the rules come from an xDS server; leave one of both out";
        return faults.add(RULES, text);
    }
    match directory::check(RULES, text, &settings.rules.reading.options) {
        Err(found) => found.iter().for_each(|fault| {
            faults.add(format_args!("{RULES}:{}:{}", fault.line, fault.column), &*fault.message);
        }),
        Ok(loaded) => {
            let found: Vec<_> = loaded.rules.domains().collect();
            if found != [domain] {
                let text = format!("of {found:?}; expected the filter's own domain, {domain:?}");
                faults.add(RULES, text);
            }
        }
    }
}

/// Reads the settings of the bootstrap extension: a JSON object of names and values, or nothing.
///
/// # Errors
///
/// The bytes are no object, or a member is not a name with a value.
pub fn overrides(name: &[u8], bytes: &[u8]) -> Result<Overrides, Refused> {
    const EXPECTED: &str = "expected a google.protobuf.Struct of settings: names as in docs/settings-list.md, values \
         as text, numbers or true and false";
    let mut faults = Faults::default();
    expect_own_name(name, "extension_name", &mut faults);
    let mut overrides = Overrides::new();
    let read = match bytes.trim_ascii() {
        b"" => Some(Value::Object(serde_json::Map::new())),
        bytes => serde_json::from_slice(bytes).ok(),
    };
    if let Some(Value::Object(fields)) = read {
        for (name, value) in fields {
            let text = match value {
                Value::String(text) => text,
                Value::Bool(is) => is.to_string(),
                Value::Number(number) => whole(&number),
                _ => {
                    let place = format!("extension_config.{name}");
                    faults.add(place, format!("no text; {EXPECTED}"));
                    continue;
                }
            };
            overrides.insert(name, text);
        }
    } else {
        faults.add("extension_config", EXPECTED);
    }
    if faults.is_empty() { Ok(overrides) } else { Err(faults.to_string()) }
}

/// A number as a setting has it: JSON of protobuf has doubles, `8080.0` stands for 8080.
fn whole(number: &serde_json::Number) -> String {
    match number.as_f64() {
        Some(it) if it.fract() == 0.0 => format!("{it:.0}"),
        _ => number.to_string(),
    }
}

#[cfg(test)]
mod tests;
