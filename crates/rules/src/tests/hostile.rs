//! No input makes loading panic, hang or exhaust memory.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;
use crate::options::MapKind;

/// Far longer than any of these loads takes, far shorter than a load would take that is not linear.
const LONG: std::time::Duration = std::time::Duration::from_secs(60);

/// Returns the first fault of `text`, which must be found quickly.
#[allow(clippy::disallowed_methods)] // measures; decides nothing
fn refused_soon(text: &str) -> String {
    let start = std::time::Instant::now();
    let found = refusal(&[source(text)], NO_MERGE);
    assert!(start.elapsed() < LONG, "took {:?}", start.elapsed());
    found.first().unwrap().clone()
}

#[test]
fn deep_nesting_is_refused_at_its_place() {
    let too_deep = "nested deeper than 64 levels";
    for open in ["[", "{a: ", "- ", "? "] {
        let fault = refused_soon(&open.repeat(20_000));
        assert!(fault.contains(too_deep) || fault.contains("recursion limit"), "{open}: {fault}");
    }
    let fault =
        refused_soon(&(0..1000).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>());
    assert_eq!(fault, "a.yaml:65:65: error loading config file: nested deeper than 64 levels");
    let flow = format!("domain: a\ndescriptors: {}", "[".repeat(5_000_000));
    assert!(refused_soon(&flow).contains("words"));
}

#[test]
fn thirty_one_levels_of_descriptors_load() {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for level in 0..31 {
        let indent = "  ".repeat(level);
        text += &format!("{indent}- key: k{level}\n{indent}  descriptors:\n");
    }
    assert!(compile(&text).rules.is_empty());
}

#[test]
fn an_alias_bomb_is_refused() {
    let mut text = "a: &a0 [1,2,3,4,5,6,7,8,9]\n".to_owned();
    for n in 1..10 {
        let alias = format!("*a{}", n - 1);
        text += &format!("a{n}: &a{n} [{}]\n", [alias.as_str(); 9].join(","));
    }
    let bomb = format!(
        "domain: d\nmetadata:\n  x: 1\nvalue:\n  key:\n    {}",
        text.replace('\n', "\n    ")
    );
    assert!(refused_soon(&bomb).contains("unknown key"));
    let listed = |what: &str| {
        let mut text = format!("domain: d\ndescriptors:\n  - key: a\n    {what}: &a0 [{{}}]\n");
        for n in 1..12 {
            let alias = format!("{{{what}: *a{}}}", n - 1);
            text +=
                &format!("  - {{key: b{n}, {what}: &a{n} [{}]}}\n", [alias.as_str(); 9].join(","));
        }
        text
    };
    for what in ["descriptors", "unlimited"] {
        let faults = refusal(&[source(&listed(what))], NO_MERGE);
        assert!(faults.iter().any(|fault| fault.contains("aliases stand for more than")), "{what}");
    }
}

#[test]
fn a_merge_bomb_is_refused() {
    let mut text = "domain: d\ndescriptors:\n  - &a0 {key: a, value: b}\n".to_owned();
    for n in 1..12 {
        let alias = format!("*a{}", n - 1);
        text += &format!("  - &a{n}\n    <<: [{}]\n", [alias.as_str(); 9].join(","));
    }
    let faults = refusal(&[source(&text)], NO_MERGE);
    assert!(faults.iter().any(|fault| fault.contains("aliases stand for more than")), "{faults:?}");
}

#[test]
fn a_metadata_bomb_is_refused() {
    let mut text =
        "domain: d\ndescriptors:\n  - key: a\n    metadata:\n      a0: &a0 [1,2,3,4]\n".to_owned();
    for n in 1..40 {
        let alias = format!("*a{}", n - 1);
        text += &format!("      a{n}: &a{n} [{}]\n", [alias.as_str(); 4].join(","));
    }
    assert!(refused_soon(&text).contains("error parsing metadata: larger than 64 KiB"));
    let deep = format!(
        "domain: d\ndescriptors:\n  - key: a\n    metadata: {{a: {}{}}}\n",
        "[".repeat(30),
        "]".repeat(30)
    );
    assert!(refused_soon(&deep).contains("error parsing metadata: nested deeper than 24 levels"));
}

#[test]
fn aliases_that_nest_deeper_than_the_file_are_refused() {
    let mut text =
        "domain: d\ndescriptors:\n  - key: a\n    descriptors: &a0 [{key: x}]\n".to_owned();
    for n in 1..100 {
        text += &format!(
            "  - {{key: b{n}, descriptors: &a{n} [{{key: x, descriptors: *a{}}}]}}\n",
            n - 1
        );
    }
    let faults = refusal(&[source(&text)], NO_MERGE);
    assert!(faults.iter().all(|fault| fault.contains("nested deeper than 64 levels by aliases")));
}

#[test]
fn a_long_key_above_many_rules_is_refused_before_it_is_copied_for_each() {
    let mut text =
        format!("domain: d\ndescriptors:\n  - key: {}\n    descriptors:\n", "k".repeat(1 << 20));
    for n in 0..1000 {
        text +=
            &format!("      - {{key: n{n}, rate_limit: {{unit: day, requests_per_unit: 1}}}}\n");
    }
    let faults = refusal(&[source(&text)], NO_MERGE);
    assert_eq!(faults.len(), 1);
    assert!(
        faults[0].contains("keys and values of all rules exceed 256 MiB together"),
        "{}",
        faults[0]
    );
}

#[test]
fn leases_and_limits_merged_a_million_times_over_are_refused() {
    let mut text = "domain: d\ndefaults: {lease: &a0 {max: 1, ttl: 1s}}\ndescriptors:\n".to_owned();
    for n in 1..12 {
        let alias = format!("*a{}", n - 1);
        let merged = [alias.as_str(); 9].join(",");
        text += &format!("  - {{key: k{n}, rate_limit: {{lease: &a{n} {{<<: [{merged}]}}}}}}\n");
    }
    let faults = refusal(&[source(&text)], NO_MERGE);
    assert!(faults.iter().any(|fault| fault.contains("aliases stand for more than")), "{faults:?}");
}

#[test]
fn amounts_at_the_ends_of_their_types_load_or_are_refused() {
    let fields = fields::ranges(MapKind::RateLimit);
    let numbers = ["0", "1", "2147483648", "4294967295", "9223372036854775807", "1e308", "-.inf"];
    for (one, other) in numbers.iter().flat_map(|one| numbers.map(|other| (one, other))) {
        for algorithm in ["fixed_window", "token_bucket", "sliding_log", "leaky_bucket"] {
            let amount = |(name, _): &(&str, _)| match *name {
                "requests_per_unit" | "unit_multiplier" => format!("{name}: {one}"),
                name => format!("{name}: {other}"),
            };
            let amounts: Vec<_> = fields.iter().map(amount).collect();
            let text = format!(
                "domain: d\ndescriptors:\n  - key: k\n    rate_limit: {{unit: year, {}, \
                 max_delay: {one}h, algorithm: {algorithm}, lease: {{fraction: {other}, max: \
                 {one}, ttl: {other}s}}}}\n",
                amounts.join(", ")
            );
            load_safely(text.into_bytes());
        }
    }
}

/// A kind of damage to a file.
#[derive(Debug, Clone)]
enum Damage {
    Put(Index, u8),
    Insert(Index, Vec<u8>),
    Cut(Index, Index),
    Repeat(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let marks = prop::sample::select(&b"[]{}:,-?&*!|>'\"%@`#<\n \t\r~0a\x00\xff\xef"[..]);
    let at = any::<Index>;
    prop_oneof![
        (at(), marks.clone()).prop_map(|(at, byte)| Damage::Put(at, byte)),
        (at(), prop::collection::vec(marks, 1..6))
            .prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        (at(), at()).prop_map(|(from, to)| Damage::Cut(from, to)),
        (at(), at()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ]
}

fn apply(text: &mut Vec<u8>, damage: &Damage) {
    let index = |at: &Index| at.index(text.len().max(1)).min(text.len());
    let range = |a: &Index, b: &Index| {
        let (a, b) = (index(a), index(b));
        a.min(b)..a.max(b).min(a.min(b) + 200)
    };
    match damage {
        Damage::Put(at, byte) => {
            let at = index(at);
            if let Some(old) = text.get_mut(at) {
                *old = *byte;
            }
        }
        Damage::Insert(at, bytes) => {
            let at = index(at);
            text.splice(at..at, bytes.iter().copied());
        }
        Damage::Cut(from, to) => {
            let range = range(from, to);
            text.drain(range);
        }
        Damage::Repeat(from, to) => {
            let range = range(from, to);
            let copy = text[range.clone()].to_vec();
            text.splice(range.start..range.start, copy);
        }
    }
}

/// Loads `text` and checks that every fault has a place in the file.
fn load_safely(text: Vec<u8>) {
    let lines = text.iter().filter(|byte| matches!(byte, b'\n' | b'\r')).count() + 1;
    let sources = [Source { name: "a.yaml".to_owned(), text }];
    let findings = match load(&sources, MERGE) {
        Ok(loaded) => loaded.warnings,
        Err(faults) => faults.iter().cloned().collect(),
    };
    for fault in findings {
        assert!(fault.line >= 1 && fault.column >= 1, "{fault}");
        assert!(fault.line as usize <= lines + 1, "{fault}");
        assert!(!fault.message.contains('\n'), "{fault:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_load_or_are_refused(text in prop::collection::vec(any::<u8>(), 0..400)) {
        load_safely(text);
    }

    #[test]
    fn any_marks_load_or_are_refused(text in "[\\[\\]{}:,\\-?&*!|>'\"%@#<a0~\n\t ]{0,120}") {
        load_safely(text.into_bytes());
    }

    #[test]
    fn damaged_files_load_or_are_refused(
        name in prop::sample::select(
            vec!["yaml.yaml", "metadata.yaml", "wildcard.yaml", "replaces.yaml", "beyond.yaml"]
        ),
        damages in prop::collection::vec(damage(), 1..8),
    ) {
        let mut text = std::fs::read(fixtures("ok").join(name)).unwrap();
        for damage in &damages {
            apply(&mut text, damage);
        }
        load_safely(text);
    }
}

#[test]
fn a_near_name_is_looked_for_a_few_times_however_many_names_are_wrong() {
    let unknown = "domain: d\n".to_owned() + &"domani: 1\n".repeat(300_000);
    let mut units = "domain: d\ndescriptors:\n".to_owned();
    for at in 0..1000 {
        units += &format!("- {{key: k{at}, rate_limit: {{unit: minuet, requests_per_unit: 1}}}}\n");
    }
    for (text, count) in [(unknown, 300_000), (units, 1000)] {
        let faults = load(&[source(&text)], NO_MERGE).unwrap_err();
        assert_eq!(faults.count(), count);
        let suggested = faults.iter().filter(|fault| fault.message.contains("did you mean"));
        assert_eq!(suggested.count(), 20);
        assert!(faults.iter().all(|fault| fault.message.contains("expected one of")));
    }
}

#[test]
fn a_level_with_more_patterns_than_a_search_may_look_at_is_refused() {
    let level = |count: usize, pattern: &dyn Fn(usize) -> String| {
        let list = (0..count).map(|at| format!("- {{key: k, value: '{}'}}\n", pattern(at)));
        format!("domain: d\ndescriptors:\n{}", list.collect::<String>())
    };
    let many = 16_384;
    assert!(load(&[source(&level(many, &|at| format!("*{at}*")))], NO_MERGE).is_ok());
    assert!(load(&[source(&level(2 * many, &|at| format!("{at}*")))], NO_MERGE).is_ok());
    let long = "p".repeat(4096);
    for text in [
        level(many + 1, &|at| format!("*{at}*")),
        level(many + 9, &|at| format!("x*{at}")),
        level(300, &|at| format!("*{long}{at}*")),
        level(many + 1, &|at| format!("*{at}*")).replace("key: k, value", "key"),
    ] {
        let faults = refusal(&[source(&text)], NO_MERGE);
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("16384 patterns"), "{faults:?}");
    }
}

/// They would all be met at each byte of a value that repeats the letter, and the automaton's lists
/// of them would take gigabytes.
#[test]
fn patterns_whose_pieces_end_one_another_are_refused() {
    let list = |count: usize, indent: &str| -> String {
        let pattern = |at| format!("{indent}- {{key: k, value: '*{}*z{at}*'}}\n", "a".repeat(at));
        (1..=count).map(pattern).collect()
    };
    let top = |count| format!("domain: d\ndescriptors:\n{}", list(count, ""));
    let below =
        |count| format!("domain: d\ndescriptors:\n- key: j\n  descriptors:\n{}", list(count, "  "));
    for (text, place) in [(&top as &dyn Fn(usize) -> String, "1"), (&below, "3:3")] {
        // Few patterns are tried one by one.
        for count in [1, 16] {
            assert!(load(&[source(&text(count))], NO_MERGE).is_ok(), "{count}");
        }
        for count in [17, 1_400] {
            let faults = refusal(&[source(&text(count))], NO_MERGE);
            assert_eq!(faults.len(), 1, "{faults:?}");
            assert!(faults[0].contains("more than 16 texts between the '*'"), "{faults:?}");
            assert!(faults[0].contains(&format!(":{place}")), "{faults:?}");
        }
    }
}

#[test]
fn aliases_stand_for_a_part_of_their_file_that_is_bounded() {
    let text = |uses: usize| {
        let uses: String =
            (0..uses).map(|at| format!("- {{key: k{at}, metadata: *m}}\n")).collect();
        let value = "v".repeat(32 << 10);
        format!("domain: d\ndescriptors:\n- {{key: k, metadata: &m {{a: {value}}}}}\n{uses}")
    };
    assert!(load(&[source(&text(30))], NO_MERGE).is_ok());
    let faults = refusal(&[source(&text(200))], NO_MERGE);
    assert!(faults.iter().any(|it| it.contains("8 times the file")), "{faults:?}");
}
