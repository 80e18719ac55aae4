//! A replay of a log under one set of rules.

use ratelease_engine::verdict::{Code, Modes};
use ratelease_rules::Rules;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Request};

use crate::counts::ReplayCounts;
use crate::exact_limiter::ExactLimiter;
use crate::mapping::STEP_WORK;

/// Maximum number of keys that are counted at once, about 100 bytes each; keys whose windows have
/// ended are evicted.
const KEYS_MAX: usize = 1 << 20;

/// Units of work for each descriptor: its rule is found, and its key looked at and charged.
const DESCRIPTOR_WORK: u64 = 512;

/// Decides requests at their logged times, and counts the results.
pub struct Replay<'r> {
    rules: &'r Rules,
    exact: ExactLimiter,
    /// The results so far.
    pub counts: ReplayCounts,
    /// The work of deciding so far: a unit for each byte of keys and values, and more for each
    /// entry and descriptor. One takes some nanoseconds.
    pub work: u64,
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
        Self::within(rules, KEYS_MAX)
    }

    /// The same with at most `keys_max` keys at once. Requests beyond them pass, and are counted as
    /// [`ReplayCounts::uncounted`].
    pub fn within(rules: &'r Rules, keys_max: usize) -> Self {
        let exact = ExactLimiter::new(keys_max, KeyHasher::new(""), Modes::default());
        Self { rules, exact, counts: ReplayCounts::default(), work: 0 }
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
        self.work += work(request);
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

fn work(request: &Request<'_>) -> u64 {
    let of_descriptor = |descriptor: &Descriptor<'_>| {
        let entries = descriptor.entries.iter();
        let entries = entries.map(|it| STEP_WORK + (it.key.len() + it.value.len()) as u64);
        DESCRIPTOR_WORK + entries.sum::<u64>()
    };
    request.descriptors.iter().map(of_descriptor).sum()
}
