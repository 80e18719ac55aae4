//! Messages of the rate limit filter as JSON, for those who can give a module nothing else: the
//! `dynamicModules` of Envoy Gateway, or a `google.protobuf.Struct`.
//!
//! The form is the JSON form of protobuf (protobuf.dev/programming-guides/json): names as in the
//! message or in lowerCamelCase, enumerations by name or number, durations as `0.02s`, numbers also
//! as text. The module reads the fields that are listed here, by their numbers in Envoy 1.40's
//! messages.

use envoy_types::pb::envoy::config::core::v3::header_value_option::HeaderAppendAction;
use envoy_types::pb::envoy::config::route::v3::rate_limit::XRateLimitOption;
use envoy_types::pb::envoy::config::route::v3::rate_limit::action::meta_data::Source;
use envoy_types::pb::envoy::extensions::filters::http::ratelimit::v3 as filter;
use envoy_types::pb::envoy::r#type::v3 as kinds;
use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::{Map, Value};

use crate::actions::{Faults, Place};

/// A field of a message: its name, its number and the kind of its value.
pub struct Field(&'static str, u32, Kind);

/// The kind of a field's value.
enum Kind {
    Text,
    Bool,
    /// A whole number within these bounds.
    Whole(i128, i128),
    /// A value of an enumeration: its number by its name, and its name by its number.
    Enum(fn(&str) -> Option<i32>, fn(i32) -> Option<&'static str>),
    Duration,
    Message(&'static [Field]),
    /// A message in which only one field may be set, beside the fields of [`MODIFIERS`].
    OneOf(&'static [Field]),
    /// A message with the value in its first field, as `google.protobuf.UInt32Value`.
    Wrapped(&'static Kind),
    List(&'static Kind),
    /// A `google.protobuf.Any` of one of these types.
    Any(&'static [(&'static str, &'static [Field])]),
    /// A field that the module does not read.
    Ignored,
}

use Kind::{Any, Bool, Duration, Enum, Ignored, List, Message, OneOf, Text, Whole, Wrapped};

/// A `uint32` of protobuf.
const UINT32: Kind = Whole(0, u32::MAX as i128);

/// A `uint64` of protobuf.
const UINT64: Kind = Whole(0, u64::MAX as i128);

/// An `int64` of protobuf.
const INT64: Kind = Whole(i64::MIN as i128, i64::MAX as i128);

/// An enumeration of Envoy's messages.
macro_rules! by_name {
    ($kind:ty) => {
        Enum(
            |name| <$kind>::from_str_name(name).map(i32::from),
            |number| <$kind>::try_from(number).ok().map(|value| value.as_str_name()),
        )
    };
}

/// Fields of matchers that may stand beside the field with the condition.
const MODIFIERS: [&str; 4] =
    ["name", "invert_match", "ignore_case", "treat_missing_header_as_empty"];

/// `envoy.extensions.filters.http.ratelimit.v3.RateLimit`
pub const FILTER: &[Field] = &[
    Field("domain", 1, Text),
    Field("stage", 2, UINT32),
    Field("request_type", 3, Text),
    Field("timeout", 4, Duration),
    Field("failure_mode_deny", 5, Bool),
    Field("rate_limited_as_resource_exhausted", 6, Bool),
    Field("rate_limit_service", 7, Ignored),
    Field(
        "enable_x_ratelimit_headers",
        8,
        by_name!(filter::rate_limit::XRateLimitHeadersRfcVersion),
    ),
    Field("disable_x_envoy_ratelimited_header", 9, Bool),
    Field("rate_limited_status", 10, Message(HTTP_STATUS)),
    Field("response_headers_to_add", 11, List(&Message(HEADER_VALUE_OPTION))),
    Field("status_on_error", 12, Message(HTTP_STATUS)),
    Field("stat_prefix", 13, Text),
    Field("filter_enabled", 14, Message(RUNTIME_FRACTIONAL_PERCENT)),
    Field("filter_enforced", 15, Message(RUNTIME_FRACTIONAL_PERCENT)),
    Field("failure_mode_deny_percent", 16, Message(RUNTIME_FRACTIONAL_PERCENT)),
    Field("rate_limits", 17, RATE_LIMITS),
    Field("metadata_namespace", 18, Text),
    Field("enable_retry_after_header", 19, Bool),
    // The module's own, see [`text`].
    Field("rules", 0, Ignored),
];

/// `envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute`
pub const ROUTE: &[Field] = &[
    Field("vh_rate_limits", 1, by_name!(filter::rate_limit_per_route::VhRateLimitsOptions)),
    Field("override_option", 2, by_name!(filter::rate_limit_per_route::OverrideOptions)),
    Field("rate_limits", 3, RATE_LIMITS),
    Field("domain", 4, Text),
];

const HTTP_STATUS: &[Field] = &[Field("code", 1, by_name!(kinds::StatusCode))];

const HEADER_VALUE_OPTION: &[Field] = &[
    Field("header", 1, Message(HEADER_VALUE)),
    Field("append", 2, Wrapped(&Bool)),
    Field("append_action", 3, by_name!(HeaderAppendAction)),
    Field("keep_empty_value", 4, Bool),
];

const HEADER_VALUE: &[Field] = &[Field("key", 1, Text), Field("value", 2, Text)];

const RUNTIME_FRACTIONAL_PERCENT: &[Field] =
    &[Field("default_value", 1, Message(FRACTIONAL_PERCENT)), Field("runtime_key", 2, Text)];

const FRACTIONAL_PERCENT: &[Field] = &[
    Field("numerator", 1, UINT32),
    Field("denominator", 2, by_name!(kinds::fractional_percent::DenominatorType)),
];

/// `envoy.config.route.v3.RateLimit`
const RATE_LIMITS: Kind = List(&Message(&[
    Field("stage", 1, Wrapped(&UINT32)),
    Field("disable_key", 2, Text),
    Field("actions", 3, List(&OneOf(ACTION))),
    Field("limit", 4, OneOf(OVERRIDE)),
    Field("hits_addend", 5, Message(HITS_ADDEND)),
    Field("apply_on_stream_done", 6, Bool),
    Field("x_ratelimit_option", 7, by_name!(XRateLimitOption)),
]));

const OVERRIDE: &[Field] = &[
    Field("dynamic_metadata", 1, Message(&[Field("metadata_key", 1, METADATA_KEY)])),
    Field(
        "rate_limit",
        2,
        Message(&[
            Field("requests_per_unit", 1, UINT32),
            Field("unit", 2, by_name!(kinds::RateLimitUnit)),
        ]),
    ),
];

const HITS_ADDEND: &[Field] = &[
    Field("number", 1, Wrapped(&UINT64)),
    Field("format", 2, Text),
    Field("is_negative_hits", 3, Bool),
];

const ACTION: &[Field] = &[
    Field("source_cluster", 1, Message(&[])),
    Field("destination_cluster", 2, Message(&[])),
    Field(
        "request_headers",
        3,
        Message(&[
            Field("header_name", 1, Text),
            Field("descriptor_key", 2, Text),
            Field("skip_if_absent", 3, Bool),
        ]),
    ),
    Field("remote_address", 4, Message(&[])),
    Field(
        "generic_key",
        5,
        Message(&[
            Field("descriptor_value", 1, Text),
            Field("descriptor_key", 2, Text),
            Field("default_value", 3, Text),
        ]),
    ),
    Field(
        "header_value_match",
        6,
        Message(&[
            Field("descriptor_value", 1, Text),
            Field("expect_match", 2, Wrapped(&Bool)),
            Field("headers", 3, List(&OneOf(HEADER_MATCHER))),
            Field("descriptor_key", 4, Text),
            Field("default_value", 5, Text),
        ]),
    ),
    Field(
        "dynamic_metadata",
        7,
        Message(&[
            Field("descriptor_key", 1, Text),
            Field("metadata_key", 2, METADATA_KEY),
            Field("default_value", 3, Text),
        ]),
    ),
    Field(
        "metadata",
        8,
        Message(&[
            Field("descriptor_key", 1, Text),
            Field("metadata_key", 2, METADATA_KEY),
            Field("default_value", 3, Text),
            Field("source", 4, by_name!(Source)),
            Field("skip_if_absent", 5, Bool),
        ]),
    ),
    Field(
        "extension",
        9,
        Message(&[Field("name", 1, Text), Field("typed_config", 2, Any(EXTENSIONS))]),
    ),
    Field(
        "masked_remote_address",
        10,
        Message(&[
            Field("v4_prefix_mask_len", 1, Wrapped(&UINT32)),
            Field("v6_prefix_mask_len", 2, Wrapped(&UINT32)),
        ]),
    ),
    Field(
        "query_parameter_value_match",
        11,
        Message(&[
            Field("descriptor_value", 1, Text),
            Field("expect_match", 2, Wrapped(&Bool)),
            Field("query_parameters", 3, List(&OneOf(QUERY_PARAMETER_MATCHER))),
            Field("descriptor_key", 4, Text),
            Field("default_value", 5, Text),
        ]),
    ),
    Field(
        "query_parameters",
        12,
        Message(&[
            Field("query_parameter_name", 1, Text),
            Field("descriptor_key", 2, Text),
            Field("skip_if_absent", 3, Bool),
        ]),
    ),
    Field(
        "remote_address_match",
        13,
        Message(&[
            Field("descriptor_value", 1, Text),
            Field("descriptor_key", 2, Text),
            Field("default_value", 3, Text),
            Field("address_matcher", 4, Message(ADDRESS_MATCHER)),
        ]),
    ),
];

const EXTENSIONS: &[(&str, &[Field])] = &[
    (
        "type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput",
        &[Field("header_name", 1, Text)],
    ),
    (
        "type.googleapis.com/envoy.type.matcher.v3.HttpRequestQueryParamMatchInput",
        &[Field("query_param", 1, Text)],
    ),
];

const METADATA_KEY: Kind = Message(&[
    Field("key", 1, Text),
    Field("path", 2, List(&OneOf(&[Field("key", 1, Text), Field("index", 2, UINT32)]))),
]);

const HEADER_MATCHER: &[Field] = &[
    Field("name", 1, Text),
    Field("exact_match", 4, Text),
    Field("range_match", 6, Message(&[Field("start", 1, INT64), Field("end", 2, INT64)])),
    Field("present_match", 7, Bool),
    Field("invert_match", 8, Bool),
    Field("prefix_match", 9, Text),
    Field("suffix_match", 10, Text),
    Field("safe_regex_match", 11, Message(REGEX_MATCHER)),
    Field("contains_match", 12, Text),
    Field("string_match", 13, OneOf(STRING_MATCHER)),
    Field("treat_missing_header_as_empty", 14, Bool),
];

const QUERY_PARAMETER_MATCHER: &[Field] = &[
    Field("name", 1, Text),
    Field("string_match", 5, OneOf(STRING_MATCHER)),
    Field("present_match", 6, Bool),
];

const STRING_MATCHER: &[Field] = &[
    Field("exact", 1, Text),
    Field("prefix", 2, Text),
    Field("suffix", 3, Text),
    Field("safe_regex", 5, Message(REGEX_MATCHER)),
    Field("ignore_case", 6, Bool),
    Field("contains", 7, Text),
];

/// The engine is RE2 in any case.
const REGEX_MATCHER: &[Field] = &[Field("google_re2", 1, Ignored), Field("regex", 2, Text)];

const ADDRESS_MATCHER: &[Field] = &[
    Field(
        "ranges",
        1,
        List(&Message(&[
            Field("address_prefix", 1, Text),
            Field("prefix_len", 2, Wrapped(&UINT32)),
        ])),
    ),
    Field("invert_match", 2, Bool),
];

/// Serializes the message of these fields from `json`; faulty parts are left out and noted.
pub fn serialize(json: &[u8], fields: &[Field], faults: &mut Faults) -> Vec<u8> {
    let mut message = Vec::new();
    match serde_json::from_slice(json) {
        Ok(object) => put_fields(&mut message, fields, &object, None, faults),
        Err(error) => faults.add("the JSON", format!("{error}; expected one object")),
    }
    message
}

/// A text that the message has no field for, if `bytes` are JSON with it.
pub fn text(bytes: &[u8], name: &str, faults: &mut Faults) -> Option<String> {
    let object: Map<String, Value> = serde_json::from_slice(bytes).ok()?;
    match object.get(name)? {
        Value::String(text) => Some(text.clone()),
        other => {
            faults.add(name, format!("{}; expected text, as in a rule file", shown(other)));
            None
        }
    }
}

fn put_fields(
    message: &mut Vec<u8>,
    fields: &[Field],
    object: &Map<String, Value>,
    within: Option<&Place<'_>>,
    faults: &mut Faults,
) {
    for (name, value) in object {
        let Some(field) = fields.iter().find(|field| field.has_name(name)) else {
            let (names, name) = (names(fields), shown(&name.as_str().into()));
            let place = within.map_or_else(|| "the JSON".to_owned(), ToString::to_string);
            faults.add(place, format!("no field has the name {name}; expected {names}"));
            continue;
        };
        let Field(own, number, kind) = field;
        let place = within.map_or(Place::root(own), |within| within.field(own));
        if own != name && object.contains_key(*own) {
            faults.add(place, format!("is there as {name} too; expected one of them"));
        }
        put(message, *number, kind, value, &place, faults);
    }
}

/// The names of fields, for a message.
fn names(fields: &[Field]) -> String {
    let names: Vec<_> = fields.iter().map(|Field(name, ..)| *name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Notes fields of which one alone may be set.
fn expect_one(
    fields: &[Field],
    object: &Map<String, Value>,
    place: &Place<'_>,
    faults: &mut Faults,
) {
    let is_set = |field: &&Field| {
        !MODIFIERS.contains(&field.0)
            && object.iter().any(|(name, value)| field.has_name(name) && !value.is_null())
    };
    let set: Vec<_> = fields.iter().filter(is_set).map(|Field(name, ..)| *name).collect();
    if set.len() > 1 {
        faults.add(place, format!("{}; expected one of them", set.join(" and ")));
    }
}

/// Appends a field of this number and kind; nothing for `null`.
fn put(
    message: &mut Vec<u8>,
    number: u32,
    kind: &Kind,
    value: &Value,
    place: &Place<'_>,
    faults: &mut Faults,
) {
    match (kind, value) {
        (Ignored, _) | (_, Value::Null) => {}
        (Text, Value::String(text)) => put_bytes(message, number, text.as_bytes()),
        (Message(fields), Value::Object(object)) => {
            let mut inner = Vec::new();
            put_fields(&mut inner, fields, object, Some(place), faults);
            put_bytes(message, number, &inner);
        }
        (OneOf(fields), Value::Object(object)) => {
            expect_one(fields, object, place, faults);
            put(message, number, &Message(fields), value, place, faults);
        }
        (Wrapped(kind), value) => {
            let mut inner = Vec::new();
            put(&mut inner, 1, kind, value, place, faults);
            put_bytes(message, number, &inner);
        }
        (Any(types), Value::Object(object)) => {
            put_bytes(message, number, &any(types, object, place, faults));
        }
        (List(kind), Value::Array(values)) => {
            for (at, value) in values.iter().enumerate() {
                if value.is_null() {
                    let expected = kind.expected();
                    faults.add(place.item(at), format!("null; expected {expected}"));
                }
                put(message, number, kind, value, &place.item(at), faults);
            }
        }
        (Duration, Value::String(text)) if let Some((seconds, nanos)) = duration(text) => {
            let mut inner = Vec::new();
            put_varint(&mut inner, 1, seconds);
            put_varint(&mut inner, 2, nanos);
            put_bytes(message, number, &inner);
        }
        (kind, value) => match varint(kind, value) {
            Some(found) => put_varint(message, number, found),
            None => faults.add(place, format!("{}; expected {}", shown(value), kind.expected())),
        },
    }
}

/// A `google.protobuf.Any`, whose type is the field `@type`.
fn any(
    types: &[(&str, &[Field])],
    object: &Map<String, Value>,
    place: &Place<'_>,
    faults: &mut Faults,
) -> Vec<u8> {
    let mut object = object.clone();
    let name = object.remove("@type").unwrap_or_default();
    let Some((name, fields)) = types.iter().find(|(of, _)| name == *of) else {
        let names: Vec<_> = types.iter().map(|(name, _)| *name).collect();
        let text = format!("{}; expected {}", shown(&name), names.join(" or "));
        faults.add(place.field("@type"), text);
        return Vec::new();
    };
    let (mut message, mut inner) = (Vec::new(), Vec::new());
    put_fields(&mut inner, fields, &object, Some(place), faults);
    put_bytes(&mut message, 1, name.as_bytes());
    put_bytes(&mut message, 2, &inner);
    message
}

fn put_bytes(message: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    encode_key(number, WireType::LengthDelimited, message);
    encode_varint(bytes.len() as u64, message);
    message.extend_from_slice(bytes);
}

fn put_varint(message: &mut Vec<u8>, number: u32, value: u64) {
    encode_key(number, WireType::Varint, message);
    encode_varint(value, message);
}

/// The number that stands for a value in a message. A number of an enumeration is not checked: the
/// message's reader refuses numbers that it does not know.
fn varint(kind: &Kind, value: &Value) -> Option<u64> {
    let number = match (kind, value) {
        (Bool, Value::Bool(is)) => i128::from(*is),
        (Enum(number_of, _), Value::String(name)) => i128::from(number_of(name)?),
        (Enum(..), value) => whole(value).filter(|it| i32::try_from(*it).is_ok())?,
        (Whole(least, most), value) => whole(value).filter(|it| (least..=most).contains(&it))?,
        _ => return None,
    };
    // A negative number is its two's complement of 64 bits.
    i64::try_from(number).map(i64::cast_unsigned).or_else(|_| u64::try_from(number)).ok()
}

/// A whole number, also as text or as `5.0`.
fn whole(value: &Value) -> Option<i128> {
    const EXACT: f64 = 9_007_199_254_740_992.0; // 2^53
    match value {
        Value::String(text) => text.parse().ok(),
        Value::Number(number) => {
            let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
            let rounded = || number.as_f64().filter(|it| it.fract() == 0.0 && it.abs() <= EXACT);
            exact.or_else(|| format!("{:.0}", rounded()?).parse().ok())
        }
        _ => None,
    }
}

/// Seconds and nanoseconds of text such as `0.02s`.
fn duration(text: &str) -> Option<(u64, u64)> {
    let text = text.strip_suffix('s')?;
    let (seconds, part) = text.split_once('.').unwrap_or((text, "0"));
    let are_digits = part.bytes().all(|byte| byte.is_ascii_digit());
    let nanos = (part.len() <= 9 && are_digits).then(|| format!("{part:0<9}"))?;
    Some((seconds.parse::<u32>().ok()?.into(), nanos.parse().ok()?))
}

/// The beginning of a value, for a message.
fn shown(value: &Value) -> String {
    const SHOWN: usize = 40;
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

impl Field {
    /// Whether JSON calls it so.
    fn has_name(&self, name: &str) -> bool {
        let Self(own, ..) = self;
        let mut parts = own.split('_');
        let mut camel = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (first, rest) = part.split_at(1);
            camel += &first.to_ascii_uppercase();
            camel += rest;
        }
        *own == name || camel == name
    }
}

impl Kind {
    fn expected(&self) -> String {
        match self {
            Text => "text".to_owned(),
            Bool => "true or false".to_owned(),
            Whole(least, most) => format!("a whole number from {least} to {most}"),
            Enum(_, name_of) => {
                const SHOWN: usize = 8;
                let mut names = (0..600).filter_map(name_of);
                let first: Vec<_> = names.by_ref().take(SHOWN).collect();
                let more = if names.next().is_some() { ", …" } else { "" };
                format!("{}{more}", first.join(", "))
            }
            Duration => "a duration such as \"0.02s\"".to_owned(),
            Message(_) | OneOf(_) | Any(_) | Ignored => "an object".to_owned(),
            Wrapped(kind) => kind.expected(),
            List(_) => "a list".to_owned(),
        }
    }
}
