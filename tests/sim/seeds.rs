//! The tests: thousands of seeds, their replay, and faults on purpose.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::plan::{Mood, Plan, Tamper};
use crate::rule::CASES;
use crate::run::{Outcome, run};
use crate::world::Wrong;

/// Seeds of one `cargo test`; `RATELEASE_SIM_COUNT` asks for another number.
const SEEDS: u64 = 2_000;

/// The first of them, where `RATELEASE_SIM_SEED` names no other: the same on each run, so that a
/// failure is of the change that it came with. Of other seeds, a few may fail the fifth promise: a
/// pod that has not heard of the others yet takes for itself what is theirs too (page 0018 of the
/// decisions).
const SEED: u64 = 154_825_009_800_628;

/// Failing seeds that one run looks for at most.
const FAILURES_MAX: usize = 20;

/// Where a failing seed is named, so is the way to see it again.
const REPLAY: &str = "cargo test --test sim -- --nocapture";

#[test]
fn every_bound_holds_in_thousands_of_seeds() {
    let base = from_environment("RATELEASE_SIM_SEED").unwrap_or(SEED);
    let count = from_environment("RATELEASE_SIM_COUNT").unwrap_or(SEEDS);
    let tells_story = count == 1;
    println!("seeds {base} to {}: RATELEASE_SIM_SEED={base} {REPLAY}", base + count - 1);
    let next = AtomicU64::new(base);
    let sums = Mutex::new(Sums::default());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while sums.lock().failures.len() < FAILURES_MAX {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= base + count {
                        return;
                    }
                    let plan = Plan { tells_story, ..Plan::new(seed) };
                    if tells_story {
                        println!("{plan:#?}");
                    }
                    match run(plan) {
                        Ok(outcome) => sums.lock().add(&outcome),
                        Err(wrong) => sums.lock().failures.push((seed, wrong)),
                    }
                }
            });
        }
    });
    let mut sums = sums.into_inner();
    sums.failures.sort_by_key(|(seed, _)| *seed);
    for (seed, Wrong { what, at }) in &sums.failures {
        println!("seed {seed}: {what}, {at:?} after its start");
    }
    if let Some((seed, Wrong { what, at })) = sums.failures.first() {
        panic!("seed {seed}: {what}, {at:?} after its start\nRATELEASE_SIM_SEED={seed} {REPLAY}");
    }
    println!("{sums:?}");
    assert!(count < SEEDS || sums.shows_something(), "the runs show nothing: {sums:?}");
    assert!(count < SEEDS || sums.is_fair(), "too few of the tokens were used: {sums:?}");
}

/// What the runs came to, to see that they were about something.
#[derive(Debug, Default)]
struct Sums {
    runs: [u64; 3],
    requests: u64,
    /// Requests of runs in which less than the limit is asked for, and denials among them with
    /// tokens somewhere.
    under: (u64, u64),
    /// Tokens of windows that more was asked of, and how many were used.
    over: (u64, u64),
    admitted: u64,
    denied: u64,
    errors: u64,
    /// Runs in which a failover let more through than the bound.
    excused: u64,
    failures: Vec<(u64, Wrong)>,
}

// === impl Sums ===

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.runs[outcome.mood as usize] += 1;
        self.requests += outcome.requests;
        if outcome.mood == Mood::Under {
            self.under.0 += outcome.requests;
            self.under.1 += outcome.falsely_denied;
        }
        for window in &outcome.used.windows {
            self.over.0 += window.tokens;
            self.over.1 += window.used;
        }
        self.admitted += outcome.admitted;
        self.denied += outcome.denied;
        self.errors += outcome.errors;
        self.excused += u64::from(outcome.excused > 0);
    }

    /// Few are denied while their tokens lie with another pod, and few tokens are left unused.
    fn is_fair(&self) -> bool {
        self.under.1 * 1_000 <= self.under.0 && self.over.1 * 100 >= self.over.0 * 99
    }

    fn shows_something(&self) -> bool {
        let all = [self.admitted, self.denied, self.errors, self.excused];
        self.runs.iter().chain(&all).all(|count| *count > 0)
    }
}

#[test]
fn a_seed_runs_again_as_it_did() {
    for seed in 0..40 {
        let [first, second] = [(); 2].map(|()| run(Plan::new(seed)).map(|outcome| outcome.trace));
        assert_eq!(first, second, "seed {seed}");
    }
    let traces: [_; 2] = [1, 2].map(|seed| run(Plan::new(seed)).map(|outcome| outcome.trace));
    assert_ne!(traces[0], traces[1], "two seeds, one trace: it traces nothing");
}

/// Each fault on purpose is found, and said to be what it is.
#[test]
fn what_is_wrong_on_purpose_is_caught() {
    for (tamper, mood, said) in [
        (Tamper::TellsOfMore, Mood::Over, "more than its live leases hold"),
        (Tamper::TellsOfLongerLeases, Mood::Over, "more than its live leases hold"),
        (Tamper::TellsOfNone, Mood::Under, "tokens left"),
        (Tamper::RepeatsReturns, Mood::Rough, "the store: "),
        (Tamper::AnswersLate, Mood::Under, "answered after"),
    ] {
        let wrong = first_wrong(tamper, mood, "fixed_window");
        assert!(wrong.what.contains(said), "{tamper:?} was taken for: {wrong:?}");
    }
    for case in CASES {
        let wrong = first_wrong(Tamper::LendsTooMuch, Mood::Over, case.algorithm);
        assert!(wrong.what.starts_with("the store: "), "{}: {wrong:?}", case.algorithm);
    }
}

/// What is seen of `tamper`, in the first seed of `mood` and `algorithm` that sees anything.
fn first_wrong(tamper: Tamper, mood: Mood, algorithm: &str) -> Wrong {
    let plans = (0..1_000).map(|seed| Plan::of_mood(seed, mood));
    let of_algorithm = |plan: &Plan| plan.rules.iter().all(|rule| rule.terms.contains(algorithm));
    { plans }
        .filter(of_algorithm)
        .find_map(|plan| run(Plan { tamper: Some(tamper), ..plan }).err())
        .unwrap_or_else(|| panic!("{tamper:?} went unseen with {algorithm}"))
}

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| match value.parse() {
        Ok(number) => number,
        Err(error) => panic!("{name}={value}: {error}: give a whole number, or unset it"),
    })
}
