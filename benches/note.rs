//! The cost of counting a decision: by the kind of its rule, and by threads.

use std::hint::black_box;
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group};
use ratelease_engine::time::Time;
use ratelease_engine::verdict::{
    AppliedLimit, Counted, Decision, DecisionSource, Modes, Status, Verdict,
};
use ratelease_rules::key::{KeyHasher, KeyPart};
use ratelease_rules::request::{Descriptor, Entry, Request};
use ratelease_rules::{self as rules, Allowance, Lookup, Rules, Source};
use ratelease_server::metrics::{Meters, family};
use smallvec::smallvec;

criterion_group!(benches, by_rule, by_threads, told);

const RULES: &str = "
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1000}
";

fn load() -> Rules {
    let source = Source { name: "d.yaml".to_owned(), text: RULES.into() };
    rules::load(&[source], rules::Options::default()).expect("good rules").rules
}

fn request(key: &'static str) -> Request<'static> {
    let entries = smallvec![Entry { key, value: "user-12345678" }];
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 }
}

/// A verdict of a request that passed with locally held tokens.
fn verdict<'r>(rules: &'r Rules, request: &Request<'_>) -> Verdict<'r> {
    let entries = &request.descriptors[0].entries;
    let Lookup::Rule(rule) = rules.find("d", entries) else { unreachable!("there is a rule") };
    let Allowance::Limited(limit) = rule.allowance else { unreachable!("it has a limit") };
    let parts = entries.iter().map(|entry| (entry.key, KeyPart::Value(entry.value)));
    let key = KeyHasher::new("").key("d", limit.identity(), parts);
    let counted = Counted { key, hits: 1, fitted: 0, over: false, how: DecisionSource::Local };
    let applied = AppliedLimit { limit, rule: Some(rule) };
    let status = Status::counted(applied, counted, 500, None);
    Verdict::new(request, smallvec![status], Modes::default())
}

fn by_rule(c: &mut Criterion) {
    let (rules, meters) = (load(), Meters::default());
    let mut group = c.benchmark_group("note");
    for key in ["plain", "detailed"] {
        let request = request(key);
        let verdict = verdict(&rules, &request);
        let (took, now) = (Duration::from_micros(2), Time::default());
        let decision = Decision { request: &request, verdict: &verdict, took, now };
        group.bench_function(key, |b| b.iter(|| meters.note(black_box(&decision))));
    }
    group.finish();
}

/// The cost of one second of the live page, and of a scrape: by the number of rules that were hit.
/// Only `calls` is requested while no page is open.
fn told(c: &mut Criterion) {
    let mut group = c.benchmark_group("told");
    for count in [10, 1000, 10_000] {
        let (rules, meters) = (many(count), Meters::default());
        for rule in rules.iter() {
            let key = rule.path_parts().nth(1).expect("its key");
            let entries = smallvec![Entry { key, value: "v" }];
            let descriptor = Descriptor { entries, ..Descriptor::default() };
            let request =
                Request { domain: "d", descriptors: smallvec![descriptor], hits_addend: 0 };
            let verdict = verdict(&rules, &request);
            let (took, now) = (Duration::from_micros(2), Time::default());
            meters.note(&Decision { request: &request, verdict: &verdict, took, now });
        }
        group.bench_function(format!("calls/{count}"), |b| b.iter(|| meters.calls()));
        group.bench_function(format!("by_how/{count}"), |b| b.iter(|| meters.by_how()));
        group.bench_function(format!("by_rule/{count}"), |b| b.iter(|| meters.by_rule(200)));
        let scrape = || family::text(&meters.families(Some(&rules)));
        println!("a scrape of {count} rules: {} bytes", scrape().len());
        group.bench_function(format!("scrape/{count}"), |b| b.iter(scrape));
    }
    group.finish();
}

fn many(count: usize) -> Rules {
    let rule = |n| format!("- {{key: rule{n}, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n");
    let rules: String = (0..count).map(rule).collect();
    let text = format!("domain: d\ndescriptors:\n{rules}").into_bytes();
    let source = Source { name: "d.yaml".to_owned(), text };
    rules::load(&[source], rules::Options::default()).expect("good rules").rules
}

/// All threads count decisions of one rule. The time is that of one thread's decisions: it does not
/// grow with more threads, as long as each has a core of its own.
#[allow(clippy::disallowed_methods, reason = "a bench reads the clock")]
fn by_threads(c: &mut Criterion) {
    let (rules, meters) = (load(), Meters::default());
    let request = request("plain");
    let verdict = verdict(&rules, &request);
    let (took, now) = (Duration::from_micros(2), Time::default());
    let decision = Decision { request: &request, verdict: &verdict, took, now };
    let mut group = c.benchmark_group("note_by_threads");
    for threads in [1, 2] {
        group.bench_function(threads.to_string(), |b| {
            b.iter_custom(|times| {
                let start = Instant::now();
                thread::scope(|scope| {
                    for _ in 0..threads {
                        scope.spawn(|| (0..times).for_each(|_| meters.note(black_box(&decision))));
                    }
                });
                start.elapsed()
            });
        });
    }
    group.finish();
}
