//! Rate limit actions: compiled from Envoy's `envoy.config.route.v3.RateLimit` messages, and from a
//! stream to descriptors, as the rate limit filter of Envoy 1.40 makes them.
//!
//! Nothing here knows Envoy's interface for modules: a stream is seen through [`Stream`] alone. A
//! property that a module cannot see is refused when its action is compiled, with its place.

mod action;
mod address;
mod fault;
mod format;
mod matchers;
mod re2;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use envoy_types::pb::envoy::config::route::v3 as pb;
use envoy_types::pb::envoy::r#type::metadata::v3 as metadata_pb;
use ratelease_rules::request::{DESCRIPTORS_MAX, Descriptor, ENTRIES_MAX, Entry, Few, Request};
use ratelease_rules::{Limit, Unit};
use smallvec::SmallVec;

use self::action::Action;
pub use self::fault::{Faults, Place};
use self::fault::{each, expect_some, expect_text};
use self::format::{Format, Number, Operator};
use crate::runtime::Fraction;

/// The last stage; Envoy's `stage` is 0 to 10.
pub const STAGE_MAX: u32 = 10;

/// Entries that a draft holds without an allocation.
const ENTRIES: usize = 4;

/// Maximum hits of one descriptor, as in Envoy.
const HITS_MAX: u64 = 1_000_000_000;

/// The properties of a stream that actions read. All text is borrowed from the stream, and may be
/// any bytes.
pub trait Stream {
    /// The value number `index` of a request header; the name is in lower case, or one such as
    /// `:path`.
    fn request_header(&self, name: &str, index: usize) -> Option<&[u8]>;

    /// All values of a request header.
    fn request_headers(&self, name: &str) -> Vec<&[u8]>;

    /// The first value of a response header; `None` before there is a response.
    fn response_header(&self, name: &str) -> Option<&[u8]>;

    /// The attribute `source.address`: the trusted address of the client with its port, such as
    /// `10.0.0.1:4711` or `[2001:db8::1]:4711`, or the path of a pipe.
    fn source_address(&self) -> Option<&[u8]>;

    /// The name of the cluster that the route selected.
    fn destination_cluster(&self) -> Option<&[u8]>;

    /// A string of metadata; an item of a list if `index` is given. `None` if there is none, or it
    /// is no string.
    fn metadata_string(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<&[u8]>;

    /// A number of metadata; an item of a list if `index` is given. `None` if there is none, or it
    /// is no number.
    fn metadata_number(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<f64>;

    /// The value that Envoy has for `count` so far.
    fn count(&self, count: Count) -> Option<u64>;
}

/// Where metadata come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetadataSource {
    /// The dynamic metadata of the stream.
    Dynamic,
    /// The metadata of the route.
    Route,
    /// The metadata of the cluster.
    Cluster,
    /// The metadata of the locality of the upstream host; there is one once a host is selected.
    Locality,
}

/// A number that Envoy counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// `BYTES_RECEIVED`: bytes of the request's body.
    BytesReceived,
    /// `BYTES_SENT`: bytes of the response's body.
    BytesSent,
    /// `RESPONSE_CODE`: the status of the response; 0 if there is none.
    ResponseCode,
}

/// When descriptors are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// When the request's headers have arrived: the request waits for the verdict.
    Start,
    /// When the stream is complete (`apply_on_stream_done`): hits are counted, nothing is denied.
    Done,
}

/// The X-RateLimit headers that a descriptor asks for (`x_ratelimit_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RateLimitHeaders {
    /// Headers as the filter's configuration says.
    #[default]
    Inherit,
    /// No headers.
    Off,
    /// The headers of draft 03.
    Draft03,
}

/// The rate limits of a filter, a virtual host or a route, compiled.
#[derive(Debug, Default)]
pub struct Actions {
    rate_limits: Vec<RateLimit>,
}

/// One `RateLimit` message: at most one descriptor of each stream.
#[derive(Debug)]
struct RateLimit {
    stage: u32,
    /// The key of Envoy's runtime with the part of the streams that the limit applies to.
    runtime_key: Option<String>,
    enabled: Fraction,
    phase: Phase,
    actions: Vec<Action>,
    limit: Option<Limit>,
    hits: Hits,
    /// `is_negative_hits`
    refund: bool,
    headers: RateLimitHeaders,
}

/// The number of hits that a descriptor adds (`hits_addend`): a constant, or a number that an
/// operator finds in the stream.
#[derive(Debug)]
enum Hits {
    /// The number of hits of the request.
    OfRequest,
    Fixed(u64),
    Found(Operator),
}

/// Where a value lies in metadata, as far as a module can reach: a namespace, a key, and an item of
/// a list.
#[derive(Debug)]
struct MetadataKey {
    source: MetadataSource,
    namespace: String,
    key: String,
    index: Option<u32>,
}

/// The descriptors of one stream, before they are a request.
#[derive(Debug, Default)]
pub struct Drafts<'s> {
    drafts: Few<Draft<'s>>,
}

/// One descriptor, which borrows from the stream where it can.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft<'s> {
    /// Key and value of each entry. Bytes that are not UTF-8 have become U+FFFD.
    pub entries: SmallVec<[(&'s str, Cow<'s, str>); ENTRIES]>,
    /// Entries whose value is to be the name of the stream, by their indexes.
    pub named: SmallVec<[usize; 1]>,
    /// The limit that the configuration gives in place of the rule's.
    pub limit: Option<Limit>,
    /// Hits of this descriptor alone.
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    pub refund: bool,
    /// The X-RateLimit headers that the descriptor asks for.
    pub headers: RateLimitHeaders,
}

// === impl Actions ===

impl Actions {
    /// Compiles the messages of the field that `place` names, such as `rate_limits`. Faulty parts
    /// are left out and noted in `faults`: the result is of use only if there are none.
    pub fn compile(messages: &[pb::RateLimit], place: &str, faults: &mut Faults) -> Self {
        let place = Place::root(place);
        if messages.len() > DESCRIPTORS_MAX {
            let many = messages.len();
            let text = format!("{many} rate limits; expected at most {DESCRIPTORS_MAX}");
            faults.add(place, text);
        }
        let messages = messages.iter().enumerate();
        let rate_limits = messages
            .filter_map(|(at, message)| RateLimit::compile(message, &place.item(at), faults))
            .collect();
        Self { rate_limits }
    }

    /// Asks for the part at each key of the runtime; all where there is none.
    pub fn read_runtime(&mut self, part: impl Fn(&str) -> Option<Fraction>) {
        for limit in &mut self.rate_limits {
            let found = limit.runtime_key.as_deref().and_then(&part);
            limit.enabled = found.unwrap_or(Fraction::ALL);
        }
    }

    /// Whether there is none: as if the field were not set.
    pub fn is_empty(&self) -> bool {
        self.rate_limits.is_empty()
    }

    /// Whether any is to be applied in this phase, to a filter of this stage.
    pub fn apply_in(&self, phase: Phase, stage: u32) -> bool {
        self.rate_limits.iter().any(|it| it.phase == phase && it.stage == stage)
    }

    /// Makes the descriptors of `stream`, for a filter of this stage. There are none where no
    /// cluster is selected, as on a redirect: Envoy limits only requests that it sends on.
    pub fn descriptors<'s>(
        &'s self,
        stream: &'s impl Stream,
        phase: Phase,
        stage: u32,
    ) -> Drafts<'s> {
        if stream.destination_cluster().is_none() {
            return Drafts::default();
        }
        let applies = |it: &&RateLimit| it.phase == phase && it.stage == stage;
        let drafts = self.rate_limits.iter().filter(applies).filter_map(|it| it.draft(stream));
        Drafts { drafts: drafts.collect() }
    }
}

// === impl RateLimit ===

impl RateLimit {
    fn compile(message: &pb::RateLimit, place: &Place<'_>, faults: &mut Faults) -> Option<Self> {
        let pb::RateLimit { disable_key, actions, limit, hits_addend, .. } = message;
        let stage = message.stage.map_or(0, |stage| stage.value);
        if stage > STAGE_MAX {
            faults.add(place.field("stage"), format!("{stage}; expected 0 to {STAGE_MAX}"));
        }
        let listed = place.field("actions");
        match actions.len() {
            0 => faults.add(listed, "missing; expected one action at least"),
            many if many > ENTRIES_MAX => {
                faults.add(listed, format!("{many} actions; expected at most {ENTRIES_MAX}"));
            }
            _ => {}
        }
        let actions = each(actions, &listed, faults, Action::compile);
        let limit = limit.as_ref().map(|it| limit_of(it, &place.field("limit"), faults));
        let hits = Hits::compile(hits_addend.as_ref(), &place.field("hits_addend"), faults);
        let headers = headers_of(message, place, faults);
        Some(Self {
            stage,
            runtime_key: (!disable_key.is_empty())
                .then(|| format!("ratelimit.{disable_key}.http_filter_enabled")),
            enabled: Fraction::ALL,
            phase: if message.apply_on_stream_done { Phase::Done } else { Phase::Start },
            actions: actions?,
            limit: limit.map_or(Some(None), |it| it.map(Some))?,
            hits: hits?,
            refund: hits_addend.as_ref().is_some_and(|it| it.is_negative_hits),
            headers: headers?,
        })
    }

    /// Makes the descriptor; none if an action finds nothing, or the hits are no number.
    fn draft<'s>(&'s self, stream: &'s impl Stream) -> Option<Draft<'s>> {
        if !self.enabled.draw() {
            return None;
        }
        let (mut entries, mut named) = (SmallVec::new(), SmallVec::new());
        for action in &self.actions {
            let Some(entry) = action.entry(stream)? else { continue };
            if action.names_stream() {
                named.push(entries.len());
            }
            entries.push(entry);
        }
        let hits_addend = self.hits.of(stream)?;
        let Self { limit, refund, headers, .. } = *self;
        Some(Draft { entries, named, limit, hits_addend, refund, headers })
    }
}

/// Reads an override. An override by dynamic metadata lies in a struct, which a module cannot read.
fn limit_of(
    message: &pb::rate_limit::Override,
    place: &Place<'_>,
    faults: &mut Faults,
) -> Option<Limit> {
    use pb::rate_limit::r#override::OverrideSpecifier as Specifier;
    let specifier = expect_some(message.override_specifier.as_ref(), place, "rate_limit", faults)?;
    match specifier {
        Specifier::RateLimit(limit) => {
            let unit = Unit::from_number(limit.unit.into());
            if unit.is_none() {
                let text =
                    format!("{}; expected SECOND, MINUTE, HOUR, DAY, MONTH or YEAR", limit.unit);
                faults.add(place.field("rate_limit.unit"), text);
            }
            Some(Limit::fixed_window(limit.requests_per_unit.into(), unit?))
        }
        Specifier::DynamicMetadata(_) => {
            let text = "a module of Envoy cannot read a struct of metadata; write the limit as a \
                        rule, or as limit.rate_limit";
            faults.add(place.field("dynamic_metadata"), text);
            None
        }
    }
}

fn headers_of(
    message: &pb::RateLimit,
    place: &Place<'_>,
    faults: &mut Faults,
) -> Option<RateLimitHeaders> {
    match message.x_ratelimit_option {
        0 => Some(RateLimitHeaders::Inherit),
        1 => Some(RateLimitHeaders::Off),
        2 => Some(RateLimitHeaders::Draft03),
        other => {
            let text = format!("{other}; expected UNSPECIFIED, OFF or DRAFT_VERSION_03");
            faults.add(place.field("x_ratelimit_option"), text);
            None
        }
    }
}

// === impl Hits ===

impl Hits {
    fn compile(
        message: Option<&pb::rate_limit::HitsAddend>,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        let Some(pb::rate_limit::HitsAddend { number, format, .. }) = message else {
            return Some(Self::OfRequest);
        };
        match number.map(|number| number.value) {
            Some(_) if !format.is_empty() => faults.add(place, "number and format; expected one"),
            Some(number) if number > HITS_MAX => {
                let text = format!("{number}; expected at most {HITS_MAX}");
                faults.add(place.field("number"), text);
            }
            Some(number) => return Some(Self::Fixed(number)),
            None if format.is_empty() => faults.add(place, "empty; expected number or format"),
            None => {
                let place = place.field("format");
                return match Format::parse(format, &place, faults)?.into_operator() {
                    Some(operator) => Some(Self::Found(operator)),
                    None => {
                        let text = "expected one operator, such as %BYTES_RECEIVED%";
                        faults.add(place, text);
                        None
                    }
                };
            }
        }
        None
    }

    /// The hits for a stream. `None`: the stream's value is no number from 0 to 10^9, so the
    /// descriptor is left out. `Some(None)`: the hits of the request count.
    #[expect(clippy::option_option, reason = "two ways to have no hits")]
    fn of(&self, stream: &impl Stream) -> Option<Option<u64>> {
        match self {
            Self::OfRequest => Some(None),
            Self::Fixed(hits) => Some(Some(*hits)),
            Self::Found(operator) => match operator.number(stream)? {
                Number::Whole(hits) => (hits <= HITS_MAX).then_some(Some(hits)),
                Number::Real(hits) => whole(hits).map(Some),
            },
        }
    }
}

/// The number without its fraction.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "is in the range")]
fn whole(hits: f64) -> Option<u64> {
    #[expect(clippy::cast_precision_loss, reason = "exact below 2^53")]
    const MAX: f64 = HITS_MAX as f64;
    (0.0..=MAX).contains(&hits).then_some(hits as u64)
}

// === impl MetadataKey ===

impl MetadataKey {
    /// The key of a namespace's field in the dynamic metadata.
    const fn dynamic(namespace: String, key: String) -> Self {
        Self { source: MetadataSource::Dynamic, namespace, key, index: None }
    }

    fn compile(
        message: &metadata_pb::MetadataKey,
        source: MetadataSource,
        place: &Place<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        use metadata_pb::metadata_key::path_segment::Segment;
        let namespace = expect_text(&message.key, place, "key", faults);
        let segments: Vec<_> = message.path.iter().map(|it| it.segment.as_ref()).collect();
        let (key, index) = match segments[..] {
            [Some(Segment::Key(key))] if !key.is_empty() => (key, None),
            [Some(Segment::Key(key)), Some(Segment::Index(index))] if !key.is_empty() => {
                (key, Some(*index))
            }
            _ => {
                let text = "a module of Envoy reaches a key of the namespace, and an item of a \
                            list there; expected [{key: …}] or [{key: …}, {index: …}]";
                faults.add(place.field("path"), text);
                return None;
            }
        };
        Some(Self { source, namespace: namespace?, key: key.clone(), index })
    }

    /// The value if it is a string.
    fn string<'s>(&self, stream: &'s impl Stream) -> Option<&'s [u8]> {
        stream.metadata_string(self.source, &self.namespace, &self.key, self.index)
    }

    /// The value if it is a number.
    fn number(&self, stream: &impl Stream) -> Option<f64> {
        stream.metadata_number(self.source, &self.namespace, &self.key, self.index)
    }
}

// === impl Drafts ===

impl<'s> Drafts<'s> {
    /// Whether there is no descriptor: the request is not limited then.
    pub fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    /// Puts the name of the stream where the configuration asks for it.
    pub fn name_streams(&mut self, name: impl Fn() -> String) {
        for draft in &mut self.drafts {
            for at in std::mem::take(&mut draft.named) {
                draft.entries[at].1 = Cow::Owned(name());
            }
        }
    }

    /// Each descriptor, in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Draft<'s>> {
        self.drafts.iter()
    }

    /// The request of these descriptors. `hits_addend` is the number of hits of the whole request
    /// (0 stands for 1).
    pub fn request<'d>(&'d self, domain: &'d str, hits_addend: u32) -> Request<'d> {
        let descriptors = self.drafts.iter().map(Draft::descriptor).collect();
        Request { domain, descriptors, hits_addend: hits_addend.into() }
    }
}

// === impl Draft ===

impl Draft<'_> {
    fn descriptor(&self) -> Descriptor<'_> {
        let entries = self.entries.iter().map(|(key, value)| Entry { key, value });
        let Self { limit, hits_addend, refund, .. } = *self;
        Descriptor { entries: entries.collect(), limit, hits_addend, refund }
    }
}
