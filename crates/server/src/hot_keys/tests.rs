//! Compares the counts with an exact count, and checks which decisions count where.

mod by_rule;

use std::collections::HashMap;
use std::thread;

use ratelease_engine::rng;
use ratelease_engine::verdict::{AppliedLimit, Counted, DecisionSource, Status, Verdict};
use ratelease_rules::key::KeyHasher;
use ratelease_rules::request::{Entry, Request};
use ratelease_rules::{self as rules, Limit, Lookup, Rules, Source, Unit};

use super::*;

const RULES: &str = "
domain: d
descriptors:
  - {key: user, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: path, value: /a*, share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";

const SECOND: u64 = 1_000_000_000;

fn rules() -> Rules {
    let source = Source { name: "d.yaml".into(), text: RULES.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

fn hot_keys(sample: u32, values: bool) -> HotKeys {
    let sample = NonZeroU32::new(sample).unwrap();
    HotKeys::new(Options { is_on: true, sample, values }, Clock::start())
}

fn request<'a>(entries: &[(&'a str, &'a str)]) -> Request<'a> {
    let entries = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
    let descriptor = Descriptor { entries, ..Descriptor::default() };
    Request { domain: "d", descriptors: [descriptor].into_iter().collect(), hits_addend: 1 }
}

/// A verdict on one descriptor: the key belongs to `rule`, or to an override.
fn verdict(rule: Option<&Arc<Rule>>, key: Key, over: bool) -> Verdict<'_> {
    let code = if over { Code::OverLimit } else { Code::Ok };
    let limit = Limit::fixed_window(10, Unit::Minute);
    let status = Status {
        code,
        limit: Some(AppliedLimit { limit, rule }),
        remaining: 0,
        reset_after: None,
        counted: Some(Counted { key, hits: 1, fitted: 0, over, how: DecisionSource::Local }),
    };
    let statuses = [status].into_iter().collect();
    Verdict { code, statuses, tightest: Some(0), shadowed: false, metadata: None, started: None }
}

fn at(request: &Request<'_>, verdict: &Verdict<'_>, second: u64, hot: &HotKeys) {
    let now = Time::from_nanos(second * SECOND);
    hot.note(&Decision { request, verdict, took: Duration::ZERO, now });
}

fn listed(hot: &[HotKey]) -> Vec<(&str, u64)> {
    hot.iter().map(|hot| (&*hot.key, hot.count)).collect()
}

// === Against an exact count ===

const KEYS: usize = 10_000;
const DECISIONS: usize = 1_000_000;
const THREADS: usize = 4;
/// Requests for a key above this number, in each thread, are denied.
const LIMIT: u32 = 500;

/// Zipf's law with exponent 1: frequency is proportional to one over the rank. The result is
/// shuffled.
fn zipf(seed: u64) -> Vec<u16> {
    let whole: f64 = (1..=KEYS).map(|rank| 1.0 / rank as f64).sum();
    let mut stream = Vec::with_capacity(DECISIONS + KEYS);
    for rank in 0..u16::try_from(KEYS).unwrap() {
        let count = DECISIONS as f64 / whole / f64::from(rank + 1);
        stream.extend((1..KEYS * 100).take_while(|n| *n as f64 <= count).map(|_| rank));
    }
    let mut rng = seed;
    for at in (1..stream.len()).rev() {
        rng = rng.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        stream.swap(at, usize::try_from((rng >> 16) % (at as u64 + 1)).unwrap());
    }
    stream
}

/// Checks that `hot` holds the ten most frequent keys of `truth` with counts within the bounds.
fn check(hot: &[HotKey], truth: &HashMap<String, u32>, sample: u32, kind: &str) {
    let mut ranked: Vec<_> = truth.iter().map(|(key, count)| (*count, key)).collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    let all: u32 = truth.values().sum();
    let (mut expected, mut found): (Vec<_>, Vec<_>) = (
        ranked[..10].iter().map(|(_, key)| *key).collect(),
        hot.iter().map(|it| &it.key).collect(),
    );
    expected.sort_unstable();
    found.sort_unstable();
    assert_eq!(found, expected, "{kind}");
    for it in hot {
        let (count, truth) = (it.count as f64, f64::from(truth[&it.key]));
        let sampling = 5.0 * (truth * f64::from(sample - 1)).sqrt();
        let late = f64::from(all) / 256.0;
        println!("{kind} {}: {truth} estimated as {count}, off by up to {sampling:.0}", it.key);
        assert!(count <= truth + sampling, "{count} of {truth}");
        assert!(count >= truth - sampling - late, "{count} of {truth}");
        assert!((it.share - truth / f64::from(all)).abs() < 0.01, "{}", it.share);
    }
}

#[test]
fn the_true_top_ten_of_zipf_traffic_are_found_and_their_counts_within_the_bounds() {
    const SEED: u64 = 20_261_121;
    println!("seed {SEED}");
    let (hasher, rules) = (KeyHasher::new("zipf"), rules());
    let rule = rules.by_path("d.user").unwrap();
    let keys: Vec<_> = (0..KEYS as u64).map(|n| hasher.key("d", n, std::iter::empty())).collect();
    let options = Options { is_on: true, sample: NonZeroU32::new(4).unwrap(), values: false };
    let hot = HotKeys::new(options, Clock::start());
    let stream = zipf(SEED);
    let parts: Vec<_> = stream.chunks(stream.len().div_ceil(THREADS)).collect();
    let counts: Vec<_> = thread::scope(|scope| {
        let (hot, keys) = (&hot, &keys);
        let drive = |seed, part: &[u16]| {
            rng::seed(seed);
            let request = request(&[("user", "u")]);
            let mut counts = vec![0_u32; KEYS];
            for &rank in part {
                let rank = usize::from(rank);
                counts[rank] += 1;
                let over = counts[rank] > LIMIT;
                at(&request, &verdict(Some(rule), keys[rank], over), 0, hot);
            }
            counts
        };
        let drives = parts.iter().zip(SEED..);
        let drives: Vec<_> =
            drives.map(|(part, seed)| scope.spawn(move || drive(seed, part))).collect();
        drives.into_iter().map(|drive| drive.join().unwrap()).collect()
    });
    let (mut requested, mut denied) = (HashMap::new(), HashMap::new());
    for (rank, key) in keys.iter().enumerate() {
        for count in counts.iter().map(|counts| counts[rank]) {
            *requested.entry(key.to_string()).or_insert(0) += count;
            *denied.entry(key.to_string()).or_insert(0) += count.saturating_sub(LIMIT);
        }
    }
    let top = hot.top(10);
    check(&top.requested, &requested, options.sample.get(), "requested");
    check(&top.denied, &denied, options.sample.get(), "denied");
}

fn bytes_of(hot: &HotKeys) -> usize {
    let of = |stripe: &Stripe| {
        let Periods { current, previous, .. } = &*stripe.0.lock();
        let period = [&current.requested, &current.denied, &previous.requested, &previous.denied];
        size_of::<Stripe>() + period.map(TopKeys::bytes).iter().sum::<usize>()
    };
    hot.shared.as_ref().unwrap().stripes.iter().map(of).sum()
}

// === Reported keys and counts ===

#[test]
fn keys_are_listed_by_requests_and_by_denials() {
    let (hot, rules) = (hot_keys(1, false), rules());
    let rule = rules.by_path("d.user").unwrap();
    let (often, seldom) = (Key::for_test(1), Key::for_test(2));
    let request = request(&[("user", "secret")]);
    (0..3).for_each(|_| at(&request, &verdict(Some(rule), often, false), 0, &hot));
    at(&request, &verdict(None, seldom, true), 0, &hot);
    let top = hot.top(10);
    assert_eq!(listed(&top.requested), [(&*often.to_string(), 3), (&*seldom.to_string(), 1)]);
    assert_eq!(listed(&top.denied), [(&*seldom.to_string(), 1)]);
    let of = |hot: &HotKey| (hot.rule.clone(), hot.share, hot.values.clone());
    let domains = top.requested.iter().map(|hot| hot.domain.as_deref());
    assert_eq!(domains.collect::<Vec<_>>(), [Some("d"), None]);
    assert_eq!(of(&top.requested[0]), ("d.user".to_owned(), 0.75, None));
    assert_eq!(of(&top.denied[0]), ("override".to_owned(), 1.0, None));
    assert_eq!(hot.top(1).requested.len(), 1);
}

#[test]
fn uncounted_descriptors_are_not_listed_and_nothing_is_when_disabled() {
    let request = request(&[("user", "a")]);
    let mut free = verdict(None, Key::for_test(1), true);
    free.statuses[0].counted = None;
    let hot = hot_keys(1, true);
    at(&request, &free, 0, &hot);
    assert_eq!(hot.top(10), HottestKeys::default());
    let off = HotKeys::default();
    at(&request, &verdict(None, Key::for_test(1), true), 0, &off);
    assert_eq!((off.top(10), off.by_rule(10)), (HottestKeys::default(), Vec::new()));
}

#[test]
fn counts_cover_one_to_two_minutes() {
    let hot = hot_keys(1, false);
    let request = request(&[("user", "a")]);
    let keys = [1, 2, 3].map(Key::for_test);
    let count = |key: Key| {
        let top = hot.top(10).requested;
        top.iter().find(|hot| hot.key == key.to_string()).map(|hot| hot.count)
    };
    for (key, second) in [(0, 59), (1, 60), (0, 61)] {
        at(&request, &verdict(None, keys[key], false), second, &hot);
    }
    assert_eq!(keys.map(count), [Some(2), Some(1), None]);
    at(&request, &verdict(None, keys[2], false), 120, &hot);
    assert_eq!(keys.map(count), [Some(1), Some(1), Some(1)], "the first minute is gone");
    // Noted late, by a thread that read the clock earlier.
    at(&request, &verdict(None, keys[2], false), 119, &hot);
    at(&request, &verdict(None, keys[0], false), 300, &hot);
    assert_eq!(keys.map(count), [Some(1), None, None], "no requests for two minutes");
}

#[test]
fn texts_are_truncated_and_control_characters_escaped() {
    let rules = rules();
    let (long, wide) = ("x".repeat(300), "é".repeat(300));
    for (entries, expected) in [
        (&[("user", "alice"), ("role", "")][..], "user=alice, role="),
        (&[("user", "a\u{1b}[2J\r\n\u{202e}b")], r"user=a\u{1b}[2J\u{d}\u{a}\u{202e}b"),
        (&[("user", "\u{61c}\u{e0041}\u{ad}")], r"user=\u{61c}\u{e0041}\u{ad}"),
        (&[("path", "/abc")], "path=/a*"),
        (&[("user", &long)], &*format!("user={}", "x".repeat(123))),
        (&[("user", &wide)], &*format!("user={}", "é".repeat(61))),
    ] {
        let hot = hot_keys(1, true);
        let request = request(entries);
        let rule = match rules.find("d", &request.descriptors[0].entries) {
            Lookup::Rule(rule) => Some(rule),
            _ => None,
        };
        at(&request, &verdict(rule, Key::for_test(1), true), 0, &hot);
        let HottestKeys { requested, denied } = hot.top(1);
        assert_eq!(requested[0].values.as_deref(), Some(expected));
        assert_eq!(denied[0].values.as_deref(), Some(expected));
    }
}

#[test]
fn a_locked_stripe_delays_no_request() {
    let hot = hot_keys(1, false);
    let stripes = &hot.shared.as_ref().unwrap().stripes;
    let request = request(&[("user", "a")]);
    let note = || at(&request, &verdict(None, Key::for_test(1), false), 0, &hot);
    for free in 0..STRIPES {
        let taken = (0..STRIPES).filter(|at| *at != free).map(|at| stripes[at].0.lock());
        let taken: Vec<_> = taken.collect();
        note();
        drop(taken);
        assert_eq!(stripes[free].0.lock().current.requested.all().noted(), 1);
    }
    let all: Vec<_> = stripes.iter().map(|stripe| stripe.0.lock()).collect();
    note();
    drop(all);
    assert_eq!(hot.top(1).requested[0].count, STRIPES as u64, "left out");
}

mod sample {
    use super::super::*;

    #[test]
    fn one_decision_in_so_many_is_sampled_and_not_every_so_manyth() {
        const SEED: u64 = 4;
        println!("seed {SEED}");
        rng::seed(SEED);
        for sample in [1, 2, 4, 100] {
            let sample = NonZeroU32::new(sample).unwrap();
            let decisions = 100_000 * sample.get();
            let mut gaps = std::collections::BTreeSet::new();
            let (mut samples, mut last) = (0_u32, 0);
            for at in 0..decisions {
                if is_due(sample) {
                    gaps.insert(at - last);
                    (samples, last) = (samples + 1, at);
                }
            }
            assert!((99_000..=101_000).contains(&samples), "{samples} of {decisions}");
            let most = usize::try_from(2 * sample.get() - 1).unwrap();
            assert!(gaps.len() >= most, "{gaps:?}");
        }
    }
}
