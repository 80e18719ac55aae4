//! The hottest keys of each rule, among other rules.

use std::collections::HashSet;

use super::*;

/// Creates `count` rules, named from `d.rule0` on.
fn many_rules(count: usize) -> Rules {
    let rule = |n: usize| {
        format!("  - {{key: rule{n}, rate_limit: {{unit: minute, requests_per_unit: 10}}}}\n")
    };
    let text = format!("domain: d\ndescriptors:\n{}", (0..count).map(rule).collect::<String>());
    let source = Source { name: "d.yaml".into(), text: text.into() };
    rules::load(&[source], rules::Options::default()).unwrap().rules
}

fn rule(rules: &Rules, n: usize) -> &Arc<Rule> {
    rules.by_path(&format!("d.rule{n}")).unwrap()
}

/// Requests for different keys of one rule.
fn requests(hot: &HotKeys, rule: &Arc<Rule>, count: u64, second: u64) {
    let request = request(&[("user", "a")]);
    for n in 0..count {
        at(&request, &verdict(Some(rule), Key::for_test(n), false), second, hot);
    }
}

fn paths(of: &[RuleHotKeys]) -> HashSet<&str> {
    of.iter().map(|of| &*of.rule).collect()
}

/// Number of quiet rules beside a busy one; together they have one decision in this many.
const QUIET: u32 = 4;
const QUIET_ONE_IN: u32 = 100;
/// Number of keys of each rule, and the ranks of those that are always denied.
const QUIET_KEYS: u32 = 300;
const DENIED: [u32; 5] = [1, 4, 7, 10, 13];

/// A rank by Zipf's law, approximately: its probability is proportional to one over the rank. Ranks
/// start at 0.
fn quiet_rank() -> u32 {
    let spread = f64::from(rng::below(u32::MAX)) / f64::from(u32::MAX);
    let limits = (1..QUIET_KEYS).map(|rank| f64::from(rank + 1).ln() / f64::from(QUIET_KEYS).ln());
    limits.zip(0..).find(|(limit, _)| spread < *limit).map_or(0, |(_, rank)| rank)
}

/// Checks that the true first five come first, in any order among nearly equal counts; and that no
/// count is too high, nor much too low.
fn check_first(listed: &[HotKey], truth: &HashMap<Key, u64>, all: u64, kind: &str) {
    let truth: HashMap<_, _> = truth.iter().map(|(key, count)| (key.to_string(), *count)).collect();
    let mut ranked: Vec<_> = truth.values().copied().collect();
    ranked.sort_unstable_by(|a, b| b.cmp(a));
    println!("{kind}: listed {:?}, the first are {:?}", &self::listed(listed)[..5], &ranked[..5]);
    for (hot, rank) in listed.iter().zip(ranked).take(5) {
        let (count, truth, percent) = (hot.count, truth[&hot.key], all / 100);
        assert!(truth + percent >= rank, "{kind}: {truth}, where {rank} is due");
        assert!(count <= truth && count + 2 * percent >= truth, "{kind}: {count} of {truth}");
        assert!((hot.share - truth as f64 / all as f64).abs() < 0.03, "{kind}: {}", hot.share);
    }
}

#[test]
fn each_quiet_rule_beside_a_busy_one_shows_its_true_top_keys() {
    const SEED: u64 = 7;
    println!("seed {SEED}");
    rng::seed(SEED);
    let (hot, rules) = (hot_keys(1, false), many_rules(5));
    let loud = rule(&rules, 4);
    let hasher = KeyHasher::new("beside");
    let key = |of: &str, n: u32| hasher.key(of, n.into(), std::iter::empty());
    let request = request(&[("user", "a")]);
    let mut truth = vec![(HashMap::new(), HashMap::new()); 4];
    for n in 0..800_000 {
        if n % QUIET_ONE_IN > 0 {
            let key = key("loud", rng::below(if n % 3 == 0 { 20 } else { 1_000_000 }));
            at(&request, &verdict(Some(loud), key, n % 2 == 0), 0, &hot);
            continue;
        }
        let (of, rank) = (rng::below(QUIET), quiet_rank());
        let (key, over) = (key("quiet", of * QUIET_KEYS + rank), DENIED.contains(&rank));
        let of = of as usize;
        *truth[of].0.entry(key).or_insert(0) += 1;
        *truth[of].1.entry(key).or_insert(0) += u64::from(over);
        at(&request, &verdict(Some(rule(&rules, of)), key, over), 0, &hot);
    }
    let listed = hot.by_rule(10);
    assert_eq!(listed[0].rule, "d.rule4", "the busiest comes first");
    assert_eq!(listed.len(), 5);
    for (of, (requested, denied)) in truth.iter().enumerate() {
        let path = format!("d.rule{of}");
        let listed = listed.iter().find(|listed| listed.rule == path).unwrap();
        let all = |truth: &HashMap<Key, u64>| truth.values().sum::<u64>();
        assert_eq!((listed.requests, listed.denials), (all(requested), all(denied)));
        check_first(&listed.top.requested, requested, listed.requests, &path);
        check_first(&listed.top.denied, denied, listed.denials, &path);
        assert_eq!(listed.top.denied.len(), DENIED.len());
    }
    assert!(hot.top(10).requested.iter().all(|hot| hot.rule == "d.rule4"), "of all, the loud's");
}

#[test]
fn millions_of_keys_take_no_more_memory_than_one_per_sketch() {
    let rules = many_rules(3_000);
    for (texts, blocks) in [(false, 5_000_000 / 128), (true, 4_000)] {
        let (hot, hasher) = (hot_keys(4, texts), KeyHasher::new("many"));
        let long = "x".repeat(300);
        let request = request(&[("user", &long)]);
        for n in 0..blocks {
            let rule = rules.iter().nth(n % 3_000).unwrap();
            let key = hasher.key("d", n as u64, std::iter::empty());
            let mut verdict = verdict(Some(rule), key, true);
            for pool in 0..128 {
                verdict.statuses[0].counted.as_mut().unwrap().key = key.of_pool(pool);
                at(&request, &verdict, 0, &hot);
            }
        }
        let few = hot_keys(1, texts);
        // Some of the first decisions are not sampled because of the stride of the samples before.
        (0..2 * RULES_MAX).for_each(|n| {
            at(&request, &verdict(Some(rule(&rules, n)), Key::for_test(1), true), 0, &few);
        });
        assert_eq!(bytes_of(&hot), bytes_of(&few));
        println!("{} of {} KiB", bytes_of(&hot) / 1024, HotKeys::bytes_max(texts) / 1024);
        let listed = hot.by_rule(10).len();
        assert!((RULES_MAX..=2 * RULES_MAX).contains(&listed), "{listed} rules");
        assert!(hot.top(10).requested.iter().all(|hot| hot.share < 0.01), "none of them is hot");
    }
}

#[test]
fn sketches_in_every_stripe_stay_within_the_memory_bound() {
    for (texts, mib_max) in [(false, 1.25), (true, 7.25)] {
        let (hot, rules) = (hot_keys(1, texts), many_rules(RULES_MAX));
        let stripes = &hot.shared.as_ref().unwrap().stripes;
        let request = request(&[("user", "a")]);
        for (free, second) in (0..STRIPES).flat_map(|free| [(free, 0), (free, 60)]) {
            let taken = (0..STRIPES).filter(|at| *at != free).map(|at| stripes[at].0.lock());
            let taken: Vec<_> = taken.collect();
            for rule in rules.iter() {
                at(&request, &verdict(Some(rule), Key::for_test(1), true), second, &hot);
            }
            drop(taken);
        }
        assert_eq!(bytes_of(&hot), HotKeys::bytes_max(texts));
        assert_eq!(hot.by_rule(1).len(), RULES_MAX);
        let mib = bytes_of(&hot) as f64 / f64::from(1 << 20);
        println!("{mib:.2} MiB, texts: {texts:?}");
        assert!(mib <= mib_max, "{mib} MiB");
    }
}

#[test]
fn a_busy_rule_that_appears_late_replaces_a_quiet_one() {
    const SEED: u64 = 3;
    println!("seed {SEED}");
    rng::seed(SEED);
    let (hot, rules) = (hot_keys(1, false), many_rules(RULES_MAX + 1));
    let late = rule(&rules, RULES_MAX);
    for n in 0..RULES_MAX {
        requests(&hot, rule(&rules, n), if n == 5 { 50 } else { 500 }, 0);
    }
    requests(&hot, late, 1, 1);
    let key = Key::for_test(77);
    let request = request(&[("user", "a")]);
    (0..1_000).for_each(|_| at(&request, &verdict(Some(late), key, false), 1, &hot));
    let listed = hot.by_rule(10);
    assert_eq!(listed.len(), RULES_MAX);
    assert!(!paths(&listed).contains("d.rule5"), "the quietest lost its sketch");
    let of_late = listed.iter().find(|of| *of.rule == *late.path).unwrap();
    assert!((700..=1_001).contains(&of_late.requests), "{of_late:?}");
    assert_eq!(of_late.top.requested[0].key, key.to_string());
    // The next minute begins with all places free.
    requests(&hot, rule(&rules, 5), 3, 60);
    assert!(paths(&hot.by_rule(10)).contains("d.rule5"));
}

#[test]
fn rules_that_appear_once_do_not_replace_busy_ones() {
    const SEED: u64 = 5;
    println!("seed {SEED}");
    rng::seed(SEED);
    let (hot, rules) = (hot_keys(1, false), many_rules(2_000));
    let busy = RULES_MAX - 1;
    (0..busy).for_each(|n| requests(&hot, rule(&rules, n), 500, 0));
    (busy..2_000).for_each(|n| requests(&hot, rule(&rules, n), 1, 0));
    let listed = hot.by_rule(10);
    assert_eq!(listed.len(), RULES_MAX);
    for (n, of) in (0..busy).map(|n| (n, format!("d.rule{n}"))) {
        let listed = listed.iter().find(|listed| listed.rule == of).map(|listed| listed.requests);
        assert_eq!(listed, Some(500), "rule {n}");
    }
}

#[test]
fn a_reloaded_rule_keeps_its_sketch_and_overrides_have_one() {
    let (hot, rules, reloaded) = (hot_keys(1, false), many_rules(1), many_rules(1));
    let request = request(&[("user", "a")]);
    let key = Key::for_test(1);
    at(&request, &verdict(Some(rule(&rules, 0)), key, true), 0, &hot);
    at(&request, &verdict(Some(rule(&reloaded, 0)), key, false), 70, &hot);
    at(&request, &verdict(Some(rule(&reloaded, 0)), key, false), 70, &hot);
    at(&request, &verdict(None, key, false), 70, &hot);
    let listed = hot.by_rule(10);
    let counts: Vec<_> = listed.iter().map(|of| (&*of.rule, of.requests, of.denials)).collect();
    assert_eq!(counts, [("d.rule0", 3, 1), (OVERRIDE, 1, 0)]);
    let name = key.to_string();
    assert_eq!(self::listed(&listed[0].top.requested), [(&*name, 3)]);
    assert_eq!(self::listed(&listed[0].top.denied), [(&*name, 1)]);
    assert_eq!(
        (listed[0].top.requested[0].share, &*listed[0].top.requested[0].rule),
        (1.0, "d.rule0")
    );
    // Two minutes later no count of either is left, and the old rules have no holder.
    at(&request, &verdict(None, key, false), 200, &hot);
    assert_eq!(paths(&hot.by_rule(10)), HashSet::from([OVERRIDE]));
    let references = |rules: &Rules| Arc::strong_count(rule(rules, 0));
    assert_eq!(
        (references(&rules), references(&reloaded)),
        (references(&many_rules(1)), references(&many_rules(1)))
    );
}

#[test]
fn the_busiest_rules_of_all_stripes_are_listed() {
    let (hot, rules) = (hot_keys(1, false), many_rules(STRIPES * RULES_MAX));
    let stripes = &hot.shared.as_ref().unwrap().stripes;
    let request = request(&[("user", "a")]);
    for free in 0..STRIPES {
        let taken = (0..STRIPES).filter(|at| *at != free).map(|at| stripes[at].0.lock());
        let taken: Vec<_> = taken.collect();
        for n in (0..RULES_MAX).map(|n| free * RULES_MAX + n) {
            // The first rules are denied once, the last requested twice.
            let verdict = verdict(Some(rule(&rules, n)), Key::for_test(1), n < RULES_MAX);
            (0..1 + n / (7 * RULES_MAX)).for_each(|_| at(&request, &verdict, 0, &hot));
        }
        drop(taken);
    }
    let listed = hot.by_rule(10);
    let listed: Vec<_> = listed.iter().map(|of| (of.requests, of.denials)).collect();
    assert_eq!(listed, [[(2, 0); RULES_MAX], [(1, 1); RULES_MAX]].concat());
}
