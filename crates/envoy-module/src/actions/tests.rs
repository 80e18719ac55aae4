//! Each kind of action on one stream, with the results of Envoy's own filter.

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use envoy_types::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::query_parameter_matcher::QueryParameterMatchSpecifier;
use envoy_types::pb::envoy::config::route::v3::rate_limit::action::{
    ActionSpecifier, DestinationCluster, GenericKey, HeaderValueMatch, MaskedRemoteAddress,
    MetaData, QueryParameterValueMatch, QueryParameters, RemoteAddress, RemoteAddressMatch,
    RequestHeaders, SourceCluster,
};
use envoy_types::pb::envoy::config::route::v3::rate_limit::r#override::{
    DynamicMetadata, OverrideSpecifier, RateLimitOverride,
};
use envoy_types::pb::envoy::config::route::v3::rate_limit::{Action, HitsAddend, Override};
use envoy_types::pb::envoy::config::route::v3::{HeaderMatcher, QueryParameterMatcher, RateLimit};
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::envoy::r#type::matcher::v3::{
    AddressMatcher, HttpRequestHeaderMatchInput, HttpRequestQueryParamMatchInput, RegexMatcher,
    StringMatcher,
};
use envoy_types::pb::envoy::r#type::metadata::v3::MetadataKey;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_key::PathSegment;
use envoy_types::pb::envoy::r#type::metadata::v3::metadata_key::path_segment::Segment;
use envoy_types::pb::envoy::r#type::v3::Int64Range;
use envoy_types::pb::google::protobuf::{Any, BoolValue, UInt32Value, UInt64Value};
use envoy_types::pb::xds::core::v3::CidrRange;
use prost::{Message, Name};

use super::*;

/// A stream of the given parts.
#[derive(Debug, Default)]
struct Fake {
    headers: Vec<(&'static str, Vec<u8>)>,
    response: Vec<(&'static str, Vec<u8>)>,
    address: Option<&'static str>,
    /// `true`: Envoy itself answers the request. `false`: it is sent to the cluster `web`.
    is_redirect: bool,
    strings: Vec<(MetadataSource, &'static str, Option<u32>, &'static str)>,
    numbers: Vec<(&'static str, f64)>,
    counts: Vec<(Count, u64)>,
}

impl Stream for Fake {
    fn request_header(&self, name: &str, index: usize) -> Option<&[u8]> {
        let mut all = self.headers.iter().filter(|(key, _)| *key == name);
        all.nth(index).map(|(_, value)| value.as_slice())
    }

    fn request_headers(&self, name: &str) -> Vec<&[u8]> {
        let all = self.headers.iter().filter(|(key, _)| *key == name);
        all.map(|(_, value)| value.as_slice()).collect()
    }

    fn response_header(&self, name: &str) -> Option<&[u8]> {
        self.response.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_slice())
    }

    fn source_address(&self) -> Option<&[u8]> {
        self.address.map(str::as_bytes)
    }

    fn destination_cluster(&self) -> Option<&[u8]> {
        (!self.is_redirect).then_some(b"web")
    }

    fn metadata_string(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<&[u8]> {
        let path = format!("{namespace}:{key}");
        let mut all = self.strings.iter();
        all.find(|it| (it.0, it.1, it.2) == (source, path.as_str(), index))
            .map(|it| it.3.as_bytes())
    }

    fn metadata_number(
        &self,
        _: MetadataSource,
        namespace: &str,
        key: &str,
        _: Option<u32>,
    ) -> Option<f64> {
        let path = format!("{namespace}:{key}");
        self.numbers.iter().find(|(key, _)| *key == path).map(|(_, number)| *number)
    }

    fn count(&self, count: Count) -> Option<u64> {
        self.counts.iter().find(|(it, _)| *it == count).map(|(_, number)| *number)
    }
}

const fn u32_value(value: u32) -> UInt32Value {
    UInt32Value { value }
}

const fn bool_value(value: bool) -> BoolValue {
    BoolValue { value }
}

fn of_headers(headers: &[(&'static str, &str)]) -> Fake {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes().to_vec()));
    Fake { headers: headers.collect(), ..Fake::default() }
}

fn of_path(path: &str) -> Fake {
    of_headers(&[(":path", path)])
}

fn of_address(address: &'static str) -> Fake {
    Fake { address: Some(address), ..Fake::default() }
}

fn limit_of(actions: impl IntoIterator<Item = ActionSpecifier>) -> RateLimit {
    let actions = actions.into_iter().map(|it| Action { action_specifier: Some(it) });
    RateLimit { actions: actions.collect(), ..RateLimit::default() }
}

fn compiled(limits: &[RateLimit]) -> Actions {
    let mut faults = Faults::default();
    let actions = Actions::compile(limits, "rate_limits", &mut faults);
    assert!(faults.is_empty(), "{faults}");
    actions
}

/// The descriptors that a stream gets, one a line: `key=value,key=value`.
fn shown(limit: RateLimit, stream: &Fake) -> Vec<String> {
    let actions = compiled(&[limit]);
    let drafts = actions.descriptors(stream, Phase::Start, 0);
    let entries = |draft: &Draft<'_>| {
        let entries = draft.entries.iter().map(|(key, value)| format!("{key}={value}"));
        entries.collect::<Vec<_>>().join(",")
    };
    drafts.iter().map(entries).collect()
}

#[track_caller]
fn expect(action: ActionSpecifier, stream: &Fake, expected: Option<&str>) {
    assert_eq!(shown(limit_of([action]), stream), Vec::from_iter(expected), "{stream:?}");
}

#[track_caller]
fn refused(limit: RateLimit, expected: &str) {
    let mut faults = Faults::default();
    Actions::compile(&[limit], "rate_limits", &mut faults);
    assert_eq!(faults.to_string(), expected);
}

fn generic(value: &str) -> ActionSpecifier {
    ActionSpecifier::GenericKey(GenericKey {
        descriptor_value: value.into(),
        ..GenericKey::default()
    })
}

fn header(name: &str, skip_if_absent: bool) -> ActionSpecifier {
    ActionSpecifier::RequestHeaders(RequestHeaders {
        header_name: name.into(),
        descriptor_key: "h".into(),
        skip_if_absent,
    })
}

#[test]
fn a_header_gives_its_first_value() {
    let stream = of_headers(&[("x-user", "u1"), ("x-user", "u2"), (":path", "/a?b")]);
    expect(header("X-User", false), &stream, Some("h=u1"));
    expect(header(":path", false), &stream, Some("h=/a?b"));
    expect(header("x-user", false), &of_headers(&[("x-user", "")]), Some("h="));
}

#[test]
fn a_missing_header_ends_the_descriptor_unless_it_is_to_be_skipped() {
    let stream = of_headers(&[("x-user", "u1")]);
    expect(header("x-none", false), &stream, None);
    let first = || header("x-user", false);
    assert_eq!(shown(limit_of([first(), header("x-none", false)]), &stream), [""; 0]);
    assert_eq!(shown(limit_of([first(), header("x-none", true)]), &stream), ["h=u1"]);
    // Envoy sends a descriptor without entries.
    expect(header("x-none", true), &stream, Some(""));
}

#[test]
fn a_value_that_is_not_utf8_is_counted() {
    let stream = Fake { headers: vec![("x-user", b"a\xffb".to_vec())], ..Fake::default() };
    expect(header("x-user", false), &stream, Some("h=a\u{fffd}b"));
}

#[test]
fn a_query_parameter_gives_its_first_value_decoded() {
    let action = |skip_if_absent| {
        ActionSpecifier::QueryParameters(QueryParameters {
            query_parameter_name: "a".into(),
            descriptor_key: "q".into(),
            skip_if_absent,
        })
    };
    expect(action(false), &of_path("/?a=x%20y&a=2"), Some("q=x y"));
    expect(action(false), &of_path("/?a=%ff"), Some("q=\u{fffd}"));
    expect(action(false), &of_path("/?b=1"), None);
    expect(action(false), &of_path("/a=1"), None);
    expect(action(true), &of_path("/"), Some(""));
}

#[test]
fn an_address_has_no_port() {
    let action = || ActionSpecifier::RemoteAddress(RemoteAddress {});
    expect(action(), &of_address("10.0.0.1:80"), Some("remote_address=10.0.0.1"));
    expect(action(), &of_address("[2001:db8::1]:80"), Some("remote_address=2001:db8::1"));
    expect(action(), &of_address("/run/a.sock"), None);
    expect(action(), &of_address("/run/a:1"), None);
    expect(action(), &Fake::default(), None);
}

#[test]
fn an_address_is_masked_as_its_family_says() {
    let action = |v4: Option<u32>, v6: Option<u32>| {
        ActionSpecifier::MaskedRemoteAddress(MaskedRemoteAddress {
            v4_prefix_mask_len: v4.map(u32_value),
            v6_prefix_mask_len: v6.map(u32_value),
        })
    };
    let v4 = of_address("10.1.2.3:80");
    let v6 = of_address("[2001:abcd:ef01:2345:6789:abcd:ef01:234]:80");
    let whole = "masked_remote_address=2001:abcd:ef01:2345:6789:abcd:ef01:234/128";
    expect(action(None, None), &v4, Some("masked_remote_address=10.1.2.3/32"));
    expect(action(Some(9), Some(1)), &v4, Some("masked_remote_address=10.0.0.0/9"));
    expect(action(Some(0), None), &v4, Some("masked_remote_address=0.0.0.0/0"));
    expect(action(None, None), &v6, Some(whole));
    expect(action(None, Some(64)), &v6, Some("masked_remote_address=2001:abcd:ef01:2345::/64"));
    expect(action(None, Some(0)), &v6, Some("masked_remote_address=::/0"));
    let compatible = of_address("[::1:2]:80");
    expect(action(None, None), &compatible, Some("masked_remote_address=::0.1.0.2/128"));
    let mapped = of_address("[::ffff:10.0.0.1]:80");
    expect(action(None, None), &mapped, Some("masked_remote_address=::ffff:10.0.0.1/128"));
    let limit = limit_of([action(Some(33), Some(129))]);
    refused(
        limit,
        "rate_limits[0].actions[0].masked_remote_address.v4_prefix_mask_len: 33; expected 0 to 32\n\
         rate_limits[0].actions[0].masked_remote_address.v6_prefix_mask_len: 129; expected 0 to 128",
    );
}

#[test]
fn the_cluster_and_constants_have_the_usual_keys() {
    let cluster = Fake::default();
    let action = || ActionSpecifier::DestinationCluster(DestinationCluster {});
    expect(action(), &cluster, Some("destination_cluster=web"));
    let redirect = Fake { is_redirect: true, ..Fake::default() };
    expect(action(), &redirect, None);
    expect(generic("x"), &redirect, None);
    expect(generic("x"), &cluster, Some("generic_key=x"));
    // The formatter is off by default in Envoy, and a module cannot see whether it is on.
    expect(generic("%REQ(a)%"), &cluster, Some("generic_key=%REQ(a)%"));
    let keyed = ActionSpecifier::GenericKey(GenericKey {
        descriptor_value: "v".into(),
        descriptor_key: "k".into(),
        default_value: "d".into(),
    });
    expect(keyed, &cluster, Some("k=v"));
}

fn header_match(matcher: HeaderMatcher, expect_match: Option<bool>) -> ActionSpecifier {
    ActionSpecifier::HeaderValueMatch(HeaderValueMatch {
        descriptor_value: "v".into(),
        expect_match: expect_match.map(bool_value),
        headers: vec![matcher],
        ..HeaderValueMatch::default()
    })
}

/// Whether a matcher matches each of: no header, an empty one, and these values.
#[track_caller]
fn header_cases(specifier: Option<HeaderMatchSpecifier>, cases: &[(Option<&str>, bool)]) {
    let matcher = |invert_match, treat_missing_header_as_empty| HeaderMatcher {
        name: "X-A".into(),
        invert_match,
        treat_missing_header_as_empty,
        header_match_specifier: specifier.clone(),
    };
    let is_presence = matches!(specifier, None | Some(HeaderMatchSpecifier::PresentMatch(_)));
    for (value, expected) in cases {
        let stream = of_headers(&value.map(|value| ("x-a", value)).into_iter().collect::<Vec<_>>());
        let entry = |matches: bool| matches.then_some("header_match=v");
        expect(header_match(matcher(false, false), None), &stream, entry(*expected));
        expect(header_match(matcher(false, false), Some(false)), &stream, entry(!expected));
        // Without the header, inverted matchers of values do not match either.
        let inverted = !expected && (value.is_some() || is_presence);
        expect(header_match(matcher(true, false), None), &stream, entry(inverted));
        if value.is_some() {
            expect(header_match(matcher(false, true), None), &stream, entry(*expected));
        }
    }
}

fn string(pattern: MatchPattern, ignore_case: bool) -> StringMatcher {
    StringMatcher { ignore_case, match_pattern: Some(pattern) }
}

fn header_string(pattern: MatchPattern, ignore_case: bool) -> Option<HeaderMatchSpecifier> {
    Some(HeaderMatchSpecifier::StringMatch(string(pattern, ignore_case)))
}

#[test]
fn headers_match_by_presence() {
    let cases = [(None, false), (Some(""), true), (Some("x"), true)];
    header_cases(None, &cases);
    header_cases(Some(HeaderMatchSpecifier::PresentMatch(true)), &cases);
    let absent = [(None, true), (Some(""), false), (Some("x"), false)];
    header_cases(Some(HeaderMatchSpecifier::PresentMatch(false)), &absent);
}

#[test]
#[expect(deprecated, reason = "configurations still use the older fields")]
fn headers_match_by_the_older_fields() {
    use HeaderMatchSpecifier as Specifier;
    let nothing = [(None, false), (Some(""), false), (Some("B"), false)];
    let cases = |values: [(&'static str, bool); 2]| {
        nothing.into_iter().chain(values.map(|(value, it)| (Some(value), it))).collect::<Vec<_>>()
    };
    header_cases(Some(Specifier::ExactMatch("b".into())), &cases([("b", true), ("bb", false)]));
    let any = [(None, false), (Some(""), true), (Some("x"), true)];
    header_cases(Some(Specifier::ExactMatch(String::new())), &any);
    header_cases(Some(Specifier::PrefixMatch("b".into())), &cases([("bc", true), ("cb", false)]));
    header_cases(Some(Specifier::SuffixMatch("b".into())), &cases([("cb", true), ("bc", false)]));
    header_cases(Some(Specifier::ContainsMatch("b".into())), &cases([("cbc", true), ("c", false)]));
    let regex = RegexMatcher { regex: "b+".into(), engine_type: None };
    header_cases(Some(Specifier::SafeRegexMatch(regex)), &cases([("bb", true), ("bc", false)]));
}

#[test]
fn headers_match_by_strings() {
    let exact = |ignore_case| header_string(MatchPattern::Exact("Ab".into()), ignore_case);
    header_cases(exact(false), &[(Some("Ab"), true), (Some("ab"), false), (None, false)]);
    header_cases(exact(true), &[(Some("aB"), true), (Some("abc"), false)]);
    let empty = header_string(MatchPattern::Exact(String::new()), false);
    header_cases(empty, &[(Some(""), true), (Some("a"), false)]);
    let prefix = |ignore_case| header_string(MatchPattern::Prefix("Ab".into()), ignore_case);
    header_cases(prefix(false), &[(Some("Abc"), true), (Some("abc"), false), (Some("A"), false)]);
    header_cases(prefix(true), &[(Some("aBc"), true), (Some("cab"), false)]);
    let suffix = |ignore_case| header_string(MatchPattern::Suffix("Ab".into()), ignore_case);
    header_cases(suffix(false), &[(Some("cAb"), true), (Some("cab"), false), (Some("b"), false)]);
    header_cases(suffix(true), &[(Some("caB"), true), (Some("abc"), false)]);
    let contains = |ignore_case| header_string(MatchPattern::Contains("Ab".into()), ignore_case);
    header_cases(contains(false), &[(Some("cAbc"), true), (Some("cabc"), false)]);
    header_cases(contains(true), &[(Some("caBc"), true), (Some("a b"), false)]);
}

#[test]
fn headers_match_by_a_range_without_its_end() {
    let range = Int64Range { start: -10, end: 5 };
    let cases = [("-10", true), ("4", true), ("+4", true), ("5", false), ("-11", false)];
    let others = [("4.5", false), ("4x", false), ("", false), ("99999999999999999999", false)];
    let cases: Vec<_> =
        cases.iter().chain(&others).map(|(value, it)| (Some(*value), *it)).collect();
    header_cases(Some(HeaderMatchSpecifier::RangeMatch(range)), &cases);
}

#[test]
fn one_of_several_values_has_to_match_and_none_if_inverted() {
    let matcher = |value: &str, invert_match| HeaderMatcher {
        name: "a".into(),
        invert_match,
        header_match_specifier: header_string(MatchPattern::Exact(value.into()), false),
        ..HeaderMatcher::default()
    };
    let stream = of_headers(&[("a", "1"), ("a", ""), ("a", "2")]);
    for (value, expected) in [("1", true), ("2", true), ("", true), ("1,,2", false), ("3", false)] {
        let entry = |matches: bool| matches.then_some("header_match=v");
        expect(header_match(matcher(value, false), None), &stream, entry(expected));
        expect(header_match(matcher(value, true), None), &stream, entry(!expected));
    }
}

#[test]
fn a_missing_header_can_stand_for_an_empty_one() {
    let matcher = |invert_match, header_match_specifier| HeaderMatcher {
        name: "a".into(),
        invert_match,
        treat_missing_header_as_empty: true,
        header_match_specifier,
    };
    let stream = Fake::default();
    let range = || Some(HeaderMatchSpecifier::RangeMatch(Int64Range { start: 0, end: 10 }));
    expect(header_match(matcher(false, range()), None), &stream, None);
    expect(header_match(matcher(true, range()), None), &stream, Some("header_match=v"));
    let empty = header_string(MatchPattern::Exact(String::new()), false);
    expect(header_match(matcher(false, empty), None), &stream, Some("header_match=v"));
    let present = Some(HeaderMatchSpecifier::PresentMatch(true));
    expect(header_match(matcher(false, present), None), &stream, Some("header_match=v"));
}

#[test]
fn all_matchers_have_to_match() {
    let has = |name: &str| HeaderMatcher { name: name.into(), ..HeaderMatcher::default() };
    let action = |expect_match: bool| {
        ActionSpecifier::HeaderValueMatch(HeaderValueMatch {
            descriptor_key: "k".into(),
            descriptor_value: "v".into(),
            expect_match: Some(bool_value(expect_match)),
            headers: vec![has("a"), has("b")],
            ..HeaderValueMatch::default()
        })
    };
    expect(action(true), &of_headers(&[("a", ""), ("b", "")]), Some("k=v"));
    expect(action(true), &of_headers(&[("a", "")]), None);
    expect(action(false), &of_headers(&[("a", "")]), Some("k=v"));
}

#[test]
fn query_parameters_match_by_their_first_value() {
    let action = |specifier: Option<QueryParameterMatchSpecifier>, expect_match: Option<bool>| {
        ActionSpecifier::QueryParameterValueMatch(QueryParameterValueMatch {
            descriptor_value: "v".into(),
            expect_match: expect_match.map(bool_value),
            query_parameters: vec![QueryParameterMatcher {
                name: "a".into(),
                query_parameter_match_specifier: specifier,
            }],
            ..QueryParameterValueMatch::default()
        })
    };
    use QueryParameterMatchSpecifier as Specifier;
    let exact = || Some(Specifier::StringMatch(string(MatchPattern::Exact("x y".into()), false)));
    let found = Some("query_match=v");
    expect(action(exact(), None), &of_path("/?a=x%20y"), found);
    expect(action(exact(), None), &of_path("/?a=1&a=x%20y"), None);
    expect(action(exact(), None), &of_path("/"), None);
    expect(action(exact(), Some(false)), &of_path("/"), found);
    expect(action(None, None), &of_path("/?a"), found);
    expect(action(Some(Specifier::PresentMatch(true)), None), &of_path("/?a"), found);
    expect(action(Some(Specifier::PresentMatch(false)), None), &of_path("/?a"), None);
    expect(action(Some(Specifier::PresentMatch(false)), None), &of_path("/"), found);
}

fn path(keys: &[&str], index: Option<u32>) -> MetadataKey {
    let keys = keys.iter().map(|key| Segment::Key((*key).into()));
    let path = keys.chain(index.map(Segment::Index)).map(|it| PathSegment { segment: Some(it) });
    MetadataKey { key: "ns".into(), path: path.collect() }
}

#[test]
fn metadata_give_a_string_or_the_default() {
    let action = |source: i32, index: Option<u32>, default: &str, skip_if_absent: bool| {
        ActionSpecifier::Metadata(MetaData {
            descriptor_key: "m".into(),
            metadata_key: Some(path(&["k"], index)),
            default_value: default.into(),
            source,
            skip_if_absent,
        })
    };
    let strings = vec![
        (MetadataSource::Dynamic, "ns:k", None, "d"),
        (MetadataSource::Route, "ns:k", None, "r"),
        (MetadataSource::Cluster, "ns:k", None, ""),
        (MetadataSource::Locality, "ns:k", Some(2), "l"),
    ];
    let stream = Fake { strings, ..Fake::default() };
    expect(action(0, None, "", false), &stream, Some("m=d"));
    expect(action(1, None, "x", false), &stream, Some("m=r"));
    expect(action(2, None, "", false), &stream, None);
    expect(action(2, None, "x", false), &stream, Some("m=x"));
    expect(action(2, None, "", true), &stream, Some(""));
    expect(action(3, Some(2), "", false), &stream, Some("m=l"));
    expect(action(3, Some(1), "", false), &stream, None);
    let number = Fake { numbers: vec![("ns:k", 7.0)], ..Fake::default() };
    expect(action(0, None, "", false), &number, None);
}

#[test]
fn an_address_matches_ranges() {
    let action = |invert_match, value: &str, default: &str| {
        let range = |address: &str, bits: u32| CidrRange {
            address_prefix: address.into(),
            prefix_len: Some(u32_value(bits)),
        };
        let ranges = vec![range("10.0.0.0", 8), range("2001:db8::", 32)];
        ActionSpecifier::RemoteAddressMatch(RemoteAddressMatch {
            descriptor_value: value.into(),
            default_value: default.into(),
            address_matcher: Some(AddressMatcher { ranges, invert_match }),
            ..RemoteAddressMatch::default()
        })
    };
    let found = Some("remote_address_match=v");
    expect(action(false, "v", ""), &of_address("10.9.9.9:1"), found);
    expect(action(false, "v", ""), &of_address("[2001:db8:1::]:1"), found);
    expect(action(false, "v", ""), &of_address("11.0.0.1:1"), None);
    expect(action(true, "v", ""), &of_address("11.0.0.1:1"), found);
    expect(action(true, "v", ""), &of_address("/run/a.sock"), None);
    let of_client = action(false, "a%%-%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "");
    let text = "remote_address_match=a%-10.9.9.9";
    expect(of_client, &of_address("10.9.9.9:1"), Some(text));
    let mut stream = of_headers(&[("b", "1234")]);
    stream.address = Some("10.0.0.1:1");
    expect(action(false, "%REQ(A?B):2%", ""), &stream, Some("remote_address_match=12"));
    expect(action(false, "%REQ(A)%", ""), &stream, None);
    expect(action(false, "%REQ(A)%", "none"), &stream, Some("remote_address_match=none"));
}

#[test]
fn matching_inputs_take_the_name_of_the_extension_for_their_key() {
    fn action<M: Message + Name>(input: &M) -> ActionSpecifier {
        let config = Any { type_url: M::type_url(), value: input.encode_to_vec() };
        let typed_config = Some(config);
        ActionSpecifier::Extension(TypedExtensionConfig { name: "e".into(), typed_config })
    }
    let header = HttpRequestHeaderMatchInput { header_name: "X-A".into() };
    expect(action(&header), &of_headers(&[("x-a", "1"), ("x-a", "2")]), Some("e=1,2"));
    expect(action(&header), &of_headers(&[("x-a", "")]), Some(""));
    expect(action(&header), &of_headers(&[]), None);
    let query = HttpRequestQueryParamMatchInput { query_param: "a".into() };
    expect(action(&query), &of_path("/?a=%20"), Some("e= "));
    expect(action(&query), &of_path("/"), None);
    refused(
        limit_of([action(&StringMatcher::default())]),
        "rate_limits[0].actions[0].extension.typed_config: envoy.type.matcher.v3.StringMatcher: a \
         module of Envoy cannot run other extensions (such as CEL); expected \
         HttpRequestHeaderMatchInput or HttpRequestQueryParamMatchInput",
    );
}

#[test]
fn a_limit_belongs_to_one_stage_and_phase() {
    let limits = [
        limit_of([generic("start")]),
        RateLimit { stage: Some(u32_value(3)), ..limit_of([generic("staged")]) },
        RateLimit { apply_on_stream_done: true, ..limit_of([generic("done")]) },
    ];
    let actions = compiled(&limits);
    let values = |phase, stage| {
        let stream = Fake::default();
        let drafts = actions.descriptors(&stream, phase, stage);
        drafts.iter().map(|it| it.entries[0].1.clone().into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(values(Phase::Start, 0), ["start"]);
    assert_eq!(values(Phase::Start, 3), ["staged"]);
    assert_eq!(values(Phase::Done, 0), ["done"]);
    assert_eq!(values(Phase::Done, 3), [""; 0]);
    assert!(actions.apply_in(Phase::Done, 0));
    assert!(!actions.apply_in(Phase::Done, 3));
}

#[test]
fn only_a_generic_key_names_the_stream() {
    let name = "ratelease.stream";
    let header = ActionSpecifier::RequestHeaders(RequestHeaders {
        header_name: "x-user".to_owned(),
        descriptor_key: "user".to_owned(),
        ..RequestHeaders::default()
    });
    let actions = compiled(&[limit_of([header, generic(name)])]);
    let stream = of_headers(&[("x-user", name)]);
    let mut drafts = actions.descriptors(&stream, Phase::Start, 0);
    drafts.name_streams(|| "1".to_owned());
    let values: Vec<_> = drafts.iter().flat_map(|it| &it.entries).map(|it| &*it.1).collect();
    assert_eq!(values, [name, "1"]);
}

#[test]
fn the_runtime_can_switch_a_limit_off() {
    let limit = RateLimit { disable_key: "a".into(), ..limit_of([generic("x")]) };
    let mut actions = compiled(&[limit]);
    for (part, descriptors) in [(Some(0.0), 0), (Some(1.0), 1), (None, 1)] {
        actions.read_runtime(|key| {
            assert_eq!(key, "ratelimit.a.http_filter_enabled");
            part.map(Fraction::new)
        });
        let stream = Fake::default();
        let drafts = actions.descriptors(&stream, Phase::Start, 0);
        assert_eq!(drafts.iter().count(), descriptors, "{part:?}");
    }
}

#[test]
fn a_descriptor_carries_its_limit_its_hits_and_its_headers() {
    let rate_limit = RateLimitOverride { requests_per_unit: 7, unit: 3 };
    let override_specifier = Some(OverrideSpecifier::RateLimit(rate_limit));
    let hits = HitsAddend {
        number: Some(UInt64Value { value: 0 }),
        is_negative_hits: true,
        ..HitsAddend::default()
    };
    let limit = RateLimit {
        limit: Some(Override { override_specifier }),
        hits_addend: Some(hits),
        x_ratelimit_option: 2,
        ..limit_of([generic("x")])
    };
    let actions = compiled(&[limit, limit_of([generic("y")])]);
    let stream = Fake::default();
    let drafts = actions.descriptors(&stream, Phase::Start, 0);
    let request = drafts.request("d", 3);
    let [first, second] = &request.descriptors[..] else { panic!("{request:?}") };
    assert_eq!(first.limit, Some(Limit::fixed_window(7, Unit::Hour)));
    assert_eq!((first.hits_addend, first.refund), (Some(0), true));
    assert_eq!((second.limit, second.hits_addend, second.refund), (None, None, false));
    assert_eq!((request.domain, request.hits(first), request.hits(second)), ("d", 0, 3));
    let headers: Vec<_> = drafts.iter().map(|it| it.headers).collect();
    assert_eq!(headers, [RateLimitHeaders::Draft03, RateLimitHeaders::Inherit]);
}

#[test]
fn hits_are_found_in_the_stream() {
    let hits = |format: &str, stream: &Fake| {
        let addend = HitsAddend { format: format.into(), ..HitsAddend::default() };
        let limit = RateLimit { hits_addend: Some(addend), ..limit_of([generic("x")]) };
        let actions = compiled(&[limit]);
        let drafts = actions.descriptors(stream, Phase::Start, 0);
        drafts.iter().next().map(|it| it.hits_addend)
    };
    let of_text = |text: &str| hits("%REQ(a)%", &of_headers(&[("a", text)]));
    assert_eq!(of_text("7"), Some(Some(7)));
    assert_eq!(of_text(" 7.9 "), Some(Some(7)));
    assert_eq!(of_text("1e9"), Some(Some(1_000_000_000)));
    for refused in ["1e10", "-1", "nan", "inf", "x", "", "7 8"] {
        assert_eq!(of_text(refused), None, "{refused:?}");
    }
    assert_eq!(hits("%REQ(a)%", &Fake::default()), None);
    let counts = vec![(Count::BytesSent, 12), (Count::BytesReceived, 1_000_000_001)];
    let numbers = vec![("ns:k", 3.0)];
    let strings = vec![(MetadataSource::Dynamic, "ns:s", None, "5")];
    let response = vec![("x-cost", b"6".to_vec())];
    let stream = Fake { counts, numbers, strings, response, ..Fake::default() };
    assert_eq!(hits("%BYTES_SENT%", &stream), Some(Some(12)));
    assert_eq!(hits("%BYTES_RECEIVED%", &stream), None, "more than a billion");
    assert_eq!(hits("%RESPONSE_CODE%", &stream), None);
    assert_eq!(hits("%DYNAMIC_METADATA(ns:k)%", &stream), Some(Some(3)));
    assert_eq!(hits("%DYNAMIC_METADATA(ns:s)%", &stream), Some(Some(5)));
    assert_eq!(hits("%RESP(x-cost)%", &stream), Some(Some(6)));
}

/// The places below `rate_limits`, and the text of the fault at each.
const FAULTS: [(&str, &str); 18] = [
    ("[0].stage", "11; expected 0 to 10"),
    ("[0].actions", "missing; expected one action"),
    ("[0].x_ratelimit_option", "9; expected UNSPECIFIED"),
    ("[1].actions[0]", "no action that Envoy 1.40 knows"),
    ("[1].limit.dynamic_metadata", "cannot read a struct"),
    ("[1].hits_addend", "number and format; expected one"),
    ("[2].actions[0].source_cluster", "generic_key with descriptor_key source_cluster"),
    ("[2].actions[1].request_headers.header_name", "missing"),
    ("[2].actions[2].header_value_match.descriptor_value", "missing"),
    ("[2].actions[2].header_value_match.headers", "missing; expected one matcher"),
    ("[2].actions[3].header_value_match.headers[0].string_match.safe_regex.regex", "unclosed"),
    ("[2].actions[4].header_value_match.headers[0].string_match.prefix", "missing"),
    ("[2].actions[5].metadata.metadata_key.path", "expected [{key: …}]"),
    ("[2].hits_addend.format", "%CEL%: a module of Envoy knows only %REQ(…)%"),
    ("[3].hits_addend.format", "expected one operator"),
    ("[4].hits_addend.number", "expected at most 1000000000"),
    ("[5].actions[0].generic_key.descriptor_value", "missing"),
    ("[5].hits_addend", "empty; expected number or format"),
];

#[test]
fn all_faults_are_told_with_their_places() {
    let hits = |number: Option<u64>, format: &str| {
        let number = number.map(|value| UInt64Value { value });
        Some(HitsAddend { number, format: format.into(), ..HitsAddend::default() })
    };
    let specifier = Some(OverrideSpecifier::DynamicMetadata(DynamicMetadata::default()));
    let pattern = |regex: &str| {
        let regex = RegexMatcher { regex: regex.into(), engine_type: None };
        header_string(MatchPattern::SafeRegex(regex), false)
    };
    let matcher = |header_match_specifier| HeaderMatcher {
        name: "a".into(),
        header_match_specifier,
        ..HeaderMatcher::default()
    };
    let limits = [
        RateLimit { stage: Some(u32_value(11)), x_ratelimit_option: 9, ..limit_of([]) },
        RateLimit {
            actions: vec![Action::default()],
            limit: Some(Override { override_specifier: specifier }),
            hits_addend: hits(Some(1), "%BYTES_SENT%"),
            ..RateLimit::default()
        },
        RateLimit {
            hits_addend: hits(None, "%CEL(request.size)%"),
            ..limit_of([
                ActionSpecifier::SourceCluster(SourceCluster {}),
                header("", false),
                ActionSpecifier::HeaderValueMatch(HeaderValueMatch::default()),
                header_match(matcher(pattern("a(")), None),
                header_match(
                    matcher(header_string(MatchPattern::Prefix(String::new()), true)),
                    None,
                ),
                ActionSpecifier::Metadata(MetaData {
                    descriptor_key: "k".into(),
                    metadata_key: Some(path(&["a", "b"], None)),
                    ..MetaData::default()
                }),
            ])
        },
        RateLimit { hits_addend: hits(None, "%BYTES_SENT%x"), ..limit_of([generic("x")]) },
        RateLimit { hits_addend: hits(Some(1_000_000_001), ""), ..limit_of([generic("x")]) },
        RateLimit { hits_addend: hits(None, ""), ..limit_of([generic("")]) },
    ];
    let mut faults = Faults::default();
    Actions::compile(&limits, "rate_limits", &mut faults);
    let found: Vec<_> = faults.iter().map(|it| (it.place.as_str(), it.message.as_str())).collect();
    assert_eq!(found.len(), FAULTS.len(), "{faults}");
    for ((place, message), (at, says)) in found.iter().zip(FAULTS) {
        assert_eq!(*place, format!("rate_limits{at}"));
        assert!(message.contains(says), "{place}: {message}");
    }
}

#[test]
fn only_a_hundred_faults_are_kept() {
    let limits = vec![RateLimit::default(); 150];
    let mut faults = Faults::default();
    Actions::compile(&limits, "rate_limits", &mut faults);
    assert_eq!(faults.iter().count(), 100);
    assert!(faults.to_string().ends_with("\nand 50 more"));
}
