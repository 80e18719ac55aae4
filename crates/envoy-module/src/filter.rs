//! The filter of one stream: asks the engine when the request's headers are there, and again when
//! the stream ends.

use std::borrow::Cow;
use std::cell::RefCell;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use ratelease_envoy_abi::{Filter, Flow, Headers, Stream};
use ratelease_server::request::{RequestError, Transport};
use ratelease_server::service::{Answer, Caller};

use crate::RateleaseModule;
use crate::actions::{Drafts, Phase, RateLimitHeaders};
use crate::answer::{Concluded, Outcome, Shown, conclude};
use crate::config::{FilterConfig, Limits, RequestKind, RouteConfig, STREAM_ID};
use crate::engine::Engine;
use crate::owned::OwnedRequest;
use crate::wait::Wait;

/// The filter of one stream.
#[derive(Default)]
pub struct RateFilter {
    state: RefCell<State>,
}

/// What is kept between hooks. No callback that may call other hooks runs while it is borrowed.
#[derive(Default)]
struct State {
    wait: Option<Wait>,
    /// Headers for the response.
    response: Vec<(String, String)>,
    /// The ends of what takes slots while the stream lasts. While the request waits, those that it
    /// would have.
    ends: Option<Box<Ends>>,
    /// The name of the stream, if an entry has asked for it.
    name: Option<Box<str>>,
}

/// What a stream has begun.
struct Ends {
    request: OwnedRequest,
    /// Whether the slots have been taken.
    is_taken: bool,
}

/// The result of the first look at a request.
enum Decided {
    /// It has no descriptors.
    Free,
    /// The answer.
    Now(Result<Outcome, RequestError>, Option<OwnedRequest>),
    /// It has to wait.
    Later(OwnedRequest, Shown),
}

type S<'h> = Stream<'h, RateleaseModule>;

// === impl RateFilter ===

impl Filter for RateFilter {
    type Module = RateleaseModule;

    fn request_headers(&self, config: &FilterConfig, stream: S<'_>) -> Flow {
        let Some(engine) = &config.engine else { return Flow::Continue };
        if !config.enabled.draw() || !is_of_kind(config.kind, &stream) {
            return Flow::Continue;
        }
        if engine.is_down() {
            return self.refuse(config, stream);
        }
        match self.decide(engine, config, &stream) {
            Decided::Free => Flow::Continue,
            Decided::Now(outcome, ends) => {
                self.state.borrow_mut().ends =
                    ends.map(|request| Box::new(Ends { request, is_taken: true }));
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
        let outcome = wait.take();
        {
            let mut state = self.state.borrow_mut();
            let slots = outcome.as_ref().map(|it| it.slots.as_slice()).unwrap_or_default();
            let begun = state.ends.take().filter(|_| !slots.is_empty());
            state.ends = begun.map(|begun| {
                let request = OwnedRequest::ends_of(&begun.request.request(), slots);
                Box::new(Ends { request, is_taken: true })
            });
        }
        if let Concluded::Passes(stream) = self.conclude(config, stream, outcome) {
            stream.resume();
        }
    }

    fn complete(&self, config: &FilterConfig, stream: S<'_>) {
        let Some(engine) = &config.engine else { return };
        if engine.is_down() {
            return;
        }
        let ends = {
            let mut state = self.state.borrow_mut();
            // Nothing wakes the stream any more, and an answer that is late is not charged.
            state.wait.take();
            state.ends.take().filter(|ends| ends.is_taken)
        };
        if let Some(ends) = ends {
            engine.settle(ends.request);
        }
        let route = stream.route_config();
        let limits = limits_of(config, route);
        if limits.ends_streams(config.stage) {
            self.count_end(engine, config, route, &stream);
        }
    }
}

impl RateFilter {
    /// Looks at the request, and decides it unless it has to wait.
    fn decide(&self, engine: &Arc<Engine>, config: &FilterConfig, stream: &S<'_>) -> Decided {
        let route = stream.route_config();
        let limits = limits_of(config, route);
        let mut drafts = limits.actions.descriptors(stream, Phase::Start, config.stage);
        if drafts.is_empty() {
            return Decided::Free;
        }
        if limits.name_streams {
            self.name_streams(&mut drafts);
        }
        let request = drafts.request(domain_of(config, route), hits_of(stream));
        let shown = shown(config, &drafts);
        let caller = Caller {
            transport: Transport::Grpc,
            peer: &engine.peer,
            patience: Some(config.timeout),
        };
        let _entered = engine.runtime.enter();
        let make = |answer: &Answer<'_>| Outcome::of(answer, &shown);
        let answered = engine.service.answer(&caller, &request, make);
        let mut answered = pin!(engine.service.catch_panic(Transport::Grpc, answered));
        match answered.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => {
                let outcome = outcome.unwrap_or_else(Err);
                let slots = outcome.as_ref().map(|it| it.slots.as_slice()).unwrap_or_default();
                let ends = (!slots.is_empty()).then(|| OwnedRequest::ends_of(&request, slots));
                Decided::Now(outcome, ends)
            }
            // What was polled is dropped and charges nothing; the task begins anew, and finds the
            // ask that has been sent.
            Poll::Pending => Decided::Later(OwnedRequest::of(&request), shown.clone()),
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
        let Some(scheduler) = stream.scheduler() else { return self.refuse(config, stream) };
        let mut state = self.state.borrow_mut();
        state.ends = Some(Box::new(Ends { request: request.clone(), is_taken: false }));
        state.wait = Some(Wait::start(engine, config, scheduler, request, shown));
        Flow::Wait
    }

    /// Answers without a verdict: by the failure mode.
    fn refuse(&self, config: &FilterConfig, stream: S<'_>) -> Flow {
        match self.conclude(config, stream, Err(RequestError::Overloaded)) {
            Concluded::Passes(_) => Flow::Continue,
            Concluded::Answered => Flow::Answered,
        }
    }

    /// Gives the stream what the outcome says.
    fn conclude<'h>(
        &self,
        config: &FilterConfig,
        stream: S<'h>,
        outcome: Result<Outcome, RequestError>,
    ) -> Concluded<'h, RateleaseModule> {
        let mut response = Vec::new();
        let concluded = conclude(config, stream, outcome, &mut response);
        if !response.is_empty() {
            self.state.borrow_mut().response = response;
        }
        concluded
    }

    /// Counts what the end of a stream has to, without an answer.
    fn count_end(
        &self,
        engine: &Arc<Engine>,
        config: &FilterConfig,
        route: Option<&RouteConfig>,
        stream: &S<'_>,
    ) {
        let limits = limits_of(config, route);
        let mut drafts = limits.actions.descriptors(stream, Phase::Done, config.stage);
        if drafts.is_empty() {
            return;
        }
        if limits.name_streams {
            self.name_streams(&mut drafts);
        }
        let request = drafts.request(domain_of(config, route), hits_of(stream));
        engine.settle(OwnedRequest::of(&request));
    }

    /// Puts the name of this stream where an entry asks for it.
    fn name_streams<'s>(&self, drafts: &mut Drafts<'s>) {
        drafts.for_each_value(|value| {
            if &**value == STREAM_ID {
                let mut state = self.state.borrow_mut();
                let name = state.name.get_or_insert_with(new_name);
                *value = Cow::Owned(name.to_string());
            }
        });
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
    /// Decides a request that nobody waits for: the end of a stream.
    fn settle(self: &Arc<Self>, request: OwnedRequest) {
        let engine = Arc::clone(self);
        let settle = async move {
            let request = request.request();
            let transport = Transport::Grpc;
            let caller = Caller { transport, peer: &engine.peer, patience: None };
            let answered = engine.service.answer(&caller, &request, |_| ());
            // An error has been counted, and nobody waits for it.
            let _ = engine.service.catch_panic(transport, answered).await;
        };
        let mut settle = Box::pin(settle);
        let _entered = self.runtime.enter();
        if settle.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            self.runtime.spawn(settle);
        }
    }
}
