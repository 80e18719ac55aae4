//! Candidate rules: a domain whose name ends in `@candidate` is tried on the requests of the other
//! domain, which were decided already, and only counted.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::time::Time;
use ratelease_engine::verdict::Decision;
use ratelease_rules::Rules;
use ratelease_rules::request::{Descriptor, Entry, Request};
use tokio::runtime::Handle;

use super::DecisionService;

/// The largest number of requests that wait for leases of candidate rules. Further ones are left out.
const WAITING_MAX: usize = 256;

/// The largest keys and values of a request that waits, in bytes: 2 MiB of all.
const REQUEST_BYTES_MAX: usize = 8 << 10;

/// The requests that wait for leases of candidate rules.
#[derive(Debug, Default)]
pub(super) struct Candidates {
    waiting: AtomicUsize,
}

/// The place of a request that waits, until it is dropped.
struct Place(Arc<Candidates>);

/// A request that outlives its message. It has no limits of its own.
struct Copied {
    domain: Box<str>,
    descriptors: Vec<CopiedDescriptor>,
    hits_addend: u64,
}

struct CopiedDescriptor {
    entries: Vec<(Box<str>, Box<str>)>,
    hits_addend: Option<u64>,
    refund: bool,
}

// === impl DecisionService ===

impl DecisionService {
    /// Decides `request` by the candidate rules of its domain, which are `domain`, and counts that.
    /// The answer does not wait: a request that lacks tokens here is decided later. A panic is counted,
    /// and does no harm to the answer.
    #[cold]
    pub(super) fn try_candidate(
        &self,
        rules: &Rules,
        domain: &str,
        request: &Request<'_>,
        now: Time,
        owner: Owner,
        runs: bool,
    ) {
        let decide = || {
            let request = of_candidate(domain, request);
            match self.limiter.decide_aside(rules, &request, now, owner, runs) {
                Some(verdict) => {
                    let (verdict, took) = (&verdict, Duration::ZERO);
                    let decision = Decision { request: &request, verdict, took, now };
                    self.observers.note_candidate(&decision);
                }
                None => self.try_later(&request, owner, runs),
            }
        };
        if catch_unwind(AssertUnwindSafe(decide)).is_err() {
            self.note_candidate_panic();
        }
    }

    /// Decides a request once the store has lent what it lacks, if there is room for it to wait.
    fn try_later(&self, request: &Request<'_>, owner: Owner, runs: bool) {
        let Ok(runtime) = Handle::try_current() else { return };
        let Some(rules) = self.rules_in_force.current() else { return };
        let (Some(place), Some(copied)) = (self.candidates.enter(), Copied::of(request)) else {
            return self.observers.note_left_out(request);
        };
        let service = self.clone();
        let decided = async move {
            let _place = place;
            let request = copied.request();
            let limiter = &service.limiter;
            let verdict = limiter.decide_aside_later(&rules, &request, owner, runs).await;
            match &verdict {
                Some(verdict) => {
                    let (took, now) = (Duration::ZERO, service.now());
                    let decision = Decision { request: &request, verdict, took, now };
                    service.observers.note_candidate(&decision);
                }
                // A settlement was applied, and is no hit.
                None if limiter.settles(&rules, &request) => {}
                None => service.observers.note_left_out(&request),
            }
        };
        let service = self.clone();
        let counted = async move {
            if AssertUnwindSafe(decided).catch_unwind().await.is_err() {
                service.note_candidate_panic();
            }
        };
        let mut counted = Box::pin(counted);
        // Now, so that no end of the request comes before its start.
        if (&mut counted).now_or_never().is_none() {
            runtime.spawn(counted);
        }
    }

    fn note_candidate_panic(&self) {
        self.grpc.panics.fetch_add(1, Ordering::Relaxed); // the sum of both protocols is shown
    }
}

// === impl Candidates ===

impl Candidates {
    fn enter(self: &Arc<Self>) -> Option<Place> {
        let place = Place(Arc::clone(self));
        (self.waiting.fetch_add(1, Ordering::Relaxed) < WAITING_MAX).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Copied ===

impl Copied {
    /// `None` if the request is too large.
    fn of(request: &Request<'_>) -> Option<Self> {
        let entries = request.descriptors.iter().flat_map(|it| &it.entries);
        let bytes: usize = entries.map(|it| it.key.len() + it.value.len()).sum();
        (bytes <= REQUEST_BYTES_MAX).then(|| Self {
            domain: request.domain.into(),
            descriptors: request.descriptors.iter().map(CopiedDescriptor::of).collect(),
            hits_addend: request.hits_addend,
        })
    }

    fn request(&self) -> Request<'_> {
        Request {
            domain: &self.domain,
            descriptors: self.descriptors.iter().map(CopiedDescriptor::descriptor).collect(),
            hits_addend: self.hits_addend,
        }
    }
}

impl CopiedDescriptor {
    fn of(descriptor: &Descriptor<'_>) -> Self {
        let entries = descriptor.entries.iter();
        Self {
            entries: entries.map(|it| (it.key.into(), it.value.into())).collect(),
            hits_addend: descriptor.hits_addend,
            refund: descriptor.refund,
        }
    }

    fn descriptor(&self) -> Descriptor<'_> {
        let entries = self.entries.iter().map(|(key, value)| Entry { key, value });
        Descriptor {
            entries: entries.collect(),
            limit: None,
            hits_addend: self.hits_addend,
            refund: self.refund,
        }
    }
}

/// The same request to the candidate rules. What has a limit of its own is left out: no rule
/// decides it, whichever are in force.
fn of_candidate<'a>(domain: &'a str, request: &'a Request<'_>) -> Request<'a> {
    let descriptors = request.descriptors.iter().filter(|it| it.limit.is_none());
    let descriptors = descriptors.map(|it| Descriptor {
        entries: it.entries.iter().copied().collect(),
        limit: None,
        hits_addend: it.hits_addend,
        refund: it.refund,
    });
    let hits_addend = request.hits_addend;
    Request { domain, descriptors: descriptors.collect(), hits_addend }
}
