//! What both servers, gRPC and HTTP, do with a request: check it, decide it, or return the reason
//! why not.
//!
//! May use the engine, the rules in force and the observers. Of the protocols it knows only their
//! names: it bounds the calls that wait and the memory of incomplete messages for each of them.

mod body_budget;
mod concurrency_limit;
mod headers;
mod partial_message;

use std::sync::Arc;

use http::HeaderMap;
use ratelease_cli::settings::Headers;
use ratelease_engine::limiter::Limiter;
use ratelease_engine::observer::{Decision, Observer};
use ratelease_engine::store::StoreError;
use ratelease_engine::time::Time;
use ratelease_engine::verdict::Verdict;
use ratelease_rules::Rules;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX, Request};
use tracing::{Level, debug};

use crate::current_rules::CurrentRules;
use crate::metrics::counter::{Count, Counter};
use crate::observe::Observers;
use crate::request_error::{InvalidRequest, RequestError};
use crate::trace::Span;
use crate::transport::Transport;

use body_budget::BodyBudget;
pub use body_budget::{BodyReservation, Peer};
use concurrency_limit::ConcurrencyLimit;
pub use partial_message::PartialMessage;

/// Maximum size in bytes of unfinished gRPC messages, over all connections: 500 messages of Envoy,
/// which take a few hundred bytes, or 4 of the maximum size. The streams and buffers on their way
/// take about as much again.
const GRPC_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The same limit for requests over HTTP, which serve people and small scripts. One connection may
/// use half, which is more than the longest body.
const HTTP_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Maximum number of requests over HTTP that wait at once, whatever `MAX_IN_FLIGHT` says. If each
/// waits 5 ms for a lease, this is 12 800 requests a second.
pub const HTTP_CALLS_MAX: usize = 64;

/// Checks and decides requests. A cheap handle: clones share all state.
#[derive(Clone)]
pub struct DecisionService {
    limiter: Limiter,
    rules_in_force: Arc<CurrentRules>,
    headers: Option<Arc<Headers>>,
    grpc: TransportLimits,
    http: TransportLimits,
    observers: Observers,
}

/// Limits on the calls of one protocol. Each has its own, so that neither protocol can shut out the
/// other.
#[derive(Clone)]
struct TransportLimits {
    concurrency: ConcurrencyLimit,
    body_budget: BodyBudget,
}

/// A verdict and its response headers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<'r> {
    /// The decision.
    pub verdict: Verdict<'r>,
    /// Headers to add to the response; empty unless they were asked for and a limit applies.
    pub headers: Vec<(String, String)>,
}

// === impl DecisionService ===

impl DecisionService {
    /// Creates a service that decides by the rules in force at the time of a call; at most
    /// `calls_max` gRPC calls wait at once.
    pub fn new(
        limiter: Limiter,
        rules_in_force: Arc<CurrentRules>,
        headers: Option<Headers>,
        calls_max: usize,
    ) -> Self {
        let http_max = calls_max.min(HTTP_CALLS_MAX);
        Self {
            limiter,
            rules_in_force,
            headers: headers.map(Arc::new),
            grpc: TransportLimits {
                concurrency: ConcurrencyLimit::new(calls_max, "MAX_IN_FLIGHT"),
                body_budget: BodyBudget::new(GRPC_BYTES_MAX),
            },
            http: TransportLimits {
                concurrency: ConcurrencyLimit::new(http_max, "over HTTP"),
                body_budget: BodyBudget::new(HTTP_BYTES_MAX),
            },
            observers: Observers::default(),
        }
    }

    /// Returns this service with `observers`, which record every request that reaches it.
    #[must_use]
    pub fn observed_by(self, observers: Observers) -> Self {
        Self { observers, ..self }
    }

    /// Begins a span for a request that arrives at `transport` with these headers, if it is to be
    /// traced.
    pub fn begin(&self, transport: Transport, headers: &HeaderMap) -> Option<Span> {
        self.observers.begin(transport, headers)
    }

    /// Runs `call` of `peer`, which may wait. Its message must be complete; incomplete messages are
    /// bounded by [`DecisionService::reserve_body`].
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::Overloaded`] if too many calls wait (`call` was not polled), or
    /// [`RequestError::Panicked`] if the call panicked.
    pub async fn run<T>(
        &self,
        transport: Transport,
        peer: &Peer,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let passed = self.limits(transport).concurrency.run(peer, call).await;
        passed.inspect_err(|error| self.observers.note_error(error))
    }

    /// Runs a call from its headers to its answer and catches its panics.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::Panicked`] if the call panicked.
    pub async fn catch_panic<T>(
        &self,
        transport: Transport,
        call: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let contained = self.limits(transport).concurrency.catch_panic(call).await;
        contained.inspect_err(|error| self.observers.note_error(error))
    }

    /// Returns the reservation on which the bytes of an incomplete message are counted.
    pub fn reserve_body(&self, transport: Transport, peer: &Peer) -> BodyReservation {
        self.limits(transport).body_budget.reserve(peer)
    }

    /// Records a request that a server refused itself.
    pub fn note_error(&self, error: &RequestError) {
        self.observers.note_error(error);
    }

    /// Event counts since the process began, and present levels.
    pub fn counts(&self) -> Vec<Count> {
        let Self { grpc, http, .. } = self;
        let sum = |of: fn(&TransportLimits) -> u64| of(grpc) + of(http);
        vec![
            (Counter::CallsUnderWay, sum(|it| it.concurrency.waiting())),
            (Counter::MessageBytes, sum(|it| it.body_budget.bytes())),
            (Counter::Shed, sum(|it| it.concurrency.shed() + it.body_budget.refused())),
            (Counter::RequestPanics, sum(|it| it.concurrency.panics())),
        ]
    }

    fn limits(&self, transport: Transport) -> &TransportLimits {
        match transport {
            Transport::Grpc => &self.grpc,
            Transport::Http(_) => &self.http,
        }
    }

    /// The present time, by the clock that [`DecisionService::answer_by`] uses.
    pub fn now(&self) -> Time {
        self.limiter.clock().now()
    }

    /// Returns what `make` makes of the answer to `request`. The answer is computed under one
    /// version of the rules.
    ///
    /// # Errors
    ///
    /// Fails if the request is invalid or the store could not answer.
    pub async fn answer<T>(
        &self,
        request: &Request<'_>,
        make: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T, RequestError> {
        self.answer_by(None, request, make).await
    }

    /// Like [`DecisionService::answer`], for a caller that gives up at `deadline`: the time left
    /// until then bounds how long the store may take.
    ///
    /// # Errors
    ///
    /// As [`DecisionService::answer`].
    pub async fn answer_by<T>(
        &self,
        deadline: Option<Time>,
        request: &Request<'_>,
        make: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T, RequestError> {
        let start = self.now();
        let caller = deadline.map(|deadline| deadline.since(start));
        let answered = async {
            check(request)?;
            let rules = self.rules_in_force.current().ok_or_else(|| self.without_rules())?;
            let decided = self.limiter.decide_within(&rules, request, caller).await;
            let verdict = decided.map_err(|error| self.unanswered(&rules, request, error))?;
            Ok(make(self.finish(request, verdict, start)))
        };
        let answered = answered.await;
        answered.inspect_err(|error| self.observers.note_error(error))
    }

    /// Like [`DecisionService::answer`], for a call over gRPC that need not wait, and so does not
    /// count as a waiting call. `None` if it has to wait or is to be refused: then nothing has been
    /// charged, though an ask for tokens may be on its way, and [`DecisionService::run`] decides.
    pub fn answer_at_once<T>(
        &self,
        request: &Request<'_>,
        make: impl FnOnce(&Answer<'_>) -> T,
    ) -> Option<Result<T, RequestError>> {
        let passed = self.grpc.concurrency.catch_panic_sync(|| {
            check(request).ok()?;
            let rules = self.rules_in_force.borrow();
            let start = self.limiter.clock().now();
            let rules = rules.as_deref()?;
            let verdict = self.limiter.decide_at_once(rules, request, start)?;
            Some(Ok(make(&self.finish(request, verdict, start))))
        });
        if let Some(Err(error)) = &passed {
            self.observers.note_error(error);
        }
        passed
    }

    #[cold]
    fn without_rules(&self) -> RequestError {
        match self.rules_in_force.awaits_first() {
            true => RequestError::AwaitsRules,
            false => RequestError::NoRules,
        }
    }

    #[cold]
    fn unanswered(&self, rules: &Rules, request: &Request<'_>, error: StoreError) -> RequestError {
        self.observers.note_unanswered(rules, request);
        RequestError::Store(error)
    }

    fn finish<'r>(&self, request: &Request<'_>, verdict: Verdict<'r>, start: Time) -> Answer<'r> {
        let now = self.limiter.clock().now();
        let took = now.since(start);
        self.observers.note(&Decision { request, verdict: &verdict, took, now });
        if tracing::enabled!(Level::DEBUG) {
            log_decision(request, &verdict);
        }
        let headers = self.headers.as_deref().map(|headers| headers::of(headers, &verdict));
        Answer { verdict, headers: headers.unwrap_or_default() }
    }
}

fn check(request: &Request<'_>) -> Result<(), RequestError> {
    if request.domain.is_empty() {
        return Err(RequestError::EmptyDomain);
    }
    match request.descriptors.len() {
        0 => return Err(RequestError::NoDescriptors),
        n if n > DESCRIPTORS_MAX => return Err(RequestError::Invalid(InvalidRequest::Descriptors)),
        _ => {}
    }
    match request.descriptors.iter().position(|d| d.entries.len() > ENTRIES_MAX) {
        Some(at) => Err(RequestError::Invalid(InvalidRequest::Entries(at))),
        None => Ok(()),
    }
}

/// Logs one line for each descriptor, named as the reference implementation names its statistics:
/// values show only where the rule asks for them.
fn log_decision(request: &Request<'_>, verdict: &Verdict<'_>) {
    for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
        let rule = status.limit.and_then(|applied| applied.rule);
        let rule = rule.map(|rule| rule.stats_key(request.domain, &descriptor.entries));
        let rule = rule.as_deref().unwrap_or("none or override");
        debug!(rule, code = ?status.code, remaining = status.remaining, "decided");
    }
}
