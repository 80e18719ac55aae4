//! The patterns of a level, compared with a matcher that tries each in turn, letter by letter.

use ratelease_rules::request::Entry;
use ratelease_rules::{self as rules, Allowance, Lookup, Options, Source};

use crate::rng::Rng;
use crate::run;

/// Number of lookups in each level.
const VALUES: u64 = 10;

/// A level, and values that are looked up in it.
struct Level {
    patterns: Vec<String>,
    values: Vec<String>,
    shown: Vec<u8>,
}

#[test]
fn the_first_pattern_that_matches_is_found() {
    run::generated("matcher", 500, level, |level| {
        let mut text = String::from("domain: d\ndescriptors:\n");
        for (pattern, at) in level.patterns.iter().zip(1..) {
            text += &format!(
                "- {{key: k, value: \"{pattern}\", rate_limit: {{unit: day, \
                 requests_per_unit: {at}}}}}\n"
            );
        }
        let source = Source { name: "f.yaml".into(), text: text.into() };
        let rules = rules::load(&[source], Options::default()).unwrap().rules;
        let mut found_any = false;
        for value in &level.values {
            let found = match rules.find("d", &[Entry { key: "k", value }]) {
                Lookup::Rule(rule) => match rule.allowance {
                    Allowance::Limited(limit) => usize::try_from(limit.requests_per_unit).unwrap(),
                    Allowance::Unlimited => 0,
                },
                Lookup::NoRule | Lookup::UnknownDomain => 0,
            };
            let exact = level.patterns.iter().position(|pattern| pattern == value);
            let matches = |pattern: &String| matches(pattern.as_bytes(), value.as_bytes());
            let expected = exact.or_else(|| level.patterns.iter().position(matches));
            assert_eq!(found, expected.map_or(0, |at| at + 1), "{value:?}");
            found_any |= found > 0;
        }
        found_any
    });
}

fn level(rng: &mut Rng) -> Level {
    // Levels with few patterns, and with enough patterns for an index.
    let count = if rng.percent(50) { rng.within(1..8) } else { rng.within(17..100) };
    // Patterns whose ends match every value, so that all of their pieces are searched for at once.
    let are_open = rng.percent(50);
    let mut patterns: Vec<String> = Vec::new();
    for _ in 0..count {
        let pattern = match are_open {
            true => format!("*{}{}*", rng.pick(&['a', 'b', 'é']), text(rng, 8, true)),
            false => format!("{}*{}", text(rng, 6, true), text(rng, 4, true)),
        };
        if !patterns.contains(&pattern) {
            patterns.push(pattern);
        }
    }
    let values = (0..VALUES).map(|_| match rng.below(4) {
        0 => text(rng, 8, false),
        1 => text(rng, 300, false),
        // Derived from a pattern, so that it nearly matches.
        _ => {
            let pattern = &patterns[rng.index(patterns.len())];
            pattern.split('*').map(|it| it.to_owned() + &text(rng, 3, false)).collect()
        }
    });
    let values = values.collect();
    let shown = format!("{patterns:?} {values:?}").into();
    Level { patterns, values, shown }
}

/// A text of few different letters, so that pieces overlap.
fn text(rng: &mut Rng, most: u64, has_stars: bool) -> String {
    let letter = |rng: &mut Rng| match rng.below(12) {
        0..5 => 'a',
        5..9 => 'b',
        9 => 'é',
        _ if has_stars => '*',
        _ => '€',
    };
    (0..rng.below(most + 1)).map(|_| letter(rng)).collect()
}

/// Matches with a table: whether the first letters of the one match the first of the other.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let mut row = vec![false; text.len() + 1];
    row[0] = true;
    for wanted in pattern {
        let mut next = vec![false; text.len() + 1];
        next[0] = row[0] && *wanted == b'*';
        for at in 0..text.len() {
            next[at + 1] = match wanted {
                b'*' => row[at + 1] || next[at],
                _ => row[at] && text[at] == *wanted,
            };
        }
        row = next;
    }
    row[text.len()]
}

impl AsRef<[u8]> for Level {
    fn as_ref(&self) -> &[u8] {
        &self.shown
    }
}
