//! What every door, gRPC or HTTP, does with a request: check it, decide it, or say why not.

mod gate;
mod headers;
mod parts;
mod room;

use std::sync::Arc;

use http::HeaderMap;
use ratelease_cli::settings::Headers;
use ratelease_engine::limiter::Limiter;
use ratelease_engine::observer::{Decision, Observer};
use ratelease_engine::store::{Count, StoreError};
use ratelease_engine::time::Time;
use ratelease_engine::verdict::Verdict;
use ratelease_rules::Rules;
use ratelease_rules::request::{DESCRIPTORS_MAX, ENTRIES_MAX, Request};
use tracing::{Level, debug};

use crate::control::Published;
use crate::observe::Observers;
use crate::refusal::{Fault, Refusal};
use crate::telemetry::trace::{Door, Span};

use gate::Gate;
pub use parts::Parts;
use room::Room;
pub use room::{Held, Peer};

/// Bytes of unfinished messages of gRPC at most, of all connections together: 500 messages of
/// Envoy, which take a few hundred bytes, or 4 that are as long as may be. What is on its way to
/// them, in streams and buffers, takes about as much again.
const GRPC_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The same of `/json`, which is for people and small scripts. One connection may have half, which
/// is more than the longest body.
const JSON_BYTES_MAX: usize = 3 * 1024 * 1024;

/// Requests of `/json` that wait at most, whatever `MAX_IN_FLIGHT` says. With each waiting 5 ms for
/// a lease, this many are 12 800 a second.
pub const JSON_CALLS_MAX: usize = 64;

/// Checks and decides requests. A handle: clones share everything.
#[derive(Clone)]
pub struct Intake {
    limiter: Limiter,
    published: Arc<Published>,
    headers: Option<Arc<Headers>>,
    grpc: Entrance,
    json: Entrance,
    observers: Observers,
}

/// What one door's calls may have. Each door has its own, so that none is shut out by another.
#[derive(Clone)]
struct Entrance {
    gate: Gate,
    room: Room,
}

/// A verdict with the headers that go with it.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<'r> {
    /// What was decided.
    pub verdict: Verdict<'r>,
    /// To be added to the response; empty unless they were asked for and a limit applies.
    pub headers: Vec<(String, String)>,
}

// === impl Intake ===

impl Intake {
    /// An intake that decides by whatever rules are published at the time; `calls_max` calls of
    /// gRPC wait at once.
    pub fn new(
        limiter: Limiter,
        published: Arc<Published>,
        headers: Option<Headers>,
        calls_max: usize,
    ) -> Self {
        let json_max = calls_max.min(JSON_CALLS_MAX);
        Self {
            limiter,
            published,
            headers: headers.map(Arc::new),
            grpc: Entrance {
                gate: Gate::new(calls_max, "MAX_IN_FLIGHT"),
                room: Room::new(GRPC_BYTES_MAX),
            },
            json: Entrance {
                gate: Gate::new(json_max, "for /json"),
                room: Room::new(JSON_BYTES_MAX),
            },
            observers: Observers::default(),
        }
    }

    /// The same, and `observers` are told of every request that gets as far as this.
    #[must_use]
    pub fn observed_by(self, observers: Observers) -> Self {
        Self { observers, ..self }
    }

    /// The span of a request that comes in at `door` with these headers, if it is to be traced.
    pub fn begin(&self, door: Door, headers: &HeaderMap) -> Option<Span> {
        self.observers.begin(door, headers)
    }

    /// Sees `call` of `peer` through, which may wait. Its message is whole: what is not is bounded
    /// by [`Intake::hold`].
    ///
    /// # Errors
    ///
    /// Too many calls wait ([`Refusal::Overloaded`], and `call` was not begun), or it panicked
    /// ([`Refusal::Panicked`]).
    pub async fn pass<T>(
        &self,
        door: Door,
        peer: &Peer,
        call: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let passed = self.entrance(door).gate.pass(peer, call).await;
        passed.inspect_err(|refusal| self.observers.note_refusal(refusal))
    }

    /// Sees to a call from its head to its answer.
    ///
    /// # Errors
    ///
    /// It panicked ([`Refusal::Panicked`]).
    pub async fn contain<T>(
        &self,
        door: Door,
        call: impl Future<Output = T>,
    ) -> Result<T, Refusal> {
        let contained = self.entrance(door).gate.contain(call).await;
        contained.inspect_err(|refusal| self.observers.note_refusal(refusal))
    }

    /// To count what is read of a message that is not whole yet.
    pub fn hold(&self, door: Door, peer: &Peer) -> Held {
        self.entrance(door).room.hold(peer)
    }

    /// Takes note of a request that a door refused by itself.
    pub fn note_refusal(&self, refusal: &Refusal) {
        self.observers.note_refusal(refusal);
    }

    /// What has happened here since the process began, by name.
    pub fn counts(&self) -> Vec<Count> {
        let Self { grpc, json, .. } = self;
        let sum = |of: fn(&Entrance) -> u64| of(grpc) + of(json);
        vec![
            ("calls_under_way", sum(|it| it.gate.waiting())),
            ("message_bytes", sum(|it| it.room.bytes())),
            ("shed", sum(|it| it.gate.shed() + it.room.refused())),
            ("request_panics", sum(|it| it.gate.panics())),
        ]
    }

    fn entrance(&self, door: Door) -> &Entrance {
        match door {
            Door::Grpc => &self.grpc,
            Door::Json => &self.json,
        }
    }

    /// The present, by the clock that [`Intake::answer_by`] goes by.
    pub fn now(&self) -> Time {
        self.limiter.clock().now()
    }

    /// What `make` makes of the answer to `request`, which is computed under one version of the
    /// rules.
    ///
    /// # Errors
    ///
    /// The request is not one that can be decided, or the store could not answer.
    pub async fn answer<T>(
        &self,
        request: &Request<'_>,
        make: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T, Refusal> {
        self.answer_by(None, request, make).await
    }

    /// As [`Intake::answer`], for a caller that gives up at `deadline`: what is left until then
    /// bounds how long the store may take.
    ///
    /// # Errors
    ///
    /// As [`Intake::answer`].
    pub async fn answer_by<T>(
        &self,
        deadline: Option<Time>,
        request: &Request<'_>,
        make: impl FnOnce(Answer<'_>) -> T,
    ) -> Result<T, Refusal> {
        let start = self.now();
        let caller = deadline.map(|deadline| deadline.since(start));
        let answered = async {
            check(request)?;
            let rules = self.published.current().ok_or(Refusal::NoRules)?;
            let decided = self.limiter.decide_within(&rules, request, caller).await;
            let verdict = decided.map_err(|error| self.unanswered(&rules, request, error))?;
            Ok(make(self.finish(request, verdict, start)))
        };
        let answered = answered.await;
        answered.inspect_err(|refusal| self.observers.note_refusal(refusal))
    }

    /// As [`Intake::answer`], if that takes no waiting; else nothing has happened, and
    /// [`Intake::pass`] has to be asked. It takes no place among the calls that wait.
    pub fn answer_at_once<T>(
        &self,
        request: &Request<'_>,
        make: impl FnOnce(&Answer<'_>) -> T,
    ) -> Option<Result<T, Refusal>> {
        let passed = self.grpc.gate.contain_at_once(|| {
            check(request).ok()?;
            let rules = self.published.borrow();
            let start = self.limiter.clock().now();
            let rules = rules.as_deref()?;
            let verdict = self.limiter.decide_at_once(rules, request, start)?;
            let answer = verdict.map(|verdict| make(&self.finish(request, verdict, start)));
            Some(answer.map_err(|error| self.unanswered(rules, request, error)))
        });
        if let Some(Err(refusal)) = &passed {
            self.observers.note_refusal(refusal);
        }
        passed
    }

    #[cold]
    fn unanswered(&self, rules: &Rules, request: &Request<'_>, error: StoreError) -> Refusal {
        self.observers.note_unanswered(rules, request);
        Refusal::Store(error)
    }

    fn finish<'r>(&self, request: &Request<'_>, verdict: Verdict<'r>, start: Time) -> Answer<'r> {
        let now = self.limiter.clock().now();
        let took = now.since(start);
        self.observers.note(&Decision { request, verdict: &verdict, took, now });
        if tracing::enabled!(Level::DEBUG) {
            tell(request, &verdict);
        }
        let headers = self.headers.as_deref().map(|headers| headers::of(headers, &verdict));
        Answer { verdict, headers: headers.unwrap_or_default() }
    }
}

fn check(request: &Request<'_>) -> Result<(), Refusal> {
    if request.domain.is_empty() {
        return Err(Refusal::EmptyDomain);
    }
    match request.descriptors.len() {
        0 => return Err(Refusal::NoDescriptors),
        n if n > DESCRIPTORS_MAX => return Err(Refusal::Invalid(Fault::Descriptors)),
        _ => {}
    }
    match request.descriptors.iter().position(|d| d.entries.len() > ENTRIES_MAX) {
        Some(at) => Err(Refusal::Invalid(Fault::Entries(at))),
        None => Ok(()),
    }
}

/// One line a descriptor, named as the reference names its statistics: values show only where the
/// rule asks for them.
fn tell(request: &Request<'_>, verdict: &Verdict<'_>) {
    for (descriptor, status) in request.descriptors.iter().zip(&verdict.statuses) {
        let rule = status.limit.and_then(|applied| applied.rule);
        let rule = rule.map(|rule| rule.stats_key(request.domain, &descriptor.entries));
        let rule = rule.as_deref().unwrap_or("none or override");
        debug!(rule, code = ?status.code, remaining = status.remaining, "decided");
    }
}
