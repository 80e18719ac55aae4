//! What both servers, gRPC and HTTP, do with a request: check it, decide it, describe its limits in
//! headers of the response, and try candidate rules; or return the reason why not.
//!
//! May use the engine, the rules in force and the observers. Of the protocols it knows their names,
//! and the headers of a request for its span: it bounds the calls that wait and the memory of
//! incomplete messages for each of them.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use body_budget::BodyBudget;
use futures_util::FutureExt;
use http::HeaderMap;
use ratelease_cli::settings::Headers;
use ratelease_engine::limiter::Limiter;
use ratelease_engine::limiter::owners::StartId;
use ratelease_engine::time::Time;
use ratelease_engine::verdict::{AppliedLimit, Code, Decision, OVERRIDE, Status, Verdict};
use ratelease_rules::Rules;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX, Request};
use tracing::{Level, debug, info, warn};

use crate::current_rules::CurrentRules;
use crate::metrics::counter::{Count, Counter};
use crate::observe::Observers;
use crate::request::{InvalidRequest, RequestError, Transport};
use crate::starts::Starts;
use crate::trace::Span;

pub use ratelease_engine::limiter::owners::Owner;

use candidates::Candidates;

pub use body_budget::{BodyReservation, PartialMessage, Peer};

mod body_budget;
mod candidates;

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
    grpc: Arc<TransportLimits>,
    http: Arc<TransportLimits>,
    starts: Starts,
    observers: Observers,
    candidates: Arc<Candidates>,
}

/// Limits on the calls of one protocol. Each has its own, so that neither protocol can shut out the
/// other.
struct TransportLimits {
    concurrency: ConcurrencyLimit,
    body_budget: BodyBudget,
    panics: AtomicU64,
}

/// Who asks for a decision.
#[derive(Debug, Clone, Copy)]
pub struct Caller<'a> {
    /// How the request came in.
    pub transport: Transport,
    /// Its connection.
    pub peer: &'a Peer,
    /// How long the caller waits for the answer, if it says so. It bounds how long the store may
    /// take.
    pub patience: Option<Duration>,
    /// Who owns what the request starts.
    pub owner: Owner,
}

/// A start whose answer is being made. To drop it, as a panic does, undoes the start.
struct Unanswered<'s> {
    starts: &'s Starts,
    start: Option<StartId>,
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
        let limits = |calls_max, setting, bytes_max| {
            Arc::new(TransportLimits {
                concurrency: ConcurrencyLimit::new(calls_max, setting),
                body_budget: BodyBudget::new(bytes_max),
                panics: AtomicU64::new(0),
            })
        };
        Self {
            starts: Starts::new(limiter.clone()),
            limiter,
            rules_in_force,
            headers: headers.map(Arc::new),
            grpc: limits(calls_max, "MAX_IN_FLIGHT", GRPC_BYTES_MAX),
            http: limits(calls_max.min(HTTP_CALLS_MAX), "over HTTP", HTTP_BYTES_MAX),
            observers: Observers::default(),
            candidates: Arc::default(),
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
        self.observers.tracer.begin(transport, headers)
    }

    /// Runs a call from its headers to its answer and catches its panics.
    ///
    /// # Errors
    ///
    /// Returns [`RequestError::Panicked`] if the call panicked.
    pub fn catch_panic<'c, T>(
        &'c self,
        transport: Transport,
        call: impl Future<Output = T> + 'c,
    ) -> impl Future<Output = Result<T, RequestError>> + 'c {
        // State that the call shares with others is behind locks and atomics that a panic leaves
        // usable; state that the call owns is dropped, which releases it.
        AssertUnwindSafe(call)
            .catch_unwind()
            .map(move |result| result.map_err(|_| self.note_panic(transport)))
    }

    fn note_panic(&self, transport: Transport) -> RequestError {
        self.limits(transport).panics.fetch_add(1, Ordering::Relaxed);
        self.observers.note_error(&RequestError::Panicked);
        RequestError::Panicked
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
        let sum = |of: fn(&TransportLimits) -> u64| of(&self.grpc) + of(&self.http);
        let shed = |limits: &TransportLimits| limits.concurrency.shed.load(Ordering::Relaxed);
        let mut counts = vec![
            (
                Counter::CallsUnderWay,
                sum(|limits| limits.concurrency.waiting.load(Ordering::Relaxed) as u64),
            ),
            (Counter::MessageBytes, sum(|limits| limits.body_budget.bytes())),
            (
                Counter::Shed,
                shed(&self.grpc) + shed(&self.http) + sum(|limits| limits.body_budget.refused()),
            ),
            (Counter::RequestPanics, sum(|limits| limits.panics.load(Ordering::Relaxed))),
        ];
        counts.extend(self.starts.counts());
        counts
    }

    /// Who owns what requests start, and what ends it besides requests.
    pub fn starts(&self) -> &Starts {
        &self.starts
    }

    /// Whether `request` has costs that were incurred: it is decided even if its client has given up.
    pub fn settles(&self, request: &Request<'_>) -> bool {
        let rules = self.rules_in_force.borrow();
        rules.as_deref().is_some_and(|rules| self.limiter.settles(rules, request))
    }

    fn limits(&self, transport: Transport) -> &TransportLimits {
        match transport {
            Transport::Grpc => &self.grpc,
            Transport::Http(_) => &self.http,
        }
    }

    /// The present time, by the clock of the decisions.
    pub fn now(&self) -> Time {
        self.limiter.clock().now()
    }

    /// Decides `request`, whose message is complete, and returns what `make` makes of the answer,
    /// which is computed under one version of the rules.
    ///
    /// A request that need not wait is answered when the future is polled first: it allocates
    /// nothing if it is of the common kind, touches no state that calls on other cores touch, and
    /// is answered even when too many calls wait. If the future is dropped, nothing is charged.
    ///
    /// # Errors
    ///
    /// Fails if the request is invalid, if it has to wait and too many calls wait, or if the store
    /// could not answer.
    pub async fn answer<T>(
        &self,
        caller: &Caller<'_>,
        request: &Request<'_>,
        make: impl FnOnce(&Answer<'_>) -> T,
    ) -> Result<T, RequestError> {
        let answered = async {
            check(request)?;
            let rules = self.rules_in_force.borrow();
            let rules = rules.as_deref().ok_or_else(|| self.without_rules())?;
            let start = self.now();
            let admit = || self.limits(caller.transport).concurrency.admit(caller.peer);
            let decided = self
                .limiter
                .decide(rules, request, start, caller.patience, caller.owner, admit)
                .await;
            if let Err(RequestError::Store(_)) = decided {
                self.observers.note_unanswered(request, &self.limiter.resolve(rules, request));
            }
            let verdict = decided?;
            let unanswered = Unanswered { starts: &self.starts, start: verdict.started };
            let made = make(&self.finish(rules, request, verdict, start, caller.owner));
            unanswered.answered();
            Ok(made)
        };
        answered.await.inspect_err(|error| self.observers.note_error(error))
    }

    /// Answers `request` as [`DecisionService::answer`] does, if it need not wait, and catches its
    /// panics. `None` leaves it to `answer`, and nothing of it is charged or counted yet.
    ///
    /// # Errors
    ///
    /// Fails if the request is invalid, or a panic was caught.
    pub fn answer_at_once<T>(
        &self,
        transport: Transport,
        owner: Owner,
        request: &Request<'_>,
        make: impl FnOnce(&Answer<'_>) -> T,
    ) -> Option<Result<T, RequestError>> {
        let decide = || {
            check(request)?;
            let rules = self.rules_in_force.borrow();
            let rules = rules.as_deref().ok_or_else(|| self.without_rules())?;
            let start = self.now();
            let decided = self.limiter.decide_at_once(rules, request, start, owner);
            Ok(decided.map(|verdict| {
                let unanswered = Unanswered { starts: &self.starts, start: verdict.started };
                let made = make(&self.finish(rules, request, verdict, start, owner));
                unanswered.answered();
                made
            }))
        };
        // What the call shares with others is left usable, as in `catch_panic`.
        match catch_unwind(AssertUnwindSafe(decide)) {
            Ok(answered) => {
                answered.inspect_err(|error| self.observers.note_error(error)).transpose()
            }
            Err(_) => Some(Err(self.note_panic(transport))),
        }
    }

    #[cold]
    fn without_rules(&self) -> RequestError {
        // The first rules may have come since.
        match self.rules_in_force.awaits_first() || self.rules_in_force.current().is_some() {
            true => RequestError::AwaitsRules,
            false => RequestError::NoRules,
        }
    }

    fn finish<'r>(
        &self,
        rules: &Rules,
        request: &Request<'_>,
        verdict: Verdict<'r>,
        start: Time,
        owner: Owner,
    ) -> Answer<'r> {
        let now = self.now();
        let took = now.since(start);
        self.observers.note(&Decision { request, verdict: &verdict, took, now });
        if let Some(domain) = rules.candidate_of(request.domain) {
            let runs = verdict.code == Code::Ok;
            self.try_candidate(rules, domain, request, now, owner, runs);
        }
        if tracing::enabled!(Level::DEBUG) {
            log_decision(request, &verdict);
        }
        let headers = self.headers.as_deref().map(|headers| of(headers, &verdict));
        Answer { verdict, headers: headers.unwrap_or_default() }
    }
}

// === impl Unanswered ===

impl Unanswered<'_> {
    /// From now on the start is its answer's.
    fn answered(mut self) {
        self.start = None;
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        if let Some(start) = self.start {
            self.starts.undo(start);
        }
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

// The response headers that describe the limits of a verdict.
//
// Headers for one limit describe the tightest ([`Verdict::tightest`]). Lists have one item for
// each policy name: rules with the same name are one policy, described by the tightest of them.

/// Maximum size in bytes of a header's value: Envoy refuses responses whose headers exceed 60 KiB
/// in total. Items that do not fit are left out.
const VALUE_BYTES_MAX: usize = 4096;

/// Maximum size in bytes of a policy's name in a header, without its quotes; longer names are cut.
const NAME_BYTES_MAX: usize = 128;

/// The item of a list for one limit.
struct Item<'a> {
    status: &'a Status<'a>,
    applied: AppliedLimit<'a>,
    /// The name in quotes.
    name: String,
}

/// The headers for `verdict`; empty if no limit applies.
fn of(headers: &Headers, verdict: &Verdict<'_>) -> Vec<(String, String)> {
    let mut written = Vec::new();
    let Some((status, applied)) = verdict.tightest_limit() else { return written };
    let requests = applied.limit.requests_per_unit;
    let reset = status.reset_seconds().unwrap_or_default();
    let mut write = |name: &str, value: String| written.push((name.to_owned(), value));
    if let Some(names) = &headers.reference {
        write(&names.limit, requests.to_string());
        write(&names.remaining, status.remaining.to_string());
        write(&names.reset, reset.to_string());
    }
    if headers.x_ratelimit {
        write("X-RateLimit-Limit", x_ratelimit_limit(requests, verdict));
        write("X-RateLimit-Remaining", status.remaining.to_string());
        write("X-RateLimit-Reset", reset.to_string());
    }
    if headers.ietf {
        let items = items(status, verdict);
        write("RateLimit-Policy", list(items.iter().map(Item::policy)));
        write("RateLimit", list(items.iter().map(Item::remaining)));
    }
    if headers.retry_after && verdict.code == Code::OverLimit {
        write("Retry-After", verdict.retry_after_seconds().to_string());
    }
    written
}

/// The value in Envoy's format: the limit that bounds, then each limit with its window and, if it
/// has one, its name. Envoy inserts the name unchanged; here it is escaped.
fn x_ratelimit_limit(requests: u64, verdict: &Verdict<'_>) -> String {
    let limits = verdict.statuses.iter().filter_map(|status| status.limit).map(|applied| {
        let requests = applied.limit.requests_per_unit;
        let window = match applied.limit.window_unit() {
            Some(_) => format!(";w={}", applied.limit.window_seconds()),
            None => String::new(),
        };
        match applied.rule.map(|rule| &*rule.name).filter(|name| !name.is_empty()) {
            Some(name) => format!("{requests}{window};name={}", quoted(name)),
            None => format!("{requests}{window}"),
        }
    });
    list(std::iter::once(requests.to_string()).chain(limits))
}

/// One item for each policy, the tightest first, then by remaining, fewest first.
fn items<'a>(tightest: &'a Status<'a>, verdict: &'a Verdict<'_>) -> Vec<Item<'a>> {
    let mut others: Vec<_> =
        verdict.statuses.iter().filter(|other| !std::ptr::eq(*other, tightest)).collect();
    others.sort_by_key(|status| status.remaining);
    let mut items = Vec::<Item<'_>>::new();
    for status in std::iter::once(tightest).chain(others) {
        let Some(applied) = status.limit else { continue };
        let name = quoted(policy(applied));
        if !items.iter().any(|item| item.name == name) {
            items.push(Item { status, applied, name });
        }
    }
    items
}

/// The rule's name or its path: never text that a client has sent.
fn policy(applied: AppliedLimit<'_>) -> &str {
    match applied.rule {
        Some(rule) if rule.name.is_empty() => &rule.path,
        Some(rule) => &rule.name,
        None => OVERRIDE,
    }
}

/// Joins items with commas, as many as fit.
fn list(items: impl Iterator<Item = String>) -> String {
    let mut list = String::new();
    for item in items {
        let comma = if list.is_empty() { "" } else { ", " };
        if list.len() + comma.len() + item.len() <= VALUE_BYTES_MAX {
            list += comma;
            list += &item;
        }
    }
    list
}

/// Formats `text` as a String of RFC 9651 §3.3.3, which allows only ASCII: other bytes are written
/// as in its Display Strings (§3.3.8), `%` and two hexadecimal digits a byte; `%` itself too, so
/// that different texts never have the same form. Cut to `NAME_BYTES_MAX`.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        let before = quoted.len();
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            ' '..='~' if c != '%' => quoted.push(c),
            _ => {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    // Writing to a string cannot fail.
                    let _ = write!(quoted, "%{byte:02x}");
                }
            }
        }
        if quoted.len() > 1 + NAME_BYTES_MAX {
            quoted.truncate(before);
            break;
        }
    }
    quoted.push('"');
    quoted
}

/// The largest Integer of RFC 9651 §3.3.1.
const INTEGER_MAX: u64 = 999_999_999_999_999;

// === impl Item ===

impl Item<'_> {
    /// Quota and window of the policy; the window is in seconds. Without a window, the quota's
    /// unit.
    fn policy(&self) -> String {
        let Self { name, applied: AppliedLimit { limit, .. }, .. } = self;
        let requests = limit.requests_per_unit.min(INTEGER_MAX);
        match limit.window_unit() {
            Some(_) => format!("{name};q={requests};w={}", limit.window_seconds()),
            None => format!("{name};q={requests};qu=\"concurrent-requests\""),
        }
    }

    /// The remaining quota, and the seconds until it is full again, if they are known.
    fn remaining(&self) -> String {
        let Self { name, status, .. } = self;
        let remaining = status.remaining.min(INTEGER_MAX);
        match status.reset_seconds() {
            Some(seconds) => format!("{name};r={remaining};t={seconds}"),
            None => format!("{name};r={remaining}"),
        }
    }
}

// Limits the number of calls that wait at once.
//
// A call takes a permit when it begins to wait for a lease or a slot; the memory of incomplete
// messages is bounded separately (`body_budget.rs`). Calls that wait for the CPU do so before they
// come here, and are bounded by the streams of their connections. Refusing these by the length of
// their queue left nothing decided at all (tried once, at three times the saturating load): an
// error may well cost as much as a decision.

/// One in this many permits is reserved for connections that have few of them: a connection that
/// takes all others shuts out only itself.
const RESERVED_DIVISOR: usize = 4;

/// Number of waiting calls below which a connection may take one of the reserved permits.
const FEW_CALLS: usize = 8;

/// Counts the calls that wait, and refuses those above the maximum.
#[derive(Debug)]
struct ConcurrencyLimit {
    calls_max: usize,
    /// The setting that the maximum comes from, for the log.
    setting: &'static str,
    waiting: AtomicUsize,
    shed: AtomicU64,
    /// Set while overloaded, so that each overload is logged once.
    is_overloaded: AtomicBool,
}

/// Lets one call wait, until it is dropped.
struct Permit<'a> {
    limit: &'a ConcurrencyLimit,
    peer: &'a Peer,
}

// === impl ConcurrencyLimit ===

impl ConcurrencyLimit {
    /// Creates a limit of `calls_max` calls at once, a number that `setting` sets.
    fn new(calls_max: usize, setting: &'static str) -> Self {
        Self {
            calls_max,
            setting,
            waiting: AtomicUsize::new(0),
            shed: AtomicU64::new(0),
            is_overloaded: AtomicBool::new(false),
        }
    }

    /// Lets a call of `peer` wait, unless too many do.
    fn admit<'a>(&'a self, peer: &'a Peer) -> Result<Permit<'a>, RequestError> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let of_peer = peer.waiting().fetch_add(1, Ordering::Relaxed);
        let permit = Permit { limit: self, peer };
        let reserved = if of_peer < FEW_CALLS { 0 } else { self.calls_max / RESERVED_DIVISOR };
        if before + reserved >= self.calls_max {
            self.shed.fetch_add(1, Ordering::Relaxed);
            if !self.is_overloaded.swap(true, Ordering::Relaxed) {
                let Self { calls_max, setting, .. } = self;
                warn!(
                    "calls are refused: {before} are waiting, of at most {calls_max} ({setting})"
                );
            }
            return Err(RequestError::Overloaded);
        }
        if before <= self.calls_max / 2 && self.is_overloaded.load(Ordering::Relaxed) {
            self.note_recovery();
        }
        Ok(permit)
    }

    #[cold]
    fn note_recovery(&self) {
        if self.is_overloaded.swap(false, Ordering::Relaxed) {
            let shed = self.shed.load(Ordering::Relaxed);
            info!("calls are accepted again; {shed} were refused since the start");
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.peer.waiting().fetch_sub(1, Ordering::Relaxed);
        self.limit.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
