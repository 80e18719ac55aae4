//! A limiter that decides as one exact server would, by the clock that it is given: it shows what
//! the rules would have decided for a log or a test. It leases nothing and waits for nothing.
//!
//! It uses the engine's resolution of requests and its memory store. `replay`, `rule_tests` and the
//! differential fuzzer use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_engine::limiter::{Charge, Resolved, resolve};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, Grant, Return, StoreError};
use ratelease_engine::verdict;
use ratelease_engine::verdict::{Code, Counted, DecisionSource, Modes, Status, Verdict};
use ratelease_rules::Rules;
use ratelease_rules::key::{Key, KeyHasher};
use ratelease_rules::request::{Few, Request};

/// Decides requests as one server would that asks its store for each request.
///
/// The differences from a fleet: no lease lies unspent in a pod or a pool, no failure mode answers,
/// and a leaky bucket's delay is not waited for.
pub struct ExactLimiter {
    store: MemoryStore,
    /// Microseconds since the Unix epoch.
    now: Arc<AtomicU64>,
    hasher: KeyHasher,
    modes: Modes,
}

// === impl ExactLimiter ===

impl ExactLimiter {
    /// A server that has counted nothing yet, at the Unix epoch, for at most `keys_max` keys at
    /// once.
    pub fn new(keys_max: usize, hasher: KeyHasher, modes: Modes) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let read = move || Duration::from_micros(clock.load(Ordering::Relaxed));
        Self { store: MemoryStore::new(Arc::new(read), keys_max), now, hasher, modes }
    }

    /// Sets the clock, in microseconds since the Unix epoch. The clock never runs back: an earlier
    /// time has no effect.
    pub fn advance(&mut self, to_unix_us: u64) {
        self.now.fetch_max(to_unix_us, Ordering::Relaxed);
    }

    /// Number of keys held at present.
    pub fn keys(&self) -> usize {
        self.store.keys()
    }

    /// Decides `request` under `rules` at the present time.
    ///
    /// As [`Limiter::decide`](ratelease_engine::limiter::Limiter::decide): all descriptors are
    /// checked before any is charged, and a request that is denied spends only what is left of the
    /// keys that deny it; its settlements are charged in any case.
    ///
    /// # Errors
    ///
    /// There is no room for another key. Then nothing is charged, except what the descriptors
    /// before it took.
    pub fn decide<'r>(
        &mut self,
        rules: &'r Rules,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, StoreError> {
        let resolved = resolve(rules, request, &self.hasher);
        let mut statuses = Few::new();
        for (at, one) in resolved.iter().enumerate() {
            statuses.push(match one {
                Resolved::Free => Status::FREE,
                Resolved::Unlimited => Status::UNLIMITED,
                Resolved::Charged(charge) => {
                    let before = spent_before(resolved.get(..at).unwrap_or_default(), charge.own);
                    self.look(charge, before)?
                }
            });
        }
        let denies = verdict::code(&statuses, self.modes) == Code::OverLimit;
        for (one, status) in resolved.iter().zip(&mut statuses) {
            if let Resolved::Charged(charge) = one
                && (!denies || is_exceeded(status) || charge.settles())
            {
                *status = self.charge(charge, *status)?;
            }
        }
        Ok(Verdict::new(request, statuses, self.modes))
    }

    /// The state of the key for `charge`, after `before` hits of the same request.
    fn look<'r>(&self, charge: &Charge<'r>, before: u64) -> Result<Status<'r>, StoreError> {
        let grant = self.store.take(&charge.look())?;
        let settles = charge.applied.rule.is_some_and(|rule| rule.flags.settle);
        let over = match charge.hits {
            _ if charge.refund || charge.settles() => false,
            0 => grant.overdrawn || before > grant.left || (settles && grant.left == 0),
            hits => hits.saturating_add(before) > grant.left,
        };
        Ok(status(charge, over, &grant))
    }

    /// Charges what was `seen`: all of it, or, if the request is denied, only what the rule makes a
    /// denial spend.
    fn charge<'r>(&self, charge: &Charge<'r>, seen: Status<'r>) -> Result<Status<'r>, StoreError> {
        let over = is_exceeded(&seen);
        if over && charge.hits == 0 {
            return Ok(Status { remaining: 0, ..seen });
        }
        let look = charge.look();
        let ask = if charge.refund {
            Ask { back: Some(Return { tokens: charge.hits, epoch: None }), ..look }
        } else if charge.settles() {
            Ask { owed: charge.hits, ..look }
        } else {
            // A charge over its limit stays so, even if it would pass alone: another descriptor of
            // the request has the same key and is charged first.
            let need = if over { u64::MAX } else { charge.hits };
            Ask { need, charge_denied: charge.charge_denied(), ..look }
        };
        let grant = self.store.take(&ask)?;
        Ok(status(charge, over, &grant))
    }
}

/// Hits that earlier descriptors of the request take from the same key.
fn spent_before(resolved: &[Resolved<'_>], key: Key) -> u64 {
    let of_key = resolved.iter().filter_map(|one| match one {
        Resolved::Charged(charge) if charge.own == key && !charge.refund => Some(charge.hits),
        _ => None,
    });
    of_key.fold(0, u64::saturating_add)
}

/// Whether the limit is exceeded, even if the rule's mode lets the request pass.
fn is_exceeded(status: &Status<'_>) -> bool {
    status.counted.is_some_and(|counted| counted.over)
}

fn status<'r>(charge: &Charge<'r>, over: bool, grant: &Grant) -> Status<'r> {
    let key = charge.own;
    let hits = charge.hits;
    let how = DecisionSource::Leased;
    let counted = Counted { key, hits, fitted: 0, over, how };
    Status::counted(charge.applied, counted, grant.left, Some(grant.resets_after()))
}

#[cfg(test)]
mod tests {
    use ratelease_rules::request::{Descriptor, Entry};
    use ratelease_rules::{Options, Source, load};
    use smallvec::smallvec;

    use super::*;

    const MINUTE_US: u64 = 60_000_000;
    const START: u64 = 29_000_000 * MINUTE_US;

    fn rules(text: &str) -> Rules {
        let source = Source { name: "t.yaml".into(), text: text.into() };
        load(&[source], Options::default()).unwrap().rules
    }

    fn request<'a>(descriptors: &[(&'a str, &'a str)]) -> Request<'a> {
        let descriptor = |&(key, value): &(&'a str, &'a str)| Descriptor {
            entries: smallvec![Entry { key, value }],
            ..Descriptor::default()
        };
        let descriptors = descriptors.iter().map(descriptor).collect();
        Request { domain: "d", descriptors, hits_addend: 0 }
    }

    fn exact() -> ExactLimiter {
        let mut exact = ExactLimiter::new(100, KeyHasher::new(""), Modes::default());
        exact.advance(START);
        exact
    }

    const TWO: &str = "\
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 2}}
- {key: b, rate_limit: {unit: minute, requests_per_unit: 3}}
- {key: s, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}}
- {key: t, rate_limit: {unit: minute, requests_per_unit: 6, algorithm: token_bucket, burst: 1}}
- {key: u, rate_limit: {unit: minute, requests_per_unit: 60, settle: true, carry_debt: true}}
";

    #[test]
    fn a_limit_is_admitted_exactly_and_again_in_the_next_window() {
        let rules = rules(TWO);
        let mut exact = exact();
        for window in 0..3 {
            exact.advance(START + window * MINUTE_US + 1);
            let codes: Vec<_> = (0..4)
                .map(|_| exact.decide(&rules, &request(&[("a", "1")])).unwrap().code)
                .collect();
            assert_eq!(codes, [Code::Ok, Code::Ok, Code::OverLimit, Code::OverLimit], "{window}");
        }
        let other = exact.decide(&rules, &request(&[("a", "2")])).unwrap();
        assert_eq!((other.code, other.statuses[0].remaining), (Code::Ok, 1));
    }

    #[test]
    fn a_denied_request_spends_nothing_on_its_other_keys() {
        let rules = rules(TWO);
        let mut exact = exact();
        let both = request(&[("a", "1"), ("b", "1")]);
        let verdicts: Vec<_> =
            (0..5).map(|_| exact.decide(&rules, &both).unwrap().statuses[1].remaining).collect();
        assert_eq!(verdicts, [2, 1, 1, 1, 1]);
    }

    #[test]
    fn a_settlement_is_charged_whole_and_beside_a_denial() {
        let rules = rules(TWO);
        let mut exact = exact();
        let mut both = request(&[("u", "1"), ("a", "1")]);
        both.descriptors[0].hits_addend = Some(30);
        let codes: Vec<_> = (0..5).map(|_| exact.decide(&rules, &both).unwrap().code).collect();
        assert_eq!(codes[1..3], [Code::Ok, Code::OverLimit], "as `a` allows");
        let mut look = request(&[("u", "1")]);
        look.descriptors[0].hits_addend = Some(0);
        for (minute, code) in [(0, Code::OverLimit), (1, Code::OverLimit), (2, Code::Ok)] {
            exact.advance(START + minute * MINUTE_US + 1);
            assert_eq!(exact.decide(&rules, &look).unwrap().code, code, "150 of 60, {minute}");
        }
    }

    #[test]
    fn a_key_that_occurs_twice_is_charged_twice() {
        let rules = rules(TWO);
        let twice = request(&[("b", "1"), ("b", "1")]);
        let mut exact = exact();
        assert_eq!(exact.decide(&rules, &twice).unwrap().code, Code::Ok);
        let denied = exact.decide(&rules, &twice).unwrap();
        assert_eq!((denied.code, denied.statuses[1].remaining), (Code::OverLimit, 0));
        assert_eq!(exact.decide(&rules, &request(&[("b", "1")])).unwrap().code, Code::OverLimit);
    }

    #[test]
    fn shadow_mode_passes_and_is_reported() {
        let rules = rules(TWO);
        let mut exact = exact();
        let shadow = request(&[("s", "1")]);
        for over in [false, true] {
            let verdict = exact.decide(&rules, &shadow).unwrap();
            assert_eq!(verdict.code, Code::Ok);
            assert_eq!(verdict.statuses[0].counted.unwrap().over, over);
        }
    }

    #[test]
    fn the_clock_does_not_run_back() {
        let rules = rules(TWO);
        let mut exact = exact();
        let one = request(&[("t", "1")]);
        assert_eq!(exact.decide(&rules, &one).unwrap().code, Code::Ok);
        exact.advance(START - MINUTE_US);
        assert_eq!(exact.decide(&rules, &one).unwrap().code, Code::OverLimit);
        exact.advance(START + MINUTE_US / 6);
        assert_eq!(exact.decide(&rules, &one).unwrap().code, Code::Ok);
    }

    #[test]
    fn a_key_beyond_the_ceiling_is_an_error() {
        let rules = rules(TWO);
        let mut exact = ExactLimiter::new(1, KeyHasher::new(""), Modes::default());
        exact.advance(START);
        assert!(exact.decide(&rules, &request(&[("a", "1")])).is_ok());
        let full = exact.decide(&rules, &request(&[("a", "2")])).unwrap_err();
        assert!(matches!(full, StoreError::Full(_)), "{full}");
        assert_eq!(exact.keys(), 1);
    }
}
