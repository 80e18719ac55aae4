//! The kinds of actions: the values that each reads of a stream, and the entry that it makes.

use std::borrow::Cow;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::route::v3::rate_limit as pb;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    HttpRequestHeaderMatchInput, HttpRequestQueryParamMatchInput,
};
use prost::{Message, Name};

use super::address::{AddressMatcher, MaskLengths};
use super::fault::{Faults, Place, each, expect_some, expect_text};
use super::format::Format;
use super::matchers::{
    HeaderMatcher, QueryMatcher, header_name, header_values, parameter_value, query_of,
};
use super::{MetadataKey, MetadataSource, Stream, address};

use pb::action::{self, ActionSpecifier as Specifier};

/// The key of a generic key's entry where the configuration names none.
const GENERIC_KEY: &str = "generic_key";

/// The default key of an entry for matching headers.
const HEADER_MATCH: &str = "header_match";

/// The default key of an entry for matching query parameters.
const QUERY_MATCH: &str = "query_match";

/// The key of an entry with the client's address.
const REMOTE_ADDRESS: &str = "remote_address";

/// The key of an entry with the client's masked address.
const MASKED_REMOTE_ADDRESS: &str = "masked_remote_address";

/// The default key of an entry for a matching address.
const REMOTE_ADDRESS_MATCH: &str = "remote_address_match";

/// The key of an entry with the cluster's name.
const DESTINATION_CLUSTER: &str = "destination_cluster";

/// The value of a generic key that stands for the name of the stream: no two streams have the same.
/// Values that come with a request stand for nothing.
const STREAM_NAME: &str = "ratelease.stream";

/// One action; it makes at most one entry.
#[derive(Debug)]
pub struct Action {
    /// The key of the entry.
    key: String,
    kind: Kind,
    /// Whether the entry, and not the descriptor, is left out if there is no value.
    skip_if_absent: bool,
}

#[derive(Debug)]
enum Kind {
    DestinationCluster,
    /// The first value of a header.
    Header(String),
    /// All values of a header, joined; none if that is empty.
    JoinedHeader(String),
    /// The first value of a query parameter.
    Query(String),
    /// The first value of a query parameter; none if it is empty.
    QueryInput(String),
    RemoteAddress,
    MaskedRemoteAddress(MaskLengths),
    GenericKey(String),
    HeaderMatch {
        value: String,
        expect_match: bool,
        headers: Vec<HeaderMatcher>,
    },
    QueryMatch {
        value: String,
        expect_match: bool,
        parameters: Vec<QueryMatcher>,
    },
    Metadata {
        key: MetadataKey,
        default: String,
    },
    AddressMatch {
        matcher: AddressMatcher,
        value: Format,
        default: String,
    },
}

/// The result of an action for a stream.
enum Found<'s> {
    Value(Cow<'s, [u8]>),
    /// No value: the entry is left out, and the descriptor is made without it.
    Nothing,
    /// No value: the descriptor is left out, unless the action has `skip_if_absent`.
    Absent,
}

impl Action {
    pub fn compile(message: &pb::Action, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        let Some(specifier) = &message.action_specifier else {
            let text = "no action that Envoy 1.40 knows; expected one such as request_headers";
            faults.add(place, text);
            return None;
        };
        let name = name(specifier);
        Self::of(specifier, &place.field(name), faults)
    }

    fn of(specifier: &Specifier, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        match specifier {
            Specifier::SourceCluster(_) => {
                let text = "a module of Envoy cannot see the name of its own cluster \
                            (--service-cluster); write it as a generic_key with descriptor_key \
                            source_cluster";
                faults.add(place, text);
                None
            }
            Specifier::DestinationCluster(_) => {
                Some(Self::new(DESTINATION_CLUSTER, Kind::DestinationCluster))
            }
            Specifier::RequestHeaders(it) => Self::request_headers(it, place, faults),
            Specifier::QueryParameters(it) => Self::query_parameters(it, place, faults),
            Specifier::RemoteAddress(_) => Some(Self::new(REMOTE_ADDRESS, Kind::RemoteAddress)),
            Specifier::MaskedRemoteAddress(it) => {
                let lengths = MaskLengths::compile(it, place, faults)?;
                Some(Self::new(MASKED_REMOTE_ADDRESS, Kind::MaskedRemoteAddress(lengths)))
            }
            Specifier::GenericKey(it) => {
                let value = expect_text(&it.descriptor_value, place, "descriptor_value", faults)?;
                Some(Self::new(or(&it.descriptor_key, GENERIC_KEY), Kind::GenericKey(value)))
            }
            Specifier::HeaderValueMatch(it) => Self::header_value_match(it, place, faults),
            Specifier::QueryParameterValueMatch(it) => Self::query_match(it, place, faults),
            Specifier::Metadata(it) => Self::metadata(it, place, faults),
            #[expect(deprecated, reason = "configurations still use it")]
            Specifier::DynamicMetadata(it) => {
                let action::DynamicMetaData { descriptor_key, metadata_key, default_value } =
                    it.clone();
                let metadata = action::MetaData {
                    descriptor_key,
                    metadata_key,
                    default_value,
                    source: action::meta_data::Source::Dynamic.into(),
                    skip_if_absent: false,
                };
                Self::metadata(&metadata, place, faults)
            }
            Specifier::RemoteAddressMatch(it) => Self::address_match(it, place, faults),
            Specifier::Extension(it) => Self::extension(it, place, faults),
        }
    }

    fn new(key: &str, kind: Kind) -> Self {
        Self { key: key.to_owned(), kind, skip_if_absent: false }
    }

    fn request_headers(
        message: &action::RequestHeaders,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = header_name(&message.header_name, place, "header_name", faults);
        let key = expect_text(&message.descriptor_key, place, "descriptor_key", faults);
        Some(Self { key: key?, kind: Kind::Header(name?), skip_if_absent: message.skip_if_absent })
    }

    fn query_parameters(
        message: &action::QueryParameters,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let name = &message.query_parameter_name;
        let name = expect_text(name, place, "query_parameter_name", faults);
        let key = expect_text(&message.descriptor_key, place, "descriptor_key", faults);
        Some(Self { key: key?, kind: Kind::Query(name?), skip_if_absent: message.skip_if_absent })
    }

    fn header_value_match(
        message: &action::HeaderValueMatch,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let value = expect_text(&message.descriptor_value, place, "descriptor_value", faults);
        let listed = place.field("headers");
        let headers = matchers(&message.headers, &listed, faults, HeaderMatcher::compile)?;
        let expect_match = message.expect_match.is_none_or(|it| it.value);
        let kind = Kind::HeaderMatch { value: value?, expect_match, headers };
        Some(Self::new(or(&message.descriptor_key, HEADER_MATCH), kind))
    }

    fn query_match(
        message: &action::QueryParameterValueMatch,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let value = expect_text(&message.descriptor_value, place, "descriptor_value", faults);
        let listed = place.field("query_parameters");
        let parameters =
            matchers(&message.query_parameters, &listed, faults, QueryMatcher::compile)?;
        let expect_match = message.expect_match.is_none_or(|it| it.value);
        let kind = Kind::QueryMatch { value: value?, expect_match, parameters };
        Some(Self::new(or(&message.descriptor_key, QUERY_MATCH), kind))
    }

    fn metadata(
        message: &action::MetaData,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let key = expect_text(&message.descriptor_key, place, "descriptor_key", faults);
        let source = match message.source {
            0 => Some(MetadataSource::Dynamic),
            1 => Some(MetadataSource::Route),
            2 => Some(MetadataSource::Cluster),
            3 => Some(MetadataSource::Locality),
            other => {
                let text = format!(
                    "{other}; expected DYNAMIC, ROUTE_ENTRY, CLUSTER_ENTRY or \
                     CLUSTER_LOCALITY_ENTRY"
                );
                faults.add(place.field("source"), text);
                None
            }
        };
        let found = expect_some(message.metadata_key.as_ref(), place, "metadata_key", faults)
            .and_then(|it| MetadataKey::compile(it, source?, &place.field("metadata_key"), faults));
        let kind = Kind::Metadata { key: found?, default: message.default_value.clone() };
        Some(Self { key: key?, kind, skip_if_absent: message.skip_if_absent })
    }

    fn address_match(
        message: &action::RemoteAddressMatch,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let value = expect_text(&message.descriptor_value, place, "descriptor_value", faults)
            .and_then(|text| Format::parse(&text, &place.field("descriptor_value"), faults));
        let matcher = &message.address_matcher;
        let matcher = expect_some(matcher.as_ref(), place, "address_matcher", faults)
            .and_then(|it| AddressMatcher::compile(it, &place.field("address_matcher"), faults));
        let default = message.default_value.clone();
        let kind = Kind::AddressMatch { matcher: matcher?, value: value?, default };
        Some(Self::new(or(&message.descriptor_key, REMOTE_ADDRESS_MATCH), kind))
    }

    /// The two matching inputs that read the request's headers; the key is the extension's name.
    fn extension(
        message: &TypedExtensionConfig,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let key = expect_text(&message.name, place, "name", faults);
        let config = expect_some(message.typed_config.as_ref(), place, "typed_config", faults)?;
        let within = place.field("typed_config");
        let mut unreadable = |error: prost::DecodeError| {
            faults.add(within, format!("not a message of this type: {error}"));
        };
        let kind = match config.type_url.rsplit('/').next().unwrap_or_default() {
            name if name == HttpRequestHeaderMatchInput::full_name() => {
                let input = HttpRequestHeaderMatchInput::decode(config.value.as_slice());
                let input = input.map_err(&mut unreadable).ok()?;
                header_name(&input.header_name, &within, "header_name", faults)
                    .map(Kind::JoinedHeader)
            }
            name if name == HttpRequestQueryParamMatchInput::full_name() => {
                let input = HttpRequestQueryParamMatchInput::decode(config.value.as_slice());
                let input = input.map_err(&mut unreadable).ok()?;
                expect_text(&input.query_param, &within, "query_param", faults)
                    .map(Kind::QueryInput)
            }
            other => {
                let text = format!(
                    "{other}: a module of Envoy cannot run other extensions (such as CEL); \
                     expected HttpRequestHeaderMatchInput or HttpRequestQueryParamMatchInput"
                );
                faults.add(within, text);
                None
            }
        };
        Some(Self { key: key?, kind: kind?, skip_if_absent: false })
    }

    /// Whether the value of its entry stands for the name of the stream.
    pub fn names_stream(&self) -> bool {
        matches!(&self.kind, Kind::GenericKey(value) if value == STREAM_NAME)
    }

    /// Makes the entry of a stream: `Some(None)` for none, `None` if there is to be no descriptor.
    #[expect(clippy::option_option, reason = "two ways to have no entry")]
    pub fn entry<'s>(&'s self, stream: &'s impl Stream) -> Option<Option<(&'s str, Cow<'s, str>)>> {
        match self.kind.find(stream) {
            Found::Value(value) => Some(Some((&self.key, text(value)))),
            Found::Nothing => Some(None),
            Found::Absent => self.skip_if_absent.then_some(None),
        }
    }
}

impl Kind {
    fn find<'s>(&'s self, stream: &'s impl Stream) -> Found<'s> {
        match self {
            Self::DestinationCluster => Found::borrowed(stream.destination_cluster()),
            Self::Header(name) => Found::borrowed(stream.request_header(name, 0)),
            Self::JoinedHeader(name) => Found::not_empty(header_values(stream, name)),
            Self::Query(name) => Found::some(parameter_value(query_of(stream), name)),
            Self::QueryInput(name) => Found::not_empty(parameter_value(query_of(stream), name)),
            Self::RemoteAddress => Found::borrowed(address::without_port(stream)),
            Self::MaskedRemoteAddress(lengths) => {
                Found::some(lengths.mask(stream).map(|it| Cow::Owned(it.into_bytes())))
            }
            Self::GenericKey(value) => Found::constant(value),
            Self::HeaderMatch { value, expect_match, headers } => {
                let matches = headers.iter().all(|header| header.matches(stream));
                Found::constant_if(matches == *expect_match, value)
            }
            Self::QueryMatch { value, expect_match, parameters } => {
                let query = query_of(stream);
                let matches = parameters.iter().all(|parameter| parameter.matches(query));
                Found::constant_if(matches == *expect_match, value)
            }
            Self::Metadata { key, default } => match key.string(stream) {
                Some(value) if !value.is_empty() => Found::Value(Cow::Borrowed(value)),
                _ => Found::constant_if(!default.is_empty(), default),
            },
            Self::AddressMatch { matcher, value, default } => {
                if !matcher.matches(stream) {
                    return Found::Absent;
                }
                let value = value.text(stream);
                if value.is_empty() {
                    return Found::constant_if(!default.is_empty(), default);
                }
                Found::Value(value)
            }
        }
    }
}

impl<'s> Found<'s> {
    fn some(value: Option<Cow<'s, [u8]>>) -> Self {
        value.map_or(Self::Absent, Self::Value)
    }

    fn borrowed(value: Option<&'s [u8]>) -> Self {
        Self::some(value.map(Cow::Borrowed))
    }

    /// An empty value makes no entry, and no value no descriptor.
    fn not_empty(value: Option<Cow<'s, [u8]>>) -> Self {
        match value {
            Some(value) if value.is_empty() => Self::Nothing,
            value => Self::some(value),
        }
    }

    fn constant(value: &'s str) -> Self {
        Self::Value(Cow::Borrowed(value.as_bytes()))
    }

    fn constant_if(is_found: bool, value: &'s str) -> Self {
        if is_found { Self::constant(value) } else { Self::Absent }
    }
}

/// The name of the field that holds an action.
const fn name(specifier: &Specifier) -> &'static str {
    match specifier {
        Specifier::SourceCluster(_) => "source_cluster",
        Specifier::DestinationCluster(_) => DESTINATION_CLUSTER,
        Specifier::RequestHeaders(_) => "request_headers",
        Specifier::QueryParameters(_) => "query_parameters",
        Specifier::RemoteAddress(_) => REMOTE_ADDRESS,
        Specifier::GenericKey(_) => GENERIC_KEY,
        Specifier::HeaderValueMatch(_) => "header_value_match",
        #[expect(deprecated, reason = "configurations still use it")]
        Specifier::DynamicMetadata(_) => "dynamic_metadata",
        Specifier::Metadata(_) => "metadata",
        Specifier::Extension(_) => "extension",
        Specifier::MaskedRemoteAddress(_) => MASKED_REMOTE_ADDRESS,
        Specifier::QueryParameterValueMatch(_) => "query_parameter_value_match",
        Specifier::RemoteAddressMatch(_) => REMOTE_ADDRESS_MATCH,
    }
}

/// Compiles matchers with [`each`]; a list without a matcher is a fault.
fn matchers<M, T>(
    messages: &[M],
    place: &Place<'_>,
    faults: &mut Faults,
    compile: fn(&M, &Place<'_>, &mut Faults) -> Option<T>,
) -> Option<Vec<T>> {
    if messages.is_empty() {
        faults.add(place, "missing; expected one matcher at least");
    }
    each(messages, place, faults, compile)
}

fn or<'a>(key: &'a str, default: &'a str) -> &'a str {
    if key.is_empty() { default } else { key }
}

/// Bytes that are not UTF-8 become U+FFFD: a request is counted whatever its headers hold.
fn text(bytes: Cow<'_, [u8]>) -> Cow<'_, str> {
    match bytes {
        // Nearly all are UTF-8, which the plain check sees in fewer instructions.
        Cow::Borrowed(bytes) => {
            str::from_utf8(bytes).map_or_else(|_| String::from_utf8_lossy(bytes), Cow::Borrowed)
        }
        Cow::Owned(bytes) => Cow::Owned(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }),
    }
}
