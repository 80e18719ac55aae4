//! One request, and its charges.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ratelease_engine::time::Time;
use ratelease_rules::key::{Key, KeyHasher, KeyPart};
use ratelease_rules::{FailureMode, Hold, Limit, Rules};

use crate::rule::{self, Costs, DOMAIN, ID};

/// A request under way.
#[derive(Debug, Clone)]
pub struct Call {
    pub pod: u64,
    pub begun_at: Time,
    /// Delay of the caller between reading the clock and asking.
    pub pause: Duration,
    /// The request is answered within this time.
    pub patience: Duration,
    pub charges: Vec<Charge>,
    /// Whether it was answered, and may pass.
    pub passed: Arc<AtomicBool>,
}

/// One descriptor of a request.
#[derive(Debug, Clone)]
pub struct Charge {
    pub name: &'static str,
    pub value: &'static str,
    /// 0 only reads the count.
    pub hits: u64,
    pub refund: bool,
    /// A limit in the request itself.
    pub limit: Option<Limit>,
    /// The key and limit that it counts under; `None` if no rule limits it.
    pub count: Option<(Key, Limit)>,
    pub failure_mode: FailureMode,
    /// The kind of costs of the rule of this name.
    pub costs: Costs,
    /// The id of a request that may hold something; empty for others.
    pub id: &'static str,
    /// `true`: the charge has the entry that marks a settlement.
    pub is_marked: bool,
    /// The rule's terms of holds.
    pub hold: Option<Hold>,
    /// Hits requested in its window, up to and including this charge.
    pub order: u64,
}

// === impl Call ===

impl Call {
    /// The charges that are counted, by their positions.
    pub fn counts(&self) -> impl Iterator<Item = (usize, Key, Limit)> {
        { self.charges.iter().enumerate() }
            .filter_map(|(at, charge)| charge.count.map(|(key, limit)| (at, key, limit)))
    }

    /// A short description for the story.
    pub fn story(&self) -> String {
        let charges: Vec<_> =
            self.charges.iter().map(|it| (it.name, it.value, it.hits, it.refund)).collect();
        format!("{charges:?}")
    }
}

// === impl Charge ===

impl Charge {
    /// Finds the key and limit that it counts under by `rules`.
    pub fn resolve(&mut self, rules: &Rules, hasher: &KeyHasher) {
        let applied = rule::applied(rules, self.name);
        self.hold = applied.and_then(|applied| applied.hold);
        let limit = self.limit.or(applied.map(|applied| applied.limit));
        self.failure_mode = match (self.limit, applied) {
            (None, Some(applied)) => applied.failure_mode,
            _ => FailureMode::default(),
        };
        self.count = limit.map(|limit| {
            let parts = [(self.name, KeyPart::Value(self.value)), (ID, KeyPart::Shared(""))];
            let parts = if self.id.is_empty() { &parts[..1] } else { &parts[..] };
            (hasher.key(DOMAIN, limit.identity(), parts.iter().copied()), limit)
        });
    }

    /// Maximum delay of its answer.
    pub fn max_delay(&self) -> Duration {
        match self.count {
            Some((_, limit)) => limit.algorithm.max_delay(),
            None => Duration::ZERO,
        }
    }
}
