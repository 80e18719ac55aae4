//! One request, and what it charges.

use std::time::Duration;

use ratelease_engine::time::Time;
use ratelease_rules::key::{Key, KeyHasher, Part};
use ratelease_rules::{Algorithm, FailureMode, Limit, Rules};

use crate::rule::{self, DOMAIN};

/// A request on its way.
#[derive(Debug, Clone)]
pub struct Call {
    pub pod: u64,
    pub begun_at: Time,
    /// The caller was held up for so long between reading the clock and asking.
    pub pause: Duration,
    /// It is answered within this.
    pub patience: Duration,
    pub charges: Vec<Charge>,
}

/// One descriptor of a request.
#[derive(Debug, Clone)]
pub struct Charge {
    pub name: &'static str,
    pub value: &'static str,
    /// 0 looks.
    pub hits: u64,
    pub refund: bool,
    /// A limit that the request itself names.
    pub limit: Option<Limit>,
    /// What it is counted as; `None` if nothing limits it.
    pub count: Option<(Key, Limit)>,
    pub failure_mode: FailureMode,
    /// Hits that were asked for in its window up to and with this one.
    pub order: u64,
}

// === impl Call ===

impl Call {
    /// The charges that are counted, by their places.
    pub fn counts(&self) -> impl Iterator<Item = (usize, Key, Limit)> {
        { self.charges.iter().enumerate() }
            .filter_map(|(at, charge)| charge.count.map(|(key, limit)| (at, key, limit)))
    }

    /// A few words for people.
    pub fn story(&self) -> String {
        let charges: Vec<_> =
            self.charges.iter().map(|it| (it.name, it.value, it.hits, it.refund)).collect();
        format!("{charges:?}")
    }
}

// === impl Charge ===

impl Charge {
    /// Finds what it is counted as under `rules`.
    pub fn resolve(&mut self, rules: &Rules, hasher: &KeyHasher) {
        let applied = rule::applied(rules, self.name);
        let limit = self.limit.or(applied.map(|applied| applied.limit));
        self.failure_mode = match (self.limit, applied) {
            (None, Some(applied)) => applied.failure_mode,
            _ => FailureMode::default(),
        };
        self.count = limit.map(|limit| {
            let part = (self.name, Part::Value(self.value));
            (hasher.key(DOMAIN, limit.identity(), std::iter::once(part)), limit)
        });
    }

    /// How long its answer may be held back.
    pub fn max_delay(&self) -> Duration {
        match self.count {
            Some((_, Limit { algorithm: Algorithm::LeakyBucket { max_delay_us }, .. })) => {
                Duration::from_micros(max_delay_us.into())
            }
            _ => Duration::ZERO,
        }
    }
}
