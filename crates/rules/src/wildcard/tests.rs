//! Compares levels with many patterns to a search that tries each pattern in turn.

use proptest::prelude::*;

use super::*;

/// Builds a level of these patterns; each leads to the node with its index.
fn level<T: AsRef<str>>(patterns: &[T]) -> Patterns {
    let mut level = Patterns::default();
    for (node, pattern) in (0..).zip(patterns) {
        level.push(pattern.as_ref(), node);
    }
    level.index(&Memory::default());
    level
}

/// Returns the first pattern that matches, trying one after the other.
fn tried<T: AsRef<str>>(patterns: &[T], text: &str) -> Option<u32> {
    let parsed = patterns.iter().map(|pattern| Pattern::parse(pattern.as_ref()));
    let found = (0..).zip(parsed).find(|(_, it)| it.as_ref().unwrap().matches(text.as_bytes()));
    found.map(|(node, _)| node)
}

/// Patterns that match none of the texts here; they are enough for a level to build its index.
fn filler() -> impl Iterator<Item = String> {
    (0..2 * FEW_MAX).map(|at| format!("*filler{at}*"))
}

#[test]
fn of_many_patterns_the_first_of_the_file_is_found() {
    let patterns: Vec<String> =
        filler().chain(["a*", "ab*", "*b", "*", "abc*"].map(str::to_owned)).collect();
    let level = level(&patterns);
    assert!(level.index.is_some());
    let first = u32::try_from(2 * FEW_MAX).unwrap();
    for (text, found) in [("abc", 0), ("b", 2), ("xb", 2), ("", 3), ("x", 3), ("ab", 0)] {
        assert_eq!(level.find(text.as_bytes()), Some(first + found), "{text}");
    }
    assert_eq!(level.find(b"xfiller3x"), Some(3));
    assert_eq!(level.find(b"filler31"), Some(3), "'filler3' stands in 'filler31' too");
}

#[test]
fn pieces_of_one_pattern_do_not_overlap() {
    let patterns: Vec<String> =
        filler().chain(["*aba*aba*", "x*ab*b", "*a*a*a*a*"].map(str::to_owned)).collect();
    let level = level(&patterns);
    let first = u32::try_from(2 * FEW_MAX).unwrap();
    for (text, found) in [
        ("ababa", None),
        ("abaaba", Some(0)),
        ("abababa", Some(0)),
        ("xab", None),
        ("xabb", Some(1)),
        ("aaa", None),
        ("aaaa", Some(2)),
    ] {
        assert_eq!(level.find(text.as_bytes()), found.map(|at| first + at), "{text}");
    }
}

#[test]
fn a_level_has_room_for_patterns_until_a_search_would_cost_too_much() {
    let mut level = Patterns::default();
    (0..2 * SEARCHED_MAX).for_each(|at| level.push(&format!("{at}*"), 0));
    assert!(level.has_room(), "a prefix needs no search");
    (1..SEARCHED_MAX).for_each(|at| level.push(&format!("*{at}"), 0));
    assert!(level.has_room());
    level.push("a*b", 0);
    assert!(!level.has_room());
    let mut level = Patterns::default();
    level.push(&format!("*{}*", "p".repeat(PIECE_BYTES_MAX - 1)), 0);
    assert!(level.has_room());
    level.push("*p*", 0);
    assert!(!level.has_room());
}

proptest! {
    #[test]
    fn many_patterns_find_what_trying_each_in_turn_finds(
        patterns in prop::collection::vec("[ab_é]{0,2}\\*[ab_é*]{0,4}[ab]{0,1}", 1..80),
        texts in prop::collection::vec("[ab_é]{0,12}", 1..20),
    ) {
        let level = level(&patterns);
        for text in texts {
            prop_assert_eq!(level.find(text.as_bytes()), tried(&patterns, &text), "{}", text);
        }
    }

    #[test]
    fn pieces_are_found_whatever_the_number_of_candidates(
        patterns in prop::collection::vec("\\*[ab]{1,3}\\*([ab]{1,2}\\*){0,2}[ab]{0,1}", 20..80),
        texts in prop::collection::vec("[abc]{0,16}", 1..20),
    ) {
        let level = level(&patterns);
        for text in texts {
            prop_assert_eq!(level.find(text.as_bytes()), tried(&patterns, &text), "{}", text);
        }
    }
}
