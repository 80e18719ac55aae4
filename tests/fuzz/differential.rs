//! Random rules and calls: ratelease's answers are compared with the reference's contract.

mod generate;
mod model;
mod world;

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use ratelease_engine::limiter::owners::Owner;
use ratelease_engine::limiter::{Limiter, Options};
use ratelease_engine::store::StoreError;
use ratelease_engine::store::memory::MemoryStore;
use ratelease_engine::time::Clock;
use ratelease_engine::verdict::{Code, Modes, Verdict};
use ratelease_replay::exact_limiter::ExactLimiter;
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Limit, Rules, Source, Unit};

use model::Model;
use world::{Answer, Asked, Call, Status, World};

use crate::rng::Rng;
use crate::run;

/// Number of calls of one world; each is a case.
const CALLS: u64 = 40;

/// Number of cases, unless the environment sets it. `scripts/fuzz` runs a million.
const CASES: u64 = 20_000;
const CASES_OF_PODS: u64 = 5_000;

/// Not within the first second of any window.
const START: u64 = 1_763_812_345;

#[test]
fn one_server_answers_as_the_contract_says() {
    let seed = run::seed();
    let cases = run::number("RATELEASE_FUZZ_CASES").unwrap_or(CASES);
    for world in 0..cases.div_ceil(CALLS) {
        let mut rng = Rng::new(seed, &[world]);
        let made = Made::new(&mut rng);
        let modes = made.modes();
        let mut exact = ExactLimiter::new(100_000, KeyHasher::new("secret"), modes);
        let answers = |call: &Call, now: u64| {
            exact.advance(now * 1_000_000);
            let request = request(call);
            let verdict = exact.decide(&made.rules, &request).unwrap();
            answer(&verdict, &request)
        };
        made.compare(&mut rng, (&format!("seed {seed}, world {world}"), false), answers);
    }
    println!("differential, one server: {cases} cases, seed {seed}, no difference");
}

/// The hot path: buffers, leases and the embedded store.
#[test]
fn a_pod_with_leases_answers_as_the_contract_says() {
    let seed = run::seed();
    let cases = run::number("RATELEASE_FUZZ_CASES").unwrap_or(CASES_OF_PODS);
    for world in 0..cases.div_ceil(CALLS) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let mut rng = Rng::new(seed, &[world, 1]);
        let made = Made::new(&mut rng);
        let _entered = runtime.enter();
        let pod = Pod::new(made.modes());
        let answers = |call: &Call, now: u64| {
            let request = request(call);
            let decided = runtime.block_on(async {
                pod.wait_until(now).await;
                let (now, admit) = (pod.limiter.clock().now(), || Ok::<_, StoreError>(()));
                pod.limiter.decide(&made.rules, &request, now, None, Owner::UNKNOWN, admit).await
            });
            answer(&decided.unwrap(), &request)
        };
        made.compare(&mut rng, (&format!("seed {seed}, world {world} of pods"), true), answers);
    }
    println!("differential, a pod with leases: {cases} cases, seed {seed}, no difference");
}

/// A limiter on an embedded store whose clock is virtual.
struct Pod {
    limiter: Limiter,
    clock: Clock,
}

struct Made {
    world: World,
    text: String,
    rules: Rules,
}

// === impl Pod ===

impl Pod {
    fn new(modes: Modes) -> Self {
        let clock = Clock::start();
        let start = clock.now();
        let wall = move || Duration::from_secs(START) + clock.now().since(start);
        let options = Options {
            wait_min: Duration::from_secs(5),
            pods_expected: 1,
            hasher: KeyHasher::new("secret"),
            modes,
            unix_start: Duration::from_secs(START),
            ..Options::default()
        };
        let store = Arc::new(MemoryStore::new(Arc::new(wall), 100_000));
        Self { limiter: Limiter::new(store, clock, options), clock }
    }

    async fn wait_until(&self, now: u64) {
        let passed = self.clock.now().since(ratelease_engine::time::Time::default());
        let wanted = Duration::from_secs(now - START);
        tokio::time::sleep(wanted.saturating_sub(passed)).await;
    }
}

// === impl Made ===

impl Made {
    fn new(rng: &mut Rng) -> Self {
        let world = generate::world(rng);
        let files = generate::files(rng, &world);
        let text = files.iter().map(|(name, text)| format!("# {name}\n{text}")).collect();
        let sources: Vec<_> =
            files.into_iter().map(|(name, text)| Source { name, text: text.into() }).collect();
        let loaded =
            rules::load(&sources, rules::Options { merge_domains: true, ..Default::default() });
        let rules = loaded.unwrap_or_else(|faults| panic!("{faults}\n{text}")).rules;
        Self { world, text, rules }
    }

    fn modes(&self) -> Modes {
        let World { global_shadow: shadow, global_quota: quota, .. } = self.world;
        Modes { shadow, quota, metadata: false }
    }

    /// Sends the same calls to both. The first difference fails the test, and prints everything
    /// before it.
    fn compare(
        &self,
        rng: &mut Rng,
        (of, is_pod): (&str, bool),
        mut answers: impl FnMut(&Call, u64) -> Answer,
    ) {
        let model = Model::new(self.world.clone());
        let mut now = START;
        let mut calls: Vec<Call> = Vec::new();
        let mut log = String::new();
        for _ in 0..CALLS {
            now += rng.pick(&[0, 0, 0, 0, 0, 0, 1, 20, 61, 3_601, 86_400]);
            // The same call again, so that limits are reached.
            let again = !calls.is_empty() && rng.percent(60);
            let call = match again {
                true => calls[rng.index(calls.len())].clone(),
                false => generate::call(rng, &self.world),
            };
            // Differs: "descriptors of one call with one count are charged in their order | what
            // needs no wait is decided first". The one server has no order of its own.
            if is_pod && model.shares_a_count(&call, now) {
                continue;
            }
            let expected = model.decide(&call, now);
            let mut found = answers(&call, now);
            model.unreach(&allow(&mut found, &expected));
            writeln!(log, "{now} {call:?}").unwrap();
            if expected != found {
                println!("{of}: {:?}\n{}\n{log}", self.modes(), self.text);
                assert_eq!(found, expected, "{of}");
            }
            if !again {
                calls.push(call);
            }
        }
    }
}

/// Replaces what the contract leaves open, and what only one of the two can know, by the expected
/// values. Returns the descriptors that were not reached.
fn allow(found: &mut Answer, expected: &Answer) -> Vec<usize> {
    let denied = expected.over && found.statuses.iter().any(|status| status.over);
    let (mut unreached, mut is_open) = (Vec::new(), false);
    for (at, (found, expected)) in found.statuses.iter_mut().zip(&expected.statuses).enumerate() {
        if expected.stats.is_none() {
            found.stats = None;
        }
        if expected.is_vague {
            is_open |= found.remaining != expected.remaining;
            (found.remaining, found.is_vague) = (expected.remaining, true);
        }
        // Differs: "a rule that was not reached because another denied first reports its count | it
        // is OK with what is known of it; if nothing is, with its whole limit, and no reset".
        let whole = found.limit.as_ref().map(|(requests, ..)| *requests);
        if denied && !found.over && found.reset.is_none() && whole == Some(found.remaining) {
            (found.remaining, found.reset) = (expected.remaining, expected.reset);
        }
        if denied && !found.exceeds && expected.exceeds {
            (found.over, found.exceeds) = (expected.over, true);
            found.remaining = expected.remaining;
            unreached.push(at);
        }
    }
    if is_open || !unreached.is_empty() {
        found.headers = expected.headers;
    }
    unreached
}

fn request(call: &Call) -> Request<'_> {
    let descriptors = call.descriptors.iter().map(|asked| {
        let Asked { entries, limit, hits } = asked;
        let entries = entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let limit = limit.map(|(requests, unit)| {
            let unit = i64::try_from(unit).unwrap() + 1;
            Limit::fixed_window(requests.into(), Unit::from_number(unit).unwrap())
        });
        Descriptor { entries, limit, hits_addend: *hits, refund: false }
    });
    Request {
        domain: &call.domain,
        descriptors: descriptors.collect(),
        hits_addend: call.hits.into(),
    }
}

fn answer(verdict: &Verdict<'_>, request: &Request<'_>) -> Answer {
    let statuses = verdict.statuses.iter().zip(&request.descriptors).map(|(status, descriptor)| {
        let limit = status.limit.map(|applied| {
            let name = applied.rule.map(|rule| rule.name.to_string()).unwrap_or_default();
            let requests = u32::try_from(applied.limit.requests_per_unit).unwrap();
            (requests, applied.limit.unit.name(), name)
        });
        let rule = status.limit.and_then(|applied| applied.rule);
        Status {
            over: status.code == Code::OverLimit,
            exceeds: status.counted.is_some_and(|trace| trace.over),
            limit,
            remaining: u32::try_from(status.remaining).unwrap(),
            is_vague: false,
            reset: status.reset_seconds(),
            stats: rule.map(|rule| rule.stats_key(request.domain, &descriptor.entries)),
        }
    });
    let over = verdict.code == Code::OverLimit;
    Answer { over, statuses: statuses.collect(), headers: verdict.tightest }
}
