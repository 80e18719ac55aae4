//! A limiter that decides as one exact server would, by the clock that it is given: it shows what
//! the rules would have decided for a log or a test. It leases nothing and waits for nothing.
//!
//! The limiter uses the engine's resolution of requests and its memory store. `replay`,
//! `rule_tests` and the differential fuzzer use the limiter.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ratelease_engine::buffer::LeasedTokens;
use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::starts::{
    Beginning, Begun, End, LOOK_EVERY, Sender, Settlement, Starts, Unspent,
};
use ratelease_engine::limiter::{Charge, Resolved, resolve};
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::store::{Ask, Grant, Return, Slots, StoreError};
use ratelease_engine::time::Time;
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
    starts: Starts,
    /// When holds that have ended were last looked for.
    looked_at: Time,
    /// Slots in use of limits on requests at a time, at most as many keys as requests that hold.
    in_use: HashMap<Key, u64>,
}

// === impl ExactLimiter ===

impl ExactLimiter {
    /// A server that has counted nothing yet, at the Unix epoch, for at most `keys_max` keys at
    /// once.
    pub fn new(keys_max: usize, hasher: KeyHasher, modes: Modes) -> Self {
        let now = Arc::new(AtomicU64::new(0));
        let clock = Arc::clone(&now);
        let read = move || Duration::from_micros(clock.load(Ordering::Relaxed));
        Self {
            store: MemoryStore::new(Arc::new(read), keys_max),
            now,
            hasher,
            modes,
            starts: Starts::default(),
            looked_at: Time::default(),
            in_use: HashMap::new(),
        }
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
    /// As in [`Limiter::decide`](ratelease_engine::limiter::Limiter::decide), all descriptors are
    /// checked before any is charged. A request that is denied spends only the remaining tokens of
    /// the keys that deny it. Its settlements are charged in any case.
    ///
    /// # Errors
    ///
    /// Fails if there is no room for another key. Then nothing is charged, except for the tokens
    /// that the descriptors before it took.
    pub fn decide<'r>(
        &mut self,
        rules: &'r Rules,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, StoreError> {
        self.end_holds()?;
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
            let Resolved::Charged(charge) = one else { continue };
            if charge.settles() {
                *status = self.settle(charge)?;
            } else if !denies || is_exceeded(status) {
                *status = self.charge(charge, *status, denies)?;
            }
        }
        Ok(Verdict::new(request, statuses, self.modes))
    }

    /// The state of the key for `charge`, after `before` hits of the same request.
    fn look<'r>(&self, charge: &Charge<'r>, before: u64) -> Result<Status<'r>, StoreError> {
        let grant = self.store.take(&self.blank(charge))?;
        let settles = charge.applied.rule.is_some_and(|rule| rule.flags.settle);
        let over = match charge.hits {
            _ if charge.refund || charge.settles() => false,
            0 => grant.overdrawn || before > grant.left || (settles && grant.left == 0),
            hits => hits.saturating_add(before) > grant.left,
        };
        Ok(status(charge, over, &grant))
    }

    /// Charges the request: all of it, or, if the request is denied, only the tokens that the rule
    /// makes a denial spend. A charge of a request that is not denied may be held.
    fn charge<'r>(
        &mut self,
        charge: &Charge<'r>,
        seen: Status<'r>,
        denies: bool,
    ) -> Result<Status<'r>, StoreError> {
        let over = is_exceeded(&seen);
        if over && charge.hits == 0 {
            return Ok(Status { remaining: 0, ..seen });
        }
        let look = self.blank(charge);
        let ask = if charge.refund {
            Ask { back: Some(Return { tokens: charge.hits, epoch: None }), ..look }
        } else {
            // A charge over its limit stays so, even if it would pass alone: another descriptor of
            // the request has the same key and is charged first.
            let need = if over { u64::MAX } else { charge.hits };
            Ask { need, charge_denied: charge.charge_denied(), ..look }
        };
        let grant = self.store.take(&ask)?;
        if charge.holds() && !over && !denies {
            self.hold(charge, &grant);
        }
        Ok(status(charge, over, &grant))
    }

    /// An ask that takes nothing, for what `charge` is charged to.
    fn blank(&self, charge: &Charge<'_>) -> Ask {
        let of_slots = !charge.applied.limit.algorithm.has_window();
        let held = self.in_use.get(&charge.own).copied().unwrap_or_default();
        Ask {
            slots: of_slots.then_some(Slots { pod: 0, held, order: 0, since: 0, received: 0 }),
            ..charge.look()
        }
    }

    fn now(&self) -> Time {
        Time::from_nanos(self.now.load(Ordering::Relaxed).saturating_mul(1_000))
    }

    /// Notes that the request holds the tokens of `grant`.
    fn hold(&mut self, charge: &Charge<'_>, grant: &Grant) {
        let now = self.now();
        let taken = LeasedTokens {
            tokens: grant.tokens,
            epoch: grant.epoch,
            starts: Time::default(),
            ends: now,
        };
        let (Some(id), Some(hold)) = (charge.hold_id(), charge.hold(taken, 0)) else { return };
        let is_of_slots = hold.is_of_slots();
        let start = Beginning {
            descriptors: &[id.descriptor],
            first: (hold.key, is_of_slots),
            owner: Owner::UNKNOWN,
            is_aside: false,
        };
        let begun = self.starts.begin(id.request, start, now);
        let Begun::Open(start) = begun else { return };
        let is_held = self.starts.hold(start, id.descriptor, hold);
        self.starts.conclude(start, now);
        if is_held && is_of_slots {
            *self.in_use.entry(charge.own).or_default() += grant.tokens;
        }
    }

    /// Charges a cost, less what its request holds, and gives back what that did not use.
    fn settle<'r>(&mut self, charge: &Charge<'r>) -> Result<Status<'r>, StoreError> {
        // Slots cost nothing: all that the request has come back.
        let hits = if charge.applied.limit.algorithm.has_window() { charge.hits } else { 0 };
        let id = charge.held.and_then(|held| held.id);
        // Requests are decided in the order of the log: no end comes before its start.
        let sender = Sender { owner: Owner::UNKNOWN, remembers: false, is_logging: false };
        let settled = id.map(|id| self.starts.settle(id, sender, self.now()));
        let due = match settled {
            Some(Settlement::Of(hold, _)) => {
                let (unspent, due) = hold.settled(End::Cost(hits));
                self.give_back(&unspent)?;
                due
            }
            _ => hits,
        };
        let grant = self.store.take(&Ask { owed: due, ..self.blank(charge) })?;
        let status = status(charge, false, &grant);
        let counted = status.counted.map(|counted| Counted { hits: due, ..counted });
        Ok(Status { counted, ..status })
    }

    /// Ends the holds that nothing has settled in time.
    fn end_holds(&mut self) -> Result<(), StoreError> {
        let now = self.now();
        if now.since(self.looked_at) < LOOK_EVERY {
            return Ok(());
        }
        self.looked_at = now;
        for part in self.starts.parts() {
            for unspent in self.starts.expire(part, now, |_| None).0 {
                self.give_back(&unspent)?;
            }
        }
        Ok(())
    }

    fn give_back(&mut self, unspent: &Unspent) -> Result<(), StoreError> {
        if unspent.limit.algorithm.has_window() {
            self.store.take(&unspent.returned())?;
        } else if let Some(held) = self.in_use.get_mut(&unspent.key) {
            *held = held.saturating_sub(unspent.tokens.tokens);
            if *held == 0 {
                self.in_use.remove(&unspent.key);
            }
        }
        Ok(())
    }
}

/// Hits that earlier descriptors of the request take from the same key.
fn spent_before(resolved: &[Resolved<'_>], key: Key) -> u64 {
    let of_key = resolved.iter().filter_map(|one| match one {
        Resolved::Charged(charge) if charge.own == key && !charge.refund && !charge.settles() => {
            Some(charge.hits)
        }
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

    /// Entries `user=u` and `id`, and the mark of a settlement.
    fn of_id(id: &str, hits: u64, settles: bool) -> Request<'_> {
        let mut entries = vec![("user", "u"), ("id", id)];
        entries.extend(settles.then_some((ratelease_rules::SETTLE_KEY, "1")));
        let entries = entries.into_iter().map(|(key, value)| Entry { key, value });
        let hits_addend = Some(hits);
        let descriptor =
            Descriptor { entries: entries.collect(), hits_addend, ..Descriptor::default() };
        Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
    }

    fn of_user(limit: &str) -> Rules {
        rules(&format!(
            "domain: d\ndescriptors: [{{key: user, descriptors: [{{key: id, rate_limit: \
             {{{limit}}}}}]}}]\n"
        ))
    }

    #[test]
    fn what_a_request_holds_is_settled_and_comes_back_where_the_rule_says_so() {
        for (unless_settled, at_last) in [("keep", 40), ("release", 100)] {
            let hold = format!("hold: {{for: 2s, unless_settled: {unless_settled}}}");
            let rules = of_user(&format!("unit: hour, requests_per_unit: 100, {hold}"));
            let mut exact = exact();
            let steps = [
                (of_id("1", 60, false), Code::Ok, 40),
                (of_id("2", 60, false), Code::OverLimit, 40),
                (of_id("1", 20, true), Code::Ok, 80),
                (of_id("2", 10, true), Code::Ok, 70),
                (of_id("3", 70, false), Code::Ok, 0),
                (of_id("3", 170, true), Code::Ok, 0),
                (of_id("4", 1, false), Code::OverLimit, 0),
            ];
            for (at, (request, code, remaining)) in steps.into_iter().enumerate() {
                let verdict = exact.decide(&rules, &request).unwrap();
                assert_eq!(
                    (verdict.code, verdict.statuses[0].remaining),
                    (code, remaining),
                    "{at}"
                );
            }
            let mut exact = self::exact();
            exact.decide(&rules, &of_id("1", 60, false)).unwrap();
            exact.advance(START + 2_600_000);
            let look = exact.decide(&rules, &of_id("2", 0, false)).unwrap();
            assert_eq!(look.statuses[0].remaining, at_last, "{unless_settled}");
        }
    }

    #[test]
    fn requests_at_a_time_are_those_that_have_not_ended() {
        let rules = of_user("algorithm: concurrency, requests_per_unit: 2, hold: {for: 10s}");
        let mut exact = exact();
        let steps = [
            (of_id("1", 1, false), Code::Ok),
            (of_id("2", 1, false), Code::Ok),
            (of_id("3", 1, false), Code::OverLimit),
            (of_id("1", 1, true), Code::Ok),
            (of_id("3", 1, false), Code::Ok),
            (of_id("4", 1, false), Code::OverLimit),
        ];
        for (at, (request, code)) in steps.into_iter().enumerate() {
            exact.advance(START + at as u64 * 1_000_000);
            assert_eq!(exact.decide(&rules, &request).unwrap().code, code, "{at}");
        }
        exact.advance(START + 15_000_000);
        for (id, code) in [("5", Code::Ok), ("6", Code::Ok), ("7", Code::OverLimit)] {
            assert_eq!(exact.decide(&rules, &of_id(id, 1, false)).unwrap().code, code, "{id}");
        }
    }

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
