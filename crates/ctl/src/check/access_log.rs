//! Whether every end of a request arrives at ratelease through a gRPC access log.

use std::time::Duration;

use ratelease_rules::yaml::{Yaml, YamlKind};

use super::action::{Origin, name_of};
use super::cluster::grpc_cluster;
use super::finding::{At, Finding, Reading, own_default};
use crate::yaml_documents::{duration, field, items, text};

/// The ending of the type URL of the message.
const GRPC_LOG: &str = "access_loggers.grpc.v3.HttpGrpcAccessLogConfig";

/// The `log_name` by which ratelease knows its log.
const LOG_NAME: &str = "ratelease";

/// The custom tag with the id of the request.
const ID_TAG: &str = "ratelease.id";

/// Envoy's own size of the buffer of a log, in bytes.
const BUFFER_DEFAULT: u64 = 16_384;

/// The smallest buffer in bytes that kept all entries of two thousand requests that ended at once.
const BUFFER_MIN: u64 = 64 << 20;

/// Envoy's own interval.
const FLUSH_DEFAULT: Duration = Duration::from_secs(1);

/// The longest interval for which a slot is free soon enough: requests wait for it.
const FLUSH_MAX: Duration = Duration::from_millis(100);

/// The details of a response by which the rate limit filter denies.
const DENIED: &str = "request_rate_limited";

/// The filter that lets each end pass that has to.
const FILTER_FIX: &str = "filter by the expression \"!has(response.code_details) || \
                           response.code_details != 'request_rate_limited'\"";

/// A gRPC access log of HTTP.
#[derive(Debug)]
pub(super) struct AccessLog {
    pub(super) at: At,
    pub(super) cluster: Option<String>,
    /// The tag with the id: its place, and the origin of its value.
    pub(super) id: Option<(At, Origin)>,
    /// Whether requests that were denied have no entry.
    pub(super) drops_denied: bool,
    /// Whether it is meant for ratelease.
    is_named: bool,
    /// Faults of the log, whichever descriptors are sent.
    pub(super) findings: Vec<Finding>,
}

// === impl AccessLog ===

impl AccessLog {
    /// Reads an `AccessLog` message, if it has a gRPC log.
    pub(super) fn read(of: &Yaml, reading: &Reading) -> Option<Self> {
        let config = field(of, "typed_config")?;
        field(config, "@type").and_then(text).filter(|kind| kind.ends_with(GRPC_LOG))?;
        let common = field(config, "common_config")?;
        let at = reading.at(of.place);
        let is_named = field(common, "log_name").and_then(text) == Some(LOG_NAME);
        let mut findings = Vec::new();
        if !is_named {
            let problem = "ratelease ignores a log of another name";
            findings.push(Finding::error(at.clone(), problem, "set log_name: ratelease"));
        }
        let id = id_tag(common).map(|tag| (reading.at(tag.place), origin(tag)));
        findings.extend(review_id(id.as_ref(), &at));
        findings.extend(review_buffer(common, &at, reading));
        let filter = field(of, "filter");
        findings.extend(filter.into_iter().flat_map(|filter| review_filter(filter, reading)));
        let drops_denied = filter.is_some_and(|filter| has_text(filter, DENIED));
        let cluster = grpc_cluster(common).map(str::to_owned);
        Some(Self { at, cluster, id, drops_denied, is_named, findings })
    }

    /// Whether it is meant for ratelease, whose cluster is one of these.
    pub(super) fn is_ours(&self, clusters: &[&str]) -> bool {
        let shares = self.cluster.as_deref().is_some_and(|own| clusters.contains(&own));
        self.is_named || self.id.is_some() || shares
    }
}

fn id_tag(common: &Yaml) -> Option<&Yaml> {
    let tags = items(field(common, "custom_tags")).iter();
    tags.rev().find(|tag| field(tag, "tag").and_then(text) == Some(ID_TAG))
}

/// Whether a value has a text anywhere.
fn has_text(of: &Yaml, part: &str) -> bool {
    match &of.kind {
        YamlKind::Null => false,
        YamlKind::Scalar(text) => text.contains(part),
        YamlKind::List(items) => items.iter().any(|item| has_text(item, part)),
        YamlKind::Map(pairs) => pairs.iter().any(|(_, value)| has_text(value, part)),
    }
}

/// The origin of a custom tag's value.
fn origin(tag: &Yaml) -> Origin {
    if let Some(format) = field(tag, "value").and_then(text) {
        return Origin::of_format(format);
    }
    let header = field(tag, "request_header").and_then(|it| field(it, "name")).and_then(text);
    match header {
        Some(name) => Origin::header(name),
        None if field(tag, "literal").is_some() => Origin::Fixed,
        None => Origin::Other,
    }
}

fn review_id(id: Option<&(At, Origin)>, log: &At) -> Option<Finding> {
    let tag = "{tag: ratelease.id, value: \"%FILTER_STATE(ratelease.id:PLAIN)%\"}";
    match id {
        None => Some(Finding::error(
            log.clone(),
            "no custom tag 'ratelease.id': its entries end no request",
            format!("add {tag} to custom_tags"),
        )),
        Some((at, Origin::FilterStateAsJson(_))) => Some(Finding::error(
            at.clone(),
            "the tag has the id as JSON, in quotes: its entries end no request",
            format!("write {tag}"),
        )),
        Some((at, Origin::Unique | Origin::Fixed)) => Some(Finding::error(
            at.clone(),
            "the tag has another id than the request: its entries end no request",
            format!("write {tag}"),
        )),
        Some(_) => None,
    }
}

fn review_buffer(common: &Yaml, log: &At, reading: &Reading) -> Vec<Finding> {
    let mut findings = Vec::new();
    let place = |name| field(common, name).map_or(log.clone(), |it| reading.at(it.place));
    let size = field(common, "buffer_size_bytes").and_then(text);
    let bytes = size.and_then(|size| size.parse().ok()).unwrap_or(BUFFER_DEFAULT);
    if (1..BUFFER_MIN).contains(&bytes) {
        let problem = format!(
            "buffer_size_bytes is {bytes}{}: Envoy drops what exceeds it while the stream opens",
            own_default(size.is_none())
        );
        let fix = format!("set buffer_size_bytes: {BUFFER_MIN}");
        findings.push(Finding::error(place("buffer_size_bytes"), problem, fix));
    }
    let interval = duration(common, "buffer_flush_interval");
    let flush = interval.unwrap_or(FLUSH_DEFAULT);
    if flush > FLUSH_MAX && bytes > 0 {
        let problem = format!(
            "buffer_flush_interval is {flush:?}{}: slots come back so much later",
            own_default(interval.is_none())
        );
        let fix = "set buffer_flush_interval: 0.005s";
        findings.push(Finding::warning(place("buffer_flush_interval"), problem, fix));
    }
    findings
}

/// Reports entries of ends that a filter keeps back.
fn review_filter(filter: &Yaml, reading: &Reading) -> Vec<Finding> {
    let name = name_of(filter).unwrap_or_default();
    let of = field(filter, name).unwrap_or(filter);
    let error = |problem: &str| vec![Finding::error(reading.at(of.place), problem, FILTER_FIX)];
    let all = || items(field(of, "filters")).iter().map(|it| review_filter(it, reading));
    match name {
        "and_filter" | "andFilter" => all().flatten().collect(),
        "or_filter" | "orFilter" if all().any(|it| it.is_empty()) => Vec::new(),
        "or_filter" | "orFilter" => all().flatten().collect(),
        "extension_filter" | "extensionFilter" => {
            let expression = field(of, "typed_config").and_then(|it| field(it, "expression"));
            let Some(expression) = expression else { return Vec::new() };
            let reviewed = text(expression).and_then(review_expression);
            let at = || reading.at(expression.place);
            match reviewed {
                Some(Doubt::Certain(it)) => vec![Finding::error(at(), it, FILTER_FIX)],
                Some(Doubt::Possible(it)) => vec![Finding::warning(at(), it, FILTER_FIX)],
                None => Vec::new(),
            }
        }
        "metadata_filter" | "metadataFilter" => {
            error("a request that was cancelled has no metadata: its end passes this filter never")
        }
        "status_code_filter" | "statusCodeFilter" => error(
            "a request that was cancelled has no status, and upstreams send 429 too: this filter \
             keeps their ends back",
        ),
        "log_type_filter" | "logTypeFilter" if keeps_ends(of) => Vec::new(),
        "not_health_check_filter" | "notHealthCheckFilter" => Vec::new(),
        _ => error("this filter keeps ends of requests back"),
    }
}

/// Whether a `log_type_filter` lets entries of ends pass.
fn keeps_ends(filter: &Yaml) -> bool {
    let mut types = items(field(filter, "types")).iter().filter_map(text);
    let has_end = types.any(|it| it == "DownstreamEnd");
    has_end != (field(filter, "exclude").and_then(text) == Some("true"))
}

/// A doubt whether an expression lets each end pass.
#[derive(Debug, PartialEq, Eq)]
enum Doubt {
    Certain(&'static str),
    Possible(&'static str),
}

/// Reports ends that an expression in CEL keeps back.
fn review_expression(expression: &str) -> Option<Doubt> {
    let compact: String = expression.chars().filter(|it| !it.is_whitespace()).collect();
    let compact = compact.replace('"', "'");
    let without_details = compact.replace("response.code_details", "");
    if compact.contains("metadata") {
        return Some(Doubt::Certain(
            "a request that was cancelled has no metadata: the expression fails, and its end does \
             not pass",
        ));
    }
    if without_details.contains("response.code") {
        return Some(Doubt::Certain(
            "a request that was cancelled has no status, and upstreams send 429 too: their ends do \
             not pass",
        ));
    }
    let compares = "response.code_details!='request_rate_limited'";
    let has_details = compact.contains("response.code_details");
    if has_details && !compact.contains(compares) {
        return Some(Doubt::Certain(
            "it lets entries pass by the details of the response: only the denied ones have no end \
             ('request_rate_limited')",
        ));
    }
    if has_details && !compact.contains("!has(response.code_details)||") {
        return Some(Doubt::Certain(
            "an expression that reads an absent field lets nothing pass: requests that have no \
             response yet give no sign of life",
        ));
    }
    let rest = without_details.replace("'ratelease.id'infilter_state", "");
    let reads = ["request.", "response.", "connection.", "upstream.", "source.", "destination."];
    let reads_more = reads.iter().any(|attribute| rest.contains(attribute));
    reads_more.then_some(Doubt::Possible("ends of requests may not pass this expression"))
}

#[cfg(test)]
mod tests {
    use super::{Doubt, review_expression};

    #[test]
    fn an_expression_lets_each_end_pass_or_says_what_it_keeps_back() {
        for good in [
            "!has(response.code_details) || response.code_details != 'request_rate_limited'",
            "!has(response.code_details) || response.code_details != \"request_rate_limited\"",
            "'ratelease.id' in filter_state",
            "'ratelease.id' in filter_state && (!has(response.code_details) || \
             response.code_details != 'request_rate_limited')",
        ] {
            assert_eq!(review_expression(good), None, "{good}");
        }
        for (bad, said) in [
            ("response.code_details != 'request_rate_limited'", "no sign of life"),
            ("!has(response.code_details) || response.code_details == 'via_upstream'", "denied"),
            ("response.code != 429", "status"),
            ("!has(response.code) || response.code != 429", "429"),
            ("'lease' in metadata.filter_metadata['a']", "metadata"),
        ] {
            let Some(Doubt::Certain(found)) = review_expression(bad) else { panic!("{bad}") };
            assert!(found.contains(said), "{bad}: {found}");
        }
        assert!(matches!(review_expression("request.total_size > 4"), Some(Doubt::Possible(_))));
    }
}
