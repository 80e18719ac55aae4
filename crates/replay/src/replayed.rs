//! A replay of a log under one set of rules.

use ratelease_engine::verdict::{Code, Modes};
use ratelease_rules::Rules;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::Request;

use crate::counts::ReplayCounts;
use crate::exact_limiter::ExactLimiter;

/// Maximum number of keys that are counted at once, about 100 bytes each; keys whose windows have
/// ended are evicted.
const KEYS_MAX: usize = 1 << 20;

/// Decides requests at their logged times, and counts the results.
pub struct Replay<'r> {
    rules: &'r Rules,
    exact: ExactLimiter,
    /// The results so far.
    pub counts: ReplayCounts,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decided {
    /// It passed. Also a request for whose key there was no room.
    Passed,
    /// It was denied.
    Denied,
    /// It has no descriptor, so that Envoy would not have asked.
    NotAsked,
}

// === impl Replay ===

impl<'r> Replay<'r> {
    /// A replay that has counted nothing yet.
    pub fn new(rules: &'r Rules) -> Self {
        let exact = ExactLimiter::new(KEYS_MAX, KeyHasher::new(""), Modes::default());
        Self { rules, exact, counts: ReplayCounts::default() }
    }

    /// Decides `request` at the time `at`, in microseconds since the Unix epoch, and counts the
    /// result. A time before that of an earlier request is decided at the newest one so far.
    pub fn request(&mut self, at: u64, request: &Request<'_>) -> Decided {
        self.counts.lines += 1;
        self.counts.note_time(at);
        if request.descriptors.is_empty() {
            self.counts.without_descriptor += 1;
            return Decided::NotAsked;
        }
        self.exact.advance(at);
        match self.exact.decide(self.rules, request) {
            Ok(verdict) => {
                self.counts.note(request, &verdict);
                if verdict.code == Code::OverLimit { Decided::Denied } else { Decided::Passed }
            }
            Err(_) => {
                self.counts.note_uncounted();
                Decided::Passed
            }
        }
    }
}
