//! Compares lookup with a plain implementation of the reference's: joined keys, one map per level.
//!
//! Without `_` in keys and values the reference's joined keys cannot collide, and the two must
//! agree.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
struct Written {
    key: &'static str,
    value: &'static str,
    limited: bool,
    children: Vec<Written>,
}

const KEYS: [&str; 6] = ["a", "b", "a*", "*", "ab", "*b"];
const VALUES: [&str; 9] = ["", "x", "xy", "x*", "*", "*y", "x*y", "xyx", "*x*"];
const ASKED_KEYS: [&str; 6] = ["a", "b", "ab", "c", "", "a*"];
const ASKED_VALUES: [&str; 8] = ["", "x", "y", "xy", "xyx", "x*", "xxyy", "*"];

fn level(depth: u32) -> BoxedStrategy<Vec<Written>> {
    let children = match depth {
        0 => Just(Vec::new()).boxed(),
        _ => prop_oneof![Just(Vec::new()), level(depth - 1)].boxed(),
    };
    let written = (
        prop::sample::select(&KEYS[..]),
        prop::sample::select(&VALUES[..]),
        any::<bool>(),
        children,
    )
        .prop_map(|(key, value, limited, children)| Written { key, value, limited, children });
    let unique = |level: Vec<Written>| {
        let mut seen = Vec::new();
        let is_new = |written: &Written| {
            let pair = (written.key, written.value);
            let is_new = !seen.contains(&pair);
            seen.push(pair);
            is_new
        };
        level.into_iter().filter(is_new).collect()
    };
    prop::collection::vec(written, 1..6).prop_map(unique).boxed()
}

/// Writes the rules; each limit has a different number.
fn write(level: &[Written], indent: usize, count: &mut u32, out: &mut String) {
    let pad = " ".repeat(indent);
    for Written { key, value, limited, children } in level {
        *count += 1;
        *out += &format!("{pad}- key: \"{key}\"\n{pad}  value: \"{value}\"\n");
        if *limited {
            *out += &format!("{pad}  rate_limit: {{unit: day, requests_per_unit: {count}}}\n");
        }
        if !children.is_empty() {
            *out += &format!("{pad}  descriptors:\n");
            write(children, indent + 4, count, out);
        }
    }
}

/// Returns a level's descriptors, each with its composite key and the number that `write` gives it.
fn number<'w>(level: &'w [Written], count: &mut u32) -> Vec<(String, u32, &'w Written)> {
    let mut numbered = Vec::new();
    for written in level {
        *count += 1;
        let composite = match written.value {
            "" => written.key.to_owned(),
            value => format!("{}_{value}", written.key),
        };
        numbered.push((composite, *count, written));
        number(&written.children, count);
    }
    numbered
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, _) => text.is_empty(),
        (Some((b'*', rest)), _) => (0..=text.len()).any(|skip| matches(rest, &text[skip..])),
        (Some((a, rest)), Some((b, text))) => a == b && matches(rest, text),
        (Some(_), None) => false,
    }
}

/// Returns the number of the limit that the reference finds.
fn reference(root: &[Written], request: &[Entry<'_>]) -> Option<u32> {
    let mut level = number(root, &mut 0);
    for (index, entry) in request.iter().enumerate() {
        let joined = format!("{}_{}", entry.key, entry.value);
        let chosen = level
            .iter()
            .find(|(composite, ..)| *composite == joined)
            .or_else(|| {
                let mut wild = level.iter().filter(|(composite, ..)| composite.contains('*'));
                wild.find(|(composite, ..)| matches(composite.as_bytes(), joined.as_bytes()))
            })
            .or_else(|| level.iter().find(|(composite, ..)| composite == entry.key))?;
        let (_, own, written) = chosen;
        if index + 1 == request.len() {
            return written.limited.then_some(*own);
        }
        level = number(&written.children, &mut own.clone());
    }
    None
}

proptest! {
    #[test]
    fn finds_what_the_reference_finds(
        root in level(2),
        requests in prop::collection::vec(
            prop::collection::vec(
                (prop::sample::select(&ASKED_KEYS[..]), prop::sample::select(&ASKED_VALUES[..])),
                0..4,
            ),
            1..20,
        ),
    ) {
        let mut text = "domain: d\ndescriptors:\n".to_owned();
        write(&root, 2, &mut 0, &mut text);
        let rules = compile(&text).rules;
        for request in requests {
            let request: Vec<_> =
                request.into_iter().map(|(key, value)| Entry { key, value }).collect();
            let found = match rules.find("d", &request) {
                Lookup::Rule(rule) => match rule.allowance {
                    Allowance::Limited(limit) => Some(limit.requests_per_unit),
                    Allowance::Unlimited => None,
                },
                _ => None,
            };
            prop_assert_eq!(found, reference(&root, &request).map(u64::from), "{:?} in\n{}", request, text);
            let trace = rules.trace("d", &request).expect("the domain is there");
            let traced = trace.rule.map(|rule| &rule.path);
            let by_find = match rules.find("d", &request) {
                Lookup::Rule(rule) => Some(&rule.path),
                _ => None,
            };
            prop_assert_eq!(traced, by_find, "{:?} in\n{}", request, text);
            for step in &trace.steps {
                // The first listed candidate that fits is the one that is taken, and no other is
                // taken.
                let fitting = step.candidates.iter().position(|candidate| candidate.matches_entry);
                prop_assert_eq!(step.chosen, fitting, "{:?} in\n{}", request, text);
                prop_assert!(step.chosen.is_some() || step.rule.is_none());
            }
        }
    }
}
