//! Which descriptors a change of a text concerns.

use super::*;
use crate::memory::Memory;

const TEXT: &str = "domain: d\ndescriptors:\n  - key: a\n    value: x\n  # b is next\n  - \
                    key: b\n  - key: c\n";

fn layout(text: &str) -> Option<Layout> {
    Layout::new(text, &Document::parse(text, &Memory::default()).unwrap())
}

/// The only changed part of the old text and of the new one.
fn change<'t>(old: &'t str, new: &'t str) -> Option<(&'t str, &'t str)> {
    let changes = layout(old)?.changes(old.as_bytes(), new.as_bytes())?;
    let [Change { old: from, new: to, .. }] = &changes[..] else { panic!("{changes:?}") };
    Some((&old[from.clone()], &new[to.clone()]))
}

#[test]
fn descriptors_between_two_changes_are_left_out() {
    let new = TEXT.replace("value: x", "value: yyy").replace("key: c", "key: e");
    let changes = layout(TEXT).unwrap().changes(TEXT.as_bytes(), new.as_bytes()).unwrap();
    let items: Vec<_> = changes.iter().map(|change| change.items.clone()).collect();
    assert_eq!(items, [0..1, 2..3]);
    let part = |change: &Change| layout(&format!("descriptors:\n{}", &new[change.new.clone()]));
    let parts: Vec<_> = changes.iter().map(part).collect();
    let patched = layout(TEXT).unwrap().with(&changes, &parts, "descriptors:\n".len()).unwrap();
    assert_eq!(patched.starts, layout(&new).unwrap().starts);
}

#[test]
fn a_change_is_of_the_descriptors_that_contain_it() {
    let b = "  - key: b\n";
    for (from, to, expected) in [
        ("key: b", "key: e", Some((b, "  - key: e\n"))),
        ("value: x", "value: yy", Some(("  - key: a\n    value: x\n  # b is next\n", ""))),
        ("  - key: c\n", "", Some(("  - key: c\n", ""))),
        ("  - key: c\n", "  - key: c\n  - key: e\n", Some(("  - key: c\n", ""))),
        // What is no descriptor, or could be another thing than one.
        ("domain: d", "domain: e", None),
        ("key: c\n", "key: c\n---\n", None),
        ("  - key: b\n", "    - key: b\n", None),
        ("  - key: b\n", "   more\n  - key: b\n", None),
        ("  - key: b\n  - key: c\n", "", Some(("", ""))),
    ] {
        let new = TEXT.replace(from, to);
        let found = change(TEXT, &new);
        assert_eq!(found.is_some(), expected.is_some(), "{from:?} to {to:?}: {found:?}");
        if let (Some((old, part)), Some((expected, expected_part))) = (found, expected) {
            assert!(old.starts_with(expected) || expected.is_empty(), "{from:?}: {old:?}");
            assert!(part == expected_part || expected_part.is_empty(), "{to:?}: {part:?}");
            assert_eq!(TEXT.replacen(old, part, 1), new);
        }
    }
}

#[test]
fn a_file_whose_descriptors_may_depend_on_each_other_has_no_layout() {
    assert_eq!(layout(TEXT).map(|layout| layout.len()), Some(3));
    for text in [
        "domain: d\n",
        "domain: d\ndescriptors: []\n",
        "domain: d\ndescriptors: [{key: a}]\n",
        "domain: d\ndescriptors:\n- &a {key: a}\n",
        "domain: d\ndescriptors:\n-\n  key: a\n",
        "domain: d\r\ndescriptors:\n- key: a\n",
        "%YAML 1.2\n---\ndomain: d\ndescriptors:\n- key: a\n",
        "<<: {descriptors: [{key: a}]}\ndomain: d\n",
    ] {
        assert!(layout(text).is_none(), "{text:?}");
    }
}

#[test]
fn texts_are_compared_from_both_ends() {
    let long = "x".repeat(3 * BLOCK);
    for (a, b, prefix, suffix) in [
        ("", "", 0, 0),
        ("ab", "ab", 2, 2),
        ("abc", "axc", 1, 1),
        ("abc", "abxc", 2, 1),
        (&*format!("{long}a{long}"), &*format!("{long}b{long}"), 3 * BLOCK, 3 * BLOCK),
    ] {
        assert_eq!(common_prefix(a.as_bytes(), b.as_bytes()), prefix);
        assert_eq!(common_suffix(a.as_bytes(), b.as_bytes()), suffix);
    }
}
