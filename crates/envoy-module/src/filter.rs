//! The filter of one stream: asks the engine when the request's headers are there, and again when
//! the stream ends. Also implements the stream of the actions on Envoy's.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};

use ratelease_envoy_abi::{Attribute, Filter, Flow, Headers, Metadata, Stream};
use ratelease_server::request::{RequestError, Transport};
use ratelease_server::service::{Answer, BodyReservation, Caller, Owner};

use crate::RateleaseModule;
use crate::actions::{self, Count, Drafts, MetadataSource, Phase, RateLimitHeaders};
use crate::answer::{Concluded, Outcome, Shown, conclude};
use crate::config::{FilterConfig, Limits, RequestKind, RouteConfig};
use crate::engine::Engine;
use crate::owned::OwnedRequest;
use crate::wait::Wait;

/// The filter of one stream.
#[derive(Default)]
pub struct RateFilter {
    state: RefCell<State>,
}

/// The state of a stream between hooks. No callback that may call other hooks runs while it is
/// borrowed.
#[derive(Default)]
struct State {
    wait: Option<Wait>,
    /// Headers for the response.
    response: Vec<(String, String)>,
    /// The ends of the slots that the stream has.
    ends: Option<Box<OwnedRequest>>,
    /// The configuration that the end of the stream counts by, if the end counts anything.
    done: Option<Done>,
    /// The name of the stream, if an entry has asked for it.
    name: Option<Box<str>>,
}

/// The configuration of a stream's start, which the end counts by. No later filter changes it.
struct Done {
    route: Option<Arc<RouteConfig>>,
}

/// The result of the first look at a request.
enum Decided {
    /// The request has no descriptors.
    Free,
    /// The answer.
    Now(Result<Outcome, RequestError>, Option<OwnedRequest>),
    /// The request has to wait.
    Later(OwnedRequest, Shown),
}

type S<'h> = Stream<'h, Arc<RouteConfig>>;

// === impl RateFilter ===

impl Filter for RateFilter {
    type Module = RateleaseModule;

    fn request_headers(&self, config: &FilterConfig, stream: S<'_>) -> Flow {
        let Some(engine) = &config.engine else { return Flow::Continue };
        if !config.enabled.draw() || !is_of_kind(config.kind, &stream) {
            return Flow::Continue;
        }
        if engine.is_down() {
            return self.refuse(config, stream, RequestError::Overloaded);
        }
        match self.decide(engine, config, &stream) {
            Decided::Free => Flow::Continue,
            Decided::Now(outcome, ends) => {
                self.state.borrow_mut().ends = ends.map(Box::new);
                match self.conclude(config, stream, outcome) {
                    Concluded::Passes(_) => Flow::Continue,
                    Concluded::Answered => Flow::Answered,
                }
            }
            Decided::Later(request, shown) => self.wait(engine, config, stream, request, shown),
        }
    }

    fn response_headers(&self, _: &FilterConfig, mut stream: S<'_>) {
        let headers = std::mem::take(&mut self.state.borrow_mut().response);
        for (name, value) in &headers {
            stream.add_header(Headers::Response, name.as_bytes(), value.as_bytes());
        }
    }

    fn scheduled(&self, config: &FilterConfig, stream: S<'_>, _: u64) {
        let Some(wait) = self.state.borrow_mut().wait.take() else { return };
        let (outcome, ends) = wait.take();
        self.state.borrow_mut().ends = ends.map(Box::new);
        if let Concluded::Passes(stream) = self.conclude(config, stream, outcome) {
            stream.resume();
        }
    }

    fn complete(&self, config: &FilterConfig, stream: S<'_>) {
        let Some(engine) = &config.engine else { return };
        if engine.is_down() {
            return;
        }
        let (wait, ends, done) = {
            let mut state = self.state.borrow_mut();
            (state.wait.take(), state.ends.take(), state.done.take())
        };
        if let Some(ends) = ends {
            engine.settle(*ends);
        }
        // A stream whose request was still waiting counts nothing, as in Envoy's filter.
        if let (None, Some(done)) = (wait, done) {
            self.count_end(engine, config, &done, &stream);
        }
    }
}

impl RateFilter {
    /// Looks at the request, and decides it unless it has to wait.
    fn decide(&self, engine: &Arc<Engine>, config: &FilterConfig, stream: &S<'_>) -> Decided {
        let route = stream.route_config();
        let limits = limits_of(config, route.map(Arc::as_ref));
        if limits.ends_streams(config.stage) {
            self.state.borrow_mut().done = Some(Done { route: route.cloned() });
        }
        let mut drafts = limits.actions.descriptors(stream, Phase::Start, config.stage);
        if drafts.is_empty() {
            return Decided::Free;
        }
        self.name_streams(&mut drafts);
        let request = drafts.request(domain_of(config, route.map(Arc::as_ref)), hits_of(stream));
        let shown = shown(config, &drafts);
        let _entered = engine.runtime.enter();
        let make = |answer: &Answer<'_>| Outcome::of(answer, &shown);
        match engine.service.answer_at_once(Transport::Grpc, Owner::THIS_PROCESS, &request, make) {
            Some(outcome) => {
                let ends = OwnedRequest::ends_of_slots(&request, &outcome);
                Decided::Now(outcome, ends)
            }
            None => Decided::Later(OwnedRequest::of(&request), shown),
        }
    }

    fn wait(
        &self,
        engine: &Arc<Engine>,
        config: &FilterConfig,
        stream: S<'_>,
        request: OwnedRequest,
        shown: Shown,
    ) -> Flow {
        let Some(scheduler) = stream.scheduler() else {
            return self.refuse(config, stream, RequestError::Overloaded);
        };
        match Wait::start(engine, config, scheduler, request, shown) {
            Ok(wait) => {
                self.state.borrow_mut().wait = Some(wait);
                Flow::Wait
            }
            Err(error) => self.refuse(config, stream, error),
        }
    }

    /// Answers without a verdict.
    fn refuse(&self, config: &FilterConfig, stream: S<'_>, error: RequestError) -> Flow {
        match self.conclude(config, stream, Err(error)) {
            Concluded::Passes(_) => Flow::Continue,
            Concluded::Answered => Flow::Answered,
        }
    }

    /// Applies an outcome to the stream.
    fn conclude<'h>(
        &self,
        config: &FilterConfig,
        stream: S<'h>,
        outcome: Result<Outcome, RequestError>,
    ) -> Concluded<'h, Arc<RouteConfig>> {
        let mut response = Vec::new();
        let concluded = conclude(config, stream, outcome, &mut response);
        if !response.is_empty() {
            self.state.borrow_mut().response = response;
        }
        concluded
    }

    /// Charges the descriptors of a stream's end, without an answer.
    fn count_end(&self, engine: &Arc<Engine>, config: &FilterConfig, done: &Done, stream: &S<'_>) {
        let route = done.route.as_deref();
        let limits = limits_of(config, route);
        let mut drafts = limits.actions.descriptors(stream, Phase::Done, config.stage);
        if drafts.is_empty() {
            return;
        }
        self.name_streams(&mut drafts);
        let request = drafts.request(domain_of(config, route), hits_of(stream));
        engine.settle(OwnedRequest::of(&request));
    }

    /// Puts the name of this stream where an entry asks for it.
    fn name_streams(&self, drafts: &mut Drafts<'_>) {
        drafts
            .name_streams(|| self.state.borrow_mut().name.get_or_insert_with(new_name).to_string());
    }
}

/// A name that no other stream has, of any process.
fn new_name() -> Box<str> {
    static PROCESS: OnceLock<u128> = OnceLock::new();
    static STREAMS: AtomicU64 = AtomicU64::new(0);
    let process = PROCESS.get_or_init(|| fastrand::u128(..));
    let stream = STREAMS.fetch_add(1, Ordering::Relaxed);
    format!("{process:032x}-{stream:x}").into()
}

fn limits_of<'c>(config: &'c FilterConfig, route: Option<&'c RouteConfig>) -> &'c Limits {
    let own = route.map(|route| &route.limits).filter(|limits| !limits.actions.is_empty());
    own.unwrap_or(&config.limits)
}

fn domain_of<'c>(config: &'c FilterConfig, route: Option<&'c RouteConfig>) -> &'c str {
    let own = route.map(|route| &*route.domain).filter(|domain| !domain.is_empty());
    own.unwrap_or(&config.domain)
}

/// Whether the request is of the kind that the filter limits.
fn is_of_kind(kind: RequestKind, stream: &S<'_>) -> bool {
    let is_internal =
        || stream.header(Headers::Request, b"x-envoy-internal", 0) == Some(b"true".as_slice());
    match kind {
        RequestKind::Both => true,
        RequestKind::Internal => is_internal(),
        RequestKind::External => !is_internal(),
    }
}

/// Hits of the whole request, if another filter has set them; 0 stands for 1.
fn hits_of(stream: &S<'_>) -> u32 {
    let state = stream.filter_state("envoy.ratelimit.hits_addend");
    let hits = state.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
    hits.unwrap_or_default()
}

fn shown(config: &FilterConfig, drafts: &Drafts<'_>) -> Shown {
    let each = || drafts.iter().map(|draft| draft.headers);
    let are_all_inherited = each().all(|it| it == RateLimitHeaders::Inherit);
    Shown {
        each: if are_all_inherited { Default::default() } else { each().collect() },
        by_filter: config.x_ratelimit,
    }
}

// === impl Engine ===

impl Engine {
    /// Counts the memory of a waiting request. Requests of a few KiB are left out, since the number
    /// of waits is bounded anyway.
    ///
    /// # Errors
    ///
    /// The waiting requests have used up the memory; the error has been counted.
    pub fn reserve(&self, bytes: usize) -> Result<BodyReservation, RequestError> {
        let reservation = self.service.reserve_body(Transport::Grpc, &self.peer);
        let reserved = reservation.grow(bytes).and_then(|()| reservation.complete());
        let reserved = reserved.inspect_err(|error| self.service.note_error(error));
        reserved.map(|()| reservation)
    }

    /// Decides the request that the end of a stream makes, whose answer is not used. If it has to
    /// wait and there is no memory for it, it is dropped and counted as an error.
    pub fn settle(self: &Arc<Self>, request: OwnedRequest) {
        if self.is_down() {
            return;
        }
        let engine = Arc::clone(self);
        let bytes = request.bytes();
        let settle = async move {
            let request = request.request();
            let transport = Transport::Grpc;
            let caller = Caller {
                transport,
                peer: &engine.peer,
                patience: None,
                owner: Owner::THIS_PROCESS,
            };
            let answered = engine.service.answer(&caller, &request, |_| ());
            // An error has been counted, and no stream waits for the answer.
            let _ = engine.service.catch_panic(transport, answered).await;
        };
        let mut settle = Box::pin(settle);
        let _entered = self.runtime.enter();
        if settle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            && let Ok(reservation) = self.reserve(bytes)
        {
            self.runtime.spawn(async move {
                settle.await;
                drop(reservation);
            });
        }
    }
}

// === impl Stream ===

/// A stream of Envoy as the actions read it.
impl<R> actions::Stream for Stream<'_, R> {
    fn request_header(&self, name: &str, index: usize) -> Option<&[u8]> {
        self.header(Headers::Request, name.as_bytes(), index)
    }

    fn request_headers(&self, name: &str) -> Vec<&[u8]> {
        self.headers(Headers::Request, name.as_bytes())
    }

    fn response_header(&self, name: &str) -> Option<&[u8]> {
        self.header(Headers::Response, name.as_bytes(), 0)
    }

    fn source_address(&self) -> Option<&[u8]> {
        self.attribute(Attribute::SourceAddress)
    }

    fn destination_cluster(&self) -> Option<&[u8]> {
        self.cluster()
    }

    fn metadata_string(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<&[u8]> {
        self.metadata_text(metadata_of(source), namespace, key, index.map(|index| index as usize))
    }

    fn metadata_number(
        &self,
        source: MetadataSource,
        namespace: &str,
        key: &str,
        index: Option<u32>,
    ) -> Option<f64> {
        let index = index.map(|index| index as usize);
        Stream::metadata_number(self, metadata_of(source), namespace, key, index)
    }

    fn count(&self, count: Count) -> Option<u64> {
        self.number(match count {
            Count::BytesReceived => Attribute::RequestSize,
            Count::BytesSent => Attribute::ResponseSize,
            Count::ResponseCode => Attribute::ResponseCode,
        })
    }
}

fn metadata_of(source: MetadataSource) -> Metadata {
    match source {
        MetadataSource::Dynamic => Metadata::Dynamic,
        MetadataSource::Route => Metadata::Route,
        MetadataSource::Cluster => Metadata::Cluster,
        MetadataSource::Locality => Metadata::Locality,
    }
}
